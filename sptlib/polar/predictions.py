"""Predictions as they are submitted: ``subtask_N/pred_LANG.csv``, a row per post."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from sptlib.errors import DataError
from sptlib.formats.base import writing
from sptlib.polar import data, files, metrics
from sptlib.polar.labels import SUBTASKS, Subtask


def write(posts: pd.DataFrame, given: np.ndarray, asked: Subtask, folder: Path) -> list[Path]:
    """Write the labels that were given; returns the files, one per language.

    Args:
        posts: with ``id`` and ``lang``.
        given: (N, L) of 0 and 1.
        asked: the subtask.
        folder: that of all subtasks.
    """
    table = pd.DataFrame(given, columns=list(asked.labels)).astype(int)
    table.insert(0, "id", posts["id"].to_numpy())
    paths = []
    for language in dict.fromkeys(posts["lang"]):
        path = folder / f"subtask_{asked.number}" / f"pred_{language}.csv"
        rows = table[(posts["lang"] == language).to_numpy()]
        with writing(path) as file:
            file.write(rows.to_csv(index=False, lineterminator="\n").encode())
        paths.append(path)
    return paths


def read(path: Path, asked: Subtask) -> pd.DataFrame:
    """One file: ``id`` and the labels as 0 and 1.

    Raises:
        DataError: for a missing or surplus column, a label other than 0 and 1, or an id twice.
    """
    (_, header), *rows = files.records(path)
    header = [name.strip() for name in header]
    wanted = ["id", *asked.labels]
    if sorted(header) != sorted(wanted):
        raise DataError(path, f"the columns should be {wanted}, found {header}", line=1)
    seen: set[str] = set()
    for line, cells in rows:
        if len(cells) != len(header):
            raise DataError(path, f"{len(header)} fields expected, found {len(cells)}", line=line)
        row = dict(zip(header, cells, strict=True))
        for label in asked.labels:
            if row[label].strip() not in ("0", "1"):
                raise DataError(path, f"{label} is 0 or 1, found {row[label]!r}", line=line)
        if row["id"] in seen:
            raise DataError(path, f"the id {row['id']!r} is there twice", line=line)
        seen.add(row["id"])
    table = pd.DataFrame([cells for _, cells in rows], columns=header)[wanted]
    return table.astype(dict.fromkeys(asked.labels, int))


def subtasks(folder: Path) -> list[int]:
    """The subtasks that there are predictions of; raises `DataError` if there are none."""
    found = [n for n in SUBTASKS if any((folder / f"subtask_{n}").glob("pred_*.csv"))]
    if not found:
        raise DataError(folder, "no predictions in it: expected subtask_1/pred_LANG.csv")
    return found


@dataclass(frozen=True)
class Score:
    """The score of predictions for one subtask.

    Attributes:
        table: by language: posts, macro-F1.
        average: the task's score, the mean over languages.
        notes: languages left out, classes that never occur.
    """

    table: pd.DataFrame
    average: float
    notes: tuple[str, ...]


def score(
    predicted: Path, posts: Path, split: str, asked: Subtask, languages: Sequence[str] = ()
) -> Score:
    """Compare predictions with the labels of a split.

    Args:
        predicted: folder of `write`.
        posts: folder in either layout.
        split: e.g. dev.
        asked: the subtask.
        languages: codes; empty = all that have labels.

    Raises:
        DataError: if a language has no predictions, or they are not of these posts.
    """
    truth = data.read(posts, split, asked.number, languages)
    labels, rows = list(asked.labels), {}
    for language, some in truth.table.groupby("lang", sort=True):
        path = predicted / f"subtask_{asked.number}" / f"pred_{language}.csv"
        if not path.is_file():
            raise DataError(path, "there is no such file; name the others with --languages")
        given = read(path, asked).set_index("id")
        missing = [i for i in some["id"] if i not in given.index]
        surplus = len(given) - (len(some) - len(missing))
        if missing or surplus:
            first = f", the first is {missing[0]!r}" if missing else ""
            raise DataError(
                path, f"{len(missing)} posts have no prediction{first}, {surplus} ids are no posts"
            )
        matched = given.loc[some["id"], labels].to_numpy()
        value = metrics.macro_f1(some[labels].to_numpy(int), matched)
        rows[language] = {"posts": len(some), "macro-F1": value}
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index.name = "language"
    notes = (*truth.notes, *metrics.without_a_class(truth.table, asked))
    return Score(table, float(table["macro-F1"].mean()), notes)
