"""The search for learning rates: the same grid for every arm, on seeds that are never reported.

Rates are chosen on seeds from 100 on; results are reported on seeds 0 … n−1. The whole table is
kept in ``data/tuning/EXPERIMENT.csv`` and shown in the book; the experiment's ``CHOSEN`` is what
follows from it, which a test checks.
"""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pandas as pd

from sptlib.config import digest
from sptlib.store import Entry

SEEDS = (100, 101, 102)


def seeds_of(experiment: ModuleType) -> Sequence[int]:
    """The seeds of an experiment's search: all, or fewer where its trainings are long."""
    return SEEDS[: getattr(experiment, "N_TUNING_SEEDS", len(SEEDS))]


def pretrainings(experiment: ModuleType, preset: str, seeds: Sequence[int]) -> list[tuple]:
    """The search for the pretraining's rate: labels and what to compute; none in an ablation."""
    search = getattr(experiment, "pretraining_candidates", None)
    return search(preset, seeds) if search else []


def runs(experiment: ModuleType, preset: str) -> list:
    """Every pretraining and Run of the search, pretrainings first."""
    seeds = seeds_of(experiment)
    return [spec for _, spec in pretrainings(experiment, preset, seeds)] + [
        case.run for case in experiment.candidates(preset, seeds)
    ]


def write(experiment: ModuleType, preset: str, entries: Sequence[Entry], root: Path) -> Path:
    """Write the table of the search, one row per training, to ``data/tuning``; returns its path.

    Args:
        experiment: whose search.
        preset: at which it was run.
        entries: of `runs`, in that order.
        root: of the checkout.
    """
    seeds = seeds_of(experiment)
    labels = [labels for labels, _ in pretrainings(experiment, preset, seeds)]
    labels += [case.labels for case in experiment.candidates(preset, seeds)]
    rows = []
    for what, entry in zip(labels, entries, strict=True):
        result = entry.result
        rows.append(
            {
                "preset": preset,
                **what,
                "seed": entry.spec.seed,
                "steps": result["steps"],
                "val_accuracy": result.get("val_accuracy"),
                "val_loss": result["val_loss"],
                "train_loss": result["train_loss"],
                "config": digest(entry.spec),
                "key": entry.key,
            }
        )
    path = root / "data" / "tuning" / f"{experiment.NAME}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
    return path


def read(name: str, root: Path) -> pd.DataFrame:
    """The table of an experiment's search."""
    return pd.read_csv(root / "data" / "tuning" / f"{name}.csv")


def choose(table: pd.DataFrame) -> dict[str, float]:
    """The best rate of every arm.

    The criterion is the mean over seeds (and variants): of the validation loss for a pretraining,
    of the validation accuracy, at its best checkpoint, for labels; equal accuracies are told apart
    by the validation loss, then the smaller rate wins.
    """
    means = table.groupby(["arm", "lr"], as_index=False)[["val_accuracy", "val_loss"]].mean()
    chosen = {}
    for arm, rows in means.groupby("arm", sort=False):
        by = ["val_loss", "lr"] if arm == "pretraining" else ["loses", "val_loss", "lr"]
        rows = rows.assign(loses=-rows["val_accuracy"])
        chosen[arm] = float(rows.sort_values(by)["lr"].iloc[0])
    return chosen


def choose_by(table: pd.DataFrame, column: str) -> dict[str, dict[str, float]]:
    """`choose` for each value of a column by itself, a task, say."""
    return {name: choose(rows) for name, rows in table.groupby(column, sort=False)}
