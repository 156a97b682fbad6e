"""Posts as others would have written them: anonymised, lower-case, upper-case, homoglyphed.

Macko et al. (2026) add to the training posts such copies of a share of them, so that the model does
not fall for the disguise. The labels stay.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import pandas as pd
import torch

from sptlib.errors import ConfigError, unknown
from sptlib.polar.homoglyphs import homoglyphs
from sptlib.seeding import generator

#: the published rate of each kind, as a share of the training posts
RATE = 0.05
#: the published probability that a character is replaced, or followed by a joiner
CHARACTERS = 0.05
JOINER = "\u200d"

_SPACELESS = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Khmer}\p{Myanmar}\p{Thai}\p{Lao}"
#: letters, marks and digits of scripts that have spaces between words
_WORD = rf"[[\p{{L}}\p{{M}}\p{{N}}_]--[{_SPACELESS}]]"
_ADDRESS = rf"(?:{_WORD}|[-.~:/?#@!$&'*+,;=%])"
_PAIR = rf"\({_ADDRESS}*\)"
_DOMAIN = rf"(?:(?:{_WORD}|-)+\.)+(?=\p{{L}}){_WORD}{{2,}}"
_NAME = rf"(?:{_WORD}|[\u200c\u200d])+(?:@{_DOMAIN})?"
_PATTERNS = {
    # an address does not end in a punctuation mark; its brackets are pairs
    "[URL]": rf"(?i:https?://|www\.)(?:{_ADDRESS}|{_PAIR})*(?:{_WORD}|[/#=&%+~]|{_PAIR})",
    "[EMAIL]": rf"(?<!(?:{_WORD}|[.%+\-@]))(?:{_WORD}|[.%+\-])+@{_DOMAIN}",
    "[USER]": rf"(?<!(?:{_WORD}|@))@(?:(?>{_NAME})(?![{_SPACELESS}])|"
    r"[\p{L}\p{M}\p{N}_\-]{1,15}(?![\p{L}\p{M}\p{N}_])|"
    rf"{_NAME})",
}


@cache
def _patterns() -> dict:
    """The patterns of what is replaced, in the order in which they are."""
    try:
        import regex
    except ImportError as error:
        raise ConfigError(
            "anonymising needs the package regex: pip install 'sptlib[llm]'"
        ) from error
    return {mark: regex.compile(text, regex.VERSION1) for mark, text in _PATTERNS.items()}


#: where a number without country code is looked for
REGIONS = {
    "amh": "ET", "arb": "EG", "ben": "BD", "deu": "DE", "eng": "US", "fas": "IR", "hau": "NG",
    "hin": "IN", "ita": "IT", "khm": "KH", "mya": "MM", "nep": "NP", "ori": "IN", "pan": "IN",
    "pol": "PL", "rus": "RU", "spa": "ES", "swa": "KE", "tel": "IN", "tur": "TR", "urd": "PK",
    "zho": "CN",
}  # fmt: skip


def anonymise(text: str, language: str = "") -> str:
    """E-mail addresses, mentions and telephone numbers replaced by [EMAIL], [USER], [PHONE].

    In this order, as published; before them, which is an addition of this project, web addresses by
    [URL], so that what is inside an address is not taken for one of the others. A telephone number
    is what libphonenumber holds for a valid one, in the language's main country or with a country
    code; other numbers stay. A second time changes nothing.

    In scripts without spaces between words an address ends where the script begins, and a name as
    on Weibo: at a space or mark, at most 15 characters on.

    Args:
        text: of a post.
        language: its code; "" = only numbers with a country code.
    """
    while True:  # a number that is gone may have stood before an "@"
        before = text
        for mark, pattern in _patterns().items():
            text = pattern.sub(mark, text)
        text = _without_numbers(text, language)
        if text == before:
            return text


def _without_numbers(text: str, language: str) -> str:
    if sum(c.isdigit() for c in text) < 5:  # no such number, and looking for one takes time
        return text
    try:
        from phonenumbers import PhoneNumberMatcher
    except ImportError as error:
        raise ConfigError(
            "anonymising needs the package phonenumbers: pip install 'sptlib[llm]'"
        ) from error
    for match in reversed(list(PhoneNumberMatcher(text, REGIONS.get(language)))):
        text = text[: match.start] + "[PHONE]" + text[match.end :]
    return text


_TURKISH_LOWER = str.maketrans({"I": "ı", "İ": "i"})
_TURKISH_UPPER = str.maketrans({"ı": "I", "i": "İ"})


def lower(text: str, language: str = "") -> str:
    """Lower case by Unicode's rules (a sigma at the end of a word is ς), Turkish by its own."""
    return (text.translate(_TURKISH_LOWER) if language == "tur" else text).lower()


def upper(text: str, language: str = "") -> str:
    """Upper case by Unicode's rules (ß becomes SS), Turkish by its own (i becomes İ)."""
    return (text.translate(_TURKISH_UPPER) if language == "tur" else text).upper()


def homoglyph(
    text: str,
    draw: torch.Generator,
    rate: float = CHARACTERS,
    joiner_rate: float = CHARACTERS,
) -> str:
    """Some letters replaced by others that look the same, some characters followed by a joiner.

    Args:
        text: of a post.
        draw: of random numbers, three for each character, whatever the rates.
        rate: probability that a letter is replaced by one of its homoglyphs.
        joiner_rate: probability that a zero-width joiner (U+200D) follows a character; 0 = none.
    """
    if not text:
        return text
    chance = torch.rand(len(text), 3, generator=draw, dtype=torch.float64).tolist()
    out = []
    for character, (replaced, which, joined) in zip(text, chance, strict=True):
        similar = homoglyphs(character) if replaced < rate else ()
        out.append(similar[int(which * len(similar))] if similar else character)
        if joined < joiner_rate and character not in "\r\n\u2028\u2029":
            out.append(JOINER)
    return "".join(out)


#: the kinds of copies, in the published order
KINDS = ("anonymised", "lower", "upper", "homoglyph")
_PLAIN: dict[str, Callable[[str, str], str]] = {
    "anonymised": anonymise,
    "lower": lower,
    "upper": upper,
}


def copies(
    posts: pd.DataFrame, kind: str, seed: int, joiner_rate: float = CHARACTERS
) -> pd.DataFrame:
    """Every post in another form; ids get the kind as an ending, labels and languages stay.

    Args:
        posts: with columns ``id``, ``lang``, ``text`` and labels.
        kind: one of `KINDS`.
        seed: of homoglyphs; a post's do not depend on the other posts.
        joiner_rate: of homoglyphs.

    Raises:
        ConfigError: for an unknown kind.
    """
    if kind not in KINDS:
        raise unknown("kind of augmentation", kind, KINDS)
    if kind == "homoglyph":
        texts = [
            homoglyph(text, generator(seed, kind, str(name)), joiner_rate=joiner_rate)
            for name, text in zip(posts["id"], posts["text"], strict=True)
        ]
    else:
        change = _PLAIN[kind]
        texts = [change(t, lang) for t, lang in zip(posts["text"], posts["lang"], strict=True)]
    return posts.assign(id=posts["id"].astype(str) + f"_{kind}", text=texts)


@dataclass(frozen=True)
class Augmented:
    """Training posts with their copies.

    Attributes:
        posts: everything, without repeated texts, shuffled; the column ``kind`` says which copy a
            row is ("original" for none).
        counts: by kind, how many posts were drawn, how many came out as they were (scripts without
            case, nothing to anonymise) and how many were added.
    """

    posts: pd.DataFrame
    counts: pd.DataFrame

    def sentences(self) -> list[str]:
        """What was done, a line per kind."""
        return [
            f"{kind}: {row.drawn} drawn, {row.unchanged} came out unchanged, {row.added} added"
            for kind, row in self.counts.iterrows()
        ]


def augment(
    posts: pd.DataFrame,
    seed: int,
    rates: Mapping[str, float] | float = RATE,
    joiner_rate: float = CHARACTERS,
) -> Augmented:
    """Add copies of each kind of a share of the training posts, drawn for each kind by itself.

    Args:
        posts: with columns ``id``, ``lang``, ``text`` and labels.
        seed: of what is drawn, of homoglyphs, of the order.
        rates: copies of each kind as a share of the posts, between 0 and 1; one for all, or by
            kind, where a missing one is 0.
        joiner_rate: of homoglyphs.

    Raises:
        ConfigError: for an unknown kind or a rate that is no share.
    """
    wanted = rates if isinstance(rates, Mapping) else dict.fromkeys(KINDS, rates)
    for kind, rate in wanted.items():
        if kind not in KINDS:
            raise unknown("kind of augmentation", kind, KINDS)
        if not 0 <= rate <= 1:
            raise ConfigError(f"the rate of {kind} must be between 0 and 1, found {rate}")
    original = posts.assign(kind="original")
    pieces, counts = [original], {}
    seen = set(posts["text"])
    for kind in KINDS:
        n = round(wanted.get(kind, 0.0) * len(posts))
        order = torch.randperm(len(posts), generator=generator(seed, "augment", kind))
        some = copies(posts.iloc[order[:n].tolist()], kind, seed, joiner_rate)
        before = posts["text"].iloc[order[:n].tolist()]
        unchanged = int((some["text"].to_numpy() == before.to_numpy()).sum())
        new = some[~some["text"].isin(seen) & ~some["text"].duplicated()]
        seen.update(new["text"])
        pieces.append(new.assign(kind=kind))
        counts[kind] = {"drawn": n, "unchanged": unchanged, "added": len(new)}
    together = pd.concat(pieces, ignore_index=True)
    order = torch.randperm(len(together), generator=generator(seed, "augment", "order")).tolist()
    table = pd.DataFrame.from_dict(counts, orient="index").astype(int)
    return Augmented(together.iloc[order].reset_index(drop=True), table)


def unchanged_by_language(posts: pd.DataFrame, kind: str, seed: int = 0) -> pd.Series:
    """Share of each language's posts that a kind of copy leaves as they are.

    Args:
        posts: as for `copies`.
        kind: one of `KINDS`.
        seed: of homoglyphs.
    """
    same = copies(posts, kind, seed)["text"].to_numpy() == posts["text"].to_numpy()
    return pd.Series(same, index=posts.index).groupby(posts["lang"]).mean()


def caseless(posts: pd.DataFrame) -> list[str]:
    """Languages most of whose letters have no case, so that lower and upper leave the text alone.

    Args:
        posts: with columns ``lang`` and ``text``.
    """
    found = []
    for language, texts in posts.groupby("lang")["text"]:
        letters = [c for text in texts for c in text if c.isalpha()]
        if sum(c.lower() != c.upper() for c in letters) < len(letters) / 2:
            found.append(str(language))
    return found


def examples(posts: pd.DataFrame, ids: Iterable[str], seed: int = 0) -> pd.DataFrame:
    """Posts beside their copies: a row per post, a column per kind.

    Args:
        posts: as for `copies`.
        ids: of the posts.
        seed: of homoglyphs.
    """
    some = posts.set_index("id", drop=False).loc[list(ids)]
    forms = {"original": some["text"].to_numpy()}
    forms |= {kind: copies(some, kind, seed)["text"].to_numpy() for kind in KINDS}
    return pd.DataFrame(forms, index=some["lang"].to_numpy())
