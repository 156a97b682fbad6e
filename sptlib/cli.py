"""The command `sptlib`. Errors are one or two lines on stderr; `--debug` shows the traceback."""

import signal
import sys
import time

import click

from sptlib import __version__
from sptlib import cli_options as options
from sptlib.cli_claims import claims
from sptlib.cli_cost import cost
from sptlib.cli_data import data
from sptlib.cli_polar import polar
from sptlib.cli_runs import runs
from sptlib.cli_sweep import sweep
from sptlib.cli_train import train
from sptlib.errors import SptError

# everything heavier is imported inside the command that needs it: `sptlib --help` is instant


class Group(click.Group):
    """A group whose unknown commands get a suggestion, and whose errors have no traceback."""

    def invoke(self, ctx: click.Context):
        if hasattr(sys.stdout, "reconfigure"):  # names of files that the terminal cannot show
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            path = (error.ctx or ctx).command_path.removeprefix(ctx.find_root().command_path)
            click.echo(
                f"sptlib: {error.format_message()} (`sptlib{path} -h` shows the usage)", err=True
            )
            ctx.exit(error.exit_code)
        except KeyboardInterrupt as error:
            why = str(error) or "stopped; what is finished is stored, the same command goes on"
            click.echo(f"\nsptlib: {why}", err=True)
            ctx.exit(128 + getattr(error, "signum", signal.SIGINT))
        except (SptError, OSError) as error:
            if ctx.find_root().params.get("debug") or isinstance(error, BrokenPipeError):
                raise  # a closed pipe is click's business
            click.echo(f"sptlib: {error}", err=True)
            ctx.exit(1)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Self-pretraining for sequence classification."""


@main.command()
@click.argument("notebooks", nargs=-1, required=True, metavar="NN...")
@click.option(
    "-p",
    "--parameter",
    "given",
    type=(str, str),
    multiple=True,
    metavar="NAME VALUE",
    help="Set a parameter of the notebook; may be repeated.",
)
@click.option("--preset", default=None, help="Short for -p preset NAME.")
@click.option("--seeds", default=None, type=int, help="Short for -p seeds N.")
@options.store
@click.option(
    "--if-changed",
    is_flag=True,
    help="Skip what was executed before with the same code and parameters.",
)
def run(notebooks, given, preset, seeds, store, if_changed) -> None:
    """Execute notebooks by number or name, or `all`, into results/notebooks/."""
    from sptlib import launcher
    from sptlib import notebooks as nb

    launcher.refuse("sptlib run")
    values = {name: options.read_value(value) for name, value in given}
    values |= {k: v for k, v in (("preset", preset), ("seeds", seeds)) if v is not None}
    paths = nb.available() if notebooks == ("all",) else [nb.find(name) for name in notebooks]
    for path in paths:
        nb.check_parameters(path, values)
    for path in paths:
        started = time.monotonic()
        done = nb.run(path, values, store=store or "", if_changed=if_changed)
        click.echo(f"{done} ({time.monotonic() - started:.0f} s)")


for command in (train, sweep, data, runs, claims, cost, polar):
    main.add_command(command)


if __name__ == "__main__":
    main()
