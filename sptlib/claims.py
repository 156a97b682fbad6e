"""The claims of Coser et al. (2026), each with the question that an experiment can answer.

Each claim has its wording, the experiment that speaks about it, a decision rule that was fixed in
advance (`sptlib.analysis.decisions`), and a verdict that is computed from stored results:
reproduced, partly, not, or not run. A claim of which a single result is missing is not run.

The wording is this project's, after the paper's abstract and a secondary summary of it; the paper's
tables were not at hand.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pandas as pd

from sptlib import claims_mechanism as mechanism
from sptlib import presets
from sptlib.analysis import decisions, stats
from sptlib.analysis.decisions import Part
from sptlib.config import Run
from sptlib.errors import unknown
from sptlib.experiments import depth, duration, get, source, synthetic, theory
from sptlib.experiments.ablation import LRA, NEIGHBOR, QUICK, SCRATCH, SHORT, SPT, TASKS
from sptlib.experiments.base import Case

ABSTRACT, SUMMARY = "abstract", "secondary summary"


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        id: C1 … C14.
        short: the claim in a few words.
        text: what is claimed, in this project's words.
        said: where the paper says it.
        experiment: whose Runs it needs; "" = not built yet.
        metric: what is compared.
        rule: when it counts as reproduced, in words.
        page: the chapter, by name of its notebook; "" = not written yet.
        figure: of that chapter.
        wanted: whether a case's labels belong to it.
        parts: the questions, from the experiment's table of those cases.
        covers: rows that it is about; where some are not run at a scale, it is partly reproduced
            at most. Empty = whatever the experiment has.
    """

    id: str
    short: str
    text: str
    said: str
    metric: str
    rule: str
    experiment: str = ""
    page: str = ""
    figure: str = ""
    wanted: Callable[[Case, str], bool] = lambda case, preset: True
    parts: Callable[[pd.DataFrame], list[Part]] = lambda table: []
    covers: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        """The file that defines the experiment."""
        return f"sptlib/experiments/{self.experiment}.py" if self.experiment else ""

    def cases(self, preset: str, seeds: int = 0) -> list[Case]:
        """The Runs that it is judged by; arguments as in the experiments."""
        if not self.experiment:
            return []
        cases = get(self.experiment).cases(preset, seeds)
        return [case for case in cases if self.wanted(case, preset)]


def _by(table: pd.DataFrame, column: str) -> Iterable[tuple[str, pd.DataFrame]]:
    return table.groupby(column, sort=False)


def _replication(table: pd.DataFrame) -> list[Part]:
    return [decisions.gain(rows, SPT, SCRATCH, name) for name, rows in _by(table, "task")]


def _sources(table: pd.DataFrame) -> list[Part]:
    return [
        decisions.gain(stats.common(rows, name, SCRATCH), name, SCRATCH, f"{target} ← {name}")
        for target, rows in _by(table, "task")
        for name in TASKS
        if name in set(rows["arm"])
    ]


def _lengths(table: pd.DataFrame) -> list[Part]:
    early, once = [], []
    for name, rows in _by(table, "task"):
        epochs = sorted(rows["epochs"].unique())
        for published, parts in ((10, early), (1, once)):
            # the preset may have merged short lengths that come to the same number of steps
            length = min(
                (e for e in epochs if e >= epochs[-1] * published / duration.FULL * 0.999),
            )
            parts.append(
                decisions.gain(
                    rows[rows["epochs"] == length], SPT, duration.STEPS, str(name),
                    f"SPT − scratch after {published} of {duration.FULL} parts",
                )
            )  # fmt: skip
    return [*early, decisions.best(once, "any task", "after 1 of 200 parts, on one task at least")]


def _frozen(table: pd.DataFrame) -> list[Part]:
    return [
        decisions.both(
            decisions.not_worse(rows, "frozen QKVO", SCRATCH, name),
            decisions.gain(rows, SPT, "frozen QKVO", name),
            "frozen QKVO like scratch or better, and far below SPT",
        )
        for name, rows in _by(table, "task")
    ]


def _shares(arm: str) -> Callable[[pd.DataFrame], list[Part]]:
    return lambda table: [decisions.share(rows, arm, name) for name, rows in _by(table, "task")]


def _mlp(table: pd.DataFrame) -> list[Part]:
    return [decisions.same(rows, "MLP from SPT", SHORT, name) for name, rows in _by(table, "task")]


def _plateau(table: pd.DataFrame) -> list[Part]:
    return [
        decisions.near(
            rows["train_loss"], math.log(2), decisions.LOSS_MARGIN,
            f"Neighbor {variant}", f"training loss of {arm} is ln 2",
        )
        for (variant, arm), rows in table.groupby(["variant", "arm"], sort=False)
    ]  # fmt: skip


def _own(case: Case, preset: str) -> Run:
    """The preset's Run of a case's row, which has the row's own depth and number of labels."""
    return presets.get(preset, TASKS[case.labels["task"]])


def _own_depth(case: Case, preset: str) -> bool:
    return case.labels["layers"] == _own(case, preset).model.n_layers


_GAIN = (
    f"gain over scratch at equal total steps: above 0 (p < {decisions.ALPHA}, Holm) and at least "
    f"{decisions.MIN_EFFECT * 100:.0f} points"
)
_SHARE = (
    f"share of SPT's gain: at least {decisions.SHARE} (p < {decisions.ALPHA}, Holm), on tasks "
    "where the gain's interval excludes 0"
)

_T = f"t test, p < {decisions.ALPHA}, Holm"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "C1",
        "SPT beats scratch on the five LRA tasks",
        "SPT beats training from scratch on ListOps, Image, Pathfinder, Retrieval and Text",
        f"{ABSTRACT}; {SUMMARY}, Methodology",
        "test accuracy, SPT − scratch",
        f"on every task, {_GAIN}",
        "replication",
        "04_replication",
        "fig-replication-study",
        wanted=lambda case, preset: case.labels["task"] in LRA,
        parts=_replication,
        covers=LRA,
    ),
    Claim(
        "C2",
        "one layer is enough for the gain",
        "the gain is already substantial with a single layer: depth is not the point",
        f"{ABSTRACT}; {SUMMARY}, Finding 1, Depth Independence",
        "test accuracy with one layer, SPT − scratch",
        f"on every task, with one layer, {_GAIN}",
        "depth",
        "06_depth",
        "fig-depth",
        wanted=lambda case, preset: case.labels["layers"] == 1,
        parts=_replication,
        covers=depth.ROWS,
    ),
    Claim(
        "C3",
        "another task's data do as well",
        "gains persist if the pretraining saw another task's data",
        f"{SUMMARY}, Finding 1, Data Agnosticism",
        "test accuracy, pretrained elsewhere − scratch",
        f"for every pair of different tasks, {_GAIN}",
        "source",
        "07_source",
        "fig-source-matrix",
        wanted=lambda case, preset: case.labels["arm"] not in (SPT, source.ITSELF, *source.NOISE),
        parts=_sources,
        covers=source.ROWS,
    ),
    Claim(
        "C4",
        "a short pretraining is enough",
        "gains are significant after as few as 10 of 200 epochs, sometimes after one",
        f"{SUMMARY}, Finding 1, Short Duration",
        "test accuracy after a part of the pretraining, SPT − scratch",
        f"after 10 of 200 parts of the preset's length, on every task, {_GAIN}; after one part, "
        "the same on at least one task",
        "duration",
        "05_duration",
        "fig-duration",
        parts=_lengths,
        covers=duration.ROWS,
    ),
    Claim(
        "C5",
        "frozen random attention ≈ scratch ≪ SPT",
        "attention frozen at its random start changes little when training from labels, or helps, "
        "and stays far below SPT",
        f"{SUMMARY}, Finding 2, Freezing Experiments",
        "test accuracy, frozen QKVO − scratch and SPT − frozen QKVO",
        f"on every task, frozen is at most {decisions.MARGIN * 100:.0f} points worse than scratch "
        "(non-inferiority), and SPT − frozen is above 0 and at least "
        f"{decisions.MIN_EFFECT * 100:.0f} points (p < {decisions.ALPHA}, Holm)",
        "freezing",
        "08_freezing",
        "fig-freezing",
        wanted=lambda case, preset: (
            case.labels["arm"] in (SCRATCH, SPT, "frozen QKVO")
            and case.labels["labels"] == _own(case, preset).n_sequences
        ),
        parts=_frozen,
        covers=QUICK,
    ),
    Claim(
        "C6",
        "attention weights carry most of the gain",
        "the attention weights alone (W_Q, W_K, W_V, W_O) recover most of the gain",
        f"{SUMMARY}, Finding 2, Hybrid Initialization",
        "test accuracy, (QKVO from SPT − scratch) / (SPT − scratch)",
        f"on every task, {_SHARE}",
        "transfer",
        "09_transfer",
        "fig-transfer",
        wanted=lambda case, preset: (
            case.labels["arm"] in (SCRATCH, SPT, "QKVO from SPT") and _own_depth(case, preset)
        ),
        parts=_shares("QKVO from SPT"),
        covers=QUICK,
    ),
    Claim(
        "C7",
        "W_Q, W_K alone carry it with one layer",
        "with one layer, W_Q and W_K alone are enough",
        f"{SUMMARY}, Finding 2, Hybrid Initialization",
        "test accuracy with one layer, (QK from SPT − scratch) / (SPT − scratch)",
        f"on every task, with one layer, {_SHARE}",
        "transfer",
        "09_transfer",
        "fig-transfer",
        wanted=lambda case, preset: (
            case.labels["arm"] in (SCRATCH, SPT, "QK from SPT") and case.labels["layers"] == 1
        ),
        parts=_shares("QK from SPT"),
        covers=QUICK,
    ),
    Claim(
        "C8",
        "the MLP's weights bring nothing",
        "the MLP's weights alone bring next to nothing",
        f"{SUMMARY}, Finding 2, Hybrid Initialization",
        "test accuracy, MLP from SPT − scratch after as many label steps",
        f"on every task, equivalent within {decisions.MARGIN * 100:.0f} points "
        f"(two one-sided tests, p < {decisions.ALPHA}, Holm)",
        "transfer",
        "09_transfer",
        "fig-transfer",
        wanted=lambda case, preset: (
            case.labels["arm"] in (SCRATCH, SPT, "MLP from SPT") and _own_depth(case, preset)
        ),
        parts=_mlp,
        covers=QUICK,
    ),
    Claim(
        "C9",
        "SPT makes attention look near",
        "after SPT, attention prefers near positions and is strongly diagonal, like ALiBi or RoPE, "
        "but learned",
        f"{ABSTRACT}; {SUMMARY}, Finding 3",
        "attention on near tokens after SPT, over that of uniform attention",
        f"on every task, at least {mechanism.NEAR:g} times as much ({_T})",
        "attention",
        "10_attention",
        "fig-attention-proximity",
        wanted=lambda case, preset: case.labels["arm"] == SPT,
        parts=mechanism.near,
        covers=QUICK,
    ),
    Claim(
        "C10",
        "W_Q, W_K undo absolute positions",
        "W_Q and W_K undo the added sinusoids: absolute positions become distances",
        f"{ABSTRACT}; {SUMMARY}, Finding 3",
        "share of the position–position scores that depends on distance alone, first layer",
        f"on every task, at least {mechanism.TOEPLITZ} after SPT, and more than at the random "
        f"start ({_T})",
        "attention",
        "11_positions",
        "fig-positions-toeplitz",
        parts=mechanism.relative,
        covers=QUICK,
    ),
    Claim(
        "C11",
        "labels do not find this structure",
        "labels alone do not find this structure, on a minimal binary task with one layer and 100 "
        "tokens",
        f"{SUMMARY}, Finding 3",
        "attention on near tokens after training from labels, over that at the random start",
        f"in both variants, within {mechanism.STILL} of 1 (two one-sided tests, "
        f"p < {decisions.ALPHA}, Holm)",
        "attention",
        "10_attention",
        "fig-attention-proximity",
        wanted=lambda case, preset: (
            case.labels["arm"] == SCRATCH and case.labels["task"] in NEIGHBOR
        ),
        parts=mechanism.still,
        covers=tuple(NEIGHBOR),
    ),
    Claim(
        "C12",
        "the label gradient is blind to it (theory)",
        "theory: at uniform attention, with mean pooling, the label loss has no gradient along "
        "patterns orthogonal to the all-ones vector; the reconstruction loss has",
        f"{ABSTRACT}; {SUMMARY}, Finding 4",
        "gradients with respect to the attention scores of the real models",
        f"on every task, at least {mechanism.BLIND} of the label gradient's square is blind to "
        "proximity at uniform attention, and the force of reconstruction, the rest being fitted, "
        f"has a cosine of at least {mechanism.COSINE} with the direction towards near tokens, and "
        "a larger one than that of labels after their own fit "
        f"({_T}); the theorem itself is checked exactly, in the chapter and in the tests",
        "theory",
        "12_theory",
        "fig-theory-forces",
        wanted=lambda case, preset: case.labels["arm"] != theory.RANDOM,
        parts=mechanism.blind,
        covers=QUICK,
    ),
    Claim(
        "C13",
        "the bottleneck is optimisation",
        "the bottleneck is optimisation: from scratch the training loss stays where guessing is, "
        "also with ten times the data or fresh sequences at every step",
        f"{ABSTRACT}; {SUMMARY}, Finding 1",
        "training loss from scratch at the end",
        f"within {decisions.LOSS_MARGIN} nats of ln 2 in both variants, and in the first one also "
        f"with ten times the data and with fresh data (two one-sided tests, p < {decisions.ALPHA}, "
        "Holm)",
        "synthetic",
        "01_synthetic",
        "fig-synthetic-data",
        wanted=lambda case, preset: case.labels["arm"] in (SCRATCH, *synthetic.DATA_ARMS),
        parts=_plateau,
    ),
    Claim(
        "C14",
        "labels keep or sharpen the structure",
        "training from labels builds on the structure: it is kept or sharpened",
        f"{SUMMARY}, Significance",
        "attention on near tokens above uniform, after the last label step and after SPT",
        f"on every task where SPT has such an excess, at least {mechanism.KEPT} of it is left "
        f"({_T})",
        "attention",
        "10_attention",
        "fig-attention-proximity",
        wanted=lambda case, preset: case.labels["arm"] == SPT,
        parts=mechanism.kept,
        covers=QUICK,
    ),
)


def find(name: str) -> Claim:
    """A claim by its id; raises `ConfigError` with a suggestion."""
    known = {claim.id: claim for claim in CLAIMS}
    if name.upper() not in known:
        raise unknown("claim", name, known)
    return known[name.upper()]
