"""Training adapters and head from labels, by Transformers' Trainer."""

from dataclasses import dataclass, field

import datasets
import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import (
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_pt_utils import get_length_grouped_indices

from sptlib.errors import ConfigError, DataError
from sptlib.polar import metrics, qlora
from sptlib.polar.config import QLoRAConfig
from sptlib.polar.labels import Subtask
from sptlib.polar.watch import How, common, follow, seconds
from sptlib.seeding import derive_seed, generator

#: evaluations and checkpoints, as published: steps by subtask
EVERY = {1: 500, 2: 1000, 3: 1000}


@dataclass(frozen=True)
class Outcome:
    """What a training leaves behind.

    Attributes:
        log: losses and evaluations, as `sptlib.store` keeps them.
        best_step: whose weights the model has.
        n_steps: of the training.
        n_cut: training posts longer than ``max_length``.
        seconds: of all its parts.
        notes: what the reader should know.
    """

    log: list[dict]
    best_step: int
    n_steps: int
    n_cut: int
    seconds: float
    notes: list[str] = field(default_factory=list)


def class_weights(labels: np.ndarray) -> Tensor:
    """N / (2 N_class) of the classes 0 and 1; raises `DataError` if one is missing."""
    n = np.bincount(labels.astype(int), minlength=2)
    if not n.all():
        raise DataError(
            "train", f"all {len(labels)} posts are of class {int(n[1] > 0)}: nothing to learn"
        )
    return torch.tensor(len(labels) / (2 * n), dtype=torch.float32)


def dataset(
    posts: pd.DataFrame, tokenizer: PreTrainedTokenizerFast, subtask: Subtask, max_length: int
) -> tuple[datasets.Dataset, int]:
    """Token numbers, lengths and labels; and how many posts were cut."""
    ids, n_cut = qlora.tokens(posts["text"].tolist(), tokenizer, max_length)
    labels = posts[list(subtask.labels)].to_numpy(dtype=np.float32)
    target = labels[:, 0].astype(np.int64) if subtask.binary else labels
    columns = {"input_ids": ids, "length": [len(x) for x in ids], "labels": list(target)}
    return datasets.Dataset.from_dict(columns), n_cut


class Grouped(Sampler):
    """Batches of similar length; the order is another in each epoch, and known from its number."""

    def __init__(self, lengths: list[int], batch_size: int, seed: int):
        self.lengths, self.batch_size, self.seed, self.epoch = lengths, batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer; a resumed one calls it, too."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self):
        order = generator(self.seed, "polar", "order", self.epoch)
        return iter(get_length_grouped_indices(self.lengths, self.batch_size, generator=order))


class _Classifier(Trainer):
    """The Trainer with this task's loss and order of batches."""

    def __init__(self, *args, subtask: Subtask, weights: Tensor | None, order_seed: int, **more):
        super().__init__(*args, **more)
        self._subtask, self._weights, self._order_seed = subtask, weights, order_seed

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        logits = outputs.logits.float()
        if self._subtask.binary:
            each = nn.functional.cross_entropy(logits, labels, reduction="none")
            if self._weights is not None:
                # not by its argument `weight`, whose mean is over the batch's own weights: in a
                # batch of one post, as published, they would cancel
                each = each * self._weights.to(each.device)[labels]
            loss = each.mean()
        else:
            loss = nn.functional.binary_cross_entropy_with_logits(logits, labels.float())
        return (loss, outputs) if return_outputs else loss

    def _get_train_sampler(self, train_dataset=None):
        return Grouped(
            list(self.train_dataset["length"]), self.args.train_batch_size, self._order_seed
        )


def arguments(
    config: QLoRAConfig, n_posts: int, subtask: Subtask, how: How, seed: int
) -> TrainingArguments:
    """The Trainer's own arguments for a configuration."""
    per_epoch = -(-n_posts // config.batch_size)
    n_steps = config.steps or max(1, round(per_epoch * config.epochs))
    every = min(config.eval_steps or EVERY[subtask.number], n_steps)
    gpu = how.device.type == "cuda"
    auto = "paged_adamw_32bit" if gpu else "adamw_torch"
    return TrainingArguments(
        **common(how),
        max_steps=n_steps,
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=max(32, config.batch_size),
        learning_rate=config.lr,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=round(config.warmup_ratio * n_steps),
        weight_decay=config.weight_decay,
        max_grad_norm=config.clip,
        optim=auto if config.optimiser == "auto" else config.optimiser,
        eval_strategy="steps",
        eval_steps=every,
        save_strategy="steps",
        save_steps=every,
        load_best_model_at_end=False,  # done below: not when it was stopped
        metric_for_best_model="score",
        greater_is_better=True,
        seed=derive_seed(seed, "polar", "training") % 2**32,
    )


def train(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    posts: pd.DataFrame,
    held_out: pd.DataFrame,
    subtask: Subtask,
    config: QLoRAConfig,
    seed: int,
    how: How,
) -> Outcome:
    """Train adapters and head; the model ends with the weights of the best evaluation.

    The best is judged by AUC for detection, by macro-F1 at threshold 0.5 for the others, on the
    held-out posts of all languages together.

    Args:
        model: of `sptlib.polar.qlora.with_adapters`.
        tokenizer: of its base.
        posts: to learn from, copies included.
        held_out: to judge by.
        subtask: what is asked.
        config: of the training.
        seed: of batches and dropout.
        how: checkpoints, progress.

    Raises:
        DataError: if one class is all there is to learn from.
        DivergedError: if the loss became NaN.
        Stopped: when ``how.stop`` said so; the same call goes on from there.
    """
    notes = []
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and config.max_length > longest:
        raise ConfigError(
            f"qlora.max_length={config.max_length}, but the base has {longest} positions"
        )
    learn, n_cut = dataset(posts, tokenizer, subtask, config.max_length)
    judge, _ = dataset(held_out, tokenizer, subtask, config.max_length)
    labels = posts[list(subtask.labels)].to_numpy(dtype=np.int64)
    weights = class_weights(labels[:, 0]) if subtask.binary else None
    if not labels.any():
        raise DataError("train", "no post has any label: nothing to learn")
    by_auc = subtask.binary and len(set(judge["labels"])) == 2
    if subtask.binary and not by_auc:
        notes.append("held-out posts are all of one class: the best is judged by macro-F1, no AUC")
    if n_cut:
        notes.append(f"{n_cut} of {len(posts)} posts were cut to {config.max_length} tokens")

    def judged(prediction) -> dict[str, float]:
        logits = torch.from_numpy(np.asarray(prediction.predictions))
        if not logits.isfinite().all():
            return {"macro_f1": 0.0, "score": float("-inf")}
        chance = qlora.as_probability(logits, subtask).numpy()
        truth = np.asarray(prediction.label_ids).reshape(len(chance), -1)
        f1 = metrics.macro_f1(truth, metrics.given(chance))
        area = metrics.auc(truth, chance) if by_auc else None
        found = {"macro_f1": f1, "score": f1 if area is None else area}
        return found if area is None else {**found, "auc": area}

    args = arguments(config, len(learn), subtask, how, seed)
    trainer = _Classifier(
        model=model,
        args=args,
        train_dataset=learn,
        eval_dataset=judge,
        processing_class=tokenizer,
        data_collator=_Collator(tokenizer),
        compute_metrics=judged,
        subtask=subtask,
        weights=weights if config.class_weights else None,
        order_seed=seed,
    )
    log = follow(trainer, "finetune", how)
    state = trainer.state
    best = state.best_global_step or state.global_step
    if best != state.global_step:
        trainer._load_best_model()
    return Outcome(log, best, state.global_step, n_cut, seconds(how.work), notes)


class _Collator(DataCollatorWithPadding):
    """Pads token numbers; lengths stay behind."""

    def __call__(self, features):
        return super().__call__([{k: v for k, v in f.items() if k != "length"} for f in features])
