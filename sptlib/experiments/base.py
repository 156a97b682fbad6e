"""What the experiments share: arms derived from one Run, and tables read from entries."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from sptlib.config import Run
from sptlib.errors import ConfigError, StoreError
from sptlib.export import Shipped, Study
from sptlib.store import Entry, Store
from sptlib.sweep import compute_all
from sptlib.tables import flat as flat  # it lived here


@dataclass(frozen=True)
class Case:
    """A Run with its place in the experiment.

    Attributes:
        labels: the cell of the table it belongs to, e.g. ``{"variant": ..., "arm": ...}``.
        run: what is computed.
    """

    labels: dict[str, Any]
    run: Run


@dataclass(frozen=True)
class Result:
    """A case with its stored result."""

    labels: dict[str, Any]
    entry: Entry | Shipped


def collect(cases: Sequence[Case], store: Store, **options) -> list[Result]:
    """The results of all cases; what is not stored yet is computed.

    Args:
        cases: of an experiment's ``cases(...)``.
        store: where results are.
        **options: of `sptlib.sweep.compute_all`: scheduler, workers, device, recompute.
    """
    return paired(cases, compute_all([case.run for case in cases], store, **options))


def paired(cases: Sequence[Case], entries: Sequence[Entry]) -> list[Result]:
    """The results of cases, from their entries in the same order."""
    return [Result(case.labels, entry) for case, entry in zip(cases, entries, strict=True)]


def shipped(cases: Sequence[Case], study: Study) -> list[Result]:
    """The results of those cases that a study has; nothing is computed."""
    found = [(case, study.get(case.run)) for case in cases]
    return [Result(case.labels, entry) for case, entry in found if entry is not None]


def stored(cases: Sequence[Case], store: Store) -> list[Entry]:
    """Every stored training behind these cases, pretrainings included, each once.

    Raises:
        StoreError: if one is missing.
    """
    specs = [spec for case in cases for spec in (case.run.pretraining, case.run) if spec]
    found = {}
    for spec in specs:
        entry = store.get(spec)
        if entry is None:
            raise StoreError(
                f"{store.path} lacks a training of seed {spec.seed}; compute the sweep first"
            )
        found[entry.key] = entry
    return list(found.values())


def seed_list(seeds: int) -> range:
    """Seeds 0 … n−1; raises `ConfigError` unless n ≥ 1."""
    if seeds < 1:
        raise ConfigError(f"seeds must be at least 1, found {seeds}")
    return range(seeds)


def with_steps(run: Run, n_steps: int, **changes) -> Run:
    """The Run with this many label steps, evaluated as often per step as before.

    Args:
        run: the start.
        n_steps: optimiser steps of the second stage.
        **changes: further fields of ``finetune``.
    """
    finetune = replace(run.finetune, **changes)
    epochs = n_steps * min(finetune.batch_size, run.n_sequences) / run.n_sequences
    n_evals = max(1, round(run.finetune.n_evals * n_steps / run.n_steps))
    return replace(run, finetune=replace(finetune, epochs=epochs, n_evals=n_evals))


def losses(entry: Entry, stage: str, window: int = 25) -> pd.DataFrame:
    """The training loss of each step, averaged over a trailing window: columns step, loss.

    Args:
        entry: stored, or shipped with a thinned log, whose lines are means over several steps.
        stage: "pretrain" or "finetune".
        window: in steps.
    """
    lines = [x for x in entry.metrics if x["stage"] == stage and "loss" in x]
    table = pd.DataFrame({"step": [x["step"] for x in lines], "loss": [x["loss"] for x in lines]})
    spacing = int(table["step"].diff().median()) if len(table) > 1 else 1
    table["loss"] = table["loss"].rolling(max(1, window // spacing), min_periods=1).mean()
    return table


def evaluations(entry: Entry) -> pd.DataFrame:
    """The evaluations of a Run: step, validation values, and the test accuracy of the best so far.

    The row of step k is what a training of k steps would have reported: its best validation
    checkpoint, and that checkpoint's test accuracy.
    """
    table = pd.DataFrame([x for x in entry.metrics if "best" in x])
    tested = [c for c in table if c.startswith("test_")]
    table[tested] = table[tested].ffill()
    return table


def frame(results: Sequence[Result], by: Sequence[str] = ()) -> pd.DataFrame:
    """One row per Run: its labels, seed, steps, accuracies, losses and seconds.

    Args:
        results: of an experiment.
        by: columns that are there even without a result.
    """
    if not results:
        return pd.DataFrame(columns=[*by, "seed", "steps", "test_accuracy"])
    rows = []
    for result in results:
        values = {k: v for k, v in result.entry.result.items() if not isinstance(v, list)}
        rows.append(
            {
                **result.labels,
                "seed": result.entry.spec.seed,
                **values,
                "seconds": result.entry.environment["seconds"],
                "key": result.entry.key,
            }
        )
    return pd.DataFrame(rows)
