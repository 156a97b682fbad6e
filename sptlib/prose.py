"""Sentences with numbers and directions, computed from results, so that they stay true.

A chapter is executed with other parameters, and its figures change; what it says about them has to
follow.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from IPython.display import Markdown

from sptlib.analysis.stats import Interval
from sptlib.ledger import Judgement


def difference(a: str, b: str, gain: Interval, scale: float = 100.0, unit: str = "points") -> str:
    """One comparison in words, by its interval: above, below, or not told apart.

    Args:
        a: what is compared.
        b: with what.
        gain: of a − b.
        scale: from the interval's unit to the shown one.
        unit: name of the latter.
    """
    size = f"{abs(gain.mean) * scale:.1f} {unit}"
    if np.isnan(gain.low):
        word = "above" if gain.mean > 0 else "below"
        return f"{a} is {size} {word} {b} in the one seed there is, which says little"
    low, high = gain.low * scale, gain.high * scale
    span = f"95 % interval {low:+.1f} to {high:+.1f}, n = {gain.n}"
    if gain.low > 0:
        return f"{a} is above {b} by {size} ({span})"
    if gain.high < 0:
        return f"{a} is below {b} by {size} ({span})"
    return f"{a} and {b} cannot be told apart ({gain.mean * scale:+.1f} {unit}, {span})"


def bullets(gains: Mapping[str, Interval]) -> Markdown:
    """Comparisons as a list of sentences.

    Args:
        gains: intervals by ``"PLACE: a − b"``, as `sptlib.report.gains` gives them.
    """
    lines = []
    for name, gain in gains.items():
        place, _, arms = name.partition(": ")
        a, _, b = arms.partition(" − ")
        lines.append(f"- **{place}**: {difference(a, b, gain)}.")
    return Markdown("\n".join(lines) or "There is nothing to compare at this scale.")


def best(table: pd.DataFrame, arms: Sequence[str], by: str = "task") -> Markdown:
    """For each place, its arms from the best mean test accuracy to the worst, in a sentence."""
    lines = []
    for name, rows in table[table["arm"].isin(arms)].groupby(by, sort=False):
        means = rows.groupby("arm")["test_accuracy"].mean().sort_values(ascending=False)
        ranked = ", ".join(f"{arm} {mean:.3f}" for arm, mean in means.items())
        lines.append(f"- **{name}**: {ranked}.")
    return Markdown("\n".join(lines) or "There is nothing to rank at this scale.")


def verdicts(live: Sequence[Judgement], study: Sequence[Judgement]) -> pd.DataFrame:
    """The verdicts on some claims, live and of the study, side by side.

    Args:
        live: at the preset of this book.
        study: of the same claims in the same order.
    """
    rows = [
        {
            "id": a.claim.id,
            "claim": a.claim.text,
            "rule": a.claim.rule,
            f"live ({a.preset})": cell(a),
            "study": cell(b),
        }
        for a, b in zip(live, study, strict=True)
    ]
    return pd.DataFrame(rows).set_index("id")


def cell(judgement: Judgement) -> str:
    """A verdict with its evidence, for a table."""
    seeds = f", n = {judgement.n}" if judgement.parts else ""
    return f"{judgement.verdict} ({judgement.result}{seeds})"


def none_shipped(results: Sequence) -> Markdown | None:
    """A line where the shipped study has no such Runs; None where it has."""
    if results:
        return None
    return Markdown("The study that is shipped with this version has no Runs of this experiment.")
