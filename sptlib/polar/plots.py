"""Figures of the polarization system, in the book's style."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from sptlib.plots import arm_colours, finished, use_style
from sptlib.polar.labels import LABELS


def shares(table: pd.DataFrame) -> Figure:
    """How often each label holds in each language, as a map.

    Args:
        table: of `sptlib.polar.statistics.table`, one split of it.
    """
    use_style()
    labels = [label for label in LABELS if label in table]
    names = [f"{row['language']} ({row['posts']})" for _, row in table.iterrows()]
    values = pd.DataFrame(100 * table[labels].to_numpy(float), index=names, columns=labels)
    figure, axes = plt.subplots(figsize=(8.2, 1.4 + 0.32 * len(table)))
    sns.heatmap(
        values,
        ax=axes,
        vmin=0,
        vmax=100,
        cmap="Blues",
        annot=True,
        fmt=".0f",
        cbar_kws={"label": "% of posts"},
        linewidths=0.5,
    )
    axes.set_xticklabels([label.replace("_", " ") for label in labels], rotation=40, ha="right")
    axes.tick_params(length=0)
    return finished(figure)


def robustness(rows: pd.DataFrame, arms: Sequence[str], value: str = "macro_f1") -> Figure:
    """Macro-F1 of every seed on each form of the test posts, a colour per arm; bars are means.

    Args:
        rows: with ``form``, ``arm``, ``seed`` and the value.
        arms: in their order.
        value: the column that is shown.
    """
    use_style()
    forms = list(dict.fromkeys(rows["form"]))
    colours = arm_colours(arms)
    figure, axes = plt.subplots(figsize=(8.2, 3.6))
    width = 0.8 / max(1, len(arms))
    for i, arm in enumerate(arms):
        some = rows[rows["arm"] == arm]
        at = np.arange(len(forms)) + (i - (len(arms) - 1) / 2) * width
        means = some.groupby("form")[value].mean().reindex(forms)
        axes.bar(at, means, 0.9 * width, color=colours[arm], alpha=0.55, label=arm)
        for x, form in zip(at, forms, strict=True):
            seeds = some.loc[some["form"] == form, value]
            spread = np.linspace(-0.25, 0.25, len(seeds)) * width if len(seeds) > 1 else [0.0]
            axes.plot(x + np.asarray(spread), seeds, ".", color=colours[arm], markersize=6)
    axes.set_xticks(range(len(forms)), forms)
    axes.set_ylabel("macro-F1")
    axes.set_ylim(0, 1)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.28), ncols=2, frameon=False)
    return finished(figure)


def by_language(rows: pd.DataFrame, panels: str = "subtask") -> Figure:
    """Macro-F1 by language: dots are seeds, the bar is their mean; a panel per subtask.

    Args:
        rows: with ``language``, ``macro_f1``, ``seed`` and the column of panels.
        panels: its name.
    """
    use_style()
    names = list(dict.fromkeys(rows[panels]))
    languages = sorted(rows["language"].unique(), reverse=True)
    size = (8.2, 1.2 + 0.26 * len(languages))
    figure, axes = plt.subplots(1, max(1, len(names)), figsize=size, sharey=True, squeeze=False)
    for ax, name in zip(axes[0], names, strict=True):
        some = rows[rows[panels] == name]
        for i, language in enumerate(languages):
            values = some.loc[some["language"] == language, "macro_f1"]
            if not len(values):
                ax.text(0.02, i, "no labels", va="center", fontsize=8, alpha=0.7)
                continue
            ax.plot(values, [i] * len(values), "o", color="C0", alpha=0.6, markersize=4)
            ax.plot([values.mean()] * 2, [i - 0.32, i + 0.32], color="C0", linewidth=2)
        ax.axvline(some.groupby("seed")["macro_f1"].mean().mean(), color="0.5", linestyle="--")
        ax.set_title(f"{panels} {name}")
        ax.set(xlim=(0, 1), xticks=(0, 0.5, 1), xlabel="macro-F1")
    axes[0][0].set_yticks(range(len(languages)), languages)
    return finished(figure)
