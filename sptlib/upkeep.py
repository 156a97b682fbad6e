"""Keep a run store in order: take out what nothing reads any more.

Pruning looks first and removes second. Whatever is removed is looked at again under its lease, and
renamed before it is deleted, so that neither a training that runs meanwhile nor an end in the
middle leaves a half entry.
"""

import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, LeaseSettingsMismatch, SoftFileLease, Timeout
from safetensors import SafetensorError, safe_open

from sptlib import config, export
from sptlib.config import digest, from_dict, key
from sptlib.errors import SptError, StoreError, UnreadableError
from sptlib.export import UNREADABLE
from sptlib.store import LEASE_SECONDS, Entry, Store, is_key

#: seconds; a draft that was touched since then may belong to a process that is still writing
GRACE = 3600.0


# --- unfinished and failed trainings ------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """A folder of ``.work``: an unfinished training, or the log of one that failed.

    Attributes:
        path: the folder; its name is the key.
        fields: the configuration; empty where it was not kept.
        error: why it failed; "" if it did not.
        step: of the checkpoint; None without one.
        touched: when a file in it was last changed, in seconds since 1970.
    """

    path: Path
    fields: dict[str, Any]
    error: str
    step: int | None
    touched: float

    @property
    def key(self) -> str:
        return self.path.name

    @property
    def n_steps(self) -> int | None:
        """Planned steps; None where the configuration is not known."""
        try:
            return from_dict(self.fields).n_steps if self.fields else None
        except UNREADABLE:
            return None


def work(store: Store) -> list[Work]:
    """What lies in ``.work``, in the order of the keys."""
    folders = [path for path in _inside(store, ".work") if is_key(path.name)]
    return [_look(path) for path in folders if path.is_dir()]


def _look(path: Path) -> Work:
    try:
        fields = json.loads((path / "config.json").read_text())
        fields = fields if isinstance(fields, dict) else {}
    except (OSError, ValueError):
        fields = {}
    try:
        error = (path / "error.txt").read_text(errors="replace").strip()
    except OSError:
        error = ""
    steps = [step for file in path.glob("*.safetensors") if (step := _step(file)) is not None]
    return Work(path, fields, error, max(steps, default=None), _touched(path))


def _step(checkpoint: Path) -> int | None:
    """How far a checkpoint is; 0 if it cannot be told, None if there is none."""
    try:
        with safe_open(checkpoint, "np") as file:
            return int(json.loads(file.metadata()["state"])["step"])
    except FileNotFoundError:  # finished just now
        return None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return 0


def _inside(store: Store, name: str) -> list[Path]:
    folder = store.path / name
    return sorted(folder.iterdir()) if os.path.isdir(folder) else []


def _files(path: Path) -> Iterator[os.stat_result]:
    """Of a file, or of a folder and everything in it; what goes meanwhile is passed over."""
    inside = [] if path.is_symlink() else os.walk(path)  # of a file, nothing
    for each in [path, *(Path(at, n) for at, folders, files in inside for n in folders + files)]:
        try:
            yield each.lstat()
        except FileNotFoundError:
            continue


def _touched(path: Path) -> float:
    return max((about.st_mtime for about in _files(path)), default=time.time())


# --- leases -------------------------------------------------------------------------------------


@contextmanager
def holding(store: Store, name: str) -> Iterator[bool]:
    """Hold the lease on a key without waiting; yields False if a living process has it."""
    lease = store.lease(name)
    if _forgotten(store.lease_path(name)):
        store.lease_path(name).unlink(missing_ok=True)
    taken = _take(lease)
    try:
        yield taken
    finally:
        if taken:
            lease.release()


def in_use(store: Store, name: str) -> bool:
    """Whether a living process, or one on another host, holds a lease; nothing is changed."""
    path = store.lease_path(name)
    if _forgotten(path):
        return False
    with tempfile.TemporaryDirectory(prefix="sptlib-") as folder:
        try:
            copy = Path(shutil.copy2(path, folder))
        except FileNotFoundError:
            return False
        except PermissionError:  # another user's
            return True
        lease = SoftFileLease(copy, lease_duration=LEASE_SECONDS)
        taken = _take(lease)  # whose process is dead can be taken over, the copy as well
        if taken:
            lease.release()
        return not taken


def _forgotten(path: Path) -> bool:
    """Whether nobody touched a lease for `GRACE`, on whatever host: its holder did, while alive."""
    return path.exists() and time.time() - path.stat().st_mtime > GRACE


def _take(lease: SoftFileLease) -> bool:
    for _ in range(2):  # where a dead holder's file cannot be exchanged, the first only removes it
        try:
            lease.acquire(timeout=0)
            return True
        except (Timeout, LeaseSettingsMismatch, PermissionError):
            continue
    return False


def repair(store: Store, name: str) -> bool:
    """Remove an entry if it is damaged; False if it is in use, or was mended meanwhile."""
    with holding(store, name) as free:
        entry = store.find(name)
        if not free or entry is None or not _damaged(entry):
            return False
        store.remove(name)
        return True


def _fault(entry: Entry) -> Exception | None:
    """What is wrong with an entry; None = nothing."""
    try:
        entry.verify()
    except UNREADABLE as error:
        return error
    return None


def _damaged(entry: Entry) -> bool:
    """Whether its content is wrong; of a file that cannot be read, nobody knows."""
    fault = _fault(entry)
    return fault is not None and not isinstance(fault, UnreadableError)


# --- pruning ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Litter:
    """Something that can go.

    Attributes:
        path: file or folder.
        why: a phrase.
        size: bytes.
        key: of the result whose lease guards it; "" = none does.
        again: looks again; "" = it shall stay after all.
    """

    path: Path
    why: str
    size: int
    key: str
    again: Callable[[], str]


@dataclass
class Pruning:
    """What can go from a store.

    Always: drafts that were never finished, leases of the dead, checkpoints and logs of trainings
    that are stored by now, and entries that are never served again, since they are of an older
    version or their data have changed. What is not a part of the store is not touched, nor is what
    a living process works at, what a newer version has written, or what is damaged.

    Args:
        store: the run store.
        unfinished: checkpoints as well.
        failed: logs of failed trainings as well.
        keep: `sptlib.config.digest` of what shall stay; all other entries go. None = all stay.

    Attributes:
        notes: what stays although one might expect it to go, and why.
    """

    store: Store
    unfinished: bool = False
    failed: bool = False
    keep: Collection[str] | None = None
    notes: list[str] = field(default_factory=list)

    def look(self) -> list[Litter]:
        """Everything that can go; nothing is changed."""
        self.notes.clear()
        found = [*self._entries(), *self._work(), *self._drafts(), *self._leases()]
        busy = {name for name in {x.key for x in found if x.key} if in_use(self.store, name)}
        self.notes += [f"{x.path}: left alone, it is in use" for x in found if x.key in busy]
        return [x for x in found if x.key not in busy]

    def remove(self, item: Litter) -> bool:
        """Remove it; False if it is in use now, or was wanted or removed meanwhile."""
        if not item.key:
            return bool(item.again()) and self._bury(item.path)
        with holding(self.store, item.key) as free:
            if not free or not item.again():
                return False
            # the lease itself goes when it is released
            return item.path == self.store.lease_path(item.key) or self._bury(item.path)

    def _bury(self, path: Path) -> bool:
        graves = self.store.path / ".tmp"
        graves.mkdir(exist_ok=True)
        grave = graves / uuid.uuid4().hex
        try:
            os.replace(path, grave)
        except FileNotFoundError:
            return False
        if grave.is_dir() and not grave.is_symlink():
            shutil.rmtree(grave, ignore_errors=True)
        else:
            grave.unlink()
        return True

    def _litter(self, path: Path, name: str, look: Callable[[], str]) -> Iterator[Litter]:
        if why := look():
            yield Litter(path, why, sum(about.st_size for about in _files(path)), name, look)

    def _entries(self) -> Iterator[Litter]:
        for entry in self.store.entries():
            look = lambda entry=entry: self._why_entry(Entry(entry.path))  # noqa: E731
            yield from self._litter(entry.path, entry.key, look)

    def _why_entry(self, entry: Entry) -> str:
        try:
            if why := _other_version(export.part(entry, "config")):
                return why
            if self.keep is not None and digest(entry.spec) not in self.keep:
                return "result that --keep does not name"
        except UNREADABLE as error:
            self.notes.append(f"{entry.path}: left alone ({export.explain(error)})")
            return ""
        try:
            same = key(entry.spec) == entry.key
        except SptError as error:
            self.notes.append(f"{entry.path}: left alone, its data are not here ({error})")
            return ""
        if not same and entry.spec.kind.startswith("polar") and entry.spec.task.source == "files":
            self.notes.append(f"{entry.path}: left alone, it is about other posts than are here")
            return ""
        return "" if same else "result on other data than there are now, never served again"

    def _work(self) -> Iterator[Litter]:
        for each in work(self.store):
            look = lambda path=each.path: self._why_work(_look(path))  # noqa: E731
            yield from self._litter(each.path, each.key, look)

    def _why_work(self, each: Work) -> str:
        if not each.path.is_dir():
            return ""
        stored = self.store.find(each.key)
        if stored is not None and _fault(stored) is None:
            return "left over from a training that is stored"
        try:
            if each.fields and (why := _other_version(each.fields)):
                return why
        except UNREADABLE as error:
            self.notes.append(f"{each.path}: left alone ({export.explain(error)})")
            return ""
        if each.step is not None:  # it may have failed, too: for lack of memory, say
            return "checkpoint of an unfinished training" if self.unfinished else ""
        if each.error:
            return "log of a training that failed" if self.failed else ""
        names = {name for _, _, files in os.walk(each.path) for name in files} - {"config.json"}
        drafts = {n for n in names if n.startswith(".tmp") or n.endswith(".tmp")}
        return "folder of a training that left nothing" if names == drafts else ""

    def _drafts(self) -> Iterator[Litter]:
        for path in _inside(self.store, ".tmp"):
            name = path.name.split(".")[0]
            look = lambda path=path: self._why_draft(path)  # noqa: E731
            yield from self._litter(path, name if is_key(name) else "", look)

    def _why_draft(self, path: Path) -> str:
        there = os.path.lexists(path)
        old = there and time.time() - _touched(path) > GRACE
        return "draft of something that was never finished" if old else ""

    def _leases(self) -> Iterator[Litter]:
        for path in _inside(self.store, ".locks"):
            if not is_key(path.stem):
                continue
            if path.suffix == ".lock":
                yield from self._litter(path, "", lambda path=path: _why_lock(path))
            elif path.suffix == ".lease" and not in_use(self.store, path.stem):
                yield from self._litter(path, path.stem, lambda: "lease of a process that is dead")


def _other_version(fields: dict) -> str:
    """Why this version and later ones never serve it; "" if they do; raises for a newer one's."""
    found, today = (fields["schema"], fields["numerics"]), (config.SCHEMA, config.NUMERICS)
    if found[0] > today[0] or found[1] > today[1]:
        raise StoreError("a newer version of sptlib has written it")
    old = "of an older version (schema {}, numerics {}), never served again".format(*found)
    return old if found != today else ""


def _why_lock(path: Path) -> str:
    """Locks of earlier versions stay behind when they are released."""
    if not path.exists():
        return ""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except OSError:  # held, or not ours to open
        return ""
    lock.release()
    return "lock of an earlier version"
