"""`sptlib runs`: look into a run store or exported results, export them as tables.

What checks and tidies them is in `sptlib.cli_upkeep`.
"""

import json
import sys
import time
from pathlib import Path

import click

from sptlib import cli_options as options
from sptlib.cli_upkeep import prune, verify
from sptlib.errors import ConfigError, StoreError, unknown

# everything heavier is imported inside the command that needs it: `sptlib --help` is instant

experiment = click.option(
    "--experiment", default=None, metavar="NAME", help="Only trainings of this experiment."
)


@click.group()
def runs() -> None:
    """Look into the run store, or a folder of exported results such as data/study."""


runs.add_command(verify)
runs.add_command(prune)


# --- ls, show -----------------------------------------------------------------------------------


@runs.command("ls")
@click.option("--task", default=None, help="Only this task; text:direction is one, too.")
@experiment
@options.preset
@options.seeds
@click.option("--failed", is_flag=True, help="Trainings that failed instead, with the error.")
@click.option("--unfinished", is_flag=True, help="Unfinished trainings instead, with their step.")
@options.store
def runs_ls(task, experiment, preset, seeds, failed, unfinished, store) -> None:
    """One line per stored result.

    An experiment's trainings are found by their configuration, whatever data they were computed on.
    """
    from sptlib import export, presets

    if task is not None and task not in presets.RECIPES:
        raise unknown("task", task, presets.RECIPES)
    place, labels = export.opened(store), _labels(experiment, preset, seeds)
    if failed or unfinished:
        _ls_work(place, task, labels, failed, unfinished)
        return
    lines: list[list[str] | str] = [f"DAMAGED  {fault}" for fault in export.faults(place)]
    n_damaged, found = len(lines), set()
    for entry in place.entries():
        try:
            fields = export.part(entry, "config")
            if not _is_task(fields, task):
                continue
            mark = "" if export.is_current(entry) else ", other version"
            label = "" if mark else _label(entry.spec, labels, found)
            if labels is not None and not label:
                continue
            lines.append(_cells(entry, fields, (label or None, mark)))
        except export.UNREADABLE as error:
            n_damaged += 1
            lines.append(f"{entry.key}  DAMAGED  {export.explain(error)}")
    header = ["key", "task", "seed", "accuracy", "val. loss", "seconds", "age", "what"]
    _print(header, lines)
    summary = f"{len(lines) - n_damaged} results in {place.path}"
    summary += f", {n_damaged} damaged" if n_damaged else ""
    if labels is not None and len(found) < len(labels):
        summary += f"; {len(labels) - len(found)} trainings of {experiment} are not there"
    click.echo(summary)


def _labels(experiment: str | None, preset: str, seeds: int | None) -> dict[str, str] | None:
    """What the experiment calls its trainings, pretrainings included, by their digests."""
    from sptlib import experiments
    from sptlib.config import digest

    if experiment is None:
        if seeds:
            raise ConfigError("--seeds chooses Runs of an experiment; name it by --experiment")
        return None
    labels: dict[str, list[str]] = {}
    for case in experiments.get(experiment).cases(preset, seeds or 0):
        if case.run.pretraining is not None:
            labels.setdefault(digest(case.run.pretraining), ["pretraining"])
        labels.setdefault(digest(case.run), []).append(" / ".join(map(str, case.labels.values())))
    return {name: "; ".join(dict.fromkeys(texts)) for name, texts in labels.items()}


def _label(spec, labels: dict[str, str] | None, found: set[str]) -> str:
    from sptlib.config import digest

    if labels is None or (name := digest(spec)) not in labels:
        return ""
    found.add(name)
    return labels[name]


def _is_task(fields: dict, wanted: str | None) -> bool:
    name, _, label = (wanted or "").partition(":")
    task = fields["task"]
    return not name or (task["name"] == name and label in ("", task.get("label")))


def _cells(entry, fields: dict, about: tuple[str | None, str]) -> list[str]:
    from sptlib import export, progress
    from sptlib.export import Shipped

    result = export.part(entry, "result")
    took = export.part(entry, "environment").get("seconds", 0.0)
    age = "" if isinstance(entry, Shipped) else _age(entry.path.stat().st_mtime)
    label, mark = about
    numbers = (result.get("test_accuracy"), result.get("val_loss"))
    return [
        *_who(entry.key, fields),
        *("" if x is None else f"{x:.4f}" for x in numbers),
        f"{took:.1f}",
        age,
        (label or progress.describe(fields)) + mark,
    ]


def _who(key: str, fields: dict) -> list[str]:
    task = fields.get("task", {})
    label = ":direction" if task.get("label") == "direction" else ""
    return [key, f"{task.get('name', '?')}{label}", str(fields.get("seed", "?"))]


def _age(moment: float) -> str:
    from sptlib.progress import duration

    return duration(max(0.0, time.time() - moment))


def _print(header: list[str], lines: list[list[str] | str]) -> None:
    """Columns under their header, numbers to the right; lines of one piece as they are."""
    table = [header, *(line for line in lines if not isinstance(line, str))]
    if len(table) == 1:
        table, header = [], []
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    text = ("key", "task", "age", "what", "error")
    for line in [header, *lines] if table else lines:
        if not isinstance(line, str):
            names = table[0]
            cells = (
                cell.ljust(width) if name in text else cell.rjust(width)
                for name, cell, width in zip(names, line, widths, strict=True)
            )
            line = "  ".join(cells).rstrip()
        click.echo(line)


def _ls_work(place, task, labels, failed: bool, unfinished: bool) -> None:
    from sptlib import export, progress, upkeep
    from sptlib.config import from_dict

    if isinstance(place, export.Study):
        raise StoreError(
            f"{place.path} holds exported results; failed and unfinished trainings are in run "
            "stores, which --store and $SPTLIB_STORE name"
        )
    lines: list[list[str] | str] = []
    for each in upkeep.work(place):
        what = ""
        try:
            if task and not _is_task(each.fields, task):
                continue
            if labels is not None and not _label(from_dict(each.fields), labels, set()):
                continue
            what = progress.describe(each.fields) if each.fields else "configuration not kept"
        except export.UNREADABLE:  # nobody knows what it was
            if task or labels is not None:
                continue
        if failed and each.error:
            error = each.error.splitlines()[0]
        elif unfinished and each.step is not None:
            error = f"step {each.step} of {each.n_steps or '?'}"
        else:
            continue
        lines.append([*_who(each.key, each.fields), _age(each.touched), what, error])
    _print(["key", "task", "seed", "age", "what", "error" if failed else "step"], lines)
    kinds = " or ".join(k for k in ("failed" * failed, "unfinished" * unfinished) if k)
    click.echo(f"{len(lines)} {kinds} trainings in {place.path / '.work'}, a folder each")


@runs.command("show")
@click.argument("key")
@options.store
def runs_show(key, store) -> None:
    """Everything about one result; the start of its key is enough."""
    from sptlib import export

    entry = export.opened(store).match(key)
    parts: dict = {"key": entry.key, "path": str(entry.path)}
    faults = []
    if isinstance(entry, export.Shipped):
        parts |= {"data": entry.fingerprint, "versions": entry.versions}
    for name in ("config", "result", "environment"):
        try:
            parts[name] = export.part(entry, name)
        except export.UNREADABLE as error:
            faults.append(export.explain(error))
    if "config" in parts and not export.is_current(entry):
        parts["other_version"] = True
    click.echo(json.dumps(parts, indent=2))
    _leave(faults)


def _leave(faults: list[str]) -> None:
    """Say what could not be read, and end with 1 if there was something."""
    for fault in faults:
        click.echo(f"sptlib: {fault}", err=True)
    if faults:
        sys.exit(1)


# --- export -------------------------------------------------------------------------------------


@runs.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--log", is_flag=True, help="A row per logged line instead of one per Run.")
@click.option(
    "--pretrainings", is_flag=True, help="Pretrainings, too; the column kind tells them apart."
)
@click.option(
    "--metrics-only",
    is_flag=True,
    help="Configurations, results, thinned logs and environments as JSON lines, with a checksum "
    "in manifest.json beside: what is shipped in data/study/. FILE ends in .jsonl or .jsonl.gz.",
)
@experiment
@options.preset
@options.seeds
@options.tasks
@options.store
def runs_export(
    file, log, pretrainings, metrics_only, experiment, preset, seeds, names, store
) -> None:
    """Write results to FILE.csv or FILE.parquet: a row per Run, a typed column per field.

    With --metrics-only, what another file of the folder has already is not written twice.

    What is damaged is left out, said, and makes the exit code 1; everything else is written.
    """
    from sptlib import experiments, export, tables
    from sptlib.cli_sweep import cases_of
    from sptlib.experiments import base

    if metrics_only and (log or not file.name.endswith((".jsonl", ".jsonl.gz"))):
        raise ConfigError(
            f"{file}: --metrics-only writes a .jsonl or .jsonl.gz, which holds thinned logs"
        )
    if not metrics_only:
        tables.check(file)
    place = export.opened(store)
    if experiment is None and (seeds or names):
        raise ConfigError(
            "--seeds and --tasks choose Runs of an experiment; name it by --experiment"
        )
    if experiment is None:
        entries = list(place.entries())
    else:
        tasks = () if names is None else options.read_names(names)
        cases = cases_of(experiments.get(experiment), preset, seeds or 0, tasks)
        entries = base.stored(cases, place)
    if metrics_only:
        rows, left_out = export.gather(entries, export.row)
        n = export.write_rows(file, new := export.not_beside(file, rows))
        twice = f" ({len(rows) - len(new)} more are in other files there)" * (len(new) < len(rows))
        click.echo(
            f"{n} trainings written to {file}{twice}, their checksum to {export.MANIFEST} beside"
        )
    else:
        kinds = ("run", "polar", *(("pretraining", "polar_base") if pretrainings else ()))
        pieces, left_out = export.gather(entries, lambda entry: _rows(entry, log, kinds))
        rows = [row for piece in pieces for row in piece]
        tables.write(file, tables.log(rows) if log else tables.runs(rows))
        n = sum(map(bool, pieces))
        lines = f", {len(rows)} logged lines," if log else ""
        what = "trainings" if pretrainings else "Runs"
        click.echo(f"{n} {what}{lines} written to {file}")
    _leave([f"left out: {fault}" for fault in [*map(str, export.faults(place)), *left_out]])


def _rows(entry, log: bool, kinds: tuple[str, ...]) -> list[dict]:
    from sptlib import export, tables

    if export.part(entry, "config")["kind"] not in kinds:
        return []
    return tables.logged(entry) if log else [tables.flat(entry)]
