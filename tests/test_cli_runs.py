"""`sptlib runs` on run stores and on exported results: what it shows, writes, finds and removes."""

import csv
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from sptlib import export, upkeep
from sptlib.cli import main
from sptlib.config import Run, digest, key, to_dict
from sptlib.execute import Where, compute
from sptlib.experiments import base, few_labels
from sptlib.store import Store

STUDY = Path(__file__).parents[1] / "data" / "study"


def sptlib(*words: object) -> Result:
    done = CliRunner().invoke(main, ["runs", *map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def refused(done: Result, *words: str) -> None:
    assert done.exit_code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("sptlib: ")
    assert all(word in line for word in words), line


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


@pytest.fixture(scope="module")
def computed(tmp_path_factory) -> Store:
    """One seed of the smoke preset's few labels: 8 Runs, 3 pretrainings."""
    store = Store(tmp_path_factory.mktemp("computed"))
    base.collect(few_labels.cases("smoke", 1), store, workers=1)
    return store


@pytest.fixture
def filled(computed, tmp_path) -> Store:
    """A copy that a test may spoil."""
    shutil.copytree(computed.path, tmp_path / "store")
    return Store(tmp_path / "store")


@pytest.fixture
def shipped(computed, tmp_path) -> Path:
    export.write(tmp_path / "shipped" / "few_labels.jsonl", computed.entries())
    return tmp_path / "shipped"


@pytest.fixture(params=["store", "export"])
def place(request, filled, shipped) -> Path:
    return filled.path if request.param == "store" else shipped


def spoil(store: Store, name: str = "result.json") -> str:
    """Damage a Run; returns its key."""
    entry = next(e for e in store.entries() if isinstance(e.spec, Run))
    (entry.path / name).write_text("?")
    return entry.key


# --- ls, show -----------------------------------------------------------------------------------


def test_ls_has_a_line_per_result_in_columns(place, computed):
    done = sptlib("ls", "--store", place)
    assert (done.exit_code, done.stderr) == (0, "")
    header, *lines, summary = done.stdout.splitlines()
    assert summary == f"11 results in {place}"
    assert cells(header)[:4] == ["key", "task", "seed", "accuracy"]
    assert [line[:20] for line in lines] == [e.key for e in computed.entries()]
    start = header.index("what")
    for line, entry in zip(lines, computed.entries(), strict=True):
        pretraining = not isinstance(entry.spec, Run)
        assert line[start:].startswith("pretraining") == pretraining
        if not pretraining:
            assert cells(line)[3] == f"{entry.result['test_accuracy']:.4f}"
            assert line[start:].startswith("SPT" if entry.spec.pretrain else "scratch")


def test_ls_filters_by_task(tiny, place):
    assert sptlib("ls", "--task", "text", "--store", place).stdout == f"0 results in {place}\n"
    assert "11 results" in sptlib("ls", "--task", "image", "--store", place).stdout
    refused(sptlib("ls", "--task", "imge", "--store", place), "did you mean 'image'?")
    if not export.is_export(place):
        fields = {"stage": "finetune", "step": 1, "loss": 1.0}
        about = {"metrics": [fields], "model": {}, "environment": {"seconds": 1}}
        Store(place).put(tiny, **about, result={"test_accuracy": 0.5, "val_loss": 1.0})
        listed = sptlib("ls", "--task", "neighbor", "--store", place).stdout
        _, line, summary = listed.splitlines()
        assert summary == f"1 results in {place}"
        assert cells(line)[:3] == [key(tiny), "neighbor", "0"]


def test_ls_filters_by_experiment_and_says_what_is_missing(place):
    words = ("ls", "--experiment", "few_labels", "--preset", "smoke", "--store", place)
    lines = sptlib(*words, "--seeds", "1").stdout.splitlines()
    assert lines[-1] == f"11 results in {place}"
    labels = [cells(line)[-1] for line in lines[1:-1]]
    assert labels.count("pretraining") == 3
    assert {"24 / scratch", "48 / SPT, labelled images only"} <= set(labels)
    assert sptlib(*words).stdout.endswith("; 11 trainings of few_labels are not there\n")
    words = ("ls", "--experiment", "replication", "--preset", "smoke", "--store", place)
    assert " results in" in sptlib(*words).stdout
    refused(sptlib("ls", "--experiment", "few_label", "--store", place), "did you mean")
    refused(sptlib("ls", "--seeds", "3", "--store", place), "--experiment")


def test_the_shipped_study_is_shown(capsys):
    text = sptlib("ls", "--store", STUDY, "--task", "text:direction").stdout
    assert {cells(line)[1] for line in text.splitlines()[1:-1]} == {"text:direction"}
    assert "DAMAGED" not in sptlib("ls", "--store", STUDY).stdout
    assert sptlib("verify", "--store", STUDY).exit_code == 0


def test_other_versions_are_marked(shipped, filled):
    path = shipped / "few_labels.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["versions"]["files"] = 0
    rows[1]["config"]["numerics"] = 0
    rows[2]["config"]["schema"] = 99
    export.write_rows(path, rows)
    lines = sptlib("ls", "--store", shipped).stdout.splitlines()
    marked = [line[:20] for line in lines if line.endswith(", other version")]
    assert marked == [row["key"] for row in rows[:3]]
    assert "11 results" in lines[-1]
    shown = json.loads(sptlib("show", rows[1]["key"], "--store", shipped).stdout)
    assert shown["other_version"] is True
    assert sptlib("verify", "--store", shipped).exit_code == 0


@pytest.mark.parametrize("name", ["result", "config", "environment", "manifest"])
def test_a_damaged_entry_does_not_stop_the_others(filled, tmp_path, name):
    bad = spoil(filled, f"{name}.json")
    (filled.path / "notes").mkdir()
    (filled.path / "notes" / "manifest.json").write_text("[]")
    listed = sptlib("ls", "--store", filled.path)
    assert listed.exit_code == 0
    assert f"{bad}  DAMAGED  " in listed.stdout
    assert listed.stdout.splitlines()[-1] == f"10 results in {filled.path}, 1 damaged"
    shown = sptlib("show", bad, "--store", filled.path)
    assert shown.exit_code == 1
    assert json.loads(shown.stdout)["key"] == bad  # with what can be read
    assert "damaged" in shown.stderr
    for file, words in (("x.csv", ()), ("x.parquet", ()), ("x.jsonl", ("--metrics-only",))):
        done = sptlib("export", tmp_path / file, *words, "--store", filled.path)
        assert done.exit_code == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"sptlib: left out: {bad}: ")
        assert (tmp_path / file).stat().st_size > 0
    assert len(pd.read_csv(tmp_path / "x.csv")) == len(pd.read_parquet(tmp_path / "x.parquet")) == 7
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 10


def test_an_export_does_not_write_twice_what_lies_beside(computed, tmp_path):
    folder = tmp_path / "shipped"
    folder.mkdir()
    first = sptlib("export", folder / "a.jsonl", "--metrics-only", "--store", computed.path)
    assert "11 trainings written" in first.stdout
    again = sptlib("export", folder / "b.jsonl.gz", "--metrics-only", "--store", computed.path)
    assert "0 trainings written" in again.stdout
    assert "(11 more are in other files there)" in again.stdout
    same = sptlib("export", folder / "a.jsonl", "--metrics-only", "--store", computed.path)
    assert "11 trainings written" in same.stdout  # a file is not beside itself
    rows = [json.loads(line) for line in (folder / "a.jsonl").read_text().splitlines()]
    rows[0]["result"]["steps"] += 1  # not as it is in the store any more
    export.write_rows(folder / "a.jsonl", rows)
    other = sptlib("export", folder / "b.jsonl.gz", "--metrics-only", "--store", computed.path)
    assert "1 trainings written" in other.stdout


def test_a_damaged_file_of_an_export_does_not_stop_the_others(shipped, computed, tmp_path):
    some = [next(computed.entries())]
    export.write(shipped / "other.jsonl", some)
    (shipped / "few_labels.jsonl").write_text("altered")
    listed = sptlib("ls", "--store", shipped).stdout
    assert f"DAMAGED  {shipped / 'few_labels.jsonl'} is missing or altered" in listed
    assert listed.endswith(f"1 results in {shipped}, 1 damaged\n")
    done = sptlib("export", tmp_path / "x.csv", "--pretrainings", "--store", shipped)
    assert done.exit_code == 1
    assert "left out: " in done.stderr
    assert len(pd.read_csv(tmp_path / "x.csv")) == 1
    verified = sptlib("verify", "--store", shipped)
    assert (verified.exit_code, len(verified.stderr.splitlines())) == (1, 1)


def test_failed_and_unfinished_trainings_are_listed(tiny, store, shipped):
    def halt(stage, step, n_steps, loss):
        if stage == "finetune" and step >= 8:
            raise KeyboardInterrupt

    where = Where(device="cpu", checkpoint_seconds=1e9, checkpoint_steps=4, progress=halt)
    with pytest.raises(KeyboardInterrupt):
        compute(tiny, store, where)
    folder = store.work_folder(tiny)
    (folder / "config.json").write_text(json.dumps(to_dict(tiny)))
    moment = time.time() - 7200
    for path in (folder, *folder.iterdir()):
        os.utime(path, (moment, moment))
    bad = replace(tiny, seed=5, freeze=("qk",))
    store.fail(bad, [], "diverged at step 3\nand so on")
    unknown = store.path / ".work" / ("a" * 20)
    unknown.mkdir()
    shutil.copy(folder / "checkpoint.safetensors", unknown)
    text = sptlib("ls", "--unfinished", "--store", store.path).stdout
    _, line, other, summary = text.splitlines()
    assert cells(line) == [key(tiny), "neighbor", "0", "2 h 0 min", "SPT", "step 4 of 12"]
    assert cells(other)[0] == "a" * 20
    assert "step 4 of ?" in other
    assert summary.startswith("2 unfinished trainings in ")
    text = sptlib("ls", "--failed", "--store", store.path).stdout
    _, line, summary = text.splitlines()
    assert cells(line)[0] == key(bad)
    assert cells(line)[-2:] == ["SPT, freeze[qk]", "diverged at step 3"]
    both = ("ls", "--failed", "--unfinished", "--store", store.path)
    assert "3 failed or unfinished trainings" in sptlib(*both).stdout
    assert "2 failed or unfinished" in sptlib(*both, "--task", "neighbor").stdout
    assert "0 failed or unfinished" in sptlib(*both, "--task", "text").stdout
    words = ("--experiment", "synthetic", "--preset", "smoke")
    assert "0 failed or unfinished" in sptlib(*both, *words).stdout
    refused(sptlib("ls", "--failed", "--store", shipped), "exported results")


def test_show(place, computed):
    entry = next(computed.entries())
    done = sptlib("show", entry.key[:9], "--store", place)
    shown = json.loads(done.stdout)
    assert shown["config"] == export.part(entry, "config")
    assert shown["result"] == entry.result
    assert shown["environment"] == entry.environment
    assert ("versions" in shown) == export.is_export(place)
    refused(sptlib("show", "xyz", "--store", place), "0 entries")


# --- export -------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_export_has_a_row_per_run(place, computed, tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    read = pd.read_csv if suffix == "csv" else pd.read_parquet
    done = sptlib("export", path, "--store", place)
    assert (done.exit_code, done.stdout) == (0, f"8 Runs written to {path}\n")
    table = read(path)
    runs = [e for e in computed.entries() if isinstance(e.spec, Run)]
    assert list(table["key"]) == [e.key for e in runs]
    assert list(table["test_accuracy"]) == [e.result["test_accuracy"] for e in runs]
    done = sptlib("export", path, "--pretrainings", "--store", place)
    assert done.stdout == f"11 trainings written to {path}\n"
    assert list(read(path)["kind"]).count("pretraining") == 3
    words = ("--experiment", "few_labels", "--preset", "smoke", "--seeds")
    assert sptlib("export", path, *words, "1", "--store", place).stdout.startswith("8 Runs")
    refused(sptlib("export", path, *words, "2", "--store", place), "lacks a training of seed 1")


def test_export_of_logs(place, computed, tmp_path):
    path = tmp_path / "log.csv"
    done = sptlib("export", path, "--log", "--pretrainings", "--store", place)
    found = export.opened(place)
    lines = [(e.key, line) for e in found.entries() for line in e.metrics]
    assert done.stdout == f"11 trainings, {len(lines)} logged lines, written to {path}\n"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, (name, line) in zip(rows, lines, strict=True):
        assert row["key"] == name
        told = {k: v for k, v in row.items() if v != "" and k != "key"}
        assert told.keys() == line.keys()
        for field, value in line.items():  # True is "True", 0.1 is "0.1"
            assert told[field] == (value if isinstance(value, str) else repr(value))
    assert sptlib("export", path, "--log", "--store", place).stdout.startswith("8 Runs, ")


def test_export_of_nothing_is_a_header(tmp_path):
    path = tmp_path / "x.csv"
    done = sptlib("export", path, "--store", tmp_path / "nowhere")
    assert (done.exit_code, done.stdout) == (0, f"0 Runs written to {path}\n")
    assert list(pd.read_csv(path))[:2] == ["key", "kind"]
    assert not (tmp_path / "nowhere").exists()


def test_export_refuses_other_files(place, tmp_path):
    refused(sptlib("export", tmp_path / "x.xlsx", "--store", place), ".csv or .parquet")
    refused(sptlib("export", tmp_path / "x.jsonl", "--store", place), "--metrics-only")
    refused(sptlib("export", tmp_path / "x.csv", "--metrics-only", "--store", place), ".jsonl")
    words = ("export", tmp_path / "x.jsonl", "--metrics-only", "--log")
    refused(sptlib(*words, "--store", place), "thinned logs")
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == []


# --- verify -------------------------------------------------------------------------------------


def test_verify_and_repair(filled):
    (filled.path / "notes").mkdir()
    bad = spoil(filled)
    done = sptlib("verify", "--store", filled.path)
    assert done.exit_code == 1
    assert done.stdout == f"11 results in {filled.path}, 1 damaged\n"
    assert [bad in line for line in done.stderr.splitlines()] == [True]
    done = sptlib("verify", "--repair", "--store", filled.path)
    assert (done.exit_code, filled.find(bad)) == (0, None)
    assert done.stdout == f"11 results in {filled.path}, 1 damaged, 1 of them removed\n"
    done = sptlib("verify", "--store", filled.path)
    assert done.exit_code == 0
    assert done.stderr == ""
    assert (filled.path / "notes").is_dir()


def test_repair_leaves_what_is_in_use(filled):
    bad = spoil(filled)
    with upkeep.holding(filled, bad):
        assert sptlib("verify", "--repair", "--store", filled.path).exit_code == 1
    assert filled.find(bad) is not None


def test_recompute(place):
    words = ("verify", "--recompute", "2", "--choose", "3", "--workers", "1", "--store", place)
    done = sptlib(*words)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == f"11 results in {place}, 0 damaged"
    assert lines[1].startswith("recomputing 2 Runs, ")
    assert "in 1 processes" in lines[1]
    assert all(": identical: " in line for line in lines[2:-1])
    counts = f"{len(lines) - 3} identical, 0 different, 0 failed; 0 Runs not compared"
    assert lines[-1].endswith(counts)
    assert sptlib(*words).stdout.splitlines()[2:-1] == lines[2:-1]


@pytest.mark.parametrize("here", [True, False], ids=["here", "elsewhere"])
def test_recomputed_numbers_that_differ(shipped, here):
    path = shipped / "few_labels.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["result"]["val_loss"] += 1e-3
        if not here:
            row["environment"]["threads"] = 7
    export.write_rows(path, rows)
    words = ("verify", "--recompute", "1", "--workers", "1", "--store", shipped)
    done = sptlib(*words)
    assert done.exit_code == here
    assert "largest difference 0.001, at val_loss of the result" in done.stdout
    assert ("(another environment: threads 7, here 1)" in done.stdout) != here
    assert ("training amplifies it" in done.stdout) != here
    if not here:
        for row in rows:
            row["result"]["test_accuracy"] = row["result"].get("test_accuracy", 0) - 0.1
        export.write_rows(path, rows)
        assert sptlib(*words).exit_code == 1
        assert sptlib(*words, "--tolerance", "0.2").exit_code == 0


def test_what_cannot_be_recomputed_is_said(filled):
    for entry in filled.entries():
        os.replace(entry.path, filled.path / f"{entry.key[:-4]}0000")
    words = ("verify", "--recompute", "3", "--workers", "1", "--store", filled.path)
    done = sptlib(*words)
    assert done.exit_code == 1  # nothing was shown
    assert done.stdout.count("not compared: it was computed on other data") == 3
    assert "3 Runs chosen, none can be recomputed here" in done.stdout


# --- prune --------------------------------------------------------------------------------------


def test_prune_shows_and_removes_with_yes(filled, tiny):
    before = {e.key: e.read("result.json") for e in filled.entries()}
    stale = filled.path / ("0" * 20)
    shutil.copytree(next(filled.entries()).path, stale)
    filled.fail(tiny, [], "diverged")
    (filled.path / "mine.txt").write_text("mine")
    done = sptlib("prune", "--store", filled.path)
    assert done.exit_code == 0
    assert "1 × result on other data than there are now" in done.stdout
    assert "nothing is removed yet: repeat it with --yes" in done.stdout
    assert stale.is_dir()
    done = sptlib("prune", "--yes", "--store", filled.path)
    assert done.stdout.splitlines()[-1].startswith("1 things, ")
    assert not stale.exists()
    assert len(upkeep.work(filled)) == 1
    assert "log of a training that failed" in sptlib(
        "prune", "--failed", "--yes", "--store", filled.path
    ).stdout
    assert sptlib("prune", "--store", filled.path).stdout == f"nothing to remove in {filled.path}\n"
    assert {e.key: e.read("result.json") for e in filled.entries()} == before
    assert (filled.path / "mine.txt").read_text() == "mine"
    assert sptlib("verify", "--store", filled.path).exit_code == 0


def test_prune_keeps_what_experiments_need(filled, tiny):
    fields = {"stage": "finetune", "step": 1, "loss": 1.0}
    about = {"metrics": [fields], "model": {}, "environment": {"seconds": 1}}
    filled.put(tiny, **about, result={"test_accuracy": 0.5, "val_loss": 1.0})
    words = ("prune", "--store", filled.path)
    done = sptlib(*words, "--keep", "few_labels:smoke:1", "--yes")
    assert "1 × result that --keep does not name" in done.stdout
    assert len(list(filled.entries())) == 11
    needed = {digest(case.run) for case in few_labels.cases("smoke", 1)}
    both = ("--keep", "few_labels:smoke:2", "--keep", "synthetic")
    assert "nothing to remove" in sptlib(*words, *both).stdout
    assert needed < {digest(e.spec) for e in filled.entries()}
    assert "11 × result that" in sptlib(*words, "--keep", "few_labels").stdout
    assert "11 × result that" in sptlib(*words, "--keep", "few_labels:tune").stdout
    refused(sptlib(*words, "--keep", "few_label"), "did you mean 'few_labels'?")
    refused(sptlib(*words, "--keep", "few_labels:smok"), "did you mean 'smoke'?")
    refused(sptlib(*words, "--keep", "few_labels:smoke:x"), "EXPERIMENT[:PRESET[:SEEDS]]")
    refused(sptlib(*words, "--keep", "duration:tune"), "searches no rates")


def test_exported_results_are_only_read(shipped):
    before = {p.name: p.read_bytes() for p in shipped.iterdir()}
    for words in (("prune",), ("prune", "--yes"), ("verify", "--repair")):
        refused(sptlib(*words, "--store", shipped), "exported results, which are only read")
    assert {p.name: p.read_bytes() for p in shipped.iterdir()} == before
