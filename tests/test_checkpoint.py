"""Checkpoints: an interrupted training continues where it was and ends in the same bytes."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from sptlib import checkpoint as module
from sptlib import tasks, train
from sptlib.checkpoint import Checkpoint
from sptlib.config import ModelConfig, to_dict
from sptlib.execute import Where, compute
from sptlib.model import build
from sptlib.store import Store
from sptlib.train import State

RESULTS = ("config.json", "metrics.jsonl", "result.json", "model.safetensors")


class Killed(BaseException):
    """Stands for whatever ends a process without any clean-up of ours."""


def interrupt(stage: str, at: int):
    """A progress callback that ends the process's work at a step of a stage."""

    def callback(name, step, n_steps, loss):
        if name == stage and step >= at:
            raise Killed

    return callback


def count_steps(monkeypatch) -> list[tuple[str, int]]:
    """Every step that is computed from now on, as (stage, step)."""
    steps, batch = [], train.Stage.batch

    def spy(self, step):
        steps.append((self.name, step))
        return batch(self, step)

    monkeypatch.setattr(train.Stage, "batch", spy)
    return steps


def results(store: Store, spec) -> list[bytes]:
    entry = store.get(spec)
    entry.verify()
    return [entry.read(name) for name in RESULTS]


# --- killed in mid-pretraining: a real process, a real SIGKILL ----------------------------------

KILL_ME = """
import json, sys, time
from sptlib.config import from_dict
from sptlib.execute import Where, compute
from sptlib.store import Store
slowly = lambda *values: time.sleep(0.1)  # so that there is time to kill it
compute(from_dict(json.loads(sys.argv[1])), Store(sys.argv[2]),
        Where(device="cpu", checkpoint_steps=7, progress=slowly))
"""


def test_killed_pretraining_resumes_and_ends_in_the_same_bytes(tiny, tmp_path, monkeypatch, where):
    run = replace(tiny, pretrain=replace(tiny.pretrain, epochs=100, n_evals=20))  # 300 steps
    store = Store(tmp_path / "killed")
    file = store.work_folder(run.pretraining) / "checkpoint.safetensors"
    process = subprocess.Popen(
        [sys.executable, "-c", KILL_ME, json.dumps(to_dict(run)), str(store.path)],
        stderr=subprocess.PIPE,
    )
    try:
        end = time.monotonic() + 90
        while not file.exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert list(store.entries()) == []

    steps = count_steps(monkeypatch)
    compute(run, store, where)
    first = steps[0][1]
    assert 0 < first < 300  # it went on in the middle
    assert first % 7 == 0
    assert [s for name, s in steps if name == "pretrain"] == list(range(first, 300))
    undisturbed = Store(tmp_path / "undisturbed")
    compute(run, undisturbed, where)
    for spec in (run, run.pretraining):
        assert results(store, spec) == results(undisturbed, spec)
        assert not (store.path / ".work" / store.get(spec).key).exists()


# --- in process ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.1, "clip": 0.5}, {"patience": 4}], ids=str
)
@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
def test_interrupted_training_ends_in_the_same_bytes(
    tiny, tmp_path, monkeypatch, where, stage, options
):
    run = replace(
        tiny,
        model=replace(tiny.model, dropout=0.2),
        freeze=("vo",),
        **{stage: replace(getattr(tiny, stage), epochs=10, n_evals=9, **options)},
    )
    store, undisturbed = Store(tmp_path / "a"), Store(tmp_path / "b")
    compute(run, undisturbed, where)
    steps = count_steps(monkeypatch)
    for at in (5, 12):  # twice, and the second time from the first one's checkpoint
        with pytest.raises(Killed):
            compute(
                run, store, Where(device="cpu", checkpoint_steps=3, progress=interrupt(stage, at))
            )
    compute(run, store, Where(device="cpu", checkpoint_steps=3))
    mine = [step for name, step in steps if name == stage]
    starts = [i for i in range(1, len(mine)) if mine[i] <= mine[i - 1]]
    assert len(starts) == 2
    assert all(mine[i] > 0 and mine[i] % 3 == 0 for i in starts)
    if stage == "finetune":  # the finished pretraining was not computed again
        assert [step for name, step in steps if name == "pretrain"] == list(range(12))
    for spec in (run, run.pretraining):
        assert results(store, spec) == results(undisturbed, spec)


def test_interrupted_at_the_very_end(tiny, tmp_path, where, monkeypatch):
    """The last checkpoint holds a finished training: nothing is left to do but to store it."""
    store = Store(tmp_path / "a")
    original = Store.put
    monkeypatch.setattr(Store, "put", lambda *a, **k: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        compute(tiny.pretraining, store, Where(device="cpu", checkpoint_steps=12))
    monkeypatch.setattr(Store, "put", original)
    steps = count_steps(monkeypatch)
    compute(tiny.pretraining, store, where)
    assert steps == []
    compute(tiny.pretraining, Store(tmp_path / "b"), where)
    assert results(store, tiny.pretraining) == results(Store(tmp_path / "b"), tiny.pretraining)


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize(
    "spoil",
    [
        _truncate,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\0" * 500),
        lambda path: path.write_bytes(b"not a checkpoint at all"),
        lambda path: path.rename(path.with_suffix(".tmp")),
    ],
    ids=["truncated", "empty", "zeros", "text", "only a draft"],
)
def test_an_unreadable_checkpoint_is_as_good_as_none(tiny, tmp_path, monkeypatch, where, spoil):
    store = Store(tmp_path / "a")
    with pytest.raises(Killed):
        compute(
            tiny, store, Where(device="cpu", checkpoint_steps=3, progress=interrupt("pretrain", 8))
        )
    (file,) = store.path.glob(".work/*/checkpoint.safetensors")
    spoil(file)
    steps = count_steps(monkeypatch)
    compute(tiny, store, where)
    assert steps[0] == ("pretrain", 0)
    compute(tiny, Store(tmp_path / "b"), where)
    assert results(store, tiny) == results(Store(tmp_path / "b"), tiny)
    assert list(store.path.glob(".work/*")) == []


# --- the class by itself ------------------------------------------------------------------------


def make(seed: int, tiny):
    data = tasks.load(tiny.task, 0)
    model = build(ModelConfig(width=8), data, seed)
    trainable = [(n, p) for n, p in model.named_parameters() if not n.startswith("classifier")]
    optimizer = torch.optim.AdamW([p for _, p in trainable])
    return data, model, optimizer, trainable


def test_save_and_load_everything(tiny, tmp_path):
    data, model, optimizer, trainable = make(0, tiny)
    hidden = torch.ones_like(data.train.x, dtype=torch.bool)
    model.reconstruct(data.train.x, hidden).square().mean().backward()
    optimizer.step()
    best = {name: value + 1 for name, value in model.state_dict().items()}
    state = State(step=7, best_score=0.1 + 0.2, best_step=5, since_best=1, log=[{"loss": 1 / 3}])
    file = Checkpoint(tmp_path / "c.safetensors")
    assert not file.exists()
    file.save(state, model, optimizer, trainable, best)
    assert file.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["c.safetensors"]  # no draft is left

    _, other, other_optimizer, other_trainable = make(1, tiny)
    loaded, loaded_best = file.load(State, other, other_optimizer, other_trainable)
    assert dataclasses.asdict(loaded) == dataclasses.asdict(state)
    for ours, theirs in ((model.state_dict(), other.state_dict()), (best, loaded_best)):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for (name, a), (_, b) in zip(trainable, other_trainable, strict=True):
        moments, other_moments = optimizer.state.get(a, {}), other_optimizer.state.get(b, {})
        assert set(moments) == set(other_moments), name
        assert all(torch.equal(moments[m], other_moments[m]) for m in moments), name
    file.remove()
    file.remove()
    assert not file.exists()


def test_nothing_evaluated_yet_is_no_best(tiny, tmp_path):
    _, model, optimizer, trainable = make(0, tiny)
    file = Checkpoint(tmp_path / "c.safetensors")
    file.save(State(step=1), model, optimizer, trainable, {})
    state, best = file.load(State, model, optimizer, trainable)
    assert best == {}
    assert state.best_score == float("-inf")


def test_due_by_steps_and_by_time(monkeypatch, tmp_path):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    file = Checkpoint(tmp_path / "c", every_seconds=20, every_steps=5)
    assert [file.due(step) for step in range(1, 11)] == [s in (5, 10) for s in range(1, 11)]
    assert not Checkpoint(tmp_path / "c").due(5)
    now[0] += 20
    assert file.due(1)


def test_a_failing_save_leaves_the_last_checkpoint(tiny, tmp_path, monkeypatch):
    _, model, optimizer, trainable = make(0, tiny)
    file = Checkpoint(tmp_path / "c.safetensors")
    file.save(State(step=1), model, optimizer, trainable, {})

    def half(tensors, path, metadata):
        save_file(tensors, path, metadata)
        _truncate(path)
        raise OSError("disk full")

    monkeypatch.setattr(module, "save_file", half)
    with pytest.raises(OSError, match="disk full"):
        file.save(State(step=2), model, optimizer, trainable, {})
    assert file.load(State, model, optimizer, trainable)[0].step == 1
