"""The claims ledger: a verdict on each claim, computed from stored results.

A claim is reproduced, partly reproduced, not reproduced, or not run; it is not run if a single
result that it needs is missing. Nothing is computed here but statistics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from sptlib import presets
from sptlib.analysis import decisions
from sptlib.analysis.decisions import Part
from sptlib.claims import CLAIMS, Claim, find
from sptlib.config import Run, digest
from sptlib.experiments import get
from sptlib.experiments.ablation import LRA
from sptlib.experiments.base import Result
from sptlib.export import UNREADABLE, Shipped, Study, gather, is_current
from sptlib.store import Entry, Store

#: the verdicts, from good to none
VERDICTS = ("reproduced", "partly", "not", "not run")


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
        left_out: rows that the claim is about and that this scale does not have.
        devices: on which the Runs were computed.
    """

    claim: Claim
    preset: str
    verdict: str
    parts: list[Part] = field(default_factory=list)
    seeds: tuple[int, int] = (0, 0)
    missing: int = 0
    left_out: tuple[str, ...] = ()
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
            if not self.missing:
                return "no Run belongs to it"
            return f"{self.missing} Run{'s are' if self.missing > 1 else ' is'} missing"
        asked = [part for part in self.parts if part.asked]
        held = list(dict.fromkeys(part.where for part in asked if part.holds))
        text = f"{sum(part.holds for part in asked)} of {len(asked)} hold"
        if held and self.verdict == "partly":
            text += f" ({'; '.join(held)})"
        if len(asked) < len(self.parts):
            text += f"; no gain to share on {len(self.parts) - len(asked)}"
        if self.left_out:
            text += f"; not run at this scale: {'; '.join(self.left_out)}"
        return text


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

    def get(self, run: Run) -> Entry | Shipped | None:
        """The stored result, or None."""
        if digest(run) not in self._known:
            return None
        entry = self.place.get(run)
        parts = ("result", "metrics", "environment")
        readable, _ = gather([entry] if entry else [], lambda e: [getattr(e, p) for p in parts])
        return entry if readable else None


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
    verdict = decisions.verdict(parts)
    judged = {part.where.split(" ← ")[0] for part in parts}
    # at published size a claim about many tasks is about the papers' own
    covers = LRA if preset == "paper" and set(LRA) & set(claim.covers) else claim.covers
    left_out = tuple(name for name in covers if claim.covers and name not in judged)
    if left_out and verdict == "reproduced":
        verdict = "partly"
    n = [part.effect.n for part in parts]
    devices = tuple(sorted({r.entry.environment["device"] for r in results}))
    return Judgement(
        claim,
        preset,
        verdict,
        parts,
        (min(n), max(n)),
        left_out=left_out,
        devices=devices,
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
            "effect [95 % interval]": part.text,
            "seeds": part.effect.n,
            "p (Holm)": f"{part.p:.3g}" if part.asked else "–",
            "answer": ("yes" if part.holds else "no") if part.asked else "not asked",
        }
        for j in judgements
        for part in j.parts
    ]
    columns = [
        "id", "where", "question", "effect [95 % interval]", "seeds", "p (Holm)", "answer",
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns).set_index("id")


def counts(judgements: Sequence[Judgement]) -> dict[str, int]:
    """How many claims have each verdict, in the order of `VERDICTS`."""
    return {name: sum(j.verdict == name for j in judgements) for name in VERDICTS}


def short(judgements: Sequence[Judgement]) -> dict[str, str]:
    """The claims in a few words, by id."""
    return {j.claim.id: j.claim.short for j in judgements}


def glance(judgements: Sequence[Judgement]) -> list[tuple[str, str]]:
    """Each verdict with its evidence in two or three words, e.g. "3 of 4"."""
    return [
        (
            j.verdict,
            f"{sum(p.holds for p in j.parts)} of {sum(p.asked for p in j.parts)}, n = {j.n}"
            if j.parts
            else "",
        )
        for j in judgements
    ]
