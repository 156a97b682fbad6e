"""Tables: every field with its type, values to the last bit, files whole or not at all."""

import csv
import json
from dataclasses import replace

import pandas as pd
import pytest
import torch

from sptlib import export, progress, tables
from sptlib.config import Run, to_dict
from sptlib.errors import ConfigError
from sptlib.tasks import CONFIGS, NeighborConfig

AWKWARD = 0.1 + 0.2, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, 2.0**-30


@pytest.fixture
def entries(tiny, tiny_image, store) -> list:
    """Runs of two tasks with awkward numbers, one from scratch, and a pretraining."""
    runs = [tiny, replace(tiny, seed=1, pretrain=None), tiny_image, tiny.pretraining]
    for i, run in enumerate(runs):
        metrics = [
            {"stage": "finetune", "step": 1, "loss": AWKWARD[i]},
            {"stage": "finetune", "step": 1, "val_loss": AWKWARD[-i], "best": True},
            {"stage": "finetune", "step": 2, "loss": 1.0},
        ]
        result = {"steps": 2, "val_loss": AWKWARD[i], "copied": ["a", "b"]}
        if isinstance(run, Run):
            result["test_accuracy"] = AWKWARD[i + 1]
        about = {"seconds": 1.5, "device": "cpu", "threads": 1, "versions": {"torch": "2"}}
        model = {"a": torch.zeros(1)}
        store.put(run, metrics=metrics, result=result, model=model, environment=about)
    return list(store.entries())


def same(a: pd.DataFrame, b: pd.DataFrame) -> bool:
    """Equal values, missing where missing, and equal types."""
    return a.equals(b) and [str(t) for t in a.dtypes] == [str(t) for t in b.dtypes]


def test_every_field_is_a_column_with_its_type(entries):
    table = tables.runs([tables.flat(entry) for entry in entries])
    fields = {n for n in tables.field_types() if not n.startswith(("task", "pretrain.task"))}
    assert fields <= set(table)
    types = {name: str(dtype) for name, dtype in table.dtypes.items()}
    assert types["finetune.lr"] == types["finetune.stop_at"] == types["test_accuracy"] == "Float64"
    assert types["model.width"] == types["task.data_seed"] == types["seed"] == "Int64"
    assert types["model.head_hidden"] == types["task.tokenised"] == "boolean"
    assert types["transfer"].startswith("str")
    assert "pretrain" not in table  # its fields are there, and empty for scratch
    scratch = table[table["seed"] == 1].iloc[0]
    assert pd.isna(scratch["pretrain.lr"])
    for entry in entries:
        row = table[table["key"] == entry.key].iloc[0]
        fields = to_dict(entry.spec)
        assert row["kind"] == fields["kind"]
        assert row["task.name"] == fields["task"]["name"]
        assert row["model.mlp_ratio"] == fields["model"]["mlp_ratio"]
        assert row["val_loss"] == entry.result["val_loss"]
        assert row["torch"] == "2"
        if fields["kind"] == "run":
            assert row["transfer"] == " ".join(fields["transfer"])
        assert pd.isna(row["transfer"]) == (fields["kind"] == "pretraining")


def test_types_are_declared_for_every_task():
    declared = tables.field_types()
    for name, task in CONFIGS.items():
        fields = to_dict(Run(task=task()))
        assert fields["task"]["name"] == name
        for field, value in fields["task"].items():
            kind = {bool: "boolean", int: "Int64", float: "Float64"}.get(type(value), "string")
            if value is not None:
                assert declared[f"task.{field}"] == declared[f"pretrain.task.{field}"] == kind
    assert declared["task.data_seed"] == "Int64"


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".CSV"])
@pytest.mark.parametrize("what", ["runs", "log", "nothing"])
def test_what_is_written_is_read_back(entries, tmp_path, suffix, what):
    path = tmp_path / f"table{suffix}"
    if what == "log":
        table = tables.log([row for entry in entries for row in tables.logged(entry)])
        assert len(table) == 3 * len(entries)
        assert list(table)[:5] == ["key", "stage", "step", "loss", "best"]
    else:
        table = tables.runs([] if what == "nothing" else [tables.flat(e) for e in entries])
    tables.write(path, table)
    if suffix == ".parquet":
        assert same(pd.read_parquet(path), table)
    else:
        back = pd.read_csv(path, dtype=table.dtypes.to_dict())
        assert list(back) == list(table)
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == len(table)
        kinds = {name: str(table[name].dtype) for name in table}
        for name in (n for n, kind in kinds.items() if kind == "Float64"):
            for row, value in zip(rows, table[name], strict=True):
                assert row[name] == "" if pd.isna(value) else float(row[name]) == value
        text = [name for name, kind in kinds.items() if kind.startswith("str")]
        exact = [name for name, kind in kinds.items() if kind in ("Int64", "boolean")]
        assert same(back[exact], table[exact])
        assert back[text].fillna("").equals(table[text].fillna(""))


def test_a_table_of_nothing_has_the_columns_of_any_task():
    table = tables.runs([])
    assert len(table) == 0
    assert {"key", "task.name", "task.length", "test_accuracy", "seconds"} <= set(table)
    assert list(tables.log([])) == list(tables.LOG)


def test_rows_do_not_depend_on_what_else_is_there(entries):
    rows = [tables.flat(entry) for entry in entries]
    alone, together = tables.runs(rows[:1]), tables.runs(rows)
    for name in alone:
        assert str(alone[name].dtype) == str(together[name].dtype)


def test_older_results_have_the_fields_that_came_later(entries, monkeypatch):
    entry = next(e for e in entries if isinstance(e.spec, Run))
    fields = export.part(entry, "config")
    del fields["finetune"]["precision"]
    monkeypatch.setattr(export, "part", lambda entry, name: fields)
    monkeypatch.setitem(entry.__dict__, "spec", entry.spec)
    assert tables.flat(entry)["finetune.precision"] == "fp32"


def test_values_of_another_type_become_text():
    table = tables.runs([{"key": "a", "seed": 2**70}, {"key": "b", "seed": None}])
    assert table["seed"].iloc[0] == str(2**70)
    assert pd.isna(table["seed"].iloc[1])
    odd = tables.log([{"step": 1.5, "val_x": 1}, {"step": 2, "val_x": 0.5}])
    assert list(odd["step"]) == ["1.5", "2"]
    assert list(odd["val_x"]) == [1.0, 0.5]
    assert str(tables.log([{"n": 3}])["n"].dtype) == "Int64"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x.xlsx", r"ends in \.csv or \.parquet"),
        ("x", r"ends in \.csv or \.parquet"),
        ("x.csv.gz", r"ends in \.csv or \.parquet"),
        ("x.jsonl", "--metrics-only"),
        ("no/x.csv", "there is no folder"),
    ],
)
def test_other_files_are_refused(tmp_path, name, words):
    with pytest.raises(ConfigError, match=words):
        tables.write(tmp_path / name, tables.log([]))
    assert list(tmp_path.iterdir()) == []


def test_without_pyarrow_parquet_is_refused_and_csv_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'sptlib\[parquet\]'"):
        tables.check(tmp_path / "x.parquet")
    tables.check(tmp_path / "x.csv")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_failure_while_writing_leaves_the_old_file(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_text("old")

    def failing(self, file=None, **options):
        if file is not None:
            file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", failing)
    monkeypatch.setattr(pd.DataFrame, "to_csv", failing)
    with pytest.raises(OSError, match="No space"):
        tables.write(path, tables.log([]))
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_descriptions(tiny):
    def words(run) -> str:
        return progress.describe(json.loads(json.dumps(to_dict(run))))

    assert words(tiny) == "SPT"
    assert words(replace(tiny, transfer=("qk", "mlp"), freeze=("qk",))) == "SPT[qk,mlp], freeze[qk]"
    assert words(replace(tiny, pretrain=None)) == "scratch"
    assert words(tiny.pretraining) == "pretraining"
    few = replace(tiny, task=replace(tiny.task, n_labels=8))
    strict = replace(few, pretrain=replace(few.pretrain, labelled_only=True))
    assert words(few) == "SPT, 8 labels"
    assert words(strict) == "SPT, labelled inputs only, 8 labels"
    other = NeighborConfig(length=9, n_train=9, n_val=9, n_test=9)
    assert words(replace(tiny, pretrain=replace(tiny.pretrain, task=other))) == "SPT, on neighbor"


def test_pipes_and_links_are_written_not_replaced(tmp_path):
    """A device that root names would otherwise become a file."""
    import os
    import threading

    from sptlib.formats.base import writing

    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    with writing(pipe) as file:
        file.write(b"through")
    reader.join(30)
    assert got == [b"through"]
    assert pipe.is_fifo()
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with writing(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "target"]
