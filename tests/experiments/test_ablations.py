"""The ablations: each changes one thing, and what two of them share is one training."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from sptlib import presets
from sptlib.config import Run
from sptlib.errors import ConfigError
from sptlib.experiments import (
    ablation,
    base,
    depth,
    duration,
    few_labels,
    freezing,
    replication,
    source,
    synthetic,
    transfer,
)
from sptlib.experiments.ablation import SHORT
from sptlib.seeding import generator
from sptlib.store import Store
from sptlib.tasks import neighbor

ABLATIONS = (duration, depth, source, freezing, transfer)
LIVE_ALIKE = ("smoke", "classroom", "study")


def arms(module, preset: str, task: str, seed: int = 0, **labels) -> dict[str, Run]:
    """The Runs of one row by arm; labels choose among several depths or numbers of labels."""
    return {
        c.labels["arm"]: c.run
        for c in module.cases(preset, seed + 1, task=task)
        if c.labels["task"] == task and c.run.seed == seed and labels.items() <= c.labels.items()
    }


def own(module, preset: str, task: str, seed: int = 0) -> dict[str, Run]:
    """The same at the row's own depth and number of labels."""
    run = presets.get(preset, ablation.TASKS[task])
    labels = {"layers": run.model.n_layers, "labels": run.n_sequences}
    known = {k: v for k, v in labels.items() if k in module.GROUP_BY}
    return arms(module, preset, task, seed, **known)


# --- what is shared -----------------------------------------------------------------------------


@pytest.mark.parametrize("preset", LIVE_ALIKE)
@pytest.mark.parametrize("task", ablation.QUICK)
def test_scratch_and_spt_are_the_same_runs_everywhere(preset, task):
    if task in ablation.NEIGHBOR:
        start = synthetic.base_run(preset, ablation.NEIGHBOR[task], 0)
        expected = {arm: synthetic.make(arm, start) for arm in ("scratch", "SPT")}
    else:
        expected = {c.labels["arm"]: c.run for c in replication.cases(preset, 1, tasks=[task])}
        expected.pop(replication.SHORT, None)
    for module in (depth, source, freezing, transfer):
        found = own(module, preset, task)
        assert {arm: found[arm] for arm in expected} == expected, module.NAME


@pytest.mark.parametrize("preset", LIVE_ALIKE)
@pytest.mark.parametrize("task", ablation.NEIGHBOR)
def test_parts_of_the_synthetic_chapter_are_not_computed_again(preset, task):
    start = synthetic.base_run(preset, ablation.NEIGHBOR[task], 0)
    found = own(transfer, preset, task)
    for arm in ("QK from SPT", "MLP from SPT"):
        assert found[arm] == synthetic.make(arm, start)


def test_other_depths_are_those_of_the_transfer():
    for task, more in transfer.MORE_LAYERS.items():
        for layers in more:
            found = arms(transfer, "study", task, layers=layers)
            assert set(found) == {*transfer.WHOLE, *transfer.PARTS}
            if layers in depth.depths("study", task):
                theirs = arms(depth, "study", task, layers=layers)
                assert {arm: found[arm] for arm in theirs} == theirs


@pytest.mark.parametrize("preset", LIVE_ALIKE)
@pytest.mark.parametrize("module", [depth, source, freezing, transfer])
def test_arms_of_a_seed_differ_in_nothing_but_what_they_are_about(module, preset):
    for task in {c.labels["task"] for c in module.cases(preset, 1)}:
        for seed in (0, 1):
            found = own(module, preset, task, seed)
            assert len({run.task for run in found.values()}) == 1
            assert {run.seed for run in found.values()} == {seed}
            shared = [run.pretraining for run in found.values() if run.pretrain is not None]
            if module is not source:
                assert len(set(shared)) == 1
            plain = {replace(r.model, init="torch", positions="sinusoidal") for r in found.values()}
            assert len(plain) == 1


# --- steps and rates ----------------------------------------------------------------------------


@pytest.mark.parametrize("preset", LIVE_ALIKE)
@pytest.mark.parametrize("task", ablation.QUICK)
def test_what_starts_at_random_has_the_steps_of_both_stages(preset, task):
    for module in (depth, source, freezing, transfer):
        found = own(module, preset, task)
        spt = found["SPT"]
        both = spt.pretraining.n_steps + spt.n_steps
        for arm, run in found.items():
            longer = run.pretrain is None or arm in transfer.LONGER
            assert run.n_steps == (both if longer else spt.n_steps), arm
            assert run.finetune.stop_at is None or run.pretrain is not None, arm
            every = run.n_steps / run.finetune.n_evals
            assert every == pytest.approx(spt.n_steps / spt.finetune.n_evals, rel=0.15), arm


@pytest.mark.parametrize("module", [freezing, transfer])
@pytest.mark.parametrize("task", ablation.QUICK)
def test_every_arm_has_the_rate_that_was_chosen_for_it(module, task):
    chosen = module.CHOSEN[ablation.TASKS[task]]
    before = synthetic.CHOSEN if task in ablation.NEIGHBOR else replication.CHOSEN[task]
    for arm, run in own(module, "study", task).items():
        name = arm.removesuffix(", longer")
        usual = "scratch" if run.pretrain is None else "SPT"
        expected = {**before, **chosen}
        assert run.finetune.lr == expected.get(name, expected[usual]), arm
        if run.pretrain is not None:
            assert run.pretrain.lr == before["pretraining"]
    assert set(chosen) <= set(own(module, "study", task))


@pytest.mark.parametrize("module", [freezing, transfer])
def test_searched_arms_are_those_that_are_reported(module):
    for case in module.candidates("study", [100]):
        task, arm = case.labels["variant"], case.labels["arm"]
        reported = own(module, "study", task)[arm]
        lr = case.run.finetune.lr
        as_reported = replace(case.run.finetune, lr=reported.finetune.lr)
        assert replace(case.run, seed=0, finetune=as_reported) == reported
        assert lr == case.labels["lr"] in module.RATES[case.labels["task"]]


def test_paper_keeps_the_published_rates():
    for module in ABLATIONS:
        cases = module.cases("paper", 1)
        assert {c.labels["task"] for c in cases} == set(ablation.LRA)
        for case in cases:
            recipe = ablation.TASKS[case.labels["task"]]
            assert case.run.finetune.lr == presets.paper(recipe).finetune.lr


# --- what is frozen, and what is copied ---------------------------------------------------------


@pytest.mark.parametrize("preset", ["smoke", "study"])
@pytest.mark.parametrize("task", ablation.QUICK)
def test_frozen_arms_freeze_what_they_say(preset, task):
    found = own(freezing, preset, task)
    groups = {"QK": ("qk",), "QKVO": ("qk", "vo"), "MLP": ("mlp",)}
    for arm, frozen in groups.items():
        assert found[f"frozen {arm}"] == replace(
            found["scratch"], freeze=frozen, finetune=found[f"frozen {arm}"].finetune
        )
        after = found[f"SPT, then frozen {arm}"]
        assert after == replace(found["SPT"], freeze=frozen, finetune=after.finetune)
    uniform = found[freezing.UNIFORM]
    assert (uniform.pretrain, uniform.freeze, uniform.model.init) == (None, ("qk",), "uniform")
    assert (found["SPT"].freeze, found["scratch"].freeze) == ((), ())


@pytest.mark.parametrize("preset", ["smoke", "study"])
@pytest.mark.parametrize("task", ablation.QUICK)
def test_transfer_arms_copy_what_they_say(preset, task):
    found = own(transfer, preset, task)
    copied = {
        "QK": {"qk"}, "VO": {"vo"}, "QKVO": {"qk", "vo"}, "MLP": {"mlp"}, "embeddings": {"embed"},
        "norms": {"norm"}, "QK and embeddings": {"qk", "embed"},
        "QKVO and embeddings": {"qk", "vo", "embed"},
    }  # fmt: skip
    named = {f"{what} from SPT": groups for what, groups in copied.items()}
    named |= {f"{what} from SPT, longer": copied[what] for what in ("QK", "QKVO")}
    named["SPT"] = {"embed", "qk", "vo", "mlp", "norm"}
    assert {arm for arm, run in found.items() if run.pretrain is not None} == set(named)
    for arm, groups in named.items():
        assert set(found[arm].transfer) == groups
        assert found[arm].freeze == ()
    for arm, change in (
        ("RoPE", {"positions": "rope"}), ("mimetic", {"init": "mimetic"}),
        ("QK = identity", {"init": "identity"}),
    ):  # fmt: skip
        expected = replace(found["scratch"], model=replace(found["scratch"].model, **change))
        assert found[f"scratch, {arm}"] == expected


def test_other_numbers_of_labels_change_the_labels_alone():
    for preset, numbers in (("smoke", (48, 24)), ("study", (200, 50, 800))):
        for n in numbers:
            found = arms(freezing, preset, "Image", labels=n)
            assert set(freezing.BY_LABELS) <= set(found)
            assert {run.task.n_labels for run in found.values()} == {n}
            assert found["SPT"].n_steps == own(freezing, preset, "Image")["SPT"].n_steps
            assert found["SPT"].pretraining.task.n_labels == 0
            theirs = {
                c.labels["arm"]: c.run
                for c in few_labels.cases(preset, 1)
                if c.labels["n_labels"] == n
            }
            for arm in ("scratch", "SPT"):  # computed for the chapter on few labels
                assert found[arm] == theirs[arm]
    assert {c.labels["labels"] for c in freezing.cases("classroom", 1)} == {200}


# --- depth --------------------------------------------------------------------------------------


def test_depths_by_preset():
    assert depth.depths("smoke", "Image") == (1, 2)
    assert depth.depths("classroom", "Neighbor +1 / +3") == (1, 2)
    assert depth.depths("study", "Image") == (1, 2, 3)
    published = {"ListOps": 6, "Image": 3, "Pathfinder": 4, "Retrieval": 4, "Text": 6}
    for task, layers in published.items():
        assert depth.depths("paper", task) == tuple(range(1, layers + 1))
    assert depth.depths("study", "Image", (4, 2, 2)) == (2, 4)
    cases = depth.cases("smoke", 1, task="image", n_layers=3)
    assert [c.labels["layers"] for c in cases] == [1, 1, 2, 2, 3, 3]
    for case in (*cases, *depth.cases("study", 1)):
        assert case.run.model.n_layers == case.labels["layers"]
        if case.run.pretrain is not None:
            assert case.run.pretraining.model.n_layers == case.labels["layers"]


def test_depths_change_nothing_but_the_depth():
    for arm in ("scratch", "SPT"):
        one, three = (arms(depth, "study", "Image", layers=n)[arm] for n in (1, 3))
        assert replace(one, model=three.model) == three
        assert replace(one.model, n_layers=3) == three.model


# --- source -------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", LIVE_ALIKE)
def test_only_the_task_s_own_embeddings_are_ever_transferred(preset):
    for task in {c.labels["task"] for c in source.cases(preset, 1)}:
        found = arms(source, preset, task)
        spt = found.pop("SPT")
        assert found.pop("scratch").pretrain is None
        assert "embed" in spt.transfer
        assert task not in found
        for arm, run in found.items():
            assert set(run.transfer) == {"qk", "vo", "mlp", "norm"}, arm
            assert (run.task, run.model, run.finetune) == (spt.task, spt.model, spt.finetune), arm
        itself = found.pop(source.ITSELF)
        assert itself.pretraining == spt.pretraining
        for arm, run in found.items():
            assert run.pretraining.task != spt.pretraining.task, arm


def test_a_source_is_pretrained_as_for_its_own_sake():
    for arm, run in arms(source, "study", "Text, direction").items():
        if arm in ablation.TASKS:
            theirs = ablation.base_run("study", arm, 0).pretraining
            assert run.pretraining == replace(theirs, model=run.model)


def repeats(task: neighbor.NeighborConfig, lag: int = 1) -> float:
    """How often a token is the one before it."""
    x = neighbor.sample(task, 400, generator(0, "test")).x
    return float((x[:, lag:] == x[:, :-lag]).float().mean())


def test_one_noise_has_equal_neighbours_and_the_other_has_nothing():
    tasks = {name: source.pretraining_of("study", name)[0] for name in source.NOISE}
    correlated, independent = tasks["noise, correlated"], tasks["noise, independent"]
    # p, or by chance one time in ten: 0.8 + 0.2 / 10; two further: 0.8² + 0.36 / 10
    assert repeats(correlated) == pytest.approx(0.82, abs=0.01)
    assert repeats(correlated, lag=2) == pytest.approx(0.64 + 0.36 / 10, abs=0.015)
    assert repeats(independent) == pytest.approx(0.1, abs=0.01)
    for task in tasks.values():  # labels have nothing to say
        split = neighbor.sample(task, 400, generator(0, "test"))
        x, y = split.x, split.y
        shares = [float((x[y == c][:, 1:] == x[y == c][:, :-1]).float().mean()) for c in (0, 1)]
        assert shares[0] == pytest.approx(shares[1], abs=0.015)
        counts = x.flatten().bincount(minlength=10) / x.numel()
        assert counts.tolist() == pytest.approx([0.1] * 10, abs=0.02)
    own = ablation.base_run("study", "Neighbor +1 / +3", 0)
    assert replace(correlated, steps=(1, 3)) == own.task


def test_sources_by_name_or_recipe():
    found = source.cases("smoke", 1, sources=["image", "noise, correlated"], task="text:direction")
    assert [c.labels["arm"] for c in found] == [
        "scratch", "SPT", source.ITSELF, "Image", "noise, correlated"
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="did you mean 'pathfinder'"):
        source.cases("smoke", 1, sources=["pathfnder"])


def test_the_matrix_has_mean_gains_in_points():
    rows = [("scratch", 0, 0.5), ("scratch", 1, 0.6), ("SPT", 0, 0.9), ("SPT", 1, 0.9),
            ("Image", 1, 0.5)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["arm", "seed", "test_accuracy"]).assign(task="ListOps")
    found = source.matrix(table)
    assert found.columns.tolist() == ["SPT", "Image"]
    assert found.loc["ListOps"].tolist() == pytest.approx([35.0, -10.0])  # of seeds that both have


# --- tables -------------------------------------------------------------------------------------


def entry(*steps: tuple[int, float]) -> SimpleNamespace:
    """A training with these evaluations; the test accuracy is known where it is the best so far."""
    log, best = [], -1.0
    for step, value in steps:
        line = {"stage": "finetune", "step": step, "val_accuracy": value, "best": value > best}
        log.append({**line, "test_accuracy": value + 0.01} if value > best else line)
        best = max(best, value)
    return SimpleNamespace(metrics=log)


@pytest.mark.parametrize(
    ("step", "expected"),
    [(1, (10, 0.61)), (10, (10, 0.61)), (11, (20, 0.61)), (20, (20, 0.61)), (25, (30, 0.81)),
     (99, (30, 0.81))],
)  # fmt: skip
def test_at_step_reads_the_first_evaluation_from_there_on(step, expected):
    found = ablation.at_step(entry((10, 0.6), (20, 0.5), (30, 0.8)), step)
    assert (found["steps"], found["test_accuracy"]) == pytest.approx(expected)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return Store(tmp_path_factory.mktemp("ablations"))


@pytest.mark.parametrize("module", ABLATIONS)
def test_every_ablation_runs_on_text(module, store):
    cases = module.cases("smoke", 1, task="text")
    assert {c.labels["task"] for c in cases} == {"Text"}
    assert {c.run.task.name for c in cases} == {"text"}
    results = base.collect(cases, store, workers=1)
    table = module.table(results)
    assert table["test_accuracy"].between(0, 1).all()
    assert set(module.GROUP_BY) <= set(table)
    assert len(module.table([])) == 0
    if module is duration:
        return
    # one row per Run, and what scratch had reached after SPT's label steps
    assert table["arm"].tolist()[: len(cases)] == [c.labels["arm"] for c in cases]
    short = table[table["arm"] == SHORT]
    spt = {tuple(c.labels.values())[:-1]: c.run for c in cases if c.labels["arm"] == "SPT"}
    assert len(table) - len(cases) == len(short) == len(spt)
    assert set(short["steps"]) == {run.n_steps for run in spt.values()}
    assert all(map(math.isfinite, table["train_loss"].dropna()))


def test_movements_of_labels_and_of_reconstruction(store):
    results = base.collect(freezing.cases("smoke", 1, task="text"), store, workers=1)
    found = freezing.moved(results, store)
    assert set(found["arm"]) == {"labels only", "reconstruction", "labels after it"}
    spt = next(r.entry for r in results if r.labels["arm"] == "SPT")
    shared = store.get(spt.spec.pretraining)
    for arm, result in (("labels after it", spt.result), ("reconstruction", shared.result)):
        rows = found[found["arm"] == arm].set_index("group")["moved"]
        assert rows["qk"] == result["moved_qk"] > 0
    for r in results:
        moved = r.entry.result.get("moved_qk")
        if r.labels["arm"] == freezing.UNIFORM:  # from zero: there is nothing to measure it by
            assert moved is None
        else:
            assert (moved == 0.0) is ("qk" in r.entry.spec.freeze), r.labels


def test_what_a_source_had_learned_stands_beside_its_gain(store):
    cases = source.cases("smoke", 1, task="text")
    found = source.learned(base.collect(cases, store, workers=1), store)
    assert found["arm"].tolist() == ["SPT", *source.SOURCES]
    assert (found["best"] <= found["first"]).all()


@pytest.mark.parametrize("module", ABLATIONS)
def test_wrong_names_and_numbers_are_refused(module):
    with pytest.raises(ConfigError, match=r"unknown task of the ablations.*did you mean 'image'"):
        module.cases("smoke", 1, task="imge")
    with pytest.raises(ConfigError, match="did you mean 'smoke'"):
        module.cases("smok", 1)
    with pytest.raises(ConfigError, match="at least 1"):
        module.cases("smoke", -1)


def test_rows_by_name_or_recipe():
    assert ablation.check("Text, direction", ()) == ("Text, direction",)
    assert ablation.check("neighbor", ()) == ("Neighbor +1 / +3", "Neighbor +1 / −1")
    assert ablation.check("", ("a", "b")) == ("a", "b")
    assert set(ablation.CHANCE) == set(ablation.TASKS)
    assert few_labels.SHORT == SHORT


def test_predictions_are_held_against_intervals():
    arms = {
        "scratch": 0.6,
        "QK from SPT": 0.4,
        "embeddings from SPT": 0.66,
        "QK and embeddings from SPT": 0.68,
        "QKVO and embeddings from SPT": 0.5,
    }
    rows = [
        {"task": "Image", "arm": arm, "seed": seed, "test_accuracy": value + 0.01 * (seed % 2)}
        for arm, value in arms.items()
        for seed in range(4)
    ]
    rows[8]["test_accuracy"] = 0.9  # one seed of embeddings alone
    found = transfer.conjecture(pd.DataFrame(rows))
    assert found["so?"].tolist() == ["yes", "open", "no"]
    assert transfer.conjecture(pd.DataFrame()).empty
