"""12: where do both losses push attention, before and after the rest of the model is fitted?

The theorems are about uniform attention. Here both losses are differentiated with respect to the
attention scores of the real models, with residual, LayerNorm and MLP. With W_Q = W_K = 0 attention
is uniform and stays so, since neither has a gradient while the other is zero: training then fits
everything but attention, by reconstruction or by labels. Beside it stands the usual random start.
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import torch

from sptlib import watch
from sptlib.analysis import population
from sptlib.config import Run
from sptlib.experiments.ablation import (
    NEIGHBOR,
    SCRATCH,
    Arm,
    base_run,
    make,
    rows_of,
    scratch,
    seeds_of,
)
from sptlib.experiments.ablation import QUICK as QUICK
from sptlib.experiments.attention import LIVE, N_SEEDS, signal
from sptlib.experiments.base import Case, Result, frame, with_steps
from sptlib.tasks import NeighborConfig

NAME = "theory"
GROUP_BY = ["task", "arm"]

#: the Runs: uniform attention, trained by labels, or pretrained and then measured at once; and the
#: random start
BY_LABELS, BY_RECONSTRUCTION, RANDOM = "labels", "reconstruction", "random start"


def _uniform(base: Run) -> Run:
    return replace(base, model=replace(base.model, init="uniform"))


ARMS = {
    BY_LABELS: Arm(lambda base: scratch(base, init="uniform"), SCRATCH),
    BY_RECONSTRUCTION: Arm(lambda base: with_steps(_uniform(base), 1), SCRATCH),
    RANDOM: Arm(lambda base: with_steps(scratch(base), 1), SCRATCH),
}
#: what is measured, by its name: of which Run, at its start or its end; with uniform attention,
#: "fitted" is everything else
MOMENTS = {
    "random start": (RANDOM, "start"),
    "uniform": (BY_LABELS, "start"),
    "uniform, fitted by labels": (BY_LABELS, "end"),
    "uniform, fitted by reconstruction": (BY_RECONSTRUCTION, "start"),
}
START, FITTED_BY_LABELS, FITTED_BY_RECONSTRUCTION = list(MOMENTS)[1:]
LOSSES = ("label", "reconstruction")


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
        for seed in seeds_of(preset, seeds or N_SEEDS[preset]):
            base = base_run(preset, name, seed, n_layers)
            for arm, run in make(preset, name, base, ARMS, {}).items():
                finetune = replace(run.finetune, watch=1, stop_at=None)
                found.append(Case({"task": name, "arm": arm}, replace(run, finetune=finetune)))
    return found


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per Run: task, arm, seed, accuracies, measures of attention and forces."""
    return frame(results, GROUP_BY)


def forces(table: pd.DataFrame) -> pd.DataFrame:
    """One row per moment and loss: the force on attention there, from `table`.

    ``force``: towards near tokens, mean over batches; ``signal``: the same in standard deviations
    over batches; ``cosine`` of the mean force with that direction; ``blind``: the share of the mean
    gradient's square that has identical rows; ``arm`` is the loss and the moment.
    """
    rows = []
    for row in table.to_dict("records"):
        for moment, (arm, when) in MOMENTS.items():
            if row["arm"] != arm:
                continue
            for loss in LOSSES:
                of = f"{when}_{loss}_"
                rows.append(
                    {
                        "task": row["task"],
                        "moment": moment,
                        "loss": loss,
                        "arm": f"{loss}, {moment}",
                        "seed": row["seed"],
                        "key": row["key"],
                        "force": row[of + "force"],
                        "signal": signal(row, of.rstrip("_")),
                        "cosine": row[of + "cosine"],
                        "blind": row[of + "columns"],
                    }
                )
    return pd.DataFrame(rows)


def lags(results: Sequence[Result], moments: Sequence[str] = tuple(MOMENTS)) -> pd.DataFrame:
    """Both losses' mean forces by distance, at each of some `MOMENTS`.

    Returns:
        A row per Run, moment and loss: task, seed, ``arm`` (the loss and the moment), and ``lags``:
        forces at distances −10 … 10 (key − query), over the norm of the whole mean gradient.
    """
    rows = []
    for result in results:
        looks = [line for line in result.entry.metrics if "attention" in line]
        for moment in moments:
            arm, when = MOMENTS[moment]
            if result.labels["arm"] != arm:
                continue
            line = looks[0] if when == "start" else looks[-1]
            for loss in LOSSES:
                norm = line[loss]["norm"] or 1.0
                rows.append(
                    {
                        "task": result.labels["task"],
                        "arm": f"{loss}, {moment}",
                        "seed": result.entry.spec.seed,
                        "lags": [value / norm for value in line[loss]["lags"]],
                    }
                )
    return pd.DataFrame(rows, columns=["task", "arm", "seed", "lags"])


def predicted(reach: int = 10) -> pd.DataFrame:
    """The exact expected force of reconstruction by distance, on both variants of `neighbor`.

    Returns:
        A row per variant and values, for `sptlib.plots_mechanism.profiles`: ``arm`` says which V,
        ``lags`` the force over ‖V‖ (`sptlib.analysis.population`).
    """
    rows = []
    for name, steps in NEIGHBOR.items():
        config, ratio = NeighborConfig(steps=steps), watch.MASK.mask_ratio
        clean = population.neighbor_covariances(config)
        for arm, V in (
            ("V as it leaves zero", population.first_values(clean, ratio)),
            ("V that fits best", population.fitted_values(clean, ratio)),
            ("V = I", torch.eye(config.n_symbols, dtype=torch.float64)),
        ):
            _, force = population.force_profile(clean, V, ratio, reach)
            size = float(V.norm())
            rows.append({"task": name, "arm": arm, "seed": 0, "lags": [f / size for f in force]})
    return pd.DataFrame(rows)
