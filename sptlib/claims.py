"""The claims ledger: what Coser et al. (2026) claim, and whether it is so here.

Each claim has its wording, the experiment that speaks about it, a decision rule that was fixed in
advance (`sptlib.analysis.decisions`), and a verdict that is computed from stored results: reproduced,
partly, not, or not run. A claim of which a single result is missing is not run.

The wording is this project's, after the paper's abstract and a secondary summary of it; the paper's
tables were not at hand. Claims whose experiment is not built yet have no question and are not run.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from sptlib import presets
from sptlib.analysis import decisions
from sptlib.analysis.decisions import Part
from sptlib.config import digest
from sptlib.errors import unknown
from sptlib.experiments import (
    duration,
    get,
    source,
    synthetic,
)
from sptlib.experiments.ablation import SCRATCH, SHORT, SPT, TASKS
from sptlib.experiments.base import Case, Result
from sptlib.export import UNREADABLE, Study, is_current
from sptlib.store import Store

#: the verdicts, from good to none
VERDICTS = ("reproduced", "partly", "not", "not run")

ABSTRACT, SUMMARY = "abstract", "secondary summary"


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        id: C1 … C14.
        text: what is claimed, in this project's words.
        said: where the paper says it.
        experiment: whose Runs it needs; "" = not built yet.
        metric: what is compared.
        rule: when it counts as reproduced, in words.
        page: the chapter, by name of its notebook; "" = not written yet.
        figure: of that chapter.
        wanted: whether a case's labels belong to it.
        parts: the questions, from the experiment's table of those cases.
    """

    id: str
    text: str
    said: str
    metric: str
    rule: str
    experiment: str = ""
    page: str = ""
    figure: str = ""
    wanted: Callable[[Case], bool] = lambda case: True
    parts: Callable[[pd.DataFrame], list[Part]] = lambda table: []

    @property
    def code(self) -> str:
        """The file that defines the experiment."""
        return f"sptlib/experiments/{self.experiment}.py" if self.experiment else ""

    def cases(self, preset: str, seeds: int = 0) -> list[Case]:
        """The Runs that it is judged by."""
        if not self.experiment:
            return []
        return [case for case in get(self.experiment).cases(preset, seeds) if self.wanted(case)]


@dataclass(frozen=True)
class Judgement:
    """A claim with its verdict.

    Attributes:
        claim: which.
        preset: scale of the Runs.
        verdict: one of `VERDICTS`.
        parts: the questions with their answers, p values corrected.
        seeds: how many seeds, by part of the table: smallest and largest number.
        missing: Runs that are not stored.
        devices: on which the Runs were computed.
    """

    claim: Claim
    preset: str
    verdict: str
    parts: list[Part] = field(default_factory=list)
    seeds: tuple[int, int] = (0, 0)
    missing: int = 0
    devices: tuple[str, ...] = ()

    @property
    def n(self) -> str:
        """Number of seeds as text: "10", or "5–10"."""
        low, high = self.seeds
        return f"{low}" if low == high else f"{low}–{high}"

    @property
    def result(self) -> str:
        """In a line: how many questions hold, or why there is no answer."""
        if self.verdict == "not run":
            if not self.claim.experiment:
                return "the experiment is not built yet"
            return f"{self.missing} Runs are missing" if self.missing else "no Run belongs to it"
        asked = [part for part in self.parts if part.asked]
        return f"{sum(part.holds for part in asked)} of {len(asked)} hold"


def _by(table: pd.DataFrame, column: str) -> Iterable[tuple[str, pd.DataFrame]]:
    return table.groupby(column, sort=False)


def _replication(table: pd.DataFrame) -> list[Part]:
    return [decisions.gain(rows, SPT, SCRATCH, name) for name, rows in _by(table, "task")]


def _sources(table: pd.DataFrame) -> list[Part]:
    return [
        decisions.gain(_common(rows, name, SCRATCH), name, SCRATCH, f"{target} ← {name}")
        for target, rows in _by(table, "task")
        for name in source.SOURCES
        if name in set(rows["arm"]) and name not in source.NOISE
    ]


def _common(rows: pd.DataFrame, *arms: str) -> pd.DataFrame:
    """The rows of seeds that all these arms have: a slow arm has fewer."""
    seeds = set.intersection(*(set(rows.loc[rows["arm"] == arm, "seed"]) for arm in arms))
    return rows[rows["seed"].isin(seeds)]


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
    found = []
    for name, rows in _by(table, "task"):
        found += [
            decisions.not_worse(rows, "frozen QKVO", SCRATCH, name),
            decisions.gain(rows, SPT, "frozen QKVO", name),
        ]
    return found


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


def _own_layers(case: Case) -> bool:
    return case.labels["layers"] == _own[case.labels["task"]]


_own = {name: presets.get("study", recipe).model.n_layers for name, recipe in TASKS.items()}

_GAIN = (
    f"gain over scratch at equal total steps: above 0 (p < {decisions.ALPHA}, Holm) and at least "
    f"{decisions.MIN_EFFECT * 100:.0f} points"
)
_SHARE = (
    f"share of SPT's gain: at least {decisions.SHARE} (p < {decisions.ALPHA}, Holm), on tasks "
    "where the gain's interval excludes 0"
)
_LATER = "an experiment of the chapters on mechanism and theory"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "C1",
        "SPT beats training from scratch on ListOps, Image, Pathfinder, Retrieval and Text",
        f"{ABSTRACT}; {SUMMARY}, Methodology",
        "test accuracy, SPT − scratch",
        f"on every task, {_GAIN}",
        "replication",
        "04_replication",
        "fig-replication-study",
        wanted=lambda case: case.labels["task"] != "Text, direction",
        parts=_replication,
    ),
    Claim(
        "C2",
        "the gain is already substantial with a single layer: depth is not the point",
        f"{ABSTRACT}; {SUMMARY}, Finding 1, Depth Independence",
        "test accuracy with one layer, SPT − scratch",
        f"on every task, with one layer, {_GAIN}",
        "depth",
        "06_depth",
        "fig-depth",
        wanted=lambda case: case.labels["layers"] == 1,
        parts=_replication,
    ),
    Claim(
        "C3",
        "gains persist if the pretraining saw another task's data",
        f"{SUMMARY}, Finding 1, Data Agnosticism",
        "test accuracy, pretrained elsewhere − scratch",
        f"for every pair of different tasks, {_GAIN}",
        "source",
        "07_source",
        "fig-source-matrix",
        wanted=lambda case: case.labels["arm"] not in (SPT, source.ITSELF, *source.NOISE),
        parts=_sources,
    ),
    Claim(
        "C4",
        "gains are significant after as few as 10 of 200 epochs, sometimes after one",
        f"{SUMMARY}, Finding 1, Short Duration",
        "test accuracy after a part of the pretraining, SPT − scratch",
        f"after 10 of 200 parts of the preset's length, on every task, {_GAIN}; after one part, "
        "the same on at least one task",
        "duration",
        "05_duration",
        "fig-duration",
        parts=_lengths,
    ),
    Claim(
        "C5",
        "attention frozen at its random start changes little when training from labels, or helps, "
        "and stays far below SPT",
        f"{SUMMARY}, Finding 2, Freezing Experiments",
        "test accuracy, frozen QKVO − scratch and SPT − frozen QKVO",
        f"on every task, frozen is at most {decisions.MARGIN * 100:.0f} points worse than scratch "
        f"(non-inferiority), and SPT − frozen is above 0 and at least "
        f"{decisions.MIN_EFFECT * 100:.0f} points (p < {decisions.ALPHA}, Holm)",
        "freezing",
        "08_freezing",
        "fig-freezing",
        wanted=lambda case: (
            case.labels["arm"] in (SCRATCH, SPT, "frozen QKVO")
            and case.labels["labels"] == _labels(case)
        ),
        parts=_frozen,
    ),
    Claim(
        "C6",
        "the attention weights alone (W_Q, W_K, W_V, W_O) recover most of the gain",
        f"{SUMMARY}, Finding 2, Hybrid Initialization",
        "test accuracy, (QKVO from SPT − scratch) / (SPT − scratch)",
        f"on every task, {_SHARE}",
        "transfer",
        "09_transfer",
        "fig-transfer",
        wanted=lambda case: (
            case.labels["arm"] in (SCRATCH, SPT, "QKVO from SPT") and _own_layers(case)
        ),
        parts=_shares("QKVO from SPT"),
    ),
    Claim(
        "C7",
        "with one layer, W_Q and W_K alone are enough",
        f"{SUMMARY}, Finding 2, Hybrid Initialization",
        "test accuracy with one layer, (QK from SPT − scratch) / (SPT − scratch)",
        f"on every task, with one layer, {_SHARE}",
        "transfer",
        "09_transfer",
        "fig-transfer",
        wanted=lambda case: (
            case.labels["arm"] in (SCRATCH, SPT, "QK from SPT") and case.labels["layers"] == 1
        ),
        parts=_shares("QK from SPT"),
    ),
    Claim(
        "C8",
        "the MLP's weights alone bring next to nothing",
        f"{SUMMARY}, Finding 2, Hybrid Initialization",
        "test accuracy, MLP from SPT − scratch after as many label steps",
        f"on every task, equivalent within {decisions.MARGIN * 100:.0f} points "
        f"(two one-sided tests, p < {decisions.ALPHA}, Holm)",
        "transfer",
        "09_transfer",
        "fig-transfer",
        wanted=lambda case: (
            case.labels["arm"] in (SCRATCH, SPT, "MLP from SPT") and _own_layers(case)
        ),
        parts=_mlp,
    ),
    Claim(
        "C9",
        "after SPT, attention prefers near positions and is strongly diagonal, like ALiBi or RoPE, "
        "but learned",
        f"{ABSTRACT}; {SUMMARY}, Finding 3",
        "attention mass near the query",
        _LATER,
    ),
    Claim(
        "C10",
        "W_Q and W_K undo the added sinusoids: absolute positions become distances",
        f"{ABSTRACT}; {SUMMARY}, Finding 3",
        "share of the position–position scores that depends on distance alone",
        _LATER,
    ),
    Claim(
        "C11",
        "labels alone do not find this structure, on a minimal binary task with one layer and 100 "
        "tokens",
        f"{SUMMARY}, Finding 3",
        "attention mass near the query after training from labels",
        _LATER,
    ),
    Claim(
        "C12",
        "theory: at uniform attention, with mean pooling, the label loss has no gradient along "
        "patterns orthogonal to the all-ones vector; the reconstruction loss has",
        f"{ABSTRACT}; {SUMMARY}, Finding 4",
        "projections of exact gradients",
        _LATER,
    ),
    Claim(
        "C13",
        "the bottleneck is optimisation: from scratch the training loss stays where guessing is, "
        "also with ten times the data or fresh sequences at every step",
        f"{ABSTRACT}; {SUMMARY}, Finding 1",
        "training loss from scratch at the end",
        f"within {decisions.LOSS_MARGIN} nats of ln 2 in both variants, with ten times the data "
        f"and with fresh data (two one-sided tests, p < {decisions.ALPHA}, Holm)",
        "synthetic",
        "01_synthetic",
        "fig-synthetic-data",
        wanted=lambda case: case.labels["arm"] in (SCRATCH, *synthetic.DATA_ARMS),
        parts=_plateau,
    ),
    Claim(
        "C14",
        "training from labels builds on the structure: it is kept or sharpened",
        f"{SUMMARY}, Significance",
        "attention mass near the query, after SPT and after labels",
        _LATER,
    ),
)


def _labels(case: Case) -> int:
    """The number of labels that a case's row has of its own."""
    recipe = TASKS[case.labels["task"]]
    for preset in presets.PRESETS:
        own = presets.get(preset, recipe)
        if type(own.task) is type(case.run.task) and own.task.n_train == case.run.task.n_train:
            return own.n_sequences
    return case.run.n_sequences


def find(name: str) -> Claim:
    """A claim by its id; raises `ConfigError` with a suggestion."""
    known = {claim.id: claim for claim in CLAIMS}
    if name.upper() not in known:
        raise unknown("claim", name, known)
    return known[name.upper()]


class Lookup:
    """Stored results by configuration, without generating data for what is not there.

    Args:
        place: a run store, or exported results.
    """

    def __init__(self, place: Store | Study):
        self.place = place
        self._known: set[str] = set()
        for entry in place.entries():
            try:
                if is_current(entry):
                    self._known.add(digest(entry.spec))
            except UNREADABLE:  # damaged: its claim is not run
                continue

    def get(self, run):
        """The stored result, or None."""
        return self.place.get(run) if digest(run) in self._known else None


def judge(claim: Claim, lookup: Lookup, preset: str, seeds: int = 0) -> Judgement:
    """The verdict on a claim from stored results; nothing is computed.

    Args:
        claim: of `CLAIMS`.
        lookup: where results are.
        preset: scale of the Runs.
        seeds: seeds 0 … n−1; 0 = the preset's number.
    """
    cases = claim.cases(presets.check(preset), seeds)
    found = [(case, lookup.get(case.run)) for case in cases]
    missing = sum(entry is None for _, entry in found)
    if not cases or missing:
        return Judgement(claim, preset, "not run", missing=missing)
    results = [Result(case.labels, entry) for case, entry in found]
    table = get(claim.experiment).table(results)
    parts = decisions.decide(claim.parts(table))
    n = [part.effect.n for part in parts]
    devices = tuple(sorted({r.entry.environment["device"] for r in results}))
    return Judgement(
        claim, preset, decisions.verdict(parts), parts, (min(n), max(n)), devices=devices
    )


def ledger(
    place: Store | Study, preset: str, seeds: int = 0, only: Sequence[str] = ()
) -> list[Judgement]:
    """The verdict on every claim, or on some by id; arguments as in `judge`."""
    lookup = Lookup(place)
    wanted = [find(name) for name in only] or CLAIMS
    return [judge(claim, lookup, preset, seeds) for claim in wanted]


def table(judgements: Sequence[Judgement]) -> pd.DataFrame:
    """A row per claim: id, claim, verdict, result, seeds, scale."""
    rows: list[Mapping] = [
        {
            "id": j.claim.id,
            "claim": j.claim.text,
            "verdict": j.verdict,
            "result": j.result,
            "seeds": j.n if j.parts else "–",
            "scale": j.preset,
        }
        for j in judgements
    ]
    return pd.DataFrame(rows).set_index("id")


def details(judgements: Sequence[Judgement]) -> pd.DataFrame:
    """A row per question: id, where, question, effect, seeds, corrected p, answer."""
    rows = [
        {
            "id": j.claim.id,
            "where": part.where,
            "question": part.question,
            "effect": part.text,
            "seeds": part.effect.n,
            "p": f"{part.p:.3g}" if part.asked else "–",
            "answer": ("yes" if part.holds else "no") if part.asked else "not asked",
        }
        for j in judgements
        for part in j.parts
    ]
    columns = ["id", "where", "question", "effect", "seeds", "p", "answer"]
    return pd.DataFrame(rows, columns=columns).set_index("id")
