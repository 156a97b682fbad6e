"""`sptlib cost`: FLOPs, memory and hours before anything is run."""

import math
from pathlib import Path

import click

from sptlib import cli_options as options
from sptlib.errors import ConfigError

# everything heavier is imported inside the command that needs it: `sptlib --help` is instant


@click.command()
@click.argument("experiments", nargs=-1, metavar="[EXPERIMENT]...")
@options.preset
@options.seeds
@click.option(
    "--device",
    default=None,
    help="h200, a100, v100, rtx3090 (by data sheet), or cpu: one thread of this machine, measured. "
    "Default: h200 for the preset paper, else cpu.",
)
@click.option(
    "--precision",
    default="",
    help="fp32, tf32 or bf16 for all, on GPUs; default: each training's own.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=30.0,
    show_default=True,
    help="For measuring this machine.",
)
@click.option(
    "--csv",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Write all columns to FILE, one row per kind of training.",
)
def cost(experiments, preset, seeds, device, precision, seconds, file) -> None:
    """FLOPs, memory and hours of experiments (default: all) before they are run.

    Everything distinct is counted once, however many Runs or experiments share it.
    """
    from sptlib import cost as costs
    from sptlib import presets
    from sptlib.cost import devices, report
    from sptlib.formats.base import writing

    presets.check(preset)
    device = devices.check(device or ("h200" if preset == "paper" else "cpu"))
    if not math.isfinite(seconds):
        raise ConfigError(f"--seconds must be a finite number, found {seconds}")
    if file is not None and not file.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {file.absolute().parent} to write {file.name} to")
    cases = costs.plan(experiments, preset, seeds or 0)
    table = costs.estimate(cases, device=device, seconds=seconds, precision=precision)
    if file is not None:
        with writing(file) as out:
            out.write(table.to_csv(index=False).encode())
    click.echo(report.text(table))
    click.echo()
    for sentence in (report.dominant(table), *report.notes(table, device)):
        click.echo(sentence)
    if file is not None:
        click.echo(f"{len(table)} rows written to {file}")
