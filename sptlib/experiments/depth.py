"""06: is the gain a matter of depth?

SPT and training from scratch at several depths, from one layer up to the published depth of each
task's model (Amos et al. 2024) in a study. Coser et al. (2026) report substantial gains with a
single layer.
"""

from collections.abc import Sequence

import pandas as pd

from sptlib.experiments.ablation import (
    PUBLISHED_LAYERS,
    TASKS,
    WHOLE,
    base_run,
    make,
    rows_of,
    seeds_of,
    with_short,
)
from sptlib.experiments.base import Case, Result, losses

NAME = "depth"
GROUP_BY = ["task", "layers", "arm"]

#: rows, and rows of the classroom
ROWS = ("Neighbor +1 / +3", "Image", "Text, direction")
LIVE = ("Neighbor +1 / +3",)
#: depths by recipe and preset; at the preset `paper`, every one up to the published depth, and the
#: study's where there is none
LAYERS: dict[str, dict[str, tuple[int, ...]]] = {
    "classroom": {"neighbor": (1, 2)},
    "study": {"neighbor": (1, 2, 4), "image": (1, 2, 3), "text:direction": (1, 2, 4)},
}


def depths(preset: str, name: str, layers: Sequence[int] = ()) -> tuple[int, ...]:
    """Depths of a row, ascending: the given ones, else the preset's."""
    if layers:
        return tuple(sorted(set(layers)))
    recipe = TASKS[name]
    if preset == "smoke":
        return (1, 2)
    if preset == "paper" and recipe in PUBLISHED_LAYERS:
        return tuple(range(1, PUBLISHED_LAYERS[recipe] + 1))
    return LAYERS["study" if preset == "paper" else preset].get(recipe, (1, 2))


def cases(
    preset: str = "classroom",
    seeds: int = 0,
    *,
    layers: Sequence[int] = (),
    n_layers: int = 0,
    task: str = "",
) -> list[Case]:
    """All Runs of the experiment.

    Args:
        preset: name of the preset.
        seeds: seeds 0 … n−1; 0 = the preset's number.
        layers: depths; empty = the preset's.
        n_layers: one layer up to this many; 0 = the preset's depths.
        task: a row or a recipe; "" = `ROWS`, at the classroom `LIVE`.
    """
    wanted = tuple(layers) or tuple(range(1, n_layers + 1))
    return [
        Case({"task": name, "layers": depth, "arm": title}, run)
        for name in rows_of(preset, task, LIVE, ROWS)
        for depth in depths(preset, name, wanted)
        for seed in seeds_of(preset, seeds)
        for title, run in make(preset, name, base_run(preset, name, seed, depth), WHOLE, {}).items()
    ]


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per Run: task, layers, arm, seed, steps, accuracies, losses."""
    return with_short(results, ["task", "layers"])


def placed(table: pd.DataFrame) -> pd.DataFrame:
    """The rows with a column ``place``: task and layers."""
    names = [f"{t}, {n} layers" for t, n in zip(table["task"], table["layers"], strict=True)]
    return table.assign(place=[name.replace(", 1 layers", ", 1 layer") for name in names])


def curves(results: Sequence[Result]) -> dict[str, dict[str, list[pd.DataFrame]]]:
    """Training losses from labels by task and depth, then by arm, a table per seed."""
    found: dict[str, dict[str, list[pd.DataFrame]]] = {}
    for r in results:
        place = f"{r.labels['task']}, layers: {r.labels['layers']}"
        arms = found.setdefault(place, {})
        arms.setdefault(r.labels["arm"], []).append(losses(r.entry, "finetune"))
    return found
