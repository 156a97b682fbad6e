"""What the formats share: lines with their numbers, atomic writing, the outcome of a check."""

import gzip
import io
import os
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from sptlib.errors import ConfigError, DataError

BOM = b"\xef\xbb\xbf"
#: faults that a check spells out
LISTED = 20
#: folder in a data set that is being made; it goes when the set is complete
UNFINISHED = ".making"


@dataclass
class Report:
    """What a check of a folder found.

    Attributes:
        facts: counts, label balance, lengths; a line each.
        notes: what is worth knowing and no fault, e.g. that it is smaller than the official set.
        faults: each names file and line or byte.
    """

    facts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 text file, numbered from 1, without their ends.

    LF and CRLF are line ends, a byte order mark is skipped, and a name that ends in ``.gz`` is read
    through gzip.

    Raises:
        DataError: if the file is missing, cannot be read, is no UTF-8, or is a truncated gzip file.
    """
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if number == 1:
                    raw = raw.removeprefix(BOM)
                yield number, raw.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise DataError(
            path, f"byte {error.start} of the line is not UTF-8 text", line=number
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            path, f"the gzip file is damaged or cut off after line {number} ({error})"
        ) from error
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror or error})") from error


def refuse_unfinished(folder: Path) -> None:
    """Raises `DataError` if a set is still being made, or its making was stopped."""
    if (folder / UNFINISHED).exists():
        raise DataError(
            folder, "this set is unfinished; repeat the `sptlib data make` that was stopped"
        )


def listed(faults: Sequence[object]) -> list[str]:
    """The first faults as text, and how many more there are."""
    n_more = len(faults) - LISTED
    return [*map(str, faults[:LISTED]), *([f"and {n_more:,} more"] if n_more > 0 else [])]


def package_file(package: str, name: str) -> Path:
    """A data file of an installed package, which is not imported: that may take seconds.

    Raises:
        ConfigError: if the package is not installed.
    """
    hint = f"the package {package} is missing; install it with: pip install 'sptlib[data]'"
    try:
        path = Path(metadata.distribution(package).locate_file(name))
    except metadata.PackageNotFoundError as error:
        raise ConfigError(hint) from error
    if not path.is_file():
        raise ConfigError(f"{path} is not there: {hint}")
    return path


def package_stamp(package: str, name: str) -> list:
    """Name, version and size of a package's file, by which a cache knows it."""
    size = package_file(package, name).stat().st_size
    return [package, metadata.version(package), size]


@contextmanager
def writing(path: Path) -> Iterator[io.BufferedWriter]:
    """A binary file that appears under its name whole or not at all.

    A symbolic link stays one, and its target is written; what is no regular file (a pipe, a device)
    cannot be replaced and is written into.
    """
    path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        with path.open("wb", buffering=0) as raw, io.BufferedWriter(raw) as file:
            yield file
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with draft.open("wb") as file:
            yield file
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
