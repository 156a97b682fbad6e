"""04: does self-pretraining beat training from scratch on the tasks of the Long Range Arena?

Small versions of the five tasks, and one more label of the same texts. Arms: SPT; and from scratch,
with as many steps as SPT takes in both stages. Since the rate is constant after the warm-up, the
same training from scratch also tells what SPT's number of label steps gives, where one of its
evaluations falls there; `frame_short` reads it off.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd

from sptlib import presets
from sptlib.config import Pretraining, Run
from sptlib.errors import unknown
from sptlib.experiments import few_labels
from sptlib.experiments.base import (
    Case,
    Result,
    evaluations,
    frame,
    seed_list,
    with_steps,
)

NAME = "replication"
GROUP_BY = ["task", "arm"]

#: the recipe of each row of the table
TASKS: dict[str, str] = {
    "ListOps": "listops",
    "Image": "image",
    "Pathfinder": "pathfinder",
    "Retrieval": "retrieval",
    "Text": "text",
    "Text, direction": "text:direction",
}
#: what is run live at the classroom preset, to save time
LIVE = ("Image", "Text, direction")
#: accuracy of guessing, by task; the classes are about equally frequent
CHANCE = {name: 0.1 if name in ("ListOps", "Image") else 0.5 for name in TASKS}
#: and its loss (nats)
GUESSING = {name: -math.log(share) for name, share in CHANCE.items()}

#: seeds 0 … n−1 of each preset; some of the study's trainings take minutes
N_SEEDS = {**presets.N_SEEDS, "study": 5}
#: where a training of the study takes less than half a minute on a CPU core
QUICK = ("Image", "Text, direction")

#: the preset at which rates are searched, and how many seeds the search has
TUNED_AT = "study"
N_TUNING_SEEDS = 2
PRETRAIN_RATES = (2e-3, 5e-3, 1e-2)
RATES = (1e-3, 2e-3, 5e-3)
#: the chosen rates (data/tuning/replication.csv; a test compares); `paper` keeps published ones.
#: Image is the headline of `few_labels`, where its rates were searched
CHOSEN: dict[str, dict[str, float]] = {
    "ListOps": {"pretraining": 5e-3, "scratch": 1e-3, "SPT": 2e-3},
    "Image": few_labels.CHOSEN,
    "Pathfinder": {"pretraining": 5e-3, "scratch": 5e-3, "SPT": 1e-3},
    "Retrieval": {"pretraining": 5e-3, "scratch": 1e-3, "SPT": 1e-3},
    "Text": {"pretraining": 5e-3, "scratch": 2e-3, "SPT": 1e-3},
    "Text, direction": {"pretraining": 5e-3, "scratch": 5e-3, "SPT": 2e-3},
}
#: whose rates were searched here
SEARCHED = tuple(name for name in TASKS if name != "Image")

SHORT = few_labels.SHORT


def base_run(preset: str, task: str, seed: int, n_layers: int = 0) -> Run:
    """The self-pretrained Run of a row of the table, at the rate chosen for its pretraining."""
    run = presets.get(preset, TASKS[task])
    lr = run.pretrain.lr if preset == "paper" else CHOSEN[task]["pretraining"]
    return replace(
        run,
        seed=seed,
        model=replace(run.model, n_layers=n_layers or run.model.n_layers),
        pretrain=replace(run.pretrain, lr=lr),
    )


def scratch(base: Run) -> Run:
    """From scratch, for as many steps as SPT takes in both stages together."""
    both = base.pretraining.n_steps + base.n_steps
    return with_steps(replace(base, pretrain=None), both)


ARMS: dict[str, Callable[[Run], Run]] = {"scratch": scratch, "SPT": lambda base: base}
#: a training of its own for Image only, as in `few_labels`: its long one has no evaluation there
EXTRA = {SHORT: few_labels.ARMS[SHORT]}


def make(arm: str, task: str, base: Run, preset: str) -> Run:
    """The Run of an arm, at the rate chosen for it; `paper` keeps the published rate."""
    run = (ARMS | EXTRA)[arm](base)
    if preset == "paper":
        return run
    lr = CHOSEN[task]["scratch" if arm == SHORT else arm]
    return replace(run, finetune=replace(run.finetune, lr=lr))


def check(tasks: Sequence[str]) -> tuple[str, ...]:
    """Rows of the table by name or recipe, in its order; raises `ConfigError`."""
    names = {recipe: name for name, recipe in TASKS.items()} | {name: name for name in TASKS}
    for task in tasks:
        if task not in names:
            raise unknown("task of the replication", task, names)
    wanted = {names[task] for task in tasks}
    return tuple(name for name in TASKS if name in wanted)


def cases(
    preset: str = "classroom",
    seeds: int = 0,
    *,
    n_layers: int = 0,
    tasks: Sequence[str] = (),
) -> list[Case]:
    """All Runs of the experiment.

    Args:
        preset: name of the preset.
        seeds: seeds 0 … n−1; 0 = the preset's number.
        n_layers: layers of the model; 0 = the preset's.
        tasks: rows of the table, or their recipes; empty = all (at the classroom preset: `LIVE`).
    """
    presets.check(preset)
    chosen = check(tasks) if tasks else (LIVE if preset == "classroom" else tuple(TASKS))
    return [
        Case({"task": task, "arm": arm}, make(arm, task, base, preset))
        for task in chosen
        for seed in seed_list(seeds or N_SEEDS[preset])
        for base in [base_run(preset, task, seed, n_layers)]
        for arm in (ARMS if task in SEARCHED else (*ARMS, SHORT))
    ]


def candidates(preset: str, seeds: Sequence[int]) -> list[Case]:
    """The search for label rates: SPT and scratch with every rate, for each task."""
    found = []
    for task in SEARCHED:
        for base in (base_run(preset, task, seed) for seed in seeds):
            for arm in ARMS:
                run = ARMS[arm](base)
                found += [
                    Case(
                        {"task": task, "arm": arm, "lr": lr},
                        replace(run, finetune=replace(run.finetune, lr=lr)),
                    )
                    for lr in RATES
                ]
    return found


def pretraining_candidates(preset: str, seeds: Sequence[int]) -> list[tuple[dict, Pretraining]]:
    """The search for the pretraining's rate, by its own validation loss: no label is seen."""
    return [
        (
            {"task": task, "arm": "pretraining", "lr": lr},
            replace(base, pretrain=replace(base.pretrain, lr=lr)).pretraining,
        )
        for task in SEARCHED
        for base in (base_run(preset, task, seed) for seed in seeds)
        for lr in PRETRAIN_RATES
    ]


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per Run; scratch has a second one, after SPT's number of label steps."""
    if not results:
        return pd.DataFrame(columns=[*GROUP_BY, "seed", "steps", "test_accuracy", "train_loss"])
    rows = frame(results)
    rows = pd.concat([rows, frame_short(results, rows)], ignore_index=True)
    order = {"task": list(TASKS), "arm": ["scratch", SHORT, "SPT"]}
    return rows.sort_values(
        [*GROUP_BY, "seed"], key=lambda c: c.map(order[c.name].index) if c.name in order else c
    ).reset_index(drop=True)


def frame_short(results: Sequence[Result], rows: pd.DataFrame) -> pd.DataFrame:
    """What each training from scratch had reached after exactly as many steps as SPT's label steps.

    The rate is the one chosen for the long training. Where none of its evaluations falls there,
    there is no row.
    """
    places = {
        arm: {(r.labels["task"], r.entry.spec.seed): r for r in results if r.labels["arm"] == arm}
        for arm in ("SPT", SHORT)
    }
    steps = {
        place: result.entry.spec.n_steps
        for place, result in places["SPT"].items()
        if place not in places[SHORT]  # there it is a training of its own
    }
    short = []
    for result, row in zip(results, rows.to_dict("records"), strict=True):
        place = (result.labels["task"], result.entry.spec.seed)
        if result.labels["arm"] == "scratch" and place in steps:
            log = evaluations(result.entry)
            if steps[place] not in log["step"].values:
                continue
            reached = log[log["step"] == steps[place]].iloc[0]
            short.append(
                {
                    **{k: row[k] for k in ("task", "seed", "key")},
                    "arm": SHORT,
                    "steps": int(reached["step"]),
                    "test_accuracy": reached["test_accuracy"],
                }
            )
    return pd.DataFrame(short)
