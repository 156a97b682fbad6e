"""Figures of the ablations: everything that is in a table is in the figure."""

import math

import pandas as pd
import pytest
from matplotlib.colors import to_hex

from sptlib import plots, plots_ablation


@pytest.fixture
def table() -> pd.DataFrame:
    rows = [
        {"task": task, "layers": n, "arm": arm, "seed": seed, "test_accuracy": 0.5 + 0.01 * seed}
        for task in ("Image", "Text") for n in (1, 2, 6) for arm in ("SPT", "scratch", "other")
        for seed in range(3)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_against_has_a_panel_per_task_and_every_seed_as_a_dot(table):
    arms = ["SPT", "scratch", "other", "absent"]
    figure = plots_ablation.against(
        table, "layers", arms, xlabel="layers", chance={"Image": 0.1, "Text": 0.5}
    )
    assert [ax.get_title() for ax in figure.axes] == ["Image", "Text"]
    for ax in figure.axes:
        assert sum(len(c.get_offsets()) for c in ax.collections) == 27
        assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "2", "6"]
    names = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
    assert names == ["SPT", "scratch", "other"]


def test_a_numeric_axis_keeps_the_numbers(table):
    figure = plots_ablation.against(table, "layers", ["SPT"], xlabel="", ticks=False, log=True)
    ax = figure.axes[0]
    assert ax.get_xscale() == "log"
    assert sorted(set(ax.collections[0].get_offsets()[:, 0].tolist())) == [1, 2, 6]


def test_the_matrix_writes_its_numbers_and_leaves_gaps():
    gains = pd.DataFrame({"a": [12.4, math.nan], "b": [-3.0, 0.0]}, index=["x", "y"])
    figure = plots_ablation.matrix(gains)
    assert [t.get_text() for t in figure.axes[0].texts] == ["+12", "-3", "+0"]


def test_movements_leave_out_what_did_not_move():
    rows = pd.DataFrame(
        {
            "task": "Image",
            "arm": ["labels only", "labels only", "reconstruction"],
            "group": ["qk", "vo", "qk"],
            "moved": [0.5, 0.0, 2.0],
        }
    )
    figure = plots_ablation.movements(rows)
    assert sum(len(c.get_offsets()) for c in figure.axes[0].collections) == 2


def test_movements_of_several_tasks_lie_inside_their_panels():
    rows = pd.DataFrame([
        {"task": task, "arm": arm, "group": group, "moved": 0.5}
        for task in ("Image", "Text", "Other") for arm in "ab" for group in ("qk", "vo", "mlp")
    ])  # fmt: skip
    for ax in plots_ablation.movements(rows).axes[:3]:
        top, bottom = sorted(ax.get_ylim())
        heights = [y for c in ax.collections for y in c.get_offsets()[:, 1]]
        assert len(heights) == 6
        assert all(top < y < bottom for y in heights)
        assert ax.get_ylim()[0] > ax.get_ylim()[1], "the first group is on top"


def test_the_ledger_at_a_glance_is_read_without_colours():
    found = {
        "live": [("reproduced", "1 of 1, n = 5"), ("not run", "")],
        "study": [("partly", "1 of 2, n = 5"), ("not", "0 of 2, n = 5")],
    }
    figure = plots_ablation.verdicts({"C1": "first", "C2": "second"}, found)
    words = [t.get_text() for t in figure.axes[0].texts]
    for expected in (
        "✓ reproduced",
        "– not run",
        "± partly",
        "✗ not",
        "1 of 2, n = 5",
        "C1",
        "second",
    ):
        assert expected in words
    assert set(plots_ablation.VERDICTS) == {"reproduced", "partly", "not", "not run"}


def test_arms_have_colours_of_their_own():
    arms = ["SPT", "scratch", "one", "two", "three"]
    colours = plots.arm_colours(arms)
    assert set(colours) == set(arms)
    assert colours["SPT"] == plots.ARM_COLOURS["SPT"]
    assert len({to_hex(c) for c in colours.values()}) == 5
    assert len(plots.arm_colours([str(i) for i in range(30)])) == 30


def test_arms_without_a_result_have_no_row(table):
    figure = plots.arms(table, ["SPT", "absent", "scratch"], facet="task")
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["SPT", "scratch"]
