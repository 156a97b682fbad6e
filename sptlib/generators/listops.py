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
from itertools import count, pairwise

import numpy as np

from sptlib.errors import ConfigError
from sptlib.seeding import frozen_generator

#: bump it when the same stream gives other expressions
VERSION = 2

#: the symbols in the order of their token numbers; X closes an operator's list
SYMBOLS = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "X")
MIN, MAX, MED, SM, CLOSE = range(10, 15)
#: expressions that a block starts with, most of which are too short
CANDIDATES = 2048
#: give up on finding more distinct expressions after so many blocks without a new one
PATIENCE = 20


@dataclass(frozen=True)
class Grammar:
    """Which expressions there are; the defaults are the published ones.

    Attributes:
        max_depth: of a node, the root's being 1; nodes at this depth are digits.
        max_args: most arguments of an operator; the fewest are 2.
        min_length: expressions are longer than this, which is at least 1: a digit is none.
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
    """The operators of one depth: their tree, whose argument they are in the level above, the how
    manieth, and how many arguments they have."""

    tree: np.ndarray
    parent: np.ndarray
    within: np.ndarray
    n_args: np.ndarray

    def place(self, above: "_Level") -> np.ndarray:
        """Where these operators are among all arguments of the level above."""
        return (np.cumsum(above.n_args) - above.n_args)[self.parent] + self.within


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
    return _write(_keep(levels, fits), lengths[fits], g)


def _uniform(g: np.random.RandomState, n: int) -> np.ndarray:
    """n numbers from 0 to 2^32 - 1; raw bytes are the generator's fastest product."""
    return np.frombuffer(g.bytes(4 * n), dtype="<u4")


def _below(g: np.random.RandomState, n: int, bound: int) -> np.ndarray:
    """n integers from 0 to bound - 1; their probabilities differ by at most 2^-16."""
    raw = np.frombuffer(g.bytes(2 * n), dtype="<u2").astype(np.uint32)
    return ((raw * np.uint32(bound)) >> 16).astype(np.int64)


def _grow(grammar: Grammar, g: np.random.RandomState) -> tuple[list[_Level], np.ndarray]:
    """The operators of a block's trees, and the length of each; too long ones are cut short.

    Only operators are nodes here: an argument that is none is a digit. Every tree begins with an
    operator, since a digit alone is too short.
    """
    threshold = round(grammar.p_operator * 2**32)
    tree = np.arange(CANDIDATES)
    parent = within = np.zeros(CANDIDATES, dtype=np.int64)
    lengths = np.ones(CANDIDATES, dtype=np.int64)
    levels: list[_Level] = []
    for depth in range(1, grammar.max_depth):
        n_args = 2 + _below(g, len(tree), grammar.max_args - 1)
        # an operator adds itself, its closing bracket and its arguments, and is one already
        lengths += np.bincount(tree, 1 + n_args, CANDIDATES).astype(np.int64)
        levels.append(_Level(tree, parent, within, n_args))
        if depth + 1 == grammar.max_depth:
            break  # all arguments are digits
        # what is too long already need not grow on
        n_growing = n_args * (lengths < grammar.max_length)[tree]
        is_op = _uniform(g, int(n_growing.sum())) < threshold
        found = np.flatnonzero(is_op)
        ends = np.cumsum(n_growing)
        parent = np.searchsorted(ends, found, side="right")
        within = found - (ends - n_growing)[parent]
        tree = tree[parent]
    return levels, lengths


def _keep(levels: list[_Level], fits: np.ndarray) -> list[_Level]:
    """The levels without the trees that do not fit, renumbered."""
    number = np.cumsum(fits) - 1
    kept: list[_Level] = []
    moved = np.zeros(1, dtype=np.int64)  # the new numbers of the level above
    for level in levels:
        of_tree = fits[level.tree]
        kept.append(
            _Level(
                number[level.tree[of_tree]],
                moved[level.parent[of_tree]],
                level.within[of_tree],
                level.n_args[of_tree],
            )
        )
        moved = np.cumsum(of_tree) - 1
    return kept


def _write(levels: list[_Level], lengths: np.ndarray, g: np.random.RandomState) -> Expressions:
    """Draw digits and operators; values and sizes from the leaves up, places from the roots down.

    The arguments of a level's operators lie side by side, in order, so that those of one operator
    are one piece.
    """
    n_arguments = [int(level.n_args.sum()) for level in levels]
    places = [below.place(level) for level, below in pairwise(levels)]  # of operators as arguments
    digits = [_below(g, n, 10).astype(np.uint8) for n in n_arguments]
    operators = [(MIN + _below(g, len(level.tree), 4)).astype(np.uint8) for level in levels]
    values: list[np.ndarray] = [np.empty(0)] * len(levels)  # of the operators of a level
    sizes: list[np.ndarray] = [np.empty(0)] * len(levels)  # symbols, from operator to bracket
    argument_sizes: list[np.ndarray] = [np.empty(0)] * len(levels)
    for d in range(len(levels) - 1, -1, -1):
        args, size = digits[d].copy(), np.ones(n_arguments[d], dtype=np.int32)
        if d < len(places):
            args[places[d]] = values[d + 1]
            size[places[d]] = sizes[d + 1]
        argument_sizes[d] = size
        n_args = levels[d].n_args
        starts = np.cumsum(n_args) - n_args
        values[d] = _apply(operators[d], args, starts, n_args)
        sizes[d] = 2 + np.add.reduceat(size, starts) if len(starts) else size
    tokens = np.empty(int(lengths.sum()), dtype=np.uint8)
    begin = np.cumsum(lengths) - lengths  # where the text of each operator of the level begins
    depths = np.full(len(lengths), 2, dtype=np.int64)
    for d, level in enumerate(levels):
        tokens[begin] = operators[d]
        tokens[begin + sizes[d] - 1] = CLOSE
        depths[level.tree] = d + 2
        size = argument_sizes[d]
        starts = np.cumsum(level.n_args) - level.n_args
        before = np.cumsum(size) - size
        own = begin + 1 - before[starts] if len(starts) else begin
        at = before + np.repeat(own, level.n_args)
        tokens[at] = digits[d]  # operators among them are written over with the next level
        if d < len(places):
            begin = at[places[d]]
    return Expressions(tokens, lengths, values[0], depths)


def _apply(
    operators: np.ndarray, args: np.ndarray, starts: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """The value of each operator; its arguments are ``args[start : start + count]``."""
    if not len(starts):
        return np.zeros(0, dtype=np.uint8)
    out = np.select(
        [operators == MIN, operators == MAX],
        [np.minimum.reduceat(args, starts), np.maximum.reduceat(args, starts)],
        default=np.add.reduceat(args, starts, dtype=np.int32) % 10,
    ).astype(np.uint8)
    medians = np.flatnonzero(operators == MED)
    if len(medians):
        n = counts[medians]
        first = np.cumsum(n) - n
        lists = np.repeat(np.arange(len(medians)), n)
        of_lists = args[np.arange(len(lists)) + (starts[medians] - first)[lists]]
        ranked = np.sort((lists * 10 + of_lists).astype(np.int32)) % 10  # ascending in each list
        low, high = ranked[first + (n - 1) // 2], ranked[first + n // 2]
        out[medians] = (low + high) // 2
    return out


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
    blocks = (block(grammar, index, *stream) for index in count())
    return distinct(blocks, n, set() if taken is None else taken)
