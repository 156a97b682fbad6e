"""Figures of the chapters on mechanism: every seed and every task is in them."""

import numpy as np
import pandas as pd
import pytest
import torch

from sptlib import plots_mechanism, prose
from sptlib.analysis import fits
from sptlib.experiments import attention

TASKS = ("Image", "Text")


@pytest.fixture
def looks() -> pd.DataFrame:
    rows = [
        {
            "task": task, "arm": arm, "seed": seed, "stage": stage, "step": step,
            "proximity": 0.1 + 0.01 * step + seed, "uniform": 0.05, "loss": 2.0 - 0.01 * step,
            "profile": [0.1 * seed] * 5, "moved_vo": 0.1 * step, "moved_qk": 0.0,
            "reconstruction_cosine": min(step, 50) / 100,
        }
        for task in TASKS
        for arm, stages in (("scratch", ["finetune"]), ("SPT", ["pretrain", "finetune"]))
        for seed in range(3) for stage in stages for step in (0, 50, 100)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_over_time_has_a_column_per_task_and_a_line_per_seed(looks):
    figure = plots_mechanism.over_time(
        looks, {"proximity": "near", "loss": "loss"}, level={"proximity": "uniform"}
    )
    assert len(figure.axes) == 4
    assert [ax.get_title() for ax in figure.axes] == ["Image", "Text", "", ""]
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 2]
    assert len(lines) == 6  # three seeds of each arm
    longest = max(lines, key=lambda line: len(line.get_xdata()))
    # labels come after the 100 steps of reconstruction
    assert longest.get_xdata().tolist() == [0, 50, 100, 100, 150, 200]


def test_only_the_asked_stages(looks):
    figure = plots_mechanism.over_time(looks, {"loss": "loss"}, stages=("pretrain",))
    assert all(max(line.get_xdata()) <= 100 for line in figure.axes[0].lines)
    assert len(figure.axes[0].lines) == 3


def test_profiles_show_mean_and_range(looks):
    ends = attention.ends(looks)
    assert list(dict.fromkeys(ends["arm"])) == list(attention.MOMENTS)
    figure = plots_mechanism.profiles(ends, "profile", ylabel="weight", level=0.0)
    ax = figure.axes[0]
    named = [line for line in ax.lines if not line.get_label().startswith("_")]
    assert [line.get_label() for line in named] == list(attention.MOMENTS)
    assert named[0].get_xdata()[0] == -2
    assert named[0].get_ydata() == pytest.approx([0.1] * 5)  # of seeds 0, 1, 2
    band = ax.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((0, 0.2))


def test_ends_are_first_and_last_looks_at_labels(looks):
    ends = attention.ends(looks.sample(frac=1, random_state=0))
    assert set(ends["stage"]) == {"finetune"}
    steps = ends.groupby("arm")["step"].unique().map(list).to_dict()
    assert steps["random start"] == steps["after SPT"] == [0]
    assert steps["after labels alone"] == steps["after SPT and labels"] == [100]
    assert len(ends) == 4 * 2 * 3


def test_onsets_are_halfway_between_looks(looks):
    found = attention.onsets(looks).set_index(["task", "seed", "arm"])["step"]
    assert found["Image", 0, "force of reconstruction"] == pytest.approx(25)
    assert found["Image", 0, "attention on near tokens"] == pytest.approx(50)
    assert found["Image", 0, "loss"] == pytest.approx(50)
    assert np.isnan(found["Image", 0, "queries and keys moved"])  # they never move
    assert attention.onsets(looks[:0]).empty


def test_position_scores_have_no_row_means():
    scores = torch.arange(36.0).view(6, 6)
    figure = plots_mechanism.position_scores({"a": scores, "b": scores.T}, n_positions=4)
    shown = figure.axes[0].images[0].get_array()
    assert shown.shape == (4, 4)
    assert np.asarray(shown)[0].tolist() == pytest.approx([-2.5, -1.5, -0.5, 0.5])


def test_fitted_shows_the_curves_with_their_shares():
    t = -torch.arange(-9, 10).double().abs()
    fit = fits.alibi_fit(t)
    figure = plots_mechanism.fitted(t, [fit, fits.rope_fit(t, 4)], reach=5)
    names = [x.get_text() for x in figure.axes[0].get_legend().get_texts()]
    assert names[0] == "learned"
    assert names[1] == "ALiBi's line, R² = 1.00"
    assert names[2].startswith("RoPE's waves, R² = ")
    assert figure.axes[0].lines[1].get_ydata() == pytest.approx(t[4:15].numpy())


def test_a_measure_is_compared_task_by_task(looks):
    ends = attention.ends(looks)
    text = prose.measured(
        ends, "proximity", [("after SPT and labels", "after SPT"), ("after SPT", "absent")],
        scale=100, unit="points",
    ).data  # fmt: skip
    assert text.count("\n") == 1
    assert text.startswith("- **Image**: after SPT and labels is above after SPT by 100.0 points")
    assert "nothing to compare" in prose.measured(ends[:0], "proximity", [("a", "b")]).data


def test_oneself_is_told_from_others(looks):
    ends = attention.ends(looks).assign(profile=lambda t: [[0.1, 0.2, 0.5, 0.3, 0.05]] * len(t))
    found = attention.without_oneself(ends, reach=1)
    assert found["own"].tolist() == pytest.approx([0.5] * len(ends))
    assert found["others"].tolist() == pytest.approx([0.5] * len(ends))
    assert attention.without_oneself(ends[:0]).empty
    assert attention.signal({"a_force": 1.0, "a_noise": 0.0}, "a") == 0
    assert attention.signal({"a_force": 1.0, "a_noise": 0.5}, "a") == 2
