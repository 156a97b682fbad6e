"""Positional encodings, each against its defining property."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sptlib.positions import alibi_bias, distances, rope_table, rotate, score_bias, sinusoidal


@pytest.mark.parametrize("width", [1, 2, 7, 16])
def test_sinusoidal_is_the_formula_of_the_paper(width):
    table = sinusoidal(50, width)
    assert table.shape == (50, width)
    assert table.dtype == torch.float32
    for t in (0, 1, 17, 49):
        for column in range(width):
            angle = t / 10000 ** (2 * (column // 2) / width)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert float(table[t, column]) == pytest.approx(expected, abs=1e-6)


def test_a_longer_table_starts_with_the_shorter_one():
    assert torch.equal(sinusoidal(100, 8)[:40], sinusoidal(40, 8))
    assert torch.equal(rope_table(100, 8)[0][:40], rope_table(40, 8)[0])
    assert torch.equal(alibi_bias(2, 100)[:, :40, :40], alibi_bias(2, 40))


@given(i=st.integers(0, 20), j=st.integers(0, 20), shift=st.integers(0, 20))
def test_rope_scores_depend_on_the_distance_only(i, j, shift):
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 8, generator=g).double()
    cos, sin = (table.double() for table in rope_table(64, 8))

    def score(a: int, b: int) -> float:
        q_a = rotate(q[None], cos[a : a + 1], sin[a : a + 1])
        k_b = rotate(k[None], cos[b : b + 1], sin[b : b + 1])
        return float((q_a * k_b).sum())

    assert score(i, j) == pytest.approx(score(i + shift, j + shift), abs=1e-5)
    assert score(i, i) == pytest.approx(float(q @ k), abs=1e-5)  # and rotation keeps lengths


def test_rope_rotates_pairs_by_the_angle_of_the_paper():
    x = torch.tensor([1.0, 0.0, 0.0, 1.0])
    cos, sin = rope_table(10, 4)
    turned = rotate(x[None].expand(10, 4), cos, sin)
    for t in range(10):
        slow = t / 100  # the second pair's rate: 10000^(-2/4)
        expected = [math.cos(t), math.sin(t), -math.sin(slow), math.cos(slow)]
        assert turned[t].tolist() == pytest.approx(expected, abs=1e-6)


def test_alibi_is_minus_slope_times_distance():
    bias = alibi_bias(8, 6)
    assert bias.shape == (8, 6, 6)
    for h in range(8):
        for i in range(6):
            for j in range(6):
                assert float(bias[h, i, j]) == pytest.approx(-(2.0 ** -(h + 1)) * abs(i - j))


# --- distances and biases -----------------------------------------------------------------------


@pytest.mark.parametrize(("n", "side"), [(1, 0), (7, 0), (1, 1), (9, 3), (16, 4), (10, 4), (5, 8)])
def test_distances_pair_by_pair(n, side):
    found = distances(n, side)
    assert found.dtype == torch.int64
    assert found.shape == (n, n)
    for i in range(n):
        for j in range(n):
            rows, columns = (i // side - j // side, i % side - j % side) if side else (0, i - j)
            assert int(found[i, j]) == max(abs(rows), abs(columns))


def test_an_image_has_eight_pixels_around_one():
    around = distances(64, 8) == 1
    for pixel, n in ((9, 8), (0, 3), (7, 3), (3, 5), (63, 3)):
        assert int(around[pixel].sum()) == n
    assert not around[7, 8], "the end of a row is not beside the start of the next"


def test_a_score_bias_is_what_the_encoding_and_the_imposed_one_add():
    apart = distances(5).float()
    for positions in ("sinusoidal", "learned", "rope", "none"):
        assert score_bias(positions, 2, 5, 0.0) is None
        found = score_bias(positions, 2, 5, 0.25)
        assert (found.shape, found.dtype) == ((2, 5, 5), torch.float32)
        torch.testing.assert_close(found, (-0.25 * apart).expand(2, 5, 5))
    assert torch.equal(score_bias("alibi", 2, 5, 0.0), alibi_bias(2, 5))
    slopes = torch.tensor([2.0**-4, 2.0**-8])[:, None, None]
    torch.testing.assert_close(score_bias("alibi", 2, 5, 0.25), -(slopes + 0.25) * apart)
