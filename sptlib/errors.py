"""The errors that users meet: each says what was found, what was expected and what mends it."""

import difflib
import errno
from collections.abc import Iterable

#: the system's error numbers of a disk or quota that is full, and of a file that may not grow
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class SptError(Exception):
    """Base of every error that the command line prints without a traceback."""


class ConfigError(SptError, ValueError):
    """A configuration that cannot be run: a wrong name, size or combination."""


class StoreError(SptError):
    """The run store cannot be read or written as asked."""


class UnreadableError(StoreError):
    """A file of the store is there and cannot be read just now, which is no damage."""


class DataError(SptError):
    """A data file is missing, damaged, or not in the format that it should have.

    Args:
        path: the file or folder.
        message: what was found, what was expected, what mends it.
        line: counted from 1, for text files.
        byte: offset from 0, for binary files.
    """

    def __init__(
        self, path: object, message: str, line: int | None = None, byte: int | None = None
    ):
        super().__init__(path, message, line, byte)
        self.path, self.message, self.line, self.byte = str(path), message, line, byte

    def __str__(self) -> str:
        where = self.path
        if self.line is not None:
            where += f":{self.line}"
        if self.byte is not None:
            where += f" (byte {self.byte})"
        return f"{where}: {self.message}"


class DivergedError(SptError, ArithmeticError):
    """A training loss became NaN or infinite.

    Attributes:
        step: the first step (counted from 1) whose loss is not finite.
        log: the metric lines up to and including that step.
        kept_at: where the log was stored; "" if it was not.
    """

    def __init__(self, stage: str, step: int, log: list[dict], kept_at: str = ""):
        super().__init__(stage, step)
        self.stage, self.step, self.log = stage, step, log
        self.kept_at = kept_at

    def __str__(self) -> str:
        return (
            f"{self.stage} diverged: the loss is not finite at step {self.step}; "
            "try a lower rate, a longer warm-up or clip=1"
            + (f"; the log is {self.kept_at}" if self.kept_at else "")
        )

    def __reduce__(self):  # exceptions cross process borders by pickle; `log` must come along
        return type(self), (self.stage, self.step, self.log, self.kept_at)


class Stopped(SptError):  # noqa: N818 (an order was obeyed)
    """A training was asked to stop, and saved a checkpoint before it did.

    Attributes:
        stage: "pretrain" or "finetune".
        step: steps that are done; 0 = it had not begun, or waited for another process.
        n_steps: steps that were planned.
    """

    def __init__(self, stage: str, step: int, n_steps: int):
        super().__init__(stage, step, n_steps)
        self.stage, self.step, self.n_steps = stage, step, n_steps

    def __str__(self) -> str:
        if not self.step:
            return f"stopped before the first step of {self.stage}"
        return (
            f"stopped in {self.stage} after {self.step} of {self.n_steps} steps; a checkpoint is "
            "kept, the same command goes on from there"
        )


class Busy(SptError):  # noqa: N818 (nothing is wrong)
    """Another process computes the same, and the caller did not want to wait for it."""


def unknown(what: str, name: object, known: Iterable[str]) -> ConfigError:
    """A `ConfigError` for a name that is not among the known ones, with the closest suggestion."""
    known = [str(k) for k in known]
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    return ConfigError(f"unknown {what} {str(name)!r}; {hint}")
