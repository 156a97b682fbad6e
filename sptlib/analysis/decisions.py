"""Decision rules: one question about one row of an experiment's table, answered from its seeds.

The rules and their margins were fixed before the ablations were run. Effects are differences of
test accuracy, paired by seed. An effect has the p value of a two-sided t test, as its 95 % interval
has; equivalence and non-inferiority have those of one-sided tests, as is customary. The p values of
the parts of one claim are corrected for their number (Holm 1979).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from sptlib.analysis import stats
from sptlib.analysis.stats import Interval

#: level of a claim's tests together
ALPHA = 0.05
#: an effect below five points of accuracy is too small to count
MIN_EFFECT = 0.05
#: two accuracies within five points are equivalent
MARGIN = 0.05
#: two training losses within this many nats are equivalent (3 % of ln 2)
LOSS_MARGIN = 0.02
#: the share of a gain that is "most of it"
SHARE = 0.5

ACCURACY = "test_accuracy"


@dataclass(frozen=True)
class Part:
    """One question of a claim, with its answer.

    Attributes:
        where: the row of the table, e.g. "Image".
        question: in words, e.g. "SPT − scratch".
        effect: mean and 95 % interval over seeds.
        text: the effect as people read it.
        p: of the test, not corrected; after `decide`, corrected.
        enough: whether the effect is as large as the rule asks for.
        asked: False where the question has no sense, because there is no gain to share.
    """

    where: str
    question: str
    effect: Interval
    text: str
    p: float
    enough: bool = True
    asked: bool = True

    @property
    def holds(self) -> bool:
        """Whether the question is answered with yes."""
        return self.asked and self.enough and self.p < ALPHA


def _points(effect: Interval) -> str:
    return _text(effect, "+.1f", 100, " points")


def _text(effect: Interval, digits: str, scale: float = 1.0, unit: str = "") -> str:
    """A mean with its interval, which a single seed does not have."""
    mean = f"{effect.mean * scale:{digits}}{unit}"
    if np.isnan(effect.low):
        return mean
    return f"{mean} [{effect.low * scale:{digits}}, {effect.high * scale:{digits}}]"


def _two_sided(values: np.ndarray) -> float:
    """p of a two-sided t test against 0, where the mean is above; 1 where it is below."""
    return min(1.0, 2 * stats.p_above(values))


def gain(table: pd.DataFrame, a: str, b: str, where: str, what: str = "") -> Part:
    """Is arm a better than b, and by at least `MIN_EFFECT`?

    Args:
        table: rows of one place, one per arm and seed.
        a: the arm that should win.
        b: the other.
        where: name of the place.
        what: the question in words; "" = "a − b".
    """
    values = stats.differences(table, ACCURACY, a, b)
    effect = stats.interval(values)
    return Part(
        where, what or f"{a} − {b}", effect, _points(effect), _two_sided(values),
        enough=effect.mean >= MIN_EFFECT,
    )  # fmt: skip


def not_worse(table: pd.DataFrame, a: str, b: str, where: str) -> Part:
    """Is arm a at most `MARGIN` worse than b (non-inferiority)?"""
    values = stats.differences(table, ACCURACY, a, b)
    effect = stats.interval(values)
    p = stats.p_above(values, -MARGIN)
    return Part(where, f"{a} not worse than {b}", effect, _points(effect), p)


def same(table: pd.DataFrame, a: str, b: str, where: str) -> Part:
    """Are two arms within `MARGIN` of each other (two one-sided tests)?"""
    values = stats.differences(table, ACCURACY, a, b)
    effect = stats.interval(values)
    p = stats.p_within(values, MARGIN)
    return Part(where, f"{a} like {b}", effect, _points(effect), p)


def share(
    table: pd.DataFrame, part: str, where: str, start: str = "scratch", whole: str = "SPT"
) -> Part:
    """Does an arm recover at least `SHARE` of the gain of ``whole`` over ``start``?

    Asked only where that gain's interval excludes 0: a share of nothing means nothing.
    """
    question = f"{part}: share of the gain"
    gained = stats.paired(table, ACCURACY, whole, start)
    if not (gained.low > 0 or (gained.n == 1 and gained.mean > 0)):
        text = f"no gain to share ({_points(gained)})"
        return Part(where, question, gained, text, 1.0, asked=False)
    effect = stats.recovered(table, ACCURACY, start, part, whole)
    values = stats.differences(table, ACCURACY, part, start)
    values = values - SHARE * stats.differences(table, ACCURACY, whole, start)
    text = f"{_text(effect, '.2f')} of it"
    return Part(where, question, effect, text, _two_sided(values))


def near(values: Sequence[float], target: float, margin: float, where: str, question: str) -> Part:
    """Is the mean of values within ``target ± margin`` (two one-sided tests)?"""
    x = np.asarray(values, dtype=np.float64)
    effect = stats.interval(x)
    text = f"{_text(effect, '.3f')}, target {target:.3f}"
    return Part(where, question, effect, text, stats.p_within(x - target, margin))


def above(
    values: Sequence[float], least: float, where: str, question: str, digits: str = ".2f"
) -> Part:
    """Is the mean of values above ``least`` (two-sided t test)?

    Args:
        values: one per seed.
        least: the threshold.
        where: name of the place.
        question: in words.
        digits: format of the shown numbers.
    """
    x = np.asarray(values, dtype=np.float64)
    effect = stats.interval(x)
    text = f"{_text(effect, digits)}, to exceed {least:{digits.lstrip('+')}}"
    return Part(where, question, effect, text, _two_sided(x - least))


def both(first: Part, second: Part, question: str) -> Part:
    """Do two things hold in one place? p is the larger one (intersection–union test)."""
    text = f"{first.question}: {first.text}; {second.question}: {second.text}"
    return Part(
        first.where, question, second.effect, text, max(first.p, second.p),
        enough=first.enough and second.enough, asked=first.asked and second.asked,
    )  # fmt: skip


def best(parts: Sequence[Part], where: str, question: str) -> Part:
    """Does at least one of several hold? Its p is the smallest, times their number (Bonferroni)."""
    first = min(parts, key=lambda part: (not part.enough, part.p))
    found = f"{first.where}: {first.text}"
    p = min(1.0, first.p * len(parts))
    return replace(first, where=where, question=question, text=found, p=p)


def decide(parts: Sequence[Part]) -> list[Part]:
    """The parts of one claim with p values corrected for their number."""
    asked = [part for part in parts if part.asked]
    adjusted = iter(stats.holm([part.p for part in asked]))
    return [replace(part, p=next(adjusted)) if part.asked else part for part in parts]


def verdict(parts: Sequence[Part]) -> str:
    """``reproduced`` if every part that is asked holds, ``partly`` if some do, else ``not``."""
    held = [part.holds for part in parts if part.asked]
    if not held or not any(held):
        return "not"
    return "reproduced" if all(held) else "partly"
