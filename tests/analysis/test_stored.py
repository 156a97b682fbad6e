"""Stored trainings, looked into: their attention maps and what they make of hidden pixels."""

from dataclasses import replace

import pytest
import torch

from sptlib import tasks
from sptlib.analysis.attention import mean_map
from sptlib.analysis.stored import reconstructed, start_and_end
from sptlib.execute import compute
from sptlib.model import build


def test_start_and_end_of_stored_trainings(tiny, store, where):
    run = replace(tiny, pretrain=replace(tiny.pretrain, epochs=20, lr=0.02))
    compute(run, store, where)
    data = tasks.load(run.task, run.seed)
    x = data.test.x[:10]
    pretraining = store.get(run.pretraining)
    for entry, stage in ((pretraining, "pretrain"), (store.get(run), "finetune")):
        start, end = start_and_end(entry, n=10)
        model = build(entry.spec.model, data, run.seed, stage).eval()
        assert torch.equal(start, mean_map(model, x))
        model.load_state_dict(entry.model())
        assert torch.equal(end, mean_map(model, x))
        assert not torch.allclose(start, end, atol=1e-4)
    # finetuning starts at random, before the transfer
    assert not torch.equal(start_and_end(pretraining)[0], start_and_end(store.get(run))[0])


@pytest.mark.parametrize("tokenised", [True, False])
def test_reconstructed_images_keep_what_was_visible(tiny_image, store, where, tokenised):
    task = replace(tiny_image.task, tokenised=tokenised)
    entry = compute(replace(tiny_image, task=task).pretraining, store, where)
    rows = reconstructed(entry, n=5)
    original, hidden, filled = (rows[name] for name in ("original", "hidden", "filled in"))
    x = tasks.load(task, 0).test.x[:5].numpy()
    assert original[0] == pytest.approx(x / 16)
    assert hidden[0] == pytest.approx(x / 16)
    mask = hidden[1]
    assert mask.any(1).all()
    assert not mask.all(1).any()
    assert filled[0][~mask] == pytest.approx(original[0][~mask])
    assert (filled[0][mask] != original[0][mask]).any()
    assert filled[0].min() >= 0
    assert filled[0].max() <= 1
