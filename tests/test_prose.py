"""Sentences follow the numbers that they are about."""

import numpy as np
import pandas as pd
import pytest

from sptlib import prose
from sptlib.analysis import stats
from sptlib.analysis.stats import interval


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.10, 0.11, 0.12], "A is above B by 11.0 points (95 % interval +8.5 to +13.5, n = 3)"),
        ([-0.10, -0.11, -0.12], "A is below B by 11.0 points"),
        ([-0.1, 0.0, 0.1], "A and B cannot be told apart (+0.0 points"),
        ([0.1], "A is 10.0 points above B in the one seed there is, which says little"),
        ([-0.1], "A is 10.0 points below B in the one seed"),
    ],
)
def test_the_direction_is_the_interval_s(values, words):
    assert prose.difference("A", "B", interval(values)).startswith(words)


def test_a_bullet_per_comparison():
    gains = {
        "Image: SPT − scratch": interval([0.2, 0.21, 0.22]),
        "Text, direction: QK from SPT − scratch": interval([-0.2, 0.2, 0.0]),
    }
    first, second = prose.bullets(gains).data.splitlines()
    assert first.startswith("- **Image**: SPT is above scratch by 21.0 points")
    assert second.startswith("- **Text, direction**: QK from SPT and scratch cannot be told apart")
    assert "nothing to compare" in prose.bullets({}).data


def test_no_sentence_has_a_number_that_is_none():
    found = interval([0.1])
    assert np.isnan(found.low)
    assert "nan" not in prose.bullets({"Image: SPT − scratch": found}).data


def test_what_is_not_shipped_is_said():
    assert "has no Runs of this experiment" in prose.none_shipped([]).data
    assert prose.none_shipped([1]) is None


def test_only_seeds_that_both_arms_have_are_compared():
    table = pd.DataFrame({"arm": ["a", "a", "b"], "seed": [0, 1, 1], "test_accuracy": [1, 2, 3.0]})
    assert stats.common(table, "a", "b")["test_accuracy"].tolist() == [2, 3]
