"""Figures of the ablations and of the ledger, in the style of `sptlib.plots`."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from sptlib.plots import arm_colours, finished, panels, use_style

MARKERS = ("o", "s", "^", "D", "v", "P")

#: colour and sign of each verdict: told apart without colours, too
VERDICTS = {
    "reproduced": ("#00785A", "✓"),
    "partly": ("#E69F00", "±"),
    "not": ("#B84A00", "✗"),
    "not run": ("#BBBBBB", "–"),
}


def against(
    table: pd.DataFrame,
    x: str,
    order: Sequence[str],
    *,
    xlabel: str,
    ticks: bool = True,
    log: bool = False,
    facet: str = "task",
    chance: Mapping[str, float] | None = None,
    per_row: int = 3,
) -> Figure:
    """Accuracy against a number, a panel per facet: every seed as a dot, the mean as a line.

    Args:
        table: one row per Run, with columns x, ``arm``, ``seed``, ``facet`` and ``test_accuracy``.
        x: column on the horizontal axis.
        order: the arms, in the order of the legend; those without a row are left out.
        xlabel: of the horizontal axis.
        ticks: a tick at each value, evenly spaced; else a numeric axis.
        log: of a numeric axis.
        facet: column that splits the panels.
        chance: where guessing lies, by panel.
        per_row: most panels in a row.
    """
    use_style()
    names = list(dict.fromkeys(table[facet]))
    arms = [arm for arm in order if arm in set(table["arm"])]
    colours = arm_colours(arms)
    fig, axes = panels(len(names), per_row, (4.4, 3.5), sharey="none")
    for ax, name in zip(axes, names, strict=True):
        rows = table[table[facet] == name]
        values = sorted(rows[x].unique())
        place = {v: i for i, v in enumerate(values)} if ticks else {v: v for v in values}
        for i, arm in enumerate(arms):
            mine = rows[rows["arm"] == arm]
            if mine.empty:
                continue
            aside = 0.06 * (i - (len(arms) - 1) / 2) if ticks else 0.0
            at = mine[x].map(place) + aside
            look = {"color": colours[arm], "marker": MARKERS[i % len(MARKERS)]}
            # numbers that vary with the seed have a line through the mean of each cell
            cell = mine["cell"] if "cell" in mine else mine[x]
            means = pd.DataFrame({"x": at, "y": mine["test_accuracy"]}).groupby(cell).mean()
            ax.plot(means["x"], means["y"], lw=2, ms=7, mfc="white", label=arm, **look)
            ax.scatter(at, mine["test_accuracy"], s=14, alpha=0.5, **look)
        if ticks:
            ax.set_xticks(range(len(values)), [f"{v:g}" for v in values])
        elif log:
            ax.set_xscale("log")
        if chance is not None:
            ax.axhline(chance[name], color="grey", ls="--", lw=1)
        ax.set(title=name, xlabel=xlabel, ylabel="test accuracy")
    axes[0].legend(fontsize="small")
    return finished(fig)


def matrix(gains: pd.DataFrame, *, label: str = "gain over scratch (points)") -> Figure:
    """A heat map with its numbers: blue is a gain, red a loss, white nothing.

    Args:
        gains: rows and columns as they are shown; missing cells are NaN and stay grey.
        label: of the colours.
    """
    use_style()
    n_rows, n_columns = gains.shape
    fig, ax = plt.subplots(figsize=(1.15 * n_columns + 2.6, 0.6 * n_rows + 2.2))
    values = gains.to_numpy(dtype=float)
    top = max(10.0, float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 10.0)
    shown = np.ma.masked_invalid(values)
    colours = plt.get_cmap("RdBu").with_extremes(bad="#DDDDDD")
    image = ax.imshow(shown, cmap=colours, norm=TwoSlopeNorm(0, -top, top), aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            dark = abs(value) > 0.6 * top
            text = f"{value:+.0f}"
            ax.text(j, i, text, ha="center", va="center", color="white" if dark else "black")
    ax.set_xticks(range(n_columns), gains.columns, rotation=30, ha="right")
    ax.set_yticks(range(n_rows), gains.index)
    ax.set(xlabel=gains.columns.name or "", ylabel=gains.index.name or "")
    ax.grid(visible=False)
    fig.colorbar(image, ax=ax, label=label)
    return finished(fig)


def movements(table: pd.DataFrame, *, per_row: int = 2) -> Figure:
    """How far parameter groups have moved, on a logarithmic axis: every seed as a dot.

    Args:
        table: columns task, arm, group, moved; a panel per task.
        per_row: most panels in a row.
    """
    use_style()
    names = list(dict.fromkeys(table["task"]))
    arms = list(dict.fromkeys(table["arm"]))
    groups = list(dict.fromkeys(table["group"]))
    colours = dict(zip(arms, ("#D55E00", "#0072B2", "#009E73"), strict=False))
    fig, axes = panels(
        len(names), per_row, (5.4, 0.42 * len(groups) + 1.4), sharex=True, sharey=True
    )
    for ax, name in zip(axes, names, strict=True):
        for i, arm in enumerate(arms):
            rows = table[(table["task"] == name) & (table["arm"] == arm) & (table["moved"] > 0)]
            y = rows["group"].map(groups.index) + 0.22 * (i - (len(arms) - 1) / 2)
            ax.scatter(rows["moved"], y, s=22, alpha=0.7, color=colours[arm], label=arm,
                       marker=MARKERS[i])  # fmt: skip
        ax.set_xscale("log")
        ax.set_yticks(range(len(groups)), groups)
        ax.set(title=name, xlabel="distance from the start / norm of the start")
        ax.set_ylim(len(groups) - 0.4, -0.6)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter("")
    axes[0].legend(fontsize="small")
    return finished(fig)


def verdicts(texts: Mapping[str, str], found: Mapping[str, Sequence[tuple[str, str]]]) -> Figure:
    """The ledger at a glance: a row per claim, a column per scale, a sign and a colour per verdict.

    Args:
        texts: claims in few words, by id.
        found: (verdict, evidence in few words) in the order of the claims, by title of the column.
    """
    use_style()
    n, columns = len(texts), list(found)
    fig, ax = plt.subplots(figsize=(9.5, 0.42 * n + 0.9))
    for j, title in enumerate(columns):
        for i, (verdict, evidence) in enumerate(found[title]):
            colour, sign = VERDICTS[verdict]
            ax.add_patch(plt.Rectangle((j - 0.47, i - 0.44), 0.94, 0.88, color=colour))
            look = {"color": "white" if verdict in ("reproduced", "not") else "black"}
            ax.text(j - 0.44, i, f"{sign} {verdict}", va="center", fontweight="bold", **look)
            ax.text(j + 0.45, i, evidence, ha="right", va="center", fontsize=8.5, **look)
    for i, (name, text) in enumerate(texts.items()):
        ax.text(-2.45, i, name, va="center", fontweight="bold")
        ax.text(-2.15, i, text, va="center")
    ax.set_xticks(range(len(columns)), columns, fontweight="bold")
    ax.xaxis.tick_top()
    ax.set(xlim=(-2.5, len(columns) - 0.5), ylim=(n - 0.5, -0.5))
    ax.set_yticks([])
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)
    ax.grid(visible=False)
    return finished(fig)
