"""Configuration: what is valid, what is the same, and under which key a result is stored."""

import dataclasses
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sptlib import config, tasks
from sptlib.config import (
    ALIASES,
    GROUPS,
    FinetuneConfig,
    ModelConfig,
    PretrainConfig,
    Pretraining,
    Run,
    expand_groups,
    from_dict,
    key,
    override,
    to_dict,
)
from sptlib.tasks import ImageConfig, NeighborConfig

TASK = NeighborConfig(length=6, n_train=8, n_val=4, n_test=4)


# --- round trip ---------------------------------------------------------------------------------

sizes = st.integers(1, 50)
positive = st.floats(1e-6, 1e6)
groups = st.lists(st.sampled_from([*GROUPS, *ALIASES]), max_size=3).map(tuple)
task_configs = st.one_of(
    st.builds(
        NeighborConfig,
        length=st.integers(2, 30),
        n_train=sizes,
        n_val=sizes,
        n_test=sizes,
        p=st.floats(0, 1),
        steps=st.sampled_from([(1, 3), (1, -1)]),
        fresh=st.booleans(),
        n_symbols=st.integers(5, 256),
        data_seed=st.none() | st.integers(-5, 2**70),
    ),
    st.builds(ImageConfig, tokenised=st.booleans(), n_train=sizes, n_val=sizes, n_test=sizes),
)
models = st.builds(
    ModelConfig,
    width=st.sampled_from([8, 16]),
    n_heads=st.sampled_from([1, 2, 4]),
    n_layers=sizes,
    mlp_ratio=st.floats(0.5, 4),
    positions=st.sampled_from(["sinusoidal", "learned", "rope", "alibi", "none"]),
    pooling=st.sampled_from(["mean", "max", "last"]),
    init=st.sampled_from(["normal", "torch"]),
    head_hidden=st.booleans(),
    dropout=st.floats(0, 1, exclude_max=True),
    max_len=st.integers(0, 99),
)
training = {
    "epochs": positive,
    "lr": positive,
    "batch_size": sizes,
    "clip": st.floats(0, 9),
    "warmup_steps": st.integers(0, 9),
    "n_evals": sizes,
    "patience": st.integers(0, 9),
}
pretrains = st.builds(
    PretrainConfig,
    **training,
    labelled_only=st.booleans(),
    mask=st.sampled_from(["token", "span"]),
    task=st.none() | task_configs,
    mask_ratio=st.floats(0, 1, exclude_min=True, exclude_max=True),
)
runs = st.builds(
    Run,
    task=task_configs,
    model=models,
    pretrain=st.none() | pretrains,
    transfer=groups,
    freeze=groups.filter(lambda g: set(expand_groups(g)) != set(GROUPS)),
    finetune=st.builds(FinetuneConfig, **training, stop_at=st.none() | st.floats(0.1, 1)),
    seed=st.integers(0, 2**70),
)


@given(runs)
def test_dict_round_trip(run):
    fields = to_dict(run)
    again = from_dict(json.loads(json.dumps(fields)))
    assert again == run
    assert to_dict(again) == fields
    if run.pretrain is not None:
        assert from_dict(json.loads(json.dumps(to_dict(run.pretraining)))) == run.pretraining


@given(st.builds(Run, task=st.just(TASK), pretrain=st.none() | st.just(PretrainConfig())))
def test_defaults_have_the_same_key_as_the_same_values_spelled_out(run):
    assert key(from_dict(to_dict(run))) == key(run)


# --- key ----------------------------------------------------------------------------------------


def test_key_is_the_same_in_every_process(python):
    built = [
        Run(task=TASK, pretrain=PretrainConfig(), transfer=("mlp", "qk"), freeze=("norm", "vo")),
        Run(task=ImageConfig(n_train=30, n_labels=20), seed=3),
    ]
    code = (
        "import json, sys; from sptlib.config import *; "
        "print(*[key(from_dict(f)) for f in json.loads(sys.argv[1])])"
    )
    texts = json.dumps([to_dict(run) for run in built])
    done = python("-c", code, texts, PYTHONHASHSEED="4711")
    assert done.stdout.split() == [key(run) for run in built], done.stderr


def test_integers_and_floats_are_the_same_value():
    a = Run(
        task=NeighborConfig(length=6, n_train=8, n_val=4, n_test=4, p=1),
        finetune=FinetuneConfig(epochs=2, lr=1),
        seed=1,
    )
    b = Run(
        task=NeighborConfig(length=6.0, n_train=8, n_val=4, n_test=4, p=1.0),
        finetune=FinetuneConfig(epochs=2.0, lr=1.0),
        seed=1.0,
    )
    assert key(a) == key(b)
    assert isinstance(a.finetune.epochs, float)
    assert isinstance(b.seed, int)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"task.p": 0.5},
        {"task.n_train": 9},
        {"task.n_test": 5},
        {"task.n_labels": 4},
        {"model.width": 64},
        {"model.init": "normal"},
        {"model.embed_std": 2.0},
        {"finetune.lr": 1e-3},
        {"freeze": ["qk"]},
        {"transfer": ["qk"]},
        {"pretrain": None},
        {"pretrain.mask_ratio": 0.5},
        {"pretrain.task": {"name": "neighbor", "length": 7}},
    ],
    ids=str,
)
def test_whatever_changes_the_result_changes_the_key(change):
    run = Run(task=TASK, pretrain=PretrainConfig())
    assert key(override(run, change)) != key(run)


@pytest.mark.parametrize("name", ["NUMERICS", "SCHEMA"])
def test_versions_are_part_of_every_key(name, monkeypatch):
    run = Run(task=TASK, pretrain=PretrainConfig())
    before = key(run), key(run.pretraining)
    monkeypatch.setattr(config, name, 10**6)
    assert key(run) != before[0]
    assert key(run.pretraining) != before[1]


@pytest.fixture
def _no_cached_fingerprints():
    tasks.fingerprint.cache_clear()
    yield
    tasks.fingerprint.cache_clear()


@pytest.mark.usefixtures("_no_cached_fingerprints")
@pytest.mark.parametrize("split", ["unlabelled", "train", "val", "test"])
def test_every_value_of_the_data_is_part_of_the_key(split, monkeypatch):
    run = Run(task=TASK)
    before, data = key(run), tasks.load(TASK, 0)
    part = getattr(data, split)
    x, y = part.x.clone(), part.y.clone()
    x[-1, -1] = (x[-1, -1] + 1) % 10
    y[0] = 1 - y[0]
    for changed in (replace(part, x=x), replace(part, y=y)):
        other = replace(data, **{split: changed})
        monkeypatch.setattr(tasks, "load", lambda task, seed, other=other: other)
        tasks.fingerprint.cache_clear()
        assert key(run) != before


# --- groups -------------------------------------------------------------------------------------


def test_aliases_expand_in_one_order():
    assert expand_groups(("all",)) == ("embed", "qk", "vo", "mlp", "norm")
    assert expand_groups(("mlp", "qkvo", "qk")) == ("qk", "vo", "mlp")
    assert expand_groups(()) == ()
    run = Run(task=TASK, pretrain=PretrainConfig(), transfer=("vo", "qk"), freeze=("norm", "embed"))
    same = Run(task=TASK, pretrain=PretrainConfig(), transfer=("qkvo",), freeze=("embed", "norm"))
    assert key(run) == key(same)


def test_transfer_is_emptied_without_pretraining():
    assert Run(task=TASK, transfer=("qk",)).transfer == ()
    assert key(Run(task=TASK, transfer=("qk",))) == key(Run(task=TASK))
    assert Run(task=TASK).pretraining is None


# --- what arms share ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        ({"task.n_labels": 4}, True),
        ({"model.pooling": "max"}, True),
        ({"model.head_hidden": True}, True),
        ({"transfer": ["qk"]}, True),
        ({"freeze": ["qk"]}, True),
        ({"finetune.lr": 0.1}, True),
        ({"pretrain.lr": 0.1}, False),
        ({"pretrain.epochs": 3}, False),
        ({"seed": 1}, False),
        ({"model.width": 64}, False),
        ({"model.positions": "rope"}, False),
        ({"task.n_train": 9}, False),
        ({"model.dropout": 0.1}, False),
        ({"pretrain.task": {"name": "image"}}, False),
    ],
    ids=str,
)
def test_runs_share_a_pretraining_unless_it_would_differ(change, shared):
    run = Run(task=TASK, pretrain=PretrainConfig())
    assert (key(override(run, change).pretraining) == key(run.pretraining)) is shared


def test_labels_matter_to_a_pretraining_on_the_labelled_inputs_only():
    run = Run(task=TASK, pretrain=PretrainConfig(labelled_only=True))
    assert run.pretraining.task == TASK
    fewer = override(run, {"task.n_labels": 4})
    assert fewer.pretraining.task.n_labels == 4
    assert key(fewer.pretraining) != key(run.pretraining)
    assert key(run.pretraining) != key(Run(task=TASK, pretrain=PretrainConfig()).pretraining)


def test_pretraining_on_another_task():
    other = NeighborConfig(length=9, n_labels=4)
    run = Run(task=TASK, model=ModelConfig(max_len=6), pretrain=PretrainConfig(task=other))
    assert run.pretraining.task == replace(other, n_labels=0)
    assert run.pretraining.model.max_len == 0
    assert (
        run.pretraining
        == Run(task=replace(other, n_labels=0), pretrain=PretrainConfig()).pretraining
    )


# --- the rest -----------------------------------------------------------------------------------


def test_configurations_are_frozen():
    run = Run(task=TASK, pretrain=PretrainConfig())
    for part, field in ((run, "seed"), (run.task, "p"), (run.model, "width"), (run.pretrain, "lr")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, field, 1)
    assert isinstance(run.pretraining, Pretraining)


def test_steps_follow_from_epochs():
    train = FinetuneConfig(epochs=2.5, batch_size=32)
    assert train.n_steps(1000) == 78  # 2.5 * 1000 / 32 = 78.1
    assert train.n_steps(10) == 2  # a batch holds everything: an epoch is one step; 2.5 rounds to 2
    assert FinetuneConfig(epochs=1e-3).n_steps(100) == 1
