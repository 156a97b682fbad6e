"""One file of posts: CSV in UTF-8 quoted fields with line breaks."""

import csv
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from sptlib.errors import DataError
from sptlib.polar.labels import LABELS

#: categories of characters that alone are no text: control, format, separators
INVISIBLE = ("Cc", "Cf", "Zs", "Zl", "Zp")
_YES_NO = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}


def read_file(path: Path, language: str) -> pd.DataFrame:
    """One file: ``id``, ``lang``, ``text`` and the label columns that it has.

    Raises:
        DataError: if it is no UTF-8, lacks a column, has a label other than 0, 1 or empty, a row of
            another length, an empty text, or an id twice.
    """
    header, *rows = records(path)
    names = [name.strip() for name in header[1]]
    for wanted in ("id", "text"):
        if wanted not in names:
            hint = next((sep for sep in ";\t" if sep in header[1][0]), "")
            found = f"; fields are separated by {hint!r}, not by commas" if hint else ""
            raise DataError(path, f"the column {wanted!r} is missing; found {names}{found}", line=1)
    known = [label for label in LABELS if label in names]
    if len(set(names)) < len(names):
        raise DataError(path, f"a column is there twice: {names}", line=1)
    ids: dict[str, int] = {}
    out: dict[str, list] = {name: [] for name in ("id", "text", *known)}
    for line, cells in rows:
        if len(cells) != len(names):
            raise DataError(path, f"{len(names)} fields expected, found {len(cells)}", line=line)
        row = dict(zip(names, cells, strict=True))
        if not row["id"].strip() or "\0" in row["id"] + row["text"]:
            raise DataError(path, "an id is empty, or there is a NUL byte", line=line)
        if not any(unicodedata.category(c) not in INVISIBLE for c in row["text"]):
            raise DataError(path, f"the text of {row['id']!r} is empty", line=line)
        if ids.setdefault(row["id"], line) != line:
            raise DataError(
                path, f"the id {row['id']!r} is that of line {ids[row['id']]}, too", line=line
            )
        for label in known:
            value = row[label].strip()
            if value and value not in _YES_NO:
                raise DataError(path, f"{label} is 0 or 1, found {value!r}", line=line)
            out[label].append(_YES_NO[value] if value else pd.NA)
        out["id"].append(row["id"])
        out["text"].append(row["text"])
    if not out["id"]:
        raise DataError(path, "there is no post in it")
    table = pd.DataFrame({"id": out["id"], "lang": language, "text": out["text"]})
    for label in known:
        table[label] = pd.array(out[label], dtype="Int8")
    return table


def decoded(path: Path) -> str:
    """The text of a UTF-8 file, without a byte order mark.

    Raises:
        DataError: if it cannot be read, or is not UTF-8: with line and byte.
    """
    raw = content(path)
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(
            path,
            "is UTF-16; convert it, e.g. with `iconv -f utf-16 -t utf-8`",
            line=1,
            byte=0,
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = error.start + (3 if raw.startswith(b"\xef\xbb\xbf") else 0)
        raise DataError(
            path,
            f"{raw[start]:#04x} is not UTF-8 text; is the file Latin-1? "
            "Convert it, e.g. with `iconv -f latin1 -t utf-8`",
            line=raw[:start].count(b"\n") + 1,
            byte=start,
        ) from error


def content(path: Path) -> bytes:
    """The bytes of a file; raises `DataError` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror or error})") from error


def records(path: Path) -> list[tuple[int, list[str]]]:
    """The rows of a CSV file with the line that each begins at; fields may contain line breaks.

    Raises:
        DataError: if it is no such file, or empty.
    """
    text = decoded(path)
    if "\r" in text and "\n" not in text:
        raise DataError(path, "lines end in CR alone, as on old Macs; convert them to LF")
    before = csv.field_size_limit(max(len(text), csv.field_size_limit()))  # a whole post is one
    found, line = [], 1
    try:
        reader = csv.reader(_lines(text), strict=True)
        for cells in reader:
            if cells:
                found.append((line, cells))
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(path, f"no CSV ({error}); is a quote left open?", line=line) from error
    finally:
        csv.field_size_limit(before)
    if not found:
        raise DataError(path, "the file is empty")
    return found


def _lines(text: str) -> Iterable[str]:
    """Lines that end in LF or CRLF; other separators of Unicode may be inside a post."""
    return (line + "\n" for line in text.removesuffix("\n").split("\n"))
