"""From a Run to its stored result: look it up, else compute it, with its pretraining before it.

Several processes (`accelerate launch`) compute one training together. The main one looks up, locks
and writes; the others do what it decides, and see the same folder.
"""

import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from filelock import LeaseSettingsMismatch, SoftFileLease, Timeout
from torch import Tensor

from sptlib import engine, launcher, processes, tasks
from sptlib.checkpoint import Checkpoint
from sptlib.config import Pretraining, Run, key
from sptlib.environment import environment
from sptlib.errors import Busy, ConfigError, DivergedError, Stopped, StoreError
from sptlib.processes import ALONE, Team, shared
from sptlib.store import LEASE_SECONDS, Entry, Store
from sptlib.train import finetune, pretrain

#: seconds until a shared file system must show a process what another one has written
PATIENCE = 30.0


@dataclass(frozen=True)
class Where:
    """Where and how a computation runs; none of it is part of a Run.

    Attributes:
        device: "cpu", "cuda", "cuda:1", ...; "auto" = a GPU if there is one. With several
            processes each takes the GPU of its number on its machine.
        threads: CPU threads; small models run fastest with one, processes side by side.
        checkpoint_seconds: how often an unfinished training is saved.
        checkpoint_steps: the same in steps, besides; 0 = by time only.
        progress: called as ``progress(stage, step, n_steps, loss)``.
        accumulate: pieces, per process, in which a batch is computed, one after the other: as many
            times less memory for activations; default: the launcher's
            ``--gradient_accumulation_steps``, else 1.
        stop: asked after every step (so it must be cheap), with several processes about once a
            second; True = save a checkpoint and raise `Stopped`.
        wait: for another process that computes the same; False = raise `Busy` instead.
    """

    device: str = "auto"
    threads: int = 1
    checkpoint_seconds: float = 20.0
    checkpoint_steps: int = 0
    progress: Callable[[str, int, int, float], None] | None = None
    accumulate: int = field(default_factory=launcher.accumulation)
    stop: Callable[[], bool] | None = None
    wait: bool = True

    def __post_init__(self):
        if self.accumulate < 1:
            raise ConfigError(f"accumulate={self.accumulate}, but a batch has at least one piece")

    def torch_device(self) -> torch.device:
        """The device; raises `ConfigError` if there is no such one here."""
        name = self.device
        if name == "auto":
            gpu = torch.cuda.is_available() and not launcher.wants_cpu()
            name = "cuda" if gpu else "cpu"
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise ConfigError(f"unknown device {name!r}; try cpu, cuda or cuda:1") from error
        if device.type not in ("cpu", "cuda"):
            raise ConfigError(f"device {name!r} is not supported; try cpu, cuda or cuda:1")
        if device.type != "cuda":
            return device
        several = launcher.launched() > 1
        if several and device.index is not None:
            raise ConfigError(f"several processes cannot share {name!r}; use --device cuda")
        last = launcher.n_local() - 1 if several else device.index or 0
        if last >= torch.cuda.device_count():
            raise ConfigError(
                f"device {f'cuda:{last}' if several else name!r} is not there: PyTorch sees "
                f"{torch.cuda.device_count()} CUDA devices; try --device cpu"
                + (" or fewer processes" if several else "")
            )
        return torch.device("cuda", launcher.local_rank()) if several else device

    def team(self) -> Team:
        """The processes of this training; raises `ConfigError` if they cannot be joined."""
        return processes.team(self.torch_device())


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
        Stopped: when ``where.stop`` said so; the same call goes on from there.
        Busy: if another process computes the same and ``where.wait`` is False.
        StoreError: if the store is damaged, full, cannot be written, or is not seen by all
            processes.
        ConfigError: if the launcher or the number of processes does not fit the configuration.
    """
    where = where or Where()
    team = where.team()
    with team.watch():
        _consistent(spec, team)
        entry = _compute(spec, store, where, recompute, team)
        if team.size > 1:
            entry = Entry(store.path / entry.key)  # where this process has the folder
            team.together(lambda: _seen(entry.path))
        return entry


def _consistent(spec: Run | Pretraining, team: Team) -> None:
    """Refuse what the launcher asks for against the spec, and processes that want several."""
    if not isinstance(spec, Run | Pretraining):
        team.together(lambda: _alone(spec, team))
        return
    stages = {"pretrain": spec.pretrain, "finetune": getattr(spec, "finetune", None)}
    team.together(lambda: launcher.check({k: v for k, v in stages.items() if v is not None}))
    if team.size > 1 and len(set(team.gather(team.together(lambda: key(spec))))) > 1:
        raise shared(
            ConfigError(
                "the processes were asked for different trainings, or have different data; start "
                "all with the same options, version and data folder"
            )
        )


def _alone(spec, team: Team) -> None:
    if team.size > 1:
        raise ConfigError(f"a training of kind {spec.kind!r} runs in one process here")


def _compute(
    spec: Run | Pretraining, store: Store, where: Where, recompute: bool, team: Team
) -> Entry:
    def stored() -> Entry | None:
        return None if recompute else store.get(spec)

    entry = team.decide(stored)
    if entry is not None:
        return entry
    with ExitStack() as stack:

        def lock() -> None:  # what is returned goes to all processes
            stack.callback(_leased(spec, store, where).release)

        team.decide(lock)
        entry = team.decide(stored)  # another process may have been faster
        if entry is not None:
            return entry
        stack.enter_context(cpu_threads(where.threads))
        if isinstance(spec, Run | Pretraining):
            return _train(spec, store, where, recompute, team)
        return _train_other(spec, store, where, recompute)


def _leased(spec: Run | Pretraining, store: Store, where: Where) -> SoftFileLease:
    """The lease on a result, taken, once whoever computes the same is done."""
    seconds, said = 0.5, False  # to take over from a dead process takes two looks
    while True:
        lease = store.lock(spec)  # anew each time: it clears away what a dead process left
        try:
            lease.acquire(timeout=seconds, cancel_check=where.stop)
            return lease
        except (LeaseSettingsMismatch, PermissionError) as error:
            raise StoreError(f"the lease {lease.lock_file} cannot be taken ({error})") from error
        except Timeout as error:
            if not where.wait:
                raise Busy(f"another process computes {key(spec)}") from error
            if where.stop is not None and where.stop():
                raise Stopped(spec.stage, 0, 0) from error
        if not said:
            seconds, said = 2 * LEASE_SECONDS, True
            print("sptlib: another process computes this; waiting for it", file=sys.stderr)


def _train(
    spec: Run | Pretraining, store: Store, where: Where, recompute: bool, team: Team
) -> Entry:
    device = where.torch_device()
    data = team.together(lambda: _load(spec))
    if device.type != "cpu":
        data = data.to(device)
    stage, config = "pretrain", spec.pretrain
    if isinstance(spec, Run):
        stage, config = "finetune", spec.finetune
        n, batch_norm = len(data.train), spec.model.head_norm == "batch"
        team.together(  # before the pretraining, which may take days
            lambda: engine.check(stage, config, n, batch_norm, device, where.accumulate, team)
        )
    work = _work_folder(spec, store, team)
    checkpoint = Checkpoint(
        work / "checkpoint.safetensors", where.checkpoint_seconds, where.checkpoint_steps
    )
    if team.main:
        checkpoint.tidy()
        (work / "error.txt").unlink(missing_ok=True)  # this is another attempt

    def progress(step: int, n_steps: int, loss: float) -> None:
        if where.progress is not None and team.main:
            where.progress(stage, step, n_steps, loss)

    how = (checkpoint, progress, where.stop, where.accumulate)
    try:
        if isinstance(spec, Run):
            weights = None
            if spec.pretrain is not None:
                weights = _pretrained(spec.pretraining, store, where, recompute, team)
            trained = finetune(spec, data, weights, *how)
        else:
            trained = pretrain(spec, data, *how)
    except DivergedError as error:
        failure = shared(error)
        failure.kept_at = team.decide(lambda: str(store.fail(spec, failure.log, str(failure))))
        if team.main:
            checkpoint.remove()
        raise

    def publish() -> Entry:
        entry = store.put(
            spec,
            metrics=trained.metrics,
            result=trained.result,
            model=trained.model.state_dict(),
            snapshots=trained.snapshots,
            environment=environment(
                device, where.threads, trained.seconds, config, where.accumulate, team
            ),
        )
        # whoever took this training over may be writing here: what is left then is theirs
        shutil.rmtree(work, ignore_errors=True)
        return entry

    return team.decide(publish)


def _train_other(spec, store: Store, where: Where, recompute: bool) -> Entry:
    """A training of another system, which says by ``spec.train`` how it is computed."""
    device, before = where.torch_device(), None
    if spec.pretraining is not None:
        before = _pretrained(spec.pretraining, store, where, recompute, ALONE)
    work = store.work_folder(spec)
    (work / "error.txt").unlink(missing_ok=True)
    try:
        done = spec.train(before, where, work)
    except DivergedError as error:
        error.kept_at = str(store.fail(spec, error.log, str(error)))
        raise
    about = environment(
        device, where.threads, done.seconds, done.config, packages=done.packages
    )
    entry = store.put(
        spec, metrics=done.metrics, result=done.result, model=done.weights, environment=about
    )
    shutil.rmtree(work, ignore_errors=True)
    return entry


def _load(spec: Run | Pretraining) -> tasks.TaskData:
    data = tasks.load(spec.task, spec.seed)
    if data.fingerprint != tasks.fingerprint(spec.task, spec.seed):
        raise StoreError(
            f"the data of {spec.task.name} have changed since this process started; start it anew"
        )
    return data


def _work_folder(spec: Run | Pretraining, store: Store, team: Team) -> Path:
    """Where the unfinished training is kept; raises `StoreError` if not all processes see it."""
    folder = store.path / team.decide(lambda: store.work_folder(spec).relative_to(store.path))
    if team.size > 1:

        def leave_token() -> str:
            token = f"{uuid.uuid4().hex}.tmp"
            (folder / token).touch()
            return token

        token = team.decide(leave_token)
        try:
            team.together(lambda: _seen(folder / token))
        finally:
            if team.main:
                (folder / token).unlink(missing_ok=True)
    return folder


def _seen(path: Path) -> None:
    """Wait until what the main process has written is here, too."""
    end = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > end:
            raise StoreError(
                f"{path}, written by the main process, is not here; all processes need the same "
                "--store, in a folder that their machines share"
            )
        time.sleep(0.05)


def _pretrained(
    spec: Pretraining, store: Store, where: Where, mend: bool, team: Team
) -> dict[str, Tensor]:
    """The pretrained weights; a damaged entry is computed anew if that was asked for."""
    try:
        return team.together(compute(spec, store, where).model)
    except StoreError:
        if not mend:
            raise
        return team.together(compute(spec, store, where, recompute=True).model)


@contextmanager
def cpu_threads(n: int) -> Iterator[None]:
    """So many threads of PyTorch within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
