"""The experiment on polarization: its arms, tables and intervals."""

import pandas as pd
import pytest

from sptlib import presets
from sptlib.errors import ConfigError
from sptlib.experiments import base, polarization
from sptlib.experiments.polarization import FILES, FORMS, MANY, NO_COPIES, RANDOM, RATES, SELF
from sptlib.polar.augment import KINDS
from sptlib.polar.config import AugmentConfig, QLoRAConfig


@pytest.mark.parametrize("preset", presets.PRESETS)
def test_every_preset_builds_it(preset):
    cases = polarization.cases(preset)
    assert len({case.run for case in cases}) == len(cases)
    assert all(set(polarization.GROUP_BY) <= set(case.labels) for case in cases)
    cells: dict = {}
    for case in cases:
        cells.setdefault(tuple(case.labels.values()), []).append(case.run.seed)
    for (_, number, *arm), seeds in cells.items():
        n = 1 if preset == "classroom" and number > 1 else polarization.N_SEEDS[preset]
        if preset == "study" and number == 1 and tuple(arm) in polarization.TEN:
            n = 10
        assert seeds == list(range(n))
    sources = {case.run.task.source for case in cases}
    assert sources == ({"files"} if preset == "paper" else {"synthetic"})


def test_arms_differ_in_what_they_are_called_by():
    for case in polarization.cases("study", 1):
        run, labels = case.run, case.labels
        assert run.augment.rate == RATES[labels["copies"]]
        assert run.base.kind == ("random" if labels["base"].startswith(RANDOM) else "spt")
        assert (run.base.architecture == "opt") == ("learned" in labels["base"])
        assert run.pretraining is None or run.pretraining.base.steps == 600
    plain = [c.run.qlora for c in polarization.cases("study", 1, subtasks=[1])]
    assert len(set(plain)) == 1, "all arms take as many steps"


def test_a_named_base_gets_the_published_settings():
    cases = polarization.cases("classroom", 2, base_model="some/model", task="files")
    assert {c.run.qlora for c in cases} == {QLoRAConfig()}
    assert {c.run.augment for c in cases} == {AugmentConfig(), AugmentConfig(rate=0.0)}
    assert {c.labels["posts"] for c in cases} == {FILES}
    assert {c.run.base.model for c in cases} == {"some/model"}
    run = QLoRAConfig()  # as published
    assert (run.rank, run.alpha, run.dropout, run.lr) == (64, 16, 0.1, 2e-5)
    assert (run.batch_size, run.epochs, run.max_length, run.warmup_ratio) == (1, 1, 512, 0.03)
    assert (AugmentConfig().rate, AugmentConfig().kinds) == (0.05, KINDS)
    with pytest.raises(ConfigError, match="unknown posts"):
        polarization.cases("study", task="tweets")


def test_tables_of_the_smallest_preset(store):
    pytest.importorskip("bitsandbytes")
    cases = polarization.cases("smoke", 1, subtasks=[1])
    rows = polarization.table(base.collect(cases, store, workers=1, device="cpu"))
    assert rows["arm"].tolist() == [f"{SELF}, {NO_COPIES}", f"{SELF}, {MANY}", f"{RANDOM}, {MANY}"]
    forms = polarization.by_form(rows)
    assert forms["form"].unique().tolist() == list(FORMS)
    one = forms[(forms["form"] == "upper") & (forms["copies"] == NO_COPIES)].iloc[0]
    assert one["macro_f1"] == rows["macro_f1_upper"].iloc[0]
    assert one["drop"] == rows["macro_f1_clean"].iloc[0] - one["macro_f1"]
    languages = polarization.by_language(rows)
    assert languages["language"].nunique() == 8
    mean = languages[languages["arm"] == rows["arm"][0]]["macro_f1"].mean()
    assert mean == pytest.approx(rows["macro_f1_clean"].iloc[0])


def test_halved_is_a_paired_interval():
    rows = pd.DataFrame(
        {
            "posts": "x", "subtask": 1, "base": SELF, "seed": [0, 1, 2] * 2,
            "copies": [NO_COPIES] * 3 + [MANY] * 3,
            "arm": "a",
            "macro_f1_clean": 0.9,
            "macro_f1_upper": [0.7, 0.6, 0.7, 0.85, 0.8, 0.85],
            "macro_f1_upper_tuned": 0.5,
        }
    )  # fmt: skip
    found = polarization.halved(rows, "upper")
    assert found.mean == pytest.approx(((0.05 - 0.1) + (0.1 - 0.15) + (0.05 - 0.1)) / 3)
    assert found.n == 3
    assert found.high < 0
    third = rows[rows["copies"] == MANY].assign(copies="copies of 5 %").iloc[:1]
    assert polarization.halved(pd.concat([rows, third]), "upper") == found, "others do not matter"
