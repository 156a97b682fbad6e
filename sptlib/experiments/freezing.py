"""08: do labels use the attention weights at all?

Parts of the network are frozen while it is trained from labels: at their random start, or as SPT
left them. On images with few labels, also for several numbers of labels and beside attention that
is exactly uniform: if frozen random attention helps there, is it because it is random or because it
hardly attends? Every training also records how far each parameter group has moved.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd

from sptlib.analysis import stats
from sptlib.analysis.decisions import LOSS_MARGIN
from sptlib.config import Run
from sptlib.experiments import few_labels, replication, synthetic
from sptlib.experiments.ablation import QUICK as QUICK
from sptlib.experiments.ablation import (
    SCRATCH,
    SPT,
    WHOLE,
    Arm,
    base_run,
    first,
    make,
    rows_of,
    scratch,
    searched,
    seeds_of,
    with_short,
)
from sptlib.experiments.base import Case, Result, with_steps
from sptlib.transfer import GROUPS as GROUPS

NAME = "freezing"
GROUP_BY = ["task", "labels", "arm"]


def _frozen(start: Callable[[Run], Run], *groups: str, like: str) -> Arm:
    return Arm(lambda base: replace(start(base), freeze=groups), like)


def _uniform(base: Run) -> Run:
    return replace(scratch(base, init="uniform"), freeze=("qk",))


#: frozen at the random start, with scratch's steps
RANDOM: dict[str, Arm] = {
    "frozen QK": _frozen(scratch, "qk", like=SCRATCH),
    "frozen QKVO": _frozen(scratch, "qkvo", like=SCRATCH),
    "frozen MLP": _frozen(scratch, "mlp", like=SCRATCH),
}
#: W_Q = W_K = 0 and frozen: every position attends to all alike
UNIFORM = "uniform attention"
#: pretrained, then frozen, with SPT's label steps
AFTER: dict[str, Arm] = {
    "SPT, then frozen QK": _frozen(lambda base: base, "qk", like=SPT),
    "SPT, then frozen QKVO": _frozen(lambda base: base, "qkvo", like=SPT),
    "SPT, then frozen MLP": _frozen(lambda base: base, "mlp", like=SPT),
}
ARMS: dict[str, Arm] = {**WHOLE, **RANDOM, UNIFORM: Arm(_uniform, SCRATCH), **AFTER}
#: what is run for other numbers of labels
BY_LABELS = (SCRATCH, "frozen QKVO", UNIFORM, SPT)

#: rows of the classroom
LIVE = ("Image",)

#: the preset at which rates are searched, how many seeds the search has, and the grid by recipe
TUNED_AT = "study"
N_TUNING_SEEDS = 1
RATES = {
    "neighbor": synthetic.RATES,
    "image": (*few_labels.RATES, 5e-2),
    "text:direction": (*replication.RATES, 1e-2),
}
#: the chosen rates (data/tuning/freezing.csv; a test compares)
CHOSEN: dict[str, dict[str, float]] = {
    "neighbor": {
        "frozen QK": 0.02,
        "frozen QKVO": 0.01,
        "frozen MLP": 0.01,
        "uniform attention": 0.005,
        "SPT, then frozen QK": 0.01,
        "SPT, then frozen QKVO": 0.005,
        "SPT, then frozen MLP": 0.02,
    },
    "image": {
        "frozen QK": 0.01,
        "frozen QKVO": 0.02,
        "frozen MLP": 0.02,
        "uniform attention": 0.01,
        "SPT, then frozen QK": 0.02,
        "SPT, then frozen QKVO": 0.05,
        "SPT, then frozen MLP": 0.02,
    },
    "text:direction": {
        "frozen QK": 0.01,
        "frozen QKVO": 0.01,
        "frozen MLP": 0.005,
        "uniform attention": 0.01,
        "SPT, then frozen QK": 0.01,
        "SPT, then frozen QKVO": 0.005,
        "SPT, then frozen MLP": 0.005,
    },
}


def labels_of(preset: str, name: str) -> tuple[int, ...]:
    """Further numbers of labels, besides the row's own."""
    if name != "Image" or preset not in ("smoke", "study"):
        return ()
    own = base_run(preset, name, 0).n_sequences
    return tuple(
        n for n in few_labels.LABELS["smoke" if preset == "smoke" else "classroom"] if n != own
    )


def with_labels(base: Run, n_labels: int) -> Run:
    """The Run with another number of labels, as many label steps and as many evaluations."""
    run = replace(base, task=replace(base.task, n_labels=n_labels))
    finetune = with_steps(run, base.n_steps).finetune
    return replace(run, finetune=replace(finetune, n_evals=base.finetune.n_evals))


def cases(
    preset: str = "classroom", seeds: int = 0, *, n_layers: int = 0, task: str = ""
) -> list[Case]:
    """All Runs of the experiment.

    Args:
        preset: name of the preset.
        seeds: seeds 0 … n−1; 0 = the preset's number.
        n_layers: layers of the model; 0 = the preset's.
        task: a row or a recipe; "" = `QUICK`, at the classroom `LIVE`.
    """
    found = []
    for name in rows_of(preset, task, LIVE, QUICK):
        for seed in seeds_of(preset, seeds):
            base = base_run(preset, name, seed, n_layers)
            arms = ARMS
            if preset == "classroom" and name == "Image":  # to save time
                arms = {title: ARMS[title] for title in (SCRATCH, "frozen QKVO", SPT)}
            found += _cases(preset, name, base, arms)
            few = {title: ARMS[title] for title in BY_LABELS}
            for n_labels in labels_of(preset, name):
                found += _cases(preset, name, with_labels(base, n_labels), few)
    return found


def _cases(preset: str, name: str, base: Run, arms: dict[str, Arm]) -> list[Case]:
    runs = make(preset, name, base, arms, CHOSEN)
    return [
        Case({"task": name, "labels": base.n_sequences, "arm": title}, run)
        for title, run in runs.items()
    ]


def candidates(preset: str, seeds: Sequence[int]) -> list[Case]:
    """The search for label rates of everything that is frozen."""
    arms = {title: arm for title, arm in ARMS.items() if title not in WHOLE}
    return searched(preset, seeds, lambda name: arms, RATES)


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per Run: task, labels, arm, seed, steps, accuracies, losses, movements."""
    return with_short(results, ["task", "labels"])


def moved(results: Sequence[Result], store) -> pd.DataFrame:
    """How far each parameter group has moved, relative to its start: under labels and under SPT.

    Args:
        results: of this experiment; read are its own numbers of labels, scratch and SPT.
        store: a run store or a study, which has the pretrainings, too.

    Returns:
        Columns task, arm, seed, group, moved. The arms: "labels only" (scratch), "reconstruction",
        and "labels after it".
    """
    own: dict[str, int] = {}
    for r in results:
        own.setdefault(r.labels["task"], r.labels["labels"])  # a row's own number comes first
    rows = []
    for r in results:
        arm, name = r.labels["arm"], r.labels["task"]
        if arm not in (SCRATCH, SPT) or r.labels["labels"] != own.get(name):
            continue
        about = [("labels only" if arm == SCRATCH else "labels after it", r.entry.result)]
        if arm == SPT and (shared := store.get(r.entry.spec.pretraining)) is not None:
            about.append(("reconstruction", shared.result))
        rows += [
            {
                "task": name,
                "arm": title,
                "seed": r.entry.spec.seed,
                "group": group,
                "moved": result[f"moved_{group}"],
            }
            for title, result in about
            for group in GROUPS
            if f"moved_{group}" in result
        ]
    return pd.DataFrame(rows, columns=["task", "arm", "seed", "group", "moved"])


def at_own_labels(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of each task's own number of labels, which comes first."""
    return first(table, "labels")


def explanations(table: pd.DataFrame) -> pd.DataFrame:
    """What three explanations of frozen attention's success on images predict, and what is so.

    Args:
        table: rows of Image, with several numbers of labels.

    Returns:
        A row per prediction: explanation, prediction, difference with its interval, and whether it
        comes true: "yes" or "no" where the interval lies on one side of 0 (of `LOSS_MARGIN` for
        losses), else "open". Empty without rows.
    """
    if table.empty or table["labels"].nunique() < 2:
        return pd.DataFrame()
    at = dict(list(table.groupby("labels")))
    few, most = min(at), max(at)
    frozen = "frozen QKVO"
    rows = []

    def add(explanation: str, prediction: str, found: stats.Interval, unit: str = "points") -> None:
        scale, digits = (100, 1) if unit == "points" else (1, 3)
        least = 0.0 if unit == "points" else LOSS_MARGIN
        text = found.text(scale, digits, unit)
        rows.append((explanation, prediction, text, found.answer(least)))

    for n in sorted(at):
        gain = stats.paired(at[n], "test_accuracy", frozen, UNIFORM)
        add("random features", f"{n} labels: frozen beats uniform attention", gain)
    for n in sorted(at):
        gain = stats.paired(at[n], "test_accuracy", UNIFORM, SCRATCH)
        add("overfitting through attention", f"{n} labels: uniform attention beats scratch", gain)
    shrinks = stats.interval(
        stats.differences(at[few], "test_accuracy", frozen, SCRATCH)
        - stats.differences(at[most], "test_accuracy", frozen, SCRATCH)
    )
    prediction = f"frozen's advantage over scratch is larger with {few} labels than with {most}"
    add("overfitting through attention", prediction, shrinks)
    for n in sorted(at):
        loss = stats.paired(at[n], "train_loss", SCRATCH, frozen)
        prediction = f"{n} labels: scratch's training loss ends {LOSS_MARGIN} nats higher or more"
        add("optimisation", prediction, loss, "nats")
    columns = ["explanation", "prediction", "difference", "so?"]
    return pd.DataFrame(rows, columns=columns).set_index(["explanation", "prediction"])
