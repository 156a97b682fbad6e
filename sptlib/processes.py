"""The processes of one training: those that `accelerate launch` or torchrun started, or this one.

What they decide goes over a group of its own, on the CPU (gloo): it may wait as long as it takes
(for a lock, say), and notices at once when a process is gone. Gradients and losses take
Accelerate's way.
"""

import pickle
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from sptlib.errors import ConfigError, SptError, StoreError
from sptlib.launcher import launched, local_rank

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

#: how PyTorch says that another process is gone, where it has no class for it
_LOST = re.compile(r"connection (closed|reset|refused)|broken pipe|gloo|nccl", re.IGNORECASE)


@dataclass(frozen=True)
class Team:
    """The processes that compute one training together; by default this one alone.

    Attributes:
        size: how many.
        rank: this one, from 0. Process 0, the main one, looks up, locks, writes and reports.
        group: PyTorch's process group for decisions.
    """

    size: int = 1
    rank: int = 0
    group: Any = None

    @property
    def main(self) -> bool:
        """Whether this is process 0."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Everybody's value (anything that can be pickled), in the order of the processes."""
        if self.size == 1:
            return [value]
        values: list = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def agree(self, *numbers: int) -> list[int]:
        """The largest of each number over all processes."""
        if self.size == 1:
            return list(numbers)
        largest = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.group)
        return largest.tolist()

    def decide(self, work: Callable[[], T]) -> T:
        """What ``work()`` gives in the main process, in every process; its error is everybody's."""
        if self.size == 1:
            return work()
        value, error = _attempt(work) if self.main else (None, None)
        box = [value, _portable(error)]
        dist.broadcast_object_list(box, src=0, group=self.group)
        if box[1] is not None:
            raise shared(error or box[1])
        return box[0]

    def together(self, work: Callable[[], T]) -> T:
        """``work()`` in every process; an error in one of them is an error in all.

        Raises:
            The error, if all have the same one. Else one that says which process had which: of the
            kinds `ConfigError` and `StoreError` if the first was, else `SptError`.
        """
        if self.size == 1:
            return work()
        value, error = _attempt(work)
        failed = [
            (f"process {rank} of {self.size} on {host}", other)
            for rank, (host, other) in enumerate(
                self.gather((socket.gethostname(), _portable(error)))
            )
            if other is not None
        ]
        if not failed:
            return value
        first = failed[0][1]
        if len(failed) == self.size and len({str(other) for _, other in failed}) == 1:
            raise shared(error)
        kind = type(first) if type(first) in (ConfigError, StoreError) else SptError
        raise shared(kind("; ".join(f"{who}: {_said(other)}" for who, other in failed))) from error

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Say it in our words if another process is gone, which ends this one, too."""
        try:
            yield
        except RuntimeError as error:
            lost = isinstance(error, dist.DistError) or _LOST.search(str(error))
            if self.size == 1 or not lost:
                raise
            raise SptError(
                f"process {self.rank} of {self.size} has lost the others; if one of them ended "
                f"before, what it said is the cause. PyTorch: {str(error).splitlines()[0]}"
            ) from error


ALONE = Team()
_started: dict[str, Team] = {}


def team(device: torch.device) -> Team:
    """The processes of the launcher, joined at the first call; `ALONE` without a launcher.

    Args:
        device: of this process; the CPU is served by gloo, CUDA by NCCL.

    Raises:
        ConfigError: if there are several and Accelerate is missing, or the kind of device changed.
    """
    if launched() == 1:
        return ALONE
    if device.type not in _started:
        if _started:
            raise ConfigError(
                f"the {launched()} processes are joined on {next(iter(_started))!r} already; "
                f"for {device.type!r} start anew"
            )
        try:
            from accelerate import PartialState
        except ImportError as error:
            raise missing_accelerate(f"{launched()} processes") from error
        state = PartialState(cpu=device.type == "cpu")
        group = dist.new_group(backend="gloo", timeout=timedelta(days=30))
        _started[device.type] = Team(state.num_processes, state.process_index, group)
    return _started[device.type]


def missing_accelerate(what: str) -> ConfigError:
    """The error for something that takes Accelerate where it is not installed."""
    return ConfigError(f"{what} take Hugging Face Accelerate: pip install 'sptlib[cluster]'")


def leave(failed: bool) -> None:
    """Part from the other processes; after an error only as far as that cannot block."""
    joined = dist.is_available() and dist.is_initialized()
    if joined and not (failed and dist.get_backend() == "nccl"):
        dist.destroy_process_group()
        _started.clear()


def shared(error: E) -> E:
    """Mark an error that every process raises, so that one alone reports it."""
    error.shared = True
    return error


def speaks(error: BaseException) -> bool:
    """Whether this process is the one to report an error that it is about to end with.

    If it is not, this returns after the one that is had time to do so, since a launcher ends all
    processes at the first one that fails. See `spoken`.
    """
    if not _started:  # not joined yet: what is wrong is wrong on the whole machine
        if local_rank() > 0:
            time.sleep(5)
        return local_rank() == 0
    team = next(iter(_started.values()))
    if team.main or not getattr(error, "shared", False):
        return True
    spoken(error)
    return False


def spoken(error: BaseException) -> None:
    """To be called by the process that has reported an error: the others wait for it."""
    if _started and getattr(error, "shared", False):
        with suppress(RuntimeError):  # one of them is gone
            next(iter(_started.values())).gather(None)


def _attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _portable(error: Exception | None) -> Exception | None:
    """The error as other processes can unpickle it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its constructor says
        return SptError(_said(error))
    return error


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, SptError) else f"{type(error).__name__}: {error}"
