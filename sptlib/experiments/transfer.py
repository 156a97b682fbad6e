"""09: which of the pretrained weights carry the gain, and could they be had without pretraining?

Only some parameter groups come from the pretrained model, everything else starts at random. Beside
them: queries and keys with as many label steps as scratch has, and starts from scratch that put a
sense of distance into attention without any training (rotary positions, closed forms).
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from sptlib.analysis import stats
from sptlib.config import Run
from sptlib.experiments import few_labels, replication, synthetic
from sptlib.experiments.ablation import QUICK as QUICK
from sptlib.experiments.ablation import (
    SCRATCH,
    WHOLE,
    Arm,
    base_run,
    first,
    make,
    rows_of,
    scratch,
    searched,
    seeds_of,
    with_short,
)
from sptlib.experiments.base import Case, Result

NAME = "transfer"
GROUP_BY = ["task", "layers", "arm"]

#: what is transferred, by arm
GROUPS = {
    "QK from SPT": ("qk",),
    "VO from SPT": ("vo",),
    "QKVO from SPT": ("qkvo",),
    "MLP from SPT": ("mlp",),
    "embeddings from SPT": ("embed",),
    "norms from SPT": ("norm",),
}


def _part(groups: tuple[str, ...]) -> Arm:
    def build(base: Run) -> Run:
        run = replace(base, transfer=groups)
        if groups == ("mlp",):  # as in `synthetic`: it may take all its steps
            run = replace(run, finetune=replace(run.finetune, stop_at=None))
        return run

    return Arm(build)


def _longer(groups: tuple[str, ...]) -> Arm:
    def build(base: Run) -> Run:
        run = replace(scratch(base), pretrain=base.pretrain, transfer=groups)
        return replace(run, finetune=replace(run.finetune, stop_at=base.finetune.stop_at))

    return Arm(build)


PARTS: dict[str, Arm] = {title: _part(groups) for title, groups in GROUPS.items()}
#: queries and keys together with the features that they compare
TOGETHER: dict[str, Arm] = {
    "QK and embeddings from SPT": _part(("qk", "embed")),
    "QKVO and embeddings from SPT": _part(("qkvo", "embed")),
}
#: as many label steps as scratch
LONGER: dict[str, Arm] = {
    "QK from SPT, longer": _longer(("qk",)),
    "QKVO from SPT, longer": _longer(("qkvo",)),
}
#: no pretraining, but a start that looks at near positions
INSTEAD: dict[str, Arm] = {
    "scratch, RoPE": Arm(lambda base: scratch(base, positions="rope"), SCRATCH),
    "scratch, mimetic": Arm(lambda base: scratch(base, init="mimetic"), SCRATCH),
    "scratch, QK = identity": Arm(lambda base: scratch(base, init="identity"), SCRATCH),
}
ARMS: dict[str, Arm] = {**WHOLE, **PARTS, **TOGETHER, **LONGER, **INSTEAD}

#: rows of the classroom, and the depths of the study besides each row's own
LIVE = ("Neighbor +1 / +3",)
MORE_LAYERS = {"Neighbor +1 / +3": (2,), "Image": (1,), "Text, direction": (2,)}

#: the preset at which rates of `PARTS` are searched, on how many seeds, and the grid by recipe
TUNED_AT = "study"
N_TUNING_SEEDS = 2
RATES = {
    "neighbor": synthetic.RATES,
    "image": (*few_labels.RATES, 5e-2),
    "text:direction": (*replication.RATES, 1e-2),
}
#: rates of queries and keys and of the MLP on `neighbor` are those of `synthetic`
SEARCHED_BEFORE = ("QK from SPT", "MLP from SPT")
#: the chosen rates (data/tuning/transfer.csv; a test compares)
CHOSEN: dict[str, dict[str, float]] = {
    "neighbor": {
        "VO from SPT": 0.005,
        "QKVO from SPT": 0.005,
        "embeddings from SPT": 0.01,
        "norms from SPT": 0.02,
    },
    "image": {
        "QK from SPT": 0.02,
        "VO from SPT": 0.01,
        "QKVO from SPT": 0.02,
        "MLP from SPT": 0.02,
        "embeddings from SPT": 0.02,
        "norms from SPT": 0.02,
    },
    "text:direction": {
        "QK from SPT": 0.001,
        "VO from SPT": 0.001,
        "QKVO from SPT": 0.005,
        "MLP from SPT": 0.002,
        "embeddings from SPT": 0.002,
        "norms from SPT": 0.005,
    },
}
#: an arm with more steps takes the same rate
RATE_OF = {title: title.removesuffix(", longer") for title in LONGER}


def cases(
    preset: str = "classroom", seeds: int = 0, *, n_layers: int = 0, task: str = ""
) -> list[Case]:
    """All Runs of the experiment.

    Args:
        preset: name of the preset.
        seeds: seeds 0 … n−1; 0 = the preset's number.
        n_layers: layers of the model; 0 = the preset's, in the study one more depth.
        task: a row or a recipe; "" = `QUICK`, at the classroom `LIVE`.
    """
    found = []
    for name in rows_of(preset, task, LIVE, QUICK):
        own = base_run(preset, name, 0, n_layers).model.n_layers
        more = {"study": MORE_LAYERS.get(name, ()), "paper": (1,)}.get(preset, ())
        more = () if n_layers else tuple(layers for layers in more if layers != own)
        for layers in (own, *more):
            arms = ARMS if layers == own else {**WHOLE, **PARTS}
            if preset == "paper" and layers != own:  # the question of one layer
                arms = {**WHOLE, "QK from SPT": PARTS["QK from SPT"]}
            if preset == "classroom":
                arms = {
                    title: arm for title, arm in arms.items() if title not in {**TOGETHER, **LONGER}
                }
            for seed in seeds_of(preset, seeds):
                base = base_run(preset, name, seed, layers)
                found += [
                    Case({"task": name, "layers": layers, "arm": title}, run)
                    for title, run in _runs(preset, name, base, arms).items()
                ]
    return found


def _runs(preset: str, name: str, base: Run, arms: dict[str, Arm]) -> dict[str, Run]:
    chosen = {
        recipe: {title: rates[of] for title, of in RATE_OF.items() if of in rates} | rates
        for recipe, rates in CHOSEN.items()
    }
    if name.startswith("Neighbor"):
        chosen.setdefault("neighbor", {})["QK from SPT, longer"] = synthetic.CHOSEN["QK from SPT"]
    return make(preset, name, base, arms, chosen)


def candidates(preset: str, seeds: Sequence[int]) -> list[Case]:
    """The search for label rates of the arms that take a part."""

    def arms(name: str) -> dict[str, Arm]:
        before = SEARCHED_BEFORE if name.startswith("Neighbor") else ()
        return {title: arm for title, arm in PARTS.items() if title not in before}

    return searched(preset, seeds, arms, RATES)


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per Run: task, layers, arm, seed, steps, accuracies, losses."""
    return with_short(results, ["task", "layers"])


def at_own_depth(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of each task's first depth: its own, or the one that was asked for."""
    return first(table, "layers")


def conjecture(table: pd.DataFrame) -> pd.DataFrame:
    """What "queries and keys are a rule for comparing features" predicts, and what is so.

    Args:
        table: rows of each task's own depth.

    Returns:
        A row per task and prediction: the difference with its interval, and "yes" or "no" where the
        interval lies on one side of 0, else "open". Empty without rows.
    """
    together, qk, embed = "QK and embeddings from SPT", "QK from SPT", "embeddings from SPT"
    predictions = [
        ("queries and keys gain from the company of their embeddings", together, qk),
        ("both together are worth more than the embeddings alone", together, embed),
        ("attention and embeddings together are worth more than scratch",
         "QKVO and embeddings from SPT", SCRATCH),
    ]  # fmt: skip
    rows = []
    for name, some in table.groupby("task", sort=False) if len(table) else ():
        for text, a, b in predictions:
            if {a, b} <= set(some["arm"]):
                found = stats.paired(some, "test_accuracy", a, b)
                rows.append((name, text, found.text(100, 1, "points"), found.answer()))
    columns = ["task", "prediction", "difference", "so?"]
    return pd.DataFrame(rows, columns=columns).set_index(["task", "prediction"])
