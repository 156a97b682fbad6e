"""Checkpoints: an interrupted training continues where it was and ends in the same bytes."""

import dataclasses
import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from sptlib import checkpoint as module
from sptlib import cli, tasks, train
from sptlib.checkpoint import Checkpoint
from sptlib.config import ModelConfig, to_dict
from sptlib.errors import Stopped, StoreError
from sptlib.execute import Where, compute
from sptlib.model import build
from sptlib.signals import REPEAT_SECONDS
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
def slowly(*values):  # so that there is time to kill it
    assert "accelerate" not in sys.modules  # small runs do not pay for it
    time.sleep(0.1)
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


def _flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # the lowest bit of one moment
    path.write_bytes(content)


def _without_checksum(path):
    """As earlier versions wrote them."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    del metadata["sha256"]
    save_file(tensors, path, metadata=metadata)


def _of_another_model(path):
    state, tensors = Checkpoint(path)._read(State)
    tensors["model/more"] = torch.zeros(1)
    text = json.dumps(dataclasses.asdict(state))
    save_file(tensors, path, {"state": text, "sha256": module._digest(tensors, text)})


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_truncate, "cannot be used"),
        (_flip, "its checksum is wrong: the file is damaged"),
        (_without_checksum, "an earlier version of this library wrote it"),
        (_of_another_model, "its weights are those of another model"),
        (lambda path: path.write_bytes(b""), "cannot be used"),
        (lambda path: path.write_bytes(b"\0" * 500), "cannot be used"),
        (lambda path: path.write_bytes(b"not a checkpoint at all"), "cannot be used"),
        (lambda path: path.rename(path.with_suffix(".tmp")), ""),
    ],
    ids=[
        "truncated",
        "bit flipped",
        "no checksum",
        "other model",
        "empty",
        "zeros",
        "text",
        "only a draft",
    ],
)
def test_an_unusable_checkpoint_is_as_good_as_none(
    tiny, tmp_path, monkeypatch, where, capsys, spoil, why
):
    store = Store(tmp_path / "a")
    with pytest.raises(Killed):
        compute(
            tiny, store, Where(device="cpu", checkpoint_steps=3, progress=interrupt("pretrain", 8))
        )
    (file,) = store.path.glob(".work/*/checkpoint.safetensors")
    spoil(file)
    steps = count_steps(monkeypatch)
    capsys.readouterr()
    compute(tiny, store, where)
    assert steps[0] == ("pretrain", 0)
    said = capsys.readouterr().err
    if why:  # one line
        assert said.startswith(f"sptlib: the checkpoint {file} cannot be used (")
        assert why in said
        assert said.endswith("; this training starts anew\n")
        assert said.count("\n") == 1
    else:
        assert said == ""
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
    state = State(7, 0.1 + 0.2, best_step=5, since_best=1, seconds=1.5, log=[{"loss": 1 / 3}])
    file = Checkpoint(tmp_path / "c.safetensors")
    assert file.load(State, model, optimizer, trainable) is None
    weights = {0: model.state_dict(), 12: best}
    kept = {step: {k: v.clone() for k, v in of.items()} for step, of in weights.items()}
    file.save(state, model, optimizer, trainable, best, kept)
    assert [path.name for path in tmp_path.iterdir()] == ["c.safetensors"]  # no draft is left

    _, other, other_optimizer, other_trainable = make(1, tiny)
    loaded, loaded_best, loaded_seen = file.load(State, other, other_optimizer, other_trainable)
    assert dataclasses.asdict(loaded) == dataclasses.asdict(state)
    for ours, theirs in ((model.state_dict(), other.state_dict()), (best, loaded_best)):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert list(loaded_seen) == [0, 12]
    assert all(torch.equal(loaded_seen[s][n], v) for s in kept for n, v in kept[s].items())
    for (name, a), (_, b) in zip(trainable, other_trainable, strict=True):
        moments, other_moments = optimizer.state.get(a, {}), other_optimizer.state.get(b, {})
        assert set(moments) == set(other_moments), name
        assert all(torch.equal(moments[m], other_moments[m]) for m in moments), name
    file.remove()
    file.remove()
    assert list(tmp_path.iterdir()) == []


def test_nothing_evaluated_yet_is_no_best(tiny, tmp_path):
    _, model, optimizer, trainable = make(0, tiny)
    file = Checkpoint(tmp_path / "c.safetensors")
    file.save(State(step=1), model, optimizer, trainable, {})
    state, best, seen = file.load(State, model, optimizer, trainable)
    assert seen == {}
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
        raise OSError("the disk went away")

    monkeypatch.setattr(module, "save_file", half)
    with pytest.raises(OSError, match="the disk went away"):
        file.save(State(step=2), model, optimizer, trainable, {})
    assert file.load(State, model, optimizer, trainable)[0].step == 1
    assert [path.name for path in tmp_path.iterdir()] == ["c.safetensors"]


def test_a_full_disk(tiny, tmp_path):
    """A real one, as small as a process may have it: safetensors' own error is understood."""
    resource = pytest.importorskip("resource")
    _, model, optimizer, trainable = make(0, tiny)
    file = Checkpoint(tmp_path / "c.safetensors")
    file.save(State(step=1), model, optimizer, trainable, {})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"no space for the checkpoint .*c\.safetensors"):
            file.save(State(step=2), model, optimizer, trainable, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.load(State, model, optimizer, trainable)[0].step == 1
    assert [path.name for path in tmp_path.iterdir()] == ["c.safetensors"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        SafetensorError("Error while serializing: I/O error: No space left (os error 28)"),
        SafetensorError("IoError(Os { code: 28, kind: StorageFull, message: ... })"),  # 0.6
    ],
    ids=str,
)
def test_no_space_is_understood_however_it_is_said(tiny, tmp_path, monkeypatch, error):
    def full(*arguments, **options):
        raise error

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(StoreError, match=r"no space.*the same command goes on from there"):
        Checkpoint(tmp_path / "c").save(State(), *make(0, tiny)[1:], {})


def test_every_flipped_bit_is_noticed(tiny, tmp_path):
    """Spread over the whole file, header included; where nothing is refused, nothing differs."""
    _, model, optimizer, trainable = make(0, tiny)
    file = Checkpoint(tmp_path / "c.safetensors")
    file.save(State(step=1, log=[{"loss": 0.5}]), model, optimizer, trainable, {})
    whole = file.path.read_bytes()
    state, tensors = file._read(State)
    refused = 0
    for byte in range(0, len(whole), 37):
        spoilt = bytearray(whole)
        spoilt[byte] ^= 1 << byte % 8
        file.path.write_bytes(spoilt)
        try:
            other, others = file._read(State)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError):
            refused += 1
            continue
        assert other == state
        assert others.keys() == tensors.keys()
        assert all(torch.equal(others[name], tensors[name]) for name in tensors)
    assert refused > len(whole) / 37 * 0.95


def test_the_folder_may_be_gone_or_shared(tiny, tmp_path):
    """Whoever took a training over may tidy up, or write, at the same time."""
    _, model, optimizer, trainable = make(0, tiny)
    file = Checkpoint(tmp_path / "work" / "c.safetensors")
    file.save(State(step=1), model, optimizer, trainable, {})  # makes the folder
    (tmp_path / "work" / ".tmpAbC").touch()  # what safetensors leaves if it is killed
    (tmp_path / "work" / "c.123.tmp").touch()
    file.tidy()
    assert [path.name for path in file.path.parent.iterdir()] == ["c.safetensors"]


# --- stopped ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
def test_stopped_goes_on_to_the_same_bytes(tiny, tmp_path, monkeypatch, where, stage):
    store, steps = Store(tmp_path / "a"), count_steps(monkeypatch)
    asked = Where(device="cpu", checkpoint_seconds=1e9, stop=lambda: steps[-1] == (stage, 6))
    with pytest.raises(Stopped) as caught:
        compute(tiny, store, asked)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.stage, error.step, error.n_steps) == (stage, 7, 12)
    assert str(error) == (
        f"stopped in {stage} after 7 of 12 steps; a checkpoint is kept, the same command goes on "
        "from there"
    )
    compute(tiny, store, where)
    assert [step for name, step in steps if name == stage] == list(range(12))
    undisturbed = Store(tmp_path / "b")
    compute(tiny, undisturbed, where)
    for spec in (tiny, tiny.pretraining):
        assert results(store, spec) == results(undisturbed, spec)


def test_a_finished_training_is_not_stopped(tiny, store, monkeypatch):
    """Asked after its last step it is stored; the next one then stops after its first."""
    steps = count_steps(monkeypatch)
    asked = Where(device="cpu", stop=lambda: steps[-1] == ("pretrain", 11) or len(steps) > 12)
    with pytest.raises(Stopped, match="finetune after 1 of 12"):
        compute(tiny, store, asked)
    assert store.get(tiny.pretraining) is not None


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_command_after_a_step(tmp_path, monkeypatch, where, number, code):
    command = ["train", "--preset", "smoke", "--device", "cpu", "--store", str(tmp_path / "a")]
    before, batch, steps = signal.getsignal(number), train.Stage.batch, []

    def spy(self, step):
        steps.append(step)
        if (self.name, step) == ("finetune", 1):
            os.kill(os.getpid(), number)
        return batch(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(train.Stage, "batch", spy)
        done = CliRunner().invoke(cli.main, command)
    assert done.exit_code == code
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == (
        "sptlib: stopped in finetune after 2 of 4 steps; a checkpoint is kept, the same command "
        "goes on from there"
    )
    assert signal.getsignal(number) is before
    monkeypatch.setattr(train.Stage, "batch", lambda s, i: (steps.append(i), batch(s, i))[1])
    assert CliRunner().invoke(cli.main, command).exit_code == 0
    assert steps == [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_second_ctrl_c_ends_at_once(tmp_path, monkeypatch):
    batch = train.Stage.batch

    def twice(self, step):
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1.1 * REPEAT_SECONDS)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        return batch(self, step)

    monkeypatch.setattr(train.Stage, "batch", twice)
    command = ["train", "--preset", "smoke", "--device", "cpu", "--store", str(tmp_path / "a")]
    done = CliRunner().invoke(cli.main, command)
    assert done.exit_code != 0
    assert "stopped in" not in done.stderr
    assert list(Store(tmp_path / "a").path.glob(".work/*/checkpoint*")) == []
