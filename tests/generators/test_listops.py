"""The ListOps generator against a second generator and a second evaluator, written recursively."""

import random
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sptlib.errors import ConfigError
from sptlib.formats import listops as files
from sptlib.generators import listops
from sptlib.generators.listops import CLOSE, SYMBOLS, Grammar

SAMPLE = Path(__file__).parents[2].parent / "shared" / "samples" / "listops-1000"
SHORT = Grammar(max_depth=6, max_args=6, min_length=2, max_length=60)

# --- the second route: one expression at a time, by recursion, as it was published ----------------


def recursive(rng: random.Random, depth: int, max_depth: int = 10) -> tuple[list[str], int]:
    """An expression as words, and its length (operators, digits, closing brackets)."""
    if depth >= max_depth or rng.random() > 0.25:
        return [str(rng.choice(range(10)))], 1
    words, length = [], 2
    for _ in range(rng.randint(2, 10)):
        part, n = recursive(rng, depth + 1, max_depth)
        words += part
        length += n
    return [rng.choice(["[MIN", "[MAX", "[MED", "[SM"]), *words, "X"], length


def published(seed: int, n: int) -> list[list[str]]:
    rng, found = random.Random(seed), []
    while len(found) < n:
        words, length = recursive(rng, 1)
        if 500 < length < 2000:
            found.append(words)
    return found


def value(words: list[str]) -> int:
    """Evaluate by recursive descent, from the front, consuming the list."""
    head = words.pop(0)
    if head.isdigit():
        return int(head)
    args = []
    while words[0] != "X":
        args.append(value(words))
    words.pop(0)
    by_name = {
        "[MIN": min,
        "[MAX": max,
        "[MED": lambda a: int(statistics.median(a)),
        "[SM": lambda a: sum(a) % 10,
    }
    return by_name[head](args)


def words_of(row: np.ndarray) -> list[str]:
    return [SYMBOLS[t] for t in row.tolist()]


# --- the generator ------------------------------------------------------------------------------


def test_a_hundred_thousand_values_agree_with_the_second_evaluator():
    short = [listops.block(SHORT, i, "values") for i in range(60)]
    long = [listops.block(Grammar(), i, "values") for i in range(3)]
    rows = listops.join([*short, *long])
    assert len(rows) >= 100_000
    assert (rows.lengths > 500).sum() > 1000
    wrong = [
        i
        for i, (row, target) in enumerate(zip(rows.rows(), rows.targets.tolist(), strict=True))
        if value(words_of(row)) != target
    ]
    assert wrong == []


def test_lengths_depths_and_values_are_those_of_the_published_recursion():
    """Two-sample tests on 1,500 expressions each; a difference of 7 % in any bin would show."""
    theirs = published(seed=1, n=1500)
    ours = listops.generate(Grammar(), 1500, "compare")
    lengths = [len(words) for words in theirs]
    assert stats.ks_2samp(lengths, ours.lengths).pvalue > 1e-3
    assert set(ours.depths.tolist()) == {10}
    counts = np.array([
        np.bincount(ours.targets, minlength=10),
        np.bincount([value(list(words)) for words in theirs], minlength=10),
    ])
    assert stats.chi2_contingency(counts).pvalue > 1e-3
    heads = np.array([
        np.bincount([row[0] for row in ours.rows()], minlength=15)[10:14],
        np.bincount([SYMBOLS.index(w[0]) for w in theirs], minlength=15)[10:14],
    ])
    assert stats.chi2_contingency(heads).pvalue > 1e-3


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="no samples here")
def test_the_recursion_is_the_published_one():
    """Seed 0 of it gives the very expressions of the sample, which the public generator made."""
    theirs = {tuple(words) for words in published(seed=0, n=600)}
    sample = listops.join(
        files.read(SAMPLE / f"basic_{split}.tsv") for split in ("train", "val", "test")
    )
    assert {tuple(words_of(row)) for row in sample.rows()} == theirs
    assert all(files.evaluate(r) == t for r, t in zip(sample.rows(), sample.targets, strict=True))


@settings(max_examples=15)
@given(
    depth=st.integers(2, 6),
    args=st.integers(2, 5),
    low=st.integers(0, 20),
    span=st.integers(20, 60),
    p=st.floats(0.2, 0.6),
)
def test_expressions_keep_to_the_grammar(depth, args, low, span, p):
    grammar = Grammar(depth, args, low, low + span, p)
    rows = listops.block(grammar, 0, "grammar")
    assert len(rows.tokens) == rows.lengths.sum()
    for row, deepest in list(zip(rows.rows(), rows.depths, strict=True))[:50]:
        assert low < len(row) < low + span
        text = files.to_text(row)
        assert np.array_equal(files.tokenise(text), row)
        assert files.depth(row) == deepest <= depth
        n_args, opened = [], []
        for token in row.tolist():
            if token == CLOSE:
                n_args.append(opened.pop())
            if opened and token < 10:
                opened[-1] += 1
            elif 10 <= token < CLOSE:
                if opened:
                    opened[-1] += 1
                opened.append(0)
        assert all(2 <= n <= args for n in n_args)


def test_same_stream_same_bytes_and_other_stream_other_bytes():
    a, b = (listops.generate(SHORT, 300, 7, "train") for _ in range(2))
    assert a.tokens.tobytes() == b.tokens.tobytes()
    assert listops.generate(SHORT, 300, 8, "train").tokens.tobytes() != a.tokens.tobytes()
    few = listops.generate(SHORT, 100, 7, "train")
    assert few.tokens.tobytes() == a.tokens.tobytes()[: len(few.tokens)]


def test_bytes_of_a_stream_are_pinned():
    """Whoever changes them bumps `VERSION`: cached data sets would be others."""
    assert listops.VERSION == 2
    rows = listops.generate(SHORT, 3, "pinned")
    assert [" ".join(words_of(row)) for row in rows.rows()] == PINNED


def test_expressions_are_distinct():
    rows = listops.generate(Grammar(3, 3, 2, 8), 400, "distinct")
    assert len({row.tobytes() for row in rows.rows()}) == 400
    taken = {listops.mark(row) for row in rows.rows()}
    more = listops.generate(Grammar(3, 3, 2, 8), 100, "distinct", taken=taken)
    assert not {row.tobytes() for row in more.rows()} & {row.tobytes() for row in rows.rows()}


def test_a_grammar_with_too_few_expressions_says_so(monkeypatch):
    monkeypatch.setattr(listops, "PATIENCE", 3)
    with pytest.raises(ConfigError, match=r"found only 400 distinct .* of the 1000 wanted"):
        listops.generate(Grammar(2, 2, 2, 5), 1000, "few")  # 4 operators × 100 pairs of digits


def test_padding_cuts_and_fills():
    rows = listops.generate(SHORT, 50, "pad")
    wide = rows.padded(80)
    narrow = rows.padded(10)
    for i, row in enumerate(rows.rows()):
        assert np.array_equal(wide[i, : len(row)], row)
        assert not wide[i, len(row) :].any()
        assert np.array_equal(narrow[i, : min(10, len(row))], row[:10])
    part = rows.take(np.array([3, 1]))
    assert np.array_equal(part.padded(80), wide[[3, 1]])
    assert part.targets.tolist() == rows.targets[[3, 1]].tolist()
    assert len(part) == 2


PINNED = [
    "[SM 9 3 X",
    "[MIN 8 [MIN [MIN 0 0 9 0 2 7 X 9 8 2 X 0 X",
    "[MED 2 0 9 [MIN 4 8 3 1 1 X X",
]
