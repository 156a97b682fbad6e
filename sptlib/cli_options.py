"""Options that several commands have."""

import click

store = click.option(
    "--store",
    default=None,
    metavar="FOLDER",
    help="Run store; default: $SPTLIB_STORE, else results/store of the checkout.",
)
preset = click.option(
    "--preset", default="classroom", show_default=True, help="smoke, classroom, study or paper."
)
seeds = click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=None,
    help="Seeds 0 … N−1; default: the preset's number.",
)
device = click.option(
    "--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, auto."
)
recompute = click.option("--recompute", is_flag=True, help="Compute anew, even if it is stored.")
