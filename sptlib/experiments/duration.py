"""05: how long must pretraining be?

Pretraining of several lengths, each followed by the same training from labels. Beside each, what
training from scratch has reached after as many steps as both stages take together, and after as
much compute: both are read off one training from scratch, whose rate is constant. Coser et al.
(2026) try 1, 10, 50, 100 and 200 epochs; smaller presets take the same shares of their own length.
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from sptlib import presets
from sptlib.analysis import describe
from sptlib.config import Run
from sptlib.cost.workload import workload
from sptlib.errors import ConfigError
from sptlib.experiments.ablation import (
    QUICK,
    SCRATCH,
    TASKS,
    at_step,
    base_run,
    rate,
    rows_of,
    scratch,
    seeds_of,
)
from sptlib.experiments.ablation import SPT as SPT
from sptlib.experiments.base import Case, Result, frame, with_steps
from sptlib.tasks import load

NAME = "duration"
GROUP_BY = ["task", "epochs", "arm"]

#: published lengths (epochs), and the longest of them
PUBLISHED = (0, 1, 10, 50, 100, 200)
FULL = PUBLISHED[-1]
#: what is read off the training from scratch
STEPS, COMPUTE = "scratch, equal total steps", "scratch, equal compute"
#: rows, and rows of the classroom
ROWS = tuple(name for name in QUICK if name != "Neighbor +1 / −1")
LIVE = ("Neighbor +1 / +3",)


def lengths(
    preset: str, pretrain_epochs: Sequence[float] = (), recipe: str = "neighbor"
) -> tuple[float, ...]:
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
    base = presets.get(preset, recipe)
    by_steps = {0: 0.0}
    for epochs in (base.pretrain.epochs * published / FULL for published in PUBLISHED[1:]):
        by_steps[_with_epochs(base, epochs).pretraining.n_steps] = epochs
    return tuple(by_steps.values())


def _with_epochs(base: Run, epochs: float) -> Run:
    """The Run with this much pretraining, of which the warm-up keeps its share."""
    share = min(1.0, epochs / base.pretrain.epochs)
    warmup = round(share * base.pretrain.warmup_steps)
    return replace(base, pretrain=replace(base.pretrain, epochs=epochs, warmup_steps=warmup))


def steps_for_compute(base: Run) -> int:
    """Label steps from scratch that take as many FLOPs as both stages of SPT."""
    labels = workload(replace(base, pretrain=None))
    before = workload(base.pretraining)
    both = before.steps * before.step_flops + labels.steps * labels.step_flops
    return round(both / labels.step_flops)


def cases(
    preset: str = "classroom",
    seeds: int = 0,
    *,
    pretrain_epochs: Sequence[float] = (),
    n_layers: int = 0,
    task: str = "",
) -> list[Case]:
    """All Runs of the experiment.

    Args:
        preset: name of the preset.
        seeds: seeds 0 … n−1; 0 = the preset's number.
        pretrain_epochs: lengths of pretraining in epochs; empty = see `lengths`.
        n_layers: layers of the model; 0 = the preset's.
        task: a row or a recipe; "" = `ROWS`, at the classroom `LIVE`.
    """
    found = []
    for name in rows_of(preset, task, LIVE, ROWS):
        tried = lengths(preset, pretrain_epochs, TASKS[name])
        for seed in seeds_of(preset, seeds):
            base = base_run(preset, name, seed, n_layers)
            runs = [(e, _with_epochs(base, e)) for e in tried if e]
            found += [Case({"task": name, "epochs": e, "arm": SPT}, run) for e, run in runs]
            longest = long_scratch(preset, name, runs[-1][1] if runs else base, bool(runs))
            found.append(Case({"task": name, "epochs": tried[-1], "arm": SCRATCH}, longest))
    return found


def long_scratch(preset: str, name: str, longest: Run, both: bool = True) -> Run:
    """From scratch, as long as the longest SPT by either count; without it, its label steps."""
    steps = longest.n_steps
    if both:
        steps = max(longest.pretraining.n_steps + steps, steps_for_compute(longest))
    run = scratch(longest)
    lr = rate(preset, name, SCRATCH, SCRATCH, {})
    return with_steps(replace(run, finetune=replace(run.finetune, lr=lr)), steps)


def table(results: Sequence[Result]) -> pd.DataFrame:
    """A row per length, arm and seed: task, epochs, arm, seed, steps, accuracies, FLOPs.

    The arms `STEPS` and `COMPUTE` are read off the training from scratch. At 0 epochs all three are
    the same: that training after SPT's number of label steps.
    """
    columns = [*GROUP_BY, "seed", "steps", "test_accuracy", "flops"]
    rows = frame([r for r in results if r.labels["arm"] == SPT])
    if not results:
        return pd.DataFrame(columns=columns)
    found = [rows.assign(flops=_flops(results))] if len(rows) else []
    for r in (r for r in results if r.labels["arm"] == SCRATCH):
        run = r.entry.spec
        own = [
            x.entry.spec
            for x in results
            if x.labels["arm"] == SPT
            and x.labels["task"] == r.labels["task"]
            and x.entry.spec.seed == run.seed
        ]
        per_step = workload(run).step_flops
        about = {"task": r.labels["task"], "seed": run.seed, "key": r.entry.key}
        read = [(0.0, arm, own[0].n_steps if own else run.n_steps) for arm in (SPT, STEPS, COMPUTE)]
        for spt in own:
            epochs = spt.pretrain.epochs
            read.append((epochs, STEPS, spt.pretraining.n_steps + spt.n_steps))
            read.append((epochs, COMPUTE, steps_for_compute(spt)))
        found.append(pd.DataFrame([
            {**about, "epochs": epochs, "arm": arm, **(at := at_step(r.entry, steps)),
             "flops": at["steps"] * per_step}
            for epochs, arm, steps in read
        ]))  # fmt: skip
    return pd.concat(found, ignore_index=True).sort_values(["task", "epochs", "arm", "seed"])


def _flops(results: Sequence[Result]) -> list[float]:
    """FLOPs of both stages of each SPT; stopping early counts."""
    found = []
    for r in (r for r in results if r.labels["arm"] == SPT):
        run = r.entry.spec
        labels, before = workload(run), workload(run.pretraining)
        steps = r.entry.result["steps"]
        found.append(before.steps * before.step_flops + steps * labels.step_flops)
    return found


def placed(table: pd.DataFrame) -> pd.DataFrame:
    """The rows with pretraining, with a column ``place``: task and epochs."""
    rows = table[table["epochs"] > 0]
    names = [f"{t}, {e:g} epochs" for t, e in zip(rows["task"], rows["epochs"], strict=True)]
    return rows.assign(place=names)


def by_compute(table: pd.DataFrame) -> pd.DataFrame:
    """SPT and scratch against FLOPs: scratch as it is after the compute of each length.

    The column ``cell`` keeps lengths together, whose compute varies with early stopping.
    """
    rows = table[table["arm"].isin([SPT, COMPUTE])]
    return rows.assign(arm=rows["arm"].replace(COMPUTE, SCRATCH), cell=rows["epochs"])


def learned(results: Sequence[Result], store) -> pd.DataFrame:
    """What each pretraining had learned beside what came of it.

    Args:
        results: of this experiment.
        store: a run store or a study, which has the pretrainings.

    Returns:
        Columns task, epochs, arm, seed, val_loss (of reconstruction), entropy (of single symbols),
        gained (1 − val_loss / entropy), test_accuracy.
    """
    rows = [
        {
            **r.labels,
            "seed": r.entry.spec.seed,
            "val_loss": store.get(r.entry.spec.pretraining).result["val_loss"],
            "test_accuracy": r.entry.result["test_accuracy"],
        }
        for r in results
        if r.labels["arm"] == SPT
    ]
    if not rows:
        return pd.DataFrame(columns=["task", "epochs", "arm", "seed", "val_loss", "test_accuracy"])
    table = pd.DataFrame(rows)
    specs = {r.labels["task"]: r.entry.spec for r in results}
    entropies = {
        name: describe.symbol_entropy(load(run.task, run.seed)) for name, run in specs.items()
    }
    entropy = table["task"].map(entropies)
    return table.assign(
        entropy=entropy, gained=1 - table["val_loss"] / entropy, cell=table["epochs"]
    )


def plan(preset: str, task: str = "", pretrain_epochs: Sequence[float] = ()) -> pd.DataFrame:
    """The lengths of each row in epochs and steps, and the steps of warm-up among them."""
    rows = []
    for name in rows_of(preset, task, LIVE, ROWS):
        base = base_run(preset, name, 0)
        for epochs in lengths(preset, pretrain_epochs, TASKS[name]):
            if epochs:
                run = _with_epochs(base, epochs)
                rows.append(
                    {
                        "task": name,
                        "epochs": f"{epochs:g}",
                        "share of the preset's length": f"{epochs / base.pretrain.epochs:.1%}",
                        "steps": run.pretraining.n_steps,
                        "of them warm-up": run.pretrain.warmup_steps,
                    }
                )
    return pd.DataFrame(rows).set_index(["task", "epochs"]) if rows else pd.DataFrame()
