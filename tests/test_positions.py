"""Positional encodings, each against its defining property."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sptlib.positions import alibi_bias, rope_table, rotate, sinusoidal


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
