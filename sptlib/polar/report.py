"""What chapter 13 says about its results, computed from them."""

import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
from IPython.display import HTML

from sptlib.analysis import stats
from sptlib.analysis.stats import Interval
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
    halved,
    part,
)
from sptlib.polar import augment
from sptlib.polar.config import AugmentConfig, PolarRun, QLoRAConfig
from sptlib.polar.labels import LANGUAGES

#: fields of the table of settings, in its order, and what they are called there
_SHOWN = {
    "compute_dtype": "4-bit weights are unpacked to",
    "rank": "LoRA rank",
    "alpha": "LoRA alpha",
    "dropout": "LoRA dropout",
    "lr": "rate (constant after warm-up)",
    "warmup_ratio": "share of warm-up",
    "batch_size": "batch",
    "epochs": "epochs",
    "steps": "steps (0: by epochs)",
    "max_length": "tokens per post",
    "eval_steps": "steps between evaluations (0: 500 or 1,000)",
    "rate": "copies of each kind",
}


def settings(run: PolarRun) -> pd.DataFrame:
    """The published settings beside those of a run."""
    published = asdict(QLoRAConfig()) | asdict(AugmentConfig())
    own = asdict(run.qlora) | asdict(run.augment)
    rows = [
        {"setting": title, "published": published[name], "this page": own[name]}
        for name, title in _SHOWN.items()
    ]
    return pd.DataFrame(rows).set_index("setting").astype(str)


def drops(rows: pd.DataFrame, bases: Sequence[str]) -> dict[str, Interval]:
    """How much macro-F1 each form of the test posts costs, by base and copies.

    Args:
        rows: of `sptlib.experiments.polarization.table`, of one subtask.
        bases: in their order.

    Returns:
        Intervals of clean − form over seeds by ``"BASE, COPIES: clean − FORM"``.
    """
    forms = by_form(rows, FORMS[1:])
    return {
        f"{base}, {copies}: clean − {form}": stats.interval(some["drop"].to_numpy())
        for base in bases
        for copies in dict.fromkeys(rows["copies"])
        for form in FORMS[1:]
        if len(some := part(forms, base=base, copies=copies, form=form))
    }


def doses(rows: pd.DataFrame, forms: Sequence[str] = ("homoglyph", "upper")) -> pd.DataFrame:
    """Whether a rate of copies brings a drop to half of what it is without, by base and form.

    Args:
        rows: of `sptlib.experiments.polarization.table`, of one subtask.
        forms: of the test posts.
    """
    found = {}
    for base, some in rows.groupby("base", sort=False):
        for form in forms if NO_COPIES in set(some["copies"]) else ():
            for copies in dict.fromkeys(some["copies"]):
                drop = stats.interval(part(by_form(some, [form]), copies=copies)["drop"].to_numpy())
                shown = {"drop (points)": drop.text(100, 1)}
                if copies != NO_COPIES:
                    less = halved(some, form, with_=copies)
                    shown["drop − half of the drop without"] = less.text(100, 1)
                    shown["at most half?"] = _at_most(less)
                found[base, form, copies] = shown
    table = pd.DataFrame.from_dict(found, orient="index").fillna("")
    if found:
        table.index = pd.MultiIndex.from_tuples(found, names=["base", "test posts", "copies"])
    return table


def _at_most(difference: Interval) -> str:
    """An answer to "below 0?" by the interval."""
    return {"yes": "no", "no": "yes"}.get(difference.answer(), "open")


def comparisons(
    rows: pd.DataFrame, pairs: Sequence[tuple[str, str]], value: str = "macro_f1_clean"
) -> dict[str, Interval]:
    """Paired differences a − b of arms over the seeds that both have, by subtask."""
    return {
        f"subtask {number}: {a} − {b}": stats.paired(stats.common(some, a, b), value, a, b)
        for number, some in (rows.groupby("subtask", sort=False) if len(rows) else ())
        for a, b in pairs
        if {a, b} <= set(some["arm"])
    }


def language_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean macro-F1 over seeds: a row per language, a column per subtask, and their means.

    Args:
        rows: of `sptlib.experiments.polarization.by_language`.
    """
    means = rows.groupby(["language", "subtask"])["macro_f1"].mean().unstack()
    means.columns = [f"subtask {n}" for n in means.columns]
    means.loc["average"] = means.mean()
    means.insert(0, "name", [LANGUAGES.get(code, "") for code in means.index])
    return means.map(lambda v: v if isinstance(v, str) else "–" if pd.isna(v) else f"{v:.3f}")


def verdicts(rows: pd.DataFrame) -> list[str]:
    """The chapter's answers, from the study: one sentence per question.

    Args:
        rows: of `sptlib.experiments.polarization.table`, of the study.
    """
    one = part(rows, subtask=1)
    own = part(one, base=SELF)
    lost = drops(part(own, copies=NO_COPIES), [SELF])
    worst = max(lost, key=lambda name: lost[name].mean)
    lines = [f"The most expensive disguise is {worst.split('− ')[1]}: "
             f"{lost[worst].text(100, 1, 'points')}"]  # fmt: skip
    for form in ("homoglyph", "upper"):
        words = [
            f"{copies}: **{_at_most(halved(own, form, with_=copies))}**"
            for copies in (FEW, MANY, MOST)
            if copies in set(own["copies"])
        ]
        lines.append(f"Do copies bring what {form} costs to at most half? {', '.join(words)}")
    pairs = {
        "rotary": (f"{SELF}, {MANY}", f"{RANDOM}, {MANY}"),
        "learned": (f"{SELF}, {LEARNED}, {MANY}", f"{RANDOM}, {LEARNED}, {MANY}"),
    }
    for kind, (a, b) in pairs.items():
        gain = stats.paired(stats.common(one, a, b), "macro_f1_clean", a, b)
        answer = gain.answer()
        lines.append(
            f"Self-pretraining helps detection with {kind} positions: **{answer}** "
            f"({gain.text(100, 1, 'points')})"
        )
    return lines


def posts_table(posts: pd.DataFrame, n: int = 2) -> HTML:
    """The first posts of each language, with whether they are polarized.

    Args:
        posts: with ``lang``, ``text`` and ``polarization``.
        n: of each language.
    """
    rows = [
        {
            "language": LANGUAGES[post["lang"]],
            "post": f'<span dir="auto">{html.escape(post["text"])}</span>',
            "polarized": "yes" if post["polarization"] else "no",
        }
        for _, post in posts.groupby("lang", sort=False).head(n).iterrows()
    ]
    return _table(rows)


def forms_table(posts: pd.DataFrame, ids: Sequence[str], seed: int = 0) -> HTML:
    """Posts and their copies below each other; what a homoglyph or a joiner changed is marked.

    Args:
        posts: as for `sptlib.polar.augment.copies`.
        ids: of the posts that are shown.
        seed: of homoglyphs.
    """
    rows = []
    for language, forms in augment.examples(posts, ids, seed).iterrows():
        for form, text in forms.items():
            shown = _marked(forms["original"], text) if form == "homoglyph" else html.escape(text)
            rows.append(
                {
                    "language": LANGUAGES[str(language)] if form == "original" else "",
                    "form": form,
                    "post": f'<span dir="auto">{shown}</span>',
                }
            )
    return _table(rows)


def _marked(before: str, after: str) -> str:
    """A homoglyphed text with the letters that were replaced, and a sign for each joiner."""
    out, at = [], 0
    for character in after:
        if at < len(before) and character == before[at]:
            out.append(html.escape(character))
        elif character == augment.JOINER:
            out.append("<mark>·</mark>")
            continue
        else:
            out.append(f"<mark>{html.escape(character)}</mark>")
        at += 1
    return "".join(out)


def _table(rows: list[dict]) -> HTML:
    table = pd.DataFrame(rows)
    return HTML(table.to_html(escape=False, classes="table", border=0, index=False))


def tokens_kept(posts: pd.DataFrame, vocab_size: int, seed: int = 0) -> pd.DataFrame:
    """How many of a post's tokens its copies still have, and how long they are.

    Args:
        posts: with ``id``, ``lang``, ``text``; the tokenizer is trained on them.
        vocab_size: of the tokenizer.
        seed: of homoglyphs.

    Returns:
        A row per kind of copy: the mean share of tokens kept, counted with repetition, and the mean
        length as a multiple of the post's.
    """
    from sptlib.polar.base import train_tokenizer  # slow to import

    tokenizer = train_tokenizer(posts["text"].tolist(), vocab_size)

    def counted(texts: pd.Series) -> list[Counter]:
        ids = tokenizer(texts.tolist(), add_special_tokens=False)["input_ids"]
        return [Counter(one) for one in ids]

    before, rows = counted(posts["text"]), {}
    for kind in augment.KINDS:
        after = counted(augment.copies(posts, kind, seed)["text"])
        pairs = [(b, a) for b, a in zip(before, after, strict=True) if b.total()]
        rows[kind] = {
            "tokens kept": sum((b & a).total() / b.total() for b, a in pairs) / len(pairs),
            "length": sum(a.total() / b.total() for b, a in pairs) / len(pairs),
        }
    return pd.DataFrame.from_dict(rows, orient="index")
