"""Every figure of the book, in one style: white background on light and dark pages alike, colours
that colour-blind readers can tell apart, and every seed shown."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from torch import Tensor

#: colour of each arm, from Okabe & Ito's palette, in which related arms share a hue
ARM_COLOURS = {
    "scratch": "#D55E00",
    "SPT": "#0072B2",
    "QK from SPT": "#56B4E9",
    "MLP from SPT": "#E69F00",
    "SPT, labelled images only": "#56B4E9",
    "scratch, SPT's label steps": "#CC79A7",
    "scratch, 10× data": "#CC79A7",
    "scratch, fresh data": "#882255",
    "scratch, 2× longer": "#999933",
    "scratch, 4× batch": "#117733",
    "scratch, RoPE": "#009E73",
    # moments at which attention is looked at
    "random start": "#999999",
    "after labels alone": "#D55E00",
    "after SPT": "#56B4E9",
    "after SPT and labels": "#0072B2",
}


def use_style() -> None:
    """Set the house style; called by every function here."""
    sns.set_theme(
        context="notebook",
        style="whitegrid",
        rc={
            "figure.facecolor": "white",
            "axes.facecolor": "white",
            "savefig.facecolor": "white",
            "figure.dpi": 110,
            "savefig.dpi": 150,
            "axes.titlesize": "medium",
            "legend.frameon": False,
            "font.size": 10,
            "figure.constrained_layout.use": True,
        },
    )


#: colours of arms without one of their own
MORE_COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#999933",
    "#882255",
)


def arm_colours(arms: Sequence[str]) -> dict[str, str]:
    """A colour for each arm: its own, or one that no other of them has, as far as they go."""
    found = {arm: ARM_COLOURS[arm] for arm in arms if arm in ARM_COLOURS}
    free = [colour for colour in MORE_COLOURS if colour not in found.values()] or MORE_COLOURS
    others = [arm for arm in arms if arm not in found]
    return found | {arm: free[i % len(free)] for i, arm in enumerate(others)}


def finished(figure: Figure) -> Figure:
    """Take a figure out of pyplot's hands: a notebook would show it a second time."""
    plt.close(figure)
    return figure


def arms(
    table: pd.DataFrame,
    order: Sequence[str],
    *,
    value: str = "test_accuracy",
    chance: float | Mapping[str, float] | None = None,
    label: str = "test accuracy",
    facet: str = "variant",
    per_row: int = 4,
) -> Figure:
    """A value by arm: every seed as a dot, the mean as a line, one panel per facet.

    Args:
        table: one row per Run, with columns ``arm``, ``facet`` and ``value``.
        order: the arms, from top to bottom.
        value: column on the horizontal axis.
        chance: where guessing lies, the same for all or by panel.
        label: of the horizontal axis.
        facet: column that splits the panels.
        per_row: most panels in a row.
    """
    use_style()
    names = list(dict.fromkeys(table[facet]))
    order = [arm for arm in order if arm in set(table["arm"])]
    colours = arm_colours(order)
    height = 0.42 * len(order) + 1.2
    width = 4.2 + 1 / min(len(names), per_row)
    fig, axes = panels(len(names), per_row, (width, height), sharey="row")
    for ax, panel in zip(axes, names, strict=True):
        rows = table[table[facet] == panel]
        sns.stripplot(
            rows,
            x=value,
            y="arm",
            order=order,
            hue="arm",
            hue_order=order,
            ax=ax,
            palette=colours,
            size=7,
            alpha=0.75,
            jitter=0.18,
            legend=False,
        )
        means = rows.groupby("arm")[value].mean()
        for i, arm in enumerate(order):
            if arm in means.index:
                ax.plot([means[arm]] * 2, [i - 0.32, i + 0.32], color="black", lw=2)
        at = chance[panel] if isinstance(chance, Mapping) else chance
        if at is not None:
            ax.axvline(at, color="grey", ls="--", lw=1)
        ax.set(title=panel if facet == "task" else f"{facet} {panel}", xlabel=label, ylabel="")
    return finished(fig)


def curves(
    series: dict[str, Sequence[pd.DataFrame]],
    *,
    ylabel: str,
    chance: float | None = None,
    chance_label: str = "chance",
    ax: plt.Axes | None = None,
    title: str = "",
) -> Figure:
    """Training curves: one thin line per seed, one colour per arm.

    Args:
        series: for each arm, one table per seed with columns ``step`` and ``loss``.
        ylabel: of the vertical axis.
        chance: value of guessing, drawn as a dashed line.
        chance_label: what the dashed line is called.
        ax: draw into this one; None = a new figure.
        title: of the panel.
    """
    alone = ax is None
    if alone:
        use_style()
        _, ax = plt.subplots(figsize=(7, 3.6))
    for arm, seeds in series.items():
        for i, table in enumerate(seeds):
            ax.plot(
                table["step"],
                table["loss"],
                color=ARM_COLOURS.get(arm, "black"),
                lw=1.2,
                alpha=0.8,
                label=arm if i == 0 else None,
            )
    if chance is not None:
        ax.axhline(chance, color="grey", ls="--", lw=1, label=chance_label)
    ax.set(xlabel="step", ylabel=ylabel, title=title, ylim=(0, None))
    ax.legend(fontsize="small")
    return finished(ax.figure) if alone else ax.figure


def curve_panels(
    series: dict[str, dict[str, Sequence[pd.DataFrame]]],
    *,
    per_row: int = 4,
    chance: float | Mapping[str, float] | None = None,
    **options,
) -> Figure:
    """`curves`, one panel beside the other; those of a row have a common vertical axis.

    Args:
        series: what `curves` takes, by title.
        per_row: most panels in a row.
        chance: value of guessing, the same for all or by title.
        **options: of `curves`.
    """
    use_style()
    one = not isinstance(chance, Mapping)
    fig, axes = panels(len(series), per_row, (4.4, 3.6), sharey="row" if one else "none")
    for ax, (title, some) in zip(axes, series.items(), strict=True):
        value = chance if one else chance[title]
        curves(some, ax=ax, title=title, chance=value, **options)
    return finished(fig)


def panels(n: int, per_row: int, size: tuple[float, float], **options) -> tuple[Figure, list]:
    """A figure with n panels of this size (inches), and its axes in reading order."""
    n_rows, n_columns = -(-n // per_row), min(n, per_row)
    shape = (size[0] * n_columns, size[1] * n_rows)
    fig, axes = plt.subplots(n_rows, n_columns, figsize=shape, squeeze=False, **options)
    for ax in axes.flat[n:]:
        ax.set_axis_off()
    return fig, list(axes.flat[:n])


def attention_maps(maps: dict[str, Tensor], n_positions: int = 40) -> Figure:
    """Mean attention maps side by side, cut to the first positions so that cells can be seen.

    Args:
        maps: (T, T) by title; rows are queries, columns keys.
        n_positions: how many positions are shown.
    """
    use_style()
    fig, axes = plt.subplots(1, len(maps), figsize=(3.1 * len(maps) + 0.6, 3.4), squeeze=False)
    shown = {title: m[:n_positions, :n_positions].numpy() for title, m in maps.items()}
    top = max(float(np.quantile(m, 0.995)) for m in shown.values())
    for ax, (title, m) in zip(axes[0], shown.items(), strict=True):
        image = ax.imshow(m, cmap="viridis", vmin=0, vmax=top)
        ax.set(title=title, xlabel="key position", ylabel="query position")
        ax.grid(visible=False)
    fig.colorbar(image, ax=axes[0].tolist(), shrink=0.8, label="attention weight")
    return finished(fig)


def by_distance(profiles: dict[str, tuple[list[int], list[float]]], uniform: float) -> Figure:
    """Mean attention against signed distance (key − query).

    Args:
        profiles: by title, distances and weights, from `sptlib.analysis.attention`.
        uniform: the weight of uniform attention.
    """
    use_style()
    fig, ax = plt.subplots(figsize=(7, 3.2))
    for title, (distance, weight) in profiles.items():
        ax.plot(distance, weight, marker="o", ms=3, lw=1.4, label=title)
    ax.axhline(uniform, color="grey", ls="--", lw=1, label="uniform")
    ax.set(xlabel="distance of the key from the query", ylabel="mean attention weight")
    ax.legend()
    return finished(fig)


def against_labels(table: pd.DataFrame, order: Sequence[str]) -> Figure:
    """Accuracy against the number of labels: every seed as a dot, the mean as a line.

    Args:
        table: with columns ``n_labels``, ``arm`` and ``test_accuracy``.
        order: the arms, in the order of the legend.
    """
    use_style()
    fig, ax = plt.subplots(figsize=(7, 4))
    markers = ("o", "s", "^", "D")
    for i, arm in enumerate(order):
        rows = table[table["arm"] == arm]
        colour, marker = ARM_COLOURS[arm], markers[i % len(markers)]
        means = rows.groupby("n_labels")["test_accuracy"].mean()
        ax.plot(
            means.index,
            means.values,
            color=colour,
            lw=2,
            marker=marker,
            ms=9,
            mfc="white",
            label=arm,
        )
        aside = 1 + 0.03 * (i - (len(order) - 1) / 2)  # seeds of different arms side by side
        ax.scatter(
            rows["n_labels"] * aside,
            rows["test_accuracy"],
            s=18,
            alpha=0.6,
            color=colour,
            marker=marker,
        )
    ax.set(xscale="log", xlabel="labelled training images", ylabel="test accuracy")
    ticks = sorted(table["n_labels"].unique())
    ax.set_xticks(ticks, [str(t) for t in ticks])
    ax.minorticks_off()
    ax.legend()
    return finished(fig)


def image_rows(rows: dict[str, tuple[np.ndarray, np.ndarray | None]], side: int) -> Figure:
    """Rows of small square images, e.g. originals, with hidden pixels, reconstructed.

    Args:
        rows: by title, (values (n, side²) in [0, 1], hidden (n, side²) bool or None).
        side: pixels per side.
    """
    use_style()
    n = len(next(iter(rows.values()))[0])
    fig, axes = plt.subplots(len(rows), n, figsize=(0.72 * n + 0.9, 0.8 * len(rows)), squeeze=False)
    for line, (title, (values, hidden)) in zip(axes, rows.items(), strict=True):
        for ax, i in zip(line, range(n), strict=True):
            shown = np.repeat(1 - values[i].reshape(side, side, 1), 3, axis=2)
            if hidden is not None:
                shown[hidden[i].reshape(side, side)] = (0.84, 0.37, 0.0)
            ax.imshow(shown)
            ax.set(xticks=[], yticks=[])
            ax.grid(visible=False)
        line[0].set_ylabel(title, rotation=0, ha="right", va="center")
    return finished(fig)


def expression_tree(tokens: Sequence[str], close: str = "X") -> Figure:
    """A ListOps expression as a tree: operators above their arguments, read from left to right.

    Args:
        tokens: symbols of one expression, such as ``[MAX 2 9 X``.
        close: the symbol that ends a list.
    """
    use_style()
    place, parent, depth = _tree(tokens, close)
    fig, ax = plt.subplots(figsize=(max(4.0, 0.32 * (max(x for x, _ in place) + 2)), 0.75 * depth))
    for (x, y), above in zip(place, parent, strict=True):
        if above is not None:
            ax.plot([x, place[above][0]], [y, place[above][1]], color="#BBBBBB", lw=1.2, zorder=1)
    words = [t for t in tokens if t != close]
    for (x, y), word in zip(place, words, strict=True):
        operator = not word.isdigit()
        ax.text(
            x, y, word.strip("["), ha="center", va="center", fontsize=9, zorder=2,
            color="white" if operator else "black",
            bbox={"boxstyle": "round,pad=0.3", "fc": "#0072B2" if operator else "white",
                  "ec": "#0072B2" if operator else "#999999"},
        )  # fmt: skip
    ax.set(xlim=(-1, max(x for x, _ in place) + 1), ylim=(-depth + 0.4, 0.6))
    ax.axis("off")
    return finished(fig)


def _tree(tokens: Sequence[str], close: str) -> tuple[list, list, int]:
    """Place and parent of each node: leaves side by side, an operator above the middle of its."""
    place: list[tuple[float, int]] = []
    parent: list[int | None] = []
    opened: list[int] = []
    next_leaf, deepest = 0, 1
    for token in tokens:
        if token == close:
            node = opened.pop()
            below = [place[i][0] for i, above in enumerate(parent) if above == node]
            place[node] = ((below[0] + below[-1]) / 2, place[node][1])
            continue
        parent.append(opened[-1] if opened else None)
        place.append((next_leaf, -len(opened)))
        deepest = max(deepest, len(opened) + 1)
        if token.isdigit():
            next_leaf += 1
        else:
            opened.append(len(place) - 1)
    return place, parent, deepest


def labelled_images(images: np.ndarray, titles: Sequence[str], per_row: int = 5) -> Figure:
    """Square grey images side by side, each with its label.

    Args:
        images: (n, side²) in [0, 1]; 1 is white.
        titles: one per image.
        per_row: most images in a row.
    """
    use_style()
    side = round(images.shape[1] ** 0.5)
    fig, axes = panels(len(images), per_row, (1.6, 1.9))
    for ax, image, title in zip(axes, images, titles, strict=True):
        ax.imshow(image.reshape(side, side), cmap="gray", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
        ax.set_title(title, fontsize=9)
        ax.grid(visible=False)
    return finished(fig)
