"""The tasks, by name. A new one is a file here and a line in `Task` and `_LOADERS`."""

from functools import lru_cache
from typing import Annotated

from pydantic import Field

from sptlib.errors import unknown
from sptlib.tasks import image, neighbor
from sptlib.tasks.base import Split, TaskConfig, TaskData
from sptlib.tasks.image import ImageConfig
from sptlib.tasks.neighbor import NeighborConfig

#: any task's configuration; JSON tells them apart by the field `name`
Task = Annotated[NeighborConfig | ImageConfig, Field(discriminator="name")]

CONFIGS: dict[str, type[TaskConfig]] = {"neighbor": NeighborConfig, "image": ImageConfig}
_LOADERS = {"neighbor": neighbor.load, "image": image.load}

__all__ = [
    "CONFIGS",
    "ImageConfig",
    "NeighborConfig",
    "Split",
    "Task",
    "TaskConfig",
    "TaskData",
    "config_class",
    "load",
]


def config_class(name: str) -> type[TaskConfig]:
    """The configuration class of a task; raises `ConfigError` for an unknown name."""
    if not isinstance(name, str) or name not in CONFIGS:
        raise unknown("task", name, CONFIGS)
    return CONFIGS[name]


@lru_cache(maxsize=4096)
def fingerprint(config: TaskConfig, seed: int = 0) -> str:
    """The SHA-256 of the data that `load` gives for the same arguments."""
    return load(config, seed).fingerprint


@lru_cache(maxsize=8)
def load(config: TaskConfig, seed: int = 0) -> TaskData:
    """All splits of a task as tensors on the CPU.

    Args:
        config: which task, and how much of it.
        seed: the Run's seed; ``config.data_seed`` wins where it is set.

    Returns:
        The data, which callers share and must not write into.
    """
    seed = seed if config.data_seed is None else config.data_seed
    return _LOADERS[config.name](config, seed)
