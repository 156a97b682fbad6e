"""What every task is made of: a configuration and whole splits as tensors."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]

#: pydantic's settings for every configuration of the project; unknown fields are refused.
STRICT = {"extra": "forbid"}


@validated(frozen=True, kw_only=True, config=STRICT)
class TaskConfig:
    """The fields that all tasks share; a task subclasses it and adds its own.

    Attributes:
        n_train: training sequences.
        n_val: validation sequences.
        n_test: test sequences.
        n_labels: how many training sequences have a label; 0 = all. Pretraining always sees all
            ``n_train`` inputs.
        data_seed: seed of the data (synthetic tasks) or of the labelled subset (real tasks);
            None = the Run's seed.
        fresh: draw new training sequences at every step; ``n_train`` then only sets how many
            steps an epoch has. Synthetic tasks only.
    """

    n_train: PositiveInt
    n_val: PositiveInt
    n_test: PositiveInt
    n_labels: NonNegativeInt = 0
    data_seed: int | None = None
    fresh: bool = False

    @property
    def n_inputs(self) -> int:
        """Sequences that pretraining sees."""
        return self.n_train

    @model_validator(mode="after")
    def _labels_fit(self):
        if self.n_labels > self.n_train:
            raise ValueError(f"n_labels={self.n_labels} exceeds n_train={self.n_train}")
        return self


@dataclass(frozen=True)
class Split:
    """One split, whole, as compact tensors.

    Attributes:
        x: (N, T) uint8 or int16: token numbers, or pixel values before scaling; (N, 2, T) for
            pairs of sequences.
        y: (N,) int64 labels.
        length: (N,) or (N, 2) int64 valid positions per sequence; None = all T.
        digest: SHA-256 of the tensors where it is known already (they come from a file); "" else.
    """

    x: Tensor
    y: Tensor
    length: Tensor | None = None
    digest: str = ""

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor | slice) -> "Split":
        """The sequences at these indices, as a smaller split."""
        length = None if self.length is None else self.length[index]
        return Split(self.x[index], self.y[index], length)

    def trimmed(self) -> "Split":
        """The same without the positions at the end that are padding in every sequence.

        Batches are trimmed before they are computed; padding would change no number, only cost.
        """
        if self.length is None or (longest := int(self.length.max())) == self.x.shape[-1]:
            return self
        return Split(self.x[..., :longest], self.y, self.length)

    def sequences(self) -> "Split":
        """Single sequences: pairs (N, 2, T) become (2N, T), everything else stays as it is."""
        if self.x.dim() == 2:
            return self
        length = None if self.length is None else self.length.flatten()
        return Split(self.x.flatten(0, 1), self.y.repeat_interleave(2), length)

    def to(self, device: torch.device | str) -> "Split":
        """The same split on another device."""
        length = None if self.length is None else self.length.to(device)
        return Split(self.x.to(device), self.y.to(device), length, self.digest)


@dataclass(frozen=True)
class TaskData:
    """A task's data, ready to train on.

    Attributes:
        kind: "tokens" (x are token numbers below ``vocab_size``) or "pixels" (x / scale in [0, 1]).
        n_classes: number of labels.
        max_len: T, positions per sequence, padding included.
        unlabelled: all training inputs, for pretraining, as single sequences. Its labels are never
            read.
        train: the labelled training sequences.
        sample: ``sample(n, generator)`` draws n fresh sequences; None for real data.
        classes: a name per label, for figures.
        pairs: the labelled splits hold pairs of sequences, whose relation is the label.
        side: pixels per row of an image, which is square; 0 = no image.
        symbols: what each token stands for, for people; empty = its number.
        notes: what readers should know about these data, e.g. how many sequences were cut.
    """

    kind: Literal["tokens", "pixels"]
    n_classes: int
    max_len: int
    unlabelled: Split
    train: Split
    val: Split
    test: Split
    vocab_size: int = 0
    scale: float = 1.0
    sample: Callable[[int, torch.Generator], Split] | None = None
    classes: tuple[str, ...] = ()
    pairs: bool = False
    side: int = 0
    symbols: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fingerprint: str = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "fingerprint", _fingerprint(self))

    def to(self, device: torch.device | str) -> "TaskData":
        """The same data with all splits on one device."""
        moved = {s: getattr(self, s).to(device) for s in ("unlabelled", "train", "val", "test")}
        return replace(self, **moved)


def _fingerprint(data: TaskData) -> str:
    """SHA-256 over every tensor that a result can depend on."""
    digest = hashlib.sha256()
    for split in (data.unlabelled, data.train, data.val, data.test):
        if split.digest:
            digest.update(split.digest.encode())
            continue
        for tensor in (split.x, split.y, split.length):
            if tensor is not None:
                digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
                digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def labelled_subset(train: Split, n_labels: int, g: torch.Generator) -> Split:
    """A class-balanced subset of n_labels sequences (0 = all).

    Subsets drawn with the same generator state are nested: the first 50 are among the first 100.
    """
    if n_labels == 0:
        return train
    order = torch.randperm(len(train), generator=g)
    y = train.y[order]
    # rank of each sequence within its class: taking by (rank, class) goes round the classes in turn
    rank = torch.zeros_like(y)
    for c in y.unique():
        rank[y == c] = torch.arange(int((y == c).sum()))
    turn = torch.argsort(rank * (int(y.max()) + 1) + y, stable=True)
    return train.take(order[turn][:n_labels])
