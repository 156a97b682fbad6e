"""The command `sptlib`. Errors are one or two lines on stderr; `--debug` shows the traceback."""

import sys
import time

import click

from sptlib import __version__
from sptlib import cli_options as options
from sptlib.cli_data import data
from sptlib.cli_runs import runs
from sptlib.errors import ConfigError, SptError

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
@click.option(
    "--task",
    default="neighbor",
    show_default=True,
    help="neighbor, listops, image, pathfinder, retrieval, text, or text:direction.",
)
@options.preset
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--scratch", is_flag=True, help="Leave the pretraining out.")
@click.option(
    "--transfer",
    default=None,
    metavar="GROUPS",
    help="What the pretraining passes on: embed, qk, vo, qkvo, mlp, norm, all; "
    "several with commas.",
)
@click.option("--freeze", default=None, metavar="GROUPS", help="What labels do not change.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Any field of the Run, e.g. --set finetune.lr=1e-3. Wins over the preset.",
)
@options.store
@options.device
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--checkpoint-steps",
    type=click.IntRange(min=0),
    default=0,
    help="Save an unfinished training after every N steps, besides every 20 seconds.",
)
@options.recompute
def train(
    task,
    preset,
    seed,
    scratch,
    transfer,
    freeze,
    changes,
    store,
    device,
    threads,
    checkpoint_steps,
    recompute,
) -> None:
    """Train one Run: pretraining (shared if it is stored), transfer, labels."""
    from sptlib import presets
    from sptlib.config import override
    from sptlib.execute import Where, compute
    from sptlib.store import Store

    wanted: dict = {"seed": seed}
    if scratch:
        wanted["pretrain"] = None
    for name, groups in (("transfer", transfer), ("freeze", freeze)):
        if groups is not None:
            wanted[name] = tuple(g for g in groups.split(",") if g)
    wanted |= dict(_assignment(change) for change in changes)
    run = override(presets.get(preset, task), wanted)
    with _Bar() as bar:
        where = Where(device, threads, checkpoint_steps=checkpoint_steps, progress=bar)
        entry = compute(run, Store(store), where, recompute)
    result = entry.result
    click.echo(
        f"test accuracy {result['test_accuracy']:.4f} at the best validation accuracy "
        f"{result['val_accuracy']:.4f} (step {result['best_step']} of {result['steps']}); "
        f"training loss at the end {result['train_loss']:.4f}"
    )
    if result["reinitialised"]:
        click.echo(f"did not fit and started at random: {', '.join(result['reinitialised'])}")
    click.echo(f"stored in {entry.path}")


class _Bar:
    """One progress bar per stage on stderr."""

    def __init__(self):
        self.bar, self.stage = None, ""

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *error: object) -> None:  # so that an error starts on a line of its own
        if self.bar is not None:
            self.bar.close()

    def __call__(self, stage: str, step: int, n_steps: int, loss: float) -> None:
        from tqdm import tqdm

        if stage != self.stage:
            self.__exit__()
            self.stage = stage
            self.bar = tqdm(total=n_steps, desc=stage, unit="step", file=sys.stderr)
        self.bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
        self.bar.update(step - self.bar.n)


def _assignment(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set takes FIELD=VALUE, found {text!r}")
    return name, _value(value)


def _value(text: str):
    """A command line's word as YAML means it: 2, 1e-3, true, null, [0, 1, 5], or the text."""
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"cannot read the value {text!r}") from error
    if isinstance(value, str):  # YAML 1.1 takes 1e-3 for a text
        try:
            return float(value)
        except ValueError:
            return value
    return value


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
    from sptlib import notebooks as nb

    values = {name: _value(value) for name, value in given}
    values |= {k: v for k, v in (("preset", preset), ("seeds", seeds)) if v is not None}
    paths = nb.available() if notebooks == ("all",) else [nb.find(name) for name in notebooks]
    for path in paths:
        nb.check_parameters(path, values)
    for path in paths:
        started = time.monotonic()
        done = nb.run(path, values, store=store or "", if_changed=if_changed)
        click.echo(f"{done} ({time.monotonic() - started:.0f} s)")


@main.command()
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


main.add_command(data)
main.add_command(runs)


if __name__ == "__main__":
    main()
