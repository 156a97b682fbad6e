"""Where things lie: the checkout, and the data."""

import os
from pathlib import Path

from platformdirs import user_cache_path


def repository_root() -> Path | None:
    """The project's checkout that the current folder lies in, or None."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "_config.yml").is_file() and (folder / "sptlib").is_dir():
            return folder
    return None


def data_home() -> Path:
    """``$SPTLIB_DATA``, else ``data`` in the checkout, else the user's cache.

    Each data set has a folder of its own in it; ``.cache`` holds what was read or generated once,
    as tensors.
    """
    named = os.environ.get("SPTLIB_DATA", "").strip()
    if named:
        return Path(named).expanduser()
    root = repository_root()
    return root / "data" if root else user_cache_path("sptlib") / "data"
