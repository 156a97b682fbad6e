"""Sweeps: each thing once, failures do not spread, the same bytes with and without Dask."""

from dataclasses import replace

import pytest

from sptlib import sweep
from sptlib.config import key, to_dict
from sptlib.errors import ConfigError, StoreError
from sptlib.store import Store
from sptlib.sweep import SweepError, compute_all

SAME = ("config.json", "metrics.jsonl", "result.json", "model.safetensors")


@pytest.fixture
def arms(tiny):
    """Four arms of seed 0 and one of seed 1: two pretrainings."""
    return [
        tiny,
        replace(tiny, transfer=("qk",)),
        replace(tiny, freeze=("qk",)),
        replace(tiny, pretrain=None),
        replace(tiny, seed=1),
    ]


def diverging(run):
    return replace(run, finetune=replace(run.finetune, lr=1e38, warmup_steps=0))


def no_dask(*arguments, **options):
    raise AssertionError("Dask was started")


def test_shared_pretrainings_are_computed_once(arms, store, trained):
    entries = compute_all([*arms, arms[0]], store, workers=1)
    assert sorted(trained) == 5 * ["finetune"] + 2 * ["pretrain"]
    assert [entry.spec for entry in entries] == [*arms, arms[0]]
    assert len(list(store.entries())) == 7
    again = compute_all(arms, store, workers=1)
    assert len(trained) == 7
    assert [e.key for e in again] == [e.key for e in entries[:5]]


def test_pretrainings_can_be_asked_for_by_themselves(tiny, store, trained):
    compute_all([tiny.pretraining, tiny], store, workers=1)
    assert trained == ["pretrain", "finetune"]


def test_what_is_stored_needs_no_workers(arms, store, monkeypatch):
    compute_all(arms, store, workers=1)
    monkeypatch.setattr(sweep, "_on_dask", no_dask)
    monkeypatch.setattr(sweep, "_here", no_dask)
    assert len(compute_all(arms, store, workers=2)) == 5


def test_recompute_computes_everything_anew(arms, store, trained):
    compute_all(arms, store, workers=1)
    trained.clear()
    compute_all(arms, store, workers=1, recompute=True)
    assert sorted(trained) == 5 * ["finetune"] + 2 * ["pretrain"]


def test_a_failing_run_does_not_stop_the_others(arms, store):
    bad = diverging(arms[0])
    with pytest.raises(SweepError, match="1 failed, the others are stored") as caught:
        compute_all([bad, *arms], store, workers=1)
    assert list(caught.value.failed) == [key(bad)]
    assert "finetune diverged" in str(caught.value)
    assert all(store.get(run) is not None for run in arms)
    assert store.get(bad) is None


def test_dask_computes_the_same_bytes(arms, tmp_path):
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    compute_all(arms, here, workers=1)
    bad = diverging(arms[0])
    lost = replace(arms[1], pretrain=replace(arms[1].pretrain, lr=1e38, warmup_steps=0))
    with pytest.raises(SweepError) as caught:  # also there, failures do not spread
        compute_all([bad, lost, *arms], there, workers=2)
    assert set(caught.value.failed) == {key(bad), key(lost)}
    assert "finetune diverged" in caught.value.failed[key(bad)]
    assert "its pretraining failed: pretrain diverged" in caught.value.failed[key(lost)]
    ours, theirs = list(here.entries()), list(there.entries())
    assert [e.key for e in ours] == [e.key for e in theirs]
    assert len(ours) == 7
    for a, b in zip(ours, theirs, strict=True):
        b.verify()
        assert all(a.read(name) == b.read(name) for name in SAME)


def test_a_node_of_the_graph_says_why_it_failed(tiny, tmp_path):
    options = {"store": str(tmp_path), "device": "cpu", "recompute": False}
    assert sweep._work(to_dict(tiny), options, "no luck") == "its pretraining failed: no luck"
    assert sweep._work(to_dict(tiny), options, "") == ""
    assert Store(tmp_path).get(tiny) is not None
    assert "diverged" in sweep._work(to_dict(diverging(tiny)), options, None)


def test_a_scheduler_that_is_none(tiny, store):
    for address in ("nonsense", "ftp://host:1"):
        with pytest.raises(ConfigError, match=f"no Dask scheduler answers at '{address}'"):
            compute_all([tiny], store, scheduler=address)


def test_no_process_is_started_for_a_sweep_that_cannot_work(arms, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "_on_dask", no_dask)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        compute_all(arms, Store(tmp_path / "file"), workers=2)
    with pytest.raises(ConfigError, match="unknown device"):
        compute_all(arms, Store(tmp_path / "store"), workers=2, device="gpu")
