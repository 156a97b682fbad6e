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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors import safe_open

from sptlib import engine, evaluate, execute, launcher, presets, processes, tasks
from sptlib.checkpoint import Checkpoint
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
    "padded, accumulated": (LISTOPS, {"accumulate": 3}),
}


def measures(team: Team) -> list[dict[str, float]]:
    """Evaluations of untrained models, in several pieces of unequal length."""
    found = []
    for run in (NEIGHBOR, PIXELS, LISTOPS):
        data = tasks.load(run.task, run.seed)
        model = build(run.model, data, 0).eval()
        val = data.val.sequences()
        hidden = hide(run.pretrain, val.x, val.length, generator(0, "test"))
        found += [accuracy(model, data.test, team), reconstruction(model, val, hidden, team)]
    return found


@contextmanager
def gradient_norms() -> Iterator[list[float]]:
    """The norm of each step's gradients; Adam would hide a wrong factor."""
    norms, step = [], torch.optim.AdamW.step

    def spy(self, *arguments):
        grads = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        norms.append(float(torch.cat([grad.flatten() for grad in grads]).norm()))
        return step(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", spy)
        yield norms


# --- the program of two processes ---------------------------------------------------------------


def drive(folder: Path) -> None:
    """Everything that two processes are asked for, in one go; what they saw lands in a file."""
    where = Where(device="cpu", checkpoint_seconds=1e9)
    team, store, seen = where.team(), Store(folder / "two"), {}
    if not team.main:  # only the main process may write, or wait for a lock
        for name in ("put", "lock", "fail", "work_folder", "remove"):
            setattr(Store, name, None)
        Checkpoint.save = Checkpoint.remove = Checkpoint.tidy = None
    seen["team"] = [team.size, team.rank]
    for run, how in CASES.values():
        assert compute(run, store, replace(where, **how)).result["steps"] > 0
    bf16 = both(NEIGHBOR, precision="bf16")
    compute(bf16, store, where)
    with gradient_norms() as seen["norms"]:
        compute(LISTOPS.pretraining, Store(folder / "norms"), replace(where, accumulate=2))
    with pytest.MonkeyPatch.context() as patch:  # a second time nothing is computed
        patch.setattr(execute, "_train", None)
        seen["again"] = compute(NEIGHBOR, store, where).key
    with pytest.MonkeyPatch.context() as patch:
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "PATIENCE", 0.2)
        refused("unseen", replace(NEIGHBOR, seed=1), Store(folder / f"of-{team.rank}"))
    with pytest.MonkeyPatch.context() as patch:
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
        assert (environment["processes"], environment["accumulate"]) == (
            2,
            how.get("accumulate", 1),
        )
        assert environment["versions"]["accelerate"]


def test_two_processes_have_the_gradients_of_one(driven, store, where):
    with gradient_norms() as norms:
        compute(LISTOPS.pretraining, store, where)
    assert [x["norms"] for x in driven[1]] == 2 * [pytest.approx(norms, rel=1e-5)]


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
    whole, resumed = (
        losses(s.get(LONG.pretraining).metrics) for s in (store, Store(folder / "resumed"))
    )
    assert resumed[:60] == whole[:60]  # two processes went on where one was stopped
    assert resumed[60:] != whole[60:]


# --- one process: pieces ------------------------------------------------------------------------


def trained(run: Run, **how) -> tuple[Trained, Trained]:
    data = tasks.load(run.task, run.seed)
    first = pretrain(run.pretraining, data, **how)
    return first, finetune(run, data, first.model.state_dict(), **how)


@pytest.mark.parametrize("run", [LISTOPS, PIXELS, PAIRS], ids=["listops", "pixels", "pairs"])
def test_pieces_add_up_to_the_batch(run):
    """The masks hide another number of positions in each piece, and 10 sequences are 4 + 3 + 3."""
    with gradient_norms() as norms:
        all_at_once = trained(run)
    with gradient_norms() as other_norms:
        in_pieces = trained(run, accumulate=3)
    assert other_norms == pytest.approx(norms, rel=1e-5)
    for whole, pieces in zip(all_at_once, in_pieces, strict=True):
        expected = [pytest.approx(x, rel=1e-5, abs=1e-7) for x in numbers(whole.metrics)]
        assert numbers(pieces.metrics) == expected
        assert losses(pieces.metrics) != losses(whole.metrics)  # other sums, so it was divided


def test_a_mean_of_means_would_be_noticed(monkeypatch):
    pieces = engine.Accelerated.pieces

    def equal_shares(self, batch, hidden):
        for number, part, its_hidden, _ in pieces(self, batch, hidden):
            yield number, part, its_hidden, 1 / self.n_pieces

    right = trained(LISTOPS, accumulate=3)[0]
    monkeypatch.setattr(engine.Accelerated, "pieces", equal_shares)
    wrong = trained(LISTOPS, accumulate=3)[0]
    assert losses(wrong.metrics) != pytest.approx(losses(right.metrics), rel=1e-4)


def test_each_piece_has_dropout_of_its_own():
    run = replace(NEIGHBOR, model=replace(NEIGHBOR.model, dropout=0.3))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a, b = trained(run, accumulate=2), trained(run, accumulate=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert [x.metrics for x in a] == [x.metrics for x in b]
    assert losses(a[0].metrics) != pytest.approx(losses(trained(run)[0].metrics), rel=1e-3)
    # the same sequence twice, in two pieces: what is dropped differs
    seeds = []
    original = torch.manual_seed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "manual_seed", lambda seed: (seeds.append(seed), original(seed))[1])
        trained(replace(run, pretrain=replace(run.pretrain, epochs=0.1)), accumulate=2)
    assert len(set(seeds)) == len(seeds)


def test_the_launcher_may_ask_for_accumulation(monkeypatch, store):
    assert Where().accumulate == 1
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "3")
    assert Where().accumulate == 3
    assert Where(accumulate=1).accumulate == 1
    environment = compute(NEIGHBOR, store, Where(device="cpu")).environment
    assert (environment["processes"], environment["accumulate"]) == (1, 3)
    assert environment["precision"] == "fp32"
    assert "accelerate" in environment["versions"]
    for wrong in ("auto", "0"):
        monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", wrong)
        with pytest.raises(ConfigError, match="--gradient_accumulation_steps 1 or more"):
            Where()


# --- one process: precision ---------------------------------------------------------------------


@pytest.mark.parametrize("run", [NEIGHBOR, LISTOPS, PIXELS], ids=["neighbor", "listops", "pixels"])
def test_bfloat16_is_near_float32_but_not_equal(run):
    for full, half in zip(trained(run), trained(both(run, precision="bf16")), strict=True):
        assert losses(half.metrics) == pytest.approx(losses(full.metrics), rel=0.03)
        assert losses(half.metrics) != pytest.approx(losses(full.metrics), rel=1e-6)
        assert {v.dtype for v in half.model.state_dict().values()} == {torch.float32}


def test_norms_and_losses_stay_in_float32(monkeypatch):
    run = both(PIXELS, precision="bf16")
    run = replace(run, model=replace(run.model, head_norm="batch"))
    seen: dict[str, set] = {}

    def spied(name, original):
        def forward(x, *arguments, **keywords):
            seen.setdefault(name, set()).add(x.dtype)
            return original(x, *arguments, **keywords)

        return forward

    for name in ("layer_norm", "batch_norm", "linear", "cross_entropy"):
        function = spied(name, getattr(torch.nn.functional, name))
        monkeypatch.setattr(torch.nn.functional, name, function)
    products = []
    original = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda q, *a, **k: (products.append(original(q, *a, **k)), products[-1])[1],
    )
    trained(run)
    assert seen["layer_norm"] == seen["batch_norm"] == seen["cross_entropy"] == {torch.float32}
    assert {x.dtype for x in products} == {torch.bfloat16}  # while these are fast


def test_each_stage_has_its_own_precision():
    run = replace(NEIGHBOR, finetune=replace(NEIGHBOR.finetune, precision="bf16"))
    mixed, full, half = trained(run), trained(NEIGHBOR), trained(both(NEIGHBOR, precision="bf16"))
    assert mixed[0].metrics == full[0].metrics
    assert mixed[1].metrics != full[1].metrics
    assert mixed[1].metrics != half[1].metrics


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value", "run", "words"),
    [
        ("MIXED_PRECISION", "bf16", NEIGHBOR, "pretrain.precision.*sptlib train --precision bf16"),
        ("MIXED_PRECISION", "fp16", NEIGHBOR, "launch with --mixed_precision no$"),
        (
            "MIXED_PRECISION",
            "bf16",
            replace(both(NEIGHBOR, precision="bf16"), finetune=NEIGHBOR.finetune),
            "finetune.precision of the Run is fp32",
        ),
        ("USE_FSDP", "true", NEIGHBOR, "--multi_gpu instead of --use_fsdp"),
        ("USE_DEEPSPEED", "true", NEIGHBOR, "--multi_gpu instead of --use_deepspeed"),
        ("DYNAMO_BACKEND", "INDUCTOR", NEIGHBOR, "--dynamo_backend no"),
    ],
)
def test_what_the_launcher_asks_for_against_the_run(
    variable, value, run, words, monkeypatch, store, where
):
    monkeypatch.setenv(f"ACCELERATE_{variable}", value)
    for spec in (run, run.pretraining):
        if words.startswith("finetune") and spec is not run:
            continue
        with pytest.raises(ConfigError, match=words):
            compute(spec, store, where)
    assert list(store.entries()) == []


def test_the_launcher_may_agree(monkeypatch, store, where):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert (
        compute(both(NEIGHBOR, precision="bf16"), store, where).environment["precision"] == "bf16"
    )
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # its default: the Run decides
    compute(both(NEIGHBOR, precision="bf16", epochs=1), store, where)
    compute(NEIGHBOR, store, where)


def test_batches_that_cannot_be_divided(tiny, store):
    few = replace(tiny, task=replace(tiny.task, n_labels=2))
    with pytest.raises(ConfigError, match=r"batch of 2 seq.* 3 pieces.*raise the number of seq"):
        compute(few, store, Where(device="cpu", accumulate=3))
    assert list(store.entries()) == []  # it was not pretrained before that was found
    normed = replace(tiny, model=replace(tiny.model, head_norm="batch"))
    with pytest.raises(ConfigError, match=r"leave --accumulate out, or set model\.head_norm"):
        compute(normed, store, Where(device="cpu", accumulate=2))
    compute(normed.pretraining, store, Where(device="cpu", accumulate=2))  # it has no such head
    with pytest.raises(ConfigError, match="at least one piece"):
        Where(accumulate=0)


@pytest.mark.parametrize("how", [{"accumulate": 2}, {}], ids=["accumulation", "bf16"])
def test_accelerate_that_is_not_installed(how, monkeypatch, store):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    run = NEIGHBOR if how else both(NEIGHBOR, precision="bf16")
    with pytest.raises(ConfigError, match=r"pip install 'sptlib\[cluster\]'"):
        compute(run, store, Where(device="cpu", **how))
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    with pytest.raises(ConfigError, match="2 processes take Hugging Face Accelerate"):
        compute(NEIGHBOR, store, Where(device="cpu"))


def test_half_a_launcher(monkeypatch, store, where):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="WORLD_SIZE=4 is set, but LOCAL_RANK is not"):
        compute(NEIGHBOR, store, where)
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ConfigError, match="no number of processes"):
        compute(NEIGHBOR, store, where)
    monkeypatch.delenv("WORLD_SIZE")
    assert launcher.left_alone() == ""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert "--multi_gpu" in launcher.left_alone()


def test_gpus_are_given_by_local_rank(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    assert Where().torch_device() == torch.device("cpu")
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    for name, value in (("WORLD_SIZE", "4"), ("RANK", "3"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "a")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # two machines with two GPUs
    assert Where().torch_device() == torch.device("cuda:1")
    assert Where(device="cpu").torch_device() == torch.device("cpu")
    with pytest.raises(ConfigError, match="cannot share 'cuda:1'; use --device cuda"):
        Where(device="cuda:1").torch_device()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match=r"'cuda:3' is not there.*or fewer processes"):
        Where().torch_device()


# --- what several processes say to each other, here played by one --------------------------------


def test_errors_cross_process_borders():
    class OddError(Exception):
        def __init__(self, a, b):
            super().__init__(a)

    for error in (Stopped("pretrain", 3, 9), ConfigError("so"), StoreError("so")):
        assert str(processes._portable(error)) == str(error)
        assert processes._portable(error) is error
    assert str(processes._portable(OddError(1, 2))) == "OddError: 1"


def test_a_process_that_is_gone_is_said_in_our_words():
    team = Team(2, 1)
    words = "process 1 of 2 has lost the others; .* PyTorch: .*Connection closed by peer$"
    with pytest.raises(SptError, match=words), team.watch():
        raise RuntimeError("[pair.cc:553] Connection closed by peer\nmore")
    with pytest.raises(RuntimeError, match="mat1 and mat2"), team.watch():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="gloo"), Team().watch():
        raise RuntimeError("gloo")


# --- the command --------------------------------------------------------------------------------

TRAIN = (
    *("-m", "sptlib", "train", "--task", "listops", "--preset", "smoke", "--device", "cpu"),
    *("--set", "pretrain.epochs=60", "--set", "finetune.epochs=2", "--checkpoint-steps", "7"),
)


def accelerate_launch(*arguments: str) -> subprocess.Popen:
    """The documented command, in a process group of its own."""
    options = {
        "num_processes": "2",
        "num_machines": "1",
        "mixed_precision": "no",
        "dynamo_backend": "no",
        "num_cpu_threads_per_process": "1",
        "main_process_port": free_port(),
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", *words]
    return subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def test_launched_killed_and_resumed(store, where, tmp_path):
    """SIGKILL of launcher and processes; the same command goes on and ends in the same numbers."""
    command = (*TRAIN, "--store", str(store.path))
    running = accelerate_launch(*command)
    end = time.monotonic() + 90
    while not list(store.path.glob(".work/*/checkpoint.safetensors")):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)
    for pid in (*children(running.pid), running.pid):
        os.kill(pid, signal.SIGKILL)
    running.communicate()
    assert list(store.entries()) == []
    (file,) = store.path.glob(".work/*/checkpoint.safetensors")
    with safe_open(file, "pt") as checkpoint:
        before = json.loads(checkpoint.metadata()["state"])
    assert 0 < before["step"] < 120
    assert before["step"] % 7 == 0
    assert before["seconds"] > 0

    again = accelerate_launch(*command)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert "sptlib: " not in err  # no warning: the checkpoint was used
    assert [line.split()[0] for line in out.splitlines()] == ["test", "stored"]  # once
    run, one = store.match(out.split()[-1].split("/")[-1]).spec, Store(tmp_path / "one")
    compute(run, one, where)
    assert {entry.key for entry in store.entries()} == {entry.key for entry in one.entries()}
    for spec in specs(run):
        two = store.get(spec)
        two.verify()
        assert two.environment["processes"] == 2
        expected = [pytest.approx(x, rel=1e-4) for x in numbers(one.get(spec).metrics)]
        assert numbers(two.metrics) == expected
    pretraining = store.get(run.pretraining)
    assert pretraining.metrics[: len(before["log"])] == before["log"]  # it went on from there
    assert pretraining.environment["seconds"] > before["seconds"]
    assert list(store.path.glob(".work/*")) == []


def test_a_fault_of_one_process_is_said_and_ends_both(store):
    code = (
        "import os, sys\nfrom sptlib import cli, train\nfrom sptlib.errors import DataError\n"
        "batch = train.Stage.batch\n"
        "def fault(self, step):\n"
        "    if step == 5 and os.environ['RANK'] == '1':\n"
        "        raise DataError('file', 'is gone')\n"
        "    return batch(self, step)\n"
        "train.Stage.batch = fault\n"
        "cli.main(sys.argv[1:])\n"
    )
    arguments = [*TRAIN[2:], "--store", str(store.path)]
    running = two_processes("-c", code, *arguments)
    main, other = outputs(running)
    assert [process.returncode for process in running] == [1, 1]
    assert other.splitlines()[-1] == "sptlib: file: is gone"
    assert main.splitlines()[-1].startswith("sptlib: process 0 of 2 has lost the others; if one")
    assert "Traceback" not in main + other
    assert list(store.entries()) == []


def test_a_fault_of_all_is_said_once(store):
    running = two_processes(*TRAIN[:-2], "--store", str(store.path), "--set", "finetune.lrr=1")
    main, other = outputs(running)
    assert [process.returncode for process in running] == [1, 1]
    assert main.startswith("sptlib: unknown field 'finetune.lrr'")
    assert other == ""


if __name__ == "__main__":
    engine.ASK_SECONDS = 0.02
    drive(Path(sys.argv[1]))
    sys.exit()
