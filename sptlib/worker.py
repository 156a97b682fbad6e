"""The part of a sweep that runs on a Dask worker: one training, in the shared or an own store."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from zlib import crc32

import torch

from sptlib import __version__
from sptlib.config import NUMERICS, SCHEMA, from_dict, key
from sptlib.execute import Where
from sptlib.nodes import Outcome, after_failure, attempt, waits_for
from sptlib.store import Store

REPORT_SECONDS = 1.0  # between two reports of a training's progress
_STOPPED: set[str] = set()  # sweeps that this process shall end
_ONE = Lock()  # random numbers, and the number of threads, are one process's: a training at a time


def stop(tag: str) -> None:
    """End what this process computes for a sweep, at the next step, with a checkpoint."""
    _STOPPED.add(tag)


def sees(options: dict) -> bool:
    """Whether this worker sees the client's store."""
    return (Path(options["store"]) / ".work" / options["token"]).exists()


def work(name: str, fields: dict, options: dict, after: Outcome | None) -> Outcome:
    """One node of the graph.

    Args:
        name: the key that the client expects.
        fields: the configuration, as `sptlib.config.to_dict` gives it.
        options: store, token, topic, shared, wait, device, checkpoint_seconds, recompute.
        after: how the pretraining ended that this Run starts from; None = it is stored.

    Returns:
        The outcome, with the entry's files if the client's store is not seen here.
    """
    if options["topic"] in _STOPPED or (after is not None and after.stopped):
        return Outcome(stopped=True)
    if after is not None and after.busy:
        return Outcome(busy=True)
    spec = from_dict(fields)
    if after is not None and after.error:
        return after_failure(waits_for(spec))
    if key(spec) != name:
        return Outcome(
            error=f"a worker has other data or another version (there: sptlib {__version__}, "
            f"schema {SCHEMA}, numerics {NUMERICS}, torch {torch.__version__})"
        )
    if options["shared"] and not sees(options):
        return Outcome(error=f"a worker does not see the store {options['store']}, others do")
    store = Store(options["store"]) if options["shared"] else _own_store()
    if after is not None and after.files is not None and store.find(waits_for(spec)) is None:
        store.unpack(waits_for(spec), after.files)
    where = Where(
        device=_device(options["device"]),
        checkpoint_seconds=options["checkpoint_seconds"],
        progress=_reporter(name, options["topic"]),
        stop=lambda: options["topic"] in _STOPPED,
        wait=options["wait"],
    )
    # a Run never recomputes its pretraining: that is a node of its own
    while not _ONE.acquire(timeout=1.0):
        if where.stop():
            return Outcome(stopped=True)
    try:
        outcome = attempt(spec, store, where, options["recompute"])
    finally:
        _ONE.release()
    if options["shared"] or outcome.error or outcome.stopped or outcome.busy:
        return outcome
    files = store.find(name).pack()
    if spec.stage == "finetune":
        store.remove(name)  # it lives in the client's store
    return Outcome(files=files)


def _own_store() -> Store:
    from distributed import get_worker

    return Store(Path(get_worker().local_directory) / "sptlib-store")


def _device(name: str) -> str:
    """With several GPUs, workers take them by the number at the end of their name."""
    n = torch.cuda.device_count() if name == "auto" else 0
    return f"cuda:{_number() % n}" if n > 1 else name


def _number() -> int:
    from distributed import get_worker

    name = str(get_worker().name)
    digits = re.search(r"\d+$", name)
    return int(digits[0]) if digits else crc32(name.encode())


def _reporter(name: str, topic: str) -> Callable[[str, int, int, float], None]:
    from distributed import get_worker

    worker, last = get_worker(), [0.0]

    def report(stage: str, step: int, n_steps: int, loss: float) -> None:
        if time.monotonic() - last[0] >= REPORT_SECONDS:
            last[0] = time.monotonic()
            worker.log_event(topic, (name, stage, step, n_steps, loss))

    return report
