"""12: is it the cause? Dose and response on `neighbor`.

Two ways to put a sense of distance into an untrained model, in doses: queries and keys moved a part
of the way from their random start to their pretrained values, and a bias towards near positions of
a given strength. Labels do the rest.
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
from scipy import stats as scipy_stats

from sptlib.analysis import stats
from sptlib.config import Run
from sptlib.experiments import attention
from sptlib.experiments.ablation import SCRATCH, base_run, rate, rows_of, seeds_of
from sptlib.experiments.base import Case, Result, frame

NAME = "dose"
GROUP_BY = ["task", "kind", "dose"]

#: symmetric biases can help where the classes are not each other's reversal
ROWS = ("Neighbor +1 / +3",)
QK, BIAS = "share of the way of W_Q, W_K to SPT", "imposed bias towards near positions"
#: the doses of each kind
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
STRENGTHS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
#: fewer at the classroom
LIVE = {QK: (0.0, 0.25, 0.5, 1.0), BIAS: (0.0, 0.03, 0.1, 0.3)}
DOSES = {QK: SHARES, BIAS: STRENGTHS}


def _share(base: Run, dose: float) -> Run:
    return replace(base, transfer=("qk",), transfer_share=dose)


def _bias(base: Run, dose: float) -> Run:
    return replace(base, pretrain=None, model=replace(base.model, proximity_bias=dose))


MAKE = {QK: _share, BIAS: _bias}
#: whose rate each has, which is the same for every dose
LIKE = {QK: "QK from SPT", BIAS: SCRATCH}


def cases(
    preset: str = "classroom", seeds: int = 0, *, n_layers: int = 0, task: str = ""
) -> list[Case]:
    """All Runs of the experiment; all have SPT's number of label steps, and are watched.

    Args:
        preset: name of the preset.
        seeds: seeds 0 … n−1; 0 = the preset's number.
        n_layers: layers of the model; 0 = the preset's.
        task: a row or a recipe; "" = `ROWS`.
    """
    doses = LIVE if preset == "classroom" else DOSES
    found = []
    for name in rows_of(preset, task, ROWS, ROWS) if preset != "paper" or task else ROWS:
        for seed in seeds_of(preset, seeds or attention.N_SEEDS[preset]):
            base = base_run(preset, name, seed, n_layers)
            for kind in DOSES:
                lr = rate(preset, name, LIKE[kind], SCRATCH, {})
                for dose in doses[kind]:
                    run = MAKE[kind](base, dose)
                    run = replace(run, finetune=replace(run.finetune, lr=lr, watch=1))
                    found.append(Case({"task": name, "kind": kind, "dose": dose}, run))
    return found


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per Run: task, kind, dose, seed, accuracies, measures of attention."""
    return frame(results, GROUP_BY)


def trend(table: pd.DataFrame) -> pd.DataFrame:
    """Does accuracy rise with the dose?

    Args:
        table: of `table`; seeds that lack a dose are left out.

    Returns:
        A row per task and kind: seeds, doses, Page's L test for an ordered alternative over seeds
        (Page 1963) and its p value, and Spearman's correlation of the doses with the means. Empty
        without rows, p = 1 with fewer than three seeds.
    """
    rows = []
    for (task, kind), some in table.groupby(["task", "kind"], sort=False) if len(table) else ():
        wide = some.pivot(index="seed", columns="dose", values="test_accuracy").dropna()
        enough = len(wide) >= 3 and wide.shape[1] >= 3
        page = scipy_stats.page_trend_test(wide.to_numpy()) if enough else None
        varied = wide.mean().nunique() > 1
        spearman = scipy_stats.spearmanr(wide.columns, wide.mean()).statistic if varied else 0.0
        rows.append(
            {
                "task": task,
                "kind": kind,
                "doses": wide.shape[1],
                "seeds": len(wide),
                "rank correlation of the means": float(spearman),
                "p (Page)": float(page.pvalue) if page else 1.0,
                "largest fall between two doses": float(-wide.mean().diff().min()),
            }
        )
    return pd.DataFrame(rows)




def named(table: pd.DataFrame) -> pd.DataFrame:
    """The table with an ``arm`` and a ``panel``, for `sptlib.plots_ablation.against`."""
    panel = table["kind"]
    if table["task"].nunique() > 1:
        panel = table["task"] + ", " + panel
    return table.assign(arm="labels", panel=panel)


def intervals(table: pd.DataFrame) -> pd.DataFrame:
    """Test accuracy by task, kind and dose: mean and 95 % interval over seeds, gain over dose 0.

    Args:
        table: of `table`.
    """
    rows, by = [], ["task", "kind"]
    for place, some in table.groupby(by, sort=False) if len(table) else ():
        some = some.assign(arm=some["dose"])
        for amount, here in some.groupby("dose"):
            gain = stats.paired(stats.common(some, amount, 0.0), "test_accuracy", amount, 0.0)
            rows.append(
                {
                    **dict(zip(by, place, strict=True)),
                    "dose": amount,
                    "test accuracy": stats.interval(here["test_accuracy"]).text(1, 3),
                    "gain over dose 0": gain.text(100, 1, "points") if amount else "–",
                }
            )
    return pd.DataFrame(rows).set_index([*by, "dose"]) if rows else pd.DataFrame()


def shown(trend: pd.DataFrame) -> pd.DataFrame:
    """`trend` with numbers as they are read."""
    if trend.empty:
        return trend
    text = trend.set_index(["task", "kind"])
    text["p (Page)"] = text["p (Page)"].map("{:.2g}".format)
    correlation = "rank correlation of the means"
    text[correlation] = text[correlation].map("{:.2f}".format)
    fall = "largest fall between two doses"
    text[fall] = text[fall].map(lambda x: f"{100 * x:.1f} points" if x > 0 else "none")
    return text
