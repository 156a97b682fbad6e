"""What attention looks at, on maps whose answer is known."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sptlib import tasks
from sptlib.analysis.attention import (
    distance_profile,
    mean_map,
    proximity,
    reconstructed,
    start_and_end,
    uniform_proximity,
)
from sptlib.execute import compute
from sptlib.model import build
from sptlib.seeding import generator


@given(n=st.integers(1, 30), k=st.integers(0, 35))
def test_uniform_attention_has_the_share_of_near_pairs(n, k):
    near = sum(abs(i - j) <= k for i in range(n) for j in range(n))
    assert uniform_proximity(n, k) == pytest.approx(near / n**2)


def test_proximity_of_known_maps():
    eye = torch.eye(6)
    assert proximity(eye, 0).item() == 1
    assert proximity(eye.roll(1, 1), 0).item() == 0
    assert proximity(eye.roll(1, 1), 1).item() == pytest.approx(5 / 6)  # the last row wraps around
    maps = torch.stack([eye, torch.full((6, 6), 1 / 6)]).view(2, 1, 6, 6)
    assert proximity(maps, 1).shape == (2, 1)
    assert proximity(maps, 1).flatten().tolist() == pytest.approx([1, 16 / 36])


@given(seed=st.integers(0, 99), k=st.integers(0, 8))
def test_proximity_is_a_share_that_grows_with_the_distance(seed, k):
    maps = torch.rand(3, 8, 8, generator=generator(seed)).softmax(-1)
    near, further = proximity(maps, k), proximity(maps, k + 1)
    assert (near >= 0).all()
    assert (near <= further + 1e-6).all()
    assert proximity(maps, 7).tolist() == pytest.approx([1, 1, 1])


def test_mean_map_is_the_mean_over_sequences(tiny):
    data = tasks.load(tiny.task, 0)
    model = build(tiny.model, data, 0).eval()
    alone = torch.stack([mean_map(model, data.test.x[i : i + 1]) for i in range(4)])
    assert alone.shape == (4, 1, 2, 12, 12)
    torch.testing.assert_close(mean_map(model, data.test.x[:4]), alone.mean(0))


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


def test_distance_profile_is_signed():
    looks_ahead = torch.eye(6).roll(2, 1)  # query t attends to key t + 2, the last two wrap around
    distances, weights = distance_profile(looks_ahead, reach=3)
    assert distances == [-3, -2, -1, 0, 1, 2, 3]
    assert weights == [0, 0, 0, 0, 0, 1, 0]
    assert distance_profile(looks_ahead, reach=4)[1][0] == 1  # the two that wrap around
    assert distance_profile(torch.eye(3), reach=10)[0] == [-2, -1, 0, 1, 2]


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
