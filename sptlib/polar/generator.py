"""Synthetic posts in the layout of POLAR, for where its data are not at hand.

Every sentence joins a subject with a predicate. A post is polarized if, and only if, a *group of
people* is the subject of a *hostile* predicate; which group gives the type, which predicate the
manifestation. Groups with other predicates, and things (buses, umbrellas) with hostile ones, occur
in both kinds of posts, so that no word decides by itself: one has to see what belongs together.

The phrases are this project's own, mild, about invented groups. Languages differ in how often posts
are polarized, as they do in POLAR.
"""

import hashlib
import json
import tomllib
from collections.abc import Container, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from sptlib.errors import unknown
from sptlib.polar.labels import LABELS, SUBTASKS
from sptlib.seeding import frozen_generator

#: bump it when the same stream gives other posts
VERSION = 1
#: languages that are labelled without manifestations, as some of POLAR's are
NO_MANIFESTATION = ("rus",)
#: how often posts of a language are polarized
PREVALENCE = {
    "eng": 0.4, "deu": 0.5, "spa": 0.5, "tur": 0.5, "rus": 0.3, "arb": 0.5, "hin": 0.7, "zho": 0.5,
}  # fmt: skip
#: how often each kind of sentence occurs among those that are not polarized
HARMLESS = {
    "a group, neutral": 0.4, "a thing, hostile": 0.2, "a thing, neutral": 0.1, "filler": 0.3,
}  # fmt: skip
_TYPES, _MANIFESTATIONS = SUBTASKS[2].labels, SUBTASKS[3].labels
_EMOJI = ("😀", "😡", "🙄", "👍", "🤷", "🔥", "😅")


@cache
def phrases() -> dict[str, dict]:
    """The phrases by language; see the comment at the head of ``phrases.toml``."""
    return tomllib.loads((Path(__file__).parent / "phrases.toml").read_text(encoding="utf-8"))


def languages() -> tuple[str, ...]:
    """Codes of the languages that there are phrases for."""
    return tuple(phrases())


def fingerprint() -> str:
    """SHA-256 of everything that the posts are made of."""
    parts = [VERSION, phrases(), PREVALENCE, HARMLESS, NO_MANIFESTATION, _EMOJI]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class _Writer:
    """Draws sentences of one language."""

    def __init__(self, language: str, rng: np.random.RandomState):
        self.words, self.rng, self.language = phrases()[language], rng, language

    def one(self, options: Sequence[str]) -> str:
        return options[self.rng.randint(len(options))]

    def chance(self, p: float) -> bool:
        return self.rng.random_sample() < p

    def group(self) -> tuple[str, str]:
        kind = self.one(_TYPES)
        return kind, self.one(self.words["groups"][kind])

    def hostile(self) -> tuple[str, str]:
        kind = self.one(_MANIFESTATIONS)
        return kind, self.one(self.words["hostile"][kind])

    def joined(self, subject: str, predicate: str) -> str:
        return subject + self.words["gap"] + predicate

    def extra(self) -> str:
        """Something that has no meaning here: a name, an address, a number, a face."""
        number = self.rng.randint(100, 200)
        return self.one(
            [
                f"@user{self.rng.randint(1000)}",
                f"https://example.org/{self.rng.randint(10_000)}",
                f"post{self.rng.randint(100)}@example.com",
                f"+1 202 555 0{number}",
                self.one(_EMOJI),
                self.one(_EMOJI),
            ]
        )

    def post(self, polarized: bool) -> tuple[str, set[str]]:
        """A post and its labels."""
        sentences, labels = [], set()
        if polarized:
            labels.add("polarization")
            for _ in range(self.rng.randint(1, 3)):
                (kind, subject), (way, predicate) = self.group(), self.hostile()
                labels |= {kind, way}
                sentences.append(self.joined(subject, predicate))
        n_more = self.rng.randint(0, 2) if polarized else self.rng.randint(1, 4)
        for _ in range(n_more):
            sentences.append(self.harmless())
        order = self.rng.permutation(len(sentences))
        parts = [self.sentence(sentences[i]) for i in order]
        if self.chance(0.5):
            parts.insert(self.rng.randint(len(parts) + 1), self.extra())
        return " ".join(parts), labels

    def harmless(self) -> str:
        what = self.rng.choice(len(HARMLESS), p=list(HARMLESS.values()))
        things, neutral = self.words["things"], self.words["neutral"]
        if what == 0:
            return self.joined(self.group()[1], self.one(neutral))
        if what == 1:
            return self.joined(self.one(things), self.hostile()[1])
        if what == 2:
            return self.joined(self.one(things), self.one(neutral))
        return self.one(self.words["fillers"])

    def sentence(self, words: str) -> str:
        first = "İ" if self.language == "tur" and words[0] == "i" else words[0].upper()
        end = self.words["stop"]
        if self.chance(0.15):
            end = "！" if self.language == "zho" else "!"
        return first + words[1:] + end


def splits(language: str, sizes: Mapping[str, int], seed: int) -> dict[str, pd.DataFrame]:
    """Several splits of one language, no text in two of them; the first ones are drawn first.

    Args:
        language: its code.
        sizes: posts by name of the split.
        seed: of the data.
    """
    found: dict[str, pd.DataFrame] = {}
    seen: set[str] = set()
    for split, n in sizes.items():
        found[split] = generate(language, split, n, seed, seen)
        seen.update(found[split]["text"])
    return found


def generate(
    language: str, split: str, n: int, seed: int, without: Container[str] = ()
) -> pd.DataFrame:
    """Posts of one language, no text twice.

    Args:
        language: its code.
        split: name of the split, which is a stream of its own.
        n: posts.
        seed: of the data.
        without: texts that shall not occur, such as those of other splits.

    Returns:
        n rows: ``id``, ``lang``, ``text`` and the label columns as 0, 1 or, where a language is
        labelled without manifestations, missing.

    Raises:
        ConfigError: for a language without phrases.
    """
    if language not in phrases():
        raise unknown("language of the synthetic posts", language, phrases())
    rng = frozen_generator("polar", seed, language, split)
    writer, rows, seen = _Writer(language, rng), [], set()
    while len(rows) < n:
        text, labels = writer.post(writer.chance(PREVALENCE[language]))
        if text in seen or text in without:
            continue
        seen.add(text)
        rows.append(
            {
                "id": f"{language}_{split}_{len(rows):05d}",
                "lang": language,
                "text": text,
                **{label: int(label in labels) for label in LABELS},
            }
        )
    table = pd.DataFrame(rows, columns=["id", "lang", "text", *LABELS])
    table = table.astype(dict.fromkeys(LABELS, "Int8"))
    if language in NO_MANIFESTATION:
        table[list(_MANIFESTATIONS)] = pd.NA
    return table
