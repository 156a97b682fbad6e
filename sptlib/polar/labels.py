"""POLAR's labels, subtasks and languages (SemEval-2026 Task 9)."""

from dataclasses import dataclass

from sptlib.errors import ConfigError


@dataclass(frozen=True)
class Subtask:
    """One of the three questions.

    Attributes:
        number: 1, 2 or 3.
        name: as the task calls it.
        labels: the columns, in the order of the files; several can hold at once, unless it is one.
    """

    number: int
    name: str
    labels: tuple[str, ...]

    @property
    def binary(self) -> bool:
        """Whether it is one yes or no, rather than several at once."""
        return len(self.labels) == 1


SUBTASKS = {
    1: Subtask(1, "detection", ("polarization",)),
    2: Subtask(
        2, "type", ("political", "racial/ethnic", "religious", "gender/sexual", "other")
    ),
    3: Subtask(
        3,
        "manifestation",
        (
            "stereotype", "vilification", "dehumanization", "extreme_language",
            "lack_of_empathy", "invalidation",
        ),
    ),
}  # fmt: skip
#: all label columns, in the order of the public files
LABELS = tuple(label for subtask in SUBTASKS.values() for label in subtask.labels)
#: name by code (ISO 639-3) of the task's 22 languages
LANGUAGES = {
    "amh": "Amharic", "arb": "Arabic", "ben": "Bengali", "deu": "German", "eng": "English",
    "fas": "Persian", "hau": "Hausa", "hin": "Hindi", "ita": "Italian", "khm": "Khmer",
    "mya": "Burmese", "nep": "Nepali", "ori": "Odia", "pan": "Punjabi", "pol": "Polish",
    "rus": "Russian", "spa": "Spanish", "swa": "Swahili", "tel": "Telugu", "tur": "Turkish",
    "urd": "Urdu", "zho": "Chinese",
}  # fmt: skip


def subtask(number: int) -> Subtask:
    """One of the three; raises `ConfigError` for another number."""
    if number not in SUBTASKS:
        raise ConfigError(
            f"subtask is 1 (detection), 2 (type) or 3 (manifestation), found {number!r}"
        )
    return SUBTASKS[number]
