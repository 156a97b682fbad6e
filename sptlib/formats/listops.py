"""ListOps in the official files: ``basic_{train,val,test}.tsv``, a header, then text and value.

The text is fully parenthesised in binary form, ``( ( ( [MAX 3 ) 4 ) ] )`` for the maximum of 3 and
4. As is common (Tay et al. 2021), parentheses are dropped and ``]`` becomes ``X``: they carry
nothing that brackets do not.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from sptlib.errors import DataError
from sptlib.formats.base import Report, lines, refuse_unfinished, writing
from sptlib.generators.listops import CLOSE, MAX, MED, MIN, SYMBOLS, Expressions

HEADER = "Source\tTarget"
OFFICIAL = {"train": 96_000, "val": 2_000, "test": 2_000}
#: the LRA's length of a sequence
LRA_LENGTH = 2048

_NUMBERS = {symbol: i for i, symbol in enumerate(SYMBOLS)} | {"]": CLOSE}
_DIGITS = {str(d): d for d in range(10)}


def tokenise(text: str) -> np.ndarray:
    """The token numbers of an expression, (length,) uint8; parentheses are dropped.

    Raises:
        ValueError: for an unknown symbol, or brackets that do not match.
    """
    words = text.replace("(", " ").replace(")", " ").split()
    try:
        tokens = np.array([_NUMBERS[word] for word in words], dtype=np.uint8)
    except KeyError as error:
        raise ValueError(f"unknown symbol {error.args[0]!r}; known: {' '.join(SYMBOLS)}") from None
    step = np.where(tokens == CLOSE, -1, (tokens >= MIN).astype(np.int64))
    open_lists = np.cumsum(step)
    if not len(tokens):
        raise ValueError("no expression")
    if (open_lists < 0).any():
        raise ValueError(
            f"unbalanced brackets: symbol {int(np.argmin(open_lists >= 0)) + 1} "
            "closes what was not opened"
        )
    if open_lists[-1] != 0:
        raise ValueError(f"unbalanced brackets: {open_lists[-1]} lists are not closed")
    if (open_lists[:-1] == 0).any():
        raise ValueError("more than one expression")
    if text.count("(") != text.count(")"):
        raise ValueError(
            f"unbalanced parentheses: {text.count('(')} opened, {text.count(')')} closed"
        )
    return tokens


def evaluate(tokens: np.ndarray) -> int:
    """The value of an expression, by a stack.

    MIN and MAX as usual, MED the integer part of the median, SM the sum modulo 10.

    Args:
        tokens: (length,) token numbers of one expression.

    Raises:
        ValueError: for an operator without arguments.
    """
    stack: list[tuple[int, list[int]]] = [(MAX, [])]
    for token in tokens.tolist():
        if token < MIN:
            stack[-1][1].append(token)
        elif token < CLOSE:
            stack.append((token, []))
        else:
            operator, args = stack.pop()
            if not args:
                raise ValueError(f"{SYMBOLS[operator]} has no arguments")
            stack[-1][1].append(_value(operator, args))
    return stack[0][1][0]


def _value(operator: int, args: list[int]) -> int:
    if operator == MIN:
        return min(args)
    if operator == MAX:
        return max(args)
    if operator == MED:
        ranked = sorted(args)
        middle = len(ranked) // 2
        return ranked[middle] if len(ranked) % 2 else (ranked[middle - 1] + ranked[middle]) // 2
    return sum(args) % 10


def depth(tokens: np.ndarray) -> int:
    """Depth of the deepest node; the root's is 1."""
    step = np.where(tokens == CLOSE, -1, (tokens >= MIN).astype(np.int64))
    return int(np.cumsum(step).max()) + 1  # every list holds something


def to_text(tokens: np.ndarray) -> str:
    """An expression in the official, fully parenthesised binary form."""
    words: list[str] = []
    opened: list[tuple[int, int]] = []  # place of an operator, arguments so far
    for token in tokens.tolist():
        if token == CLOSE:
            place, n_args = opened.pop()
            words[place] = "( " * (n_args + 1) + words[place]
            words.append("] )")
        else:
            words.append(SYMBOLS[token])
        if MIN <= token < CLOSE:
            opened.append((len(words) - 1, 0))
        elif opened:
            place, n_args = opened[-1]
            opened[-1] = (place, n_args + 1)
            words[-1] += " )"
    return " ".join(words)


def write(path: Path, expressions: Expressions) -> None:
    """Write a split as the official generator does: header, CRLF, text, tab, value."""
    with writing(path) as file:
        file.write(f"{HEADER}\r\n".encode())
        for row, target in zip(expressions.rows(), expressions.targets.tolist(), strict=True):
            file.write(f"{to_text(row)}\t{target}\r\n".encode())


def rows(path: Path) -> Iterator[tuple[int, np.ndarray, int]]:
    """Number of the line, tokens and value of each row of a file.

    Raises:
        DataError: naming the line, for a wrong header, a missing column, an unknown symbol,
            unbalanced brackets, or a value that is no integer from 0 to 9.
    """
    number = found = 0
    for number, line in lines(path):
        if number == 1:
            if line != HEADER:
                raise DataError(path, f"the header is {line[:60]!r}, expected {HEADER!r}", 1)
        elif line:
            yield number, *_row(path, number, line)
            found += 1
    if number == 0:
        raise DataError(path, f"the file is empty; expected the header {HEADER!r}")
    if not found:
        raise DataError(path, "the file holds a header and no rows")


def _row(path: Path, number: int, line: str) -> tuple[np.ndarray, int]:
    fields = line.split("\t")
    if len(fields) != 2:
        raise DataError(
            path, f"{len(fields)} tab-separated columns, expected 2 (Source, Target)", number
        )
    if fields[1] not in _DIGITS:
        raise DataError(
            path, f"the target is {fields[1][:20]!r}, expected an integer from 0 to 9", number
        )
    try:
        return tokenise(fields[0]), _DIGITS[fields[1]]
    except ValueError as error:
        raise DataError(path, str(error), number) from error


def split_file(folder: Path, split: str) -> Path:
    """The file of a split; raises `DataError` if it is missing."""
    if folder.is_file():
        raise DataError(folder, "is a file, expected a folder with basic_*.tsv")
    refuse_unfinished(folder)
    path = folder / f"basic_{split}.tsv"
    packed = path.with_suffix(".tsv.gz")
    if not path.is_file() and not packed.is_file():
        raise DataError(path, "there is no such file; `sptlib data make listops` generates one")
    return path if path.is_file() else packed


def read(path: Path, progress: Callable[[int], None] | None = None) -> Expressions:
    """All rows of one file.

    Args:
        path: of the file.
        progress: called with the number of rows read, now and then.
    """
    tokens, lengths, targets, depths = [], [], [], []
    for _, row, target in rows(path):
        tokens.append(row)
        lengths.append(len(row))
        targets.append(target)
        depths.append(depth(row))
        if progress is not None and len(tokens) % 1000 == 0:
            progress(len(tokens))
    return Expressions(
        np.concatenate(tokens),
        np.array(lengths, dtype=np.int64),
        np.array(targets, dtype=np.uint8),
        np.array(depths, dtype=np.int64),
    )


def check(folder: Path) -> Report:
    """Read and evaluate every row of the three files of a folder."""
    report, seen, repeated = Report(), set(), 0
    for split, official in OFFICIAL.items():
        try:
            found = []
            for number, row, target in rows(path := split_file(folder, split)):
                _examine(report, path, number, row, target)
                repeated += (mark := hash(row.tobytes())) in seen
                seen.add(mark)
                found.append((len(row), target))
        except DataError as error:  # what stands behind a damaged line is not looked at
            report.faults.append(str(error))
            continue
        lengths = np.array([n for n, _ in found])
        balance = Counter(t for _, t in found)
        report.facts += [
            f"{split}: {len(found):,} rows; {lengths.min()} to {lengths.max()} symbols, "
            f"median {np.median(lengths):.0f}; longer than {LRA_LENGTH}: "
            f"{int((lengths > LRA_LENGTH).sum())}",
            f"{split}: rows by value 0 to 9: {' '.join(str(balance[d]) for d in range(10))}",
        ]
        if len(found) != official:
            less = "smaller" if len(found) < official else "larger"
            report.notes.append(f"{split} is {less} than the official set of {official:,} rows")
    if repeated:
        report.notes.append(f"{repeated} rows repeat an earlier one")
    return report


def _examine(report: Report, path: Path, number: int, row: np.ndarray, target: int) -> None:
    try:
        value = evaluate(row)
    except ValueError as error:
        report.faults.append(str(DataError(path, str(error), number)))
        return
    if value != target:
        wrong = f"the target is {target}, but the expression's value is {value}"
        report.faults.append(str(DataError(path, wrong, number)))
