"""Options that several commands have."""

import click

from sptlib.errors import ConfigError

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


def read_value(text: str):
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
