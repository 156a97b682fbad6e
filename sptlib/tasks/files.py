"""What the tasks that read files or packages share: where they look, and fixed splits."""

from pathlib import Path

import torch
from torch import Tensor

from sptlib.data.cache import Mapped
from sptlib.errors import ConfigError, DataError
from sptlib.places import data_home
from sptlib.seeding import generator
from sptlib.tasks.base import Split


def folder(name: str, command: str) -> Path:
    """The folder of a data set; raises `DataError` naming the command that gets it.

    Args:
        name: of the data set.
        command: what follows ``sptlib data``.
    """
    path = data_home() / name
    if not path.is_dir() or not any(path.iterdir()):
        raise DataError(path, f"there is nothing; `sptlib data {command}` gets it")
    return path


def fixed_splits(n: int, n_val: int, n_test: int, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of training, validation and test sequences in a set without splits of its own.

    The order is fixed, and test and validation are cut off first: no seed changes them.

    Args:
        n: sequences in the set.
        n_val: validation sequences.
        n_test: test sequences.
        name: of the set, for the order and the message.

    Returns:
        All that is left for training, validation, test.

    Raises:
        ConfigError: if nothing is left for training.
    """
    if n_val + n_test >= n:
        raise ConfigError(
            f"n_val + n_test = {n_val + n_test} leave nothing of {name}, which has {n}"
        )
    order = torch.randperm(n, generator=generator(name, "split"))
    test, val, train = order.split([n_test, n_val, n - n_test - n_val])
    return train, val, test


def drawn(index: Tensor, n: int, what: str, *stream: str | int) -> Tensor:
    """n of these indices, by the seed; all of them, in their order, if that is how many there are.

    Raises:
        ConfigError: if there are fewer.
    """
    if n > len(index):
        raise ConfigError(f"{n} wanted, but {what} has {len(index)}")
    if n == len(index):
        return index
    return index[torch.randperm(len(index), generator=generator(*stream))[:n]]


def as_split(found: Mapped) -> Split:
    """A cached split, with its digest."""
    return Split(found["x"], found["y"], found.get("length"), found.digest)


def first(found: Mapped, n: int, what: str) -> Split:
    """The first n sequences of a cached split; raises `ConfigError` if there are fewer."""
    split = as_split(found)
    if n > len(split):
        raise ConfigError(f"{n} wanted, but {what} has {len(split)}")
    return split if n == len(split) else split.take(slice(0, n))


def cut_note(n_cut: int, n: int, max_len: int) -> tuple[str, ...]:
    """What to say about truncated sequences; nothing if there are none."""
    if not n_cut:
        return ()
    return (f"{n_cut:,} of {n:,} sequences were cut to {max_len:,} positions",)
