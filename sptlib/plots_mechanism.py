"""Figures of the chapters on mechanism and theory, in the style of `sptlib.plots`."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from torch import Tensor

from sptlib.analysis.fits import Fit
from sptlib.plots import arm_colours, finished, panels, use_style


def over_time(
    looks: pd.DataFrame,
    values: Mapping[str, str],
    *,
    level: Mapping[str, str] | None = None,
    stages: Sequence[str] = ("pretrain", "finetune"),
    zero: Sequence[str] = (),
) -> Figure:
    """Measures along training: a column per task, a row per measure, a thin line per seed.

    A single task has its measures side by side.

    Where SPT goes over from reconstruction to labels there is a vertical line; from scratch, labels
    begin at once.

    Args:
        looks: of `sptlib.experiments.attention.looks`.
        values: columns, with the names of their axes.
        level: column of a dashed line, by column of ``values``.
        stages: which are shown.
        zero: columns with a line at 0.
    """
    use_style()
    looks = looks[looks["stage"].isin(stages)]
    tasks = list(dict.fromkeys(looks["task"]))
    arms = list(dict.fromkeys(looks["arm"]))
    colours = arm_colours(arms)
    alone = len(tasks) == 1
    per_row = len(values) if alone else len(tasks)
    size = (4.4, 3.4) if alone else (4.0, 2.6)
    fig, axes = panels(len(tasks) * len(values), per_row, size, sharex="col")
    for i, (column, label) in enumerate(values.items()):
        for j, task in enumerate(tasks):
            ax, here = axes[i * len(tasks) + j], looks[looks["task"] == task]
            for arm in arms:
                for number, (_, run) in enumerate(here[here["arm"] == arm].groupby("seed")):
                    before = run[run["stage"] == "pretrain"]["step"].max()
                    offset = 0 if np.isnan(before) else before
                    later = run["stage"] == "finetune"
                    ax.plot(run["step"] + offset * later, run[column], color=colours[arm], lw=1,
                            alpha=0.7, label=arm if number == 0 else None)  # fmt: skip
                    if number == 0 and offset and len(stages) > 1:
                        ax.axvline(offset, color=colours[arm], ls=":", lw=1)
            if level and column in level:
                ax.axhline(here[level[column]].mean(), color="grey", ls="--", lw=1)
            if column in zero:
                ax.axhline(0, color="grey", lw=0.8)
            ax.set(ylabel=label if j == 0 else "", title=task if i == 0 else "")
            if alone or i == len(values) - 1:
                ax.set_xlabel("step")
    axes[0].legend(fontsize="small")
    return finished(fig)


def profiles(
    rows: pd.DataFrame, column: str, *, ylabel: str, level: float | None = None, per_row: int = 2
) -> Figure:
    """A profile by signed distance, a panel per task, a line per arm: mean over seeds and range.

    Args:
        rows: with columns task, arm, seed and ``column``, a list of 2 r + 1 numbers for the
            distances −r … r (key − query).
        column: which.
        ylabel: of the vertical axis.
        level: a dashed line.
        per_row: most panels in a row.
    """
    use_style()
    tasks, arms = (list(dict.fromkeys(rows[name])) for name in ("task", "arm"))
    colours = arm_colours(arms)
    fig, axes = panels(len(tasks), per_row, (5.0, 3.2))
    for ax, task in zip(axes, tasks, strict=True):
        for arm in arms:
            here = rows[(rows["task"] == task) & (rows["arm"] == arm)]
            if here.empty:
                continue
            values = np.array(here[column].tolist())
            reach = values.shape[1] // 2
            distance = range(-reach, reach + 1)
            ax.plot(distance, values.mean(0), marker="o", ms=3, lw=1.4, color=colours[arm],
                    label=arm)  # fmt: skip
            ax.fill_between(distance, values.min(0), values.max(0), color=colours[arm], alpha=0.2)
        if level is not None:
            ax.axhline(level, color="grey", ls="--", lw=1)
        ax.set(title=task, xlabel="distance of the key from the query")
    for ax in axes[::per_row]:
        ax.set_ylabel(ylabel)
    axes[0].legend(fontsize="small")
    return finished(fig)


def position_scores(
    maps: Mapping[str, Tensor], *, n_positions: int = 50, per_row: int = 4
) -> Figure:
    """Position–position scores as heat maps: red attracts, blue repels, each on its own scale.

    Args:
        maps: (T, T) by title, rows are queries; row means are taken out, softmax ignores them.
        n_positions: how many are shown.
        per_row: most panels in a row.
    """
    use_style()
    fig, axes = panels(len(maps), per_row, (3.1, 3.1))
    for ax, (title, scores) in zip(axes, maps.items(), strict=True):
        shown = (scores - scores.mean(1, keepdim=True))[:n_positions, :n_positions].numpy()
        image = ax.imshow(shown, cmap="RdBu_r", norm=CenteredNorm())
        ax.set(title=title, xlabel="key position", ylabel="query position")
        ax.grid(visible=False)
        fig.colorbar(image, ax=ax, shrink=0.7)
    return finished(fig)


def fitted(profile: Tensor, fits: Sequence[Fit], *, reach: int = 20) -> Figure:
    """Scores by distance alone, and what ALiBi and RoPE could make of them.

    Args:
        profile: (2T − 1,), from `sptlib.analysis.scores.toeplitz_profile`.
        fits: over all distances.
        reach: distances −reach … reach are shown.
    """
    use_style()
    fig, axes = panels(1, 1, (7.0, 3.4))
    ax, middle = axes[0], len(profile) // 2
    reach = min(reach, middle)
    distance, cut = range(-reach, reach + 1), slice(middle - reach, middle + reach + 1)
    ax.plot(distance, profile[cut], "o", color="black", ms=4, label="learned")
    for fit, colour in zip(fits, ("#E69F00", "#009E73"), strict=False):
        name = {"alibi": "ALiBi's line", "rope": "RoPE's waves"}.get(fit.name, fit.name)
        ax.plot(distance, fit.curve[cut], color=colour, lw=1.6, label=f"{name}, R² = {fit.r2:.2f}")
    ax.set(xlabel="distance of the key from the query", ylabel="score")
    ax.legend()
    return finished(fig)
