"""Scores as the task computes them: macro-F1 of each language, averaged over languages."""

import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import f1_score, roc_auc_score

from sptlib.polar.labels import Subtask

#: above this a label is given, as published
THRESHOLD = 0.5


def macro_f1(truth: np.ndarray, given: np.ndarray) -> float:
    """Macro-F1 of one language, by scikit-learn.

    Of one label, the mean of F1 over its classes 0 and 1, as far as they occur in either; of
    several, the mean over labels of the F1 of having it. A class that never occurs and is given, or
    occurs and is never given, counts 0; so does a label of several that neither occurs nor is
    given.

    Args:
        truth: (N, L) or (N,) of 0 and 1.
        given: of the same shape.
    """
    truth, given = (np.asarray(x, int) for x in (truth, given))
    if truth.ndim == 2 and truth.shape[1] == 1:
        truth, given = truth[:, 0], given[:, 0]
    return float(f1_score(truth, given, average="macro", zero_division=0))


def by_language(truth: np.ndarray, given: np.ndarray, languages: Sequence[str]) -> dict[str, float]:
    """Macro-F1 by language, in alphabetical order.

    Args:
        truth: (N, L) of 0 and 1.
        given: (N, L) of 0 and 1.
        languages: (N,) codes.
    """
    truth, given, codes = np.asarray(truth), np.asarray(given), np.asarray(languages)
    return {
        str(code): macro_f1(truth[codes == code], given[codes == code]) for code in np.unique(codes)
    }


def average(scores: dict[str, float]) -> float:
    """The task's score: the mean over languages."""
    return float(np.mean(list(scores.values())))


def auc(truth: np.ndarray, score: np.ndarray) -> float | None:
    """Area under the ROC curve of one label; None where only one class occurs."""
    if len(np.unique(truth)) < 2:
        return None
    return float(roc_auc_score(np.ravel(truth), np.ravel(score)))


def without_a_class(truth: pd.DataFrame, subtask: Subtask) -> list[str]:
    """Languages in which a class (of one label) or a label (of several) never occurs, in words."""
    found = []
    for name, rows in truth.groupby("lang", sort=True):
        sums = rows[list(subtask.labels)].sum()
        if subtask.binary:
            n = int(sums.iloc[0])
            if n in (0, len(rows)):
                found.append(f"{name}: all posts are {int(n > 0)}")
        else:
            found += [f"{name}: no post is {label}" for label in subtask.labels if not sums[label]]
    return found


def given(probability: np.ndarray, thresholds: Sequence[float] | float = THRESHOLD) -> np.ndarray:
    """(N, L) of 0 and 1: which probabilities are at least the threshold of their label."""
    return (np.asarray(probability) >= np.asarray(thresholds)).astype(int)


def tuned(truth: np.ndarray, probability: np.ndarray) -> list[float]:
    """For each label the threshold with the best F1 on these posts.

    Of one label, the best macro-F1 over its two classes. Ties go to the one nearest to 0.5; a label
    that never occurs keeps 0.5.

    Args:
        truth: (N, L) of 0 and 1.
        probability: (N, L).
    """
    truth, probability = np.asarray(truth, int), np.asarray(probability)
    grid = sorted(np.round(np.arange(0.05, 0.96, 0.05), 2), key=lambda t: (abs(t - THRESHOLD), t))
    alone, found = truth.shape[1] == 1, []
    for label in range(truth.shape[1]):
        if not truth[:, label].any():
            found.append(THRESHOLD)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UndefinedMetricWarning)
            scores = [
                f1_score(
                    truth[:, label],
                    probability[:, label] >= t,
                    average="macro" if alone else "binary",
                    zero_division=0,
                )
                for t in grid
            ]
        found.append(float(grid[int(np.argmax(scores))]))
    return found


def by_label(truth: np.ndarray, given: np.ndarray) -> list[float]:
    """F1 of having each label, over all languages together; 0 for one that is never right.

    Args:
        truth: (N, L) of 0 and 1.
        given: of the same shape.
    """
    truth, given = np.asarray(truth, int), np.asarray(given, int)
    return [
        float(f1_score(truth[:, i], given[:, i], average="binary", zero_division=0))
        for i in range(truth.shape[1])
    ]
