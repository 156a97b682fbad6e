"""One module per question of the paper.

Each has ``cases(preset, seeds, ...)`` (Runs with their labels), ``table(results)`` (a row per Run),
``GROUP_BY`` (the labels that name a cell of the table), and, where rates were searched,
``TUNED_AT`` (the preset), ``RATES``, ``CHOSEN`` and ``candidates(preset, seeds)`` for
`sptlib.tuning`.
"""

from types import ModuleType

from sptlib.errors import unknown
from sptlib.experiments import (
    attention,
    depth,
    dose,
    duration,
    few_labels,
    freezing,
    polarization,
    positions,
    replication,
    source,
    synthetic,
    theory,
    transfer,
)

EXPERIMENTS: dict[str, ModuleType] = {
    "synthetic": synthetic,
    "few_labels": few_labels,
    "replication": replication,
    "duration": duration,
    "depth": depth,
    "source": source,
    "freezing": freezing,
    "transfer": transfer,
    "attention": attention,
    "positions": positions,
    "theory": theory,
    "dose": dose,
    "polarization": polarization,
}
#: those whose trainings are `sptlib.config.Run`; the others are another system's
OF_RUNS = {name: module for name, module in EXPERIMENTS.items() if module is not polarization}


def get(name: str) -> ModuleType:
    """An experiment by name; raises `ConfigError` with a suggestion."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
