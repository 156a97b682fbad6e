"""Bad configurations: each is refused in a line that names the field and what mends it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sptlib.config import PretrainConfig, Run, from_dict, override, to_dict
from sptlib.errors import ConfigError
from sptlib.tasks import NeighborConfig

TASK = NeighborConfig(length=6, n_train=8, n_val=4, n_test=4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task.name": "neighbour"}, "did you mean 'neighbor'"),
        ({"task.name": [1]}, "unknown task"),
        ({"finetune.lrr": 1}, "did you mean 'finetune.lr'"),
        ({"modle": 1}, "did you mean 'model'"),
        ({"finetune": {"lrr": 1}}, "finetune.lrr: Unexpected"),
        ({"pretrain.epochs": 1}, "pretrain.epochs"),
        ({"numerics": 9}, "unknown field 'numerics'"),
        ({"kind": "pretraining"}, "unknown field 'kind'"),
        ({"transfer": ["qkv"]}, "did you mean 'qkvo'"),
        ({"freeze": "qk"}, "freeze: "),
        ({"freeze": ["all", "head"]}, "nothing is left to train"),
        ({"model.width": -4}, "model.width: Input should be greater than 0 (found -4)"),
        ({"model.n_layers": 0}, "model.n_layers"),
        ({"task.length": 1}, "task.length"),
        ({"task.n_val": 0}, "task.n_val"),
        ({"finetune.batch_size": 0}, "finetune.batch_size"),
        ({"finetune.epochs": -1}, "finetune.epochs"),
        ({"seed": -1}, "seed"),
        ({"model.n_heads": 3}, "n_heads=3 does not divide width=32"),
        ({"model.n_heads": 32, "model.positions": "rope"}, "even width per head"),
        ({"model.mlp_ratio": 0.001}, "hidden unit"),
        ({"model.dropout": 1}, "model.dropout"),
        ({"pretrain": {"mask_ratio": 0}}, "pretrain.mask_ratio"),
        ({"pretrain": {"mask_ratio": 1}}, "pretrain.mask_ratio"),
        ({"pretrain": {"mask_ratio": float("nan")}}, "pretrain.mask_ratio"),
        ({"finetune.lr": float("inf")}, "finetune.lr"),
        ({"task.n_labels": 9}, "exceeds n_train=8"),
        ({"task.steps": [2, 12]}, "same walk"),
        ({"task": {"name": "image", "n_train": 1500}}, "digits has 1797"),
        ({"task": {"name": "image", "fresh": True}}, "real data"),
    ],
    ids=str,
)
def test_bad_values_are_named_in_one_line(change, words):
    with pytest.raises(ConfigError) as caught:
        override(Run(task=TASK), change)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def _leaves(fields, prefix=""):
    for name, value in fields.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")


@given(
    st.sampled_from(sorted(_leaves(to_dict(Run(task=TASK, pretrain=PretrainConfig()))))),
    st.sampled_from(
        [
            None,
            True,
            -1,
            0,
            2,
            0.5,
            -0.0,
            1e300,
            float("nan"),
            float("-inf"),
            "x",
            "",
            [],
            [1],
            ["qk"],
            {},
            {"name": []},
            {"a": 1},
        ]
    ),
)
def test_a_wrong_value_never_raises_anything_but_a_config_error(field, value):
    try:
        changed = override(Run(task=TASK, pretrain=PretrainConfig()), {field: value})
    except ConfigError:
        return
    json.dumps(to_dict(changed), allow_nan=False)  # whatever is valid can be hashed


def test_from_dict_refuses_what_it_does_not_know():
    fields = to_dict(Run(task=TASK))
    for wrong in ({"schema": 99}, {"kind": "walk"}, {"kind": []}, {"extra": 1}):
        with pytest.raises(ConfigError):
            from_dict(fields | wrong)
    del fields["task"]
    with pytest.raises(ConfigError, match="task: "):
        from_dict(fields)
