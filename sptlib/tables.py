"""Results as flat tables, for R, pandas or a spreadsheet: CSV and Parquet.

A row per training with every field of its configuration, or a row per logged line. The type of a
column follows from the declaration of the field, whatever values occur: a column of one store has
the type that it has of another.
"""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from sptlib import export
from sptlib.config import KINDS, adapter, to_dict
from sptlib.errors import ConfigError
from sptlib.export import Shipped
from sptlib.formats.base import writing
from sptlib.store import Entry

#: pandas' types, all of which know missing values
TEXT, WHOLE, REAL, TRUTH = "string", "Int64", "Float64", "boolean"
_JSON_TYPES = {"string": TEXT, "array": TEXT, "integer": WHOLE, "number": REAL, "boolean": TRUTH}

#: what a Run's row has besides its configuration
RESULT = {
    "steps": WHOLE,
    "best_step": WHOLE,
    "val_accuracy": REAL,
    "val_loss": REAL,
    "test_accuracy": REAL,
    "test_loss": REAL,
    "train_loss": REAL,
}
#: and what it was computed with
ENVIRONMENT = {
    "seconds": REAL,
    "device": TEXT,
    "threads": WHOLE,
    "platform": TEXT,
    "machine": TEXT,
    "torch": TEXT,
}
#: a logged line; evaluations add values of the validation split, and test values
LOG = {"key": TEXT, "stage": TEXT, "step": WHOLE, "loss": REAL, "best": TRUTH}
#: the order of a row's columns, by the first part of their name; results come after
_ORDER = (
    "key", "kind", "schema", "numerics", "seed",
    "task", "model", "pretrain", "transfer", "freeze", "finetune", "base", "augment", "qlora",
)  # fmt: skip

SUFFIXES = (".csv", ".parquet")


def flat(entry: Entry | Shipped) -> dict[str, Any]:
    """One row: every field of the Run by dotted name, the result, and what it was computed with."""
    row: dict[str, Any] = {"key": entry.key}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(f"{prefix}.{name}" if prefix else name, inner)
        else:
            row[prefix] = " ".join(map(str, value)) if isinstance(value, list) else value

    fields = export.part(entry, "config")
    if export.is_current(entry):  # fields that were added since have their defaults
        fields = to_dict(entry.spec)
    walk("", fields)
    row |= {k: v for k, v in entry.result.items() if not isinstance(v, list)}
    about = {**entry.environment, "torch": entry.environment.get("versions", {}).get("torch")}
    return row | {name: about.get(name) for name in ENVIRONMENT}


def logged(entry: Entry | Shipped) -> list[dict[str, Any]]:
    """One row per logged line; the losses of a shipped log are means over several steps."""
    return [{"key": entry.key, **line} for line in entry.metrics]


@cache
def field_types(kind: str = "run") -> dict[str, str]:
    """pandas' type of every field of a Run, of any task, by dotted name.

    Args:
        kind: of another one of `sptlib.config.KINDS`.
    """
    schema = adapter(kind).json_schema()
    found = {"key": TEXT, "kind": TEXT, "schema": WHOLE, "numerics": WHOLE}

    def walk(name: str, node: dict) -> None:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
        for inner in (*node.get("anyOf", ()), *node.get("oneOf", ())):
            walk(name, inner)
        for field, inner in node.get("properties", {}).items():
            walk(f"{name}.{field}" if name else field, inner)
        if node.get("type") in _JSON_TYPES:
            found[name] = _JSON_TYPES[node["type"]]

    walk("", schema)
    return found


def runs(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """The table of what `flat` gave; without rows, with the columns of a Run of any task."""
    other = {row.get("kind") for row in rows} & set(KINDS) - {"run", "pretraining"}
    types = {k: v for kind in sorted(other) for k, v in field_types(kind).items()}
    types |= field_types() | RESULT | ENVIRONMENT
    names = dict.fromkeys(name for row in rows for name in row) if rows else types
    # "pretrain" itself is a value only where there is no pretraining, whose fields are then empty
    names = [n for n in names if n in types or not any(t.startswith(f"{n}.") for t in types)]
    order = {part: place for place, part in enumerate(_ORDER)}
    names.sort(key=lambda name: order.get(name.split(".")[0], len(order)))
    return _typed(rows, names, types)


def log(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """The table of what `logged` gave; without rows, with the columns `LOG`."""
    names = dict.fromkeys([*LOG, *(name for row in rows for name in row)])
    return _typed(rows, list(names), LOG)


def _typed(rows: Sequence[dict], names: Sequence[str], types: dict[str, str]) -> pd.DataFrame:
    return pd.DataFrame(
        {name: _column([row.get(name) for row in rows], types.get(name)) for name in names}
    )


def _column(values: list, declared: str | None) -> Any:
    """The values as an array of their type; as text if they are not of that type."""
    kinds = {type(v) for v in values if v is not None}
    if declared is None:
        numbers = {frozenset({int}): WHOLE, frozenset({bool}): TRUTH}
        real = REAL if kinds and kinds <= {int, float} else TEXT
        declared = numbers.get(frozenset(kinds), real)
    if declared != TEXT:
        try:
            return pd.array(values, dtype=declared)
        except (TypeError, ValueError, OverflowError):  # of another version, or beyond 64 bits
            pass
    return pd.array([None if v is None else str(v) for v in values], dtype=TEXT)


def check(path: Path) -> None:
    """Refuse, before anything is read, what cannot be written; raises `ConfigError`."""
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        raise ConfigError(f"{path}: lines of JSON are written with --metrics-only; add it")
    if suffix not in SUFFIXES:
        raise ConfigError(f"{path}: the name of a table ends in {' or '.join(SUFFIXES)}")
    if suffix == ".parquet" and find_spec("pyarrow") is None:
        raise ConfigError(
            f"{path}: Parquet needs pyarrow: pip install 'sptlib[parquet]', or write a .csv"
        )
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}")


def write(path: Path, table: pd.DataFrame) -> None:
    """Write a table under its name whole or not at all: CSV or Parquet, as the suffix says.

    Floats are written such that they are read back to the last bit, missing values as nothing.
    """
    check(path)
    with writing(path) as file:
        if path.suffix.lower() == ".csv":
            file.write(table.to_csv(index=False, lineterminator="\n").encode())
        else:
            table.to_parquet(file, engine="pyarrow", index=False)
