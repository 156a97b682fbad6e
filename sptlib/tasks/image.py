"""`image`: pixels of a small grey image, row by row, as one sequence; the label is what it shows.

Source `digits`: the 1,797 handwritten digits of 8×8 pixels, 17 grey levels, that ship with
scikit-learn (Alpaydin & Kaynak, UCI Optical Recognition of Handwritten Digits, CC BY 4.0). The
split into training, validation and test images is fixed; which training images have labels varies
with the seed.
"""

from typing import Literal

import torch
from pydantic import model_validator
from pydantic.dataclasses import dataclass as validated

from sptlib.seeding import generator
from sptlib.tasks.base import STRICT, PositiveInt, Split, TaskConfig, TaskData, labelled_subset

DIGITS_SIZE = 1797
DIGITS_LEVELS = 17


@validated(frozen=True, kw_only=True, config=STRICT)
class ImageConfig(TaskConfig):
    """Images as sequences of pixels.

    Attributes:
        source: where the images come from.
        tokenised: True: a pixel is one of 17 tokens, reconstructed by cross-entropy; False: a
            number in [0, 1] beside a hidden-flag, reconstructed with L1.
    """

    name: Literal["image"] = "image"
    source: Literal["digits"] = "digits"
    tokenised: bool = True
    n_train: PositiveInt = 1197
    n_val: PositiveInt = 200
    n_test: PositiveInt = 400

    @model_validator(mode="after")
    def _fits_source(self):
        total = self.n_train + self.n_val + self.n_test
        if total > DIGITS_SIZE:
            raise ValueError(f"n_train + n_val + n_test = {total}, but digits has {DIGITS_SIZE}")
        if self.fresh:
            raise ValueError("fresh=True needs a synthetic task; image is real data")
        return self


def load(config: ImageConfig, seed: int) -> TaskData:
    """Read the images that ship with scikit-learn and cut them into fixed splits."""
    from sklearn.datasets import load_digits  # a second to import: only when needed

    x, y = load_digits(return_X_y=True)
    everything = Split(torch.from_numpy(x).to(torch.uint8), torch.from_numpy(y).to(torch.int64))
    # one fixed, class-balanced order; test and validation are cut off first, so that n_train
    # changes neither
    everything = labelled_subset(everything, DIGITS_SIZE, generator("image", "digits", "split"))
    test = everything.take(slice(0, config.n_test))
    val = everything.take(slice(config.n_test, config.n_test + config.n_val))
    train = everything.take(slice(DIGITS_SIZE - config.n_train, DIGITS_SIZE))
    return TaskData(
        kind="tokens" if config.tokenised else "pixels",
        n_classes=10,
        max_len=64,
        vocab_size=DIGITS_LEVELS if config.tokenised else 0,
        scale=1.0 if config.tokenised else DIGITS_LEVELS - 1.0,
        unlabelled=train,
        train=labelled_subset(train, config.n_labels, generator(seed, "image", "labels")),
        val=val,
        test=test,
        classes=tuple("0123456789"),
    )
