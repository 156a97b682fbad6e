"""The figure of what trainings cost, in the style of `sptlib.plots`."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from sptlib.cost.report import unit_of
from sptlib.plots import ARM_COLOURS, use_style

#: parts of a bar, from the left, with their colours: what SPT needs is blue
PARTS = {
    "pretraining": "#56B4E9",
    "labels, after it": ARM_COLOURS["SPT"],
    "labels, from scratch": ARM_COLOURS["scratch"],
}


def part(row: pd.Series) -> str:
    """Which part of a bar a row of `sptlib.cost.estimate` belongs to."""
    if row["stage"] == "pretrain":
        return "pretraining"
    return "labels, from scratch" if row["arm"].startswith("scratch") else "labels, after it"


def by_task(table: pd.DataFrame) -> Figure:
    """Time by task, a bar each, divided into pretraining, labels after it, and labels alone.

    Args:
        table: of `sptlib.cost.estimate`.
    """
    use_style()
    sums = (
        table.assign(part=table.apply(part, axis=1))
        .pivot_table("hours_total", "task", "part", "sum", fill_value=0.0)
        .pipe(lambda hours: hours.loc[hours.sum(axis=1).sort_values().index])
    )
    unit, many = unit_of(sums.sum(axis=1).max())
    sums /= many
    fig, ax = plt.subplots(figsize=(7, 0.5 * len(sums) + 1.2))
    start = pd.Series(0.0, index=sums.index)
    for name, colour in PARTS.items():
        if name in sums:
            ax.barh(sums.index, sums[name], left=start, color=colour, label=name)
            start += sums[name]
    for task, total in start.items():
        ax.annotate(f"{total:,.1f}", (total, task), (4, 0), textcoords="offset points", va="center")
    ax.set(xlabel=f"{unit} of one device, all seeds", ylabel="", xlim=(0, 1.12 * start.max()))
    ax.grid(visible=False, axis="y")
    ax.legend(loc="lower right")
    plt.close(fig)  # a notebook would show it a second time
    return fig
