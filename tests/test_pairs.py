"""Pairs of sequences: the dual encoder, and training through all stages."""

from dataclasses import replace

import pytest
import torch

from sptlib import presets, tasks
from sptlib.analysis.attention import mean_map
from sptlib.analysis.stored import start_and_end
from sptlib.config import ModelConfig
from sptlib.execute import compute
from sptlib.model import build, keep_mask, pool
from sptlib.train import pretrain


@pytest.fixture(scope="module")
def run():
    return presets.smoke("retrieval")


@pytest.fixture(scope="module")
def data(run):
    return tasks.load(run.task, 0)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_the_head_sees_both_their_product_and_their_difference(data, norm):
    model = build(ModelConfig(width=8, head_norm=norm), data, 0)
    x, length = data.train.x[:6], data.train.length[:6]
    first, second = (
        pool(model(x[:, i], None, length[:, i]), keep_mask(x[:, i], length[:, i]), "mean")
        for i in (0, 1)
    )
    if norm == "batch":  # over both documents of all pairs together
        both = torch.cat([first, second])
        mean, spread = both.mean(0), both.var(0, unbiased=False)
        first, second = ((v - mean) / (spread + 1e-5).sqrt() for v in (first, second))
    joined = torch.cat([first, second, first * second, first - second], dim=1)
    expected = joined @ model.classifier.weight.T + model.classifier.bias
    assert torch.allclose(model.classify(x, length), expected, atol=1e-5)


def test_the_two_are_encoded_by_themselves(data):
    model = build(ModelConfig(width=8), data, 0).eval()
    x, length = data.train.x[:4], data.train.length[:4]
    swapped = model(x.flip(1).flatten(0, 1), None, length.flip(1).flatten())
    plain = model(x.flatten(0, 1), None, length.flatten())
    assert torch.allclose(swapped.view(4, 2, *swapped.shape[1:]).flip(1).flatten(0, 1), plain,
                          atol=1e-6)  # fmt: skip


def test_evaluation_standardises_by_the_running_statistics(data):
    model = build(ModelConfig(width=8, head_norm="batch"), data, 0)
    x, length = data.train.x, data.train.length
    for _ in range(200):
        model.classify(x, length)
    model.eval()
    whole = model.classify(x, length)
    single = torch.cat([model.classify(x[i : i + 1], length[i : i + 1]) for i in range(5)])
    assert torch.allclose(whole[:5], single, atol=1e-5)


def test_all_stages_run_and_resume_from_the_store(run, store, where):
    run = replace(run, model=replace(run.model, head_norm="batch"))
    entry = compute(run, store, where)
    shared = store.get(run.pretraining)
    assert shared.result["steps"] == run.pretrain.n_steps(run.task.n_inputs) == 8
    assert entry.result["steps"] == run.finetune.n_steps(run.task.n_train) == 4
    assert "classifier.weight" not in entry.result["copied"]
    assert entry.model()["classifier.weight"].shape == (2, 32)
    before, after = start_and_end(entry, n=10)
    assert before.shape == after.shape == (1, 1, 24, 24)
    again = compute(run, store, where, recompute=True)
    assert again.result == entry.result


@pytest.mark.parametrize("labelled_only", [False, True])
def test_pretraining_does_not_see_who_belongs_to_whom(run, data, labelled_only):
    """Labels turned round: the same weights, to the bit."""
    spec = replace(run, pretrain=replace(run.pretrain, labelled_only=labelled_only)).pretraining
    turned = replace(
        data,
        unlabelled=replace(data.unlabelled, y=1 - data.unlabelled.y),
        train=replace(data.train, y=1 - data.train.y),
        val=replace(data.val, y=1 - data.val.y),
    )
    weights = [pretrain(spec, d).model.state_dict() for d in (data, turned)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_mean_maps_leave_padding_out():
    data = tasks.load(presets.smoke("listops").task, 0)
    model = build(ModelConfig(width=8, n_heads=2), data, 0).eval()
    part = data.test.take(slice(0, 8)).trimmed()
    found = mean_map(model, part.x, None, part.length)
    assert torch.allclose(found.sum(-1), torch.ones(found.shape[:-1]), atol=1e-5)
    rows = torch.zeros_like(found)
    n = torch.zeros(found.shape[-1])
    for x, length in zip(part.x, part.length.tolist(), strict=True):
        alone = model.attention_maps(x[None, :length])[:, 0]
        rows[:, :, :length, :length] += alone
        n[:length] += 1
    assert torch.allclose(found, rows / n[:, None], atol=1e-5)
