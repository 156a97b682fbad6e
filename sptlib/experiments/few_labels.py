"""02: how much is self-pretraining worth when labels are few?

Handwritten digits as sequences of 64 grey levels. Pretraining sees all training inputs and no
label; then a few labels are given. Arms: from scratch, SPT, and SPT whose pretraining saw only the
labelled images themselves, which separates "reconstruct first" from "more inputs".
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd

from sptlib import presets
from sptlib.config import Pretraining, Run
from sptlib.errors import ConfigError
from sptlib.experiments.base import (
    Case,
    Result,
    at_step,
    frame,
    label_steps,
    seed_list,
    with_steps,
)

NAME = "few_labels"
GROUP_BY = ["n_labels", "arm"]

#: labels given, by preset
LABELS = {
    "smoke": (24, 48),
    "classroom": (50, 200, 800),
    "study": (25, 50, 100, 200, 400, 800),
    "paper": (50, 100, 200, 400, 800),
}
#: the number of labels at which rates were chosen, the strict arm is run, and the headline is made
FOCUS = {"smoke": 48, "classroom": 200, "study": 200, "paper": 200}

#: presets in which scratch with equal total steps, and the strict arm, are run at the headline's
#: number of labels only, to save time; elsewhere scratch then has SPT's label steps
FOCUS_ONLY = ("classroom",)

#: grid from which the pretraining's and every arm's label rate was chosen
RATES = (2e-3, 5e-3, 1e-2)
#: the chosen rates (data/tuning/few_labels.csv; a test compares)
CHOSEN = {"pretraining": 1e-2, "scratch": 1e-2, "SPT": 1e-2}
STRICT = "SPT, labelled images only"


def base_run(preset: str, n_labels: int, seed: int, n_layers: int = 0) -> Run:
    """The self-pretrained Run with this many labels, with the preset's number of label steps."""
    run = presets.get(preset, "image")
    labels = run.task.n_labels or run.task.n_train
    epochs = run.finetune.epochs * labels / n_labels  # the same steps, whatever there is to see
    return replace(
        run,
        seed=seed,
        task=replace(run.task, n_labels=n_labels),
        model=replace(run.model, n_layers=n_layers or run.model.n_layers),
        pretrain=replace(run.pretrain, lr=CHOSEN["pretraining"]),
        finetune=replace(run.finetune, epochs=epochs),
    )


def scratch(base: Run) -> Run:
    """From scratch, for as many steps as SPT takes in both stages together."""
    both = base.pretrain.n_steps(base.task.n_train) + label_steps(base)
    return with_steps(replace(base, pretrain=None), both)


def strict(base: Run) -> Run:
    """SPT that never sees an unlabelled image: as many steps, on the labelled ones only."""
    epochs = base.pretrain.epochs * base.task.n_train / base.task.n_labels
    return replace(base, pretrain=replace(base.pretrain, epochs=epochs, labelled_only=True))


ARMS: dict[str, Callable[[Run], Run]] = {
    "scratch": scratch,
    "SPT": lambda base: base,
    STRICT: strict,
}


def make(arm: str, base: Run) -> Run:
    """The Run of an arm, at the rate chosen for it (the strict arm has SPT's)."""
    run = ARMS[arm](base)
    return replace(run, finetune=replace(run.finetune, lr=CHOSEN.get(arm, CHOSEN["SPT"])))


def focus(preset: str, table: pd.DataFrame) -> int:
    """The number of labels of the headline: the preset's if it was run, else the largest."""
    wanted = FOCUS[presets.check(preset)]
    return wanted if wanted in set(table["n_labels"]) else int(table["n_labels"].max())


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
    found = []
    for n in labels or LABELS[presets.check(preset)]:
        whole = n == FOCUS[preset] or preset not in FOCUS_ONLY
        for base in (
            base_run(preset, n, s, n_layers) for s in seed_list(seeds or presets.n_seeds(preset))
        ):
            found.append(Case({"n_labels": n, "arm": "SPT"}, make("SPT", base)))
            run = make("scratch", base)
            run = run if whole else with_steps(run, label_steps(base))
            found.append(Case({"n_labels": n, "arm": "scratch"}, run))
            if whole:
                found.append(Case({"n_labels": n, "arm": STRICT}, make(STRICT, base)))
    return found


def candidates(preset: str, seeds: Sequence[int]) -> list[Case]:
    """The search for label rates: every arm with every rate of the grid, at the focal number."""
    found = []
    for base in (base_run(preset, FOCUS[preset], seed) for seed in seeds):
        for arm in ("scratch", "SPT"):
            run = make(arm, base)
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
        for lr in RATES
    ]


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per Run, with two further accuracies.

    ``at_equal_labels`` is the one after SPT's label steps; ``at_equal_total`` the one after as many
    steps as SPT takes in both stages, NaN where that was not run.
    """
    rows = frame(results)
    steps = {
        r.labels["n_labels"]: label_steps(r.entry.spec) for r in results if r.labels["arm"] == "SPT"
    }
    rows["at_equal_labels"] = [at_step(r.entry, steps[r.labels["n_labels"]]) for r in results]
    enough = [
        r.labels["arm"] != "scratch" or label_steps(r.entry.spec) > steps[r.labels["n_labels"]]
        for r in results
    ]
    rows["at_equal_total"] = rows["test_accuracy"].where(enough)
    return rows
