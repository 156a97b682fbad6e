"""Recompute results and compare every number with what is stored.

On the same kind of machine, with the same PyTorch and threads, a recomputed CPU training is the
same to the last bit. Elsewhere rounding may differ, and training amplifies it.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sptlib import export, progress
from sptlib.config import key
from sptlib.errors import ConfigError, SptError
from sptlib.execute import Where
from sptlib.export import Shipped
from sptlib.seeding import generator
from sptlib.store import Entry, Store
from sptlib.sweep import Interrupted, SweepError, compute_all

#: what rounding depends on, besides PyTorch; what one side has not recorded is not compared
ENVIRONMENT = (
    "platform", "machine", "processor", "device", "device_name", "threads", "processes",
    "accumulate",
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """A stored result beside its recomputation.

    Attributes:
        key: of the result.
        title: what it is.
        outcome: "identical", "different", "failed" or "not compared".
        text: numbers, or why.
        elsewhere: in what the environments differ; empty = the numbers should be the same.
        accuracy: by how much the test accuracies differ.
    """

    key: str
    title: str
    outcome: str
    text: str
    elsewhere: tuple[str, ...] = ()
    accuracy: float = 0.0

    def bad(self, tolerance: float) -> bool:
        """Whether it is more than another machine's rounding explains."""
        if self.outcome == "different":
            return not self.elsewhere or self.accuracy > tolerance
        return self.outcome == "failed"

    def __str__(self) -> str:
        where = f" (another environment: {', '.join(self.elsewhere)})" if self.elsewhere else ""
        where *= self.outcome == "different"
        return f"{self.key}  {self.title}: {self.outcome}{where}: {self.text}"


class Broken(Interrupted):
    """Recomputing was stopped by a signal."""

    def __str__(self) -> str:
        return "stopped; nothing was compared, and nothing that was recomputed is kept"


def draw(entries: Sequence[Entry | Shipped], n: int, choose: int) -> list[Entry | Shipped]:
    """So many Runs of this version at random, the same for the same ``choose``."""
    runs = sorted(filter(_is_run, entries), key=lambda e: e.key)
    order = torch.randperm(len(runs), generator=generator(choose, "verify"))
    return [runs[i] for i in order[:n].tolist()]


def _is_run(entry: Entry | Shipped) -> bool:
    try:
        return export.is_current(entry) and entry.spec.stage == "finetune"
    except export.UNREADABLE:
        return False


def comparable(entry: Entry | Shipped) -> Comparison | None:
    """None if an entry can be computed here, else why not."""
    why = "it was computed on other data than there are here"
    try:
        if key(entry.spec) == entry.key:
            return None
    except SptError as error:
        why = f"its data are not here ({error})"
    return Comparison(entry.key, progress.title(entry.spec), "not compared", why)


def with_pretrainings(
    known: Mapping[str, Entry | Shipped], chosen: Sequence[Entry | Shipped]
) -> list[Entry | Shipped]:
    """Runs, and before them the known pretrainings that they start from, each once."""
    shared = {key(e.spec.pretraining): None for e in chosen if e.spec.pretraining}
    return [known[name] for name in shared if name in known] + list(chosen)


def seconds(entries: Sequence[Entry | Shipped]) -> float:
    """How long these trainings took, one after the other."""
    return sum(float(e.environment.get("seconds", 0)) for e in entries)


def recompute(
    known: Mapping[str, Entry | Shipped],
    chosen: Sequence[Entry | Shipped],
    workers: int | None = None,
    device: str = "",
) -> list[Comparison]:
    """Compute Runs anew, with their pretrainings, and compare every number of both.

    Args:
        known: everything readable by key; pretrainings are looked up in it.
        chosen: Runs that are `comparable`.
        workers: as in `sptlib.sweep.compute_all`.
        device: where to compute; "" = on the kind of device they were computed on, if there is one.

    Raises:
        Broken: after Ctrl-C or SIGTERM.
    """
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="sptlib-") as folder:
        fresh = Store(folder)
        devices = [device or _device(e.environment.get("device", "auto")) for e in chosen]
        for name in dict.fromkeys(devices):
            runs = [e.spec for e, d in zip(chosen, devices, strict=True) if d == name]
            try:
                compute_all(runs, fresh, workers=workers, device=name)
            except SweepError as error:
                failed |= error.failed
            except Interrupted as error:  # of a store that goes now
                raise Broken(*error.args) from error
        return [compare(e, fresh.find(e.key), failed) for e in with_pretrainings(known, chosen)]


def _device(name: str) -> str:
    try:
        Where(device=name).torch_device()
    except ConfigError:
        return "auto"
    return name


def compare(old: Entry | Shipped, new: Entry | None, failed: dict[str, str]) -> Comparison:
    """Every number of a stored result beside the recomputed one."""
    title = progress.title(old.spec)
    if new is None:
        return Comparison(old.key, title, "failed", failed.get(old.key, "it was not computed"))
    before, after = _numbers(old, thin=False), _numbers(new, thin=isinstance(old, Shipped))
    if not isinstance(old, Shipped):
        before["weights"], after["weights"] = (e.manifest["model.safetensors"] for e in (old, new))
    worst, where, others = 0.0, "", []
    for name in dict.fromkeys([*before, *after]):
        value, now = before.get(name), after.get(name)
        if name in before and name in after and value == now:
            continue
        if name not in before and name.startswith("moved_"):  # an older version did not record it
            continue
        # steps and counts are not measured by how far they are apart
        if type(value) is type(now) is float and math.isfinite(value - now):
            if abs(value - now) >= worst:
                worst, where = abs(value - now), name
        else:
            others.append(name)
    elsewhere = tuple(_elsewhere(old.environment, new.environment))
    if not where and not others:
        return Comparison(old.key, title, "identical", f"{len(before)} values", elsewhere)
    parts = [f"largest difference {worst:.3g}, at {where}"] if where else []
    if others:
        parts.append(f"{len(others)} steps, counts or words are others, the first is {others[0]}")
    text = "; ".join(parts)
    accuracies = [e.result.get("test_accuracy") for e in (old, new)]
    if None in accuracies:
        return Comparison(old.key, title, "different", text, elsewhere)
    text += "; test accuracy {:.4f}, recomputed {:.4f}".format(*accuracies)
    moved = abs(accuracies[0] - accuracies[1])
    moved = moved if math.isfinite(moved) else math.inf
    return Comparison(old.key, title, "different", text, elsewhere, moved)


def _numbers(entry: Entry | Shipped, thin: bool) -> dict[str, Any]:
    """Everything in result and log by a name that says where it is."""
    found = {f"{name} of the result": value for name, value in entry.result.items()}
    lines = export.thinned(entry.metrics) if thin else entry.metrics
    found["number of logged lines"] = len(lines)
    for line in lines:
        where = f"step {line['step']} of {line['stage']}"
        found |= {f"{k} at {where}": v for k, v in line.items() if k not in ("stage", "step")}
    return found


def _elsewhere(before: dict, now: dict) -> Iterator[str]:
    values = {name: (before.get(name), now.get(name)) for name in ENVIRONMENT}
    values["torch"] = tuple(about.get("versions", {}).get("torch") for about in (before, now))
    for name, (then, here) in values.items():
        if then and here and then != here:
            yield f"{name} {then}, here {here}"
        if name == "processor" and here and not then:  # an older result: it may be another one
            yield f"processor not recorded, here {here}"
