"""Sentences with numbers and directions, computed from results, so that they stay true.

A chapter is executed with other parameters, and its figures change; what it says about them has to
follow.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from IPython.display import Markdown

from sptlib import ledger
from sptlib.analysis import stats
from sptlib.analysis.stats import Interval
from sptlib.export import Study
from sptlib.ledger import Judgement
from sptlib.store import Store

#: standard deviation of a difference from which on it works on some seeds and not on others
WIDE = 0.1


def difference(
    a: str,
    b: str,
    gain: Interval,
    scale: float = 100.0,
    unit: str = "points",
    words: tuple[str, str] = ("above", "below"),
) -> str:
    """One comparison in words, by its interval: above, below, or not told apart.

    Args:
        a: what is compared.
        b: with what.
        gain: of a − b.
        scale: from the interval's unit to the shown one.
        unit: name of the latter.
        words: for more and for less.
    """
    more, less = words
    size = f"{abs(gain.mean) * scale:.1f} {unit}"
    if np.isnan(gain.low):
        word = more if gain.mean > 0 else less if gain.mean < 0 else "from"
        return f"{a} is {size} {word} {b} in the one seed there is, which says little"
    low, high = gain.low * scale, gain.high * scale
    span = f"95 % interval {low:+.1f} to {high:+.1f}, n = {gain.n}"
    if gain.low > 0:
        return f"{a} is {more} {b} by {size} ({span})"
    if gain.high < 0:
        return f"{a} is {less} {b} by {size} ({span})"
    wide = f"; single seeds scatter by {gain.sd * scale:.0f} {unit}" if gain.sd > WIDE else ""
    return f"{a} and {b} cannot be told apart ({gain.mean * scale:+.1f} {unit}, {span}{wide})"


def bullets(
    gains: Mapping[str, Interval],
    scale: float = 100.0,
    unit: str = "points",
    words: tuple[str, str] = ("above", "below"),
) -> Markdown:
    """Comparisons as a list of sentences.

    Args:
        gains: intervals by ``"PLACE: a − b"``, as `sptlib.report.gains` gives them.
        scale: from the intervals' unit to the shown one.
        unit: name of the latter.
        words: for more and for less.
    """
    lines = []
    for name, gain in gains.items():
        place, _, arms = name.partition(": ")
        a, _, b = arms.partition(" − ")
        lines.append(f"- **{place}**: {difference(a, b, gain, scale, unit, words)}.")
    return Markdown("\n".join(lines) or "There is nothing to compare at this scale.")


def measured(
    table: pd.DataFrame,
    column: str,
    comparisons: Sequence[tuple[str, str]],
    scale: float = 1.0,
    unit: str = "",
    words: tuple[str, str] = ("above", "below"),
) -> Markdown:
    """`bullets` of any measure, task by task.

    Args:
        table: one row per task, arm and seed.
        column: the measure.
        comparisons: pairs (a, b) of arms.
        scale: from the column's unit to the shown one.
        unit: name of the latter.
        words: for more and for less.
    """
    gains = {
        f"{task}: {a} − {b}": stats.paired(stats.common(rows, a, b), column, a, b)
        for task, rows in (table.groupby("task", sort=False) if len(table) else ())
        for a, b in comparisons
        if {a, b} <= set(rows["arm"]) and len(stats.common(rows, a, b))
    }
    return bullets(gains, scale, unit, words)


def sentence(
    table: pd.DataFrame, a: str, b: str, column: str = "test_accuracy", unit: str = "points"
) -> str:
    """`difference` of a measure of two arms; a table without them says that they were not run.

    Args:
        table: rows of one place, one per arm and seed.
        a: an arm.
        b: another.
        column: the measure, between 0 and 1.
        unit: name of its hundredth part.
    """
    if not {a, b} <= set(table["arm"]):
        return f"{a} and {b} were not run"
    return difference(a, b, stats.paired(stats.common(table, a, b), column, a, b), unit=unit)


def verdicts(
    ids: Sequence[str],
    store: Store,
    study: Study,
    preset: str,
    seeds: int = 0,
    as_it_is: bool = True,
) -> pd.DataFrame:
    """The verdicts on some claims, live and of the study, side by side.

    Args:
        ids: of the claims.
        store: of the live results.
        study: what is shipped.
        preset: of the live results.
        seeds: seeds 0 … n−1 of them; 0 = the preset's number.
        as_it_is: False if the page was executed with parameters that change more than preset and
            seeds: claims are about the preset's own Runs, so there is no live verdict then.
    """
    live = ledger.ledger(store, preset, seeds, ids) if as_it_is else [None] * len(ids)
    rows = [
        {
            "id": b.claim.id,
            "claim": b.claim.text,
            "rule": b.claim.rule,
            f"live ({preset})": cell(a) if a else "not asked: other Runs than the preset's",
            "study": cell(b),
        }
        for a, b in zip(live, ledger.ledger(study, "study", only=ids), strict=True)
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
