"""What goes on around a training by Transformers' Trainer: progress, stopping, checkpoints."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerState

from sptlib.errors import DivergedError, Stopped

#: file in the work folder with the seconds of a training's earlier parts
SECONDS = "seconds"


@dataclass
class How:
    """What goes on around a training, and does not change its numbers.

    Attributes:
        work: folder of checkpoints; a training that finds some goes on from them.
        device: where it computes.
        progress: called as ``progress(stage, step, n_steps, loss)``.
        stop: asked after every step; True = save a checkpoint and raise `Stopped`.
        checkpoint_seconds: a checkpoint at least so often, besides those at evaluations.
    """

    work: Path
    device: torch.device
    progress: Callable[[str, int, int, float], None] | None = None
    stop: Callable[[], bool] | None = None
    checkpoint_seconds: float = 60.0


class Watch(TrainerCallback):
    """Progress, checkpoints by time, stopping."""

    def __init__(self, stage: str, how: How):
        self.stage, self.how, self.stopped = stage, how, False
        self.saved, self.loss = time.monotonic(), float("nan")

    def on_log(self, args, state, control, logs=None, **more):
        if logs and "loss" in logs:
            self.loss = float(logs["loss"])
            if not np.isfinite(self.loss):  # nothing that follows would be of use
                control.should_training_stop = True

    def on_step_end(self, args, state, control, **more):
        if self.how.progress is not None:
            self.how.progress(self.stage, state.global_step, state.max_steps, self.loss)
        if self.how.stop is not None and self.how.stop():
            self.stopped = control.should_save = control.should_training_stop = True
        elif time.monotonic() - self.saved >= self.how.checkpoint_seconds:
            control.should_save = True

    def on_save(self, args, state, control, **more):
        self.saved = time.monotonic()


def common(how: How) -> dict:
    """Arguments that all trainings have."""
    gpu = how.device.type == "cuda"
    return {
        "output_dir": str(how.work),
        "save_total_limit": 2,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not gpu,
        "dataloader_pin_memory": gpu,
        "remove_unused_columns": False,
    }


def last_checkpoint(work: Path) -> Path | None:
    """The newest complete checkpoint; those that a dead process left half-written are removed."""
    found = []
    for folder in work.glob("checkpoint-*"):
        try:  # the state is written last
            state = json.loads((folder / "trainer_state.json").read_text())
            found.append((state["global_step"], folder))
        except (OSError, ValueError, KeyError):
            shutil.rmtree(folder, ignore_errors=True)
    return max(found)[1] if found else None


def follow(trainer: Trainer, stage: str, how: How) -> list[dict]:
    """Train from the last checkpoint, or from the start, to the end.

    Args:
        trainer: ready to train.
        stage: "pretrain" or "finetune".
        how: checkpoints, progress.

    Returns:
        The log as `sptlib.store` keeps it: lines with a loss, lines with an evaluation.

    Raises:
        DivergedError: if the loss became NaN.
        Stopped: when ``how.stop`` said so; the same call goes on from there.
    """
    watch = Watch(stage, how)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(watch)
    checkpoint = last_checkpoint(how.work)
    saved = None
    if checkpoint is not None:
        saved = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    with _timed(how.work):
        if saved is not None and saved.global_step >= trainer.args.max_steps:
            trainer.state = saved  # it was killed after its last step; the Trainer would do another
            trainer._load_from_checkpoint(str(checkpoint))
        else:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    state = trainer.state
    log = lines(state.log_history, stage)
    for i, line in enumerate(log):
        if not np.isfinite([line.get("loss", 0.0), line.get("val_score", 0.0)]).all():
            raise DivergedError(stage, line["step"], log[: i + 1])
    if watch.stopped and state.global_step < state.max_steps:
        raise Stopped(stage, state.global_step, state.max_steps)
    return log


@contextmanager
def _timed(work: Path) -> Iterator[None]:
    """Add the seconds of the block to those that are recorded in a work folder."""
    started = time.monotonic()
    try:
        yield
    finally:
        total = seconds(work) + time.monotonic() - started
        (work / SECONDS).write_text(f"{total:.3f}")


def seconds(work: Path) -> float:
    """How long a training took so far, all its parts that were not killed."""
    path = work / SECONDS
    return float(path.read_text() or 0) if path.is_file() else 0.0


def lines(history: list[dict], stage: str) -> list[dict]:
    """The Trainer's log in the store's words; ``best`` marks a higher score than before."""
    found, best = [], float("-inf")
    for entry in history:
        line = {"stage": stage, "step": entry["step"]}
        if "loss" in entry:
            found.append({**line, "loss": entry["loss"]})
        elif "eval_loss" in entry:
            values = {
                f"val_{name}": entry[f"eval_{name}"]
                for name in ("loss", "macro_f1", "auc", "score")
                if f"eval_{name}" in entry
            }
            score = entry.get("eval_score", -entry["eval_loss"])
            found.append({**line, **values, "best": score > best})
            best = max(best, score)
    return found
