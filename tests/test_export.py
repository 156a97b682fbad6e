"""Results without weights: what is written, read back, and refused."""

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
    assert len(study.entries) == 4 + 2
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
    assert len(Study(folder).entries) == 7


def test_the_command_writes_the_same_file(full, folder, tmp_path):
    out = tmp_path / "again" / "replication.jsonl"
    command = ["runs", "export", str(out), "--metrics-only", "--store", str(full.path)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert out.read_bytes() == (folder / "replication.jsonl").read_bytes()
    command += ["--experiment", "replication", "--preset", "smoke", "--seeds", "1"]
    done = CliRunner().invoke(main, command)
    assert (done.exit_code, "lacks a training of seed 0" in done.stderr) == (1, True)
