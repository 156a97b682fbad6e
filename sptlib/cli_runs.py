"""`sptlib runs`: look into the run store, check it, export it."""

import csv
import json
import sys
from pathlib import Path

import click

from sptlib import cli_options as options
from sptlib.errors import ConfigError, SptError

# everything heavier is imported inside the command that needs it: `sptlib --help` is instant


@click.group()
def runs() -> None:
    """Look into the run store."""


@runs.command("ls")
@options.store
def runs_ls(store) -> None:
    """One line per stored result."""
    from sptlib.config import Run
    from sptlib.store import Store

    place, n = Store(store), 0
    for entry in place.entries():
        n += 1
        try:
            spec, result = entry.spec, entry.result
        except SptError as error:
            click.echo(f"{entry.key}  DAMAGED  {error}")
            continue
        if isinstance(spec, Run):
            start = f"spt[{','.join(spec.transfer)}]" if spec.pretrain else "scratch"
            freeze = f" freeze[{','.join(spec.freeze)}]" if spec.freeze else ""
            what = f"{start}{freeze}  test accuracy {result['test_accuracy']:.4f}"
        else:
            what = f"pretraining  validation loss {result['val_loss']:.4f}"
        click.echo(
            f"{entry.key}  {spec.task.name}  seed {spec.seed}  {what}  "
            f"{entry.environment['seconds']:.1f} s"
        )
    click.echo(f"{n} results in {place.path}")


@runs.command("show")
@click.argument("key")
@options.store
def runs_show(key, store) -> None:
    """Everything about one result; the start of its key is enough."""
    from sptlib.store import Store

    entry = Store(store).match(key)
    parts = {"key": entry.key, "path": str(entry.path)}
    for name in ("config", "result", "environment"):
        parts[name] = json.loads(entry.read(f"{name}.json"))
    click.echo(json.dumps(parts, indent=2))


@runs.command("verify")
@click.option("--repair", is_flag=True, help="Remove damaged entries, so that they are recomputed.")
@options.store
def runs_verify(repair, store) -> None:
    """Check every file of every result against its checksum."""
    from sptlib.errors import StoreError
    from sptlib.store import Store

    place, n, damaged = Store(store), 0, []
    for entry in place.entries():
        n += 1
        try:
            entry.verify()
        except StoreError as error:
            damaged.append(entry.key)
            click.echo(f"{entry.key}: {error}", err=True)
    if repair:
        for name in damaged:
            place.remove(name)
    click.echo(
        f"{n} results in {place.path}, {len(damaged)} damaged"
        + (" and removed" if repair and damaged else "")
    )
    if damaged and not repair:
        sys.exit(1)


@runs.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--metrics-only",
    is_flag=True,
    help="Configurations, results, thinned logs and environments as JSON lines, with a checksum "
    "in manifest.json beside: what is shipped in data/study/.",
)
@click.option("--experiment", default=None, help="Only the Runs of this experiment.")
@options.preset
@options.seeds
@options.store
def runs_export(file, metrics_only, experiment, preset, seeds, store) -> None:
    """Write results to FILE: as CSV, one row per Run with every field of its configuration."""
    from sptlib import experiments, export
    from sptlib.config import Run
    from sptlib.experiments import base
    from sptlib.store import Store

    place = Store(store)
    if experiment is None and seeds:
        raise ConfigError("--seeds chooses Runs of an experiment; name it by --experiment")
    if experiment is None:
        entries = list(place.entries())
    else:
        module = experiments.get(experiment)
        entries = base.stored(module.cases(preset, seeds or 0), place)
    if metrics_only:
        n = export.write(file, entries)
        click.echo(f"{n} trainings written to {file}, their checksum to {export.MANIFEST} beside")
        return
    rows = [base.flat(e) for e in entries if isinstance(e.spec, Run)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, names)
        writer.writeheader()
        writer.writerows(rows)
    click.echo(f"{len(rows)} Runs written to {file}")
