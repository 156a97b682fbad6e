"""13: polarization in many languages, QLoRA, robust through augmentation.

Which copies of the training posts make a classifier robust against disguise, and what is a
self-pretrained base worth against a random one? On synthetic posts, or on files in POLAR's layout.
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from sptlib import presets as sizes
from sptlib.analysis import stats
from sptlib.analysis.stats import Interval
from sptlib.errors import unknown
from sptlib.experiments.base import Case, Result, frame, seed_list
from sptlib.polar import presets
from sptlib.polar.augment import KINDS, RATE
from sptlib.polar.config import AugmentConfig, PolarRun
from sptlib.polar.labels import SUBTASKS

NAME = "polarization"
GROUP_BY = ["posts", "subtask", "base", "copies"]
#: the column of the headline
SCORE = "macro_f1_clean"

N_SEEDS = {"smoke": 1, "classroom": 3, "study": 5, "paper": 3}
#: how the test posts are written
FORMS = ("clean", *KINDS)
NO_COPIES = "no copies"
#: rates of copies: none, the published one, and the one that so few posts need
FEW, MANY, MOST = "copies of 5 %", "copies of 25 %", "copies of 50 %"
RATES = {NO_COPIES: 0.0, FEW: RATE, MANY: presets.RATE, MOST: 0.5}
SYNTHETIC, FILES = "synthetic posts", "posts from files"
POSTS = {"synthetic": SYNTHETIC, "files": FILES}
SELF, RANDOM = "self-pretrained", "random"
#: arms of the study with ten seeds: after five the interval between them was still open
TEN = ((SELF, NO_COPIES), (SELF, MOST))
LEARNED = "learned positions"


def cases(
    preset: str = "classroom",
    seeds: int = 0,
    *,
    task: str = "",
    subtasks: Sequence[int] = (),
    base_model: str = "",
) -> list[Case]:
    """All runs of the experiment.

    Args:
        preset: name of the preset.
        seeds: seeds 0 … n−1; 0 = `N_SEEDS`, but one of subtasks 2 and 3 at the classroom, and ten
            of the arms `TEN` at the study.
        task: the posts: "synthetic", or "files" (in `sptlib.polar.data.home`); "" = files at
            ``paper``, else synthetic ones.
        subtasks: of 1, 2, 3; empty = all.
        base_model: as for `sptlib.polar.presets.get`; "" = the small ones, at ``paper`` its own.
    """
    sizes.check(preset)
    source = task or ("files" if preset == "paper" else "synthetic")
    if source not in POSTS:
        raise unknown("posts", source, POSTS)
    found = []
    for number in subtasks or SUBTASKS:
        for base, copies in _arms(preset, source, number, base_model):
            run = _run(preset, source, number, base, copies, base_model)
            labels = {"posts": POSTS[source], "subtask": number, "base": base, "copies": copies}
            some = seeds or _n_seeds(preset, source, number, (base, copies))
            found += [Case(labels, replace(run, seed=seed)) for seed in seed_list(some)]
    return found


def _n_seeds(preset: str, source: str, number: int, arm: tuple[str, str]) -> int:
    if preset == "classroom" and number > 1:
        return 1
    if (preset, source, number) == ("study", "synthetic", 1) and arm in TEN:
        return 10
    return N_SEEDS[preset]


def _arms(preset: str, source: str, number: int, base_model: str) -> list[tuple[str, str]]:
    """Which bases with which copies; subtasks 2 and 3 have the best of subtask 1."""
    if base_model or preset == "paper":
        own = base_model or "the preset's"
        return [(own, FEW)] if number > 1 else [(own, NO_COPIES), (own, FEW)]
    full = preset == "study"
    if number > 1:
        if full:
            return [(SELF, MANY), (RANDOM, MANY)] if source == "synthetic" else []
        return [(SELF, MANY)]
    if not full:
        return [(SELF, NO_COPIES), (SELF, MANY), (RANDOM, MANY)]
    both = [(base, copies) for base in (SELF, RANDOM) for copies in (NO_COPIES, MANY)]
    if source == "files":
        return both
    learned = [(f"{base}, {LEARNED}", MANY) for base in (SELF, RANDOM)]
    return [both[0], (SELF, FEW), both[1], (SELF, MOST), *both[2:], *learned]


def _run(
    preset: str, source: str, number: int, base: str, copies: str, base_model: str
) -> PolarRun:
    kind, _, positions = base.partition(", ")
    name = {SELF: "offline", RANDOM: "random"}.get(kind, base_model)
    run = presets.get(preset, number, name, files=source == "files")
    run = replace(run, augment=AugmentConfig(rate=RATES[copies]))
    if positions:
        run = replace(run, base=replace(run.base, architecture="opt"))
    return run


def table(results: Sequence[Result]) -> pd.DataFrame:
    """One row per run: posts, subtask, base, copies, ``arm`` (both), seed, all scores."""
    rows = frame(results, GROUP_BY)
    return rows.assign(arm=rows["base"] + ", " + rows["copies"])


def by_form(rows: pd.DataFrame, forms: Sequence[str] = FORMS) -> pd.DataFrame:
    """`table` with a row per run and form of the test posts: ``form``, ``macro_f1``, ``drop``.

    ``drop`` is how much lower it is than on the posts as they are; ``tuned`` is macro-F1 at the
    tuned thresholds.
    """
    labels = [*GROUP_BY, "arm", "seed"]
    pieces = [
        rows[labels].assign(
            form=form,
            macro_f1=rows[f"macro_f1_{form}"],
            tuned=rows[f"macro_f1_{form}_tuned"],
            drop=rows["macro_f1_clean"] - rows[f"macro_f1_{form}"],
        )
        for form in forms
        if len(rows)
    ]
    return pd.concat(pieces, ignore_index=True) if pieces else rows.reindex(columns=labels)


def by_language(rows: pd.DataFrame, form: str = "clean") -> pd.DataFrame:
    """`table` with a row per run and language: ``language``, ``macro_f1``."""
    start = f"macro_f1_{form}_"
    columns = [c for c in rows if c.startswith(start) and c != f"{start}tuned"]
    labels = [*GROUP_BY, "arm", "seed"]
    pieces = [
        rows[labels].assign(language=c.removeprefix(start), macro_f1=rows[c]) for c in columns
    ]
    if not pieces:
        return rows.reindex(columns=[*labels, "language", "macro_f1"])
    return pd.concat(pieces, ignore_index=True).dropna(subset="macro_f1")


def part(rows: pd.DataFrame, **labels) -> pd.DataFrame:
    """The rows with these labels, e.g. ``base=SELF``."""
    for name, value in labels.items():
        rows = rows[rows[name] == value]
    return rows


def halved(rows: pd.DataFrame, form: str, without: str = NO_COPIES, with_: str = MANY) -> Interval:
    """Paired interval of drop with copies − ½ drop without: below 0 = the drop is at most half.

    Args:
        rows: of `table`, of one place and base.
        form: of the test posts.
        without: copies of the runs that are compared with.
        with_: copies of the others.
    """
    drops = by_form(rows, [form]).pivot(index="seed", columns="copies", values="drop")
    drops = drops[[without, with_]].dropna()  # the seeds that both have
    return stats.interval((drops[with_] - 0.5 * drops[without]).to_numpy())
