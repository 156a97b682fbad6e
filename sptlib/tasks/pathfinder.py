"""`pathfinder`: are the two dots connected by a dashed curve (Linsley et al. 2018; LRA)?

An image, row by row, as one sequence. Source `generated` draws with `sptlib.generators.pathfinder`:
32×32 is the LRA's Pathfinder, 128×128 its Path-X, 16×16 a small version of this project. Source
`files` reads the official tree from ``pathfinder/pathfinder<side>/curv_…`` in the data folder.
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from sptlib.data.cache import Mapped, cached, stamp
from sptlib.data.make import in_blocks
from sptlib.errors import DataError
from sptlib.formats import pathfinder as files
from sptlib.generators import pathfinder as generated
from sptlib.seeding import generator
from sptlib.tasks.base import STRICT, PositiveInt, Split, TaskConfig, TaskData, labelled_subset
from sptlib.tasks.files import as_split, drawn, fixed_splits, folder

CLASSES = ("not connected", "connected")


@validated(frozen=True, kw_only=True, config=STRICT)
class PathfinderConfig(TaskConfig):
    """Pathfinder.

    Attributes:
        source: generated, or the official files.
        side: pixels per side.
        contour_length: dashes of each of the two long curves; the published sets have 14, 9 or 6.
        levels: grey levels of tokenised pixels, in equally wide steps.
        tokenised: True: a pixel is one of ``levels`` tokens, reconstructed by cross-entropy;
            False: a number in [0, 1] beside a hidden-flag, reconstructed with L1. Most pixels are
            black, so that L1 is served well by always answering black.
    """

    name: Literal["pathfinder"] = "pathfinder"
    source: Literal["generated", "files"] = "generated"
    n_train: PositiveInt = 160_000
    n_val: PositiveInt = 20_000
    n_test: PositiveInt = 20_000
    side: Annotated[int, Field(ge=16, le=256)] = 32
    contour_length: Annotated[int, Field(ge=3, le=30)] = 14
    levels: Annotated[int, Field(ge=2, le=256)] = 256
    tokenised: bool = True

    @model_validator(mode="after")
    def _possible(self):
        if self.source == "generated":
            generated.drawing(self.side, self.contour_length)
        if self.fresh:
            raise ValueError("fresh=True is not offered for pathfinder: drawing is too slow")
        return self


def load(config: PathfinderConfig, seed: int) -> TaskData:
    """All splits, drawn by the seed or cut from the files in a fixed order."""
    splits, notes = (_drawn if config.source == "generated" else _read)(config, seed)
    if config.levels < 256:
        splits = {
            name: Split((s.x.int() * config.levels // 256).to(torch.uint8), s.y)
            for name, s in splits.items()
        }
    train = splits["train"]
    return TaskData(
        kind="tokens" if config.tokenised else "pixels",
        n_classes=2,
        max_len=config.side**2,
        side=config.side,
        vocab_size=config.levels if config.tokenised else 0,
        scale=1.0 if config.tokenised else config.levels - 1.0,
        unlabelled=train,
        train=labelled_subset(train, config.n_labels, generator(seed, "pathfinder", "labels")),
        val=splits["val"],
        test=splits["test"],
        classes=CLASSES,
        notes=notes,
    )


def _drawn(config: PathfinderConfig, seed: int) -> tuple[dict[str, Split], tuple[str, ...]]:
    drawing = generated.drawing(config.side, config.contour_length)
    sizes = {"train": config.n_train, "val": config.n_val, "test": config.n_test}
    splits = {}
    for split, n in sizes.items():

        def make(split: str = split, n: int = n) -> tuple[dict[str, Tensor], dict]:
            stream = (seed, "pathfinder", split)
            blocks = in_blocks(generated.block, drawing, n, generated.BLOCK, stream)
            images, labels = zip(*((b.images, b.labels) for b in blocks), strict=True)
            return _tensors(images, labels, n), {}

        parts = [generated.VERSION, repr(drawing), seed, split, n]
        splits[split] = as_split(cached(f"pathfinder{config.side}-{split}", parts, make))
    return splits, ()


def _read(config: PathfinderConfig, seed: int) -> tuple[dict[str, Split], tuple[str, ...]]:
    place = folder("pathfinder", "make pathfinder") / f"pathfinder{config.side}"
    difficulty = files.difficulty(config.contour_length)
    place /= difficulty
    sources = [*sorted((place / "metadata").glob("*.npy")), *sorted((place / "imgs").glob("*"))]

    def load() -> Mapped:
        make = partial(_from_tree, place, config.side)
        return cached(f"pathfinder{config.side}-files", [difficulty, stamp(*sources)], make)

    found = load()
    if [_stamp_of(place / name) for name in found.notes["broken"]] != found.notes["stamps"]:
        found.path.unlink()  # what was broken has been mended
        found = load()
    everything = as_split(found)
    name = f"pathfinder{config.side}/{difficulty}"  # no path: the same cut on every machine
    pool, val, test = fixed_splits(len(everything), config.n_val, config.n_test, name)
    train = drawn(pool, config.n_train, f"the training part of {name}", seed, name)
    parts = {"train": train, "val": val, "test": test}
    return {name: everything.take(i) for name, i in parts.items()}, tuple(found.notes["skipped"])


def _from_tree(place: Path, side: int) -> tuple[dict[str, Tensor], dict]:
    tree = files.read(place)
    if tree.images.shape[1] != side**2:
        own = round(tree.images.shape[1] ** 0.5)
        raise DataError(place, f"holds images of {own}×{own} pixels, expected {side}×{side}")
    broken = [str(path.relative_to(place)) for path in tree.broken]
    stamps = [_stamp_of(path) for path in tree.broken]
    notes = {"skipped": tree.skipped, "broken": broken, "stamps": stamps}
    return _tensors([tree.images], [tree.labels], len(tree.labels)), notes


def _stamp_of(path: Path) -> list:
    return stamp(path) if path.is_file() else []


def _tensors(images, labels, n: int) -> dict[str, Tensor]:
    return {
        "x": torch.from_numpy(np.concatenate(images)[:n]),
        "y": torch.from_numpy(np.concatenate(labels)[:n].astype(np.int64)),
    }
