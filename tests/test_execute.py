"""From a Run to its stored result: computed once, everywhere the same bytes, unhurt by failures."""

import json
import os
from dataclasses import replace

import pytest
import torch

from sptlib import environment, execute, train
from sptlib.config import NUMERICS, Run
from sptlib.errors import ConfigError, DivergedError, Stopped
from sptlib.execute import Where, compute
from sptlib.store import Store

SAME = ("config.json", "metrics.jsonl", "result.json", "model.safetensors")


def diverging(run: Run, stage: str) -> Run:
    config = replace(getattr(run, stage), lr=1e38, warmup_steps=0)
    return replace(run, **{stage: config})


@pytest.mark.parametrize("which", ["tiny", "tiny_image"])
def test_the_same_run_in_two_stores_is_byte_identical(which, request, tmp_path, where):
    run = request.getfixturevalue(which)
    stores = [Store(tmp_path / name) for name in "ab"]
    for store in stores:
        torch.manual_seed(ord(store.path.name))  # nothing may depend on the global generator
        compute(run, store, where)
        store.get(run).verify()
    for spec in (run, run.pretraining):
        a, b = (store.get(spec) for store in stores)
        for name in SAME:
            assert a.read(name) == b.read(name), name


def test_how_it_is_watched_and_saved_changes_nothing(tiny, tmp_path, where):
    a = compute(tiny, Store(tmp_path / "a"), where)
    calls = []
    watched = Where(device="cpu", checkpoint_steps=1, progress=lambda *values: calls.append(values))
    b = compute(tiny, Store(tmp_path / "b"), watched)
    assert all(a.read(name) == b.read(name) for name in SAME)
    assert {stage for stage, *_ in calls} == {"pretrain", "finetune"}
    assert calls[-1][1] == calls[-1][2] == 12


def test_nothing_is_computed_twice(tiny, store, where, trained):
    entry = compute(tiny, store, where)
    assert trained == ["pretrain", "finetune"]
    times = {path: path.stat().st_mtime_ns for path in entry.path.iterdir()}
    assert compute(tiny, store, where).key == entry.key
    assert compute(tiny.pretraining, store, where).key == store.get(tiny.pretraining).key
    assert trained == ["pretrain", "finetune"]
    compute(replace(tiny, transfer=("qk",)), store, where)  # another arm shares the pretraining
    compute(replace(tiny, model=replace(tiny.model, pooling="max")), store, where)
    compute(replace(tiny, pretrain=None), store, where)
    assert trained == ["pretrain", "finetune"] + 3 * ["finetune"]
    assert {path: path.stat().st_mtime_ns for path in entry.path.iterdir()} == times
    assert compute(tiny, store, where, recompute=True).key == entry.key
    assert trained == ["pretrain", "finetune"] + 4 * ["finetune"]
    assert len(list(store.entries())) == 5


def test_a_resumed_training_has_moved_as_far_as_an_undisturbed_one(tiny, tmp_path, where):
    broken, whole = Store(tmp_path / "a"), Store(tmp_path / "b")
    for stop_at in (5, 9):  # not from where it went on, but from the start
        steps = []
        stopped = replace(
            where, stop=lambda steps=steps, n=stop_at: steps.append(1) or len(steps) >= n
        )
        with pytest.raises(Stopped):
            compute(tiny, broken, stopped)
    for spec in (tiny.pretraining, tiny):
        a, b = (compute(spec, store, where).result for store in (broken, whole))
        moved = {name: value for name, value in b.items() if name.startswith("moved_")}
        assert moved["moved_qk"] > 0
        assert moved.items() <= a.items()


def test_two_who_want_the_same_compute_it_once(tiny, store, where, monkeypatch):
    """The second one finds the result once it has the lock."""
    original, calls = Store.lock, []

    def lock(self, spec):
        calls.append(spec)
        if len(calls) == 1:  # somebody else is faster, between our look and our lock
            compute(tiny.pretraining, Store(self.path), where)
        return original(self, spec)

    monkeypatch.setattr(Store, "lock", lock)
    trained = []
    train = execute.pretrain
    monkeypatch.setattr(execute, "pretrain", lambda *a: (trained.append(1), train(*a))[1])
    compute(tiny.pretraining, store, where).verify()
    assert len(calls) == 2
    assert len(trained) == 1


def test_metrics_and_result(tiny, store, where):
    entry = compute(tiny, store, where)
    steps = [line["step"] for line in entry.metrics if "loss" in line]
    assert steps == list(range(1, 13))
    assert [line["step"] for line in entry.metrics if "best" in line] == [4, 8, 12]
    assert {line["stage"] for line in entry.metrics} == {"finetune"}
    assert entry.result["steps"] == 12
    assert 0 <= entry.result["test_accuracy"] <= 1
    pretraining = store.get(tiny.pretraining)
    assert {line["stage"] for line in pretraining.metrics} == {"pretrain"}
    assert "test_accuracy" not in pretraining.result
    assert set(pretraining.result) >= {"val_loss", "val_accuracy", "steps", "best_step"}
    environment = entry.environment
    assert (environment["device"], environment["threads"]) == ("cpu", 1)
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["seconds"] >= 0
    assert (environment["processes"], environment["accumulate"]) == (1, 1)
    assert environment["precision"] == "fp32"
    assert "accelerate" not in environment["versions"]  # it was not used
    assert json.loads(entry.read("config.json"))["numerics"] == NUMERICS


@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
def test_a_diverged_training_keeps_its_log_and_can_be_tried_again(tiny, store, where, stage):
    run = diverging(tiny, stage)
    failing = run.pretraining if stage == "pretrain" else run
    for _ in range(2):  # the second time from the start, not from what the first one left
        with pytest.raises(DivergedError, match=f"{stage} diverged.*at step 2;"):
            compute(run, store, Where(device="cpu", checkpoint_steps=1))
        assert store.get(failing) is None
        work = store.work_folder(failing)
        assert sorted(p.name for p in work.iterdir()) == [
            "config.json",
            "error.txt",
            "metrics.jsonl",
        ]
        log = [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in log] == [1, 2]
        assert "at step 2" in (work / "error.txt").read_text()
    assert store.get(run) is None
    assert (store.get(run.pretraining) is None) is (stage == "pretrain")


def test_a_retry_that_works_cleans_up(tiny, store, where, monkeypatch):
    original = execute.pretrain

    def failing(*arguments):
        raise DivergedError("pretrain", 1, [{"stage": "pretrain", "step": 1, "loss": float("nan")}])

    monkeypatch.setattr(execute, "pretrain", failing)
    with pytest.raises(DivergedError):
        compute(tiny, store, where)
    monkeypatch.setattr(execute, "pretrain", original)
    compute(tiny, store, where).verify()
    assert list((store.path / ".work").iterdir()) == []


def test_the_time_of_all_parts_counts(tiny, store, monkeypatch, where):
    now = [0.0]
    monkeypatch.setattr(train.time, "monotonic", lambda: now[0])
    steps, batch = [], train.Stage.batch

    def slow(self, step):
        now[0] += 10
        steps.append((self.name, step))
        return batch(self, step)

    monkeypatch.setattr(train.Stage, "batch", slow)
    with pytest.raises(Stopped):
        compute(tiny.pretraining, store, replace(where, stop=lambda: len(steps) == 5))
    now[0] += 1000  # nobody worked meanwhile
    assert compute(tiny.pretraining, store, where).environment["seconds"] == 120
    assert len(steps) == 12


def test_somebody_else_may_write_where_we_tidy_up(tiny, store, where, monkeypatch):
    """A lease that was taken over: another process writes its checkpoint beside ours."""
    work = store.work_folder(tiny.pretraining)
    original, done = os.unlink, []

    def unlink(path, *arguments, **options):  # just while the folder is being emptied
        original(path, *arguments, **options)
        if not done and str(path).endswith("checkpoint.safetensors"):
            done.append(path)
            (work / "checkpoint.abc.tmp").write_bytes(b"new")

    monkeypatch.setattr(os, "unlink", unlink)
    compute(tiny.pretraining, store, replace(where, checkpoint_steps=5)).verify()
    assert len(done) == 1
    assert [path.name for path in work.iterdir()] == ["checkpoint.abc.tmp"]
    assert store.get(tiny.pretraining) is not None


def test_threads_are_set_and_put_back(tiny, store, monkeypatch):
    during = []
    original = execute.pretrain
    monkeypatch.setattr(
        execute, "pretrain", lambda *a: (during.append(torch.get_num_threads()), original(*a))[1]
    )
    before = torch.get_num_threads()
    compute(tiny.pretraining, store, Where(device="cpu", threads=2))
    assert during == [2]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("device", "words"),
    [("gpu", "unknown device 'gpu'"), ("cuda:9", "sees 0 CUDA devices"), ("cuda", "--device cpu")],
)
def test_devices_that_are_not_there(device, words, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=words):
        Where(device=device).torch_device()


def test_auto_is_a_gpu_if_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Where().torch_device().type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert Where().torch_device().type == "cuda"


def test_no_git_is_no_commit(monkeypatch):
    def missing(*arguments, **options):
        raise FileNotFoundError("git")

    monkeypatch.setattr(environment.subprocess, "run", missing)
    assert environment.commit() == ""


def test_the_processor_has_a_name(monkeypatch):
    monkeypatch.setattr(environment.platform, "processor", lambda: "abacus")
    text = "processor : 0\nmodel name\t: Fast CPU @ 3\nmodel name\t: Fast CPU @ 3\n"
    monkeypatch.setattr(environment.Path, "read_text", lambda path: text)
    assert environment.processor() == "Fast CPU @ 3"
    monkeypatch.setattr(environment.Path, "read_text", lambda path: "nothing of that kind")
    assert environment.processor() == "abacus"

    def missing(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(environment.Path, "read_text", missing)
    assert environment.processor() == "abacus"
