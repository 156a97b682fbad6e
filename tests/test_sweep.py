"""Sweeps: each thing once, failures do not spread, the same bytes with and without Dask."""

import pickle
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from sptlib import execute, scheduler, sweep, worker
from sptlib.config import FinetuneConfig, ModelConfig, PretrainConfig, Run, key, to_dict
from sptlib.errors import Busy, ConfigError, Stopped, StoreError
from sptlib.nodes import Outcome
from sptlib.scheduler import SchedulerError
from sptlib.store import Store
from sptlib.sweep import Interrupted, SweepError, compute_all
from sptlib.tasks import NeighborConfig

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


def same_bytes(a: Store, b: Store) -> int:
    """How many entries two stores have, all with the same bytes."""
    ours, theirs = list(a.entries()), list(b.entries())
    assert [e.key for e in ours] == [e.key for e in theirs]
    for one, other in zip(ours, theirs, strict=True):
        other.verify()
        assert all(one.read(name) == other.read(name) for name in SAME), one.spec
    return len(ours)


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
    monkeypatch.setattr(sweep.schedulers, "connect", no_dask)
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
    failed = caught.value.failed
    assert set(failed) == {key(bad), key(lost), key(lost.pretraining)}
    assert "finetune diverged" in failed[key(bad)]
    assert "pretrain diverged" in failed[key(lost.pretraining)]
    assert failed[key(lost)] == f"its pretraining {key(lost.pretraining)[:12]} failed"
    assert same_bytes(here, there) == 7


def test_a_run_that_raises_what_nobody_expected(arms, store, monkeypatch):
    original = execute.finetune

    def failing(run, *arguments, **options):
        if run == arms[1]:
            raise RuntimeError("the sky fell")
        return original(run, *arguments, **options)

    monkeypatch.setattr(execute, "finetune", failing)
    with pytest.raises(SweepError) as caught:
        compute_all(arms, store, workers=1)
    assert caught.value.failed == {key(arms[1]): "RuntimeError: the sky fell"}
    assert 'raise RuntimeError("the sky fell")' in caught.value.tracebacks[key(arms[1])]
    what = "neighbor, seed 0: SPT[qk]"
    assert caught.value.table() == f"{key(arms[1])[:12]}  {what}  RuntimeError: the sky fell"
    assert len(list(store.entries())) == 6
    kept = (store.work_folder(arms[1]) / "error.txt").read_text()
    assert kept.startswith("RuntimeError: the sky fell\n\nTraceback")
    monkeypatch.setattr(execute, "finetune", original)
    assert len(compute_all(arms, store, workers=1)) == 5  # tried again, with success
    assert list((store.path / ".work").iterdir()) == []


def test_an_error_of_many_failures_stays_readable(arms, store):
    with pytest.raises(SweepError, match=r"4 failed.*; \.\.\.$") as caught:
        compute_all([diverging(replace(arms[3], seed=seed)) for seed in range(4)], store, workers=1)
    assert len(caught.value.table().splitlines()) == 4
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.failed, again.table()) == (caught.value.failed, caught.value.table())


def test_200_runs_share_10_pretrainings(store, trained, monkeypatch):
    """Ten seeds, twenty arms each; the second call only looks things up."""
    small = {"epochs": 1, "batch_size": 16, "warmup_steps": 0, "n_evals": 1}
    base = Run(
        task=NeighborConfig(length=8, n_train=16, n_val=8, n_test=8),
        model=ModelConfig(width=4),
        pretrain=PretrainConfig(**small),
        finetune=FinetuneConfig(**small),
    )
    runs = [
        replace(base, seed=seed, transfer=groups, finetune=replace(base.finetune, lr=lr))
        for seed in range(10)
        for groups in (("qk",), ("vo",), ("mlp",), ("embed",), ("all",))
        for lr in (1e-3, 2e-3, 5e-3, 1e-2)
    ]
    assert len({key(run) for run in runs}) == 200
    compute_all(runs, store, workers=1)
    assert (trained.count("pretrain"), trained.count("finetune")) == (10, 200)
    monkeypatch.setattr(sweep, "_here", no_dask)
    assert [e.spec for e in compute_all(runs, store, workers=1)] == runs
    assert len(trained) == 210


def test_a_corrupted_pretraining_in_the_middle_of_a_sweep(arms, store):
    """Nothing is computed from it; what does not need it goes on, and repairing mends it."""
    compute_all([arms[0]], store, workers=1)
    broken = store.get(arms[0].pretraining)
    file = broken.path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(SweepError) as caught:
        compute_all(arms, store, workers=1)
    assert set(caught.value.failed) == {key(arms[1]), key(arms[2])}
    assert all(
        "model.safetensors is damaged" in why and "verify --repair" in why
        for why in caught.value.failed.values()
    )
    assert store.get(arms[3]) is not None
    assert store.get(arms[4]) is not None
    store.remove(broken.key)  # what --repair does
    compute_all(arms, store, workers=1)
    clean = Store(store.path.parent / "clean")
    compute_all(arms, clean, workers=1)
    assert same_bytes(clean, store) == 7


def test_a_sweep_that_is_stopped_says_how_to_go_on(arms, store, monkeypatch, trained):
    class Stop:
        signum = 2

        def __call__(self):
            return len(trained) == 3

    @contextmanager
    def stopping():
        yield Stop()

    monkeypatch.setattr(sweep, "stopping", stopping)
    with pytest.raises(Interrupted) as caught:
        compute_all(arms, store, workers=1)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert (caught.value.n_stored, caught.value.n_left) == (2, 5)
    assert "2 trainings are stored, 5 are left" in str(caught.value)
    assert "the same command goes on" in str(caught.value)
    assert len(list(store.entries())) == 2
    monkeypatch.undo()
    compute_all(arms, store, workers=1)
    clean = Store(store.path.parent / "clean")
    compute_all(arms, clean, workers=1)
    assert same_bytes(clean, store) == 7


def test_what_somebody_else_computes_comes_last(arms, store, trained):
    """Not waiting for it keeps this sweep at work; in the end it is there, computed once."""
    held = store.lock(arms[1])
    seen = []

    def elsewhere():  # another process, as far as the lease can tell: another thread
        with held:
            seen.append("held")
            while trained.count("finetune") < 4:
                time.sleep(0.01)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    while not seen:
        time.sleep(0.01)
    compute_all(arms, store, workers=1)  # would not end if it waited at once
    thread.join()
    assert sorted(trained) == 5 * ["finetune"] + 2 * ["pretrain"]
    assert len(list(store.entries())) == 7


def test_waiting_for_somebody_else_can_be_stopped(tiny, store, where, capsys):
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > 40  # it is asked every 50 ms

    held = store.lock(tiny.pretraining)
    released = threading.Event()

    def elsewhere():
        with held:
            asked.clear()
            released.wait(60)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    while not list(store.path.glob(".locks/*.lease")):
        time.sleep(0.01)
    with pytest.raises(Stopped, match="stopped before the first step of pretrain"):
        execute.compute(tiny.pretraining, store, replace(where, stop=stop))
    assert capsys.readouterr().err.count("another process computes this; waiting for it") == 1
    with pytest.raises(Busy, match="another process computes"):
        execute.compute(tiny.pretraining, store, replace(where, wait=False))
    assert capsys.readouterr().err == ""
    released.set()
    thread.join()


def test_a_node_of_the_graph_says_why_it_failed(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_reporter", lambda *a: lambda *b: None)
    token = "seen"
    options = {
        "store": str(tmp_path),
        "token": token,
        "topic": "t",
        "device": "cpu",
        "checkpoint_seconds": 20,
        "recompute": False,
        "shared": True,
        "wait": True,
    }
    (tmp_path / ".work").mkdir()

    def work(spec, after=None, name=None):
        return worker.work(name or key(spec), to_dict(spec), options, after)

    assert "does not see the store" in work(tiny).error
    (tmp_path / ".work" / token).touch()
    assert work(tiny, Outcome(error="no luck")).error.startswith("its pretraining")
    assert work(tiny, Outcome(stopped=True)).stopped
    assert work(tiny, Outcome(busy=True)).busy
    assert "other data or another version" in work(tiny, name="0" * 20).error
    assert Store(tmp_path).get(tiny) is None
    assert work(tiny) == Outcome()
    assert Store(tmp_path).get(tiny) is not None
    assert "diverged" in work(diverging(tiny)).error
    worker.stop("t")
    assert work(replace(tiny, seed=1)).stopped
    worker._STOPPED.discard("t")


def test_a_scheduler_that_is_none(tiny, store, monkeypatch):
    monkeypatch.setattr(scheduler, "CONNECT_SECONDS", 1.0)
    for address in ("nonsense", "ftp://host:1", "tcp://127.0.0.1:1"):
        with pytest.raises(SchedulerError, match=f"no Dask scheduler answers at '{address}'"):
            compute_all([tiny], store, scheduler=address)


def test_no_process_is_started_for_a_sweep_that_cannot_work(arms, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep.schedulers, "connect", no_dask)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        compute_all(arms, Store(tmp_path / "file"), workers=2)
    with pytest.raises(ConfigError, match="unknown device"):
        compute_all(arms, Store(tmp_path / "store"), workers=2, device="gpu")


@pytest.mark.parametrize(
    ("name", "number"), [(0, 0), (3, 3), ("SLURMCluster-1-2", 2), ("tcp://10.0.0.1:4001", 4001)]
)
def test_gpus_are_taken_in_turn(name, number, monkeypatch):
    import distributed

    monkeypatch.setattr(distributed, "get_worker", lambda: type("Worker", (), {"name": name}))
    monkeypatch.setattr(worker.torch.cuda, "device_count", lambda: 4)
    assert worker._device("auto") == f"cuda:{number % 4}"
    assert worker._device("cpu") == "cpu"
    monkeypatch.setattr(worker.torch.cuda, "device_count", lambda: 1)
    assert worker._device("auto") == "auto"
