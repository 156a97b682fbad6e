"""11: how does it depend on the way in which positions enter?

Training from scratch and SPT with five positional encodings: sinusoidal and learned ones are added
to the input, RoPE turns queries and keys, ALiBi biases scores, and none at all.
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from sptlib.config import Run
from sptlib.experiments import few_labels, synthetic
from sptlib.experiments.ablation import (
    SCRATCH,
    SPT,
    WHOLE,
    Arm,
    base_run,
    make,
    rows_of,
    scratch,
    searched,
    seeds_of,
)
from sptlib.experiments.attention import LIVE, LOOKS, N_SEEDS, watched
from sptlib.experiments.base import Case, Result, frame

NAME = "positions"
GROUP_BY = ["task", "positions", "arm"]

#: the encodings, the usual one first
ENCODINGS = ("sinusoidal", "learned", "rope", "alibi", "none")
#: what tells two models with added positions apart from others: only they have a table of positions
ADDED = ("sinusoidal", "learned")
#: rows of the study
ROWS = ("Neighbor +1 / +3", "Neighbor +1 / −1", "Image")
#: encodings of the classroom: one that is added, and one that turns queries and keys
LIVE_ENCODINGS = ("sinusoidal", "learned", "rope", "alibi", "none")
LIVE_SEEDS = 3

#: the preset at which rates are searched, on how many seeds, and the grid by recipe: the grids of
#: the sinusoidal arms
TUNED_AT = "study"
N_TUNING_SEEDS = 2
RATES = {"neighbor": synthetic.RATES, "image": (*few_labels.RATES, 5e-2)}
#: the chosen rates (data/tuning/positions.csv; a test compares)
CHOSEN: dict[str, dict[str, float]] = {
    "neighbor": {
        "SPT, alibi": 0.002,
        "SPT, learned": 0.002,
        "SPT, none": 0.002,
        "SPT, rope": 0.002,
        "scratch, alibi": 0.02,
        "scratch, learned": 0.002,
        "scratch, none": 0.02,
        "scratch, rope": 0.002,
    },
    "image": {
        "SPT, alibi": 0.01,
        "SPT, learned": 0.01,
        "SPT, none": 0.02,
        "SPT, rope": 0.02,
        "scratch, alibi": 0.01,
        "scratch, learned": 0.01,
        "scratch, none": 0.005,
        "scratch, rope": 0.002,
    },
}


def title(arm: str, encoding: str) -> str:
    """The name of an arm with an encoding, as the search for rates has it."""
    return arm if encoding == "sinusoidal" else f"{arm}, {encoding}"


def _with(encoding: str) -> dict[str, Arm]:
    def spt(base: Run) -> Run:
        return replace(base, model=replace(base.model, positions=encoding))

    return {
        title(SCRATCH, encoding): Arm(lambda base: scratch(base, positions=encoding), SCRATCH),
        title(SPT, encoding): Arm(spt, SPT),
    }


def cases(
    preset: str = "classroom",
    seeds: int = 0,
    *,
    n_layers: int = 0,
    task: str = "",
    encodings: Sequence[str] = (),
) -> list[Case]:
    """All Runs of the experiment.

    Args:
        preset: name of the preset.
        seeds: seeds 0 … n−1; 0 = the preset's number, at the classroom `LIVE_SEEDS`.
        n_layers: layers of the model; 0 = the preset's.
        task: a row or a recipe; "" = `ROWS`, at the classroom `sptlib.experiments.attention.LIVE`.
        encodings: of `ENCODINGS`; empty = all, at the classroom `LIVE_ENCODINGS`.
    """
    chosen = tuple(encodings) or (LIVE_ENCODINGS if preset == "classroom" else ENCODINGS)
    seeds = seeds or (LIVE_SEEDS if preset == "classroom" else N_SEEDS[preset])
    found = []
    for name in rows_of(preset, task, LIVE, ROWS):
        for seed in seeds_of(preset, seeds):
            base = base_run(preset, name, seed, n_layers)
            for encoding in chosen:
                # the sinusoidal ones are those of `attention`
                times = LOOKS[preset] if encoding == "sinusoidal" else 1
                runs = make(preset, name, base, _with(encoding), CHOSEN)
                found += [
                    Case({"task": name, "positions": encoding, "arm": arm}, watched(run, times))
                    for arm, run in zip(WHOLE, runs.values(), strict=True)
                ]
    return found


def candidates(preset: str, seeds: Sequence[int]) -> list[Case]:
    """The search for label rates with the encodings that have not been searched elsewhere."""
    arms = {}
    for encoding in ENCODINGS[1:]:
        arms |= _with(encoding)
    return searched(preset, seeds, lambda name: arms, RATES)


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per Run: task, positions, arm, seed, accuracies, measures of attention."""
    return frame(results, GROUP_BY)


def named(table: pd.DataFrame) -> pd.DataFrame:
    """The table with arms named by their encoding, too: ``"SPT, rope"``."""
    if table.empty:
        return table
    return table.assign(arm=table["arm"] + ", " + table["positions"])
