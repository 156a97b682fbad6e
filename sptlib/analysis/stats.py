"""Paired statistics over seeds. The seed is the unit: both arms of a pair share data and seed."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.multitest import multipletests

from sptlib.errors import ConfigError


@dataclass(frozen=True)
class Interval:
    """A mean with its two-sided t interval.

    Attributes:
        mean: of the n values.
        low: the interval's lower end; NaN for n = 1, where there is none.
        high: its upper end, likewise.
        sd: standard deviation of the values (n − 1).
        n: seeds.
        level: of confidence.
    """

    mean: float
    low: float
    high: float
    sd: float
    n: int
    level: float = 0.95

    def excludes(self, value: float) -> bool:
        """Whether the interval exists and does not contain this value."""
        return bool(self.low > value or self.high < value)

    def answer(self, least: float = 0.0) -> str:
        """ "yes" if the interval lies above ``least``, "no" if below, else "open"."""
        return "yes" if self.low > least else "no" if self.high < least else "open"

    def text(self, scale: float = 1.0, digits: int = 2, unit: str = "") -> str:
        """E.g. ``33.1 points [28.0, 38.2], n = 5``."""
        unit = f" {unit}" if unit else ""
        if np.isnan(self.low):
            return f"{self.mean * scale:.{digits}f}{unit} (n = {self.n}: no interval)"
        low, high = self.low * scale, self.high * scale
        return (
            f"{self.mean * scale:.{digits}f}{unit} [{low:.{digits}f}, {high:.{digits}f}], "
            f"n = {self.n}"
        )


def interval(values, level: float = 0.95) -> Interval:
    """The mean of values with its t interval.

    Args:
        values: one per seed; at least one, all finite, else `ConfigError`.
        level: of confidence.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0 or not np.isfinite(x).all():
        raise ConfigError(f"an interval needs finite values, found {x.tolist()}")
    if x.size == 1:
        return Interval(float(x[0]), np.nan, np.nan, np.nan, 1, level)
    sd = float(x.std(ddof=1))
    half = float(stats.t.ppf((1 + level) / 2, x.size - 1)) * sd / np.sqrt(x.size)
    return Interval(
        float(x.mean()), float(x.mean() - half), float(x.mean() + half), sd, x.size, level
    )


def paired(
    table: pd.DataFrame,
    value: str,
    arm_a: str,
    arm_b: str,
    arm: str = "arm",
    unit: str = "seed",
    level: float = 0.95,
) -> Interval:
    """The paired difference a − b over seeds, with its t interval.

    Args:
        table: one row per arm and seed.
        value: the column to compare.
        arm_a: value of the column ``arm``.
        arm_b: the other value, whose results are subtracted.
        unit: the column that pairs rows.

    Raises:
        ConfigError: unless both arms have exactly one row for each of the same seeds.
    """
    return interval(differences(table, value, arm_a, arm_b, arm, unit), level)


def common(table: pd.DataFrame, *arms: str) -> pd.DataFrame:
    """The rows of those seeds that all these arms have."""
    seeds = set.intersection(*(set(table.loc[table["arm"] == arm, "seed"]) for arm in arms))
    return table[table["seed"].isin(seeds)]


def differences(
    table: pd.DataFrame, value: str, arm_a: str, arm_b: str, arm: str = "arm", unit: str = "seed"
) -> np.ndarray:
    """a − b, one number per seed; arguments and errors are those of `paired`."""
    wide = {}
    for name in (arm_a, arm_b):
        rows = table[table[arm] == name]
        if rows[unit].duplicated().any():
            raise ConfigError(f"arm {name!r} has several rows for one {unit}")
        wide[name] = rows.set_index(unit)[value]
    if set(wide[arm_a].index) != set(wide[arm_b].index):
        raise ConfigError(
            f"arms {arm_a!r} and {arm_b!r} do not have the same {unit}s: "
            f"{sorted(wide[arm_a].index)} and {sorted(wide[arm_b].index)}"
        )
    return (wide[arm_a] - wide[arm_b]).sort_index().to_numpy()


def equivalent(values, target: float, margin: float, alpha: float = 0.05) -> bool:
    """Whether the mean is within ``target ± margin``: two one-sided t tests at level alpha.

    That is the case exactly if the 1 − 2·alpha interval lies inside (Schuirmann 1987). With one
    value there is no interval, and the answer is False.
    """
    found = interval(values, level=1 - 2 * alpha)
    return bool(found.low > target - margin and found.high < target + margin)


def p_above(values, threshold: float = 0.0) -> float:
    """p of the one-sided t test against a mean of at most ``threshold``.

    With fewer than three values p is 1; where all values are equal there is no doubt.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size < 3:  # two equal differences would have no doubt at all
        return 1.0
    sd = float(x.std(ddof=1)) if np.ptp(x) else 0.0
    if sd == 0:
        return 0.0 if x[0] > threshold else 1.0
    # scipy's own test warns where values differ by rounding alone
    return float(stats.t.sf((x.mean() - threshold) / sd * np.sqrt(x.size), x.size - 1))


def p_within(values, margin: float) -> float:
    """p of two one-sided t tests against a mean outside ``± margin`` (Schuirmann 1987)."""
    x = np.asarray(values, dtype=np.float64)
    return max(p_above(x, -margin), p_above(-x, -margin))


def holm(p_values) -> list[float]:
    """p values of one family, adjusted for their number (Holm 1979)."""
    if not len(p_values):
        return []
    return multipletests(p_values, method="holm")[1].tolist()


def recovered(
    table: pd.DataFrame, value: str, arm_from: str, arm_part: str, arm_full: str, unit: str = "seed"
) -> Interval:
    """The share of a gain that a part recovers, mean(part − from) / mean(full − from), over seeds.

    The interval is Fieller's (1954) for a ratio of paired means: it counts the uncertainty of the
    whole gain, too. The lower end is ≥ s exactly if the one of (part − from) − s·(full − from) is
    ≥ 0.

    Raises:
        ConfigError: as `paired`; or if the whole gain's interval does not exclude 0, since a share
            of nothing means nothing.
    """
    gain = paired(table, value, arm_full, arm_from, unit=unit)
    if not (gain.low > 0 or (gain.n == 1 and gain.mean > 0)):
        raise ConfigError(
            f"{arm_full} gains {gain.text()} over {arm_from}: there is no gain of "
            f"which {arm_part} could recover a share"
        )
    part = paired(table, value, arm_part, arm_from, unit=unit)
    share = part.mean / gain.mean
    if gain.n == 1:
        return Interval(share, np.nan, np.nan, np.nan, 1, gain.level)
    wide = table.pivot(index=unit, columns="arm", values=value)
    parts, gains = wide[arm_part] - wide[arm_from], wide[arm_full] - wide[arm_from]
    t2 = float(stats.t.ppf((1 + gain.level) / 2, gain.n - 1)) ** 2 / gain.n
    v_pp, v_pg, v_gg = (float(v) * t2 for v in (parts.var(), parts.cov(gains), gains.var()))
    middle = part.mean * gain.mean - v_pg
    scale = gain.mean**2 - v_gg  # positive, since the gain's interval excludes 0
    half = np.sqrt(max(0.0, middle**2 - (part.mean**2 - v_pp) * scale))
    sd = float((parts / gain.mean).std())
    return Interval(
        share,
        float((middle - half) / scale),
        float((middle + half) / scale),
        sd,
        gain.n,
        gain.level,
    )
