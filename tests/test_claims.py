"""The ledger: verdicts follow the results, and without a result there is none."""

import csv
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from sptlib import claims_mechanism as mechanism
from sptlib import export, ledger
from sptlib.analysis import decisions
from sptlib.claims import CLAIMS, Claim, find
from sptlib.cli import main
from sptlib.config import digest, to_dict
from sptlib.errors import ConfigError
from sptlib.experiments import base, duration
from sptlib.experiments.ablation import LRA
from sptlib.experiments.base import Case
from sptlib.export import Study
from sptlib.ledger import Lookup, judge

ROOT = Path(__file__).parents[1]
SEEDS = 5

#: accuracies by arm under which every claim holds; a source of pretraining data gives OTHER
HOLDS = {
    "scratch": 0.5, "scratch, label steps": 0.5, "SPT": 0.9, "QK from SPT": 0.8,
    "QKVO from SPT": 0.85, "MLP from SPT": 0.5, "frozen QKVO": 0.5,
}  # fmt: skip
OTHER = 0.8
#: what is measured of attention, and of the forces of both losses, under which every claim holds
#: likewise: of any arm, and what is another with some
MEASURES = {
    "proximity": 0.05, "uniform": 0.05, "toeplitz": 0.1,
    **{f"{of}_{name}": value for of in ("label", "reconstruction") for name, value in (
        ("force", 0.01), ("noise", 0.1), ("cosine", 0.01), ("columns", 0.95))},
}  # fmt: skip
OTHERS = {
    "SPT": {"proximity": 0.7, "toeplitz": 0.9},
    "reconstruction": {"reconstruction_cosine": 0.4, "reconstruction_columns": 0.1},
}

#: accuracy by labels, also as that of the first half and that of the end; or some measures
Outcome = Callable[[dict], float | tuple[float, float] | dict[str, float] | None]


def looks(arm: str, altered: dict[str, float], noise: float) -> dict[str, float]:
    """The made-up measures at the start and at the end, which differ a little."""
    of_arm = {**MEASURES, **OTHERS.get(arm, {})}
    found = {f"{when}_{name}": value for when in ("start", "end") for name, value in of_arm.items()}
    return {
        name: value * (1 + noise * (2 if name.startswith("end_") else 1))
        for name, value in {**found, **altered}.items()
    }


def row(case: Case, outcome: Outcome) -> dict:
    """A made-up result as it would be shipped: an outcome of None is what `HOLDS` says.

    The outcome of a claim about losses (C13) is the training loss, that of one about mechanism a
    number of measures, else it is the test accuracy.
    """
    run, labels = case.run, case.labels
    loses = "variant" in labels
    asked = outcome(labels)
    asked, altered = (None, asked) if isinstance(asked, dict) else (asked, {})
    usual = math.log(2) if loses else HOLDS.get(labels["arm"], OTHER)
    early, end = asked if isinstance(asked, tuple) else 2 * (usual if asked is None else asked,)
    noise = 0.001 * ((run.seed + len(labels["arm"])) % 3)  # seeds and arms differ a little
    evaluated = [
        {"val_accuracy": accuracy, "val_loss": 0.5, "test_accuracy": accuracy}
        for accuracy in (0.5 if loses else value + noise for value in (early, early, end))
    ]
    steps = [1, max(1, run.n_steps // 2), run.n_steps]
    return {
        "key": digest(run),
        "data": "",
        "versions": export.versions(),
        "config": to_dict(run),
        "result": {
            "steps": run.n_steps, "best_step": 1, **evaluated[-1], "train_loss": end + noise,
            **(looks(labels["arm"], altered, noise) if run.finetune.watch else {}),
        },
        "metrics": [
            {"stage": "finetune", "step": step, **line, "best": True}
            for step, line in zip(steps, evaluated, strict=True)
        ],
        "environment": {"seconds": 1.0, "device": "cpu"},
    }  # fmt: skip


def as_said(labels: dict) -> None:
    """Every claim holds."""


@pytest.fixture
def study(tmp_path):
    """Made-up results of some claims as exported files."""

    def make(*claims: Claim, outcome: Outcome = as_said, preset: str = "smoke") -> Study:
        rows = {
            digest(case.run): row(case, outcome)
            for claim in claims
            for case in claim.cases(preset, SEEDS)
        }
        export.write_rows(tmp_path / "made_up.jsonl", list(rows.values()))
        return Study(tmp_path)

    return make


def verdict(name: str, place: Study, preset: str = "smoke") -> str:
    return judge(find(name), Lookup(place), preset, SEEDS).verdict


# --- the claims as they are written -------------------------------------------------------------


def test_the_claims_are_numbered():
    assert [claim.id for claim in CLAIMS] == [f"C{i}" for i in range(1, 15)]
    assert find("c5").id == "C5"
    with pytest.raises(ConfigError, match="unknown claim 'C55'; did you mean"):
        find("C55")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_a_claim_says_what_who_and_when(claim):
    assert all((claim.short, claim.text, claim.said, claim.metric, claim.rule))
    assert len(claim.short) <= 50
    assert (ROOT / claim.code).is_file()
    assert claim.figure in (ROOT / "notebooks" / f"{claim.page}.md").read_text()
    for preset in ("smoke", "classroom", "study", "paper"):
        assert claim.cases(preset, 1), preset


def test_rules_name_the_numbers_they_are_computed_with():
    for claim in CLAIMS:
        assert str(decisions.ALPHA) in claim.rule, claim.id
    assert f"at least {decisions.SHARE}" in find("C6").rule
    assert f"{decisions.MIN_EFFECT * 100:.0f} points" in find("C1").rule
    assert f"{decisions.MARGIN * 100:.0f} points" in find("C8").rule
    assert f"within {decisions.LOSS_MARGIN} nats" in find("C13").rule
    assert f"at least {mechanism.NEAR:g} times" in find("C9").rule
    assert f"at least {mechanism.TOEPLITZ} after SPT" in find("C10").rule
    assert f"within {mechanism.STILL} of 1" in find("C11").rule
    assert f"at least {mechanism.BLIND} of the label gradient" in find("C12").rule
    assert f"a cosine of at least {mechanism.COSINE}" in find("C12").rule
    assert f"at least {mechanism.KEPT} of it" in find("C14").rule


def places(name: str, label: str) -> dict[str, set]:
    """What of the study a claim is about, by task."""
    found: dict[str, set] = {}
    for case in find(name).cases("study", 1):
        found.setdefault(case.labels["task"], set()).add(case.labels[label])
    return found


def test_claims_are_about_their_own_depth_and_number_of_labels():
    tasks = ("Neighbor +1 / +3", "Neighbor +1 / −1", "Image", "Text, direction")
    for name in ("C2", "C7"):
        assert set(places(name, "layers")) >= {"Neighbor +1 / +3", "Image", "Text, direction"}
        assert set.union(*places(name, "layers").values()) == {1}
    for name in ("C6", "C8"):  # each task's own depth, though the study has others
        assert places(name, "layers") == {t: {2} if t == "Image" else {1} for t in tasks}
    assert places("C5", "labels")["Image"] == {200}
    assert set(places("C1", "task")) == set(LRA)
    assert places("C3", "arm")["Image"] == {
        "scratch", "Neighbor +1 / +3", "Text, direction", "Pathfinder"
    }  # fmt: skip
    assert {case.labels["arm"] for case in find("C13").cases("study", 1)} == {
        "scratch", "scratch, 10× data", "scratch, fresh data"
    }  # fmt: skip
    for name in ("C9", "C14"):  # after SPT alone
        assert places(name, "arm") == {t: {"SPT"} for t in tasks}
    assert places("C10", "arm") == {t: {"scratch", "SPT"} for t in tasks}
    assert places("C11", "arm") == {t: {"scratch"} for t in tasks[:2]}
    assert places("C12", "arm") == {t: {"labels", "reconstruction"} for t in tasks}


# --- verdicts follow results --------------------------------------------------------------------


def test_without_results_nothing_is_claimed(store):
    found = ledger.ledger(store, "classroom")
    assert [j.claim for j in found] == list(CLAIMS)
    assert {j.verdict for j in found} == {"not run"}
    assert ledger.counts(found) == {"reproduced": 0, "partly": 0, "not": 0, "not run": 14}
    for j in found:
        n = len(j.claim.cases("classroom"))
        assert (j.missing, j.result) == (n, f"{n} Runs are missing")
    assert not store.path.exists(), "looking creates nothing"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_results_as_claimed_reproduce_it(study, claim):
    found = judge(claim, Lookup(study(claim)), "smoke", SEEDS)
    assert found.verdict == "reproduced", found.parts
    assert (found.seeds, found.n, found.missing) == ((SEEDS, SEEDS), "5", 0)
    assert found.devices == ("cpu",)
    assert found.result == f"{len(found.parts)} of {len(found.parts)} hold"


def only(outcome: float | tuple[float, float] | dict[str, float], **wanted) -> Outcome:
    """An outcome for the cases with these labels, the usual one elsewhere."""
    return lambda labels: outcome if wanted.items() <= labels.items() else None


SPOILT = [
    ("C1", only(0.52, arm="SPT", task="Retrieval"), "partly"),
    ("C1", only(0.52, arm="SPT"), "not"),
    ("C1", only(0.88, arm="scratch"), "not"),
    ("C1", only(0.2, arm="SPT", task="Text, direction"), "reproduced"),  # the papers lack it
    ("C2", only(0.5, arm="SPT", task="Image"), "partly"),
    ("C2", only(0.5, arm="SPT", layers=1), "not"),
    ("C2", only(0.5, arm="SPT", layers=2), "reproduced"),
    ("C3", only(0.5, arm="Image"), "partly"),
    ("C3", lambda labels: 0.5, "not"),
    ("C3", only(0.5, arm="SPT"), "reproduced"),
    ("C3", only(0.5, arm="noise, independent"), "reproduced"),
    ("C4", only(0.5, arm="SPT", task="Image"), "partly"),
    ("C4", only(0.5, arm="SPT"), "not"),
    ("C5", only(0.88, arm="frozen QKVO", task="Image"), "partly"),  # it helps, and is as good
    ("C5", only(0.3, arm="frozen QKVO"), "not"),  # it hurts
    ("C5", only(0.7, arm="frozen QKVO"), "reproduced"),  # it helps, and is below SPT
    ("C5", lambda labels: {"SPT": 0.3, "frozen QKVO": 0.3}.get(labels["arm"]), "not"),
    ("C6", only(0.6, arm="QKVO from SPT", task="Image"), "partly"),
    ("C6", only(0.6, arm="QKVO from SPT"), "not"),
    ("C6", only(0.5, arm="SPT"), "not"),
    ("C6", only(0.3, arm="SPT", task="Image"), "reproduced"),  # there is no gain to share
    ("C7", only(0.6, arm="QK from SPT", task="Image"), "partly"),
    ("C7", only(0.6, arm="QK from SPT"), "not"),
    ("C8", only(0.8, arm="MLP from SPT", task="Image"), "partly"),
    ("C8", only(0.8, arm="MLP from SPT"), "not"),
    ("C8", only(0.3, arm="MLP from SPT"), "not"),
    ("C8", only((0.5, 0.8), arm="scratch"), "reproduced"),  # as many label steps as the MLP had
    ("C1", only((0.5, 0.88), arm="scratch"), "not"),  # as many steps as SPT had in all
    ("C6", only((0.5, 0.83), arm="scratch"), "not"),
    ("C9", only({"start_proximity": 0.09}, arm="SPT", task="Image"), "partly"),
    ("C9", only({"start_proximity": 0.09}, arm="SPT"), "not"),
    ("C9", only({"start_uniform": 0.5}, arm="SPT"), "not"),  # everything is near
    ("C9", only({"end_proximity": 0.05}, arm="SPT"), "reproduced"),  # labels come later
    ("C9", only({"start_proximity": 0.01}, arm="scratch"), "reproduced"),
    ("C10", only({"start_toeplitz": 0.4}, arm="SPT", task="Image"), "partly"),
    ("C10", only({"start_toeplitz": 0.4}, arm="SPT"), "not"),
    ("C10", only({"start_toeplitz": 0.95}, arm="scratch", task="Image"), "partly"),  # no rise
    ("C10", only({"start_toeplitz": 0.95}, arm="scratch"), "not"),
    ("C10", only({"end_toeplitz": 0.95}, arm="scratch"), "reproduced"),  # the start is compared
    ("C11", only({"end_proximity": 0.15}, arm="scratch", task="Neighbor +1 / +3"), "partly"),
    ("C11", only({"end_proximity": 0.15}, arm="scratch"), "not"),
    ("C11", only({"start_proximity": 0.15}, arm="scratch"), "not"),  # labels look farther away
    ("C11", only({"end_proximity": 0.15}, arm="scratch", task="Image"), "reproduced"),
    ("C11", only({"end_proximity": 0.08}, arm="scratch"), "not"),  # more than half as much again
    ("C11", only({"end_proximity": 0.06}, arm="scratch"), "reproduced"),
    ("C12", only({"start_label_columns": 0.7}, arm="labels"), "not"),  # both must hold
    ("C12", only({"start_reconstruction_cosine": 0.05}, arm="reconstruction"), "not"),
    ("C12", only({"start_reconstruction_cosine": -0.4}, arm="reconstruction"), "not"),
    ("C12", only({"start_label_columns": 0.7}, arm="labels", task="Image"), "partly"),
    ("C12", only({"end_label_cosine": 0.5}, arm="labels"), "not"),  # labels pull as much
    ("C12", only({"end_label_cosine": 0.5}, arm="labels", task="Image"), "partly"),
    ("C12", lambda labels: {"start_label_columns": 0.7, "start_reconstruction_cosine": 0}, "not"),
    ("C12", only({"end_label_columns": 0.1}, arm="labels"), "reproduced"),  # when it is fitted
    ("C12", only({"start_label_columns": 0.1}, arm="random start"), "reproduced"),
    ("C14", only({"end_proximity": 0.5}, arm="SPT", task="Image"), "partly"),
    ("C14", only({"end_proximity": 0.5}, arm="SPT"), "not"),
    ("C14", only({"end_proximity": 0.9}, arm="SPT"), "reproduced"),  # it is sharpened
    ("C14", only({"end_proximity": 0.01}, arm="scratch"), "reproduced"),
    ("C13", only(0.3, arm="scratch, fresh data"), "partly"),
    ("C13", lambda labels: 0.3, "not"),
    ("C13", lambda labels: 1.2, "not"),
]


@pytest.mark.parametrize(("name", "outcome", "expected"), SPOILT)
def test_other_results_give_another_verdict(study, name, outcome, expected):
    claim = find(name)
    everything = replace(claim, wanted=lambda case, preset: True)
    assert verdict(name, study(everything, outcome=outcome)) == expected


def test_after_one_part_a_gain_on_one_task_is_enough(study):
    claim = find("C4")
    shortest, second = duration.lengths("classroom")[1:3]
    late = study(claim, outcome=only(0.5, arm="SPT", epochs=shortest), preset="classroom")
    found = judge(claim, Lookup(late), "classroom", SEEDS)
    assert [part.holds for part in found.parts] == [True, False]
    assert found.verdict == "partly"
    early = study(claim, outcome=only(0.5, arm="SPT", epochs=second), preset="classroom")
    found = judge(claim, Lookup(early), "classroom", SEEDS)
    assert [part.holds for part in found.parts] == [False, True]


def test_what_a_scale_leaves_out_cannot_be_reproduced_by_it(study):
    claim = find("C1")
    found = judge(claim, Lookup(study(claim, preset="classroom")), "classroom", SEEDS)
    assert all(part.holds for part in found.parts)
    assert found.verdict == "partly"
    assert found.left_out == tuple(name for name in LRA if name != "Image")
    assert {part.where for part in found.parts} == {"Image"}
    assert "Pathfinder" in found.result
    assert "not run at this scale" in found.result


def test_a_share_of_no_gain_is_counted_apart(study):
    place = study(find("C6"), outcome=only(0.3, arm="SPT", task="Image"))
    found = judge(find("C6"), Lookup(place), "smoke", SEEDS)
    n = len(found.parts)
    assert found.result == f"{n - 1} of {n - 1} hold; no gain to share on 1"
    answers = ledger.details([found])
    assert answers[answers["where"] == "Image"]["answer"].tolist() == ["not asked"]
    assert answers[answers["where"] == "Image"]["p (Holm)"].tolist() == ["–"]


def test_one_seed_reproduces_nothing(study):
    place = study(*CLAIMS)
    found = ledger.ledger(place, "smoke", 1)
    assert {j.verdict for j in found} == {"not"}


def test_tables_have_a_row_per_claim_and_per_question(study):
    found = ledger.ledger(study(*CLAIMS), "smoke", SEEDS)
    table = ledger.table(found)
    assert table.index.tolist() == [claim.id for claim in CLAIMS]
    assert table.loc["C1", ["verdict", "seeds", "scale"]].tolist() == ["reproduced", "5", "smoke"]
    assert table.loc["C9", "result"] == "4 of 4 hold"
    assert ledger.counts(found) == {"reproduced": 14, "partly": 0, "not": 0, "not run": 0}
    assert len(ledger.details(found)) == sum(len(j.parts) for j in found)
    assert ledger.glance(found)[0] == ("reproduced", "5 of 5, n = 5")
    assert ledger.glance(found)[11] == ("reproduced", "4 of 4, n = 5")
    assert ledger.short(found)["C1"] == CLAIMS[0].short


# --- what is missing ----------------------------------------------------------------------------


class Without(Lookup):
    """A place that lacks one result."""

    gone = None

    def get(self, run):
        return None if run == self.gone else super().get(run)


def test_each_single_result_is_needed(study):
    """By the claims that it belongs to, and by no other."""
    lookup = Without(study(*CLAIMS))
    needed = {claim.id: {case.run for case in claim.cases("smoke", 1)} for claim in CLAIMS}
    for claim in CLAIMS:
        for lookup.gone in needed[claim.id]:
            found = judge(claim, lookup, "smoke", 1)
            assert (found.verdict, found.missing) == ("not run", 1)
            assert found.result == "1 Run is missing"
            assert found.parts == []
    for name, arm, task, expected in (
        ("C1", "scratch", "Image", {"C1", "C2", "C3", "C5", "C6", "C7", "C8"}),
        ("C8", "MLP from SPT", "Image", {"C8"}),
        ("C5", "frozen QKVO", "Image", {"C5"}),
        ("C9", "SPT", "Image", {"C9", "C10", "C14"}),
        ("C10", "scratch", "Image", {"C10"}),
        ("C11", "scratch", "Neighbor +1 / −1", {"C10", "C11"}),
        ("C12", "labels", "Image", {"C12"}),
    ):
        lookup.gone = next(
            case.run
            for case in find(name).cases("smoke", 1)
            if {"arm": arm, "task": task}.items() <= case.labels.items()
        )
        lost = {c.id for c in CLAIMS if judge(c, lookup, "smoke", 1).verdict == "not run"}
        assert lost == expected == {name for name, runs in needed.items() if lookup.gone in runs}


def test_a_claim_without_a_run_is_not_run(store):
    found = judge(replace(find("C7"), wanted=lambda case, preset: False), Lookup(store), "smoke")
    assert (found.verdict, found.result) == ("not run", "no Run belongs to it")
    unbuilt = replace(find("C7"), experiment="", page="", figure="")
    assert (unbuilt.code, unbuilt.cases("smoke")) == ("", [])
    found = judge(unbuilt, Lookup(store), "smoke")
    assert (found.verdict, found.result) == ("not run", "the experiment is not built yet")


def test_results_of_other_arithmetic_do_not_count(study, monkeypatch):
    place = study(find("C13"))
    assert verdict("C13", place) == "reproduced"
    monkeypatch.setattr("sptlib.config.NUMERICS", 999)
    assert verdict("C13", place) == "not run"


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """A run store with what C2 needs on one task, two seeds."""
    from sptlib.store import Store

    store = Store(tmp_path_factory.mktemp("computed"))
    base.collect(neighbor().cases("smoke", 2), store, workers=1)
    return store


def neighbor() -> Claim:
    """C2 about the synthetic task only."""
    c2 = find("C2")
    return replace(
        c2,
        wanted=lambda case, preset: (
            c2.wanted(case, preset) and case.labels["task"] == "Neighbor +1 / +3"
        ),
    )


@pytest.mark.parametrize(
    "name", ["config.json", "result.json", "metrics.jsonl", "environment.json", "manifest.json"]
)
def test_a_damaged_entry_is_no_result(computed, name):
    claim = neighbor()
    assert judge(claim, Lookup(computed), "smoke", 2).verdict in ("reproduced", "partly", "not")
    file = computed.get(claim.cases("smoke", 2)[-1].run).path / name
    content = file.read_bytes()
    try:
        file.write_bytes(b"{" + content)
        found = judge(claim, Lookup(computed), "smoke", 2)
        assert (found.verdict, found.missing) == ("not run", 1)
    finally:
        file.write_bytes(content)


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def sptlib():
    return lambda *arguments: CliRunner().invoke(main, ["claims", *map(str, arguments)])


def test_the_command_says_what_is_missing(sptlib, store):
    done = sptlib("--preset", "smoke", "--seeds", 3, "--store", store.path)
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("C")] == [c.id for c in CLAIMS]
    assert "0 reproduced, 0 partly, 0 not, 14 not run; preset smoke" in done.output
    assert "rule:" not in done.output
    assert "  sptlib sweep freezing --preset smoke --seeds 3" in lines
    # each experiment once, though it may speak about several claims
    assert len([x for x in lines if x.startswith("  sptlib sweep")]) == 9
    details = sptlib("--details", "--preset", "smoke", "--store", store.path)
    assert details.output.count("rule:") == len(CLAIMS)


def test_the_command_reads_exported_results(sptlib, study, tmp_path):
    place = study(*CLAIMS, outcome=only(0.52, arm="SPT", task="Retrieval"))
    asked = ("--preset", "smoke", "--seeds", SEEDS, "--store", place.path)
    done = sptlib(*asked)
    assert done.exit_code == 0
    assert "C1   partly      n = 5      4 of 5 hold" in done.output
    assert f"13 reproduced, 1 partly, 0 not, 0 not run; preset smoke, results in {place.path}" in (
        done.output
    )
    assert "rule:" not in done.output
    assert "sptlib sweep" not in done.output  # nothing that could be computed is missing

    some = sptlib("c1", "C9", *asked).output
    assert [x.split()[0] for x in some.splitlines() if x.startswith("C")] == ["C1", "C9"]
    assert some.count("rule:") == 2
    assert "no        Retrieval: SPT − scratch: +2." in some
    assert "yes       Image: SPT − scratch: +40." in some

    file = tmp_path / "answers.csv"
    assert f"{file} has every question" in sptlib("C1", "--csv", file, *asked).output
    with file.open(newline="") as opened:
        answers = {x["where"]: x["answer"] for x in csv.DictReader(opened)}
    assert answers == {name: "no" if name == "Retrieval" else "yes" for name in LRA}


def test_a_wrong_name_is_refused_in_a_line(sptlib, store):
    for wrong, words in (("C0", "unknown claim 'C0'"), ("C15", "did you mean 'C")):
        done = sptlib(wrong, "--store", store.path)
        assert done.exit_code == 1
        assert words in done.stderr
        assert len(done.stderr.splitlines()) <= 2
    done = sptlib("C1", "--preset", "smoky", "--store", store.path)
    assert done.exit_code == 1
    assert "did you mean 'smoke'" in done.stderr
