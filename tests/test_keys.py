"""The keys of twenty Runs, as they were recorded: a store stays readable, whoever reads it.

After an intended change of the layout (`SCHEMA`) or the arithmetic (`NUMERICS`), record them anew:

    python tests/test_keys.py --write
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sptlib import config, presets
from sptlib.config import PretrainConfig, Run, digest, from_dict, key, override, to_dict
from sptlib.polar.config import PolarRun
from sptlib.tasks import NeighborConfig

FILE = Path(__file__).with_name("recorded_keys.json")


def twenty() -> list[Run]:
    """Every task, and every kind of field changed once."""
    smoke = {recipe: presets.get("smoke", recipe) for recipe in presets.RECIPES}
    base = smoke["neighbor"]
    changes: list[dict] = [
        {"seed": 7},
        {"pretrain": None},
        {"transfer": ["qk"]},
        {"transfer": ["qkvo", "embed"], "freeze": ["mlp"]},
        {"model.positions": "rope", "model.n_heads": 2},
        {"model.embed_std": 0.5, "model.init": "normal", "model.dropout": 0.25},
        {"pretrain.mask": "span", "pretrain.mask_ratio": 0.5, "pretrain.labelled_only": True},
        {"pretrain.precision": "bf16", "finetune.precision": "bf16"},
        {"finetune.stop_at": 0.75, "finetune.lr": 2, "finetune.epochs": 3},
        {"task.fresh": True, "task.steps": [1, -1], "task.data_seed": 0},
        {"model.head_norm": "batch", "model.head_hidden": True, "model.pooling": "max"},
        {"finetune.patience": 3, "finetune.weight_decay": 1e-2, "finetune.clip": 1},
    ]
    other = replace(base.pretrain, task=NeighborConfig(n_train=32, n_val=16, n_test=16, length=16))
    runs = [*smoke.values(), *(override(base, change) for change in changes)]
    return [*runs, replace(base, pretrain=other)]


def record() -> dict:
    return {
        "schema": config.SCHEMA,
        "numerics": config.NUMERICS,
        "runs": [
            {"key": key(run), "digest": digest(run), "config": to_dict(run)} for run in twenty()
        ],
    }


@pytest.fixture(scope="module")
def recorded() -> list[dict]:
    known = json.loads(FILE.read_text())
    assert (known["schema"], known["numerics"]) == (config.SCHEMA, config.NUMERICS), (
        "SCHEMA or NUMERICS was raised: python tests/test_keys.py --write"
    )
    assert len({row["key"] for row in known["runs"]}) == len(known["runs"]) == 20
    return known["runs"]


def test_the_keys_are_the_recorded_ones(recorded):
    assert [(key(run), digest(run)) for run in twenty()] == [
        (row["key"], row["digest"]) for row in recorded
    ], "stored results would not be found any more; see `LATER` in sptlib/config.py"


def test_what_was_written_then_is_read_as_the_same_run(recorded):
    for row, run in zip(recorded, twenty(), strict=True):
        assert from_dict(row["config"]) == run
        assert digest(from_dict(row["config"])) == row["digest"]


def _reversed(value):
    if isinstance(value, dict):
        return {k: _reversed(v) for k, v in reversed(value.items())}
    return value


def _without_defaults(fields: dict, run: Run) -> dict:
    """The same configuration with every field left out that has its default."""
    defaults = to_dict(Run(task=run.task))
    defaults["pretrain"] = to_dict(replace(run, pretrain=PretrainConfig()))["pretrain"]
    kept = {"task": fields["task"]}
    for name, value in fields.items():
        if isinstance(value, dict) and name != "task":
            kept[name] = {k: v for k, v in value.items() if v != defaults[name][k]}
        elif name not in ("task", "kind", "schema", "numerics") and value != defaults[name]:
            kept[name] = value
    return kept


def _respelled(value):
    """1 as 1.0 where a whole number is meant, and 1.0 as 1."""
    if isinstance(value, dict):
        return {k: _respelled(v) for k, v in value.items()}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def test_spelling_does_not_matter(recorded):
    shorter = 0
    for row, run in zip(recorded, twenty(), strict=True):
        fields = row["config"]
        short = _without_defaults(fields, run)
        shorter += len(json.dumps(short)) < len(json.dumps(fields)) / 2
        for other in (_reversed(fields), short, _respelled(fields), {**fields, "seed": run.seed}):
            assert key(from_dict(other)) == row["key"]
        floats = {**fields, "finetune": {**fields["finetune"], "n_evals": 2.0, "epochs": 2}}
        whole = {**fields, "finetune": {**fields["finetune"], "n_evals": 2, "epochs": 2.0}}
        assert digest(from_dict(floats)) == digest(from_dict(whole))
    assert shorter >= 10


def test_another_process_computes_the_same(recorded, python):
    code = (
        "import json, sys; from sptlib.config import from_dict, key;"
        "rows = json.load(open(sys.argv[1]))['runs'];"
        "print(json.dumps([key(from_dict(row['config'])) for row in rows]))"
    )
    done = python("-c", code, str(FILE), PYTHONHASHSEED="123")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [row["key"] for row in recorded]


# --- fields that are added later ----------------------------------------------------------------


#: what is new about each
#: fields of the other system's configuration
OTHER = "base."
SAYS = {"base.allow_pickle": True,
    "pretrain.precision": "bf16", "finetune.precision": "bf16",
    "pretrain.watch": 2, "finetune.watch": 2, "model.proximity_bias": 0.1, "transfer_share": 0.5,
}  # fmt: skip


def _place(fields: dict, dotted: str) -> tuple[dict, str]:
    *parents, name = dotted.split(".")
    for parent in parents:
        fields = fields[parent]
    return fields, name


def test_a_later_field_leaves_older_keys_alone(recorded):
    """They joined after these results: whatever was computed without them has its old key."""
    run = twenty()[0]
    fields = to_dict(run)
    for dotted in (name for name in config.LATER if not name.startswith(OTHER)):
        node, name = _place(fields, dotted)
        del node[name]  # as it was written before the field existed
    assert key(from_dict(fields)) == recorded[0]["key"] == key(run)


@pytest.mark.parametrize("dotted", config.LATER)
def test_a_later_field_counts_when_it_says_something_new(dotted):
    run = PolarRun() if dotted.startswith(OTHER) else twenty()[0]
    other = override(run, {dotted: SAYS[dotted]})
    assert key(other) != key(run)
    assert digest(other) != digest(run)
    node, name = _place(to_dict(run), dotted)
    assert node[name] == config.LATER[dotted]  # spelled out where people read it


def test_every_later_field_exists_and_has_its_old_meaning_as_default():
    fields = to_dict(Run(task=NeighborConfig(), pretrain=PretrainConfig()))
    for dotted, before in config.LATER.items():
        node = to_dict(PolarRun()) if dotted.startswith(OTHER) else fields
        for part in dotted.split("."):
            node = node[part]
        assert node == before, dotted


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    FILE.write_text(json.dumps(record(), indent=1) + "\n")
    print(FILE)
