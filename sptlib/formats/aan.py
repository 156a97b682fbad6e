"""Retrieval in the official files: pairs of papers, and whether one cites the other.

``new_aan_pairs.{train,eval,test}.tsv`` of the Long Range Arena (Tay et al. 2021), from the ACL
Anthology Network (Radev et al. 2013): no header, five fields between tabs, nothing is quoted: label
(0 or 1, also written 0.0 and 1.0), two ids, two texts.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sptlib.errors import DataError
from sptlib.formats.base import Report, lines, listed, writing

OFFICIAL = {"train": 147_086, "eval": 18_090, "test": 17_437}
#: bytes of one text in the LRA
LRA_LENGTH = 4000

_LABELS = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}
_FIELDS = "label, id, id, text, text"


@dataclass(frozen=True)
class Pairs:
    """N pairs; the n-th entries belong together.

    Attributes:
        labels: (N,) uint8, 1 where one paper cites the other.
        ids1, ids2: N names of papers.
        texts1, texts2: N texts as UTF-8 bytes; equal texts are one object.
    """

    labels: np.ndarray
    ids1: list[str]
    ids2: list[str]
    texts1: list[bytes]
    texts2: list[bytes]

    def __len__(self) -> int:
        return len(self.labels)


def read(path: Path) -> Pairs:
    """The pairs of one file, in its order.

    LF or CRLF ends a line; a CR inside of a text, quotation marks and a byte order mark do no harm.

    Raises:
        DataError: with the line, for a wrong number of fields, another label, bytes that are no
            UTF-8; without, for a missing or empty file. An empty text is none: there are papers
            without an abstract.
    """

    def fail(error: DataError) -> None:
        raise error

    labels, ids1, ids2, texts1, texts2 = [], [], [], [], []
    known: dict[bytes, bytes] = {}  # a paper is in many pairs, and kept once
    for label, id1, id2, text1, text2 in _rows(Path(path), fail):
        labels.append(label)
        ids1.append(id1)
        ids2.append(id2)
        texts1.append(known.setdefault(text1, text1))
        texts2.append(known.setdefault(text2, text2))
    return Pairs(np.array(labels, np.uint8), ids1, ids2, texts1, texts2)


def write(path: Path, pairs: Pairs) -> None:
    """Writes pairs in the same layout, labels as 0.0 and 1.0.

    Raises:
        DataError: if `read` would not give the same back: no pairs, lists of different lengths, a
            label other than 0 or 1, a tab or line feed in a field, a CR at the end of a line, or
            bytes that are no UTF-8. No file is written then.
    """
    path = Path(path)
    if not len(pairs):
        raise DataError(path, "there are no pairs to write")
    columns = (pairs.labels, pairs.ids1, pairs.ids2, pairs.texts1, pairs.texts2)
    if len({len(column) for column in columns}) > 1:
        raise DataError(path, f"columns of lengths {[len(column) for column in columns]}")
    with writing(path) as file:
        for number, (label, *rest) in enumerate(zip(*columns, strict=True), 1):
            fields = [x.encode() if isinstance(x, str) else x for x in rest]
            file.write(b"\t".join([_written(path, number, label, fields), *fields]) + b"\n")


def find(folder: Path, split: str) -> Path:
    """Where a split is or should be: in the folder, or in the first one below that has any split.

    Raises:
        DataError: if neither the folder nor one directly below it has any split.
    """
    folder = Path(folder)
    below = sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
    for place in (folder, *below):
        if any(_path(place, name).is_file() for name in OFFICIAL):
            return _path(place, split)
    names = ", ".join(_path(Path(), name).name for name in OFFICIAL)
    raise DataError(folder, f"no pairs of papers here or in a folder below: expected {names}")


def check(folder: Path) -> Report:
    """Counts, balance and lengths of the three splits, and every fault."""
    report = Report()
    faults: list[DataError] = []
    try:
        for split in OFFICIAL:
            _describe(split, find(folder, split), report, faults)
    except DataError as error:
        faults.append(error)
    report.faults = listed(faults)
    return report


def _describe(split: str, path: Path, report: Report, faults: list[DataError]) -> None:
    n_of, lengths = [0, 0], []
    try:
        for label, _, _, *texts in _rows(path, faults.append):
            n_of[label] += 1
            lengths += map(len, texts)
    except DataError as error:  # a file that cannot be read on says nothing about the next one
        faults.append(error)
    n = sum(n_of)
    report.facts.append(f"{split}: {n:,} pairs, {n_of[1]:,} with label 1, {n_of[0]:,} with 0")
    if n:
        n_long = sum(length > LRA_LENGTH for length in lengths)
        report.facts.append(
            f"{split}: bytes per text: mean {statistics.fmean(lengths):,.0f}, median "
            f"{statistics.median(lengths):,.0f}, max {max(lengths):,}; {n_long:,} of "
            f"{len(lengths):,} are longer than {LRA_LENGTH:,} and would be truncated"
        )
        n_empty = lengths.count(0)
        if n_empty:
            report.notes.append(f"{split}: empty texts: {n_empty:,}")
    if n < OFFICIAL[split]:
        report.notes.append(f"{split}: {n:,} pairs; the official set has {OFFICIAL[split]:,}")


def _path(folder: Path, split: str) -> Path:
    return folder / f"new_aan_pairs.{split}.tsv"


def _rows(
    path: Path, fault: Callable[[DataError], None]
) -> Iterator[tuple[int, str, str, bytes, bytes]]:
    """Label, ids and texts of the lines without fault; `fault` is called for the others."""
    number = 0
    for number, line in lines(path):
        fields = line.split("\t")
        if len(fields) != 5:
            text = f"{len(fields)} fields between tabs, expected 5: {_FIELDS}"
            fault(DataError(path, text, line=number))
        elif fields[0] not in _LABELS:
            text = f"label {fields[0][:20]!r}, expected 0, 1, 0.0 or 1.0"
            fault(DataError(path, text, line=number))
        else:
            yield _LABELS[fields[0]], *fields[1:3], fields[3].encode(), fields[4].encode()
    if number == 0:
        fault(DataError(path, f"the file is empty; expected a pair per line: {_FIELDS}"))


def _written(path: Path, number: int, label: object, fields: list[bytes]) -> bytes:
    """The label's bytes, after it and the other fields were checked."""
    if label not in (0, 1):
        raise DataError(path, f"label {label}, expected 0 or 1", line=number)
    if any(b"\t" in x or b"\n" in x for x in fields) or fields[-1].endswith(b"\r"):
        text = "a tab, a line feed, or a CR at the end: put a space in its place"
        raise DataError(path, text, line=number)
    try:
        for field in fields:
            field.decode()
    except UnicodeDecodeError as error:
        raise DataError(path, "a field is not UTF-8 text", line=number) from error
    return b"1.0" if label else b"0.0"
