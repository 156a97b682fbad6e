"""The run store: one folder per result, named by the content hash of what produced it.

An entry holds ``config.json``, ``metrics.jsonl``, ``result.json``, ``model.safetensors``,
``environment.json`` and ``manifest.json`` with the SHA-256 of each; a training that was watched
(``watch`` of its stage) has ``snapshots.safetensors``, too. It is written under a temporary
name, flushed to the disk and renamed, so that it is there whole or not at all; reading verifies;
nothing is unpickled.

Several processes may use one store at once, also from several hosts with a shared file system: a
lease, a small file that its holder touches while it lives, keeps two from computing the same.
"""

import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

from filelock import SoftFileLease
from platformdirs import user_cache_path
from safetensors.torch import load, save
from torch import Tensor

from sptlib.config import Pretraining, Run, from_dict, key, to_dict
from sptlib.errors import NO_SPACE, StoreError, UnreadableError
from sptlib.places import repository_root

FILES = ("config.json", "metrics.jsonl", "result.json", "model.safetensors", "environment.json")
#: weights along the way, of trainings that were watched
SNAPSHOTS = "snapshots.safetensors"
#: seconds after which a lease that is not touched any more is taken over; its holder touches it
#: three times as often. A dead holder on the same host is noticed at once.
LEASE_SECONDS = 30.0
RETRIES = 3  # of reading what may be being replaced


def default_path() -> Path:
    """``$SPTLIB_STORE``, else ``results/store`` under the repository, else the user's cache."""
    if os.environ.get("SPTLIB_STORE"):
        return Path(os.environ["SPTLIB_STORE"])
    root = repository_root()
    return root / "results" / "store" if root else user_cache_path("sptlib") / "store"


def is_key(name: str) -> bool:
    """Whether a name is the key of a result; whatever else lies in a store is not the library's."""
    return re.fullmatch("[0-9a-f]{20}", name) is not None


class Entry:
    """One stored result; files are read, and verified against the manifest, when asked for."""

    def __init__(self, path: Path):
        self.path, self.key = path, path.name

    @cached_property
    def manifest(self) -> dict[str, str]:
        """SHA-256 by file name."""
        try:
            return json.loads((self.path / "manifest.json").read_text())
        except (FileNotFoundError, ValueError) as error:
            raise self._damaged("manifest.json", str(error)) from error
        except OSError as error:
            raise self._unreadable("manifest.json", error) from error

    def _damaged(self, name: str, why: str) -> StoreError:
        return StoreError(
            f"{self.path / name} is damaged ({why}); "
            "`sptlib runs verify --repair` removes the entry, so that it is recomputed"
        )

    def _unreadable(self, name: str, error: OSError) -> StoreError:
        """No permission, or a failing disk or network: the file may well be good."""
        return UnreadableError(f"{self.path / name} cannot be read ({error.strerror or error})")

    def read(self, name: str) -> bytes:
        """The verified bytes of a file; raises `StoreError` if it is missing or altered."""
        for _ in range(RETRIES):
            try:
                return self._read(name)
            except StoreError:
                # somebody may be replacing the entry, or have done so since its manifest was read
                self.__dict__.pop("manifest", None)
                time.sleep(0.02)
        return self._read(name)

    def _read(self, name: str) -> bytes:
        if name not in self.manifest:
            raise StoreError(f"{self.path} holds no {name}")
        try:
            content = (self.path / name).read_bytes()
        except FileNotFoundError as error:
            raise self._damaged(name, error.strerror or str(error)) from error
        except OSError as error:
            raise self._unreadable(name, error) from error
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

    def snapshots(self) -> dict[int, dict[str, Tensor]]:
        """The weights that were kept, by step; raises `StoreError` unless it was watched."""
        if SNAPSHOTS not in self.manifest:
            raise StoreError(f"{self.path} keeps no weights along the way: its watch is 0")
        found: dict[int, dict[str, Tensor]] = {}
        for name, value in load(self.read(SNAPSHOTS)).items():
            step, _, rest = name.partition("/")
            found.setdefault(int(step), {})[rest] = value
        return dict(sorted(found.items()))

    def verify(self) -> None:
        """Read every file; raises `StoreError` at the first fault."""
        self.pack()

    def pack(self) -> dict[str, bytes]:
        """Every file, verified, by name: what `Store.unpack` takes."""
        more = [SNAPSHOTS] if SNAPSHOTS in self.manifest else []
        return {name: self.read(name) for name in (*FILES, *more)}


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
        return only(self, prefix)

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
                if is_key(folder.name) and folder.is_dir():
                    yield Entry(folder)

    def put(
        self,
        spec: Run | Pretraining,
        *,
        metrics: list[dict],
        result: dict,
        model: dict[str, Tensor],
        environment: dict,
        snapshots: Mapping[int, Mapping[str, Tensor]] | None = None,
    ) -> Entry:
        """Publish a result atomically; a damaged entry of the same key is replaced."""
        content = {
            "config.json": _json(to_dict(spec)),
            "metrics.jsonl": "".join(json.dumps(line) + "\n" for line in metrics).encode(),
            "result.json": _json(result),
            "model.safetensors": save({k: v.cpu().contiguous() for k, v in model.items()}),
            "environment.json": _json(environment),
        }
        if snapshots:
            flat = {f"{step}/{k}": v for step, kept in snapshots.items() for k, v in kept.items()}
            content[SNAPSHOTS] = save({k: v.cpu().contiguous() for k, v in flat.items()})
        return self._publish(key(spec), content)

    def unpack(self, name: str, content: Mapping[str, bytes]) -> Entry:
        """Publish what `Entry.pack` of another store gave under this key."""
        files = (*FILES, *({SNAPSHOTS} & set(content)))
        return self._publish(name, {file: content[file] for file in files})

    def _publish(self, name: str, content: dict[str, bytes]) -> Entry:
        sums = {file: hashlib.sha256(data).hexdigest() for file, data in content.items()}
        final = self.path / name
        with self._writing():
            # unlike mkdtemp, with the rights that the umask gives: stores are shared
            draft = self._ensure(".tmp") / f"{name}.{uuid.uuid4().hex}"
            try:
                draft.mkdir()
                for file, data in {**content, "manifest.json": _json(sums)}.items():
                    _write(draft / file, data)
                while True:
                    grave = draft.with_suffix(".old")
                    with suppress(FileNotFoundError):
                        os.replace(final, grave)
                    try:
                        os.replace(draft, final)
                        break
                    except OSError as error:  # somebody else published just now
                        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                            with suppress(OSError):
                                os.replace(grave, final)
                            raise
                    finally:
                        shutil.rmtree(grave, ignore_errors=True)
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
            _flush(self.path)
        return Entry(final)

    def remove(self, name: str) -> None:
        """Take an entry out, atomically: it is renamed before it is deleted."""
        self._ensure(".tmp")
        grave = Path(tempfile.mkdtemp(dir=self.path / ".tmp"))
        with suppress(FileNotFoundError):  # somebody else was faster
            os.replace(self.path / name, grave / name)
        shutil.rmtree(grave)

    def lock(self, spec: Run | Pretraining) -> SoftFileLease:
        """The lease on one result; ``with`` waits for whoever computes the same. See `lease`."""
        return self.lease(key(spec))

    def lease_path(self, name: str) -> Path:
        """The file of that lease."""
        return self.path / ".locks" / f"{name}.lease"

    def lease(self, name: str) -> SoftFileLease:
        """The lease on the result with this key.

        It holds between processes and between hosts that share the folder, and is taken over when
        its holder is dead, or has not touched it for `LEASE_SECONDS`. A holder that was only asleep
        then computes beside its successor: to the same numbers, of which one is kept.
        """
        with self._writing():
            self._ensure(".locks")
        path = self.lease_path(name)
        with suppress(OSError):  # its holder died between making the file and writing its name
            about = path.stat()
            if about.st_size == 0 and time.time() - about.st_mtime > LEASE_SECONDS:
                path.unlink()
        return SoftFileLease(path, lease_duration=LEASE_SECONDS, poll_interval=0.25)

    def work_folder(self, spec: Run | Pretraining) -> Path:
        """Where an unfinished training keeps its checkpoint, and a failed one its log."""
        folder = self._ensure(f".work/{key(spec)}")
        if not (folder / "config.json").exists():
            with self._writing():
                (folder / "config.json").write_bytes(_json(to_dict(spec)))
        return folder

    def fail(self, spec: Run | Pretraining, metrics: list[dict], error: str) -> Path:
        """Keep the log of a training that diverged; returns its path."""
        folder = self.work_folder(spec)
        log = folder / "metrics.jsonl"
        with self._writing():
            (folder / "error.txt").write_text(error + "\n")
            if metrics:
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
            if error.errno in NO_SPACE:
                raise  # `_writing` says it
            raise self._not_writable(error.strerror or str(error)) from error
        if not writable:
            raise self._not_writable("no permission")
        return folder

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A full disk, said such that it can be mended."""
        try:
            yield
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise StoreError(
                f"no space for the store {self.path} ({error.strerror}); nothing half-written is "
                "kept. Free some, or choose another folder with --store or $SPTLIB_STORE, and call "
                "the same command again"
            ) from error

    def _not_writable(self, why: str) -> StoreError:
        return StoreError(
            f"the store {self.path} cannot be written ({why}); "
            "choose another with --store or $SPTLIB_STORE"
        )


def only(place, prefix: str):
    """The one entry of a store, or of exported results, whose key starts so.

    Raises:
        StoreError: for none or several.
    """
    found = [e for e in place.entries() if e.key.startswith(prefix)]
    if len(found) != 1:
        raise StoreError(
            f"{len(found)} entries of {place.path} have a key starting with {prefix!r}; "
            f"`sptlib runs ls --store {place.path}` shows the keys"
        )
    return found[0]


def _write(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    """Wait until a folder's names are on the disk, where that can be asked for."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _json(value) -> bytes:
    return (json.dumps(value, indent=1, default=dataclasses.asdict) + "\n").encode()
