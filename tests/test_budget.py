"""A sweep within a given time: the factor, what it leaves as it is, the deadline, going on."""

import json
import math
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from sptlib import budget, cli_sweep, export, presets, signals
from sptlib.cli import main
from sptlib.cli_options import read_names
from sptlib.cost import devices
from sptlib.cost.devices import Pace
from sptlib.cost.workload import workload
from sptlib.errors import ConfigError
from sptlib.execute import Where
from sptlib.experiments import depth, few_labels, replication
from sptlib.store import Store
from sptlib.sweep import SweepError, TimeUp, compute_all

STEP, ITEM, FIXED = 0.01, 1e-5, 0.5


@pytest.fixture
def paced(monkeypatch):
    """Time stands still, and every shape has the same pace; the seconds given to measuring."""
    given = []

    def measure(works, seconds, device):
        given.append(seconds)
        return {work.shape: Pace(STEP, ITEM, FIXED, "measured") for work in works}

    monkeypatch.setattr(devices, "measure", measure)
    still = SimpleNamespace(**dict.fromkeys(("monotonic", "perf_counter", "process_time"), float))
    monkeypatch.setattr(budget, "time", still)
    monkeypatch.setattr(cli_sweep, "time", still)
    return given


def sweep(*words: str):
    return CliRunner().invoke(main, ["sweep", "replication", "--preset", "smoke", *words])


# --- the factor ------------------------------------------------------------------------------


def test_largest_factor_has_three_digits_and_fits():
    def seconds(factor):
        return 3.0 + 1000 * factor

    assert budget.largest(seconds, 1003.0) == 1.0
    assert budget.largest(seconds, 2.9) == 0.0
    for most in (3.01, 4.0, 50.0, 700.0):
        factor = budget.largest(seconds, most)
        assert factor == float(f"{factor:.3g}")
        assert seconds(factor) <= most
        assert factor == pytest.approx((most - 3) / 1000, rel=0.02)


def test_prediction_counts_every_training_once():
    cases = replication.cases("smoke", 1, tasks=["image", "text"])
    specs = budget.distinct([*cases, *cases])
    assert len(specs) == 7
    paces = {workload(s).shape: Pace(STEP, ITEM, FIXED, "") for s in specs}
    found = budget.predict(specs, paces)
    assert set(found) == {"image", "text"}
    steps = sum(s.n_steps for s in specs)
    evaluated = sum(workload(s).evaluated(workload(s).n_tests) for s in specs)
    expected = STEP * steps + ITEM * evaluated + FIXED * len(specs)
    assert sum(found.values()) == pytest.approx(expected)


@pytest.mark.parametrize("minutes", [0.1, 0.4, 1000.0])
def test_plan_fits(paced, minutes):
    where = Where(device="cpu")
    asked = budget.asked("replication", "classroom", 1, ["image"], minutes, where)

    def build():
        return replication.cases("classroom", 1, tasks=["image"])

    plan = budget.make(asked, build, where, 60 * minutes)
    assert sum(plan.seconds.values()) <= budget.PLANNED * 60 * minutes
    assert (plan.factor == 1.0) == (minutes == 1000)
    assert plan.precision == "fp32"
    assert paced[0] <= min(budget.MEASURING_SECONDS, budget.MEASURING * 60 * minutes)
    assert "image" in str(plan)
    assert f"of {minutes:g} min" in str(plan)
    if plan.factor == 1:
        assert [c.run for c in plan.within(build)()] == [c.run for c in build()]


def test_too_short_a_time_says_what_is_needed(paced):
    where = Where(device="cpu")
    asked = budget.asked("replication", "smoke", 1, ["image"], 0.01, where)

    def build():
        return replication.cases("smoke", 1, tasks=["image"])

    with pytest.raises(ConfigError, match=r"one step of every training .* more --minutes"):
        budget.make(asked, build, where, 0.6)


# --- what is shorter, and what stays ---------------------------------------------------------


@pytest.mark.parametrize("preset", ["smoke", "study", "paper"])
@pytest.mark.parametrize("factor", [1e-7, 0.0137, 0.5])
def test_both_arms_keep_equal_total_steps(preset, factor):
    whole = {str(c.labels): c.run for c in replication.cases(preset, 1)}
    with budget.shortened(preset, factor, "bf16"):
        runs = {str(c.labels): c.run for c in replication.cases(preset, 1)}
    assert runs.keys() == whole.keys()
    for task in replication.TASKS:
        spt, scratch = (runs[str({"task": task, "arm": arm})] for arm in ("SPT", "scratch"))
        assert scratch.n_steps == spt.pretraining.n_steps + spt.n_steps
    for name, run in runs.items():
        before = whole[name]
        stages = [(run.finetune, before.finetune, run.n_steps)]
        if run.pretrain is not None:
            stages.append((run.pretrain, before.pretrain, run.pretraining.n_steps))
        for stage, old, steps in stages:
            assert stage.precision == "bf16"
            assert steps >= 1
            assert stage.warmup_steps <= budget.WARMING * steps
            assert min(old.n_evals, budget.FEWEST) <= stage.n_evals <= old.n_evals
            same = {k: getattr(old, k) for k in ("epochs", "n_evals", "warmup_steps", "precision")}
            assert replace(stage, **same) == old
        assert (run.model, run.task, run.seed) == (before.model, before.task, before.seed)


def test_evaluations_take_a_tenth():
    run = presets.get("paper", "image")
    for factor in (0.002, 0.05):
        short = budget.shorter(run, factor, "fp32")
        for spec, config in ((short, short.finetune), (short.pretraining, short.pretrain)):
            work = workload(spec)
            evaluated = work.evaluated(work.n_tests) * work.item_flops
            share = evaluated / (evaluated + work.steps * work.step_flops)
            assert share <= budget.EVALUATING or config.n_evals == budget.FEWEST
            more = work.evaluated(work.n_evals) * work.item_flops * (1 + 1 / config.n_evals)
            whole = more + work.steps * work.step_flops
            assert config.n_evals == run.finetune.n_evals or more / whole > budget.EVALUATING


def test_other_experiments_keep_their_steps_too():
    with budget.shortened("study", 0.1, "fp32"):
        labels = few_labels.cases("study", 1)
        deep = depth.cases("study", 1)
    of = {(c.labels["n_labels"], c.labels["arm"]): c.run for c in labels}
    for n in few_labels.LABELS["study"]:
        spt = of[n, "SPT"]
        assert of[n, "scratch"].n_steps == spt.n_steps + spt.pretraining.n_steps
        assert of[n, few_labels.SHORT].n_steps == spt.n_steps
    of = {(c.labels["task"], c.labels["layers"], c.labels["arm"]): c.run for c in deep}
    for (task, layers, arm), run in of.items():
        if arm == "SPT":
            both = run.n_steps + run.pretraining.n_steps
            assert of[task, layers, "scratch"].n_steps == both


def test_a_preset_is_itself_again():
    before = presets.get("smoke", "image")
    with budget.shortened("smoke", 0.5, "fp32"):
        assert presets.get("smoke", "image") != before
    with pytest.raises(ConfigError), budget.shortened("smoke", 0.5, "fp32"):
        presets.get("smoke", "imag")
    assert presets.get("smoke", "image") == before


# --- the deadline ----------------------------------------------------------------------------


def test_a_deadline_is_a_reason_to_stop():
    with signals.stopping() as stop:
        assert not stop()
        stop.deadline = time.monotonic()
        assert stop()
        assert stop.signum == 0


def test_a_sweep_whose_time_is_up(tiny, store, trained):
    with pytest.raises(TimeUp, match="0 trainings finished, 2 are left"):
        compute_all([tiny], store, workers=1, deadline=time.monotonic())
    assert trained == []
    compute_all([tiny], store, workers=1, deadline=math.inf)
    compute_all([tiny], store, workers=1, deadline=time.monotonic())  # nothing is left to do


def test_a_failure_is_told_although_the_time_is_up(tiny, store, trained, monkeypatch):
    bad = replace(tiny.finetune, lr=1e38, warmup_steps=0)
    runs = [replace(tiny, pretrain=None, finetune=bad), replace(tiny, pretrain=None)]
    clock = SimpleNamespace(monotonic=lambda: 1.0 if len(trained) > 1 else 0.0)
    monkeypatch.setattr(signals, "time", clock)
    with pytest.raises(SweepError, match="1 failed"):
        compute_all(runs, store, workers=1, deadline=1.0)
    assert len(trained) == 2
    assert list(store.entries()) == []


def test_the_same_command_goes_on(paced, tmp_path, trained, monkeypatch):
    words = ("--tasks", "image,text", "--minutes", "0.075", "--device", "cpu",
             "--store", str(tmp_path / "store"))  # fmt: skip
    clock = SimpleNamespace(monotonic=lambda: math.inf if len(trained) > 2 else 0.0)
    monkeypatch.setattr(signals, "time", clock)
    first = sweep(*words)
    assert first.exit_code == 0, first.output
    assert "2 trainings are finished, 5 are left; the same command goes on" in first.output
    path = tmp_path / "replication-smoke-budget.jsonl"
    assert str(path) in first.output
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 2
    assert all(
        x["environment"]["device"] == "cpu" and x["environment"]["seconds"] > 0 for x in lines
    )
    checkpoints = list((tmp_path / "store" / ".work").glob("*/checkpoint.safetensors"))
    assert len(checkpoints) == 1
    kept = (tmp_path / "budget-replication-smoke.json").read_bytes()
    plan = json.loads(kept)
    assert 0 < plan["factor"] < 1
    assert plan["asked"]["seeds"] == 1

    clock.monotonic = lambda: 0.0
    second = sweep(*words)
    assert second.exit_code == 0, second.output
    assert "going on with the plan" in second.output
    assert len(paced) == 1
    assert len(trained) == 3 + 5  # one of them was resumed
    assert (tmp_path / "budget-replication-smoke.json").read_bytes() == kept
    assert "metrics of 7 trainings" in second.output
    assert not checkpoints[0].exists()
    shipped = list(export.Study(tmp_path).entries())
    assert {e.key for e in shipped} == {e.key for e in Store(tmp_path / "store").entries()}
    assert {e.spec.seed for e in shipped} == {0}

    third = sweep(*words[:3], "0.2", *words[4:])  # another question, another plan
    assert "going on" not in third.output
    assert len(paced) == 2


def test_a_damaged_plan_is_made_anew(tmp_path):
    path = tmp_path / "plan.json"
    assert budget.kept({}, path) is None
    for text in ("", "[]", '{"factor": 1}'):
        path.write_text(text)
        assert budget.kept({}, path) is None
    plan = budget.Plan({"minutes": 1.0}, "CPU", "fp32", 0.123, {"image": 1.5})
    budget.save(plan, path)
    assert budget.kept({"minutes": 1.0}, path) == plan
    assert budget.kept({"minutes": 2.0}, path) is None


# --- the command -----------------------------------------------------------------------------


@pytest.mark.parametrize("minutes", ["nan", "inf", "0", "-1"])
def test_wrong_minutes_are_refused(minutes):
    done = sweep("--minutes", minutes)
    assert done.exit_code == 1
    assert "--minutes must be a positive number" in done.output
    assert done.output.count("\n") == 1


@pytest.mark.parametrize(
    "other", [["--tune"], ["--scheduler", "tcp://host:1"], ["--recompute"], ["--workers", "2"]]
)
def test_what_does_not_go_with_minutes(other):
    preset = ["--preset", "study"] if other == ["--tune"] else []
    done = sweep("--minutes", "1", *other, *preset)
    assert done.exit_code == 1
    assert f"--minutes and {other[0]} do not go together" in done.output


def test_tasks_are_rows_or_recipes(store):
    def missing(experiment, *words):
        done = CliRunner().invoke(
            main,
            [
                "sweep",
                experiment,
                "--preset",
                "smoke",
                "--seeds",
                "1",
                "--store",
                str(store.path),
                "--dry-run",
                *words,
            ],
        )
        assert done.exit_code == 0, done.output
        return int(done.output.split(" Runs")[0])

    assert missing("replication", "--tasks", "image,Text") == 5
    assert missing("replication", "--tasks", "Text, direction,image") == 5
    assert missing("depth", "--tasks", "image,Image,text:direction") == 8
    assert missing("depth", "--tasks", "neighbor,Neighbor +1 / +3") == 8
    assert missing("few_labels", "--tasks", "image") == missing("few_labels")


def test_dry_run_with_minutes_plans_and_leaves_nothing(paced, store):
    done = sweep("--tasks", "image", "--minutes", "1", "--dry-run", "--store", str(store.path))
    assert done.exit_code == 0, done.output
    assert "predicted: image" in done.output
    assert "4 of them" in done.output or "3 of them" in done.output
    assert list(store.path.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["replication", "--tasks", "imag"], "did you mean 'image'"),
        (["depth", "--tasks", "image,listop"], "did you mean 'listops'"),
        (["few_labels", "--tasks", "text"], "about the task image"),
        (["depth", "--tasks", "image,,text"], "names between commas"),
        (["depth", "--tasks", ""], "names between commas"),
        (["few_labels", "--tasks", "image", "--tune"], "leave --tasks out"),
    ],
)
def test_wrong_tasks_are_refused(words, message):
    done = CliRunner().invoke(main, ["sweep", *words])
    assert done.exit_code == 1
    assert message in done.output
    assert done.output.count("\n") == 1


def test_rows_with_a_comma():
    assert read_names("Text, direction, Image") == ("Text, direction", "Image")
    assert read_names("text,image,text") == ("text", "image")
