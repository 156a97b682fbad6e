"""Letters of other scripts that look the same, from Unicode's table of confusables.

The table (Unicode Technical Standard 39) comes with the package ``confusable-homoglyphs``. It has
much more than letters that pass for another in a text: mathematical alphabets, letters of the same
script, whole ligatures. What is kept is one letter for one letter, of the same case and direction
of writing, of another script.
"""

import unicodedata
from functools import cache

from sptlib.errors import ConfigError

#: letters: upper case, lower case, and of scripts without case
LETTERS = ("Lu", "Ll", "Lo")


@cache
def _table():
    try:
        from confusable_homoglyphs import categories, confusables
    except ImportError as error:
        raise ConfigError(
            "homoglyphs need the package confusable-homoglyphs: pip install 'sptlib[llm]'"
        ) from error
    return confusables.confusables_data, categories.alias


def script(character: str) -> str:
    """The script of a character as Unicode names it, in capitals; COMMON for shared ones."""
    return _table()[1](character)


def _similar(character: str) -> set[str]:
    """What looks the same, directly or through the form that the table knows them all by."""
    table, _ = _table()
    near = {item["c"] for item in table.get(character, ())}
    return near | {item["c"] for one in near for item in table.get(one, ())}


@cache
def homoglyphs(character: str) -> tuple[str, ...]:
    """Letters of other scripts that look like a letter, in the order of their numbers.

    Empty for what is no letter and for letters without any. None of them is a space, a line
    separator or a mark; none changes the direction of writing.
    """
    if len(character) != 1 or unicodedata.category(character) not in LETTERS:
        return ()
    kind, way = unicodedata.category(character), unicodedata.bidirectional(character)
    own = script(character)
    return tuple(
        sorted(
            other
            for other in _similar(character)
            if len(other) == 1
            and unicodedata.category(other) == kind
            and unicodedata.bidirectional(other) == way
            and script(other) not in (own, "COMMON", "INHERITED", "UNKNOWN")
        )
    )
