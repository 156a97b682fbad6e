"""Recomputing: identical is said only of what is, and another environment only excuses rounding."""

import json
from dataclasses import replace

import pytest

from sptlib import export, recheck
from sptlib.config import key
from sptlib.execute import compute
from sptlib.export import Study
from sptlib.store import Store
from sptlib.sweep import Interrupted


@pytest.fixture
def filled(tiny, store, where) -> Store:
    """Two Runs, one from scratch, and a pretraining."""
    for run in (tiny, replace(tiny, seed=1, pretrain=None)):
        compute(run, store, where)
    return store


def known(place) -> dict:
    return {entry.key: entry for entry in place.entries()}


def again(place, n: int = 9) -> dict[str, recheck.Comparison]:
    chosen = recheck.draw(list(known(place).values()), n, 0)
    return {c.key: c for c in recheck.recompute(known(place), chosen, workers=1)}


def altered(store: Store, spec, metrics=lambda x: x, result=None, environment=None):
    """The stored result with other numbers, as if they had come out."""
    entry = store.get(spec)
    store.put(
        spec,
        metrics=metrics(entry.metrics),
        result={**entry.result, **(result or {})},
        model=entry.model(),
        environment={**entry.environment, **(environment or {})},
    )


def test_a_recomputed_store_is_identical(tiny, filled):
    found = again(filled)
    assert found.keys() == known(filled).keys()
    assert {c.outcome for c in found.values()} == {"identical"}
    assert not any(c.bad(0.0) for c in found.values())
    n = sum(len(line) - 2 for line in filled.get(tiny).metrics) + len(filled.get(tiny).result)
    n += 2  # how many lines there are, and the weights
    assert found[key(tiny)].text == f"{n} values"


def test_one_other_bit_is_found(tiny, filled):
    def nudge(metrics):
        lines = [dict(line) for line in metrics]
        (line,) = (x for x in lines if x["step"] == 7 and "loss" in x)
        line["loss"] *= 1 + 2**-52
        return lines

    altered(filled, tiny, nudge)
    found = again(filled)[key(tiny)]
    assert found.outcome == "different"
    assert "at loss at step 7 of finetune" in found.text
    assert found.bad(1.0), "the environment is the same: no tolerance"
    accuracy = filled.get(tiny).result["test_accuracy"]
    assert f"test accuracy {accuracy:.4f}, recomputed {accuracy:.4f}" in str(found)


def test_a_pretraining_is_compared_as_well(tiny, filled):
    altered(filled, tiny.pretraining, result={"val_loss": 1.0})
    found = again(filled)
    assert "at val_loss of the result" in found[key(tiny.pretraining)].text
    assert found[key(tiny)].outcome == "identical"


def test_another_environment_excuses_rounding_but_not_another_accuracy(tiny, filled):
    elsewhere = {"versions": {"torch": "1.0"}, "machine": "sparc", "threads": 2}
    result = filled.get(tiny).result
    altered(filled, tiny, result={"val_loss": result["val_loss"] + 1e-4}, environment=elsewhere)
    found = again(filled)[key(tiny)]
    assert found.outcome == "different"
    assert {text.split()[0] for text in found.elsewhere} == {"torch", "machine", "threads"}
    assert "torch 1.0, here " in str(found)
    assert not found.bad(0.0)
    moved = {"test_accuracy": result["test_accuracy"] + 0.04}
    altered(filled, tiny, result=moved, environment=elsewhere)
    found = again(filled)[key(tiny)]
    assert not found.bad(0.05)
    assert found.bad(0.03)


def test_what_was_not_recorded_is_not_compared(tiny, filled):
    altered(filled, tiny, environment={"machine": "", "threads": None})
    assert again(filled)[key(tiny)].elsewhere == ()


def test_a_field_that_results_did_not_have_then_is_no_difference(tiny, filled):
    entry = filled.get(tiny)
    older = {k: v for k, v in entry.result.items() if not k.startswith("moved_")}
    assert len(older) < len(entry.result)
    filled.put(tiny, metrics=entry.metrics, result=older, model=entry.model(),
               environment=entry.environment)  # fmt: skip
    assert again(filled)[key(tiny)].outcome == "identical"
    altered(filled, tiny, result={"gone": 1.0})  # but what they had must still be there
    found = again(filled)[key(tiny)]
    assert found.outcome == "different"
    assert "the first is gone of the result" in found.text


def test_an_unknown_processor_may_be_another_one(tiny, filled):
    """Results from before it was recorded: rounding may then differ, and is excused."""
    val_loss = filled.get(tiny).result["val_loss"] + 1e-4
    altered(filled, tiny, result={"val_loss": val_loss}, environment={"processor": None})
    found = again(filled)[key(tiny)]
    assert found.elsewhere[0].startswith("processor not recorded, here ")
    assert not found.bad(0.0)


def test_other_weights_are_found(tiny, filled):
    """Also where every number of result and log is the same."""
    entry = filled.get(tiny)
    weights = entry.model()
    name = next(iter(weights))
    filled.put(
        tiny,
        metrics=entry.metrics,
        result=entry.result,
        model=weights | {name: weights[name] + 1},
        environment=entry.environment,
    )
    found = again(filled)[key(tiny)]
    assert found.text.startswith("1 steps, counts or words are others, the first is weights")
    assert found.bad(1.0)


LINES = "the first is number of logged lines"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda log: log[:-1], LINES),
        (lambda log: [*log, {**log[-1], "step": 13}], LINES),
        (lambda log: [{**x, "extra": "a"} for x in log], "first is extra at step 1 of finetune"),
        (lambda log: [{**x, "step": x["step"] + 1} for x in log], "largest difference"),
    ],
    ids=["shorter", "longer", "more", "shifted"],
)
def test_another_log_is_found(tiny, filled, change, text):
    altered(filled, tiny, change)
    found = again(filled)[key(tiny)]
    assert text in found.text
    assert found.bad(1.0)


def test_shipped_results_are_compared_with_thinned_logs(tiny, filled, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "POINTS", 5)
    folder = tmp_path / "shipped"
    export.write(folder / "a.jsonl", filled.entries())
    assert {c.outcome for c in again(Study(folder)).values()} == {"identical"}
    rows = [entry.row for entry in Study(folder).entries()]
    (row,) = (r for r in rows if r["key"] == key(tiny))
    (line,) = (x for x in row["metrics"] if x["step"] == 6 and "loss" in x)
    line["loss"] += 1e-5
    export.write_rows(folder / "a.jsonl", rows)
    found = again(Study(folder))
    assert "largest difference 1e-05, at loss at step 6 of finetune" in found[key(tiny)].text
    assert sum(c.bad(0.05) for c in found.values()) == 1


def test_a_training_that_fails_now_is_bad(tiny, store):
    run = replace(tiny, finetune=replace(tiny.finetune, lr=1e38, warmup_steps=0), pretrain=None)
    content = {"metrics": [], "result": {}, "model": {}, "environment": {}}
    store.put(run, **content)
    (found,) = again(store).values()
    assert found.outcome == "failed"
    assert "diverged" in str(found)
    assert found.bad(1.0)


def test_the_choice_is_random_and_repeatable(tiny, store):
    content = {"metrics": [], "result": {}, "model": {}, "environment": {}}
    for seed in range(8):
        store.put(replace(tiny, seed=seed), **content)
        store.put(replace(tiny, seed=seed).pretraining, **content)
    entries = list(store.entries())
    choices = [[e.key for e in recheck.draw(entries, 3, choose)] for choose in range(5)]
    assert choices[0] == [e.key for e in recheck.draw(entries[::-1], 3, 0)]
    assert len(set(map(tuple, choices))) > 1
    assert {len(set(c)) for c in choices} == {3}
    everything = recheck.draw(entries, 99, 0)
    assert len(everything) == 8, "Runs only: their pretrainings come along"
    assert {e.spec.seed for e in everything} == set(range(8))


def test_what_cannot_be_computed_here_is_said(tiny, filled, tmp_path, monkeypatch):
    entry = filled.get(tiny)
    assert recheck.comparable(entry) is None
    moved = Store(tmp_path / "moved")
    moved.unpack("1" * 20, entry.pack())
    (other,) = moved.entries()
    reason = recheck.comparable(other)
    assert "other data than there are here" in str(reason)
    assert not reason.bad(0.0)
    folder = tmp_path / "shipped"
    export.write(folder / "a.jsonl", [entry])
    (row,) = (json.loads(x) for x in (folder / "a.jsonl").read_text().splitlines())
    row["config"]["task"] = {
        "name": "listops", "source": "files", "n_train": 9, "n_val": 9, "n_test": 9,
    }  # fmt: skip
    export.write_rows(folder / "a.jsonl", [row])
    monkeypatch.setenv("SPTLIB_DATA", str(tmp_path / "nothing"))
    (shipped,) = Study(folder).entries()
    assert "its data are not here" in str(recheck.comparable(shipped))


def test_a_stop_is_not_taken_for_a_result(tiny, filled, monkeypatch):
    def stopped(*args, **options):
        raise Interrupted(1, 1, 15)

    monkeypatch.setattr(recheck, "compute_all", stopped)
    with pytest.raises(KeyboardInterrupt, match="nothing was compared") as caught:
        again(filled)
    assert caught.value.signum == 15
