"""The graph of a sweep on Dask: processes of this machine, or a cluster by its address.

Whoever reaches a Dask scheduler can run code as the user who started it. The local cluster listens
on 127.0.0.1 only; others should stand in a private network, or use TLS.
"""

import asyncio
import logging
import os
import queue
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sptlib import worker
from sptlib.config import Pretraining, Run, to_dict
from sptlib.errors import ConfigError, SptError
from sptlib.execute import Where
from sptlib.nodes import Outcome, waits_for
from sptlib.progress import Board
from sptlib.store import Store

if TYPE_CHECKING:
    from distributed import Client

#: Dask's own, without ``MALLOC_TRIM_THRESHOLD_``. With it, malloc returns freed memory at once;
#: that suits large data frames, but a training frees and takes the same memory at every step.
WORKER_ENVIRONMENT = {
    "distributed.nanny.pre-spawn-environ": {
        "OMP_NUM_THREADS": 1,
        "MKL_NUM_THREADS": 1,
        "OPENBLAS_NUM_THREADS": 1,
    }
}
CONNECT_SECONDS = 20.0  # to wait for a scheduler to answer
LOST_SECONDS = 5.0  # without a connection, after which the scheduler counts as gone
FETCH_SECONDS = 300.0  # for a result, with its weights if workers do not see the store
STOP_SECONDS = 30.0  # that running trainings have to save themselves after Ctrl-C
COUNT_SECONDS = 5.0  # between two counts of the workers, while nothing happens


class SchedulerError(SptError):
    """No Dask scheduler answers, or it went away in the middle."""


@dataclass(frozen=True)
class Tls:
    """Certificates for a scheduler at ``tls://``: files in PEM format.

    Attributes:
        ca: of the authority that signed the scheduler's and the workers' certificates.
        cert: this client's certificate.
        key: its private key.
    """

    ca: str
    cert: str
    key: str


@contextmanager
def connect(scheduler: str, workers: int, tls: Tls | None) -> "Iterator[Client]":
    """A client of the scheduler at this address; "" = of a new one with workers on this machine.

    Raises:
        ConfigError: without Dask, or for certificates that cannot be read.
        SchedulerError: if nothing answers within 20 seconds.
    """
    try:
        import dask
        from distributed import Client, LocalCluster
        from distributed.security import Security
    except ImportError as error:
        raise ConfigError(
            "several processes need Dask: pip install 'sptlib[cluster]', or use --workers 1"
        ) from error
    security = None
    if tls is not None:
        for file in (tls.ca, tls.cert, tls.key):
            if not os.access(file, os.R_OK):
                raise ConfigError(f"cannot read the TLS file {file}")
        security = Security(
            tls_ca_file=tls.ca,
            tls_client_cert=tls.cert,
            tls_client_key=tls.key,
            require_encryption=True,
        )
    with ExitStack() as stack:
        stack.enter_context(_quiet())
        cluster = None
        if not scheduler:
            stack.enter_context(dask.config.set(WORKER_ENVIRONMENT))
            with _deaf_children():
                cluster = LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    host="127.0.0.1",
                    dashboard_address="127.0.0.1:0",
                    silence_logs=50,
                )
            stack.callback(cluster.close)
        else:
            _answers(scheduler, security)
        client = Client(
            cluster or scheduler, security=security, timeout=CONNECT_SECONDS, set_as_default=False
        )
        stack.enter_context(client)
        yield client


def _answers(scheduler: str, security) -> None:
    """Raise `SchedulerError` unless a scheduler answers at this address.

    A client that finds none leaves threads behind; this asks without one.
    """
    from distributed.comm import connect
    from distributed.security import Security

    async def ask() -> None:
        how = (security or Security()).get_connection_args("client")
        comm = await connect(scheduler, timeout=CONNECT_SECONDS, **how)
        await comm.close()

    try:
        with ThreadPoolExecutor(1) as thread:  # a notebook has a running event loop in this one
            thread.submit(asyncio.run, ask()).result()
    except (OSError, TimeoutError, ValueError, TypeError, RuntimeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SchedulerError(f"no Dask scheduler answers at {scheduler!r}: {why}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the tracebacks that Dask logs when it loses a connection; we say it ourselves."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


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


def run(
    client: "Client",
    nodes: Mapping[str, Run | Pretraining],
    store: Store,
    where: Where,
    recompute: bool,
    board: Board,
    stop: Callable[[], bool],
) -> dict[str, Outcome]:
    """Compute the graph; returns how each node ended.

    Raises:
        SchedulerError: if the scheduler goes away; what is finished is stored.
    """
    sweep = _Sweep(client, nodes, store, where, recompute, board, stop)
    try:
        return sweep.outcomes()
    finally:
        sweep.close()


class _Sweep:
    def __init__(self, client, nodes, store, where, recompute, board, stop):
        self.client, self.nodes, self.store, self.board, self.stop = (
            client, nodes, store, board, stop,
        )  # fmt: skip
        self.tag = f"sptlib-{uuid.uuid4().hex[:12]}"  # Dask must not serve an earlier outcome
        self.token = store.work_root() / f"{self.tag}.seen"
        self.options = {
            "store": str(Path(store.path).resolve()),
            "token": self.token.name,
            "device": where.device,
            "checkpoint_seconds": where.checkpoint_seconds,
            "recompute": recompute,
            "topic": self.tag,
        }
        self.inbox: queue.SimpleQueue = queue.SimpleQueue()
        self.futures: dict = {}
        self.sent: dict = {}
        self.seen_at = self.counted_at = time.monotonic()

    def outcomes(self) -> dict[str, Outcome]:
        self.token.touch()
        self.client.subscribe_topic(self.tag, lambda event: self.inbox.put(("step", event[1])))
        shared = self._ask(self.client.submit(worker.sees, self.options, key=f"sees-{self.tag}"))
        if shared is None:  # stopped before any worker came
            return dict.fromkeys(self.nodes, Outcome(stopped=True))
        self.options["shared"] = shared
        if not shared:
            self.board.say("the workers do not see the store; results are sent back")
        self._submit(self.nodes, wait=False)
        found: dict[str, Outcome] = {}
        deadline = None
        while len(found) < len(self.nodes):
            kind, value = self._next()
            if kind == "step":
                name, *progress = value
                self.board.step(name, *progress)
            elif kind == "done":
                found[value] = self._outcome(value)
                if not found[value].stopped and not found[value].busy:
                    self.board.done(value, found[value].error)
            if len(found) == len(self.nodes):  # what another sweep computes just now comes last
                busy = {name: self.nodes[name] for name in found if found[name].busy}
                found = {name: outcome for name, outcome in found.items() if name not in busy}
                self._submit({n: s for n, s in self.nodes.items() if n in busy}, wait=True)
            if deadline is None and self.stop():
                self.board.say("stopping: running trainings save a checkpoint")
                self.client.run(worker.stop, self.tag, on_error="ignore")
                deadline = time.monotonic() + STOP_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                left = [name for name in self.nodes if name not in found]
                found |= dict.fromkeys(left, Outcome(stopped=True))
        return {name: found[name] for name in self.nodes}

    def _submit(self, nodes: Mapping[str, Run | Pretraining], wait: bool) -> None:
        for name, spec in nodes.items():
            before = waits_for(spec)
            after = self.futures.get(before)
            if before and after is None and not self.options["shared"]:
                after = self._send(before)
            future = self.client.submit(
                worker.work,
                name,
                to_dict(spec),
                {**self.options, "wait": wait},
                after,
                key=f"{name}-{self.tag}-{wait}",
            )
            self.futures[name] = future
            future.add_done_callback(lambda _, name=name: self.inbox.put(("done", name)))

    def _send(self, name: str):
        """A pretraining that is stored here, for workers that do not see the store."""
        if name not in self.sent:
            outcome = Outcome(files=self.store.find(name).pack())
            self.sent[name] = self.client.scatter(outcome, hash=False)
        return self.sent[name]

    def _outcome(self, name: str) -> Outcome:
        future = self.futures[name]
        try:
            error = future.exception(timeout=LOST_SECONDS) if future.status == "error" else None
            if future.status != "finished":
                return Outcome(error=_explain(error))
            outcome: Outcome = future.result(timeout=FETCH_SECONDS)
        except (OSError, TimeoutError, CancelledError) as error:
            raise self._lost() from error
        if outcome.files is not None:
            self.store.unpack(name, outcome.files)
            outcome = Outcome()
        return outcome

    def _next(self) -> tuple:
        """The next message, or none within half a second; raises if the scheduler is gone."""
        try:
            message = self.inbox.get(timeout=0.5)
        except queue.Empty:
            message = (None, None)
        now = time.monotonic()
        if self.client.status == "running":
            self.seen_at = now
        elif now - self.seen_at > LOST_SECONDS or self.client.status in ("closed", "closing"):
            raise self._lost()
        if message[0] == "done" and self.futures[message[1]].status in ("cancelled", "lost"):
            raise self._lost()
        if message[0] is None and now - self.counted_at > COUNT_SECONDS:
            self.counted_at = now
            try:
                n_workers = len(self.client.nthreads())
            except OSError:  # the connection just broke; the next look will tell
                n_workers = 1
            self.board.note = "" if n_workers else "; waiting for workers"
        self.board.show()
        return message

    def _lost(self) -> SchedulerError:
        n = sum(self.store.find(name) is not None for name in self.nodes)
        return SchedulerError(
            f"the Dask scheduler went away; {n} of {len(self.nodes)} trainings are stored. Start "
            "it again and call the same command: it computes what is missing"
        )

    def _ask(self, future):
        """The result of a small task; None if the sweep is stopped meanwhile."""
        self.futures["sees"] = future
        future.add_done_callback(lambda _: self.inbox.put(("done", "sees")))
        while True:
            kind, _ = self._next()
            if kind == "done":
                if future.status == "error":
                    raise SchedulerError(_explain(future.exception()))
                return self.futures.pop("sees").result()
            if self.stop():
                return None

    def close(self) -> None:
        self.token.unlink(missing_ok=True)
        if self.client.status == "running":
            self.client.unsubscribe_topic(self.tag)
            self.client.cancel(list(self.futures.values()))


def _explain(error: BaseException | None) -> str:
    """What Dask says, for people who have not read its documentation."""
    name = type(error).__name__
    if error is None:
        return "the scheduler dropped it"
    if name == "KilledWorker":
        return "its worker died again and again; most often that is a lack of memory"
    if isinstance(error, ImportError):
        return f"a worker cannot import what it needs ({error}); install the same sptlib there"
    return f"{name}: {error}"
