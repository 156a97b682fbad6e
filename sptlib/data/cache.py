"""Tensors that were read or generated once, kept as memory-mapped safetensors files.

The first use of a large data set parses or generates it; every later one maps a file into memory,
which takes no time and no more memory than is looked at.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sptlib.errors import DataError
from sptlib.formats.base import writing
from sptlib.places import data_home

#: raise it when any reader, alphabet or cut gives other tensors than before for the same files (a
#: test pins what the tasks load); generators have a version of their own
VERSION = 1


#: files of at most so many bytes are compared with their digest when they are opened
VERIFIED = 2**29


class Mapped(dict[str, Tensor]):
    """Tensors by name, with the digest of their bytes.

    Attributes:
        digest: SHA-256 over names, shapes, types and bytes.
        notes: what the maker said, e.g. how many rows were truncated.
        path: of the cached file.
    """

    digest: str = ""
    notes: dict
    path: Path


def cached(
    name: str,
    parts: object,
    make: Callable[[], tuple[dict[str, Tensor], dict]],
) -> Mapped:
    """The tensors of this name and these parameters; made now if they are not in the cache.

    Args:
        name: of the data set and split, for people who look into the folder.
        parts: everything that the tensors depend on, as JSON values (source files by size and
            time of change, sizes, seed, version of the generator).
        make: returns the tensors and notes (JSON values).

    Returns:
        The tensors, memory-mapped. They are shared: nobody writes into them.
    """
    text = json.dumps([VERSION, name, parts], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:20]
    path = data_home() / ".cache" / f"{name}-{key}.safetensors"
    found = _open(path, text)
    if found is not None:
        return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            found = _open(path, text)  # another process may have been faster
            if found is not None:
                return found
            tensors, notes = make()
            tensors = {k: v.contiguous() for k, v in tensors.items()}
            metadata = {"digest": digest(tensors), "notes": json.dumps(notes), "parts": text}
            with writing(path) as file:
                file.write(save(tensors, metadata=metadata))
            del tensors  # the mapped file takes their place
    except OSError as error:
        raise DataError(
            error.filename or path.parent,
            f"cannot be written ({error.strerror or error}); name another folder for data by "
            "$SPTLIB_DATA",
        ) from error
    found = _open(path, text)
    assert found is not None
    return found


def digest(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over names, shapes, types and bytes of tensors."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        sha.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        sha.update(memoryview(tensor.flatten().view(torch.uint8).numpy()))
    return sha.hexdigest()


def _open(path: Path, parts: str) -> Mapped | None:
    """The file, mapped; None if it is not there or not what was written (it is then made anew)."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            found = Mapped({k: file.get_tensor(k) for k in file.keys()})  # noqa: SIM118
        found.digest, found.path = metadata["digest"], path
        found.notes = json.loads(metadata["notes"])
        whole = metadata["parts"] == parts
        if path.stat().st_size <= VERIFIED:
            whole = whole and digest(found) == found.digest
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
    return found if whole else None


def stamp(*paths: Path) -> list:
    """Name, size and time of change of source files, for ``parts``: changed files are read anew."""
    try:
        return [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in paths]
    except OSError as error:
        raise DataError(error.filename, f"cannot be read ({error.strerror})") from error
