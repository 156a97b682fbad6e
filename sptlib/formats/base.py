"""What the formats share: lines with their numbers, atomic writing, the outcome of a check."""

import gzip
import io
import os
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sptlib.errors import DataError

BOM = b"\xef\xbb\xbf"


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


@contextmanager
def writing(path: Path) -> Iterator[io.BufferedWriter]:
    """A binary file that appears under its name whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with draft.open("wb") as file:
            yield file
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
