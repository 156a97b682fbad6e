"""Many Runs at once: a graph in which each distinct pretraining is one node, on Dask.

By default a local cluster with one single-threaded process per core (small models run slower with
more threads), bound to this machine only; the address of any other Dask scheduler does the same
elsewhere.
"""

import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tqdm import tqdm

from sptlib.config import Pretraining, Run, from_dict, key, to_dict
from sptlib.data.make import cores
from sptlib.errors import ConfigError, SptError
from sptlib.execute import Where, compute
from sptlib.store import Entry, Store

#: Dask's own, without ``MALLOC_TRIM_THRESHOLD_``. With it, malloc returns freed memory at once;
#: that suits large data frames, but a training frees and takes the same memory at every step.
WORKER_ENVIRONMENT = {
    "distributed.nanny.pre-spawn-environ": {
        "OMP_NUM_THREADS": 1,
        "MKL_NUM_THREADS": 1,
        "OPENBLAS_NUM_THREADS": 1,
    }
}


class SweepError(SptError):
    """Some Runs of a sweep failed; the others are stored.

    Attributes:
        failed: the error message by key of the Run.
    """

    def __init__(self, failed: dict[str, str]):
        super().__init__(failed)
        self.failed = failed

    def __str__(self) -> str:
        rows = "; ".join(f"{name}: {why}" for name, why in self.failed.items())
        return f"{len(self.failed)} failed, the others are stored: {rows}"


def compute_all(
    runs: Sequence[Run | Pretraining],
    store: Store,
    *,
    scheduler: str = "",
    workers: int | None = None,
    device: str = "auto",
    recompute: bool = False,
) -> list[Entry]:
    """The stored results of Runs, in their order; what is missing is computed.

    Args:
        runs: any number; equal ones, and shared pretrainings, are computed once.
        store: where results are looked up and kept. Workers must see the same folder.
        scheduler: address of a Dask scheduler, e.g. ``tcp://host:8786``; "" = this machine.
        workers: processes on this machine; None = one per core. With 1 everything runs in this
            process, without Dask.
        device: as in `Where`.
        recompute: compute everything anew and replace it.

    Raises:
        SweepError: after all others are done, if some Runs failed.
    """
    by_key = {key(run): run for run in runs}
    missing = {k: r for k, r in by_key.items() if recompute or store.find(k) is None}
    if missing:
        store.work_root()  # a store that cannot be written says so before any process is started
        workers = workers or cores()
        where = Where(device=device)
        if not scheduler:
            where.torch_device()  # what is not there is refused before any process is started
        if scheduler or (workers > 1 and len(missing) > 1):
            failed = _on_dask(missing, store, where, scheduler, workers, recompute)
        else:
            failed = _here(missing, store, where, recompute)
        if failed:
            raise SweepError(failed)
    return [Entry(store.path / key(run)) for run in runs]


def _nodes(missing: dict, store: Store, recompute: bool) -> dict[str, Run | Pretraining]:
    """Everything to compute by key: the pretrainings that Runs wait for first, each once."""
    shared = {}
    for run in missing.values():
        if isinstance(run, Run) and run.pretrain is not None:
            name = key(run.pretraining)
            if recompute or store.find(name) is None:
                shared[name] = run.pretraining
    return shared | missing


def _here(missing: dict, store: Store, where: Where, recompute: bool) -> dict[str, str]:
    failed: dict[str, str] = {}
    nodes = _nodes(missing, store, recompute)
    for name, spec in _progress(nodes.items(), len(nodes)):
        shared = spec.pretraining if isinstance(spec, Run) else None
        try:
            if shared is not None and key(shared) in failed:
                raise SptError(f"its pretraining failed: {failed[key(shared)]}")
            compute(spec, store, where, recompute)
        except SptError as error:
            failed[name] = str(error)
    return {name: why for name, why in failed.items() if name in missing}


def _on_dask(
    missing: dict, store: Store, where: Where, scheduler: str, workers: int, recompute: bool
) -> dict[str, str]:
    try:
        import dask
        from distributed import Client, LocalCluster, as_completed
    except ImportError as error:
        raise ConfigError(
            "several processes need Dask: pip install 'sptlib[cluster]', or use --workers 1"
        ) from error
    options = {
        "store": str(Path(store.path).resolve()),
        "device": where.device,
        "recompute": recompute,
    }
    nodes = _nodes(missing, store, recompute)
    with ExitStack() as stack:
        cluster = None
        if not scheduler:
            stack.enter_context(dask.config.set(WORKER_ENVIRONMENT))
            with _deaf_children():
                cluster = LocalCluster(
                    n_workers=min(workers, len(nodes)),
                    threads_per_worker=1,
                    processes=True,
                    host="127.0.0.1",
                    dashboard_address="127.0.0.1:0",
                    silence_logs=50,
                )
            stack.callback(cluster.close)
        try:
            client = stack.enter_context(Client(cluster or scheduler, timeout="20s"))
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: not an address
            raise ConfigError(f"no Dask scheduler answers at {scheduler!r}: {error}") from error
        tag = time.time_ns()  # Dask must not serve an earlier sweep's outcome
        futures: dict = {}
        for name, spec in nodes.items():
            shared = spec.pretraining if isinstance(spec, Run) else None
            after = futures.get(key(shared)) if shared is not None else None
            futures[name] = client.submit(_work, to_dict(spec), options, after, key=f"{name}-{tag}")
        names = {future.key: name for name, future in futures.items()}
        failed = {}
        for future in _progress(as_completed(futures.values()), len(futures)):
            error = future.exception() or future.result()
            name = names[future.key]
            if error and name in missing:
                failed[name] = str(error)
        return failed


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes started meanwhile ignore Ctrl-C: this one hears it, and ends them in order."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's business
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(fields: dict, options: dict, after: str | None) -> str:
    """One node of the graph, on a worker: returns "" or why it failed."""
    if after:
        return f"its pretraining failed: {after}"
    # a Run never recomputes its pretraining: that is a node of its own
    try:
        compute(
            from_dict(fields),
            Store(options["store"]),
            Where(device=options["device"]),
            options["recompute"],
        )
    except SptError as error:
        return str(error)
    return ""


def _progress(items: Iterable, total: int) -> Iterable:
    """Progress on stderr, with the estimated end; one line a second at most."""
    return tqdm(items, total=total, desc="trainings", unit="run", file=sys.stderr, mininterval=1.0)
