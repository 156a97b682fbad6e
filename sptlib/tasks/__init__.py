"""The tasks, by name. A new one is a file here and a line in `Task` and `_LOADERS`."""

from functools import lru_cache
from typing import Annotated

from pydantic import Field

from sptlib.errors import unknown
from sptlib.tasks import image, listops, neighbor, pathfinder, retrieval, text
from sptlib.tasks.base import Split, TaskConfig, TaskData
from sptlib.tasks.image import ImageConfig
from sptlib.tasks.listops import ListOpsConfig
from sptlib.tasks.neighbor import NeighborConfig
from sptlib.tasks.pathfinder import PathfinderConfig
from sptlib.tasks.retrieval import RetrievalConfig
from sptlib.tasks.text import TextConfig

#: any task's configuration; JSON tells them apart by the field `name`
Task = Annotated[
    NeighborConfig | ListOpsConfig | ImageConfig | PathfinderConfig | RetrievalConfig | TextConfig,
    Field(discriminator="name"),
]

CONFIGS: dict[str, type[TaskConfig]] = {
    "neighbor": NeighborConfig,
    "listops": ListOpsConfig,
    "image": ImageConfig,
    "pathfinder": PathfinderConfig,
    "retrieval": RetrievalConfig,
    "text": TextConfig,
}
_LOADERS = {
    "neighbor": neighbor.load,
    "listops": listops.load,
    "image": image.load,
    "pathfinder": pathfinder.load,
    "retrieval": retrieval.load,
    "text": text.load,
}

__all__ = [
    "CONFIGS",
    "ImageConfig",
    "ListOpsConfig",
    "NeighborConfig",
    "PathfinderConfig",
    "RetrievalConfig",
    "Split",
    "Task",
    "TaskConfig",
    "TaskData",
    "TextConfig",
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
