"""The run store: one folder per result, named by the content hash of what produced it.

An entry holds ``config.json``, ``metrics.jsonl``, ``result.json``, ``model.safetensors``,
``environment.json`` and ``manifest.json`` with the SHA-256 of each. It is written under a temporary
name and renamed, so that it is there whole or not at all; reading verifies; nothing is unpickled.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path
from safetensors.torch import load, save
from torch import Tensor

from sptlib.config import Pretraining, Run, from_dict, key, to_dict
from sptlib.errors import StoreError
from sptlib.places import repository_root

FILES = ("config.json", "metrics.jsonl", "result.json", "model.safetensors", "environment.json")


def default_path() -> Path:
    """``$SPTLIB_STORE``, else ``results/store`` under the repository, else the user's cache."""
    if os.environ.get("SPTLIB_STORE"):
        return Path(os.environ["SPTLIB_STORE"])
    root = repository_root()
    return root / "results" / "store" if root else user_cache_path("sptlib") / "store"


class Entry:
    """One stored result; files are read, and verified against the manifest, when asked for."""

    def __init__(self, path: Path):
        self.path, self.key = path, path.name

    @cached_property
    def manifest(self) -> dict[str, str]:
        """SHA-256 by file name."""
        try:
            return json.loads((self.path / "manifest.json").read_text())
        except (OSError, ValueError) as error:
            raise self._damaged("manifest.json", str(error)) from error

    def _damaged(self, name: str, why: str) -> StoreError:
        return StoreError(
            f"{self.path / name} is damaged ({why}); "
            "`sptlib runs verify --repair` removes the entry, so that it is recomputed"
        )

    def read(self, name: str) -> bytes:
        """The verified bytes of a file; raises `StoreError` if it is missing or altered."""
        if name not in self.manifest:
            raise StoreError(f"{self.path} holds no {name}")
        try:
            content = (self.path / name).read_bytes()
        except OSError as error:
            raise self._damaged(name, error.strerror or str(error)) from error
        if hashlib.sha256(content).hexdigest() != self.manifest[name]:
            raise self._damaged(name, f"{len(content)} bytes whose SHA-256 is not the recorded one")
        return content

    @cached_property
    def spec(self) -> Run | Pretraining:
        """What was computed."""
        return from_dict(json.loads(self.read("config.json")))

    @cached_property
    def result(self) -> dict:
        """The summary: steps, best step, accuracies, losses, transferred and frozen parameters."""
        return json.loads(self.read("result.json"))

    @cached_property
    def metrics(self) -> list[dict]:
        """Every logged line, in order."""
        return [json.loads(line) for line in self.read("metrics.jsonl").splitlines()]

    @cached_property
    def environment(self) -> dict:
        """Versions, device, threads and seconds; no number depends on reading it."""
        return json.loads(self.read("environment.json"))

    def model(self) -> dict[str, Tensor]:
        """The best weights, by parameter name."""
        return load(self.read("model.safetensors"))

    def verify(self) -> None:
        """Read every file; raises `StoreError` at the first fault."""
        for name in FILES:
            self.read(name)


class Store:
    """A folder of results.

    Args:
        path: the folder; None = `default_path`. It is created when something is written.
    """

    def __init__(self, path: str | Path | None = None):
        self.path = Path(path) if path is not None else default_path()

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def get(self, spec: Run | Pretraining) -> Entry | None:
        """The stored result of this configuration, or None."""
        return self.find(key(spec))

    def find(self, name: str) -> Entry | None:
        """The entry with this key, or None."""
        folder = self.path / name
        return Entry(folder) if os.path.isdir(folder) else None  # False also where one may not look

    def match(self, prefix: str) -> Entry:
        """The one entry whose key starts so; raises `StoreError` for none or several."""
        found = [e for e in self.entries() if e.key.startswith(prefix)]
        if len(found) != 1:
            raise StoreError(
                f"{len(found)} entries of {self.path} have a key starting with "
                f"{prefix!r}; `sptlib runs ls` shows the keys"
            )
        return found[0]

    def entries(self) -> Iterator[Entry]:
        """All entries, in the order of their keys."""
        if os.path.isdir(self.path):
            try:
                folders = sorted(self.path.iterdir())
            except OSError as error:
                raise StoreError(
                    f"the store {self.path} cannot be read ({error.strerror or error})"
                ) from error
            for folder in folders:
                if folder.is_dir() and not folder.name.startswith("."):
                    yield Entry(folder)

    def put(
        self,
        spec: Run | Pretraining,
        *,
        metrics: list[dict],
        result: dict,
        model: dict[str, Tensor],
        environment: dict,
    ) -> Entry:
        """Publish a result atomically; a damaged entry of the same key is replaced."""
        name = key(spec)
        content = {
            "config.json": _json(to_dict(spec)),
            "metrics.jsonl": "".join(json.dumps(line) + "\n" for line in metrics).encode(),
            "result.json": _json(result),
            "model.safetensors": save({k: v.cpu().contiguous() for k, v in model.items()}),
            "environment.json": _json(environment),
        }
        content["manifest.json"] = _json(
            {k: hashlib.sha256(v).hexdigest() for k, v in content.items()}
        )
        self._ensure(".tmp")
        draft = self.path / ".tmp" / f"{name}.{uuid.uuid4().hex}"
        draft.mkdir()  # unlike mkdtemp, with the rights that the umask gives: stores are shared
        for file, data in content.items():
            (draft / file).write_bytes(data)
        final = self.path / name
        if final.exists():
            self.remove(name)
        os.replace(draft, final)
        return Entry(final)

    def remove(self, name: str) -> None:
        """Take an entry out, atomically: it is renamed before it is deleted."""
        self._ensure(".tmp")
        grave = Path(tempfile.mkdtemp(dir=self.path / ".tmp"))
        os.replace(self.path / name, grave / name)
        shutil.rmtree(grave)

    def lock(self, spec: Run | Pretraining) -> FileLock:
        """A lock on one result, so that two processes do not compute the same thing twice."""
        return FileLock(self._ensure(".locks") / f"{key(spec)}.lock")

    def work_folder(self, spec: Run | Pretraining) -> Path:
        """Where an unfinished training keeps its checkpoint, and a failed one its log."""
        return self._ensure(f".work/{key(spec)}")

    def fail(self, spec: Run | Pretraining, metrics: list[dict], error: str) -> Path:
        """Keep the log of a training that diverged; returns its path."""
        folder = self.work_folder(spec)
        (folder / "config.json").write_bytes(_json(to_dict(spec)))
        (folder / "error.txt").write_text(error + "\n")
        log = folder / "metrics.jsonl"
        log.write_text("".join(json.dumps(line) + "\n" for line in metrics))
        return log

    def work_root(self) -> Path:
        """The folder of unfinished trainings; raises `StoreError` if it cannot be written."""
        return self._ensure(".work")

    def _ensure(self, sub: str) -> Path:
        folder = self.path / sub
        try:
            folder.mkdir(parents=True, exist_ok=True)
            writable = os.access(folder, os.W_OK)
        except OSError as error:
            raise self._not_writable(error.strerror or str(error)) from error
        if not writable:
            raise self._not_writable("no permission")
        return folder

    def _not_writable(self, why: str) -> StoreError:
        return StoreError(
            f"the store {self.path} cannot be written ({why}); "
            "choose another with --store or $SPTLIB_STORE"
        )


def _json(value) -> bytes:
    return (json.dumps(value, indent=1, default=dataclasses.asdict) + "\n").encode()
