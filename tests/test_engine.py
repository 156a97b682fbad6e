"""Accelerate in the loop: pieces, precision and processes change how a step is computed, not what.

This file is also the program that two processes run: ``python tests/test_engine.py FOLDER``.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from sptlib import engine, evaluate, execute, launcher, presets, processes, tasks
from sptlib.config import FinetuneConfig, ModelConfig, PretrainConfig, Pretraining, Run
from sptlib.errors import ConfigError, SptError, Stopped, StoreError
from sptlib.evaluate import accuracy, reconstruction
from sptlib.execute import Where, compute
from sptlib.masking import hide
from sptlib.model import build
from sptlib.processes import Team
from sptlib.seeding import generator
from sptlib.store import Store
from sptlib.tasks import ImageConfig, NeighborConfig
from sptlib.train import Stage, Trained, finetune, pretrain

STEPS = {"warmup_steps": 2, "n_evals": 3, "lr": 5e-3}
NEIGHBOR = Run(  # batches of 13 sequences: two processes have 7 and 6
    task=NeighborConfig(length=12, n_train=48, n_val=16, n_test=16),
    model=ModelConfig(width=8, n_heads=2),
    pretrain=PretrainConfig(epochs=4, batch_size=13, **STEPS),
    finetune=FinetuneConfig(epochs=4, batch_size=13, clip=0.1, **STEPS),
)
PIXELS = Run(
    task=ImageConfig(tokenised=False, n_train=40, n_val=20, n_test=20, n_labels=20),
    model=ModelConfig(width=8, n_heads=2, pooling="max", head_hidden=True, positions="rope"),
    pretrain=PretrainConfig(epochs=3, batch_size=10, mask="span", **STEPS),
    finetune=FinetuneConfig(epochs=6, batch_size=10, patience=2, **STEPS),
    freeze=("vo",),
)
PADDED = presets.smoke("text")
PAIRS = presets.smoke("retrieval")


def both(run: Run, **changes) -> Run:
    """A Run with both stages changed alike."""
    stages = {name: replace(getattr(run, name), **changes) for name in ("pretrain", "finetune")}
    return replace(run, **stages)


LISTOPS = both(presets.smoke("listops"), epochs=3)
LONG = both(NEIGHBOR, epochs=40)
#: what two processes compute: a Run, and how
CASES = {
    "unequal pieces, clipped": (NEIGHBOR, {}),
    "pixels, patience, frozen": (PIXELS, {}),
    "padded": (LISTOPS, {}),
    "padded, accumulated": (PADDED, {"accumulate": 3}),
    "pairs, accumulated": (PAIRS, {"accumulate": 2}),
}


def measures(team: Team) -> list[dict[str, float]]:
    """Evaluations of untrained models, in several pieces of unequal length."""
    found = []
    for run in (NEIGHBOR, PIXELS, PADDED, PAIRS):
        data = tasks.load(run.task, run.seed)
        model = build(run.model, data, 0).eval()
        val = data.val.sequences()
        hidden = hide(run.pretrain, val.x, val.length, generator(0, "test"))
        found += [accuracy(model, data.test, team), reconstruction(model, val, hidden, team)]
    return found


# --- the program of two processes ---------------------------------------------------------------


def drive(folder: Path) -> None:
    """Everything that two processes are asked for, in one go; what they saw lands in a file."""
    from pytest import MonkeyPatch

    where = Where(device="cpu", checkpoint_seconds=1e9)
    team, store, seen = where.team(), Store(folder / "two"), {}
    seen["team"] = [team.size, team.rank]
    for run, how in CASES.values():
        assert compute(run, store, replace(where, **how)).result["steps"] > 0
    bf16 = both(NEIGHBOR, precision="bf16")
    compute(bf16, store, where)
    with MonkeyPatch.context() as patch:  # a second time nothing is computed
        patch.setattr(execute, "_train", None)
        seen["again"] = compute(NEIGHBOR, store, where).key
    with MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "EVAL_BATCH", 7)
        seen["measures"] = measures(team)

    def refused(name: str, run=NEIGHBOR, store=store, **how) -> None:
        try:
            compute(run, store, replace(where, **how))
        except SptError as error:
            seen[name] = [type(error).__name__, str(error), getattr(error, "shared", False)]

    refused("too small", both(NEIGHBOR, batch_size=4, lr=1e-3), accumulate=3)
    refused("batch norm", replace(NEIGHBOR, model=replace(NEIGHBOR.model, head_norm="batch")))
    refused("different", replace(NEIGHBOR, seed=100 + team.rank))
    refused("diverged", both(NEIGHBOR, lr=1e38, warmup_steps=0))
    with MonkeyPatch.context() as patch:
        patch.setattr(execute, "PATIENCE", 0.2)
        refused("unseen", replace(NEIGHBOR, seed=1), Store(folder / f"of-{team.rank}"))
    with MonkeyPatch.context() as patch:
        patch.setattr(execute, "_load", lambda spec: 1 / team.rank)
        refused("one fails", replace(NEIGHBOR, seed=1))
    # the other one is asked to stop; later one process goes on, and the other way round
    refused("stopped", LONG, Store(folder / "stopped"), stop=stop_after(5 if team.rank else 9999))
    compute(LONG, Store(folder / "resumed"), where)
    (folder / f"{team.rank}.json").write_text(json.dumps(seen))
    processes.leave(failed=False)


def stop_after(n: int):
    """Says yes when it is asked for the n-th time."""
    calls = []

    def stop() -> bool:
        calls.append(1)
        return len(calls) >= n

    return stop


# --- its results --------------------------------------------------------------------------------


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def two_processes(*arguments: str) -> list[subprocess.Popen]:
    """Two processes as torchrun would start them, which costs less time than torchrun."""
    same = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return [
        subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, **same, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ("0", "1")
    ]


def outputs(running: list[subprocess.Popen]) -> list[str]:
    try:
        return [process.communicate(timeout=120)[0] for process in running]
    finally:
        for process in running:
            process.kill()


@pytest.fixture(scope="module")
def driven(tmp_path_factory) -> tuple[Path, list[dict]]:
    """The folder in which two processes have computed everything, and what each of them saw."""
    base = tmp_path_factory.getbasetemp()
    os.environ["SPTLIB_DATA"] = str(base / "data")  # as for every test, but before the first
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "driven"
    with FileLock(f"{folder}.lock"):  # the workers of pytest share it
        if not folder.exists():
            half = Where(device="cpu", checkpoint_seconds=1e9, stop=stop_after(60))
            with pytest.raises(Stopped, match="after 60 of 148 steps"):
                compute(LONG, Store(folder / "resumed"), half)
            running = two_processes(__file__, str(folder))
            texts = outputs(running)
            assert [process.returncode for process in running] == [0, 0], "".join(texts)
    return folder, [json.loads((folder / f"{rank}.json").read_text()) for rank in "01"]


def losses(metrics: list[dict]) -> list[float]:
    return [line["loss"] for line in metrics if "loss" in line]


def numbers(metrics: list[dict]) -> list[dict]:
    """Metrics without the stage, whose numbers `pytest.approx` compares."""
    return [{k: v for k, v in line.items() if k != "stage"} for line in metrics]


def specs(run: Run) -> tuple[Pretraining, Run]:
    return run.pretraining, run


@pytest.mark.parametrize("name", CASES)
def test_two_processes_compute_what_one_does(driven, name, store, where):
    """Losses and evaluations of both stages, over the whole training."""
    folder, _ = driven
    run, how = CASES[name]
    compute(run, store, where)
    for spec in specs(run):
        one, two = store.get(spec), Store(folder / "two").get(spec)
        two.verify()
        assert len(losses(two.metrics)) == one.result["steps"] >= 4
        assert numbers(two.metrics) == [pytest.approx(x, rel=1e-4) for x in numbers(one.metrics)]
        environment = two.environment
        assert (environment["processes"], environment["accumulate"]) == (2, how.get("accumulate", 1))
        assert environment["versions"]["accelerate"]


def test_bfloat16_with_two_processes(driven, store, where):
    two = Store(driven[0] / "two")
    for spec, in_bf16 in zip(specs(NEIGHBOR), specs(both(NEIGHBOR, precision="bf16")), strict=True):
        a, b = losses(two.get(spec).metrics), losses(two.get(in_bf16).metrics)
        assert b == pytest.approx(a, rel=0.02)
        assert b != pytest.approx(a, rel=1e-6)


def test_each_training_has_one_entry(driven):
    folder, seen = driven
    wanted = {spec for run, _ in CASES.values() for spec in specs(run)}
    wanted |= set(specs(both(NEIGHBOR, precision="bf16")))
    stores = Store(folder / "two")
    assert {entry.key for entry in stores.entries()} == {stores.get(spec).key for spec in wanted}
    assert [x["again"] for x in seen] == 2 * [stores.get(NEIGHBOR).key]
    assert [x["team"] for x in seen] == [[2, 0], [2, 1]]


def test_evaluations_are_the_same_to_the_last_bit(driven, monkeypatch):
    monkeypatch.setattr(evaluate, "EVAL_BATCH", 7)
    mine = measures(processes.ALONE)
    assert [x["measures"] for x in driven[1]] == [mine, mine]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("too small", "ConfigError", "finetune: a batch of 4 sequences does not give one to each "),
        ("batch norm", "ConfigError", "exchanges between GPUs only"),
        ("different", "ConfigError", "asked for different trainings"),
        ("diverged", "DivergedError", "pretrain diverged: the loss is not finite at step 2; "),
        ("unseen", "StoreError", "same --store, in a folder that their machines share"),
        ("one fails", "SptError", "ZeroDivisionError: division by zero"),
        ("stopped", "Stopped", "stopped in pretrain after "),
    ],
)
def test_what_goes_wrong_goes_wrong_in_both(driven, name, kind, words):
    a, b = (x[name] for x in driven[1])
    assert a == b
    assert a[0] == kind
    assert words in a[1]
    assert a[2]  # so that one of them alone reports it


def test_one_fault_names_its_process(driven):
    _, seen = driven
    assert seen[0]["unseen"][1].startswith(f"process 1 of 2 on {socket.gethostname()}: ")
    assert seen[0]["one fails"][1].startswith("process 0 of 2 on ")


def test_a_diverged_training_of_two_keeps_one_log(driven):
    _, message, _ = driven[1][1]["diverged"]
    lines = Path(message.split("the log is ")[1]).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_checkpoints_of_two_processes_go_on_with_one_and_back(driven, store, where, monkeypatch):
    folder, seen = driven
    compute(LONG, store, where)
    done = int(seen[0]["stopped"][1].split("after ")[1].split(" of 148 steps")[0])
    assert 1 < done < 148  # asked about every 0.02 s
    steps = []
    batch = Stage.batch
    monkeypatch.setattr(Stage, "batch", lambda s, step: (steps.append(step), batch(s, step))[1])
    compute(LONG, Store(folder / "stopped"), where)
    assert steps[0] == done
    for name in ("stopped", "resumed"):
        entry = Store(folder / name).get(LONG.pretraining)
        entry.verify()
        assert losses(entry.metrics) == pytest.approx(
            losses(store.get(LONG.pretraining).metrics), rel=1e-4
        )
    whole, resumed = (losses(s.get(LONG.pretraining).metrics) for s in (store, Store(folder / "resumed")))
    assert resumed[:60] == whole[:60]  # two processes went on where one was stopped
    assert resumed[60:] != whole[60:]


if __name__ == "__main__":
    engine.ASK_SECONDS = 0.02
    drive(Path(sys.argv[1]))
    sys.exit()
