"""`listops`: the value of a nested list of operations on digits (Nangia & Bowman 2018; LRA).

``[MAX 2 9 [MIN 4 7 X 0 X`` has the value 9. Source `generated` draws expressions from a grammar,
whose defaults are the published ones; source `files` reads the official ``basic_*.tsv`` from
``listops`` in the data folder.
"""

from dataclasses import asdict
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from sptlib.data.cache import Mapped, cached, stamp
from sptlib.data.make import expressions
from sptlib.formats import listops as files
from sptlib.generators import listops as generated
from sptlib.generators.listops import SYMBOLS, Expressions, Grammar
from sptlib.seeding import generator
from sptlib.tasks.base import STRICT, PositiveInt, TaskConfig, TaskData, labelled_subset
from sptlib.tasks.files import cut_note, first, folder


@validated(frozen=True, kw_only=True, config=STRICT)
class ListOpsConfig(TaskConfig):
    """ListOps; see `sptlib.generators.listops.Grammar` for the fields of the grammar.

    Attributes:
        source: generated, or the official files.
        max_depth: of a node; the root's is 1.
        max_args: most arguments of an operator.
        min_length: generated expressions have more symbols than this.
        max_length: and fewer than this.
        p_operator: probability of an operator.
        max_len: positions; in files, what is longer is cut, and counted.
    """

    name: Literal["listops"] = "listops"
    source: Literal["generated", "files"] = "generated"
    n_train: PositiveInt = 96_000
    n_val: PositiveInt = 2_000
    n_test: PositiveInt = 2_000
    max_depth: Annotated[int, Field(ge=2, le=50)] = 10
    max_args: Annotated[int, Field(ge=2, le=100)] = 10
    min_length: Annotated[int, Field(ge=1)] = 500
    max_length: Annotated[int, Field(ge=5)] = 2000
    p_operator: Annotated[float, Field(gt=0, le=1)] = 0.25
    max_len: PositiveInt = 2048

    @model_validator(mode="after")
    def _possible(self):
        if self.max_length - self.min_length < 2:
            raise ValueError(
                f"no length lies between min_length={self.min_length} and "
                f"max_length={self.max_length} (both exclusive)"
            )
        if self.source == "generated" and self.max_len < self.max_length - 1:
            raise ValueError(
                f"max_len={self.max_len} would cut expressions of up to {self.max_length - 1} "
                "symbols; lower max_length instead"
            )
        if self.fresh:
            raise ValueError("fresh=True is not offered for listops: its expressions are distinct")
        return self


def load(config: ListOpsConfig, seed: int) -> TaskData:
    """All splits; no expression is in two of them where they are generated."""
    width = config.max_len
    if config.source == "generated":
        width = min(width, config.max_length - 1)
        found = _generated(config, seed, width)
    else:
        found = {split: _read(split, width) for split in files.OFFICIAL}
    sizes = {"train": config.n_train, "val": config.n_val, "test": config.n_test}
    splits = {s: first(m, sizes[s], f"the {s} split of listops") for s, m in found.items()}
    train = splits["train"]
    n_cut = sum(m.notes["cut"] for m in found.values())
    return TaskData(
        kind="tokens",
        n_classes=10,
        max_len=width,
        vocab_size=len(SYMBOLS),
        unlabelled=train,
        train=labelled_subset(train, config.n_labels, generator(seed, "listops", "labels")),
        val=splits["val"],
        test=splits["test"],
        classes=tuple("0123456789"),
        symbols=SYMBOLS,
        notes=cut_note(n_cut, sum(len(m["y"]) for m in found.values()), width),
    )


def _generated(config: ListOpsConfig, seed: int, width: int) -> dict[str, Mapped]:
    """The splits, each from its own stream; later ones leave out what earlier ones have."""
    grammar = Grammar(
        config.max_depth, config.max_args, config.min_length, config.max_length, config.p_operator
    )
    sizes = {"test": config.n_test, "val": config.n_val, "train": config.n_train}
    parts = [generated.VERSION, asdict(grammar), seed, width]
    found: dict[str, Mapped] = {}
    for split, n in sizes.items():

        def make(split: str = split, n: int = n) -> tuple[dict[str, Tensor], dict]:
            taken = set().union(*map(_marks, found.values()))
            return tensors(expressions(grammar, n, (seed, "listops", split), taken), width)

        parts = [*parts, split, n]
        found[split] = cached(f"listops-{split}", parts, make)
    return found


def _marks(found: Mapped) -> set[bytes]:
    x, length = found["x"].numpy(), found["length"].tolist()
    return {generated.mark(row[:n]) for row, n in zip(x, length, strict=True)}


def _read(split: str, width: int) -> Mapped:
    path = files.split_file(folder("listops", "make listops"), split)
    return cached(
        f"listops-files-{split}",
        [stamp(path), width],
        lambda: tensors(files.read(path), width),
    )


def tensors(rows: Expressions, width: int) -> tuple[dict[str, Tensor], dict]:
    """Padded tokens (N, width) uint8, labels, lengths; and how many were cut."""
    return {
        "x": torch.from_numpy(rows.padded(width)),
        "y": torch.from_numpy(rows.targets.astype(np.int64)),
        "length": torch.from_numpy(np.minimum(rows.lengths, width)),
    }, {"cut": int((rows.lengths > width).sum())}
