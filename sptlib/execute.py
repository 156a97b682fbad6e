"""From a Run to its stored result: look it up, else compute it, with its pretraining before it."""

import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor

from sptlib import tasks
from sptlib.checkpoint import Checkpoint
from sptlib.config import Pretraining, Run
from sptlib.errors import ConfigError, DivergedError, StoreError
from sptlib.store import Entry, Store
from sptlib.train import finetune, pretrain

RECORDED = ("torch", "numpy", "scikit-learn", "safetensors", "pydantic", "sptlib")


@dataclass(frozen=True)
class Where:
    """Where and how a computation runs; none of it is part of a Run.

    Attributes:
        device: "cpu", "cuda", "cuda:1", ...; "auto" = a GPU if there is one.
        threads: CPU threads; small models run fastest with one, processes side by side.
        checkpoint_seconds: how often an unfinished training is saved.
        checkpoint_steps: the same in steps, besides; 0 = by time only.
        progress: called as ``progress(stage, step, n_steps, loss)``.
    """

    device: str = "auto"
    threads: int = 1
    checkpoint_seconds: float = 20.0
    checkpoint_steps: int = 0
    progress: Callable[[str, int, int, float], None] | None = None

    def torch_device(self) -> torch.device:
        """The device; raises `ConfigError` if there is no such one here."""
        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise ConfigError(f"unknown device {name!r}; try cpu, cuda or cuda:1") from error
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(
                f"device {name!r} is not there: PyTorch sees "
                f"{torch.cuda.device_count()} CUDA devices; try --device cpu"
            )
        return device


def compute(
    spec: Run | Pretraining, store: Store, where: Where | None = None, recompute: bool = False
) -> Entry:
    """The stored result of a configuration; computed now if it is not there yet.

    Args:
        spec: a Run, or a pretraining by itself.
        store: looked up first, and written to.
        where: device, threads, checkpoints.
        recompute: compute even if it is stored (a damaged entry, say) and replace it. The
            pretraining that a Run starts from is recomputed only if it is damaged or missing.

    Raises:
        DivergedError: if the loss became NaN; the log is kept under ``.work`` in the store.
        StoreError: if the store is damaged or cannot be written.
    """
    where = where or Where()
    entry = store.get(spec)
    if entry is not None and not recompute:
        return entry
    with store.lock(spec):
        entry = store.get(spec)  # another process may have been faster
        if entry is not None and not recompute:
            return entry
        with _threads(where.threads):
            return _train(spec, store, where, recompute)


def _train(spec: Run | Pretraining, store: Store, where: Where, recompute: bool) -> Entry:
    device = where.torch_device()
    data = tasks.load(spec.task, spec.seed)
    if data.fingerprint != tasks.fingerprint(spec.task, spec.seed):
        raise StoreError(
            f"the data of {spec.task.name} have changed since this process started; start it anew"
        )
    if device.type != "cpu":
        data = data.to(device)
    work = store.work_folder(spec)
    checkpoint = Checkpoint(
        work / "checkpoint.safetensors", where.checkpoint_seconds, where.checkpoint_steps
    )
    stage = "finetune" if isinstance(spec, Run) else "pretrain"

    def progress(step: int, n_steps: int, loss: float) -> None:
        if where.progress is not None:
            where.progress(stage, step, n_steps, loss)

    try:
        if isinstance(spec, Run):
            weights = None
            if spec.pretrain is not None:
                weights = _pretrained(spec.pretraining, store, where, recompute)
            started = time.monotonic()  # the pretraining has an entry, and a time, of its own
            trained = finetune(spec, data, weights, checkpoint, progress)
        else:
            started = time.monotonic()
            trained = pretrain(spec, data, checkpoint, progress)
    except DivergedError as error:
        error.kept_at = str(store.fail(spec, error.log, str(error)))
        checkpoint.remove()
        raise
    seconds = time.monotonic() - started
    entry = store.put(
        spec,
        metrics=trained.metrics,
        result=trained.result,
        model=trained.model.state_dict(),
        environment=environment(device, where.threads, seconds),
    )
    for file in work.iterdir():
        file.unlink()
    work.rmdir()
    return entry


def _pretrained(spec: Pretraining, store: Store, where: Where, mend: bool) -> dict[str, Tensor]:
    """The pretrained weights; a damaged entry is computed anew if that was asked for."""
    try:
        return compute(spec, store, where).model()
    except StoreError:
        if not mend:
            raise
        return compute(spec, store, where, recompute=True).model()


@contextmanager
def _threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def environment(device: torch.device, threads: int, seconds: float) -> dict:
    """What a result was computed with: versions, commit, device, threads, time."""
    versions = {}
    for package in RECORDED:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "python": platform.python_version(),
        "platform": platform.system(),
        "machine": platform.machine(),
        "device": device.type,
        "device_name": name,
        "threads": threads,
        "cpu_count": os.cpu_count(),
        "versions": versions,
        "commit": commit(),
        "seconds": round(seconds, 3),
    }


def commit() -> str:
    """The commit of the checkout that the library is run from, or ""."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:  # no git on this machine
        return ""
    return done.stdout.strip()
