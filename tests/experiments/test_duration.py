"""Durations: which lengths, what each is compared with, and what is read off one training."""

from dataclasses import replace

import pytest
import torch

from sptlib import tasks
from sptlib.cost.workload import workload
from sptlib.errors import ConfigError
from sptlib.experiments import base, duration, synthetic
from sptlib.experiments.duration import COMPUTE, STEPS
from sptlib.store import Store

NEIGHBOR = "Neighbor +1 / +3"


def runs(found: list[base.Case], task: str, seed: int = 0) -> dict:
    return {
        (c.labels["epochs"], c.labels["arm"]): c.run
        for c in found
        if (c.labels["task"], c.run.seed) == (task, seed)
    }


def test_durations_are_the_published_shares():
    assert duration.lengths("classroom") == (0.0, 0.08, 0.8, 4.0, 8.0, 16.0)
    assert duration.lengths("smoke") == (0.0, 0.5, 1.0, 2.0)  # the others come to one step as well
    assert duration.lengths("paper", recipe="image") == (0.0, 1.0, 10.0, 50.0, 100.0, 200.0)
    assert duration.lengths("classroom", [5, 0, 1]) == (0.0, 1.0, 5.0)
    for wrong in ([-1], [1, 1.0]):
        with pytest.raises(ConfigError, match="pretrain_epochs takes"):
            duration.lengths("classroom", wrong)


def test_every_task_of_the_ablations_has_durations():
    found = duration.cases("smoke", 1, task="image")
    assert {c.labels["task"] for c in found} == {"Image"}
    assert {c.labels["task"] for c in duration.cases("smoke", 1, task="neighbor")} == {
        "Neighbor +1 / +3", "Neighbor +1 / −1"
    }  # fmt: skip
    with pytest.raises(ConfigError, match="did you mean 'image'"):
        duration.cases("smoke", task="imge")


@pytest.mark.parametrize("preset", ["smoke", "classroom", "study"])
def test_one_training_from_scratch_is_as_long_as_the_longest_by_either_count(preset):
    found = duration.cases(preset, 2)
    assert {c.labels["arm"] for c in found} == {"SPT", "scratch"}
    for task in {c.labels["task"] for c in found}:
        for seed in (0, 1):
            mine = runs(found, task, seed)
            lengths = duration.lengths(preset, recipe=duration.TASKS[task])
            assert list(mine) == [*((e, "SPT") for e in lengths[1:]), (lengths[-1], "scratch")]
            scratch = mine.pop((lengths[-1], "scratch"))
            assert scratch.pretrain is None
            assert scratch.finetune.stop_at is None
            for (epochs, _), spt in mine.items():
                assert spt.pretrain.epochs == epochs
                assert (spt.task, spt.model) == (scratch.task, scratch.model)
                assert spt.finetune == mine[lengths[-1], "SPT"].finetune
                assert spt.pretraining.n_steps + spt.n_steps <= scratch.n_steps
                assert duration.steps_for_compute(spt) <= scratch.n_steps


def test_the_longest_is_the_spt_of_the_other_chapters():
    full = runs(duration.cases("classroom", 1), NEIGHBOR)[16.0, "SPT"]
    assert full == synthetic.make("SPT", synthetic.base_run("classroom", (1, 3), 0))


def test_equal_compute_is_the_flops_of_both_stages():
    spt = synthetic.make("SPT", synthetic.base_run("classroom", (1, 3), 0))
    labels, before = workload(replace(spt, pretrain=None)), workload(spt.pretraining)
    both = before.steps * before.step_flops + labels.steps * labels.step_flops
    steps = duration.steps_for_compute(spt)
    assert steps * labels.step_flops == pytest.approx(both, rel=0.5 / steps)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[base.Result]:
    cases = duration.cases("smoke", 1, pretrain_epochs=[0, 1, 2], task="text:direction")
    return base.collect(cases, Store(tmp_path_factory.mktemp("durations")), workers=1)


def test_a_table_has_what_scratch_had_reached_beside_each_length(results):
    table = duration.table(results)
    # 4 label steps; an epoch of pretraining is 2 steps, with the FLOPs of 3 label steps, so that 7
    # and 10 would be equal; scratch is evaluated at every second step
    assert table[["epochs", "arm", "steps"]].values.tolist() == [
        [0.0, "SPT", 4], [0.0, COMPUTE, 4], [0.0, STEPS, 4],
        [1.0, "SPT", 4], [1.0, COMPUTE, 8], [1.0, STEPS, 6],
        [2.0, "SPT", 4], [2.0, COMPUTE, 10], [2.0, STEPS, 8],
    ]  # fmt: skip
    scratch = next(r.entry for r in results if r.labels["arm"] == "scratch")
    log = base.evaluations(scratch).set_index("step")["test_accuracy"]
    read = table[(table["arm"] != "SPT") | (table["epochs"] == 0)]
    assert read["test_accuracy"].tolist() == [log[steps] for steps in read["steps"]]
    per_step = workload(scratch.spec).step_flops
    assert read["flops"].tolist() == [steps * per_step for steps in read["steps"]]
    assert set(read["key"]) == {scratch.key}
    assert len(duration.table([])) == 0


def test_without_pretraining_there_is_scratch_alone(tmp_path):
    cases = duration.cases("smoke", 1, pretrain_epochs=[0], task="text:direction")
    assert [c.labels["arm"] for c in cases] == ["scratch"]
    table = duration.table(base.collect(cases, Store(tmp_path), workers=1))
    assert table["arm"].tolist() == ["SPT", COMPUTE, STEPS]
    assert set(table["steps"]) == {cases[0].run.n_steps} == {4}


def test_compute_is_that_of_both_stages(results):
    table = duration.by_compute(duration.table(results))
    spt = next(r.entry.spec for r in results if r.labels["arm"] == "SPT")
    labels, before = workload(spt), workload(spt.pretraining)
    flops = before.steps * before.step_flops + labels.steps * labels.step_flops
    row = table[(table["arm"] == "SPT") & (table["cell"] == spt.pretrain.epochs)]
    assert row["flops"].tolist() == [flops]
    assert set(table["arm"]) == {"SPT", "scratch"}


def test_what_was_learned_stands_beside_what_came_of_it(tmp_path):
    store = Store(tmp_path)
    cases = duration.cases("smoke", 1, pretrain_epochs=[0, 1, 2], task="text:direction")
    found = duration.learned(base.collect(cases, store, workers=1), store)
    assert found["epochs"].tolist() == [1.0, 2.0]
    losses = found["val_loss"]
    assert losses.tolist() == [store.get(c.run.pretraining).result["val_loss"] for c in cases[:2]]
    x = tasks.load(cases[0].run.task, 0).unlabelled
    kept = torch.cat([row[:n] for row, n in zip(x.x, x.length, strict=True)])
    shares = kept.bincount()[kept.bincount() > 0] / len(kept)
    entropy = float(-(shares * shares.log()).sum())
    assert found["entropy"].tolist() == pytest.approx(2 * [entropy], rel=1e-4)
    assert found["gained"].tolist() == pytest.approx((1 - losses / entropy).tolist(), abs=1e-4)
    assert len(duration.learned([], store)) == 0


def test_places_are_named_by_task_and_length(results):
    places = duration.placed(duration.table(results))["place"]
    assert set(places) == {"Text, direction, 1 epochs", "Text, direction, 2 epochs"}
