"""The decision rules on small tables whose answers are plain."""

import math
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from sptlib.analysis import decisions
from sptlib.analysis.decisions import Part
from sptlib.analysis.stats import interval

#: what makes seeds differ
NOISE = (-0.01, 0.0, 0.004, 0.002, 0.004)


def table(**arms: float | list[float]) -> pd.DataFrame:
    """Accuracies by arm; a single number is a mean that seeds differ from."""
    rows = []
    for number, (arm, found) in enumerate(arms.items()):
        if isinstance(found, float):
            found = [found + NOISE[(seed + number) % 5] for seed in range(5)]
        rows += [{"arm": arm, "seed": s, "test_accuracy": x} for s, x in enumerate(found)]
    return pd.DataFrame(rows)


def part(p: float, **changes) -> Part:
    return Part("here", "?", interval([0.1, 0.2]), "text", p, **changes)


@pytest.mark.parametrize(
    ("a", "holds", "enough"),
    [(0.7, True, True), (0.56, True, True), (0.53, False, False), (0.5, False, False),
     (0.3, False, False)],
)  # fmt: skip
def test_a_gain_is_positive_and_large_enough(a, holds, enough):
    found = decisions.gain(table(a=a, b=0.5), "a", "b", "Image")
    assert (found.holds, found.enough) == (holds, enough)
    assert (found.where, found.question, found.effect.n) == ("Image", "a − b", 5)
    assert found.effect.mean == pytest.approx(a - 0.5)
    assert found.text.startswith(f"{100 * (a - 0.5):+.1f} points [")


def test_a_gain_that_is_surely_too_small_is_none():
    found = decisions.gain(table(a=0.53, b=0.5), "a", "b", "here", "in words")
    assert found.p < 0.05
    assert not found.holds
    assert found.question == "in words"


def test_a_large_gain_of_noisy_seeds_is_none():
    found = decisions.gain(table(a=[0.5, 0.9, 0.5], b=[0.5, 0.5, 0.5]), "a", "b", "here")
    assert found.enough
    assert not found.holds


def test_one_seed_decides_nothing():
    found = decisions.gain(table(a=[0.9], b=[0.5]), "a", "b", "here")
    assert (found.p, found.holds, found.text) == (1.0, False, "+40.0 points")
    assert not decisions.same(table(a=[0.5], b=[0.5]), "a", "b", "here").holds
    assert not decisions.share(table(scratch=[0.5], a=[0.9], SPT=[0.9]), "a", "here").holds


@pytest.mark.parametrize(("a", "not_worse", "same"), [
    (0.7, True, False), (0.52, True, True), (0.48, True, True), (0.44, False, False),
])  # fmt: skip
def test_not_worse_and_same_differ_where_a_is_better(a, not_worse, same):
    rows = table(a=a, b=0.5)
    assert decisions.not_worse(rows, "a", "b", "here").holds is not_worse
    assert decisions.same(rows, "a", "b", "here").holds is same


def test_effects_have_two_sided_p_and_equivalence_one_sided_ones():
    rows = table(a=[0.50, 0.53, 0.49, 0.55], b=[0.5, 0.51, 0.5, 0.5])
    x = [0.0, 0.02, -0.01, 0.05]
    above = ttest_1samp(x, -0.05, alternative="greater").pvalue
    below = ttest_1samp(x, 0.05, alternative="less").pvalue
    assert decisions.gain(rows, "a", "b", "").p == pytest.approx(ttest_1samp(x, 0.0).pvalue)
    assert decisions.gain(rows, "b", "a", "").p == 1.0
    assert decisions.not_worse(rows, "a", "b", "").p == pytest.approx(above)
    assert decisions.same(rows, "a", "b", "").p == pytest.approx(max(above, below))


@given(st.lists(st.floats(0, 0.5), min_size=3, max_size=8))
def test_a_gain_is_significant_where_its_interval_is_above_0(gains):
    rows = table(a=[0.4 + x for x in gains], b=[0.5] * len(gains))
    found = decisions.gain(rows, "a", "b", "here")
    if abs(found.effect.low) > 1e-9:
        assert (found.p < decisions.ALPHA) is (found.effect.low > 0)


@given(st.lists(st.tuples(st.floats(0.4, 1), st.floats(0.7, 1)), min_size=3, max_size=8))
def test_a_share_is_most_of_it_where_its_interval_is_above_one_half(pairs):
    part, whole = map(list, zip(*pairs, strict=True))
    rows = table(scratch=[0.5] * len(pairs), a=part, SPT=whole)
    found = decisions.share(rows, "a", "here")
    if found.asked and abs(found.effect.low - decisions.SHARE) > 1e-6:
        assert found.holds is (found.effect.low > decisions.SHARE)


@pytest.mark.parametrize(("a", "holds"), [(0.9, True), (0.75, True), (0.65, False), (0.5, False)])
def test_most_of_the_gain_is_half_of_it(a, holds):
    found = decisions.share(table(scratch=0.5, a=a, SPT=0.9), "a", "here")
    assert found.asked
    assert found.holds is holds
    assert found.effect.mean == pytest.approx((a - 0.5) / 0.4)
    # the test is two-sided, as Fieller's interval is
    assert (found.effect.low > 0.5) is holds


@pytest.mark.parametrize("whole", [0.5, 0.3])
def test_a_share_of_no_gain_is_not_asked(whole):
    found = decisions.share(table(scratch=0.5, a=0.7, SPT=whole), "a", "here")
    assert not found.asked
    assert not found.holds
    assert found.text.startswith("no gain to share (")


@pytest.mark.parametrize(("mean", "holds"), [(0.0, True), (0.012, True), (0.03, False)])
def test_near_is_within_the_margin_on_both_sides(mean, holds):
    for sign in (1, -1):
        values = [math.log(2) + sign * mean + x for x in (-0.003, 0.0, 0.003)]
        found = decisions.near(values, math.log(2), 0.02, "here", "loss")
        assert found.holds is holds
        assert found.text.endswith("target 0.693")


@pytest.mark.parametrize(("mean", "holds"), [(2.2, True), (2.0, False), (1.8, False)])
def test_above_is_a_mean_beyond_a_threshold(mean, holds):
    values = [mean + x for x in (-0.03, 0.0, 0.03)]
    found = decisions.above(values, 2.0, "Image", "times")
    assert found.holds is holds
    assert (found.where, found.question, found.effect.n) == ("Image", "times", 3)
    assert found.effect.mean == pytest.approx(mean), "the values themselves, not what is above"
    assert found.text.startswith(f"{mean:.2f} [")
    assert found.text.endswith("], to exceed 2.00")


def test_above_has_a_two_sided_p():
    values = [2.1, 2.3, 1.9, 2.6]
    expected = ttest_1samp(values, 2.0).pvalue
    assert decisions.above(values, 2.0, "", "").p == pytest.approx(expected)
    assert decisions.above([-x for x in values], -2.0, "", "").p == 1.0
    assert not decisions.above([1.0, 4.0, 2.2], 2.0, "", "").holds, "seeds differ too much"
    single = decisions.above([9.0], 2.0, "", "")
    assert (single.p, single.text) == (1.0, "9.00, to exceed 2.00")


def test_signs_are_shown_of_the_effect_but_not_of_its_threshold():
    found = decisions.above(pd.Series([0.4, 0.5, 0.6]), 0.0, "", "", "+.1f")
    assert found.text == f"+0.5 [{found.effect.low:+.1f}, {found.effect.high:+.1f}], to exceed 0.0"


def test_both_have_the_larger_p_and_need_both_effects():
    found = decisions.both(part(0.01), part(0.03), "both?")
    assert (found.p, found.holds, found.question) == (0.03, True, "both?")
    assert not decisions.both(part(0.01), part(0.06), "").holds
    assert not decisions.both(part(0.01, enough=False), part(0.01), "").holds
    assert not decisions.both(part(0.01), part(0.01, asked=False), "").asked


def test_the_best_of_several_pays_for_being_chosen():
    parts = [replace(part(p), where=name) for name, p in (("a", 0.3), ("b", 0.01), ("c", 0.02))]
    found = decisions.best(parts, "any", "one at least")
    assert (found.where, found.question) == ("any", "one at least")
    assert found.p == pytest.approx(0.03)
    assert found.text == "b: text"
    assert found.holds
    assert not decisions.best([part(0.03), part(0.5)], "any", "").holds
    assert decisions.best([part(0.6), part(0.7)], "any", "").p == 1.0


def test_the_best_is_not_one_that_is_too_small():
    parts = [replace(part(0.001, enough=False), where="small"), replace(part(0.01), where="large")]
    assert decisions.best(parts, "any", "").text == "large: text"
    assert not decisions.best(parts[:1], "any", "").holds


def test_only_what_is_asked_counts_for_the_correction():
    parts = [part(0.02), part(1.0, asked=False), part(0.03)]
    assert [p.p for p in decisions.decide(parts)] == pytest.approx([0.04, 1.0, 0.04])
    assert [p.p for p in decisions.decide([part(0.04), part(0.03)])] == pytest.approx([0.06, 0.06])
    assert decisions.decide([]) == []


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([part(0.01), part(0.01)], "reproduced"),
        ([part(0.01), part(0.06)], "partly"),
        ([part(0.01), part(0.01, enough=False)], "partly"),
        ([part(0.5), part(0.06)], "not"),
        ([part(0.01), part(0.01, asked=False)], "reproduced"),
        ([part(0.5), part(0.01, asked=False)], "not"),
        ([part(0.01, asked=False)], "not"),
        ([], "not"),
    ],
)
def test_the_verdict_is_about_what_is_asked(parts, verdict):
    assert decisions.verdict(parts) == verdict
