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
workers = click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=None,
    help="Processes on this machine; default: one per core.",
)
tasks = click.option(
    "--tasks",
    "names",
    default=None,
    metavar="A,B",
    help="Only these rows of the experiment's table, or their recipes; default: the preset's.",
)
minutes = click.option(
    "--minutes",
    type=float,
    default=None,
    help="Make all trainings shorter, such that they fit into so much time on one device, in bf16 "
    "on a GPU; stop when it is over. One seed, unless --seeds is given.",
)
checkpoint_seconds = click.option(
    "--checkpoint-seconds",
    type=click.FloatRange(min=0),
    default=20.0,
    show_default=True,
    help="How often an unfinished training is saved.",
)
_TLS = {
    "ca": "certificate of the authority that signed the scheduler's",
    "cert": "this client's certificate",
    "key": "its private key",
}


def tls(command):
    """The three files for a scheduler at ``tls://``."""
    for name, what in reversed(_TLS.items()):
        text = f"For a scheduler at tls://: {what} (PEM)."
        command = click.option(f"--tls-{name}", metavar="FILE", default=None, help=text)(command)
    return command


recompute = click.option("--recompute", is_flag=True, help="Compute anew, even if it is stored.")


def apart(name: str, others: dict[str, object]) -> None:
    """Refuse what does not go with an option: names of options and whether they are given."""
    for other, given in others.items():
        if given:
            raise ConfigError(f"{name} and {other} do not go together; leave one of them out")


def read_names(text: str) -> tuple[str, ...]:
    """Names of tasks between commas; some rows have a comma themselves (``Text, direction``)."""
    from sptlib.experiments.ablation import TASKS

    found: list[str] = []
    for word in map(str.strip, text.split(",")):
        if not word:
            raise ConfigError(f"--tasks takes names between commas, found {text!r}")
        if found and f"{found[-1]}, {word}" in TASKS:
            found[-1] += f", {word}"
        else:
            found.append(word)
    return tuple(dict.fromkeys(found))


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
