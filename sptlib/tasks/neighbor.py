"""`neighbor`: a synthetic task in which only the relation between adjacent tokens tells the label.

Our own construction, in the spirit of the minimal one-layer, length-100, binary task of Coser et
al. (2026). The first token is uniform in Z_10; with probability p the next token is the last one
plus d (mod 10), else uniform; the label chooses d. Every single token is uniform whatever the
label: a bag of tokens carries nothing, two neighbours carry almost everything.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as validated

from sptlib.seeding import generator
from sptlib.tasks.base import STRICT, PositiveInt, Split, TaskConfig, TaskData, labelled_subset


@validated(frozen=True, kw_only=True, config=STRICT)
class NeighborConfig(TaskConfig):
    """The synthetic task.

    Attributes:
        length: tokens per sequence.
        p: probability that a token continues the walk.
        steps: d for label 0 and label 1. (1, 3) is the default; with (1, -1) the classes are each
            other's reversal, so that a *directional* neighbour is needed. (0, 0) is noise for
            pretraining, in which a token repeats the last one with probability p, whatever the
            label.
        n_symbols: size of the alphabet.
    """

    name: Literal["neighbor"] = "neighbor"
    n_train: PositiveInt = 1000
    n_val: PositiveInt = 500
    n_test: PositiveInt = 1000
    length: Annotated[int, Field(ge=2)] = 100
    p: Annotated[float, Field(ge=0, le=1)] = 0.8
    steps: tuple[int, int] = (1, 3)
    n_symbols: Annotated[int, Field(ge=3, le=256)] = 10

    @model_validator(mode="after")
    def _classes_differ(self):
        same = (self.steps[0] - self.steps[1]) % self.n_symbols == 0
        if same and self.steps != (0, 0):
            raise ValueError(f"steps={self.steps} are the same walk modulo {self.n_symbols}")
        return self


def sample(config: NeighborConfig, n: int, g: torch.Generator) -> Split:
    """Draw n sequences, as many of each label as can be.

    Args:
        config: the task; only length, p, steps and n_symbols are read.
        n: how many.
        g: source of randomness.

    Returns:
        A split with x (n, length) uint8 and y (n,) int64.
    """
    y = (torch.arange(n) % 2)[torch.randperm(n, generator=g)]
    d = torch.tensor(config.steps)[y]
    jump = torch.randint(config.n_symbols, (n, config.length), generator=g)
    walk = torch.rand(n, config.length, generator=g) < config.p
    x = torch.empty(n, config.length, dtype=torch.int64)
    x[:, 0] = jump[:, 0]
    for t in range(1, config.length):
        x[:, t] = torch.where(walk[:, t], (x[:, t - 1] + d) % config.n_symbols, jump[:, t])
    return Split(x.to(torch.uint8), y)


def load(config: NeighborConfig, seed: int) -> TaskData:
    """Generate all splits, each from its own stream: sizes do not influence one another."""

    def draw(split: str, n: int) -> Split:
        return sample(config, n, generator(seed, "neighbor", split))

    train = draw("train", config.n_train)
    return TaskData(
        kind="tokens",
        n_classes=2,
        max_len=config.length,
        vocab_size=config.n_symbols,
        unlabelled=train,
        train=labelled_subset(train, config.n_labels, generator(seed, "neighbor", "labels")),
        val=draw("val", config.n_val),
        test=draw("test", config.n_test),
        sample=lambda n, g: sample(config, n, g),
        classes=tuple(f"d = {d:+d}" for d in config.steps),
    )
