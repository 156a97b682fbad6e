"""Generate data sets: in blocks, in several processes, in the same order whatever their number.

A block has a random stream of its own, so that nothing depends on which process makes it, or when.
Finished blocks of a set that is being written are kept on disk, and a generation that was stopped
goes on from them.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor
from tqdm import tqdm

from sptlib.formats.base import writing
from sptlib.generators import listops as listops_blocks
from sptlib.generators import pathfinder as pathfinder_blocks

Progress = Callable[[int, int], None]

#: fewer blocks than this are made in the process that wants them: starting others takes seconds
FEW = 24
#: likewise expressions of fewer symbols in all than this
FEW_SYMBOLS = 5_000_000


def cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_order(function: Callable[[int], Any], workers: int) -> Iterator[Any]:
    """``function(0), function(1), …`` without end; several processes work on the next few.

    Args:
        function: what makes a block; it and its results can be pickled.
        workers: processes; 1 = this one.
    """
    if workers == 1:
        yield from map(function, count())
        return
    ahead = 4 * workers
    try:
        with Parallel(n_jobs=workers) as pool:
            for start in count(0, ahead):
                yield from pool(delayed(function)(i) for i in range(start, start + ahead))
    finally:  # joblib keeps its processes, and their memory, for the next call
        get_reusable_executor().shutdown(wait=True)


def in_blocks(function: Callable, spec: Any, n: int, size: int, stream: tuple) -> list:
    """Enough blocks of ``size`` for n rows, for a task that needs them now.

    Many blocks are made by all cores, with progress on stderr.

    Args:
        function: ``function(spec, index, *stream)`` makes a block.
        spec: what is generated.
        n: rows.
        size: rows of a block.
        stream: name of the random stream.
    """
    n_blocks = -(-n // size)
    few = n_blocks < FEW
    blocks = in_order(partial(_call, function, spec, stream), 1 if few else cores())
    found = []
    with _bar(n_blocks, "block", few) as bar, closing(blocks):
        for _ in range(n_blocks):
            found.append(next(blocks))
            bar.update()
    return found


def expressions(
    grammar: listops_blocks.Grammar, n: int, stream: tuple, taken: set[bytes]
) -> listops_blocks.Expressions:
    """n distinct ListOps expressions for a task that needs them now; many with all cores.

    Args:
        grammar: which expressions.
        n: how many.
        stream: name of the random stream.
        taken: digests of expressions that must not come again.
    """
    few = n * grammar.max_length < FEW_SYMBOLS
    blocks = in_order(
        partial(_call, listops_blocks.block, grammar, stream), 1 if few else cores()
    )
    with _bar(n, "row", few) as bar, closing(blocks):
        return listops_blocks.distinct(
            blocks, n, taken, lambda done, total: bar.update(done - bar.n)
        )


def _bar(total: int, unit: str, disable: bool) -> tqdm:
    return tqdm(total=total, desc="generating", unit=unit, file=sys.stderr, mininterval=1.0,
                disable=disable)  # fmt: skip


def _call(function: Callable, spec: Any, stream: tuple, index: int) -> Any:
    return function(spec, index, *stream)


def _kept(function: Callable[[int], Any], kind: type, folder: Path, index: int) -> Any:
    """A block from its file, or made now and put there."""
    path = folder / f"{index}.npz"
    names = [f.name for f in fields(kind)]
    if path.is_file():
        with np.load(path, allow_pickle=False) as found:
            return kind(**{name: found[name] for name in names})
    block = function(index)
    with writing(path) as file:
        np.savez(file, **{name: getattr(block, name) for name in names})
    return block


def _making(folder: Path, *parts: object) -> Path:
    """Where the blocks of an unfinished set lie; another set's blocks are no use and go."""
    home = folder / ".making"
    place = home / "-".join(map(str, parts))
    if home.is_dir():
        for other in home.iterdir():
            if other != place:
                shutil.rmtree(other)
    place.mkdir(parents=True, exist_ok=True)
    return place


def listops(
    folder: Path,
    sizes: dict[str, int],
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
    grammar: listops_blocks.Grammar | None = None,
) -> None:
    """Write ``basic_{train,val,test}.tsv``; all expressions are distinct, over all three.

    Args:
        folder: it is made.
        sizes: rows by split: train, val, test.
        seed: of the data.
        workers: processes; None = one per core.
        progress: called as ``progress(rows, rows in all)``.
        grammar: which expressions; None = the published ones.
    """
    from sptlib.formats.listops import write

    grammar = grammar or listops_blocks.Grammar()
    total, done = sum(sizes.values()), 0
    taken: set[bytes] = set()
    making = _making(folder, "listops", listops_blocks.VERSION, seed, *vars(grammar).values())
    for split in ("test", "val", "train"):  # the order of the task `listops`: the same rows
        place = making / split
        make = partial(_call, listops_blocks.block, grammar, (seed, "listops", split))
        blocks = in_order(
            partial(_kept, make, listops_blocks.Expressions, place), workers or cores()
        )

        def tell(found: int, n: int, before: int = done) -> None:
            if progress is not None:
                progress(before + found, total)

        with closing(blocks):
            rows = listops_blocks.distinct(blocks, sizes[split], taken, tell)
        write(folder / f"basic_{split}.tsv", rows)
        done += sizes[split]
    shutil.rmtree(folder / ".making")


def pathfinder(
    folder: Path,
    side: int = 32,
    contour_length: int = 14,
    n: int = 200_000,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the official tree of one difficulty, ``imgs/<b>/sample_<i>.png`` and metadata.

    Args:
        folder: it is made.
        side: pixels per side.
        contour_length: dashes of each of the two long curves.
        n: images.
        seed: of the data.
        workers: processes; None = one per core.
        progress: called as ``progress(images, images in all)``.
    """
    from sptlib.formats.pathfinder import write

    drawing = pathfinder_blocks.drawing(side, contour_length)
    place = _making(folder, "pathfinder", pathfinder_blocks.VERSION, seed, side, contour_length)
    make = partial(_call, pathfinder_blocks.block, drawing, (seed, "pathfinder", "files"))
    blocks = in_order(partial(_kept, make, pathfinder_blocks.Scenes, place), workers or cores())
    n_blocks = -(-n // pathfinder_blocks.BLOCK)
    images, labels = [], []
    with closing(blocks):
        for i in range(n_blocks):
            block = next(blocks)
            images.append(block.images)
            labels.append(block.labels)
            if progress is not None:
                progress(min(n, (i + 1) * pathfinder_blocks.BLOCK), n)
    write(folder, np.concatenate(images)[:n], np.concatenate(labels)[:n], drawing)
    shutil.rmtree(folder / ".making")
