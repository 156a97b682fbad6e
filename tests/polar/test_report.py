"""What chapter 13 says and draws, from made-up results whose answers are known."""

import re

import numpy as np
import pandas as pd
import pytest

from sptlib.experiments.polarization import (
    FEW,
    FORMS,
    LEARNED,
    MANY,
    MOST,
    NO_COPIES,
    RANDOM,
    SELF,
    by_form,
    by_language,
)
from sptlib.polar import generator, plots, presets, report, statistics

DROPS = {NO_COPIES: 0.2, FEW: 0.15, MANY: 0.08, MOST: 0.02}


@pytest.fixture(scope="module")
def rows():
    """Five seeds: homoglyphs cost what `DROPS` says, capitals 0.3; random bases are worse."""
    rng, made = np.random.RandomState(0), []
    arms = [(SELF, c) for c in DROPS] + [(RANDOM, MANY)]
    arms += [(f"{base}, {LEARNED}", MANY) for base in (SELF, RANDOM)]
    for base, copies in arms:
        for seed in range(5):
            clean = (0.8 if base.startswith(SELF) else 0.6) + 0.01 * rng.randn()
            lost = {"homoglyph": DROPS[copies] + 0.002 * rng.randn(), "upper": 0.3, "clean": 0}
            scores = {f: clean - lost.get(f, 0.01) for f in FORMS}
            made.append(
                {
                    "posts": "x", "subtask": 1, "base": base, "copies": copies, "seed": seed,
                    "arm": f"{base}, {copies}",
                    **{f"macro_f1_{f}": v for f, v in scores.items()},
                    **{f"macro_f1_{f}_tuned": v for f, v in scores.items()},
                    "macro_f1_clean_eng": clean + 0.1, "macro_f1_clean_rus": clean - 0.1,
                }
            )  # fmt: skip
    return pd.DataFrame(made)


def test_doses_answer_the_question(rows):
    table = report.doses(rows)
    answers = table["at most half?"]
    assert answers[SELF, "homoglyph", MOST] == "yes"
    assert answers[SELF, "homoglyph", MANY] == "yes"
    assert answers[SELF, "homoglyph", FEW] == "no"
    assert answers[SELF, "homoglyph", NO_COPIES] == ""
    assert answers[SELF, "upper", MOST] == "no"
    assert RANDOM not in set(table.index.get_level_values("base"))
    assert report.doses(rows[:0]).empty


def test_verdicts_are_sentences_with_answers(rows):
    lines = report.verdicts(rows)
    assert lines[0].startswith("The most expensive disguise is upper: 30.0 points")
    assert f"{FEW}: **no**, {MANY}: **yes**, {MOST}: **yes**" in lines[1]
    assert all("**yes**" in line and "n = 5" in line for line in lines[-2:])


def test_comparisons_pair_seeds(rows):
    found = report.comparisons(rows, [(f"{SELF}, {MANY}", f"{RANDOM}, {MANY}"), ("a", "b")])
    (gain,) = found.values()
    assert gain.mean == pytest.approx(0.2, abs=0.02)
    assert gain.n == 5
    drops = report.drops(rows, [SELF])
    assert drops[f"{SELF}, {NO_COPIES}: clean − homoglyph"].mean == pytest.approx(0.2, abs=0.01)


def test_tables_and_pictures_are_made(rows):
    table = report.language_table(by_language(rows[rows["arm"] == f"{SELF}, {MANY}"]))
    assert list(table.index) == ["eng", "rus", "average"]
    assert table.loc["eng", "name"] == "English"
    forms = by_form(rows)
    assert plots.robustness(forms, list(forms["arm"].unique())).axes
    assert plots.by_language(by_language(rows)).axes
    assert "64" in report.settings(presets.get("classroom"))["published"].tolist()
    posts = generator.generate("eng", "train", 30, 0)
    assert plots.shares(statistics.table(posts)).axes
    assert report.posts_table(posts, 3).data.count("<tr") == 4


def test_what_was_replaced_is_marked():
    posts = generator.generate("eng", "train", 30, 0)
    html = report.forms_table(posts, posts["id"].tolist()).data
    assert html.count("English") == 30
    assert "<mark>·</mark>" in html
    marked = [m for m in re.findall(r"<mark>(.)</mark>", html) if m != "·"]
    assert marked
    assert not any(letter.isascii() for letter in marked)
    assert report._marked("a<b", "a<b") == "a&lt;b"


def test_capitals_share_few_tokens_with_small_letters():
    pytest.importorskip("transformers")
    posts = pd.concat([generator.generate(n, "train", 60, 0) for n in ("eng", "deu")])
    table = report.tokens_kept(posts, 800)
    assert table.loc["upper", "tokens kept"] < table.loc["homoglyph", "tokens kept"] < 1
    assert table.loc["upper", "length"] > 1.5
