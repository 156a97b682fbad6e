"""01: can labels alone teach a Transformer to look at its neighbours?

The task `neighbor` in two variants. Arms: from scratch; self-pretrained (SPT); only W_Q and W_K, or
only the MLP, taken from the pretrained model; from scratch with ten times the data, and with fresh
data at every step; and settings in which scratch does get there.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd

from sptlib import presets
from sptlib.config import Pretraining, Run
from sptlib.errors import ConfigError
from sptlib.experiments.base import Case, Result, frame, seed_list, with_steps

NAME = "synthetic"
GROUP_BY = ["variant", "arm"]

#: the two variants, each with the classes' steps d
VARIANTS: dict[str, tuple[int, int]] = {"+1 / +3": (1, 3), "+1 / −1": (1, -1)}

#: the preset at which rates are searched
TUNED_AT = "classroom"
#: grid of the pretraining's rates, and the one of every arm's label rates
PRETRAIN_RATES = (2e-3, 5e-3, 1e-2)
RATES = (2e-3, 5e-3, 1e-2, 2e-2)
#: the chosen rates (data/tuning/synthetic.csv; a test compares)
CHOSEN = {
    "pretraining": 1e-2,
    "scratch": 1e-2,
    "SPT": 5e-3,
    "QK from SPT": 2e-3,
    "MLP from SPT": 5e-3,
}
CHANCE = 0.5


def scratch(base: Run) -> Run:
    """From scratch, with as many label steps as SPT takes steps in both stages together."""
    both = base.pretraining.n_steps + base.n_steps
    return with_steps(replace(base, pretrain=None), both, stop_at=None)


def _more_data(base: Run) -> Run:
    run = scratch(base)  # ten times the data, so a tenth of the epochs for the same steps
    return replace(
        run,
        task=replace(run.task, n_train=10 * run.task.n_train),
        finetune=replace(run.finetune, epochs=run.finetune.epochs / 10),
    )


def _fresh_data(base: Run) -> Run:
    run = scratch(base)
    return replace(run, task=replace(run.task, fresh=True))


def _escape(base: Run, times: int = 1, batches: int = 1, **model) -> Run:
    """Scratch, changed such that it may get there, and stopped once it is."""
    run = scratch(base)
    run = replace(run, model=replace(run.model, **model))
    return with_steps(
        run, times * run.n_steps, stop_at=0.99, batch_size=batches * run.finetune.batch_size
    )


ARMS: dict[str, Callable[[Run], Run]] = {
    "scratch": scratch,
    "SPT": lambda base: base,
    "QK from SPT": lambda base: replace(base, transfer=("qk",)),
    "MLP from SPT": lambda base: replace(
        base, transfer=("mlp",), finetune=replace(base.finetune, stop_at=None)
    ),
    "scratch, 10× data": _more_data,
    "scratch, fresh data": _fresh_data,
    "scratch, 2× longer": lambda base: _escape(base, times=2),
    "scratch, 4× batch": lambda base: _escape(base, batches=4),
    "scratch, RoPE": lambda base: _escape(base, positions="rope"),
}
#: the arms of both variants
MAIN_ARMS = ("scratch", "SPT", "QK from SPT", "MLP from SPT")
#: asked of the first variant only: does more data help, and where does scratch escape?
DATA_ARMS = ("scratch, 10× data", "scratch, fresh data")
ESCAPE_ARMS = ("scratch, 2× longer", "scratch, 4× batch", "scratch, RoPE")


def base_run(preset: str, steps: tuple[int, int], seed: int, n_layers: int = 0) -> Run:
    """The self-pretrained Run that the arms are derived from; n_layers 0 = the preset's.

    Training from labels stops once all validation sequences are right: more steps change nothing.
    """
    run = presets.get(preset, "neighbor")
    return replace(
        run,
        seed=seed,
        task=replace(run.task, steps=steps),
        model=replace(run.model, n_layers=n_layers or run.model.n_layers),
        pretrain=replace(run.pretrain, lr=CHOSEN["pretraining"]),
        finetune=replace(run.finetune, stop_at=1.0),
    )


def make(arm: str, base: Run) -> Run:
    """The Run of an arm, at the rate chosen for it (a variation of scratch has scratch's)."""
    run = ARMS[arm](base)
    lr = CHOSEN.get(arm, CHOSEN["scratch"])
    return replace(run, finetune=replace(run.finetune, lr=lr))


def cases(
    preset: str = "classroom",
    seeds: int = 0,
    *,
    n_layers: int = 0,
    task: str = "neighbor",
    arms: Sequence[str] = tuple(ARMS),
) -> list[Case]:
    """All Runs of the experiment.

    Args:
        preset: name of the preset.
        seeds: seeds 0 … n−1; 0 = the preset's number.
        n_layers: layers of the model; 0 = the preset's.
        task: `neighbor`, the only one whose arms are defined here.
        arms: names of the wanted arms.
    """
    if task != "neighbor":
        raise ConfigError(
            f"the experiment synthetic is about the task neighbor, found {task!r}; "
            "few_labels takes image"
        )
    return [
        Case({"variant": variant, "arm": arm}, make(arm, base_run(preset, steps, seed, n_layers)))
        for variant, steps in VARIANTS.items()
        for seed in seed_list(seeds or presets.n_seeds(preset))
        for arm in arms
        if arm in MAIN_ARMS or variant == next(iter(VARIANTS))
    ]


def candidates(preset: str, seeds: Sequence[int]) -> list[Case]:
    """The search for label rates: every tuned arm with every rate of the grid."""
    found = []
    for variant, steps in VARIANTS.items():
        for base in (base_run(preset, steps, seed) for seed in seeds):
            for arm in MAIN_ARMS:
                run = make(arm, base)
                found += [
                    Case(
                        {"variant": variant, "arm": arm, "lr": lr},
                        replace(run, finetune=replace(run.finetune, lr=lr)),
                    )
                    for lr in RATES
                ]
    return found


def pretraining_candidates(preset: str, seeds: Sequence[int]) -> list[tuple[dict, Pretraining]]:
    """The search for the pretraining's rate, by its own validation loss: no label is seen."""
    found = []
    for variant, steps in VARIANTS.items():
        for base in (base_run(preset, steps, seed) for seed in seeds):
            found += [
                (
                    {"variant": variant, "arm": "pretraining", "lr": lr},
                    replace(base, pretrain=replace(base.pretrain, lr=lr)).pretraining,
                )
                for lr in PRETRAIN_RATES
            ]
    return found


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per Run: variant, arm, seed, steps, accuracies, losses."""
    return frame(results)
