"""Training: loss, weights, order, interruption, and runs through the store."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sptlib.config import from_dict, key, to_dict
from sptlib.errors import ConfigError, DataError, DivergedError, Stopped
from sptlib.execute import Where, compute
from sptlib.export import Study, row, write, write_rows
from sptlib.polar import data, presets, qlora, training
from sptlib.polar.config import AugmentConfig, BaseConfig, PolarRun, PolarTask
from sptlib.polar.labels import subtask
from sptlib.polar.watch import How, last_checkpoint
from sptlib.sweep import compute_all
from sptlib.upkeep import Pruning

CPU = torch.device("cpu")
SMALL = presets.get("smoke").base
QLORA = replace(
    presets.get("smoke").qlora, rank=8, batch_size=4, steps=8, eval_steps=4, max_length=64
)
RUN = PolarRun(
    task=PolarTask(languages=("eng", "rus"), n_train=24, n_val=10, n_test=10),
    base=SMALL,
    augment=AugmentConfig(rate=0.25),
    qlora=QLORA,
)


@pytest.fixture(autouse=True)
def _quiet():
    with qlora.quiet():
        yield


def trained(start, posts, work, number=1, stop=None, config=QLORA, seconds=1e9):
    asked = subtask(number)
    model, _ = qlora.with_adapters(qlora.loaded(start, config, asked, CPU), config, 0)
    how = How(work, CPU, stop=stop, checkpoint_seconds=seconds)
    outcome = training.train(model, start.tokenizer, posts[:36], posts[36:], asked, config, 0, how)
    chances = qlora.probabilities(model, start.tokenizer, posts["text"].tolist(), asked, 64)
    return outcome, chances


def test_an_interrupted_training_gives_the_same_numbers(start, posts, tmp_path):
    config = replace(QLORA, steps=9, eval_steps=3)
    whole, expected = trained(start, posts, tmp_path / "a", config=config)
    calls = []

    def stop():
        calls.append(1)
        return len(calls) == 5

    with pytest.raises(Stopped, match="after 5 of 9 steps"):
        trained(start, posts, tmp_path / "b", stop=stop, config=config)
    again, found = trained(start, posts, tmp_path / "b", config=config)
    assert again.log == whole.log
    assert again.best_step == whole.best_step
    np.testing.assert_array_equal(found, expected)


def test_a_checkpoint_that_was_cut_off_is_not_taken(tmp_path):
    for step, content in ((3, '{"global_step": 3}'), (5, '{"glob'), (7, None)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if content:
            (folder / "trainer_state.json").write_text(content)
    assert last_checkpoint(tmp_path).name == "checkpoint-3"
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-3"]
    assert last_checkpoint(tmp_path / "none") is None


def test_the_best_evaluation_is_what_is_kept(start, posts, tmp_path):
    outcome, _ = trained(start, posts, tmp_path)
    looks = [line for line in outcome.log if "val_score" in line]
    assert [line["step"] for line in looks] == [4, 8]
    best = max(looks, key=lambda line: line["val_score"])
    assert outcome.best_step == best["step"]
    assert best["val_score"] == best["val_auc"]
    several, chances = trained(start, posts, tmp_path / "2", number=2)
    look = next(line for line in several.log if "val_score" in line)
    assert look["val_score"] == look["val_macro_f1"]
    assert "val_auc" not in look
    assert chances.shape == (48, 5)


def test_class_weights_are_the_published_ones():
    labels = np.array([0] * 30 + [1] * 10)
    weights = training.class_weights(labels)
    assert weights.tolist() == pytest.approx([40 / 60, 40 / 20])
    logits = torch.zeros(40, 2)
    loss = nn.functional.cross_entropy(logits, torch.tensor(labels), weight=weights)
    assert loss.item() == pytest.approx(np.log(2))
    with pytest.raises(DataError, match="all 5 posts are of class 1"):
        training.class_weights(np.ones(5))


def test_class_weights_act_in_a_batch_of_one(start, posts, tmp_path):
    """As published; PyTorch's own mean over weights would cancel them there."""
    few = posts.assign(polarization=[1, 0, 0, 0] * 12)
    first = {}
    for weighted in (True, False):
        config = replace(QLORA, batch_size=1, steps=3, eval_steps=3, class_weights=weighted)
        outcome, _ = trained(start, few, tmp_path / str(weighted), config=config)
        first[weighted] = outcome.log[0]["loss"]
    ratio = first[True] / first[False]
    assert min(abs(ratio - w) for w in (36 / 54, 36 / 18)) < 1e-4


def test_a_training_that_was_killed_after_its_last_step_takes_no_more(start, posts, tmp_path):
    outcome, chances = trained(start, posts, tmp_path)
    again, same = trained(start, posts, tmp_path)
    assert again.log == outcome.log
    assert again.n_steps == outcome.n_steps == 8
    np.testing.assert_array_equal(same, chances)
    assert again.seconds >= outcome.seconds


def test_more_tokens_than_positions_are_refused(start, posts, tmp_path):
    with pytest.raises(ConfigError, match="the base has 512 positions"):
        trained(start, posts, tmp_path, config=replace(QLORA, max_length=600))


def test_batches_are_of_similar_length_and_another_order_each_epoch():
    lengths = [int(n) for n in np.random.RandomState(0).randint(5, 100, 200)]
    sampler = training.Grouped(lengths, 10, 0)
    first = list(sampler)
    assert sorted(first) == list(range(200))
    spread = [np.ptp([lengths[i] for i in first[k : k + 10]]) for k in range(0, 200, 10)]
    assert np.mean(spread) < 20
    sampler.set_epoch(1)
    assert list(sampler) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_one_class_is_nothing_to_learn(start, posts, tmp_path):
    same = posts.assign(polarization=1)
    with pytest.raises(DataError, match="nothing to learn"):
        trained(start, same, tmp_path)
    held = posts.copy()
    held.loc[36:, "polarization"] = 0
    outcome, _ = trained(start, held, tmp_path / "2")
    assert any("all of one class" in note for note in outcome.notes)
    assert "val_auc" not in outcome.log[-1]


def test_a_loss_that_is_no_number_ends_it(start, posts, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "class_weights", lambda labels: torch.tensor([float("nan"), 1.0]))
    with pytest.raises(DivergedError, match="at step 1") as error:
        trained(start, posts, tmp_path)
    assert len(error.value.log) == 1


def test_a_run_is_stored_and_found(store, where):
    entry = compute(RUN, store, where)
    assert entry.key == key(RUN)
    again = from_dict(json.loads(json.dumps(to_dict(RUN))))
    assert again == RUN
    assert key(again) == entry.key
    result = entry.result
    for form in ("clean", "anonymised", "lower", "upper", "homoglyph"):
        each = [result[f"macro_f1_{form}_{name}"] for name in ("eng", "rus")]
        assert result[f"macro_f1_{form}"] == pytest.approx(np.mean(each))
        assert 0 <= result[f"macro_f1_{form}_tuned"] <= 1
    assert result["n_train"] == 48
    assert result["n_copies"] > 10
    assert entry.environment["versions"]["peft"]
    base = store.get(RUN.pretraining)
    assert base.result["val_loss"] < np.log(base.result["vocab_size"])
    assert base.result["steps"] == SMALL.steps
    # nothing is computed a second time, and what another question needs is shared
    other = replace(RUN, task=replace(RUN.task, subtask=2))
    assert key(other.pretraining) == base.key
    assert compute(RUN, store, where).key == entry.key


def test_what_is_exported_is_found_by_its_configuration(store, where, tmp_path):
    run = replace(RUN, base=replace(SMALL, kind="random"))
    entry = compute(run, store, where)
    write(tmp_path / "some.jsonl", [entry])
    shipped = Study(tmp_path).get(run)
    assert shipped.result == entry.result
    assert shipped.spec == run
    altered = row(entry) | {"versions": {"polar": 0, "posts": ""}}
    (tmp_path / "other").mkdir()
    write_rows(tmp_path / "other" / "some.jsonl", [altered])
    assert Study(tmp_path / "other").get(run) is None


def test_an_interrupted_run_goes_on_from_the_store(store, where):
    expected = compute(RUN, store, where)
    calls = []

    def stop():
        calls.append(1)
        return len(calls) in (3, 8)

    other = type(store)(store.path.parent / "other")
    stopping = Where(device="cpu", checkpoint_seconds=1e9, stop=stop)
    with pytest.raises(Stopped, match="in pretrain after 3 of 4"):
        compute(RUN, other, stopping)
    with pytest.raises(Stopped, match="in finetune after"):
        compute(RUN, other, stopping)
    found = compute(RUN, other, where)
    assert found.result == expected.result
    assert found.metrics == expected.metrics
    weights, before = found.model(), expected.model()
    assert all(torch.equal(weights[n], before[n]) for n in before)
    assert not list((other.path / ".work").glob("*/checkpoint*"))


def test_configurations_that_mean_the_same_are_the_same():
    none = AugmentConfig(rate=0.0)
    assert none == AugmentConfig(kinds=())
    assert none == AugmentConfig(rate=0.0, joiner_rate=0.3)
    assert AugmentConfig(kinds=("upper", "lower")).kinds == ("lower", "upper")
    for wrong in ({"kind": "model"}, {"model": "x"}, {"width": 60, "n_heads": 8}):
        with pytest.raises(ValueError, match=r"model belongs|even multiple"):
            BaseConfig(**wrong)


def test_a_sweep_computes_bases_first(store):
    runs = [RUN, replace(RUN, task=replace(RUN.task, subtask=2))]
    entries = compute_all(runs, store, workers=1, device="cpu")
    assert [e.key for e in entries] == [key(r) for r in runs]
    assert len(list(store.entries())) == 3


def test_pruning_leaves_results_on_other_posts(posts, store, where, tmp_path):
    for name, some in (("a", posts), ("b", posts.iloc[:40])):
        data.write(some, tmp_path / name, "train")
    task = PolarTask(source="files", languages=("eng", "rus"))
    run = replace(RUN, task=task, base=replace(SMALL, kind="random"))
    with data.at(tmp_path / "a"):
        entry = compute(run, store, where)
        assert "no labelled dev or test posts" in entry.result["notes"][0]
    with data.at(tmp_path / "b"):
        assert store.get(run) is None
        pruning = Pruning(store)
        assert entry.key not in {item.key for item in pruning.look()}
        assert any("other posts" in note for note in pruning.notes)
