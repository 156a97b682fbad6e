"""One node of a sweep's graph: a training, and how it ended."""

import traceback
from contextlib import suppress
from dataclasses import dataclass

from sptlib.config import Pretraining, Run, key
from sptlib.errors import Busy, SptError, Stopped
from sptlib.execute import Where, compute
from sptlib.store import Store


@dataclass(frozen=True)
class Outcome:
    """How one training ended: stored, failed with an error, stopped, or left to somebody else."""

    error: str = ""
    traceback: str = ""
    stopped: bool = False
    busy: bool = False
    files: dict[str, bytes] | None = None


def attempt(spec: Run | Pretraining, store: Store, where: Where, recompute: bool) -> Outcome:
    """Compute one training; whatever happens becomes an `Outcome`."""
    try:
        compute(spec, store, where, recompute)
    except Stopped:
        return Outcome(stopped=True)
    except Busy:
        return Outcome(busy=True)
    except SptError as error:
        return Outcome(error=str(error))
    except Exception as error:  # the others go on; this one is reported with its cause
        text, trace = f"{type(error).__name__}: {error}".strip(": "), traceback.format_exc()
        with suppress(SptError, OSError):  # the store may be what failed
            store.fail(spec, [], f"{text}\n\n{trace}")
        return Outcome(error=text, traceback=trace)
    return Outcome()


def waits_for(spec: Run | Pretraining) -> str:
    """The key of the pretraining that a Run starts from, or ""."""
    return key(spec.pretraining) if spec.pretraining is not None else ""


def after_failure(name: str) -> Outcome:
    """What becomes of a Run whose pretraining, of this key, failed."""
    return Outcome(error=f"its pretraining {name[:12]} failed")
