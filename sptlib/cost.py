"""What experiments cost before they are run: FLOPs, memory and hours of every kind of training.

Each distinct training is counted once, however many Runs start from it and however many experiments
share it. Steps and evaluations are read off the configurations (`sptlib.workload`), their
arithmetic and memory follow in closed form (`sptlib.flops`), and how long they take is measured
here or estimated for a GPU (`sptlib.devices`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from sptlib import devices, experiments, presets
from sptlib.config import Pretraining, Run, digest
from sptlib.data.make import cores
from sptlib.devices import GPUS, Gpu, Pace
from sptlib.errors import unknown
from sptlib.experiments.base import Case
from sptlib.workload import BEST, Workload, workload

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
    "may_stop": "whether it may stop early: its cost is then an upper bound",
    "by": "measured, scaled (from a smaller measurement), or what limits a GPU: arithmetic, "
    "memory or dispatch",
    "note": "how it was scaled",
}


@dataclass
class _Training:
    """One training, and what asks for it."""

    spec: Run | Pretraining
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
        ConfigError: for an unknown experiment or preset, with a suggestion.
    """
    presets.check(preset)
    wanted = [*names] or [*experiments.EXPERIMENTS]
    return {name: experiments.get(name).cases(preset, seeds) for name in dict.fromkeys(wanted)}


def estimate(
    cases: Cases | Sequence[Case],
    *,
    device: str = "cpu",
    seconds: float = 30.0,
    precision: str = "",
) -> pd.DataFrame:
    """The cost of everything that these cases need.

    Args:
        cases: of one experiment, or by experiment (`plan`).
        device: a name of `sptlib.devices.GPUS`, or "cpu" or "this": one thread of this machine,
            which is measured.
        seconds: for measuring; a GPU takes none.
        precision: fp32, tf32 or bf16 for all; "" = each training's own. Of GPUs only.

    Returns:
        A row per kind of training, with the columns of `COLUMNS`; all that cost the same in the
        same experiment and arm are one kind.

    Raises:
        ConfigError: for an unknown device or precision.
    """
    devices.check(device)
    if precision and precision not in devices.GPUS["h200"].peak:
        raise unknown("precision", precision, devices.GPUS["h200"].peak)
    kinds: dict[tuple, list[_Training]] = {}
    for training in _trainings(cases if isinstance(cases, Mapping) else {"": cases}):
        kinds.setdefault(training.kind, []).append(training)
    works = [some[0].work for some in kinds.values()]
    if device in GPUS:
        gpu = GPUS[device]
        paces = {work.shape: devices.on_gpu(work, gpu, precision) for work in works}
    else:
        gpu, paces = None, devices.measure(works, seconds)
    rows = [_row(some, paces[some[0].work.shape], precision, gpu) for some in kinds.values()]
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
                    found[key] = _Training(spec, works[seedless], experiment)
                training = found[key]
                if training.experiment == experiment:
                    training.labels.append(case.labels)
                else:
                    training.also.add(experiment)
    return list(found.values())


def _row(some: list[_Training], pace: Pace, precision: str, gpu: Gpu | None) -> dict:
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
        "may_stop": work.may_stop,
        "by": pace.by,
        "note": pace.note,
    }


# --- for people --------------------------------------------------------------------------------


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """The table as words, the dearest first, with a row of totals; ≤ marks upper bounds.

    Memory is that of one training, so that its total is the largest; ! = the device has less.
    """
    rows = []
    for row in table.sort_values("hours_total", ascending=False).to_dict("records"):
        most = "≤ " if row["may_stop"] else ""
        rows.append(
            {
                "experiment": row["experiment"] + (f" (+ {row['also']})" if row["also"] else ""),
                "task": row["task"],
                "training": _training(row),
                "labels": row["cell"],
                "n": f"{row['n']}",
                "steps": f"{row['steps']:,}",
                "length": f"{row['length']:,.0f}",
                "FLOPs each": most + scientific(row["flops"]),
                "memory": size(row["bytes"]) + ("" if row["fits"] in (True, None) else " !"),
                "time each": most + duration(row["hours"]),
                "time of all": most + duration(row["hours_total"]),
                "share": f"{row['share']:.1%}",
            }
        )
    most = "≤ " if table["may_stop"].any() else ""
    total = {
        "experiment": "total",
        "n": f"{table['n'].sum()}",
        "FLOPs each": f"all {most}{scientific(table['flops_total'].sum())}",
        "memory": size(table["bytes"].max()),
        "time of all": most + duration(table["hours_total"].sum()),
        "share": "100.0%",
    }
    columns = {name: total.get(name, "") for name in rows[0]}
    return pd.DataFrame([*rows, columns])


def text(table: pd.DataFrame) -> str:
    """`shown`, for a terminal: words to the left, numbers to the right."""
    words = shown(table)
    left = ("experiment", "task", "training", "labels")
    wide = {name: max(len(name), *map(len, words[name])) for name in words}
    lines = [dict(zip(words, words, strict=True)), *words.to_dict("records")]
    return "\n".join(
        "  ".join(
            line[name].ljust(n) if name in left else line[name].rjust(n) for name, n in wide.items()
        )
        for line in lines
    )


def _training(row: dict) -> str:
    if row["stage"] == "finetune":
        return row["arm"] or "labels"
    return f"pretraining of {row['arm']}" if row["arm"] not in ("", "SPT") else "pretraining"


def scientific(flops: float) -> str:
    """``2.4e15``."""
    mantissa, exponent = f"{flops:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def size(n: float) -> str:
    """Bytes with a unit."""
    for unit, many in (("GB", 1e9), ("MB", 1e6)):
        if n >= many:
            return f"{n / many:.1f} {unit}"
    return f"{n / 1e3:.0f} kB"


def duration(hours: float) -> str:
    """Hours with the unit in which they are easily read."""
    units = {"years": 365.25 * 24, "days": 24, "hours": 1, "min": 1 / 60, "s": 1 / 3600}
    unit = next((u for u, many in units.items() if hours >= 2 * many), "s")
    return f"{hours / units[unit]:,.1f} {unit}"


def dominant(table: pd.DataFrame, share: float = 0.5) -> str:
    """A sentence: which kinds of training make up at least this share of the hours."""
    rows = table.sort_values("share", ascending=False)
    n = int((rows["share"].cumsum() < share).sum()) + 1
    named = ", ".join(
        f"{row['task']} {_training(row)} ({row['share']:.0%})"
        for row in rows.head(n).to_dict("records")
    )
    by_stage = table.groupby("stage")["hours_total"].sum() / table["hours_total"].sum()
    return (
        f"{rows['share'].head(n).sum():.0%} of the time goes into {n} of {len(table)} kinds of "
        f"training: {named}. Pretraining takes {by_stage.get('pretrain', 0.0):.0%} of all."
    )


def notes(table: pd.DataFrame, device: str) -> list[str]:
    """What the numbers rest on, a sentence each."""
    total = table["hours_total"].sum()
    more = (table["n"] * table["hours_max"]).sum() / total - 1
    found = []
    if device in GPUS:
        gpu = GPUS[device]
        rates = ", ".join(f"{name} {rate / 1e12:g}" for name, rate in gpu.peak.items())
        found.append(
            f"{gpu.name}: {rates} TFLOP/s dense, {gpu.memory / 1e9:g} GB, "
            f"{gpu.bandwidth / 1e12:g} TB/s; published values ({gpu.source})."
        )
        found.append(
            f"Assumed, not measured: {devices.UTILISATION:.0%} of the peak in matrix products, "
            f"{devices.MOVES} passes over what is kept for backward, and at least "
            f"{1e6 * devices.DISPATCH:g} µs per operation."
        )
        lacking = sorted({p for p in table["precision"] if p not in gpu.peak})
        if lacking:
            found.append(f"It has no units for {', '.join(lacking)}: fp32's rate is taken.")
        if not table["fits"].all():
            found.append("! = more memory than it has.")
    else:
        n = cores()
        found.append(
            f"One thread of this machine, measured now; a sweep on its {n} cores takes about "
            f"{duration(total / n)}, as long as they do not slow one another down."
        )
        if (table["by"] == "scaled").any():
            found.append(
                f"{(table['by'] == 'scaled').sum()} kinds of training were measured at a smaller "
                "batch or length and scaled by FLOPs: expect less accuracy."
            )
    found.append(
        f"Every new best is tested: of n evaluations, {BEST:g}·√n are taken for one; were all, it "
        f"would be {more:.1%} more."
    )
    if table["may_stop"].any():
        found.append("≤ = it may stop early, so that this is an upper bound.")
    varying = table[table["length_from"] != "fixed"].groupby("length_from")["task"].unique()
    if len(varying):
        named = "; ".join(f"{source} ({', '.join(some)})" for source, some in varying.items())
        found.append(f"Lengths are those of {named}.")
    found.append("Left out: making and reading data for the first time, checkpoints, starting up.")
    return found

