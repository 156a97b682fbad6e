"""Results without weights: what is written, read back, and refused."""

import hashlib
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from sptlib import export
from sptlib.cli import main
from sptlib.errors import StoreError
from sptlib.execute import compute
from sptlib.experiments import base, replication
from sptlib.export import Study
from sptlib.store import Store


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> Store:
    """The smoke replication of two tasks, one seed."""
    store = Store(tmp_path_factory.mktemp("full"))
    base.collect(small(), store, workers=1)
    return store


def small() -> list[base.Case]:
    return replication.cases("smoke", 1, tasks=["listops", "text:direction"])


@pytest.fixture
def folder(full, tmp_path):
    export.write(tmp_path / "replication.jsonl", base.stored(small(), full))
    return tmp_path


def test_what_is_shipped_tells_the_same_as_the_store(full, folder):
    study = Study(folder)
    assert len(list(study.entries())) == 4 + 2
    for case in small():
        entry, shipped = full.get(case.run), study.get(case.run)
        assert shipped.key == entry.key
        assert shipped.spec == case.run
        assert shipped.result == entry.result
        assert shipped.environment == entry.environment
        assert base.evaluations(shipped).equals(base.evaluations(entry))
    results = base.collect(small(), full)
    live = replication.table(results)
    later = replication.table(base.shipped(small(), study))
    assert later.equals(live)


def test_other_configurations_are_not_found(folder, monkeypatch):
    study = Study(folder)
    run = small()[0].run
    assert study.get(replace(run, seed=5)) is None
    assert base.shipped(small(), Study(folder / "nowhere")) == []
    monkeypatch.setattr("sptlib.config.NUMERICS", 999)
    assert study.get(run) is None, "results of another arithmetic are not served"


def test_a_study_is_looked_at_like_a_store(full, folder):
    study, keys = Study(folder), [e.key for e in full.entries()]
    assert [e.key for e in study.entries()] == keys
    assert study.match(keys[0][:9]).key == study.find(keys[0]).key == keys[0]
    assert study.find("0" * 20) is None
    with pytest.raises(StoreError, match="6 entries"):
        study.match("")
    shipped, entry = study.find(keys[0]), full.find(keys[0])
    for name in ("config", "result", "environment"):
        assert export.part(shipped, name) == export.part(entry, name)
    assert export.is_current(shipped)
    # what is exported once more is the same file
    export.write(folder / "again" / "replication.jsonl", study.entries())
    again = (folder / "again" / "replication.jsonl").read_bytes()
    assert again == (folder / "replication.jsonl").read_bytes()


def test_what_lies_in_a_folder(full, folder, tmp_path_factory):
    nowhere = tmp_path_factory.mktemp("x") / "nowhere"
    assert export.is_export(folder)
    assert isinstance(export.opened(folder), Study)
    entry = next(full.entries())
    for store in (full.path, entry.path, nowhere):
        assert not export.is_export(store)
        assert export.run_store(store).path == export.opened(str(store)).path == store
    with pytest.raises(StoreError, match="only read; name a run store"):
        export.run_store(folder)
    # who exports into the folder of a store still has a store
    copy = Store(nowhere)
    copy.unpack(entry.key, entry.pack())
    export.write(copy.path / "mine.jsonl", copy.entries())
    assert not export.is_export(copy.path)
    assert isinstance(export.opened(copy.path), Store)


def test_the_default_place_may_be_an_export(folder, monkeypatch):
    monkeypatch.setenv("SPTLIB_STORE", str(folder))
    assert isinstance(export.opened(), Study)
    with pytest.raises(StoreError, match="exported results"):
        export.run_store()


@pytest.mark.parametrize("change", [{"numerics": 0}, {"schema": 99}, {"versions": {"files": 0}}])
def test_results_of_other_versions_are_listed_but_not_served(folder, change):
    rows = [json.loads(x) for x in (folder / "replication.jsonl").read_text().splitlines()]
    for row in rows:
        row["versions" if "versions" in change else "config"] |= change.get("versions", change)
    export.write_rows(folder / "replication.jsonl", rows)
    study = Study(folder)
    assert len(list(study.entries())) == 6
    assert not any(map(export.is_current, study.entries()))
    assert study.get(small()[0].run) is None
    assert study.faults == []


def test_a_line_that_is_no_result_is_named_and_the_others_are_read(folder):
    path = folder / "replication.jsonl"
    lines = path.read_text().splitlines()
    row = json.loads(lines[3])
    del row["result"]
    wrong = json.loads(lines[4])
    wrong["config"]["task"]["name"] = "image"
    for number, line in ((2, "{"), (3, json.dumps(row)), (4, json.dumps(wrong)), (5, "[1]")):
        lines[number] = line
    path.write_text("\n".join(lines) + "\n")
    sums = json.loads((folder / "manifest.json").read_text())
    sums[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    sums["gone.jsonl"] = "0" * 64
    (folder / "manifest.json").write_text(json.dumps(sums))
    study = Study(folder)
    assert len(list(study.entries())) == 2
    assert len(study.faults) == 5
    for number, fault in zip((3, 4, 5, 6), study.faults, strict=False):
        assert f"replication.jsonl:{number} is no result" in str(fault)
    assert "gone.jsonl is missing" in str(study.faults[-1])


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_manifest_is_said(full, folder, text):
    (folder / "manifest.json").write_text(text)
    (fault,) = Study(folder).faults
    assert "manifest.json" in str(fault)
    with pytest.raises(StoreError, match=r"manifest\.json"):
        export.write(folder / "more.jsonl", full.entries())
    assert not (folder / "more.jsonl").exists()


def test_gathering_names_what_cannot_be_read(full, tmp_path):
    store = Store(tmp_path / "store")
    for entry in full.entries():
        store.unpack(entry.key, entry.pack())
    bad = next(store.entries())
    (bad.path / "manifest.json").write_text("3")
    made, left_out = export.gather(store.entries(), export.row)
    assert len(made) == 5
    assert len(left_out) == 1
    assert left_out[0].startswith(f"{bad.key}: ")


@pytest.mark.parametrize("damage", [lambda p: p.write_bytes(p.read_bytes()[:-10]),
                                    lambda p: p.unlink()])  # fmt: skip
def test_altered_files_are_refused(folder, damage):
    damage(folder / "replication.jsonl")
    with pytest.raises(StoreError, match=r"replication\.jsonl is missing or altered"):
        Study(folder).get(small()[0].run)


def test_losses_are_thinned_to_means_and_evaluations_kept():
    log = [{"stage": "finetune", "step": s, "loss": float(s)} for s in range(1, 251)]
    log.insert(100, {"stage": "finetune", "step": 100, "val_loss": 0.5, "best": True})
    thin = export.thinned(log)
    losses = [x for x in thin if "loss" in x]
    assert len(losses) == 84  # ceil(250 / 3), the last mean is over one step
    assert losses[0] == {"stage": "finetune", "step": 3, "loss": 2.0}
    assert losses[-1] == {"stage": "finetune", "step": 250, "loss": 250.0}
    assert [x for x in thin if "best" in x] == [log[100]]
    assert [x["step"] for x in thin] == sorted(x["step"] for x in thin)


def test_a_second_file_joins_the_manifest(full, folder, tiny, store, where):
    entry = compute(tiny, store, where)
    export.write(folder / "other.jsonl", [entry])
    assert set(json.loads((folder / "manifest.json").read_text())) == {
        "other.jsonl", "replication.jsonl",
    }  # fmt: skip
    assert len(list(Study(folder).entries())) == 7


def test_the_command_writes_the_same_file(full, folder, tmp_path):
    out = tmp_path / "again" / "replication.jsonl"
    command = ["runs", "export", str(out), "--metrics-only", "--store", str(full.path)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert out.read_bytes() == (folder / "replication.jsonl").read_bytes()
    command += ["--experiment", "replication", "--preset", "smoke", "--seeds", "1"]
    done = CliRunner().invoke(main, command)
    assert (done.exit_code, "lacks a training of seed 0" in done.stderr) == (1, True)
