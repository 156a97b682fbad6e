"""Results without weights, as a file that is small enough to ship.

One line of JSON per training: its configuration, result, evaluations, thinned losses and
environment. A manifest beside the files holds the SHA-256 of each. Entries are found again by their
configuration alone, so that no data have to be generated to look at them.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from sptlib import config, tasks
from sptlib.config import Pretraining, Run, digest, from_dict
from sptlib.data import cache
from sptlib.errors import StoreError
from sptlib.formats.base import writing
from sptlib.generators import listops, pathfinder
from sptlib.store import Entry

MANIFEST = "manifest.json"
#: most points of a loss curve; each is the mean over the steps since the last one
POINTS = 100


def thinned(metrics: Sequence[dict]) -> list[dict]:
    """The log with every evaluation, and at most `POINTS` losses."""
    losses = [line for line in metrics if "loss" in line]
    size = max(1, -(-len(losses) // POINTS))
    kept = []
    for start in range(0, len(losses), size):
        part = losses[start : start + size]
        mean = sum(line["loss"] for line in part) / len(part)
        kept.append({**part[-1], "loss": round(mean, 5)})
    evaluations = [line for line in metrics if "best" in line]
    return sorted([*kept, *evaluations], key=lambda line: line["step"])


def write(path: Path, entries: Iterable[Entry]) -> int:
    """Write entries to a file and its checksum to the manifest beside it; returns how many."""
    rows = sorted((_row(entry) for entry in entries), key=lambda row: row["key"])
    content = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows).encode()
    with writing(path) as file:
        file.write(content)
    manifest = path.with_name(MANIFEST)
    known = json.loads(manifest.read_text()) if manifest.is_file() else {}
    known[path.name] = hashlib.sha256(content).hexdigest()
    with writing(manifest) as file:
        file.write((json.dumps(known, indent=1, sort_keys=True) + "\n").encode())
    return len(rows)


def versions() -> dict[str, int]:
    """The versions of everything that data come from; results on other data are not shown."""
    return {
        "listops": listops.VERSION,
        "pathfinder": pathfinder.VERSION,
        "files": cache.VERSION,
    }


def _row(entry: Entry) -> dict:
    if config.key(entry.spec) != entry.key:
        raise StoreError(
            f"{entry.path} was computed on other data, or with another version, than its "
            "configuration gives today; compute it anew before it is exported"
        )
    return {
        "key": entry.key,
        "data": tasks.fingerprint(entry.spec.task, entry.spec.seed),
        "versions": versions(),
        "config": json.loads(entry.read("config.json")),
        "result": entry.result,
        "metrics": thinned(entry.metrics),
        "environment": entry.environment,
    }


class Shipped:
    """One training of an exported file; reads like an `Entry` that has no weights.

    Attributes:
        key: under which it was stored.
        fingerprint: SHA-256 of the data it was computed on.
        spec: what was computed.
        numerics: `sptlib.config.NUMERICS` at that time.
        versions: of what the data came from; see `sptlib.export.versions`.
        result: the summary.
        metrics: the thinned log.
        environment: versions, commit, device, threads and seconds.
    """

    def __init__(self, row: dict):
        self.key, self.fingerprint = row["key"], row["data"]
        self.spec: Run | Pretraining = from_dict(row["config"])
        self.numerics: int = row["config"]["numerics"]
        self.versions: dict[str, int] = row["versions"]
        self.result, self.metrics, self.environment = (
            row[name] for name in ("result", "metrics", "environment")
        )


class Study:
    """The exported files of a folder, as a read-only store.

    Args:
        folder: ``data/study`` of the checkout.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    @cached_property
    def entries(self) -> dict[str, Shipped]:
        """All entries by their configuration.

        Raises:
            StoreError: if a file is missing or is not the one that was exported.
        """
        manifest = self.folder / MANIFEST
        if not manifest.is_file():
            return {}
        found = {}
        for name, expected in json.loads(manifest.read_text()).items():
            path = self.folder / name
            content = path.read_bytes() if path.is_file() else b""
            if hashlib.sha256(content).hexdigest() != expected:
                raise StoreError(
                    f"{path} is missing or altered: its SHA-256 is not the one in {manifest}; "
                    "take it from the repository again"
                )
            for line in content.splitlines():
                entry = Shipped(json.loads(line))
                # other arithmetic or other data, other results
                if (entry.numerics, entry.versions) == (config.NUMERICS, versions()):
                    found[digest(entry.spec)] = entry
        return found

    def get(self, spec: Run | Pretraining) -> Shipped | None:
        """The exported result of this configuration under the present numerics, or None."""
        return self.entries.get(digest(spec))

