"""`sptlib train`: one Run, on one process or on those of `accelerate launch`."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from sptlib import cli_options as options
from sptlib.errors import ConfigError, SptError, Stopped

# everything heavier is imported inside the command that needs it: `sptlib --help` is instant


@click.command()
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
@click.option(
    "--precision",
    type=click.Choice(["fp32", "bf16"]),
    default=None,
    help="Of forward and backward pass, in both stages; part of the Run.  [default: fp32]",
)
@options.store
@options.device
@click.option("--threads", type=click.IntRange(min=1, max=1024), default=1, show_default=True)
@click.option(
    "--accumulate",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="Compute each batch in N pieces per process, which saves memory.  [default: the "
    "launcher's, else 1]",
)
@options.checkpoint_seconds
@click.option(
    "--checkpoint-steps",
    type=click.IntRange(min=0),
    default=0,
    help="Save an unfinished training after every N steps, too.",
)
@options.recompute
@click.pass_context
def train(
    ctx,
    task,
    preset,
    seed,
    scratch,
    transfer,
    freeze,
    changes,
    precision,
    store,
    device,
    threads,
    accumulate,
    checkpoint_seconds,
    checkpoint_steps,
    recompute,
) -> None:
    """Train one Run: pretraining (shared if it is stored), transfer, labels.

    Ctrl-C stops it after a step and saves a checkpoint, from which the same command goes on; a
    second Ctrl-C ends it at once. Several GPUs or nodes: accelerate launch -m sptlib train ...
    """
    from sptlib import launcher
    from sptlib.execute import Where, compute
    from sptlib.export import run_store
    from sptlib.signals import stopping

    wanted: dict = {"seed": seed}
    if scratch:
        wanted["pretrain"] = None
    for name, groups in (("transfer", transfer), ("freeze", freeze)):
        if groups is not None:
            wanted[name] = tuple(g for g in groups.split(",") if g)
    if launcher.left_alone():
        click.echo(f"sptlib: {launcher.left_alone()}", err=True)
    with stopping() as stop, one_voice(ctx, stop), Bar() as bar:
        where = Where(
            device,
            threads,
            checkpoint_seconds,
            checkpoint_steps,
            progress=bar,
            accumulate=launcher.accumulation() if accumulate is None else accumulate,
            stop=stop,
        )
        team = where.team()
        run = team.together(lambda: _run(preset, task, wanted, precision, changes))
        entry = compute(run, run_store(store), where, recompute)
        if team.main:
            bar.close()
            _report(entry)


def _run(preset, task, wanted, precision, changes):
    """The Run that the options describe."""
    from sptlib import presets
    from sptlib.config import override

    run = override(presets.get(preset, task), wanted)
    stages = [s for s in ("pretrain", "finetune") if getattr(run, s) is not None]
    given = {f"{stage}.precision": precision for stage in stages if precision is not None}
    return override(run, given | dict(assignment(change) for change in changes))


def _report(entry) -> None:
    result = entry.result
    click.echo(
        f"test accuracy {result['test_accuracy']:.4f} at the best validation accuracy "
        f"{result['val_accuracy']:.4f} (step {result['best_step']} of {result['steps']}); "
        f"training loss at the end {result['train_loss']:.4f}"
    )
    if result["reinitialised"]:
        click.echo(f"did not fit and started at random: {', '.join(result['reinitialised'])}")
    click.echo(f"stored in {entry.path}")


@contextmanager
def one_voice(ctx: click.Context, stop) -> Iterator[None]:
    """What several processes have in common is said once; a signal gives its exit code."""
    from sptlib import processes

    failed = True
    try:
        yield
        failed = False
    except Stopped as error:
        _say(error)
        failed = False
        ctx.exit(128 + (stop.signum or signal.SIGTERM))  # or another process was asked
    except (SptError, OSError) as error:
        if ctx.find_root().params.get("debug"):
            raise
        _say(error)
        ctx.exit(1)
    finally:
        processes.leave(failed)


def _say(error: Exception) -> None:
    from sptlib import processes

    if processes.speaks(error):
        click.echo(f"sptlib: {error}", err=True)
        processes.spoken(error)


class Bar:
    """One progress bar per stage on stderr."""

    def __init__(self):
        self.bar, self.stage = None, ""

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *error: object) -> None:  # so that an error starts on a line of its own
        self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()

    def __call__(self, stage: str, step: int, n_steps: int, loss: float) -> None:
        from tqdm import tqdm

        if stage != self.stage:
            self.close()
            self.stage = stage
            self.bar = tqdm(total=n_steps, desc=stage, unit="step", file=sys.stderr)
        self.bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
        self.bar.update(step - self.bar.n)


def assignment(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set takes FIELD=VALUE, found {text!r}")
    return name, options.read_value(value)
