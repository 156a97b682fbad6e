"""What the ablations share: their tasks, the Run that each starts from, and its arms.

Every ablation takes the tasks of `replication` and both variants of `neighbor`; it changes one
thing about SPT, or about training from scratch, and leaves all else as it is there, so that arms
which two experiments have in common are the same Runs and are computed once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from sptlib import presets
from sptlib.config import Run
from sptlib.errors import unknown
from sptlib.experiments import few_labels, replication, synthetic
from sptlib.experiments.base import Case, Result, evaluations, frame, seed_list, with_steps

#: the variants of `neighbor` by the name of their row, each with the classes' steps d
NEIGHBOR = {f"Neighbor {variant}": steps for variant, steps in synthetic.VARIANTS.items()}
#: the recipe of each row
TASKS: dict[str, str] = {**dict.fromkeys(NEIGHBOR, "neighbor"), **replication.TASKS}
#: accuracy of guessing, by row
CHANCE = {**dict.fromkeys(NEIGHBOR, synthetic.CHANCE), **replication.CHANCE}
#: rows whose trainings take less than half a minute on a CPU core; the ablations' default
QUICK = (*NEIGHBOR, *replication.QUICK)
#: rows that the papers have, too
LRA = tuple(name for name in replication.TASKS if name != "Text, direction")
#: the published depth of each recipe's model (Amos et al. 2024); `neighbor` has none
PUBLISHED_LAYERS = {
    recipe: presets.paper(recipe).model.n_layers for recipe in replication.TASKS.values()
}

#: seeds of each preset, for ablations with many arms
N_SEEDS = replication.N_SEEDS

SCRATCH, SPT, SHORT = "scratch", "SPT", few_labels.SHORT


@dataclass(frozen=True)
class Arm:
    """A way to train.

    Attributes:
        make: from the self-pretrained Run.
        like: whose rate it takes unless one was searched for it: `SCRATCH` or `SPT`.
    """

    make: Callable[[Run], Run]
    like: str = SPT


def check(task: str, default: Sequence[str]) -> tuple[str, ...]:
    """Rows by name or recipe; "" = the default. Raises `ConfigError` with a suggestion."""
    if not task:
        return tuple(default)
    found = tuple(name for name, recipe in TASKS.items() if task in (name, recipe))
    if not found:
        raise unknown("task of the ablations", task, (*TASKS, *dict.fromkeys(TASKS.values())))
    return found


def rows_of(preset: str, task: str, live: Sequence[str], study: Sequence[str]) -> tuple[str, ...]:
    """The rows of an ablation: those of one task, or the preset's.

    Args:
        preset: the classroom has the rows ``live``, `paper` the five tasks of the Long Range Arena,
            others ``study``.
        task: a row or a recipe; "" = the preset's.
        live: rows that are computed with the book.
        study: rows whose trainings are quick.
    """
    defaults = {"classroom": live, "paper": LRA}
    return check(task, defaults.get(presets.check(preset), study))


def seeds_of(preset: str, seeds: int = 0) -> range:
    """Seeds 0 … n−1; 0 = the preset's number."""
    return seed_list(seeds or N_SEEDS[presets.check(preset)])


def base_run(preset: str, name: str, seed: int, n_layers: int = 0) -> Run:
    """SPT as it is in `synthetic` and in `replication`: the Run that every arm is made from."""
    if name in NEIGHBOR:
        return synthetic.make(SPT, synthetic.base_run(preset, NEIGHBOR[name], seed, n_layers))
    base = replication.base_run(preset, name, seed, n_layers)
    return replication.make(SPT, name, base, preset)


def scratch(base: Run, **changes) -> Run:
    """From scratch, for as many steps as SPT takes in both stages together.

    Args:
        base: SPT.
        **changes: fields of the model.
    """
    both = base.pretraining.n_steps + base.n_steps
    run = with_steps(replace(base, pretrain=None), both, stop_at=None)
    return replace(run, model=replace(run.model, **changes))


#: the arms that every ablation has
WHOLE: dict[str, Arm] = {SCRATCH: Arm(scratch, SCRATCH), SPT: Arm(lambda base: base)}


def rate(
    preset: str, name: str, arm: str, like: str, chosen: Mapping[str, Mapping[str, float]]
) -> float:
    """The label rate of an arm.

    Args:
        preset: `paper` keeps the published rate.
        name: of the row.
        arm: name of the arm.
        like: whose rate it takes if none was searched for it.
        chosen: rates that were searched, by recipe and arm.
    """
    if name in NEIGHBOR:
        known = {**synthetic.CHOSEN, **chosen.get("neighbor", {})}
        return known.get(arm, known[like])
    if preset == "paper":
        return presets.get(preset, TASKS[name]).finetune.lr
    known = {**replication.CHOSEN[name], **chosen.get(TASKS[name], {})}
    return known.get(arm, known[like])


def make(
    preset: str,
    name: str,
    base: Run,
    arms: Mapping[str, Arm],
    chosen: Mapping[str, Mapping[str, float]],
) -> dict[str, Run]:
    """The Run of each arm, at its rate."""
    runs = {}
    for title, arm in arms.items():
        run = arm.make(base)
        lr = rate(preset, name, title, arm.like, chosen)
        runs[title] = replace(run, finetune=replace(run.finetune, lr=lr))
    return runs


def searched(
    preset: str,
    seeds: Sequence[int],
    arms: Callable[[str], Mapping[str, Arm]],
    rates: Mapping[str, Sequence[float]],
) -> list[Case]:
    """The search for label rates of some arms.

    Args:
        preset: at which.
        seeds: from 100 on.
        arms: the searched arms, by name of the row.
        rates: the grid, by recipe; the variants of `neighbor` have one rate in common.
    """
    return [
        Case(
            {"task": recipe, "arm": title, "variant": name, "lr": lr},
            replace(run, finetune=replace(run.finetune, lr=lr)),
        )
        for name, recipe in TASKS.items()
        if recipe in rates
        for seed in seeds
        for base in [base_run(preset, name, seed)]
        for title, run in make(preset, name, base, arms(name), {}).items()
        for lr in rates[recipe]
    ]


def at_step(entry, step: int) -> dict:
    """What a training had reached at a step: its first evaluation from there on.

    With a constant rate this is what a training of that many steps reports, to the spacing of
    evaluations, which favours it.

    Args:
        entry: of a Run.
        step: at most its last.
    """
    log = evaluations(entry)
    reached = log[log["step"] >= min(step, log["step"].max())].iloc[0]
    return {
        "steps": int(reached["step"]),
        "test_accuracy": reached["test_accuracy"],
        "val_accuracy": reached["val_accuracy"],
    }


def with_short(results: Sequence[Result], by: Sequence[str]) -> pd.DataFrame:
    """One row per Run; scratch has a second one, read off after SPT's number of label steps.

    Args:
        results: of an ablation with the arms `SCRATCH` and `SPT`.
        by: the labels, besides the arm, that name a cell.
    """
    if not results:
        return pd.DataFrame(columns=[*by, "arm", "seed", "steps", "test_accuracy", "train_loss"])
    places = {
        arm: {
            (*(r.labels[k] for k in by), r.entry.spec.seed): r
            for r in results
            if r.labels["arm"] == arm
        }
        for arm in (SCRATCH, SPT)
    }
    short = [
        {
            **r.labels,
            "arm": SHORT,
            "seed": r.entry.spec.seed,
            "key": r.entry.key,
            **at_step(r.entry, places[SPT][place].entry.spec.n_steps),
        }
        for place, r in places[SCRATCH].items()
        if place in places[SPT]
    ]
    return pd.concat([frame(results), pd.DataFrame(short)], ignore_index=True)


def first(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """The rows of each task's first value of a column, which is its own, or what was asked for."""
    if table.empty:
        return table
    return table[table[column] == table.groupby("task")[column].transform("first")]
