"""Copies of posts: what changes, what stays, and that the seed decides."""

import unicodedata

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sptlib.errors import ConfigError
from sptlib.polar import augment, generator
from sptlib.polar.augment import KINDS, anonymise, homoglyph, lower, upper
from sptlib.polar.homoglyphs import homoglyphs, script
from sptlib.polar.labels import LABELS

pytest.importorskip("phonenumbers")
pytest.importorskip("confusable_homoglyphs")

texts = st.text(max_size=80)


@pytest.fixture(scope="module")
def posts():
    names = ("eng", "tur", "zho", "rus")
    return pd.concat([generator.generate(n, "train", 60, 0) for n in names], ignore_index=True)


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("mail anna.b+x@mail.example.org now", "eng", "mail [EMAIL] now"),
        ("(anna@example.org)", "eng", "([EMAIL])"),
        ("thanks @anna_b, and @Ünal!", "eng", "thanks [USER], and [USER]!"),
        ("@anna@social.example says", "eng", "[USER] says"),
        ("call +49 30 901820 or (202) 555-0143", "eng", "call [PHONE] or [PHONE]"),
        ("call 030 901820", "deu", "call [PHONE]"),
        ("see https://example.org/@anna?x=1.", "eng", "see [URL]."),
        ("in 2024 we paid 1,250,000 for 12345 of them", "eng", None),
        ("on 12.05.2024 at 10:30, 50 %", "deu", None),
        ("no address: a @ b, c@d, x@@y, 5@3", "eng", None),
        ("www.example.org/a_(b).", "eng", "[URL]."),
        ("https://example.org/wiki/Köln!", "deu", "[URL]!"),
        ("@नरेंद्र_मोदी जी", "hin", "[USER] जी"),
        ("@مُحَمَّد hi", "arb", "[USER] hi"),
        ("नमन@उदाहरण.भारत hi", "hin", "[EMAIL] hi"),
        ("看https://example.cn/A6abc谢谢你们", "zho", "看[URL]谢谢你们"),
        ("发给me@example.com谢谢", "zho", "发给[EMAIL]谢谢"),
        ("谢谢@小明，你好", "zho", "谢谢[USER]，你好"),
        (
            "@user987今天天气很好我们都去公园玩吧好吗",
            "zho",
            "[USER]今天天气很好我们都去公园玩吧好吗",
        ),
        ("+49 30 901820@न2", "eng", "[PHONE][USER]"),
    ],
)
def test_anonymise_takes_addresses_and_leaves_numbers(text, language, expected):
    assert anonymise(text, language) == (text if expected is None else expected)


@given(texts)
def test_anonymise_twice_is_once(text):
    once = anonymise(text, "eng")
    assert anonymise(once, "eng") == once


@pytest.mark.parametrize(
    ("change", "text", "language", "expected"),
    [
        (lower, "ISTANBUL İYİ", "tur", "ıstanbul iyi"),
        (upper, "iyi ılık", "tur", "İYİ ILIK"),
        (upper, "iyi", "eng", "IYI"),
        (upper, "Straße", "deu", "STRASSE"),
        (lower, "ΟΔΟΣ", "eng", "οδος"),
        (lower, "你好, नमस्ते, مرحبا", "zho", "你好, नमस्ते, مرحبا"),
    ],
)
def test_case_follows_the_language(change, text, language, expected):
    assert change(text, language) == expected


@given(texts)
def test_case_is_settled_after_once(text):
    assert lower(lower(text)) == lower(text)
    assert upper(upper(text)) == upper(text)


@given(texts, st.integers(0, 2**31), st.floats(0, 1))
def test_homoglyphs_replace_letters_by_letters_that_look_alike(text, seed, rate):
    draw = torch.Generator().manual_seed(seed)
    out = homoglyph(text, draw, rate, 0.0)
    assert len(out) == len(text)
    for before, after in zip(text, out, strict=True):
        if before == after:
            continue
        assert after in homoglyphs(before)
        assert unicodedata.category(after) == unicodedata.category(before)
        assert unicodedata.bidirectional(after) == unicodedata.bidirectional(before)
        assert script(after) != script(before)
    assert len(out.splitlines()) == len(text.splitlines())


@given(texts, st.integers(0, 2**31))
def test_without_its_joiners_a_joined_text_is_the_text(text, seed):
    text = text.replace(augment.JOINER, "")
    out = homoglyph(text, torch.Generator().manual_seed(seed), 0.0, 0.5)
    assert out.replace(augment.JOINER, "") == text
    assert len(out.splitlines()) == len(text.splitlines())


def test_homoglyphs_are_as_frequent_as_published():
    draw = torch.Generator().manual_seed(0)
    text = "aceo" * 5000
    out = homoglyph(text, draw)
    joined = out.count(augment.JOINER)
    replaced = sum(a != b for a, b in zip(out.replace(augment.JOINER, ""), text, strict=True))
    assert replaced / len(text) == pytest.approx(0.05, abs=0.01)
    assert joined / len(text) == pytest.approx(0.05, abs=0.01)


@given(st.integers(0, 100), st.floats(0, 1))
def test_augment_keeps_what_is_there_and_the_labels(seed, rate):
    posts = pd.concat([generator.generate(n, "train", 15, 1) for n in ("eng", "zho")])
    made = augment.augment(posts, seed, rate)
    original = made.posts[made.posts["kind"] == "original"]
    assert sorted(original["id"]) == sorted(posts["id"])
    assert not made.posts["text"].duplicated().any()
    before = posts.set_index("id")
    for kind in KINDS:
        copies = made.posts[made.posts["kind"] == kind]
        assert len(copies) <= round(rate * len(posts)) == made.counts.loc[kind, "drawn"]
        for _, copy in copies.iterrows():
            source = before.loc[copy["id"].removesuffix(f"_{kind}")]
            assert list(copy[list(LABELS)]) == list(source[list(LABELS)])
            assert copy["lang"] == source["lang"]


def test_the_seed_decides_and_nothing_else(posts):
    first, again = augment.augment(posts, 3), augment.augment(posts, 3)
    pd.testing.assert_frame_equal(first.posts, again.posts)
    assert not first.posts["text"].equals(augment.augment(posts, 4).posts["text"])
    pd.testing.assert_series_equal(  # a post's homoglyphs do not depend on its company
        augment.copies(posts, "homoglyph", 3)["text"].iloc[10:20],
        augment.copies(posts.iloc[10:20], "homoglyph", 3)["text"],
    )


def test_scripts_without_case_are_said(posts):
    share = augment.unchanged_by_language(posts, "upper")
    assert share["zho"] > 0.5 > share["eng"]
    assert augment.caseless(posts) == ["zho"]
    assert any("came out unchanged" in line for line in augment.augment(posts, 0).sentences())


def test_kinds_and_rates_are_checked(posts):
    with pytest.raises(ConfigError, match="did you mean 'upper'"):
        augment.augment(posts, 0, {"uper": 0.1})
    with pytest.raises(ConfigError, match="between 0 and 1"):
        augment.augment(posts, 0, 1.5)
    only = augment.augment(posts, 0, {"lower": 0.5})
    assert set(only.posts["kind"]) <= {"original", "lower"}


def test_examples_stand_side_by_side(posts):
    ids = posts["id"].iloc[[0, 100]]
    table = augment.examples(posts, ids)
    assert list(table.columns) == ["original", *KINDS]
    assert list(table["original"]) == list(posts.set_index("id").loc[ids, "text"])
