"""Scores against scikit-learn's, and no silent NaN."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import f1_score

from sptlib.polar import metrics
from sptlib.polar.labels import subtask

shapes = st.tuples(st.integers(1, 30), st.sampled_from([1, 5, 6]))


@given(st.data())
def test_macro_f1_is_scikit_learns(data):
    shape = data.draw(shapes)
    truth, given_ = (data.draw(hnp.arrays(int, shape, elements=st.integers(0, 1))) for _ in "ab")
    found = metrics.macro_f1(truth, given_)
    flat = (truth[:, 0], given_[:, 0]) if shape[1] == 1 else (truth, given_)
    assert found == f1_score(*flat, average="macro", zero_division=0)
    assert np.isfinite(found)


@given(st.data())
def test_the_average_is_over_languages(data):
    n = data.draw(st.integers(1, 40))
    truth, given_ = (data.draw(hnp.arrays(int, (n, 1), elements=st.integers(0, 1))) for _ in "ab")
    languages = data.draw(st.lists(st.sampled_from(["eng", "deu", "zho"]), min_size=n, max_size=n))
    each = metrics.by_language(truth, given_, languages)
    assert list(each) == sorted(set(languages))
    rows = np.array(languages)
    by_hand = [
        f1_score(truth[rows == c, 0], given_[rows == c, 0], average="macro", zero_division=0)
        for c in sorted(set(languages))
    ]
    assert metrics.average(each) == pytest.approx(np.mean(by_hand))


def test_a_missing_class_counts_and_is_said():
    truth = pd.DataFrame({"lang": ["eng"] * 3 + ["deu"] * 2, "polarization": [1, 1, 1, 0, 1]})
    assert metrics.without_a_class(truth, subtask(1)) == ["eng: all posts are 1"]
    assert metrics.macro_f1(np.array([1, 1, 1]), np.array([1, 1, 0])) == pytest.approx(0.4)
    assert metrics.auc(np.ones(3), np.array([0.1, 0.2, 0.3])) is None
    several = truth[["lang"]].assign(**dict.fromkeys(subtask(2).labels, 0))
    assert len(metrics.without_a_class(several, subtask(2))) == 10


def test_tuned_thresholds_are_never_worse_where_they_were_chosen():
    rng = np.random.RandomState(0)
    for n_labels in (1, 5):
        truth = (rng.random_sample((200, n_labels)) < 0.15).astype(int)
        chance = np.clip(0.3 * truth + 0.4 * rng.random_sample(truth.shape), 0, 1)
        found = metrics.tuned(truth, chance)
        assert all(0 < t < 1 for t in found)
        tuned = metrics.macro_f1(truth, metrics.given(chance, found))
        assert tuned >= metrics.macro_f1(truth, metrics.given(chance))
    assert metrics.tuned(np.zeros((4, 2)), np.full((4, 2), 0.9)) == [0.5, 0.5]
