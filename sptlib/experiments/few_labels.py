"""02: how much is self-pretraining worth when labels are few?

Handwritten digits as sequences of 64 grey levels. Pretraining sees all training inputs and no
label; then a few labels are given. Arms: SPT; from scratch, with as many steps as SPT takes in both
stages, and with SPT's label steps only; and SPT whose pretraining saw only the labelled images
themselves, which separates "reconstruct first" from "more inputs".
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd

from sptlib import presets
from sptlib.config import Pretraining, Run
from sptlib.errors import ConfigError
from sptlib.experiments.base import Case, Result, frame, seed_list, with_steps

NAME = "few_labels"
GROUP_BY = ["n_labels", "arm"]

#: labels given, by preset
LABELS = {
    "smoke": (24, 48),
    "classroom": (50, 200, 800),
    "study": (25, 50, 100, 200, 400, 800),
    "paper": (50, 100, 200, 400, 800),
}
#: the number of labels at which rates were chosen and the headline is made
FOCUS = {"smoke": 48, "classroom": 200, "study": 200, "paper": 200}

#: the preset at which rates are searched
TUNED_AT = "classroom"
#: grid of the pretraining's rates, and the one of every arm's label rates
PRETRAIN_RATES = (2e-3, 5e-3, 1e-2)
RATES = (2e-3, 5e-3, 1e-2, 2e-2)
#: the chosen rates (data/tuning/few_labels.csv; a test compares); `paper` keeps the published ones
CHOSEN = {"pretraining": 1e-2, "scratch": 1e-2, "SPT": 1e-2}

SHORT = "scratch, SPT's label steps"
STRICT = "SPT, labelled images only"


def base_run(preset: str, n_labels: int, seed: int, n_layers: int = 0) -> Run:
    """The self-pretrained Run with this many labels, with the preset's number of label steps."""
    run = presets.get(preset, "image")
    steps = run.n_steps  # the same whatever there is to see
    lr = run.pretrain.lr if preset == "paper" else CHOSEN["pretraining"]
    run = replace(
        run,
        seed=seed,
        task=replace(run.task, n_labels=n_labels),
        model=replace(run.model, n_layers=n_layers or run.model.n_layers),
        pretrain=replace(run.pretrain, lr=lr),
    )
    resized = with_steps(run, steps).finetune
    return replace(run, finetune=replace(resized, n_evals=run.finetune.n_evals))


def scratch(base: Run) -> Run:
    """From scratch, for as many steps as SPT takes in both stages together."""
    both = base.pretraining.n_steps + base.n_steps
    return with_steps(replace(base, pretrain=None), both)


def strict(base: Run) -> Run:
    """SPT that never sees an unlabelled image: as many steps, on the labelled ones only."""
    size = base.pretrain.batch_size
    shrunk = min(size, base.task.n_labels) / min(size, base.task.n_train)
    epochs = base.pretrain.epochs * base.task.n_train / base.task.n_labels * shrunk
    return replace(base, pretrain=replace(base.pretrain, epochs=epochs, labelled_only=True))


ARMS: dict[str, Callable[[Run], Run]] = {
    "SPT": lambda base: base,
    SHORT: lambda base: replace(base, pretrain=None),
    "scratch": scratch,
    STRICT: strict,
}
#: in the classroom these are run at one number of labels only, to save time
LONG_ARMS = ("scratch", STRICT)
#: whose rate an arm has that was not searched for itself
RATE_OF = {SHORT: "scratch", STRICT: "SPT"}


def make(arm: str, base: Run, preset: str) -> Run:
    """The Run of an arm, at the rate chosen for it; `paper` keeps the published rate."""
    run = ARMS[arm](base)
    if preset == "paper":
        return run
    return replace(run, finetune=replace(run.finetune, lr=CHOSEN[RATE_OF.get(arm, arm)]))


def focus(preset: str, labels: Sequence[int] = ()) -> int:
    """The number of labels of the headline: the preset's if it is run, else the largest."""
    wanted = FOCUS[presets.check(preset)]
    return wanted if wanted in (labels or LABELS[preset]) else max(labels)


def cases(
    preset: str = "classroom",
    seeds: int = 0,
    *,
    n_layers: int = 0,
    task: str = "image",
    labels: Sequence[int] = (),
) -> list[Case]:
    """All Runs of the experiment.

    Args:
        preset: name of the preset.
        seeds: seeds 0 … n−1; 0 = the preset's number.
        n_layers: layers of the model; 0 = the preset's.
        task: `image`.
        labels: numbers of labels; empty = the preset's.
    """
    if task != "image":
        raise ConfigError(
            f"the experiment few_labels is about the task image, found {task!r}; "
            "synthetic takes neighbor"
        )
    main = focus(preset, labels)
    return [
        Case({"n_labels": n, "arm": arm}, make(arm, base_run(preset, n, seed, n_layers), preset))
        for n in (labels or LABELS[preset])
        for seed in seed_list(seeds or presets.n_seeds(preset))
        for arm in ARMS
        if n == main or arm not in LONG_ARMS or preset != "classroom"
    ]


def candidates(preset: str, seeds: Sequence[int]) -> list[Case]:
    """The search for label rates: SPT and scratch with every rate, at the headline's number."""
    found = []
    for base in (base_run(preset, FOCUS[preset], seed) for seed in seeds):
        for arm in ("scratch", "SPT"):
            run = make(arm, base, preset)
            found += [
                Case(
                    {"n_labels": FOCUS[preset], "arm": arm, "lr": lr},
                    replace(run, finetune=replace(run.finetune, lr=lr)),
                )
                for lr in RATES
            ]
    return found


def pretraining_candidates(preset: str, seeds: Sequence[int]) -> list[tuple[dict, Pretraining]]:
    """The search for the pretraining's rate, by its own validation loss: no label is seen."""
    bases = [base_run(preset, FOCUS[preset], seed) for seed in seeds]
    return [
        (
            {"n_labels": FOCUS[preset], "arm": "pretraining", "lr": lr},
            replace(base, pretrain=replace(base.pretrain, lr=lr)).pretraining,
        )
        for base in bases
        for lr in PRETRAIN_RATES
    ]


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per Run: number of labels, arm, seed, steps, accuracies, losses."""
    return frame(results)
