"""What experiments cost before they are run: FLOPs, memory and hours of every kind of training.

Each distinct training is counted once, however many Runs start from it and however many experiments
share it. Steps and evaluations are read off the configurations (`sptlib.cost.workload`), their
arithmetic and memory follow in closed form (`sptlib.cost.flops`), and how long they take is
measured here or estimated for a GPU (`sptlib.cost.devices`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from sptlib import experiments, presets
from sptlib.config import Pretraining, Run, digest
from sptlib.cost import devices
from sptlib.cost.devices import GPUS, Gpu, Pace
from sptlib.cost.flops import BYTES
from sptlib.cost.workload import Workload, workload
from sptlib.errors import ConfigError, unknown
from sptlib.experiments.base import Case
from sptlib.export import UNREADABLE
from sptlib.store import Store

#: experiment, or any other name, with its cases
Cases = Mapping[str, Sequence[Case]]

#: columns of `estimate`
COLUMNS = {
    "experiment": "the first that asks for it",
    "also": "other experiments that share it",
    "task": "name of the recipe",
    "stage": "pretrain or finetune",
    "arm": "of the experiment; a pretraining that several arms share has none",
    "cell": "the other labels of the experiment, all that cost the same",
    "n": "trainings: seeds, and labels of equal cost",
    "batch": "sequences of a step, or pairs",
    "length": "positions of a batch, padding trimmed; mean over batches",
    "length_from": "where lengths are from",
    "steps": "optimiser steps of one training, as planned",
    "evals": "evaluations of one training on the validation split",
    "tests": "of these, how many are new bests and go on to the test split; an estimate",
    "precision": "of forward and backward pass",
    "step_flops": "FLOPs of a step",
    "flops": "FLOPs of one training",
    "flops_max": "the same if every evaluation is a new best",
    "flops_total": "FLOPs of all n",
    "bytes_state": "bytes of weights, gradients, moments, best weights",
    "bytes_data": "bytes of all splits",
    "bytes_activations": "bytes kept for backward, or held by an evaluation if that is more",
    "bytes": "their sum: memory of one training",
    "fits": "whether that is less than the GPU has; None on this machine",
    "step_seconds": "seconds of a step",
    "hours": "hours of one training",
    "hours_max": "the same if every evaluation is a new best",
    "hours_total": "hours of all n, one after the other",
    "share": "of the hours of the table",
    "recorded": "hours that trainings of this kind took that are stored; their mean, NaN = none",
    "may_stop": "whether it may stop early: its cost is then an upper bound",
    "by": "measured, scaled (from a smaller measurement), or what limits a GPU: arithmetic, "
    "memory or dispatch",
    "note": "how it was scaled",
}


@dataclass
class _Training:
    """One training, and what asks for it."""

    spec: Run | Pretraining
    key: str
    work: Workload
    experiment: str
    also: set[str] = field(default_factory=set)
    labels: list[dict] = field(default_factory=list)

    @property
    def task(self) -> str:
        """The name of its recipe."""
        name = f"{self.spec.task.name}:{getattr(self.spec.task, 'label', '')}"
        return name if name in presets.RECIPES else self.spec.task.name

    @property
    def arm(self) -> str:
        """The arm that it is for; "" for a pretraining that several share."""
        arms = {str(labels["arm"]): None for labels in self.labels if "arm" in labels}
        if not arms or (len(arms) > 1 and self.work.stage == "pretrain"):
            return ""
        return next(iter(arms))

    @property
    def kind(self) -> tuple:
        """Equal for trainings of an experiment that are shown in one row."""
        work = self.work
        cost = (work.shape, work.steps, work.n_evals, work.n_val, work.n_test, work.may_stop)
        return (self.experiment, self.task, self.arm, cost)


def plan(names: Iterable[str], preset: str, seeds: int = 0) -> Cases:
    """The cases of experiments by name; no name = of all.

    Raises:
        ConfigError: for an unknown experiment or preset, with a suggestion, and for an experiment
            with the other system, whose models are not counted.
    """
    presets.check(preset)
    wanted = [*names] or [*experiments.OF_RUNS]
    for name in wanted:
        if name in experiments.EXPERIMENTS and name not in experiments.OF_RUNS:
            raise ConfigError(f"{name} trains Hugging Face models, whose cost is not counted here")
    return {name: experiments.get(name).cases(preset, seeds) for name in dict.fromkeys(wanted)}


def estimate(
    cases: Cases | Sequence[Case],
    *,
    device: str = "cpu",
    seconds: float = 30.0,
    precision: str = "",
    store: Store | None = None,
) -> pd.DataFrame:
    """The cost of everything that these cases need.

    Args:
        cases: of one experiment, or by experiment (`plan`).
        device: a name of `sptlib.cost.devices.GPUS`, or "cpu" or "this": one thread of this
            machine, which is measured.
        seconds: for measuring; a GPU takes none.
        precision: fp32, tf32 or bf16 for all; "" = each training's own. Of GPUs only.
        store: whose results say how long trainings really took.

    Returns:
        A row per kind of training, with the columns of `COLUMNS`; all that cost the same in the
        same experiment and arm are one kind.

    Raises:
        ConfigError: for an unknown device or precision, or a precision of this machine.
    """
    devices.check(device)
    if precision and precision not in BYTES:
        raise unknown("precision", precision, BYTES)
    if precision and device not in GPUS:
        raise ConfigError("a precision is chosen for a GPU; here, every training has its own")
    kinds: dict[tuple, list[_Training]] = {}
    for training in _trainings(cases if isinstance(cases, Mapping) else {"": cases}):
        kinds.setdefault(training.kind, []).append(training)
    works = [some[0].work for some in kinds.values()]
    if device in GPUS:
        gpu = GPUS[device]
        paces = {work.shape: devices.on_gpu(work, gpu, precision) for work in works}
    else:
        gpu, paces = None, devices.measure(works, seconds)
    taken = _recorded(store) if store is not None else {}
    rows = [_row(some, paces[some[0].work.shape], precision, gpu, taken) for some in kinds.values()]
    table = pd.DataFrame(rows, columns=[name for name in COLUMNS if name != "share"])
    share = table["hours_total"] / table["hours_total"].sum()
    table.insert(table.columns.get_loc("hours_total") + 1, "share", share)
    return table


def _trainings(cases: Cases) -> list[_Training]:
    """Each distinct training once, pretrainings before what starts from them."""
    found: dict[str, _Training] = {}
    works: dict[str, Workload] = {}  # by the digest of seed 0: seeds cost the same
    for experiment, some in cases.items():
        for case in some:
            for spec in filter(None, (case.run.pretraining, case.run)):
                key = digest(spec)
                if key not in found:
                    seedless = digest(replace(spec, seed=0))
                    if seedless not in works:
                        works[seedless] = workload(spec)
                    found[key] = _Training(spec, key, works[seedless], experiment)
                training = found[key]
                if training.experiment == experiment:
                    training.labels.append(case.labels)
                else:
                    training.also.add(experiment)
    return list(found.values())


def _row(
    some: list[_Training], pace: Pace, precision: str, gpu: Gpu | None, taken: dict[str, float]
) -> dict:
    """One row of the table, for trainings that cost the same."""
    first, n = some[0], len(some)
    work = max((training.work for training in some), key=lambda w: w.resident)
    precision = precision or work.precision
    memory = work.memory(precision)
    used = sum(memory.values())
    cells: dict[str, dict[str, None]] = {}
    for name, value in (item for t in some for labels in t.labels for item in labels.items()):
        if name not in ("arm", "task"):
            text = f"{value:g}" if isinstance(value, float) else str(value)
            cells.setdefault(name, {})[text] = None

    def hours(tests: float) -> float:
        seconds = work.steps * pace.step + work.evaluated(tests) * pace.item + pace.fixed
        return seconds / 3600

    return {
        "experiment": first.experiment,
        "also": ", ".join(sorted(set().union(*(training.also for training in some)))),
        "task": first.task,
        "stage": work.stage,
        "arm": first.arm,
        "cell": "; ".join(f"{name} {', '.join(values)}" for name, values in cells.items()),
        "n": n,
        "batch": work.items,
        "length": float(work.batch_lengths.mean()),
        "length_from": work.lengths.source,
        "steps": work.steps,
        "evals": work.n_evals,
        "tests": work.n_tests,
        "precision": precision,
        "step_flops": work.step_flops,
        "flops": work.flops(),
        "flops_max": work.flops(work.n_evals),
        "flops_total": n * work.flops(),
        **{f"bytes_{use}": value for use, value in memory.items()},
        "bytes": used,
        "fits": None if gpu is None else used < gpu.memory,
        "step_seconds": pace.step,
        "hours": hours(work.n_tests),
        "hours_max": hours(work.n_evals),
        "hours_total": n * hours(work.n_tests),
        "recorded": float(np.mean([taken[t.key] for t in some if t.key in taken] or np.nan)),
        "may_stop": work.may_stop,
        "by": pace.by,
        "note": pace.note,
    }


def _recorded(store: Store) -> dict[str, float]:
    """Hours of every stored training, by the digest of its configuration: no data are needed."""
    found = {}
    for entry in store.entries():
        try:
            about = entry.environment
            alone = about["device"] == "cpu" and about["threads"] == about.get("processes", 1) == 1
            if alone:  # what is predicted: one thread of a CPU
                found[digest(entry.spec)] = about["seconds"] / 3600
        except UNREADABLE:  # damaged, or of an older version
            continue
    return found
