"""`sptlib train`: one Run."""

import sys

import click

from sptlib import cli_options as options
from sptlib.errors import ConfigError

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
    return name, options.read_value(value)
