"""ListOps expressions (Nangia & Bowman 2018), many at a time.

The published generator (Long Range Arena, Tay et al. 2021) builds one expression by recursion,
draws again if its length is out of bounds, and evaluates it by another recursion. Here a block of
expressions grows level by level, as arrays over all nodes of a depth: counts decide at once which
expressions fit, values are reduced from the leaves upward, and places in the text are handed
down from the roots.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from sptlib.errors import ConfigError
from sptlib.seeding import frozen_generator

#: bump it when the same stream gives other expressions
VERSION = 1

#: the symbols in the order of their token numbers; X closes an operator's list
SYMBOLS = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "X")
MIN, MAX, MED, SM, CLOSE = range(10, 15)
#: expressions that a block starts with, most of which are too short
CANDIDATES = 8192
#: give up on finding more distinct expressions after so many blocks without a new one
PATIENCE = 20


@dataclass(frozen=True)
class Grammar:
    """Which expressions there are; the defaults are the published ones.

    Attributes:
        max_depth: of a node, the root's being 1; nodes at this depth are digits.
        max_args: most arguments of an operator; the fewest are 2.
        min_length: expressions are longer than this.
        max_length: expressions are shorter than this. Length counts operators, digits and closing
            brackets, no parentheses.
        p_operator: probability that a node above ``max_depth`` is an operator.
    """

    max_depth: int = 10
    max_args: int = 10
    min_length: int = 500
    max_length: int = 2000
    p_operator: float = 0.25


@dataclass(frozen=True)
class Expressions:
    """Expressions, one after the other.

    Attributes:
        tokens: (sum of lengths,) uint8, numbers of `SYMBOLS`.
        lengths: (N,) int64.
        targets: (N,) uint8, the value of each, 0 to 9.
        depths: (N,) int64, depth of the deepest node.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    targets: np.ndarray
    depths: np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def rows(self) -> Iterator[np.ndarray]:
        """The tokens of each expression."""
        ends = np.cumsum(self.lengths)
        return (self.tokens[end - n : end] for end, n in zip(ends, self.lengths, strict=True))

    def take(self, index: np.ndarray) -> "Expressions":
        """The expressions with these numbers."""
        rows = list(self.rows())
        return Expressions(
            np.concatenate([rows[i] for i in index]) if len(index) else self.tokens[:0],
            self.lengths[index],
            self.targets[index],
            self.depths[index],
        )

    def padded(self, width: int) -> np.ndarray:
        """(N, width) uint8, cut at ``width``, zeros behind the end."""
        out = np.zeros((len(self), width), dtype=np.uint8)
        kept = np.arange(width) < np.minimum(self.lengths, width)[:, None]
        if self.lengths.max(initial=0) <= width:
            out[kept] = self.tokens
        else:
            out[kept] = np.concatenate([row[:width] for row in self.rows()])
        return out


def join(parts: Iterable[Expressions]) -> Expressions:
    """Several sets of expressions as one."""
    parts = list(parts)
    names = ("tokens", "lengths", "targets", "depths")
    return Expressions(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


@dataclass
class _Level:
    """All nodes of one depth: their tree, their parent's place in the level above, their kind."""

    tree: np.ndarray
    parent: np.ndarray
    is_op: np.ndarray
    n_args: np.ndarray


def block(grammar: Grammar, index: int, *stream: str | int) -> Expressions:
    """The expressions of one block that fit the grammar's length.

    Args:
        grammar: which expressions.
        index: of the block; each has a random stream of its own.
        *stream: name of the data set's random stream.
    """
    g = frozen_generator(*stream, index)
    levels, lengths = _grow(grammar, g)
    fits = (lengths > grammar.min_length) & (lengths < grammar.max_length)
    levels = _keep(levels, fits)
    lengths = lengths[fits]
    return _write(levels, lengths, g)


def _grow(grammar: Grammar, g: np.random.RandomState) -> tuple[list[_Level], np.ndarray]:
    """The shapes of a block's trees, and the length of each; too long ones are cut short."""
    lengths = np.zeros(CANDIDATES, dtype=np.int64)
    tree, parent = np.arange(CANDIDATES), np.zeros(CANDIDATES, dtype=np.int64)
    levels: list[_Level] = []
    for depth in range(1, grammar.max_depth + 1):
        n = len(tree)
        is_op = g.random_sample(n) < (grammar.p_operator if depth < grammar.max_depth else 0.0)
        n_args = np.where(is_op, g.randint(2, grammar.max_args + 1, n), 0)
        lengths += np.bincount(tree, np.where(is_op, 2, 1), CANDIDATES).astype(np.int64)
        levels.append(_Level(tree, parent, is_op, n_args))
        # what is too long already need not grow on
        growing = n_args * (lengths < grammar.max_length)[tree]
        parent, tree = np.repeat(np.arange(n), growing), np.repeat(tree, growing)
    return levels, lengths


def _keep(levels: list[_Level], fits: np.ndarray) -> list[_Level]:
    """The levels without the trees that do not fit, renumbered."""
    number = np.cumsum(fits) - 1
    kept, place = [], np.zeros(0, dtype=np.int64)
    for level in levels:
        of_tree = fits[level.tree]
        parent = level.parent[of_tree]
        kept.append(
            _Level(
                number[level.tree[of_tree]],
                place[parent] if kept else parent,
                level.is_op[of_tree],
                level.n_args[of_tree],
            )
        )
        place = np.cumsum(of_tree) - 1
    return kept


def _write(levels: list[_Level], lengths: np.ndarray, g: np.random.RandomState) -> Expressions:
    """Draw digits and operators; values and sizes from the leaves up, places from the roots down.

    Siblings lie side by side in their level, in order, so that an operator's arguments are one
    piece of the next level.
    """
    kinds = [
        np.where(x.is_op, g.randint(MIN, SM + 1, len(x.tree)), g.randint(0, 10, len(x.tree)))
        for x in levels
    ]
    values: list[np.ndarray] = [np.empty(0)] * len(levels)
    sizes: list[np.ndarray] = [np.empty(0)] * len(levels)
    below_value = below_size = np.zeros(0, dtype=np.int64)
    for d in range(len(levels) - 1, -1, -1):
        is_op, n_args = levels[d].is_op, levels[d].n_args
        values[d], sizes[d] = kinds[d].copy(), np.ones(len(is_op), dtype=np.int64)
        if is_op.any():
            counts = n_args[is_op]
            starts = np.cumsum(counts) - counts
            values[d][is_op] = _apply(kinds[d][is_op], below_value, starts, counts)
            sizes[d][is_op] = 2 + np.add.reduceat(below_size, starts)
        below_value, below_size = values[d], sizes[d]
    tokens = np.empty(int(lengths.sum()), dtype=np.uint8)
    place = np.cumsum(lengths) - lengths  # where each node's text begins
    depths = np.ones(len(lengths), dtype=np.int64)
    for d, level in enumerate(levels):
        if d > 0:
            before = np.cumsum(sizes[d]) - sizes[d]
            first = np.flatnonzero(np.diff(level.parent, prepend=-1))  # first argument of each list
            n_siblings = np.diff(first, append=len(level.parent))
            within = before - np.repeat(before[first], n_siblings)
            place = place[level.parent] + 1 + within
            depths[level.tree] = d + 1
        tokens[place] = kinds[d]
        tokens[(place + sizes[d] - 1)[level.is_op]] = CLOSE
    return Expressions(tokens, lengths, values[0].astype(np.uint8), depths)


def _apply(
    operators: np.ndarray, args: np.ndarray, starts: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """The value of each operator; its arguments are ``args[start : start + count]``."""
    order = np.lexsort((args, np.repeat(np.arange(len(counts)), counts)))
    ranked = args[order]  # within each list, ascending
    median = (ranked[starts + (counts - 1) // 2] + ranked[starts + counts // 2]) // 2
    total = np.add.reduceat(args, starts) % 10
    least, most = ranked[starts], ranked[starts + counts - 1]
    return np.select([operators == MIN, operators == MAX, operators == MED], [least, most, median],
                     default=total)


def mark(row: np.ndarray) -> bytes:
    """A digest by which an expression is recognised."""
    return blake2b(row.tobytes(), digest_size=16).digest()


def distinct(
    blocks: Iterable[Expressions],
    n: int,
    taken: set[bytes],
    progress: Callable[[int, int], None] | None = None,
) -> Expressions:
    """The first n expressions that are not taken yet; they are then.

    Args:
        blocks: in order.
        n: how many are wanted.
        taken: digests of expressions that must not come again, in other splits, say.
        progress: called as ``progress(found, n)``.

    Raises:
        ConfigError: if the grammar seems to have no n distinct expressions.
    """
    parts, found, fruitless = [], 0, 0
    for part in blocks if n > 0 else ():
        new = []
        for i, row in enumerate(part.rows()):
            if (digest := mark(row)) not in taken:
                taken.add(digest)
                new.append(i)
                if found + len(new) == n:
                    break
        parts.append(part.take(np.array(new, dtype=np.int64)))
        found += len(new)
        fruitless = 0 if new else fruitless + 1
        if progress is not None:
            progress(found, n)
        if found == n:
            break
        if fruitless == PATIENCE:
            raise ConfigError(
                f"found only {found} distinct ListOps expressions of the {n} wanted; "
                "allow longer or deeper ones"
            )
    no_tokens, no_numbers = np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=np.int64)
    return join([Expressions(no_tokens, no_numbers, no_tokens, no_numbers), *parts])


def generate(
    grammar: Grammar, n: int, *stream: str | int, taken: set[bytes] | None = None
) -> Expressions:
    """n distinct expressions, in this process."""
    blocks = (block(grammar, index, *stream) for index in _count())
    return distinct(blocks, n, set() if taken is None else taken)


def _count() -> Iterator[int]:
    index = 0
    while True:
        yield index
        index += 1
