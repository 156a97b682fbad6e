"""The experiments: their arms, their tables, and the rates they were given."""

import math

import pytest

from sptlib import experiments, presets, tuning
from sptlib.config import digest, key
from sptlib.errors import ConfigError
from sptlib.experiments import (
    ablation,
    attention,
    base,
    dose,
    few_labels,
    positions,
    replication,
    synthetic,
    theory,
)
from sptlib.notebooks import root
from sptlib.store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return Store(tmp_path_factory.mktemp("experiments"))


def collect(module, store, **options) -> list[base.Result]:
    return base.collect(module.cases("smoke", 1, **options), store, workers=1)


@pytest.mark.parametrize("preset", presets.PRESETS)
@pytest.mark.parametrize("module", experiments.OF_RUNS.values())
def test_every_preset_builds_every_experiment(module, preset):
    cases = module.cases(preset)
    assert len({case.run for case in cases}) == len(cases), "two cases are the same Run"
    seeds = {case.run.seed for case in cases}
    allowed = {presets.N_SEEDS[preset], ablation.N_SEEDS[preset]}
    if (module, preset) == (positions, "classroom"):  # ten arms, computed with the book
        allowed = {positions.LIVE_SEEDS}
    assert seeds in [set(range(n)) for n in allowed]
    assert all(set(module.GROUP_BY) <= set(case.labels) for case in cases)


def n_seeds(module) -> dict:
    """How many seeds of the study each cell of the table has."""
    found: dict = {}
    for case in module.cases("study"):
        cell = tuple(case.labels[name] for name in module.GROUP_BY)
        found.setdefault(cell, set()).add(case.run.seed)
    assert all(seeds == set(range(len(seeds))) for seeds in found.values())
    return {value: len(seeds) for value, seeds in found.items()}


def test_the_study_has_ten_seeds_where_trainings_are_quick_and_arms_are_few():
    ten = (synthetic, few_labels, attention, positions, theory, dose)
    for module in experiments.OF_RUNS.values():
        assert set(n_seeds(module).values()) == {10 if module in ten else 5}, module.NAME


def test_seeds_of_the_search_are_never_reported():
    for module in experiments.OF_RUNS.values():
        reported = {case.run.seed for case in module.cases("study")}
        assert not reported & set(tuning.SEEDS)


SEARCHED = [module for module in experiments.OF_RUNS.values() if hasattr(module, "TUNED_AT")]


@pytest.mark.parametrize("module", SEARCHED)
def test_rates_follow_from_the_shipped_search(module):
    table = tuning.read(module.NAME, root())
    assert set(table["preset"]) == {module.TUNED_AT}
    by_task = "task" in table  # then there are rates for each
    searched = {t: module.CHOSEN[t] for t in table["task"].unique()} if by_task else module.CHOSEN
    assert (tuning.choose_by(table, "task") if by_task else tuning.choose(table)) == searched
    unsearched = {"Image"} if module is replication else set()  # the headline of `few_labels`
    assert not by_task or set(module.CHOSEN) - set(searched) == unsearched
    for task, rows in table.groupby("task") if by_task else [("", table)]:
        per_cell = rows.groupby(["arm", "lr"]).size()
        rates = module.RATES[task] if isinstance(module.RATES, dict) else module.RATES
        for arm in rows["arm"].unique():
            grid = module.PRETRAIN_RATES if arm == "pretraining" else rates
            assert set(per_cell[arm].index) == set(grid), "every arm has the whole grid"
            assert per_cell[arm].nunique() == 1
    specs = tuning.runs(module, module.TUNED_AT)
    again = "search anew: sptlib sweep NAME --tune"
    assert table["config"].tolist() == [digest(spec) for spec in specs], again
    if module is not replication:  # the data of its keys take minutes to generate
        assert table["key"].tolist() == [key(spec) for spec in specs], again


def test_arms_of_a_seed_share_data_and_pretraining():
    cases = [c for c in synthetic.cases("smoke", 2) if c.labels["variant"] == "+1 / +3"]
    for seed in (0, 1):
        runs = {c.labels["arm"]: c.run for c in cases if c.run.seed == seed}
        assert len({r.pretraining for r in runs.values() if r.pretrain}) == 1
        assert runs["SPT"].task == runs["scratch"].task == runs["QK from SPT"].task
        assert runs["QK from SPT"].transfer == ("qk",)
        assert runs["MLP from SPT"].transfer == ("mlp",)


@pytest.mark.parametrize("preset", ["classroom", "study"])
def test_scratch_takes_the_steps_of_both_stages(preset):
    spt = synthetic.make("SPT", synthetic.base_run(preset, (1, 3), 0))
    n = spt.task.n_train
    both = spt.pretrain.n_steps(n) + spt.finetune.n_steps(n)
    for arm in ("scratch", "scratch, 10× data", "scratch, fresh data"):
        run = synthetic.make(arm, synthetic.base_run(preset, (1, 3), 0))
        assert run.finetune.n_steps(run.task.n_train) == both >= 1000, arm
        assert run.finetune.stop_at is None, arm


@pytest.mark.parametrize("preset", ["smoke", "classroom", "study"])
def test_steps_are_equal_where_an_arm_says_so(preset):
    expected = few_labels.base_run(preset, few_labels.FOCUS[preset], 0).n_steps
    for n in few_labels.LABELS[preset]:
        spt = few_labels.base_run(preset, n, 0)
        pretraining = spt.pretrain.n_steps(spt.task.n_train)
        arms = {arm: few_labels.make(arm, spt, preset) for arm in few_labels.ARMS}
        assert arms["SPT"].n_steps == arms[few_labels.SHORT].n_steps == expected
        assert arms["scratch"].n_steps == expected + pretraining
        strict = arms[few_labels.STRICT]
        assert strict.pretrain.n_steps(n) == pytest.approx(pretraining, abs=1)
        assert strict.pretraining.task.n_labels == n
        assert spt.pretraining.task.n_labels == 0


def test_paper_keeps_the_published_rates():
    for case in few_labels.cases("paper", 1):
        assert case.run.finetune.lr == 1e-3


def test_table_has_a_row_per_run(store):
    results = collect(synthetic, store)
    table = synthetic.table(results)
    assert len(table) == len(results)
    assert set(table["arm"]) == set(synthetic.ARMS)
    assert table["key"].tolist() == [key(r.entry.spec) for r in results]
    assert table[["test_accuracy", "train_loss"]].notna().all(axis=None)


def test_one_number_of_labels_is_the_headline():
    assert few_labels.focus("classroom") == 200
    assert few_labels.focus("classroom", [50, 100]) == 100
    cases = few_labels.cases("classroom", 1, labels=[50, 100])
    long = {c.labels["n_labels"] for c in cases if c.labels["arm"] == "scratch"}
    assert long == {100}


def test_a_prefix_of_a_training_is_the_shorter_training(store):
    """With a constant rate, the first k steps are the same."""
    from dataclasses import replace

    from sptlib.execute import compute

    run = few_labels.make("scratch", few_labels.base_run("smoke", 48, 0), "smoke")
    run = replace(run, finetune=replace(run.finetune, epochs=4.0, n_evals=4))
    half = replace(run, finetune=replace(run.finetune, epochs=2.0, n_evals=2))
    long, short = compute(run, store), compute(half, store)
    n = short.result["steps"]
    assert [x for x in long.metrics if x["step"] <= n] == short.metrics
    reached = base.evaluations(long).query("step <= @n")
    assert reached["test_accuracy"].iloc[-1] == short.result["test_accuracy"]


def test_losses_are_averaged_over_a_trailing_window(store):
    entry = collect(synthetic, store)[0].entry
    raw = [x["loss"] for x in entry.metrics if "loss" in x]
    table = base.losses(entry, "finetune", window=2)
    assert table["loss"].iloc[0] == pytest.approx(raw[0])
    assert table["loss"].iloc[1] == pytest.approx((raw[0] + raw[1]) / 2)


def test_wrong_task_seeds_and_names_are_refused():
    with pytest.raises(ConfigError, match="few_labels takes image"):
        synthetic.cases("smoke", 1, task="image")
    with pytest.raises(ConfigError, match="synthetic takes neighbor"):
        few_labels.cases("smoke", 1, task="neighbor")
    with pytest.raises(ConfigError, match="at least 1"):
        synthetic.cases("smoke", -1)
    with pytest.raises(ConfigError, match="did you mean 'synthetic'"):
        experiments.get("sythetic")
    with pytest.raises(ConfigError, match="did you mean 'classroom'"):
        few_labels.cases("clasroom", 1)


def test_flat_has_every_field(store):
    row = base.flat(collect(synthetic, store)[0].entry)
    assert row["task.name"] == "neighbor"
    assert row["finetune.lr"] == synthetic.CHOSEN["scratch"]
    assert math.isfinite(row["test_accuracy"])
    assert row["pretrain"] is None


def test_the_search_writes_one_row_per_training(tmp_path, monkeypatch):
    from sptlib.sweep import compute_all

    monkeypatch.setattr(tuning, "SEEDS", (100,))
    entries = compute_all(tuning.runs(few_labels, "smoke"), Store(tmp_path / "s"), workers=1)
    path = tuning.write(few_labels, "smoke", entries, tmp_path)
    table = tuning.read("few_labels", tmp_path)
    assert path == tmp_path / "data" / "tuning" / "few_labels.csv"
    assert len(table) == len(entries)
    assert len(table) == 2 * len(few_labels.RATES) + len(few_labels.PRETRAIN_RATES)
    assert set(tuning.choose(table)) == set(few_labels.CHOSEN)


def test_choose_takes_the_best_mean_and_breaks_ties_by_loss():
    import pandas as pd

    rows = [
        ("a", 1e-3, 0.5, 0.6),
        ("a", 1e-3, 0.9, 0.6),
        ("a", 2e-3, 0.8, 0.5),
        ("a", 2e-3, 0.7, 0.5),
        ("b", 1e-3, 0.5, 0.7),
        ("b", 2e-3, 0.5, 0.6),
        ("pretraining", 1e-3, None, 1.0),
        ("pretraining", 2e-3, None, 2.0),
    ]
    table = pd.DataFrame(rows, columns=["arm", "lr", "val_accuracy", "val_loss"])
    assert tuning.choose(table) == {"a": 2e-3, "b": 2e-3, "pretraining": 1e-3}


def test_a_single_training_has_the_chosen_rates_too():
    """`sptlib train` takes the preset as it stands; the experiments put in what was chosen."""
    for task, module in (("neighbor", synthetic), ("image", few_labels)):
        run = presets.classroom(task)
        assert run.pretrain.lr == module.CHOSEN["pretraining"]
        assert run.finetune.lr == module.CHOSEN["SPT"]
    for task, recipe in replication.TASKS.items():
        run = presets.study(recipe)
        assert run.pretrain.lr == replication.CHOSEN[task]["pretraining"]
        assert run.finetune.lr == replication.CHOSEN[task]["SPT"]


# --- replication ----------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["smoke", "classroom", "study"])
@pytest.mark.parametrize("task", replication.TASKS)
def test_scratch_takes_as_many_steps_as_both_stages(preset, task):
    spt = replication.make("SPT", task, replication.base_run(preset, task, 0), preset)
    scratch = replication.make("scratch", task, replication.base_run(preset, task, 0), preset)
    both = spt.pretraining.n_steps + spt.n_steps
    assert scratch.n_steps == both
    assert (scratch.task, scratch.model) == (spt.task, spt.model)
    every = [run.n_steps / run.finetune.n_evals for run in (spt, scratch)]
    assert every[1] == pytest.approx(every[0], rel=0.08), "evaluated equally often"


def test_the_image_row_is_the_headline_of_the_chapter_before():
    ours = replication.cases("classroom", 1, tasks=["Image"])
    theirs = {c.labels["arm"]: c.run for c in few_labels.cases("classroom", 1)
              if c.labels["n_labels"] == few_labels.FOCUS["classroom"]}  # fmt: skip
    for case in ours:
        assert case.run == theirs[case.labels["arm"]]


def test_the_short_row_is_a_training_of_that_length(store):
    from dataclasses import replace

    from sptlib.execute import compute

    cases = replication.cases("smoke", 1, tasks=["text:direction"])
    results = base.collect(cases, store, workers=1)
    table = replication.table(results).set_index("arm")
    assert table.index.tolist() == ["scratch", replication.SHORT, "SPT"]
    runs = {c.labels["arm"]: c.run for c in cases}
    short = replace(runs["SPT"], pretrain=None, finetune=replace(
        runs["SPT"].finetune, lr=runs["scratch"].finetune.lr))  # fmt: skip
    done = compute(short, store)
    assert table.loc[replication.SHORT, "steps"] == done.result["steps"]
    assert table.loc[replication.SHORT, "test_accuracy"] == done.result["test_accuracy"]


def test_rows_of_the_replication_by_name_or_recipe():
    assert replication.check(["text:direction", "ListOps"]) == ("ListOps", "Text, direction")
    with pytest.raises(ConfigError, match="did you mean 'listops'"):
        replication.cases("smoke", 1, tasks=["listop"])
    live = {c.labels["task"] for c in replication.cases("classroom", 1)}
    assert live == set(replication.LIVE)
    assert len(replication.table([])) == 0
