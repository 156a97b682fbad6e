"""Execute the parameterised notebooks, as papermill does, with checked parameters."""

import base64
import hashlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from sptlib import presets
from sptlib.errors import ConfigError, SptError, unknown
from sptlib.places import repository_root

KERNEL = "python3"
TYPES = {"int": int, "float": (int, float), "str": str, "bool": bool, "list": list}


class NotebookError(SptError):
    """A notebook failed while it was executed; nothing was published."""


def root() -> Path:
    """The checkout that the current folder lies in; notebooks are there and nowhere else."""
    found = repository_root()
    if found is None:
        raise ConfigError("notebooks are run inside a checkout of the project; cd into one")
    return found


def available() -> list[Path]:
    """All notebooks, in order."""
    return sorted((root() / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def find(name: str) -> Path:
    """A notebook by number ("01") or name ("01_synthetic"); raises `ConfigError`."""
    for path in available():
        if name in (path.stem, path.stem[:2], path.stem[3:], path.name):
            return path
    raise unknown("notebook", name, [p.stem for p in available()])


def check_parameters(path: Path, given: dict[str, Any]) -> None:
    """Refuse, before anything starts, what the notebook would stumble over later.

    Args:
        path: the notebook, with a cell tagged ``parameters``.
        given: values by name.

    Raises:
        ConfigError: for a parameter that the notebook does not have (papermill only warns), of
            another type than its annotation says, or naming an unknown preset or task.
    """
    from papermill import inspect_notebook

    known = inspect_notebook(str(path))
    for name, value in given.items():
        if name not in known:
            raise unknown(f"parameter of {path.stem}", name, known)
        wanted = known[name]["inferred_type_name"]
        if wanted in TYPES and (
            not isinstance(value, TYPES[wanted]) or (isinstance(value, bool) and wanted != "bool")
        ):
            raise ConfigError(f"parameter {name} of {path.stem} is {wanted}, found {value!r}")
    if "preset" in given:
        presets.check(given["preset"])
    if given.get("task"):
        presets.check_recipe(given["task"])
    for name in ("seeds", "n_layers"):
        if given.get(name, 0) < 0:
            raise ConfigError(
                f"parameter {name} must be positive, or 0 for the preset's own number; "
                f"found {given[name]}"
            )


def run(path: Path, given: dict[str, Any], *, store: str = "", if_changed: bool = False) -> Path:
    """Execute a notebook into ``results/notebooks/``.

    Args:
        path: of the notebook.
        given: parameters.
        store: folder of the run store; "" = the default.
        if_changed: do nothing if the same notebook was executed with the same parameters and the
            same library before.

    Returns:
        Where the executed notebook is.

    Raises:
        ConfigError: before anything starts, for wrong parameters.
        NotebookError: if a cell failed. The partial notebook is kept beside the results, under
            ``.failed``, and a published one stays as it was.
    """
    check_parameters(path, given)
    published = root() / "results" / "notebooks" / path.name
    stamp = _stamp(path, given, store)
    if if_changed and _stamp_of(published) == stamp:
        print(f"{published.relative_to(root())} is up to date", file=sys.stderr)
        return published
    draft = published.parent / ".failed" / path.name
    draft.parent.mkdir(parents=True, exist_ok=True)
    before = os.environ.get("SPTLIB_STORE")
    if store:
        os.environ["SPTLIB_STORE"] = str(Path(store).resolve())
    try:
        _execute(path, draft, given)
    finally:
        if store and before is None:
            del os.environ["SPTLIB_STORE"]
        elif store:
            os.environ["SPTLIB_STORE"] = before
    notebook = json.loads(draft.read_text())
    notebook["metadata"]["sptlib"] = {"stamp": stamp, "parameters": given}
    draft.write_text(json.dumps(notebook, indent=1))
    os.replace(draft, published)
    _save_figures(notebook)
    return published


def _save_figures(notebook: dict) -> None:
    """Put every named figure of a published notebook into ``results/figures/NAME.png``.

    Other pages show them there: Jupyter Book 1.x cannot glue a figure across pages.
    """
    folder = root() / "results" / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    for cell in notebook["cells"]:
        name = cell["metadata"].get("mystnb", {}).get("figure", {}).get("name")
        for output in cell.get("outputs", []):
            if name and "image/png" in output.get("data", {}):
                png = base64.b64decode(output["data"]["image/png"])
                (folder / f"{name}.png").write_bytes(png)


def _execute(path: Path, draft: Path, given: dict[str, Any]) -> None:
    import papermill
    from papermill.exceptions import PapermillExecutionError

    try:
        with warnings.catch_warnings():
            # papermill and its clients raise deprecations that only they can mend
            warnings.simplefilter("ignore", DeprecationWarning)
            papermill.execute_notebook(
                str(path),
                str(draft),
                given,
                kernel_name=KERNEL,
                cwd=str(root()),
                extra_arguments=["--log-level=ERROR"],
                stderr_file=sys.stderr,
            )
    except PapermillExecutionError as error:
        raise NotebookError(
            f"{path.stem} failed in cell {error.exec_count}: {error.ename}: "
            f"{error.evalue}; the partial notebook is {draft}"
        ) from error


def _stamp(path: Path, given: dict[str, Any], store: str) -> str:
    """A hash of everything that an executed notebook depends on, results apart."""
    digest = hashlib.sha256(
        json.dumps([given, store or os.environ.get("SPTLIB_STORE")], sort_keys=True).encode()
    )
    package = Path(__file__).parent
    kinds = ("*.csv", "tuning/*.csv", "study/*")
    shipped = [file for kind in kinds for file in root().glob(f"data/{kind}")]
    code = [file for kind in ("*.py", "*.toml") for file in package.rglob(kind)]
    for file in (path, *sorted(code), *sorted(shipped)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _stamp_of(published: Path) -> str:
    if not published.is_file():
        return ""
    return json.loads(published.read_text())["metadata"].get("sptlib", {}).get("stamp", "")
