"""`sptlib sweep`: all Runs of an experiment."""

import click

from sptlib import cli_options as options
from sptlib.errors import ConfigError

# everything heavier is imported inside the command that needs it: `sptlib --help` is instant


@click.command()
@click.argument("experiment")
@options.preset
@options.seeds
@click.option(
    "--tune",
    is_flag=True,
    help="Search the rates instead: the grid on seeds from 100 on, at the preset that the "
    "experiment names; the table lands in data/tuning/.",
)
@click.option("--scheduler", default="", help="Address of a Dask scheduler; default: this machine.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=None,
    help="Processes on this machine; default: one per core.",
)
@options.store
@options.device
@options.recompute
def sweep(experiment, preset, seeds, tune, scheduler, workers, store, device, recompute) -> None:
    """Compute all Runs of an experiment that are not stored yet."""
    from sptlib import experiments, presets, tuning
    from sptlib.experiments import base
    from sptlib.notebooks import root
    from sptlib.store import Store
    from sptlib.sweep import compute_all

    module = experiments.get(experiment)
    presets.check(preset)
    if tune and preset != module.TUNED_AT:
        raise ConfigError(
            f"the rates of {experiment} are searched at the preset {module.TUNED_AT}, "
            f"found {preset!r}"
        )
    place = Store(store)
    how = {"scheduler": scheduler, "workers": workers, "device": device, "recompute": recompute}
    if tune:
        entries = compute_all(tuning.runs(module, preset), place, **how)
        path = tuning.write(module, preset, entries, root())
        click.echo(f"{len(entries)} trainings; the table is {path}")
    else:
        results = base.collect(module.cases(preset, seeds or 0), place, **how)
        cells = module.table(results).groupby(module.GROUP_BY, sort=False)["test_accuracy"]
        click.echo(cells.agg(["mean", "min", "max", "count"]).round(4).to_string())
        click.echo(f"{len(results)} Runs stored in {place.path}")
