"""The graph of a sweep on Dask: what is sent, what comes back, and what is done if that fails."""

import queue
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from sptlib import worker
from sptlib.config import Pretraining, Run, to_dict
from sptlib.errors import SptError, StoreError
from sptlib.execute import Where
from sptlib.nodes import Outcome, waits_for
from sptlib.progress import Board
from sptlib.scheduler import CONNECT_SECONDS, LOST_SECONDS, SchedulerError
from sptlib.store import Store

if TYPE_CHECKING:
    from distributed import Client

FETCH_SECONDS = 300.0  # for a result, with its weights if workers do not see the store
STOP_SECONDS = 30.0  # that running trainings have to save themselves after Ctrl-C
REPEAT_SECONDS = 2.0  # between two orders to stop
COUNT_SECONDS = 5.0  # between two counts of the workers, while nothing happens


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
        self.seen_at = self.counted_at = self.answered_at = time.monotonic()
        self.stopping: Thread | None = None
        self.stopped_at = 0.0

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
            elif kind == "failed":  # before it was sent
                found[value[0]] = Outcome(error=value[1])
                self.board.done(*value)
            elif kind == "done" and (outcome := self._outcome(value)) is not None:
                found[value] = outcome
                if not outcome.stopped and not outcome.busy:
                    self.board.done(value, outcome.error)
            if len(found) == len(self.nodes):  # what another sweep computes just now comes last
                busy = {name: self.nodes[name] for name in found if found[name].busy}
                found = {name: outcome for name, outcome in found.items() if name not in busy}
                self._submit({n: s for n, s in self.nodes.items() if n in busy}, wait=True)
            if deadline is None and self.stop():
                self.board.say("stopping: running trainings save a checkpoint")
                deadline = time.monotonic() + STOP_SECONDS
            if deadline is not None:
                self._stop_workers()
            if deadline is not None and time.monotonic() > deadline:
                left = [name for name in self.nodes if name not in found]
                found |= dict.fromkeys(left, Outcome(stopped=True))
        return {name: found[name] for name in self.nodes}

    def _submit(self, nodes: Mapping[str, Run | Pretraining], wait: bool) -> None:
        for name, spec in nodes.items():
            before = waits_for(spec)
            after = self.futures.get(before)
            if before and after is None and not self.options["shared"]:
                try:
                    after = self._send(before)
                except SptError as error:
                    self.inbox.put(("failed", (name, str(error))))
                    continue
            future = self.client.submit(
                worker.work,
                name,
                to_dict(spec),
                {**self.options, "wait": wait},
                after,
                key=f"train-{name}-{self.tag}-{wait}",
            )
            self.futures[name] = future
            self._watch(name)

    def _watch(self, name: str) -> None:
        self.futures[name].add_done_callback(lambda _: self.inbox.put(("done", name)))

    def _stop_workers(self) -> None:
        """Tell all workers, also those that just came, without waiting for one that hangs."""
        if self.stopping is not None and (
            self.stopping.is_alive() or time.monotonic() - self.stopped_at < REPEAT_SECONDS
        ):
            return

        def tell() -> None:
            with suppress(OSError, TimeoutError, RuntimeError):  # `_next` sees a lost connection
                self.client.run(worker.stop, self.tag, on_error="ignore")

        self.stopping, self.stopped_at = Thread(target=tell, daemon=True), time.monotonic()
        self.stopping.start()

    def _send(self, name: str):
        """A pretraining that is stored here, for workers that do not see the store."""
        if name not in self.sent:
            entry = self.store.find(name)
            if entry is None:
                raise StoreError(f"its pretraining {name[:12]} was removed from {self.store.path}")
            outcome = Outcome(files=entry.pack())
            self.sent[name] = self.client.scatter(outcome, hash=False)
        return self.sent[name]

    def _outcome(self, name: str) -> Outcome | None:
        """How a training ended; None if Dask computes it again, since its worker is gone."""
        future = self.futures[name]
        try:
            if future.status == "cancelled":
                raise self._lost()
            if future.status == "error":
                return Outcome(error=_explain(future.exception(timeout=LOST_SECONDS)))
            outcome: Outcome = future.result(timeout=FETCH_SECONDS)
        except CancelledError as error:
            raise self._lost() from error
        except (OSError, TimeoutError) as error:
            if self.client.status != "running":
                raise self._lost() from error
            self._watch(name)
            return None
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
        if message[0] is not None:
            self.answered_at = now
        elif now - self.counted_at > COUNT_SECONDS:
            self.counted_at = now
            self.board.note = "" if self._n_workers() else "; waiting for workers"
        self.board.show()
        return message

    def _n_workers(self) -> int:
        """How many there are; raises if the scheduler has not answered for long."""
        try:
            found = self.client.sync(self.client.scheduler.ncores, callback_timeout=LOST_SECONDS)
        except (OSError, AttributeError):  # a timeout, or a connection that just broke
            if time.monotonic() - self.answered_at > CONNECT_SECONDS:
                raise self._lost() from None
            return 1
        self.answered_at = time.monotonic()
        return len(found)

    def _lost(self) -> SchedulerError:
        n = sum(self.store.find(name) is not None for name in self.nodes)
        return SchedulerError(
            f"the Dask scheduler went away; {n} of {len(self.nodes)} trainings are stored. Start "
            "it again and call the same command: it computes what is missing"
        )

    def _ask(self, future):
        """The result of a small task; None if the sweep is stopped meanwhile."""
        self.futures["sees"] = future
        self._watch("sees")
        while not self.stop():
            kind, _ = self._next()
            if kind == "done" and future.status == "cancelled":
                raise self._lost()
            if kind == "done" and future.status == "error":
                raise SchedulerError(_explain(future.exception()))
            if kind == "done":
                return self.futures.pop("sees").result()
        return None

    def close(self) -> None:
        self.token.unlink(missing_ok=True)
        answers = time.monotonic() - self.answered_at < CONNECT_SECONDS
        if self.client.status == "running" and answers:
            if len(self.futures) and not all(f.done() for f in self.futures.values()):
                self._stop_workers()  # cancelling alone does not end what runs
                self.stopping.join(REPEAT_SECONDS)
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
