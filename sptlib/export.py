"""Results without weights, as files that are small enough to ship.

One line of JSON per training: its configuration, result, evaluations, thinned losses and
environment. A manifest beside the files holds the SHA-256 of each. Such a folder reads like a run
store, and is never written to; entries are found again by their configuration alone, so that no
data have to be generated to look at them.
"""

import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from sptlib import config
from sptlib.config import Pretraining, Run, digest, from_dict
from sptlib.data import cache
from sptlib.errors import SptError, StoreError
from sptlib.formats.base import writing
from sptlib.generators import listops, pathfinder
from sptlib.store import Entry, Store, is_key, only

MANIFEST = "manifest.json"
#: most points of a loss curve; each is the mean over the steps since the last one
POINTS = 100
#: what reading an entry may raise that is damaged, or that somebody else has put there
UNREADABLE = (SptError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)

Made = TypeVar("Made")


def is_export(path: str | Path) -> bool:
    """Whether a folder holds exported results (`Study`) rather than a run store."""
    if not os.path.isfile(Path(path) / MANIFEST):
        return False
    # every entry of a store has a manifest, too, and one may export into the folder of a store
    names = os.listdir(path)
    return not any(n in ("config.json", ".tmp", ".locks", ".work") or is_key(n) for n in names)


def opened(path: str | Path | None = None) -> "Store | Study":
    """What lies in a folder, for reading: a run store or exported results.

    Args:
        path: the folder; None = `sptlib.store.default_path`.
    """
    store = Store(path)
    return Study(store.path) if is_export(store.path) else store


def run_store(path: str | Path | None = None) -> Store:
    """The run store in a folder, for writing; raises `StoreError` if it holds exported results."""
    place = opened(path)
    if isinstance(place, Study):
        raise StoreError(
            f"{place.path} holds exported results, which are only read; "
            "name a run store with --store or $SPTLIB_STORE"
        )
    return place


def faults(place: "Store | Study") -> list[StoreError]:
    """What is damaged apart from entries: files of an export."""
    return place.faults if isinstance(place, Study) else []


def part(entry: "Entry | Shipped", name: str) -> dict[str, Any]:
    """``config``, ``result`` or ``environment`` of an entry as it is stored.

    Raises:
        StoreError: if it is damaged.
    """
    if isinstance(entry, Shipped):
        found = entry.row[name]
    else:
        found = json.loads(entry.read(f"{name}.json"))
    if not isinstance(found, dict):
        raise StoreError(f"{name}.json of {entry.key} is not what this library writes")
    return found


def is_current(entry: "Entry | Shipped") -> bool:
    """Whether an entry has today's layout, arithmetic and, if it is shipped, versions of data."""
    fields = part(entry, "config")
    today = (config.SCHEMA, config.NUMERICS)
    if (fields.get("schema"), fields.get("numerics")) != today:
        return False
    return not isinstance(entry, Shipped) or entry.versions == versions(fields["kind"])


def gather(
    entries: Iterable["Entry | Shipped"], make: Callable[["Entry | Shipped"], Made]
) -> tuple[list[Made], list[str]]:
    """``make(entry)`` of every entry that can be read, and a message for each that cannot."""
    made, left_out = [], []
    for entry in entries:
        try:
            made.append(make(entry))
        except UNREADABLE as error:
            left_out.append(f"{entry.key}: {explain(error)}")
    return made, left_out


def explain(error: BaseException) -> str:
    """What reading an entry raised, as a line; the kind of error where it says little by itself."""
    return str(error) if isinstance(error, SptError) else f"{type(error).__name__}: {error}"


def thinned(metrics: Sequence[dict]) -> list[dict]:
    """The log with every evaluation and look at attention, and at most `POINTS` losses."""
    losses = [line for line in metrics if "loss" in line]
    size = max(1, -(-len(losses) // POINTS))
    kept = []
    for start in range(0, len(losses), size):
        piece = losses[start : start + size]
        mean = sum(line["loss"] for line in piece) / len(piece)
        kept.append({**piece[-1], "loss": round(mean, 5)})
    others = [line for line in metrics if "loss" not in line]
    return sorted([*kept, *others], key=lambda line: line["step"])


def write(path: Path, entries: Iterable["Entry | Shipped"]) -> int:
    """Write entries to a file and its checksum to the manifest beside it; returns how many.

    A name that ends in ``.gz`` is compressed.
    """
    return write_rows(path, [row(entry) for entry in entries])


def write_rows(path: Path, rows: Sequence[dict]) -> int:
    """The same for what `row` gave."""
    rows = sorted(rows, key=lambda row: row["key"])
    content = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)  # the same rows give the same bytes
    manifest = path.with_name(MANIFEST)
    known = _sums(manifest) if manifest.is_file() else {}
    with writing(path) as file:
        file.write(content)
    known[path.name] = hashlib.sha256(content).hexdigest()
    with writing(manifest) as file:
        file.write((json.dumps(known, indent=1, sort_keys=True) + "\n").encode())
    return len(rows)


def not_beside(path: Path, rows: Sequence[dict]) -> list[dict]:
    """Those rows that no other exported file of the folder has, as they are."""
    others = {e.key: e.row for e in Study(path.parent).entries() if e.path.name != path.name}
    return [row for row in rows if others.get(row["key"]) != row]


def _sums(manifest: Path) -> dict[str, str]:
    """SHA-256 by file name."""
    try:
        found = json.loads(manifest.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"{manifest} cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise StoreError(f"{manifest} is not what `sptlib runs export --metrics-only` writes")
    return found


def versions(kind: str = "run") -> dict[str, int | str]:
    """The versions of everything that data come from; results on other data are not shown.

    Args:
        kind: of the training, see `sptlib.config.KINDS`.
    """
    if kind.startswith("polar"):
        from sptlib.polar import config as polar
        from sptlib.polar import generator

        return {"polar": polar.VERSION, "posts": generator.fingerprint()}
    return {
        "listops": listops.VERSION,
        "pathfinder": pathfinder.VERSION,
        "files": cache.VERSION,
    }


def row(entry: "Entry | Shipped") -> dict:
    """The line of an entry.

    Raises:
        StoreError: if it is damaged, or was computed on other data than its configuration gives
            today.
    """
    if isinstance(entry, Shipped):
        return entry.row
    if config.key(entry.spec) != entry.key:
        raise StoreError(
            f"{entry.path} was computed on other data, or with another version, than its "
            "configuration gives today; compute it anew before it is exported"
        )
    return {
        "key": entry.key,
        "data": entry.spec.data(),
        "versions": versions(entry.spec.kind),
        "config": part(entry, "config"),
        "result": entry.result,
        "metrics": thinned(entry.metrics),
        "environment": entry.environment,
    }


class Shipped:
    """One training of an exported file; reads like an `Entry` that has no weights.

    Attributes:
        row: the line of the file.
        path: of the file.
        key: under which it was stored.
        fingerprint: SHA-256 of the data it was computed on.
        versions: of what the data came from; see `sptlib.export.versions`.
        result: the summary.
        metrics: the thinned log.
        environment: versions, commit, device, threads and seconds.
    """

    def __init__(self, row: dict, path: Path):
        self.row, self.path = row, path
        self.key, self.fingerprint = row["key"], row["data"]
        self.versions: dict[str, int] = row["versions"]
        self.result, self.metrics, self.environment = (
            row[name] for name in ("result", "metrics", "environment")
        )

    @cached_property
    def spec(self) -> Run | Pretraining:
        """What was computed; raises `ConfigError` if it is of another `SCHEMA`."""
        return from_dict(self.row["config"])


class Study:
    """The exported files of a folder, as a read-only store.

    Args:
        path: ``data/study`` of the checkout.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)

    @cached_property
    def _read(self) -> tuple[dict[str, Shipped], list[StoreError]]:
        """Entries by key, and what could not be read."""
        found: dict[str, Shipped] = {}
        faults: list[StoreError] = []
        manifest = self.path / MANIFEST
        try:
            sums = _sums(manifest) if manifest.is_file() else {}
        except StoreError as error:
            return found, [error]
        for name, expected in sums.items():
            path = self.path / name
            content = path.read_bytes() if path.is_file() else b""
            if hashlib.sha256(content).hexdigest() != expected:
                faults.append(
                    StoreError(
                        f"{path} is missing or altered: its SHA-256 is not the one in {manifest}; "
                        "take it from the repository again"
                    )
                )
                continue
            lines = gzip.decompress(content) if path.suffix == ".gz" else content
            for number, line in enumerate(lines.splitlines(), 1):
                try:
                    entry = Shipped(json.loads(line), path)
                    if is_current(entry):
                        entry.spec  # noqa: B018 - what is of this version can be read
                    found.setdefault(entry.key, entry)
                except UNREADABLE as error:
                    faults.append(StoreError(f"{path}:{number} is no result ({explain(error)})"))
        return dict(sorted(found.items())), faults

    @property
    def faults(self) -> list[StoreError]:
        """Files that are missing or not the ones that were exported, lines that are no results."""
        return self._read[1]

    def entries(self) -> Iterator[Shipped]:
        """All entries that can be read, of other versions as well, in the order of their keys."""
        yield from self._read[0].values()

    def find(self, name: str) -> Shipped | None:
        """The entry with this key, or None."""
        return self._read[0].get(name)

    def match(self, prefix: str) -> Shipped:
        """The one entry whose key starts so; raises `StoreError` for none or several."""
        return only(self, prefix)

    @cached_property
    def _by_digest(self) -> dict[str, Shipped]:
        # other arithmetic or other data, other results
        return {digest(entry.spec): entry for entry in self.entries() if is_current(entry)}

    def get(self, spec: Run | Pretraining) -> Shipped | None:
        """The exported result of this configuration under the present numerics, or None.

        Raises:
            StoreError: if a file is missing or is not the one that was exported.
        """
        if self.faults:
            raise self.faults[0]
        return self._by_digest.get(digest(spec))
