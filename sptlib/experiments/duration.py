"""05: how long must pretraining be?

The task `neighbor`. Pretraining of several lengths, each followed by the same training from labels;
beside each, training from scratch with as many steps as both stages have together. Coser et al.
(2026) try 1, 10, 50, 100 and 200 epochs; smaller presets take the same shares of their own length.
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from sptlib import presets
from sptlib.config import Run
from sptlib.errors import ConfigError
from sptlib.experiments import synthetic
from sptlib.experiments.base import Case, Result, frame, seed_list

NAME = "duration"
GROUP_BY = ["epochs", "arm"]

#: published lengths (epochs), and the longest of them
PUBLISHED = (0, 1, 10, 50, 100, 200)
FULL = PUBLISHED[-1]
#: the arms: no pretraining, pretraining, and its steps spent on labels
NONE, SPT, SCRATCH = "labels only", "SPT", "scratch, equal total steps"
CHANCE = synthetic.CHANCE


def lengths(preset: str, pretrain_epochs: Sequence[float] = ()) -> tuple[float, ...]:
    """Epochs of pretraining, ascending: the given ones, else the published shares of the preset's.

    Of shares that come to the same number of steps, the largest is taken.

    Raises:
        ConfigError: for a negative number, or one that is named twice.
    """
    if any(epochs < 0 for epochs in pretrain_epochs) or len(set(pretrain_epochs)) != len(
        pretrain_epochs
    ):
        raise ConfigError(
            f"pretrain_epochs takes different numbers from 0 on, found {list(pretrain_epochs)}"
        )
    if pretrain_epochs:
        return tuple(sorted(map(float, pretrain_epochs)))
    base = presets.get(preset, "neighbor")
    by_steps = {0: 0.0}
    for epochs in (base.pretrain.epochs * published / FULL for published in PUBLISHED[1:]):
        by_steps[replace(base.pretrain, epochs=epochs).n_steps(base.task.n_inputs)] = epochs
    return tuple(by_steps.values())


def base_run(preset: str, epochs: float, seed: int, n_layers: int = 0) -> Run:
    """SPT with this many epochs of pretraining; 0 = without one."""
    run = synthetic.base_run(preset, next(iter(synthetic.VARIANTS.values())), seed, n_layers)
    pretrain = replace(run.pretrain, epochs=epochs) if epochs else None
    arm = "SPT" if epochs else "scratch"
    finetune = replace(run.finetune, lr=synthetic.CHOSEN[arm])
    return replace(run, pretrain=pretrain, finetune=finetune)


def scratch(base: Run) -> Run:
    """From scratch, with as many label steps as this SPT takes steps in both stages together."""
    run = synthetic.scratch(base)
    return replace(run, finetune=replace(run.finetune, lr=synthetic.CHOSEN["scratch"]))


def cases(
    preset: str = "classroom",
    seeds: int = 0,
    *,
    pretrain_epochs: Sequence[float] = (),
    n_layers: int = 0,
    task: str = "neighbor",
) -> list[Case]:
    """All Runs of the experiment.

    Args:
        preset: name of the preset.
        seeds: seeds 0 … n−1; 0 = the preset's number.
        pretrain_epochs: lengths of pretraining in epochs; empty = see `lengths`.
        n_layers: layers of the model; 0 = the preset's.
        task: `neighbor`, the only one whose arms are defined here.
    """
    if task != "neighbor":
        raise ConfigError(f"the experiment duration is about the task neighbor, found {task!r}")
    found = []
    for epochs in lengths(preset, pretrain_epochs):
        for seed in seed_list(seeds or presets.n_seeds(preset)):
            run = base_run(preset, epochs, seed, n_layers)
            if epochs:
                found.append(Case({"epochs": epochs, "arm": SPT}, run))
                found.append(Case({"epochs": epochs, "arm": SCRATCH}, scratch(run)))
            else:
                found.append(Case({"epochs": epochs, "arm": NONE}, run))
    return found


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per Run: epochs of pretraining, arm, seed, steps, accuracies, losses."""
    return frame(results)
