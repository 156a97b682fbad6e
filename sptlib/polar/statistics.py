"""What is in a folder of posts: numbers by split, language and label, and their picture."""

from pathlib import Path

import pandas as pd

from sptlib.polar import data
from sptlib.polar.labels import LABELS, LANGUAGES


def table(posts: pd.DataFrame) -> pd.DataFrame:
    """A row per split and language: posts, repeated texts, characters, share of each label.

    Args:
        posts: with ``split`` (where there is none, it is left out), ``lang``, ``text``, labels.

    Returns:
        Indexed by split and language. Shares are of the posts that have the label's column filled;
        missing where none has.
    """
    by = [c for c in ("split", "lang") if c in posts]
    rows = {}
    for name, some in posts.groupby(by, sort=False):
        shares = {label: _share(some[label]) for label in LABELS if label in some}
        rows[name] = {
            "language": LANGUAGES[some["lang"].iloc[0]],
            "posts": len(some),
            "twice": int(some["text"].duplicated().sum()),
            "characters": int(some["text"].str.len().median()),
            **shares,
        }
    found = pd.DataFrame.from_dict(rows, orient="index")
    found.index = pd.MultiIndex.from_tuples(rows, names=by)
    return found


def _share(values: pd.Series) -> float:
    known = values.dropna().astype(float)
    return float(known.mean()) if len(known) else float("nan")


def of_folder(folder: Path, languages: tuple[str, ...] = ()) -> pd.DataFrame:
    """All posts of a folder with a column ``split``; in the competition layout all labels together.

    Raises:
        DataError: as `sptlib.polar.data.read`.
    """
    pieces = []
    numbers = [n for n in (1, 2, 3) if (folder / f"subtask{n}").is_dir()] or [1]
    for split in data.splits(folder, numbers[0]):
        together = None
        for number in numbers:
            if split not in data.splits(folder, number):
                continue  # a subtask has its own files; what is there but damaged is refused
            posts = data.read(folder, split, number, languages, labelled=False).table
            if together is None:
                together = posts
            else:
                both = together.set_index(["lang", "id"]), posts.set_index(["lang", "id"])
                together = both[0].combine_first(both[1]).reset_index()
        pieces.append(together.assign(split=split))
    return pd.concat(pieces, ignore_index=True)
