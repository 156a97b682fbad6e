"""From a configuration to its numbers: self-pretraining, QLoRA, and scores on all test copies."""

import json
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from peft import PeftModel, get_peft_model_state_dict
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from sptlib.execute import Where
from sptlib.polar import augment, base, data, lm, metrics, qlora, training
from sptlib.polar.config import BaseConfig, PolarBase, PolarRun, QLoRAConfig
from sptlib.polar.labels import Subtask, subtask
from sptlib.polar.watch import How

#: whose versions are recorded beside a result
PACKAGES = ("transformers", "tokenizers", "peft", "bitsandbytes", "accelerate", "datasets")
#: name of the adapters' configuration among the stored weights
CONFIGURATION = "adapter_config.json"
#: how the test posts are written: as they are, and as each kind of copy
FORMS = ("clean", *augment.KINDS)


@dataclass(frozen=True)
class Done:
    """What a training leaves behind, for the store.

    Attributes:
        metrics: the log.
        result: the summary.
        weights: of the whole small base, or of adapters and head.
        seconds: of the training.
        config: its part of the configuration, which gives the precision.
        packages: whose versions matter.
    """

    metrics: list[dict]
    result: dict
    weights: dict[str, Tensor]
    seconds: float
    config: BaseConfig | QLoRAConfig
    packages: tuple[str, ...] = PACKAGES


@dataclass
class Prepared:
    """Everything that a finetuning starts from.

    Attributes:
        run: the configuration.
        posts: the splits.
        augmented: training posts with copies.
        base: the base model, in a folder or on the Hub.
        notes: what the reader should know.
    """

    run: PolarRun
    posts: data.Data
    augmented: augment.Augmented
    base: base.Base
    notes: list[str] = field(default_factory=list)


def how(where: Where, work: Path) -> How:
    """A place of computation in the words of this package."""
    return How(
        work,
        where.torch_device(),
        where.progress,
        where.stop,
        max(1.0, where.checkpoint_seconds),
    )


def augmented(run: PolarRun | PolarBase, posts: data.Data) -> augment.Augmented:
    """The training posts with the copies that are configured."""
    rates = dict.fromkeys(run.augment.kinds, run.augment.rate)
    return augment.augment(posts.train, run.seed, rates, run.augment.joiner_rate)


def pretrain(spec: PolarBase, how: How) -> Done:
    """A small base, self-pretrained on the text that finetuning will see, without its labels."""
    posts = data.load(spec.task, spec.seed)
    texts = augmented(spec, posts).posts["text"].tolist()
    with qlora.quiet():
        tokenizer = base.train_tokenizer(texts, spec.base.vocab_size)
        model = base.small(spec.base, tokenizer, spec.seed)
        held_out = posts.val["text"].tolist()
        done = lm.pretrain(model, tokenizer, texts, held_out, spec.base, spec.seed, how)
    losses = [line["loss"] for line in done.log if "loss" in line]
    result = {
        "steps": done.n_steps,
        "val_loss": next(x["val_loss"] for x in reversed(done.log) if "val_loss" in x),
        "train_loss": float(np.mean(losses[-50:])),
        "vocab_size": len(tokenizer),
        "notes": done.notes,
    }
    return Done(done.log, result, base.packed(model, tokenizer), done.seconds, spec.base)


def prepare(run: PolarRun, stored: dict[str, Tensor] | None, folder: Path) -> Prepared:
    """Posts, copies and base model of a run.

    Args:
        run: the configuration.
        stored: the self-pretrained base; None for a base of another kind.
        folder: where a small base is written, as Hugging Face lays models out.
    """
    posts = data.load(run.task, run.seed)
    copies = augmented(run, posts)
    start = started(run, copies, stored, folder)
    return Prepared(run, posts, copies, start, [*posts.notes])


def started(
    run: PolarRun, copies: augment.Augmented, stored: dict[str, Tensor] | None, folder: Path
) -> base.Base:
    """The base model of a run, as `prepare` says."""
    if run.base.kind == "model":
        return base.opened(run.base.model, run.base.allow_pickle)
    if stored is not None:
        return base.save(*base.unpacked(stored, run.base), folder)
    tokenizer = base.train_tokenizer(copies.posts["text"].tolist(), run.base.vocab_size)
    return base.save(base.small(run.base, tokenizer, run.seed), tokenizer, folder)


def adapted(ready: Prepared, how: How) -> tuple[nn.Module, training.Outcome]:
    """The finetuned model of a run, and how its training went."""
    run, asked = ready.run, subtask(ready.run.task.subtask)
    model = qlora.loaded(ready.base, run.qlora, asked, how.device, run.base.allow_pickle)
    model, notes = qlora.with_adapters(model, run.qlora, run.seed)
    learn, judge = ready.augmented.posts, ready.posts.val
    outcome = training.train(
        model, ready.base.tokenizer, learn, judge, asked, run.qlora, run.seed, how
    )
    ready.notes += [*notes, *outcome.notes]
    return model, outcome


def finetune(run: PolarRun, stored: dict[str, Tensor] | None, how: How) -> Done:
    """Adapters and head, with scores on the test posts and on their copies."""
    with ExitStack() as stack:
        stack.enter_context(qlora.quiet())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sptlib-")))
        ready = prepare(run, stored, folder)
        model, outcome = adapted(ready, how)
        result = summary(ready, outcome) | scores(
            model,
            ready.base.tokenizer,
            ready.posts.val,
            ready.posts.test,
            subtask(run.task.subtask),
            run.qlora.max_length,
            run.seed,
        )
        weights = packed(model)
    result["notes"] = ready.notes
    return Done(outcome.log, result, weights, outcome.seconds, run.qlora)


def packed(model: PeftModel) -> dict[str, Tensor]:
    """Adapters and head, and the adapters' configuration as bytes, for the run store."""
    weights = {k: v.float() for k, v in get_peft_model_state_dict(model).items()}
    about = model.peft_config["default"].to_dict()
    about |= {"inference_mode": True, "base_model_name_or_path": None}  # where it lay by chance
    plain = {k: sorted(v) if isinstance(v, set) else v for k, v in about.items()}
    content = bytearray(json.dumps(plain, default=str, indent=1).encode())
    return {**weights, CONFIGURATION: torch.frombuffer(content, dtype=torch.uint8)}


def summary(ready: Prepared, outcome: training.Outcome) -> dict:
    """What is known before the test posts are looked at."""
    best = next(x for x in outcome.log if x["step"] == outcome.best_step and "best" in x)
    losses = [line["loss"] for line in outcome.log if "loss" in line]
    return {
        "steps": outcome.n_steps,
        "best_step": outcome.best_step,
        **{k: v for k, v in best.items() if k.startswith("val_")},
        "train_loss": float(np.mean(losses[-50:])),
        "n_train": len(ready.posts.train),
        "n_copies": len(ready.augmented.posts) - len(ready.posts.train),
        "n_val": len(ready.posts.val),
        "n_test": len(ready.posts.test),
        "n_cut": outcome.n_cut,
    }


def forms(posts: pd.DataFrame, seed: int) -> dict[str, pd.DataFrame]:
    """Posts as they are and as each kind of copy, every one of them; see `FORMS`."""
    return {"clean": posts} | {kind: augment.copies(posts, kind, seed) for kind in augment.KINDS}


def scores(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    held_out: pd.DataFrame,
    test: pd.DataFrame,
    asked: Subtask,
    max_length: int,
    seed: int,
) -> dict:
    """Macro-F1 averaged over languages on every form of the test posts.

    At threshold 0.5 (``macro_f1_FORM``, by language ``macro_f1_FORM_LANG``) and at thresholds tuned
    on the held-out posts as they are (``macro_f1_FORM_tuned``); of detection also the AUC
    (``auc_FORM``). ``test_accuracy`` is the share of posts with every label right.
    """
    labels = list(asked.labels)

    def chances(posts: pd.DataFrame) -> np.ndarray:
        return qlora.probabilities(model, tokenizer, posts["text"].tolist(), asked, max_length)

    thresholds = metrics.tuned(held_out[labels].to_numpy(int), chances(held_out))
    truth, languages = test[labels].to_numpy(int), test["lang"].tolist()
    found: dict = {"thresholds": thresholds}
    for form, posts in forms(test, seed).items():
        chance = chances(posts)
        given = metrics.given(chance)
        each = metrics.by_language(truth, given, languages)
        found[f"macro_f1_{form}"] = metrics.average(each)
        found |= {f"macro_f1_{form}_{language}": value for language, value in each.items()}
        tuned = metrics.by_language(truth, metrics.given(chance, thresholds), languages)
        found[f"macro_f1_{form}_tuned"] = metrics.average(tuned)
        if asked.binary:
            found[f"auc_{form}"] = metrics.auc(truth, chance)
        if form == "clean":
            found["test_accuracy"] = float((given == truth).all(axis=1).mean())
            for label, value in zip(labels, metrics.by_label(truth, given), strict=True):
                found[f"f1_clean_of_{label}"] = value
    return found
