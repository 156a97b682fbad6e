"""07: whose data must be reconstructed?

Pretraining on the inputs of one task, training from the labels of another. What fits is
transferred; embeddings belong to the symbols of a task and are always initialised anew, and so is
the classifier. Two sources are noise: one in which a token tends to repeat the last one, and one
without any structure. If pretraining teaches attention to look at near positions, the first should
do and the second should not (Coser et al. 2026 report a gain on CIFAR-10 from Pathfinder).
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from sptlib import presets
from sptlib.config import Run
from sptlib.errors import unknown
from sptlib.experiments.ablation import (
    LRA,
    SCRATCH,
    SPT,
    TASKS,
    Arm,
    base_run,
    make,
    rows_of,
    scratch,
    seeds_of,
    with_short,
)
from sptlib.experiments.base import Case, Result

NAME = "source"
GROUP_BY = ["task", "arm"]

#: from the target's own inputs, but with embeddings initialised anew as for any other source
ITSELF = "own data, embeddings anew"
#: what is transferred from another task: all but embeddings
MOVED = ("qk", "vo", "mlp", "norm")

#: noise in place of a task: steps and p of `neighbor`
NOISE: dict[str, dict] = {
    "noise, correlated": {"steps": (0, 0), "p": 0.8},
    "noise, independent": {"steps": (0, 0), "p": 0.0},
}
#: sources by name of the row; those that are slow are left out at the classroom
SOURCES = ("Neighbor +1 / +3", "Image", "Text, direction", "Pathfinder", *NOISE)
SLOW = ("Pathfinder",)
#: target tasks, and the classroom's
ROWS = ("Neighbor +1 / +3", "Image", "Text, direction")
LIVE = ("Neighbor +1 / +3",)


def pretraining_of(preset: str, source: str) -> tuple:
    """The task and the pretraining of a source, as it is pretrained for its own sake."""
    if source in NOISE:
        own = base_run(preset, "Neighbor +1 / +3", 0)
        return replace(own.task, **NOISE[source]), own.pretrain
    own = base_run(preset, source, 0)
    return replace(own.task, n_labels=0), own.pretrain


def from_source(preset: str, source: str) -> Arm:
    """SPT's Run, but pretrained on another task's inputs, in that task's own way."""

    def build(base: Run) -> Run:
        task, pretrain = pretraining_of(preset, source)
        return replace(base, pretrain=replace(pretrain, task=task), transfer=MOVED)

    return Arm(build)


def arms_of(preset: str, target: str, sources: Sequence[str]) -> dict[str, Arm]:
    """Scratch, SPT, and every source but the target itself."""
    others = {name: from_source(preset, name) for name in sources if name != target}
    return {
        SCRATCH: Arm(scratch, SCRATCH),
        SPT: Arm(lambda base: base),
        ITSELF: Arm(lambda base: replace(base, transfer=MOVED)),
        **others,
    }


def check_sources(sources: Sequence[str]) -> tuple[str, ...]:
    """Sources by name or recipe, in order; raises `ConfigError` with a suggestion."""
    known = {name: name for name in (*TASKS, *NOISE)}
    for name, recipe in TASKS.items():
        known.setdefault(recipe, name)  # of `neighbor`, the first variant
    for name in sources:
        if name not in known:
            raise unknown("source of pretraining data", name, known)
    return tuple(dict.fromkeys(known[name] for name in sources))


def cases(
    preset: str = "classroom",
    seeds: int = 0,
    *,
    sources: Sequence[str] = (),
    n_layers: int = 0,
    task: str = "",
) -> list[Case]:
    """All Runs of the experiment.

    Args:
        preset: name of the preset.
        seeds: seeds 0 … n−1; 0 = the preset's number.
        sources: names of `SOURCES` or recipes; empty = all, at the classroom all but `SLOW`.
        n_layers: layers of the model; 0 = the preset's.
        task: the target, a row or a recipe; "" = `ROWS`, at the classroom `LIVE`.
    """
    presets.check(preset)
    quick = tuple(name for name in SOURCES if name not in SLOW)
    defaults = {"classroom": quick, "paper": (*LRA, *NOISE)}
    chosen = check_sources(sources) or defaults.get(preset, SOURCES)
    found = []
    for name in rows_of(preset, task, LIVE, ROWS):
        arms = arms_of(preset, name, chosen)
        for seed in seeds_of(preset, seeds):
            base = base_run(preset, name, seed, n_layers)
            found += [
                Case({"task": name, "arm": title}, run)
                for title, run in make(preset, name, base, arms, {}).items()
            ]
    return found


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per Run: task (the target), arm (the source), seed, steps, accuracies, losses."""
    return with_short(results, ["task"])


def matrix(table: pd.DataFrame) -> pd.DataFrame:
    """Mean gain over scratch in points: a row per target, a column per source.

    SPT's column is the target's own data with their embeddings; where the source is the target
    itself, embeddings are anew.
    """
    columns = [SPT, ITSELF, *TASKS, *NOISE]
    found = pd.DataFrame(index=list(dict.fromkeys(table["task"])), columns=columns, dtype=float)
    for target, rows in table.groupby("task", sort=False):
        for arm in set(rows["arm"]) & set(columns):
            both = rows[rows["arm"].isin([arm, SCRATCH])].pivot_table(
                index="seed", columns="arm", values="test_accuracy"
            )
            found.loc[target, arm] = 100 * (both[arm] - both[SCRATCH]).mean()
    found.index.name, found.columns.name = "trained on the labels of", "reconstructed before"
    return found.dropna(axis="columns", how="all")


def learned(results: Sequence[Result], store) -> pd.DataFrame:
    """What each source's reconstruction had learned beside what came of it.

    Args:
        results: of this experiment.
        store: a run store or a study, which has the pretrainings.

    Returns:
        Columns task, arm, seed, first and best (validation losses of the reconstruction at its
        first and at its best evaluation), test_accuracy.
    """
    rows = []
    for r in results:
        if r.entry.spec.pretrain is None or r.labels["arm"] == ITSELF:
            continue
        shared = store.get(r.entry.spec.pretraining)
        values = [line["val_loss"] for line in shared.metrics if "val_loss" in line]
        rows.append(
            {
                **r.labels,
                "seed": r.entry.spec.seed,
                "first": values[0],
                "best": min(values),
                "test_accuracy": r.entry.result["test_accuracy"],
            }
        )
    columns = ["task", "arm", "seed", "first", "best", "test_accuracy"]
    return pd.DataFrame(rows, columns=columns)
