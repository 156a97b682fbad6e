"""Generate data sets: in blocks, in several processes, in the same order whatever their number.

A block has a random stream of its own, so that nothing depends on which process makes it, or when.
Finished blocks of a set that is being written are kept on disk, and a generation that was stopped
goes on from them.
"""

import os
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import fields
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor
from tqdm import tqdm

from sptlib.errors import DataError
from sptlib.formats.base import UNFINISHED, writing
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
    blocks = in_order(partial(_call, listops_blocks.block, grammar, stream), 1 if few else cores())
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
    """A block from its file, or made now and put there; a damaged file is as good as none."""
    path = folder / f"{index}.npz"
    names = [f.name for f in fields(kind)]
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            return kind(**{name: found[name] for name in names})
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        block = function(index)
    with writing(path) as file:
        np.savez(file, **{name: getattr(block, name) for name in names})
    return block


@contextmanager
def _making(folder: Path, targets: tuple[str, ...], *parts: object) -> Iterator[Path]:
    """Where the blocks of an unfinished set lie, until it is finished.

    Args:
        folder: of the set.
        targets: patterns of what will be written there.
        parts: what is made; only a set of the same parts is continued.

    Raises:
        DataError: if another process is making it, or something is there that this did not begin.
    """
    home = folder / UNFINISHED
    place = home / "-".join(map(str, parts))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock", timeout=0):
            try:
                _begin(folder, targets, place)
                yield place
                shutil.rmtree(home)
                for draft in folder.glob(f".*.{'?' * 32}"):  # what a killed process was writing
                    draft.unlink()
            finally:
                (folder / ".lock").unlink()
    except Timeout as error:
        raise DataError(folder, "another process is making this set; wait for it") from error
    except OSError as error:
        raise DataError(
            error.filename or folder,
            f"cannot be written ({error.strerror or error}); name another folder by --out",
        ) from error


def _begin(folder: Path, targets: tuple[str, ...], place: Path) -> None:
    """Make the place of the blocks, unless it is there already."""
    if place.is_dir():
        return
    there = [file for pattern in targets for file in folder.glob(pattern)]
    if there:
        what = "an unfinished set of other parameters" if place.parent.exists() else "a set"
        raise DataError(
            there[0], f"there is {what} already; remove it, or name another folder by --out"
        )
    if place.parent.is_dir():  # another set's blocks are no use
        shutil.rmtree(place.parent)
    place.mkdir(parents=True)


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
    parts = ("listops", listops_blocks.VERSION, seed, *vars(grammar).values())
    with _making(folder, ("basic_*.tsv*",), *parts) as making:
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
    parts = ("pathfinder", pathfinder_blocks.VERSION, seed, side, contour_length)
    make = partial(_call, pathfinder_blocks.block, drawing, (seed, "pathfinder", "files"))
    n_blocks = -(-n // pathfinder_blocks.BLOCK)
    images, labels = [], []
    with _making(folder, ("imgs", "metadata"), *parts) as place:
        kept = partial(_kept, make, pathfinder_blocks.Scenes, place)
        with closing(in_order(kept, workers or cores())) as blocks:
            for i in range(n_blocks):
                block = next(blocks)
                images.append(block.images)
                labels.append(block.labels)
                if progress is not None:
                    progress(min(n, (i + 1) * pathfinder_blocks.BLOCK), n)
        write(folder, np.concatenate(images)[:n], np.concatenate(labels)[:n], drawing)
