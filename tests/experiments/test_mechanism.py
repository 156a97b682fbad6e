"""The experiments on mechanism and theory: their Runs, what stays zero, and their tables."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from sptlib import watch
from sptlib.config import digest, key
from sptlib.errors import ConfigError
from sptlib.experiments import ablation, attention, base, dose, positions, theory
from sptlib.experiments.ablation import SCRATCH, SPT
from sptlib.store import Store

MODULES = (attention, positions, theory, dose)
NEIGHBOR = "Neighbor +1 / +3"


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return Store(tmp_path_factory.mktemp("mechanism"))


def collect(module, store, **options) -> list[base.Result]:
    return base.collect(module.cases("smoke", 1, **options), store, workers=1)


# --- the Runs -----------------------------------------------------------------------------------

#: rows × cells of a row × seeds
NUMBERS = {
    "attention": {"smoke": 4 * 2 * 2, "classroom": 1 * 2 * 5, "study": 4 * 2 * 10},
    "positions": {"smoke": 3 * 10 * 2, "classroom": 1 * 10 * 3, "study": 3 * 10 * 10},
    "theory": {"smoke": 4 * 3 * 2, "classroom": 1 * 3 * 5, "study": 4 * 3 * 10},
    "dose": {"smoke": 1 * 14 * 2, "classroom": 1 * 8 * 5, "study": 1 * 14 * 10},
}


@pytest.mark.parametrize("preset", ["smoke", "classroom", "study"])
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.NAME)
def test_each_preset_has_its_number_of_different_runs(module, preset):
    cases = module.cases(preset)
    assert len(cases) == NUMBERS[module.NAME][preset]
    assert len({digest(case.run) for case in cases}) == len(cases)
    cells = Counter(tuple(case.labels[k] for k in module.GROUP_BY) for case in cases)
    assert len(set(cells.values())) == 1, "every cell has as many seeds"
    assert all(case.run.finetune.watch for case in cases)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.NAME)
def test_the_study_has_ten_seeds_and_fewer_can_be_asked_for(module):
    assert {case.run.seed for case in module.cases("study")} >= set(range(10))
    assert {case.run.seed for case in module.cases("study", 3)} == {0, 1, 2}
    with pytest.raises(ConfigError, match="at least 1"):
        module.cases("smoke", -1)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.NAME)
def test_unknown_tasks_and_presets_are_refused(module):
    with pytest.raises(ConfigError, match="did you mean 'neighbor'"):
        module.cases("smoke", 1, task="neighbour")
    with pytest.raises(ConfigError, match="did you mean 'smoke'"):
        module.cases("smoky", 1)
    assert {c.labels["task"] for c in module.cases("smoke", 1, task="image")} == {"Image"}
    both = {c.labels["task"] for c in module.cases("smoke", 1, task="neighbor")}
    assert both == set(ablation.NEIGHBOR)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.NAME)
def test_the_number_of_layers_can_be_chosen(module):
    assert {c.run.model.n_layers for c in module.cases("smoke", 1, n_layers=3)} == {3}


def test_both_stages_are_watched_to_the_end_and_can_be_watched_more_often():
    for preset, times in attention.LOOKS.items():
        for case in attention.cases(preset, 1):
            run = case.run
            assert run.finetune.stop_at is None
            stages = [run.finetune, *([run.pretrain] if run.pretrain else [])]
            assert len(stages) == (2 if case.labels["arm"] == SPT else 1)
            assert {stage.watch for stage in stages} == {times}
    assert {case.run.finetune.watch for case in attention.cases("smoke", 1, looks=7)} == {7}


@pytest.mark.parametrize("preset", ["smoke", "classroom", "study"])
def test_scratch_has_the_steps_of_both_stages(preset):
    for module in (attention, positions):
        cases = module.cases(preset, 1)
        for one, other in zip(cases[::2], cases[1::2], strict=True):
            assert (one.labels["arm"], other.labels["arm"]) == (SCRATCH, SPT)
            assert one.run.n_steps == other.run.pretraining.n_steps + other.run.n_steps


@pytest.mark.parametrize("preset", ["smoke", "classroom", "study"])
def test_sinusoidal_runs_of_positions_are_those_of_attention(preset):
    def by_place(cases):
        return {(c.labels["task"], c.labels["arm"], c.run.seed): digest(c.run) for c in cases}

    theirs = by_place(attention.cases(preset, 2))
    usual = [c for c in positions.cases(preset, 2) if c.labels["positions"] == "sinusoidal"]
    ours = by_place(usual)
    common = ours.keys() & theirs.keys()
    assert len(common) == {"smoke": 12, "classroom": 4, "study": 12}[preset]
    assert {place: ours[place] for place in common} == {place: theirs[place] for place in common}
    some = next(c.run for c in usual if c.labels["task"] == NEIGHBOR)
    assert key(some) in {
        key(c.run) for c in attention.cases(preset, 2) if c.labels["task"] == NEIGHBOR
    }


def test_every_encoding_is_in_both_arms_and_some_can_be_chosen():
    for case in positions.cases("smoke", 1):
        assert case.run.model.positions == case.labels["positions"]
        if case.run.pretrain:
            assert case.run.pretraining.model.positions == case.labels["positions"]
    assert {c.labels["positions"] for c in positions.cases("smoke", 1)} == set(positions.ENCODINGS)
    chosen = positions.cases("smoke", 1, encodings=["rope"])
    assert {c.labels["positions"] for c in chosen} == {"rope"}
    searched = {c.labels["arm"] for c in positions.candidates("study", (100,))}
    arms = (SCRATCH, SPT)
    assert searched == {f"{arm}, {e}" for arm in arms for e in positions.ENCODINGS[1:]}


def test_doses_change_one_thing():
    for case in dose.cases("smoke", 1):
        run, amount = case.run, case.labels["dose"]
        if case.labels["kind"] == dose.QK:
            assert (run.transfer, run.transfer_share) == (("qk",), amount)
            assert run.model.proximity_bias == 0
        else:
            assert (run.pretrain, run.model.proximity_bias) == (None, amount)
    cases = dose.cases("study", 1)
    assert len({case.run.n_steps for case in cases}) == 1
    for kind in dose.DOSES:
        of_kind = [case for case in cases if case.labels["kind"] == kind]
        assert [case.labels["dose"] for case in of_kind] == list(dose.DOSES[kind])
        assert len({case.run.finetune.lr for case in of_kind}) == 1


# --- theory: uniform attention stays uniform ----------------------------------------------------


@pytest.fixture(scope="module")
def trained(store):
    return {r.labels["arm"]: r.entry for r in collect(theory, store, task=NEIGHBOR)}


def test_queries_and_keys_stay_exactly_zero(trained, store):
    by_labels, by_reconstruction = trained[theory.BY_LABELS], trained[theory.BY_RECONSTRUCTION]
    pretraining = store.get(by_reconstruction.spec.pretraining)
    for entry in (by_labels, by_reconstruction, pretraining):
        weights = [entry.model()]
        if entry is not pretraining:
            weights += entry.snapshots().values()
        for found in weights:
            of_qk = [v for n, v in found.items() if ".attention.q." in n or ".attention.k." in n]
            assert len(of_qk) >= 4
            assert all(not value.any() for value in of_qk)
            assert any(v.any() for n, v in found.items() if ".attention.v." in n)
    assert by_labels.result["moved_vo"] > 0  # everything else is fitted
    assert pretraining.result["moved_vo"] > 0
    for name in ("start", "end"):
        for entry in (by_labels, by_reconstruction):
            near = entry.result[f"{name}_proximity"]
            assert near == pytest.approx(entry.result[f"{name}_uniform"], rel=1e-4)
    random = trained[theory.RANDOM]
    assert random.result["start_proximity"] != pytest.approx(
        random.result["start_uniform"], rel=1e-4
    )


def test_the_forces_are_those_of_their_moments(trained, store):
    table = theory.table(collect(theory, store, task=NEIGHBOR))
    found = theory.forces(table)
    assert len(found) == len(theory.MOMENTS) * len(theory.LOSSES)
    assert set(found["seed"]) == {0}
    assert set(found["task"]) == {NEIGHBOR}
    moments = (
        (theory.BY_LABELS, "start", theory.START),
        (theory.BY_LABELS, "end", theory.FITTED_BY_LABELS),
        (theory.BY_RECONSTRUCTION, "start", theory.FITTED_BY_RECONSTRUCTION),
        (theory.RANDOM, "start", "random start"),
    )
    for arm, when, moment in moments:
        for loss in theory.LOSSES:
            (row,) = found[(found["moment"] == moment) & (found["loss"] == loss)].to_dict("records")
            result = trained[arm].result
            assert row["force"] == result[f"{when}_{loss}_force"]
            assert row["signal"] == row["force"] / result[f"{when}_{loss}_noise"]
            assert row["cosine"] == result[f"{when}_{loss}_cosine"]
            assert row["blind"] == result[f"{when}_{loss}_columns"]
            assert (row["key"], row["arm"]) == (trained[arm].key, f"{loss}, {moment}")
    assert len(theory.forces(table[table["arm"] == theory.RANDOM])) == 2


# --- tables -------------------------------------------------------------------------------------


def test_looks_follow_both_stages(store):
    results = collect(attention, store, task=NEIGHBOR)
    found = attention.looks(results, store)
    assert len(found) == 3 + 3 + 3  # scratch, and SPT in both stages
    for (arm, stage), rows in found.groupby(["arm", "stage"]):
        (result,) = (r for r in results if r.labels["arm"] == arm)
        entry = result.entry if stage == "finetune" else store.get(result.entry.spec.pretraining)
        lines = [line for line in entry.metrics if "attention" in line]
        assert rows["step"].tolist() == [line["step"] for line in lines]
        assert rows["step"].iloc[-1] == entry.spec.n_steps
        for row, line in zip(rows.to_dict("records"), lines, strict=True):
            assert {k: row[k] for k in watch.summary(line)} == watch.summary(line)
            assert row["profile"] == line["attention"]["profile"]
            assert row["label_lags"] == line["label"]["lags"]
            assert row["reconstruction_lags"] == line["reconstruction"]["lags"]
            assert row["moved_qk"] == line["moved"]["qk"]
            for loss in theory.LOSSES:
                signal = line[loss]["force"] / line[loss]["noise"]
                assert row[f"{loss}_signal"] == pytest.approx(signal)
    assert set(found.groupby(["arm", "stage"]).groups) == {
        (SCRATCH, "finetune"), (SPT, "pretrain"), (SPT, "finetune")
    }  # fmt: skip
    assert found["loss"].map(math.isfinite).all()


def test_moments_are_read_from_both_arms(store):
    table = attention.table(collect(attention, store, task=NEIGHBOR))
    found = attention.moments(table).set_index("arm")
    assert found.index.tolist() == list(attention.MOMENTS)
    rows = table.set_index("arm")
    for moment, (arm, when) in attention.MOMENTS.items():
        for name in attention.MEASURES:
            assert found.loc[moment, name] == rows.loc[arm, f"{when}_{name}"]
        times = rows.loc[arm, f"{when}_proximity"] / rows.loc[arm, f"{when}_uniform"]
        assert found.loc[moment, "times"] == times


def test_an_onset_is_half_of_the_way():
    steps = [0, 10, 20, 30]
    columns = {
        "moved_vo": [0.0, 1.0, 1.0, 1.0],  # half of it after 5 steps
        "reconstruction_cosine": [0.2, 0.2, 0.2, 0.6],
        "moved_qk": [0.0, 0.0, 1.0, 4.0],
        "loss": [2.0, 2.0, 1.0, 1.0],  # falling is moving, too
        "proximity": [0.1, 0.1, 0.1, 0.1],
    }
    looks = pd.DataFrame({"task": "x", "seed": 0, "stage": "pretrain", "step": steps, **columns})
    later = looks.assign(stage="finetune", moved_vo=9.0)
    shuffled = pd.concat([looks, later]).sample(frac=1, random_state=0)
    found = attention.onsets(shuffled).set_index("arm")["step"]
    assert found.index.tolist() == list(attention.PHASES)
    half = dict(zip(attention.PHASES.values(), found, strict=True))
    assert math.isnan(half.pop("proximity"))
    assert half == pytest.approx(
        {"moved_vo": 5, "reconstruction_cosine": 25, "moved_qk": 20 + 10 / 3, "loss": 15}
    )
    assert len(attention.onsets(pd.DataFrame())) == 0


# --- dose and response --------------------------------------------------------------------------


def responses(means: list[float], seeds: int = 5, noise: float = 0.01) -> pd.DataFrame:
    g = np.random.default_rng(0)
    return pd.DataFrame(
        [
            {"task": "x", "kind": "k", "dose": float(d), "seed": s,
             "test_accuracy": mean + noise * g.standard_normal()}
            for d, mean in enumerate(means)
            for s in range(seeds)
        ]
    )  # fmt: skip


def test_a_rising_response_has_a_small_p_and_a_falling_one_has_not():
    rising = dose.trend(responses([0.5, 0.6, 0.7, 0.9])).iloc[0]
    assert rising["p (Page)"] < 1e-3
    assert (rising["seeds"], rising["doses"]) == (5, 4)
    assert rising["rank correlation of the means"] == pytest.approx(1)
    assert rising["largest fall between two doses"] < 0
    falling = dose.trend(responses([0.9, 0.7, 0.6, 0.5])).iloc[0]
    assert falling["p (Page)"] > 0.99
    assert falling["rank correlation of the means"] == pytest.approx(-1)
    assert falling["largest fall between two doses"] == pytest.approx(0.2, abs=0.03)
    flat = dose.trend(responses([0.5] * 4)).iloc[0]
    assert flat["p (Page)"] > 0.05


@pytest.mark.parametrize(("means", "seeds"), [([0.5, 0.7, 0.9], 2), ([0.5, 0.7, 0.9], 1),
                                              ([0.5, 0.9], 5)])  # fmt: skip
def test_few_seeds_or_doses_tell_nothing(means, seeds):
    assert dose.trend(responses(means, seeds)).iloc[0]["p (Page)"] == 1.0


def test_seeds_that_lack_a_dose_are_left_out():
    table = responses([0.5, 0.7, 0.9], 5)
    table = table[~((table["seed"] == 4) & (table["dose"] == 1.0))]
    assert dose.trend(table).iloc[0]["seeds"] == 4
    assert len(dose.trend(table[:0])) == 0


def test_kinds_are_judged_apart_and_in_the_order_of_their_doses():
    other = responses([0.9, 0.7, 0.5]).assign(kind="other")
    mixed = pd.concat([responses([0.5, 0.7, 0.9]), other]).sample(frac=1, random_state=1)
    found = dose.trend(mixed).set_index("kind")["p (Page)"]
    assert found["k"] < 0.01 < 0.99 < found["other"]


def test_doses_can_be_computed_and_tabled(store):
    cases = [c for c in dose.cases("smoke", 1) if c.labels["dose"] in (0.0, 0.1, 1.0)]
    table = dose.table(base.collect(cases, store, workers=1))
    assert table.groupby("kind")["dose"].apply(sorted).to_dict() == {
        kind: [0.0, 0.1, 1.0] for kind in dose.DOSES
    }
    # the bias is what attention sees: the stronger, the nearer
    near = table[table["kind"] == dose.BIAS].set_index("dose")["start_proximity"]
    assert near[0.0] < near[0.1] < near[1.0]
    assert dose.trend(table)["p (Page)"].tolist() == [1.0, 1.0]


def test_a_whole_dose_is_the_transfer_of_queries_and_keys():
    whole = next(
        c.run for c in dose.cases("smoke", 1) if c.labels == {
            "task": NEIGHBOR, "kind": dose.QK, "dose": 1.0}
    )  # fmt: skip
    assert digest(whole) == digest(replace(whole, transfer=("qk",), transfer_share=1.0))
