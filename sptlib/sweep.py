"""Many Runs at once, each thing once: what is stored is looked up, the rest is computed.

The missing Runs and the distinct pretrainings that they share form a graph, which is computed on
all cores of this machine or on a Dask cluster, or, with one worker, in this process.
"""

import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from sptlib import cluster
from sptlib import scheduler as schedulers
from sptlib.config import Pretraining, Run, key
from sptlib.data.make import cores
from sptlib.errors import SptError, Stopped
from sptlib.execute import Where
from sptlib.nodes import Outcome, after_failure, attempt, waits_for
from sptlib.progress import Board, title
from sptlib.scheduler import Tls
from sptlib.signals import stopping
from sptlib.store import Entry, Store


class SweepError(SptError):
    """Some Runs of a sweep failed; the others are stored.

    Attributes:
        failed: the error message by key of the training, pretrainings included.
        specs: what these were.
        tracebacks: where the cause was no message of this library, by key.
    """

    def __init__(
        self,
        failed: Mapping[str, str],
        specs: Mapping[str, Run | Pretraining],
        tracebacks: Mapping[str, str] | None = None,
    ):
        super().__init__(failed, specs, tracebacks)
        self.failed, self.specs, self.tracebacks = dict(failed), dict(specs), tracebacks or {}

    def __str__(self) -> str:
        first = [f"{title(self.specs[name])}: {why}" for name, why in self.failed.items()][:3]
        more = ["..."] if len(self.failed) > len(first) else []
        return f"{len(self.failed)} failed, the others are stored: {'; '.join(first + more)}"

    def table(self) -> str:
        """One line per failure: key, what it was, why."""
        names = {name: title(spec) for name, spec in self.specs.items()}
        width = max(map(len, names.values()))
        return "\n".join(
            f"{name[:12]}  {names[name]:{width}}  {why}" for name, why in self.failed.items()
        )


class Interrupted(KeyboardInterrupt):
    """A sweep was stopped by Ctrl-C or SIGTERM; everything finished is stored.

    Attributes:
        n_stored: trainings that were finished.
        n_left: trainings that were not.
        signum: the signal.
    """

    def __init__(self, n_stored: int, n_left: int, signum: int = signal.SIGINT):
        super().__init__(n_stored, n_left, signum)
        self.n_stored, self.n_left, self.signum = n_stored, n_left, signum

    def __str__(self) -> str:
        return (
            f"stopped: {self.n_stored} trainings are stored, {self.n_left} are left; those that "
            "were running keep a checkpoint, and the same command goes on from there"
        )


class TimeUp(SptError):  # noqa: N818 (nothing is wrong)
    """A sweep came to its deadline; everything finished is stored, what was running is saved.

    Attributes:
        n_stored: trainings that were finished.
        n_left: trainings that were not.
    """

    def __init__(self, n_stored: int, n_left: int):
        super().__init__(n_stored, n_left)
        self.n_stored, self.n_left = n_stored, n_left

    def __str__(self) -> str:
        return f"the time is up: {self.n_stored} trainings finished, {self.n_left} are left"


def compute_all(
    runs: Sequence[Run | Pretraining],
    store: Store,
    *,
    scheduler: str = "",
    workers: int | None = None,
    device: str = "auto",
    recompute: bool = False,
    tls: Tls | None = None,
    checkpoint_seconds: float = 20.0,
    deadline: float = math.inf,
) -> list[Entry]:
    """The stored results of Runs, in their order; what is missing is computed.

    Args:
        runs: any number; equal ones, and shared pretrainings, are computed once.
        store: where results are looked up and kept. Workers that do not see the same folder send
            their results back.
        scheduler: address of a Dask scheduler, e.g. ``tcp://host:8786``; "" = this machine.
        workers: processes on this machine; None = one per core. With 1 everything runs in this
            process, without Dask.
        device: as in `Where`.
        recompute: compute everything anew and replace it.
        tls: certificates, for a scheduler at ``tls://``; None = what Dask's configuration says.
        checkpoint_seconds: how often unfinished trainings are saved.
        deadline: when to stop, by `time.monotonic`; what is running gets to its next step.

    Raises:
        SweepError: after all others are done, or the time is up, if some failed.
        TimeUp: at the deadline, when the running ones have saved a checkpoint.
        Interrupted: after Ctrl-C or SIGTERM, when the running ones have saved a checkpoint.
        SchedulerError: if no scheduler answers, or it went away.
    """
    by_key = {key(run): run for run in runs}
    missing = {k: r for k, r in by_key.items() if recompute or store.find(k) is None}
    if missing:
        store.work_root()  # a store that cannot be written says so before any process is started
        workers = workers or cores()
        where = Where(device=device, checkpoint_seconds=checkpoint_seconds)
        if not scheduler:
            where.torch_device()  # what is not there is refused before any process is started
        nodes = plan(missing, store, recompute)
        with stopping() as stop, Board(nodes) as board:
            stop.deadline = deadline
            if scheduler or (workers > 1 and len(missing) > 1):
                how = (scheduler, min(workers, len(nodes)), tls, stop)
                try:
                    with schedulers.connect(*how) as client:
                        outcomes = cluster.run(client, nodes, store, where, recompute, board, stop)
                except Stopped:  # before there was a client
                    outcomes = dict.fromkeys(nodes, Outcome(stopped=True))
            else:
                outcomes = _here(nodes, store, where, recompute, board, stop)
        _report(nodes, outcomes, stop.signum)
    return [Entry(store.path / key(run)) for run in runs]


def plan(
    missing: Mapping[str, Run | Pretraining], store: Store, recompute: bool = False
) -> dict[str, Run | Pretraining]:
    """Everything to compute by key: the pretrainings that Runs wait for first, each once."""
    shared = {}
    for run in missing.values():
        if run.pretraining is not None:
            name = key(run.pretraining)
            if recompute or store.find(name) is None:
                shared[name] = run.pretraining
    # of each kind, long ones first: a cluster then has no single one left over at the end
    return {
        name: spec
        for kind in (shared, missing)
        for name, spec in sorted(kind.items(), key=lambda item: -item[1].n_steps)
    }


def _here(nodes, store: Store, where: Where, recompute: bool, board: Board, stop) -> dict:
    outcomes: dict[str, Outcome] = {}
    for wait in (False, True):  # what another sweep computes just now comes last
        for name, spec in nodes.items():
            if name in outcomes:
                continue
            before = outcomes.get(waits_for(spec), Outcome())
            if before.error:
                outcome = after_failure(waits_for(spec))
            elif stop():
                outcome = Outcome(stopped=True)
            else:
                progress = partial(board.step, name)
                here = replace(where, progress=progress, stop=stop, wait=wait)
                outcome = attempt(spec, store, here, recompute)
            if not outcome.busy:
                outcomes[name] = outcome
            if not outcome.busy and not outcome.stopped:
                board.done(name, outcome.error)
    return {name: outcomes[name] for name in nodes}


def _report(
    nodes: Mapping[str, Run | Pretraining], outcomes: Mapping[str, Outcome], signum: int
) -> None:
    """Raise what has to be known: that it was stopped, or what failed."""
    stopped = sum(outcome.stopped for outcome in outcomes.values())
    failed = {name: outcome.error for name, outcome in outcomes.items() if outcome.error}
    if stopped and signum:
        raise Interrupted(len(outcomes) - stopped - len(failed), stopped + len(failed), signum)
    if failed:
        traces = {n: outcomes[n].traceback for n in failed if outcomes[n].traceback}
        raise SweepError(failed, {name: nodes[name] for name in failed}, traces)
    if stopped:
        raise TimeUp(len(outcomes) - stopped, stopped)
