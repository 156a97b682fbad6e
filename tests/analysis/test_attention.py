"""What attention looks at, on maps whose answer is known."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sptlib import tasks
from sptlib.analysis.attention import (
    column_share,
    diagonality,
    distance_profile,
    entropy,
    mean_map,
    proximity,
    uniform_proximity,
)
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


def test_entropy_of_known_maps():
    maps = torch.stack([torch.eye(6), torch.full((6, 6), 1 / 6), torch.eye(6)[[0] * 6]])
    maps[2, :2] = torch.tensor([0.25, 0.75, 0, 0, 0, 0])
    some = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert entropy(maps).tolist() == pytest.approx([0, math.log(6), some / 3], abs=1e-6)
    assert entropy(maps.view(3, 1, 6, 6)).shape == (3, 1)


@given(seed=st.integers(0, 99))
def test_entropy_is_between_none_and_uniform(seed):
    maps = (3 * torch.randn(4, 9, 9, generator=generator(seed))).softmax(-1)
    rows = [[-sum(w * math.log(w) for w in row) for row in one] for one in maps.double().tolist()]
    assert entropy(maps).tolist() == pytest.approx([sum(r) / 9 for r in rows], abs=1e-5)
    assert (entropy(maps) > 0).all()
    assert (entropy(maps) < math.log(9)).all()


@given(n=st.integers(2, 20))
def test_diagonality_of_known_maps(n):
    t = range(n)
    uniform = sum(abs(i - j) for i in t for j in t) / n**2
    eye = torch.eye(n, dtype=torch.float64)
    maps = torch.stack([eye, torch.full_like(eye, 1 / n), eye.flip(0), eye.roll(1, 1)])
    flipped = sum(abs(i - (n - 1 - i)) for i in t) / n
    ahead = 2 * (n - 1) / n  # one step each, and the last row wraps around
    expected = [1, 0, 1 - flipped / uniform, 1 - ahead / uniform]
    assert diagonality(maps).tolist() == pytest.approx(expected, abs=1e-9)
    assert n == 2 or expected[2] < 0
    assert diagonality(torch.ones(1, 1)).item() == 1


@given(seed=st.integers(0, 99), n=st.integers(1, 7))
def test_padding_is_as_if_it_were_not_there(seed, n):
    scores = torch.randn(2, 3, 7, 7, generator=generator(seed)).double()
    scores[..., n:] = float("-inf")
    maps = scores.softmax(-1)
    keep = (torch.arange(7) < n).expand(2, 1, 7)
    for measure in (proximity, entropy, diagonality):
        torch.testing.assert_close(measure(maps, keep=keep), measure(maps[..., :n, :n]))


def test_mean_map_is_the_mean_over_sequences(tiny):
    data = tasks.load(tiny.task, 0)
    model = build(tiny.model, data, 0).eval()
    alone = torch.stack([mean_map(model, data.test.x[i : i + 1]) for i in range(4)])
    assert alone.shape == (4, 1, 2, 12, 12)
    torch.testing.assert_close(mean_map(model, data.test.x[:4]), alone.mean(0))


def test_distance_profile_is_signed():
    looks_ahead = torch.eye(6).roll(2, 1)  # query t attends to key t + 2, the last two wrap around
    distances, weights = distance_profile(looks_ahead, reach=3)
    assert distances == [-3, -2, -1, 0, 1, 2, 3]
    assert weights == [0, 0, 0, 0, 0, 1, 0]
    assert distance_profile(looks_ahead, reach=4)[1][0] == 1  # the two that wrap around
    assert distance_profile(torch.eye(3), reach=10)[0] == [-2, -1, 0, 1, 2]


def test_column_share_is_what_all_queries_have_in_common():
    T = 7
    uniform = torch.full((T, T), 1 / T, dtype=torch.float64)
    columns = torch.zeros(T, T, dtype=torch.float64)
    columns[:, 2] = 1  # every query looks at key 2
    ring = torch.eye(T, dtype=torch.float64).roll(1, 1)
    assert column_share(uniform) == 0
    assert float(column_share(columns)) == pytest.approx(1)
    assert float(column_share(ring)) == pytest.approx(0)
    # orthogonal parts: their squares add up
    mixed = (columns + ring) / 2
    a, b = (columns - 1 / T).square().sum(), (ring - 1 / T).square().sum()
    assert float(column_share(mixed)) == pytest.approx(float(a / (a + b)))
    assert column_share(torch.stack([uniform, columns])).tolist() == pytest.approx([0, 1])
