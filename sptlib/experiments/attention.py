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
from sptlib.experiments.ablation import QUICK as QUICK
from sptlib.experiments.ablation import SPT, WHOLE, base_run, make, rows_of, seeds_of
from sptlib.experiments.base import Case, Result, frame
from sptlib.export import Study
from sptlib.store import Store

NAME = "attention"
GROUP_BY = ["task", "arm"]

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
        task: a row or a recipe; "" = `QUICK`, at the classroom `LIVE`.
        looks: at each training besides its start; 0 = the preset's number.
    """
    return [
        Case({"task": name, "arm": arm}, watched(run, looks or LOOKS[preset]))
        for name in rows_of(preset, task, LIVE, QUICK)
        for seed in seeds_of(preset, seeds or N_SEEDS[preset])
        for base in [base_run(preset, name, seed, n_layers)]
        for arm, run in make(preset, name, base, WHOLE, {}).items()
    ]


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per Run: its labels, accuracies, and the measures of its attention.

    ``start_`` is where labels begin (for SPT: after the pretraining), ``end_`` after the last label
    step; without prefix they are those of the weights that were best on the validation sequences.
    """
    return frame(results)


def looks(results: Sequence[Result], place: Store | Study) -> pd.DataFrame:
    """Every look at every training, pretrainings included.

    Args:
        results: watched Runs.
        place: where their pretrainings are.

    Returns:
        One row per look: the Run's labels, seed, ``stage`` ("pretrain" or "finetune"), ``step``,
        the measures of `sptlib.watch.summary`, and ``lags`` (`force` by distance, by loss).
    """
    rows: list[dict[str, Any]] = []
    for result in results:
        run = result.entry.spec
        before = place.get(run.pretraining) if result.labels["arm"] == SPT else None
        for entry in filter(None, (before, result.entry)):
            rows += [
                {
                    **result.labels,
                    "seed": run.seed,
                    **{k: line[k] for k in ("stage", "step")},
                    **watch.summary(line),
                    **{f"moved_{group}": moved for group, moved in line["moved"].items()},
                    "profile": line["attention"]["profile"],
                    "label_lags": line["label"]["lags"],
                    "reconstruction_lags": line["reconstruction"]["lags"],
                }
                for line in entry.metrics
                if "attention" in line
            ]
    return pd.DataFrame(rows)
