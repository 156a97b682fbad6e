"""Self-pretraining of the small base: next-token prediction on the unlabelled training posts."""

import math
from collections.abc import Sequence

import datasets
import torch
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

from sptlib.polar.base import blocks
from sptlib.polar.config import BaseConfig
from sptlib.polar.training import Outcome
from sptlib.polar.watch import How, common, follow, seconds
from sptlib.seeding import derive_seed, generator

WARMUP = 50


class _Shuffled(torch.utils.data.Sampler):
    """All blocks in another order in each epoch, known from its number."""

    def __init__(self, n: int, seed: int):
        self.n, self.seed, self.epoch = n, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer; a resumed one calls it, too."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.n

    def __iter__(self):
        order = generator(self.seed, "polar", "blocks", self.epoch)
        return iter(torch.randperm(self.n, generator=order).tolist())


class _LanguageModel(Trainer):
    """The Trainer with a known order of blocks."""

    def __init__(self, *args, order_seed: int, **more):
        super().__init__(*args, **more)
        self._order_seed = order_seed

    def _get_train_sampler(self, train_dataset=None):
        return _Shuffled(len(self.train_dataset), self._order_seed)


def pretrain(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    held_out: Sequence[str],
    config: BaseConfig,
    seed: int,
    how: How,
) -> Outcome:
    """Train the model to predict each token of a block from those before it.

    Args:
        model: is changed in place.
        tokenizer: of it.
        texts: to learn from.
        held_out: of whose tokens the mean loss is recorded at the end, in nats.
        config: steps, rate, sizes.
        seed: of the order of blocks.
        how: checkpoints, progress.

    Raises:
        ConfigError: if there is less text than one block.
        DivergedError: if the loss became NaN.
        Stopped: when ``how.stop`` said so; the same call goes on from there.
    """
    learn, judge = (
        datasets.Dataset.from_dict({"input_ids": x.tolist(), "labels": x.tolist()})
        for x in (blocks(t, tokenizer, config.block) for t in (texts, held_out))
    )
    args = TrainingArguments(
        **common(how),
        max_steps=config.steps,
        per_device_train_batch_size=config.batch_size,
        per_device_eval_batch_size=config.batch_size,
        learning_rate=config.lr,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=min(WARMUP, config.steps),
        weight_decay=0.0,
        max_grad_norm=1.0,
        optim="adamw_torch",
        eval_strategy="steps",
        eval_steps=config.steps,
        save_strategy="no",  # but by time, and when stopped
        seed=derive_seed(seed, "polar", "pretraining") % 2**32,
    )
    trainer = _LanguageModel(
        model=model,
        args=args,
        train_dataset=learn,
        eval_dataset=judge,
        data_collator=default_data_collator,
        order_seed=seed,
    )
    log = follow(trainer, "pretrain", how)
    uniform = math.log(len(tokenizer))
    notes = [f"{len(learn)} blocks of {config.block} tokens; a uniform guess costs {uniform:.2f}"]
    return Outcome(log, config.steps, config.steps, 0, seconds(how.work), notes)
