"""10: what does attention look at, at the start, after reconstruction, and after labels?

Training from scratch and SPT on `neighbor` and on two real tasks, both stages watched: attention is
measured along the way, and so is where both losses push it (`sptlib.watch`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from sptlib import watch
from sptlib.config import Run
from sptlib.experiments.ablation import (
    NEIGHBOR,
    SCRATCH,
    SPT,
    WHOLE,
    base_run,
    make,
    rows_of,
    seeds_of,
)
from sptlib.experiments.ablation import QUICK as QUICK
from sptlib.experiments.base import Case, Result, frame, losses
from sptlib.export import Study
from sptlib.store import Store

NAME = "attention"
GROUP_BY = ["task", "arm"]

#: what is compared, by name: of which arm, at the start or at the end of its label steps
MOMENTS = {
    "random start": (SCRATCH, "start"),
    "after labels alone": (SCRATCH, "end"),
    "after SPT": (SPT, "start"),
    "after SPT and labels": (SPT, "end"),
}
#: the measures of a moment
MEASURES = (
    "proximity", "uniform", "entropy", "diagonality", "toeplitz", "position", "alibi", "rope",
    "symmetric",
)  # fmt: skip
#: rows of the classroom
LIVE = ("Neighbor +1 / +3",)
#: seeds of each preset
N_SEEDS = {"smoke": 2, "classroom": 5, "study": 10, "paper": 5}
#: looks at each training, besides the one at its start
LOOKS = {"smoke": 2, "classroom": 20, "study": 20, "paper": 20}


def watched(run: Run, times: int) -> Run:
    """The Run with both stages watched, and with all its label steps."""
    pretrain = run.pretrain and replace(run.pretrain, watch=times)
    finetune = replace(run.finetune, watch=times, stop_at=None)
    return replace(run, pretrain=pretrain, finetune=finetune)


def cases(
    preset: str = "classroom",
    seeds: int = 0,
    *,
    n_layers: int = 0,
    task: str = "",
    looks: int = 0,
) -> list[Case]:
    """All Runs of the experiment.

    Args:
        preset: name of the preset.
        seeds: seeds 0 … n−1; 0 = the preset's number.
        n_layers: layers of the model; 0 = the preset's.
        task: a row or a recipe; "" = `QUICK`, at the classroom `LIVE`, at `paper` the five tasks of
            the Long Range Arena and `neighbor`.
        looks: at each training besides its start; 0 = the preset's number.
    """
    names = rows_of(preset, task, LIVE, QUICK)
    if preset == "paper" and not task:  # the synthetic task has no published size
        names = (*NEIGHBOR, *names)
    return [
        Case({"task": name, "arm": arm}, watched(run, looks or LOOKS[preset]))
        for name in names
        for seed in seeds_of(preset, seeds or N_SEEDS[preset])
        for base in [base_run(preset, name, seed, n_layers)]
        for arm, run in make(preset, name, base, WHOLE, {}).items()
    ]


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per Run: its labels, accuracies, and the measures of its attention.

    ``start_`` is where labels begin (for SPT: after the pretraining), ``end_`` after the last label
    step; without prefix they are those of the weights that were best on the validation sequences.
    """
    return frame(results, GROUP_BY)


def moments(table: pd.DataFrame) -> pd.DataFrame:
    """The measures of attention at each of `MOMENTS`, from `table`.

    Returns:
        A row per Run and moment: its labels, seed, ``arm`` (the moment), `MEASURES`, and ``times``,
        the attention on near tokens as a multiple of uniform attention's.
    """
    rows = [
        {
            **{k: row[k] for k in ("task", "positions", "seed", "key") if k in row},
            "arm": moment,
            **{name: row[f"{when}_{name}"] for name in MEASURES},
            "times": row[f"{when}_proximity"] / row[f"{when}_uniform"],
        }
        for row in table.to_dict("records")
        for moment, (arm, when) in MOMENTS.items()
        if row["arm"] == arm
    ]
    return pd.DataFrame(rows, columns=None if rows else ["task", "seed", "arm", *MEASURES, "times"])


def ends(looks: pd.DataFrame) -> pd.DataFrame:
    """The looks at each of `MOMENTS`, which ``arm`` names: the first and the last at labels."""
    if looks.empty:
        return looks
    labels = looks[looks["stage"] == "finetune"].sort_values("step")
    found = []
    for moment, (arm, when) in MOMENTS.items():
        by_run = labels[labels["arm"] == arm].groupby(["task", "seed"], sort=False)
        some = by_run.head(1) if when == "start" else by_run.tail(1)
        found.append(some.assign(arm=moment))
    return pd.concat(found, ignore_index=True)


def without_oneself(ends: pd.DataFrame, reach: int = 2) -> pd.DataFrame:
    """Attention at each of `MOMENTS` on the query's own place, and on near places but that.

    Args:
        ends: of `ends`.
        reach: near places, on either side, along the sequence.

    Returns:
        The rows with ``own``, the mean weight of the own place, and ``others``, the sum of the mean
        weights at distances 1 … reach to the left and to the right.
    """
    if ends.empty:
        return ends.assign(own=[], others=[])
    middle = len(ends["profile"].iloc[0]) // 2
    near = slice(max(0, middle - reach), middle + reach + 1)
    own = [profile[middle] for profile in ends["profile"]]
    both = [sum(profile[near]) for profile in ends["profile"]]
    return ends.assign(own=own, others=[b - o for b, o in zip(both, own, strict=True)])


def looks(results: Sequence[Result], place: Store | Study) -> pd.DataFrame:
    """Every look at every training, pretrainings included.

    Args:
        results: watched Runs.
        place: where their pretrainings are.

    Returns:
        One row per look: the Run's labels, seed, ``stage`` ("pretrain" or "finetune"), ``step``,
        ``loss`` (of training, mean over some steps before), the measures of `sptlib.watch.summary`,
        both losses' signals (force over its noise), movements of parameter groups, the profile of
        attention and both forces by distance.
    """
    rows: list[dict[str, Any]] = []
    for result in results:
        run = result.entry.spec
        before = place.get(run.pretraining) if result.labels["arm"] == SPT else None
        for entry in filter(None, (before, result.entry)):
            stage = "finetune" if entry is result.entry else "pretrain"
            curve = losses(entry, stage).set_index("step")["loss"]
            rows += [
                {
                    **result.labels,
                    "seed": run.seed,
                    **{k: line[k] for k in ("stage", "step")},
                    "loss": float(curve.asof(max(line["step"], curve.index[0]))),
                    **(found := watch.summary(line)),
                    **{f"{n}_signal": signal(found, n) for n in ("label", "reconstruction")},
                    **{f"moved_{group}": moved for group, moved in line["moved"].items()},
                    "profile": line["attention"]["profile"],
                    "label_lags": line["label"]["lags"],
                    "reconstruction_lags": line["reconstruction"]["lags"],
                }
                for line in entry.metrics
                if "attention" in line
            ]
    return pd.DataFrame(rows)


def signal(found: dict[str, float], loss: str) -> float:
    """A loss's force in standard deviations over batches; 0 without noise.

    Args:
        found: has ``LOSS_force`` and ``LOSS_noise``.
        loss: "label" or "reconstruction", with a prefix if the names have one.
    """
    noise = found[f"{loss}_noise"]
    return found[f"{loss}_force"] / noise if noise else 0.0


#: what is followed through the pretraining, in the order in which the theory expects it
PHASES = {
    "values and output moved": "moved_vo",
    "force of reconstruction": "reconstruction_cosine",
    "queries and keys moved": "moved_qk",
    "loss": "loss",
    "attention on near tokens": "proximity",
}


def onsets(looks: pd.DataFrame) -> pd.DataFrame:
    """When, in the pretraining, each of `PHASES` has done half of its way.

    Args:
        looks: of `looks`.

    Returns:
        A row per task, seed and phase (``arm``): ``step``, the first one, interpolated between
        looks, at which the value is halfway between its start and its farthest point from there.
        NaN where it never moves.
    """
    rows = []
    spt = looks[looks["stage"] == "pretrain"] if len(looks) else looks
    for (task, seed), some in spt.groupby(["task", "seed"], sort=False) if len(spt) else ():
        some = some.sort_values("step")
        for phase, column in PHASES.items():
            away = (some[column] - some[column].iloc[0]).abs().to_numpy()
            step, half = some["step"].to_numpy(), away.max() / 2
            after = int((away >= half).argmax()) if half > 0 else 0
            at = float("nan")
            if after:
                share = (half - away[after - 1]) / (away[after] - away[after - 1])
                at = step[after - 1] + share * (step[after] - step[after - 1])
            rows.append({"task": task, "seed": seed, "arm": phase, "step": float(at)})
    return pd.DataFrame(rows, columns=["task", "seed", "arm", "step"])
