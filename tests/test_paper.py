"""The preset `paper` is what was published, the page says so, and its models can be trained."""

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from sptlib import experiments, presets, train
from sptlib.config import Pretraining, Run
from sptlib.cost import devices
from sptlib.cost.workload import Lengths, Workload, workload
from sptlib.experiments import ablation, depth, replication

PAGE = Path(__file__).parents[1] / "book" / "paper.md"
TASKS = {name: replication.TASKS[name] for name in ablation.LRA}
#: experiments on these tasks; the page has a line on each
ABLATIONS = ("replication", "duration", "depth", "source", "freezing", "transfer")

#: Amos et al. (2024), public configurations: width, layers, heads, MLP factor; length; batch of
#: labels; rates of labels and of pretraining; hidden share; weight decay; pooling
PUBLISHED = {
    "listops": ((512, 6, 8, 4), 2048, 32, (1e-4, 1e-3), 0.10, 0.0, "mean"),
    "text": ((512, 6, 8, 4), 4096, 32, (1e-4, 5e-4), 0.15, 0.1, "mean"),
    "retrieval": ((128, 4, 4, 4), 4000, 32, (5e-4, 5e-3), 0.15, 0.0, "mean"),
    "image": ((64, 3, 4, 2), 1024, 50, (1e-3, 1e-3), 0.50, 0.0, "max"),
    "pathfinder": ((128, 4, 8, 1), 1024, 32, (5e-4, 1e-3), 0.50, 0.0, "mean"),
}
#: Tay et al. (2021), the data: training, validation and test items together
ITEMS = {
    "listops": 96_000 + 2_000 + 2_000,
    "text": 25_000 + 25_000,
    "retrieval": 147_086 + 18_090 + 17_437,
    "image": 50_000 + 10_000,
    "pathfinder": 200_000,
}


def length(run: Run) -> int:
    """Positions, as published; generated expressions of ListOps need fewer."""
    return getattr(run.task, "max_len", None) or workload(run).inputs.max_len


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_values_are_the_published_ones(recipe):
    run = presets.get("paper", recipe)
    model, pretrain, finetune = run.model, run.pretrain, run.finetune
    size, positions, batch, rates, hidden, decay, pooling = PUBLISHED[recipe]
    assert (model.width, model.n_layers, model.n_heads, model.mlp_ratio) == size
    assert (model.pooling, model.positions, model.dropout) == (pooling, "sinusoidal", 0)
    assert model.head_hidden == (recipe == "image")
    assert length(run) == positions
    assert (finetune.batch_size, pretrain.batch_size) == (batch, 32)
    assert (finetune.lr, pretrain.lr, pretrain.mask_ratio) == (*rates, hidden)
    for stage in (pretrain, finetune):
        assert stage.weight_decay == decay
        assert stage.epochs <= 200
        assert 2000 <= stage.warmup_steps <= 5000
        assert stage.lr in (5e-3, 1e-3, 5e-4, 1e-4)
    assert pretrain.criterion == "score"
    assert workload(run).inputs.kind == ("pixels" if recipe == "image" else "tokens")
    assert run.task.n_train + run.task.n_val + run.task.n_test == ITEMS[recipe]


# --- the page --------------------------------------------------------------------------------


def tables() -> list[list[list[str]]]:
    """The cells of the page's tables, by table and row; without rules."""
    blocks = re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), re.M)
    return [
        [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in block.splitlines()
            if not line.startswith("|---")
        ]
        for block in blocks
    ]


def shown(value) -> str:
    """A value as the page writes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else value


def stages(run: Run, name: str):
    """A value that both stages have."""
    value = getattr(run.pretrain, name)
    assert getattr(run.finetune, name) == value
    return value


ROWS = {
    "width": lambda run: run.model.width,
    "layers": lambda run: run.model.n_layers,
    "heads": lambda run: run.model.n_heads,
    "MLP factor": lambda run: run.model.mlp_ratio,
    "positions": lambda run: run.model.positions,
    "dropout": lambda run: run.model.dropout,
    "pooling": lambda run: run.model.pooling,
    "hidden layer in the head": lambda run: run.model.head_hidden,
    "initial weights": lambda run: run.model.init,
    "rate, labels": lambda run: run.finetune.lr,
    "rate, pretraining": lambda run: run.pretrain.lr,
    "batch, labels": lambda run: run.finetune.batch_size,
    "batch, pretraining": lambda run: run.pretrain.batch_size,
    "hidden share": lambda run: run.pretrain.mask_ratio,
    "weight decay": lambda run: stages(run, "weight_decay"),
    "epochs, each stage": lambda run: stages(run, "epochs"),
    "warm-up, steps": lambda run: stages(run, "warmup_steps"),
    "best weights of pretraining": lambda run: run.pretrain.criterion,
    "evaluations, each stage": lambda run: stages(run, "n_evals"),
    "gradient clipping": lambda run: stages(run, "clip"),
    "precision": lambda run: stages(run, "precision"),
    "length": length,
    "symbols": lambda run: workload(run).inputs.vocab_size or "pixels",
    "reconstruction": lambda run: (
        "L1" if workload(run).inputs.kind == "pixels" else "cross-entropy"
    ),
    "training": lambda run: run.task.n_train,
    "validation": lambda run: run.task.n_val,
    "test": lambda run: run.task.n_test,
    "from": lambda run: run.task.source,
}


def test_every_cell_of_the_page_is_the_preset():
    letters = {row[0] for row in tables()[0][1:]}
    found = []
    for (_, *columns, last), *rows in (t for t in tables() if t[0][-1] == "source" and t[0][1:-1]):
        assert last == "source"
        assert set(columns) == set(TASKS)
        for name, *cells, source in rows:
            found.append(name)
            runs = (presets.get("paper", TASKS[column]) for column in columns)
            assert cells == [shown(ROWS[name](run)) for run in runs], name
            assert set(source.split(", ")) <= letters
    assert found == list(ROWS)


def test_the_page_names_every_ablation():
    named = {row[0].strip("`") for row in tables()[-1][1:]}
    assert named == set(ABLATIONS)


# --- the Runs --------------------------------------------------------------------------------


@cache
def cases() -> dict[str, list]:
    """The cases of every experiment at the preset, one seed."""
    return {name: m.cases("paper", 1) for name, m in experiments.OF_RUNS.items()}


@pytest.mark.parametrize("name", ABLATIONS)
def test_experiments_are_about_the_published_tasks(name):
    found = {case.labels["task"] for case in cases()[name]}
    assert found - {"Text, direction"} == set(TASKS)
    for case in cases()[name]:
        run, own = case.run, presets.get("paper", replication.TASKS[case.labels["task"]])
        sizes = ("width", "n_heads", "mlp_ratio", "pooling", "head_hidden", "head_norm", "dropout")
        assert all(getattr(run.model, s) == getattr(own.model, s) for s in sizes)
        assert run.finetune.lr == own.finetune.lr
        assert run.finetune.batch_size == own.finetune.batch_size


def test_depths_go_up_to_the_published_one():
    for name, recipe in TASKS.items():
        n = presets.get("paper", recipe).model.n_layers
        assert depth.depths("paper", name) == tuple(range(1, n + 1))
        found = {c.labels["layers"] for c in cases()["depth"] if c.labels["task"] == name}
        assert found == set(range(1, n + 1))


@cache
def models() -> tuple[Workload, ...]:
    """What is trained: every stage and model once, on one item of the greatest length that it gets.

    Of depths only the first and the last; how weights start, and how positions enter, is no matter
    of size. Reconstruction does not look at classes.
    """
    found: dict[tuple, Workload] = {}
    for case in (case for some in cases().values() for case in some):
        recipe = ablation.TASKS.get(case.labels.get("task", ""), "neighbor")
        if case.labels.get("layers", 1) not in (1, ablation.PUBLISHED_LAYERS.get(recipe, 1)):
            continue
        for spec in filter(None, (case.run.pretraining, case.run)):
            work = workload(spec).shape
            model, inputs = replace(work.model, init="torch", positions="sinusoidal"), work.inputs
            full = Lengths(inputs.max_len, (), work.lengths.padded)
            about = (inputs.kind, inputs.vocab_size)
            if work.stage == "finetune":
                about += (inputs.n_classes, inputs.pairs)
            work = replace(work, model=model, lengths=full, n_train=1, freeze=(), fresh=None)
            known = found.setdefault((work.stage, model, *about), work)
            if known.inputs.max_len < inputs.max_len:
                found[work.stage, model, *about] = work
    return tuple(found.values())


@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
@pytest.mark.parametrize("width", [32, 64, 128, 512])
def test_one_training_step_of_every_model(width, stage, monkeypatch):
    """Forward, backward and update; evaluations, which cost as much again, are left out."""
    score = {"accuracy": 0.5, "score": 0.5, "loss": 1.0}
    monkeypatch.setattr(train, "accuracy", lambda *_: dict(score))
    monkeypatch.setattr(train, "reconstruction", lambda *_: dict(score))
    assert {work.model.width for work in models()} == {32, 64, 128, 512}
    for work in models():
        if (work.model.width, work.stage) != (width, stage):
            continue
        assert work.model.head_norm == "none"
        data = devices._data(work)
        spec = devices._spec(work, data)
        if isinstance(spec, Pretraining):
            items = len(data.unlabelled.sequences())
            once = replace(spec.pretrain, epochs=1 / items)
            done = train.pretrain(replace(spec, pretrain=once), data)
        else:
            once = replace(spec.finetune, epochs=1 / len(data.train))
            done = train.finetune(replace(spec, finetune=once), data)
        assert done.result["steps"] == 1
        assert math.isfinite(done.result["train_loss"])
        assert done.result["moved_qk"] > 0
        assert done.result["moved_mlp"] > 0
