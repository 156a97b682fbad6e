"""Paired statistics, against a calculation by hand and against scipy."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp, ttest_rel

from sptlib.analysis.stats import (
    differences,
    equivalent,
    holm,
    interval,
    p_above,
    p_within,
    paired,
    recovered,
)
from sptlib.errors import ConfigError

values = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=12)


def table(a, b, seeds_a=None, seeds_b=None) -> pd.DataFrame:
    rows = [
        {"arm": "SPT", "seed": s, "accuracy": x}
        for s, x in zip(seeds_a or range(len(a)), a, strict=True)
    ]
    rows += [
        {"arm": "scratch", "seed": s, "accuracy": x}
        for s, x in zip(seeds_b or range(len(b)), b, strict=True)
    ]
    return pd.DataFrame(rows)


def test_interval_by_hand():
    # mean 2, standard deviation 1, t(0.975; 2) = 4.302653: 2 ± 4.302653 / sqrt(3)
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.sd, found.n, found.level) == (2.0, 1.0, 3, 0.95)
    assert found.low == pytest.approx(2 - 2.484138, abs=1e-6)
    assert found.high == pytest.approx(2 + 2.484138, abs=1e-6)
    # t(0.95; 2) = 2.919986
    assert interval([1.0, 2.0, 3.0], level=0.9).high == pytest.approx(2 + 1.685854, abs=1e-6)


@given(values, st.sampled_from([0.9, 0.95, 0.99]))
def test_paired_equals_scipy(pairs, level):
    a, b = map(np.array, zip(*pairs, strict=True))
    found = paired(table(a, b), "accuracy", "SPT", "scratch", level=level)
    assert found.n == len(pairs)
    assert found.mean == pytest.approx(float(np.mean(a - b)), abs=1e-12)
    if np.ptp(a - b) > 1e-6:
        expected = ttest_rel(a, b).confidence_interval(level)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-6)


def test_pairs_are_made_by_seed_not_by_row():
    a, b = [0.9, 0.5, 0.7], [0.3, 0.2, 0.6]
    straight = paired(table(a, b), "accuracy", "SPT", "scratch")
    shuffled = table(a, b).sample(frac=1, random_state=3)
    assert vars(paired(shuffled, "accuracy", "SPT", "scratch")) == pytest.approx(vars(straight))
    crossed = table(a, b, seeds_b=[2, 1, 0])
    assert paired(crossed, "accuracy", "SPT", "scratch").sd != pytest.approx(straight.sd)
    opposite = paired(table(a, b), "accuracy", "scratch", "SPT")
    assert (opposite.mean, opposite.low) == pytest.approx((-straight.mean, -straight.high))


def test_one_seed_has_no_interval():
    found = paired(table([0.9], [0.5]), "accuracy", "SPT", "scratch")
    assert found.mean == pytest.approx(0.4)
    assert found.n == 1
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert math.isnan(found.sd)
    assert not found.excludes(0.0)
    assert found.text(scale=100, unit="points") == "40.00 points (n = 1: no interval)"


def test_excludes():
    found = interval([1.0, 1.1, 1.2])
    assert found.excludes(0.0)
    assert found.excludes(2.0)
    assert not found.excludes(1.05)
    assert not interval([-1.0, 1.0]).excludes(0.0)
    same = interval([0.5, 0.5])
    assert same.excludes(0.0)
    assert not same.excludes(0.5)


def test_text():
    assert (
        interval([0.3, 0.4]).text(scale=100, digits=1, unit="points")
        == "35.0 points [-28.5, 98.5], n = 2"
    )
    assert interval([1.0, 1.0]).text() == "1.00 [1.00, 1.00], n = 2"


@pytest.mark.parametrize("bad", [[], [1.0, float("nan")], [float("inf")]])
def test_values_must_be_finite(bad):
    with pytest.raises(ConfigError, match="finite values"):
        interval(bad)


def test_unpaired_seeds_are_refused():
    with pytest.raises(ConfigError, match=r"same seeds: \[0, 1\] and \[0, 2\]"):
        paired(table([1, 2], [1, 2], seeds_b=[0, 2]), "accuracy", "SPT", "scratch")
    with pytest.raises(ConfigError, match="same seeds"):
        paired(table([1, 2], [1]), "accuracy", "SPT", "scratch")
    with pytest.raises(ConfigError, match="same seeds"):
        paired(table([1, 2], [1, 2]), "accuracy", "SPT", "no such arm")
    with pytest.raises(ConfigError, match="several rows for one seed"):
        paired(table([1, 2], [1, 2], seeds_a=[0, 0]), "accuracy", "SPT", "scratch")
    with pytest.raises(ConfigError, match="finite"):
        paired(table([1, float("nan")], [1, 2]), "accuracy", "SPT", "scratch")


@given(st.lists(st.floats(0.4, 0.6), min_size=2, max_size=12), st.floats(0.01, 0.1))
def test_equivalence_is_two_one_sided_tests(x, margin):
    if np.ptp(x) < 1e-6:
        return
    below = ttest_1samp(x, 0.5 - margin, alternative="greater").pvalue
    above = ttest_1samp(x, 0.5 + margin, alternative="less").pvalue
    if abs(max(below, above) - 0.05) > 1e-6:
        assert equivalent(x, 0.5, margin) is bool(max(below, above) < 0.05)


def test_equivalence_by_hand():
    # mean 2; half the 90 % interval is 1.686, half the 95 % interval 2.484
    assert equivalent([1.0, 2.0, 3.0], 2.0, 1.7)
    assert not equivalent([1.0, 2.0, 3.0], 2.0, 1.67)
    assert not equivalent([1.0, 2.0, 3.0], 2.5, 1.7)
    assert not equivalent([1.0, 2.0, 3.0], 1.5, 1.7)


def test_one_seed_shows_no_equivalence():
    assert not equivalent([0.5], 0.5, 0.05)
    assert equivalent([0.5, 0.5], 0.5, 0.05)


def arms(scratch, part, full) -> pd.DataFrame:
    named = {"scratch": scratch, "QK": part, "SPT": full, "other": [0.1] * len(scratch)}
    return pd.DataFrame(
        [{"arm": a, "seed": s, "accuracy": x} for a, xs in named.items() for s, x in enumerate(xs)]
    )


def share(table: pd.DataFrame, part: str = "QK"):
    return recovered(table, "accuracy", "scratch", part, "SPT")


def test_recovered_share_by_hand():
    # gains 0.4 and 0.42 of the whole, mean 0.41; 0.2 and 0.3 of the part
    found = share(arms([0.5, 0.5], [0.7, 0.8], [0.9, 0.92]))
    assert (found.mean, found.n) == (pytest.approx(0.25 / 0.41), 2)
    # Fieller's ends: there the interval of part − share · gain just touches 0
    for end, which in ((found.low, "low"), (found.high, "high")):
        contrast = interval([0.2 - end * 0.4, 0.3 - end * 0.42])
        assert getattr(contrast, which) == pytest.approx(0, abs=1e-9)
    assert share(arms([0.5, 0.5], [0.7, 0.8], [0.9, 0.92]), "SPT").mean == pytest.approx(1)
    one = share(arms([0.5], [0.7], [0.9]))
    assert (one.mean, one.n) == (pytest.approx(0.5), 1)
    assert math.isnan(one.low)


@pytest.mark.parametrize("full", [[0.5, 0.9], [0.4, 0.3], [0.5, 0.5]])
def test_there_is_no_share_of_no_gain(full):
    with pytest.raises(ConfigError, match="there is no gain"):
        share(arms([0.5, 0.5], [0.7, 0.8], full))
    with pytest.raises(ConfigError, match="there is no gain"):
        share(arms([0.5], [0.7], [0.5]))


def test_recovered_needs_pairs():
    table = arms([0.5, 0.5], [0.7, 0.8], [0.9, 0.92])
    for spoilt in (table.drop(index=3), pd.concat([table, table[table.arm == "QK"]])):
        with pytest.raises(ConfigError, match=r"same seeds|several rows"):
            share(spoilt)
    with pytest.raises(ConfigError, match="same seeds"):
        share(table, "no such arm")


# --- p values -----------------------------------------------------------------------------------


def test_differences_are_by_seed():
    shuffled = table([0.9, 0.5, 0.7], [0.3, 0.2, 0.6]).sample(frac=1, random_state=3)
    found = differences(shuffled, "accuracy", "SPT", "scratch")
    assert found.tolist() == pytest.approx([0.6, 0.3, 0.1])
    with pytest.raises(ConfigError, match="same seeds"):
        differences(table([1, 2], [1, 2], seeds_b=[0, 2]), "accuracy", "SPT", "scratch")


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=12), st.floats(-0.5, 0.5))
def test_p_above_equals_scipy(x, threshold):
    if np.ptp(x) > 1e-6:
        expected = ttest_1samp(x, threshold, alternative="greater").pvalue
        assert p_above(x, threshold) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@given(st.lists(st.floats(-0.2, 0.2), min_size=3, max_size=12), st.floats(0.01, 0.1))
def test_p_within_is_the_larger_of_scipy_s_two(x, margin):
    if np.ptp(x) > 1e-6:
        below = ttest_1samp(x, -margin, alternative="greater").pvalue
        above = ttest_1samp(x, margin, alternative="less").pvalue
        assert p_within(x, margin) == pytest.approx(max(below, above), rel=1e-6, abs=1e-12)
        if abs(p_within(x, margin) - 0.05) > 1e-6:
            assert (p_within(x, margin) < 0.05) is equivalent(x, 0.0, margin)


def test_p_by_hand():
    # mean 2, standard error 1 / sqrt(3), t(0.95; 2) = 2.919986
    assert p_above([1.0, 2.0, 3.0], 2 - 2.919986 / math.sqrt(3)) == pytest.approx(0.05, abs=1e-6)
    assert p_above([1.0, 2.0, 3.0], 2.0) == pytest.approx(0.5)
    # two degrees of freedom: p = 1/2 - t / (2 sqrt(2 + t²)); here t = sqrt(3)
    assert p_above([1.0, 2.0, 3.0], 1.0) == pytest.approx(0.5 - (3 / 5) ** 0.5 / 2)
    assert p_within([-1.0, 0.0, 1.0], 1.0) == pytest.approx(0.5 - (3 / 5) ** 0.5 / 2)


def test_equal_values_leave_no_doubt_and_too_few_nothing_else():
    assert [p_above(3 * [0.3], t) for t in (0.2, 0.3, 0.4)] == [0.0, 1.0, 1.0]
    assert [p_within(3 * [x], 0.05) for x in (0.04, -0.04, 0.05, -0.05, 0.1)] == [0, 0, 1, 1, 1]
    for few in ([], [5.0], [5.0, 5.0], [5.0, 5.1]):
        assert p_above(few) == p_within(few, 10.0) == 1.0


def test_values_that_differ_by_rounding_alone_are_no_reason_to_warn():
    x = [0.9 - 0.5, 0.8 - 0.4, 0.7 - 0.3]
    assert 0 < np.ptp(x) < 1e-15
    assert p_above(x, 0.3) < 1e-9
    assert p_above(x, 0.5) > 1 - 1e-9
    assert p_within(x, 0.5) < 1e-9


def test_holm_by_hand():
    # sorted .01 .02 .03 .04, times 4 3 2 1: .04 .06 .06 .04, never below the one before
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([0.2]) == pytest.approx([0.2])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_is_between_none_and_bonferroni(p):
    found = holm(p)
    for a, adjusted in zip(p, found, strict=True):
        assert a - 1e-12 <= adjusted <= min(1.0, len(p) * a) + 1e-12
        for b, other in zip(p, found, strict=True):
            assert adjusted <= other + 1e-12 or a > b
