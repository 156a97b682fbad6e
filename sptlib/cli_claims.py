"""`sptlib claims`: the ledger of claims, from stored results."""

import shutil
import textwrap
from pathlib import Path

import click

from sptlib import cli_options as options

# everything heavier is imported inside the command that needs it: `sptlib --help` is instant


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@options.preset
@options.seeds
@options.store
@click.option("--details", is_flag=True, help="Every question of every claim, with its answer.")
@click.option(
    "--csv",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Also write every question and answer to this file.",
)
def claims(ids, preset, seeds, store, details, file) -> None:
    """What Coser et al. (2026) claim, and the verdict on it from stored results.

    IDs such as C5 name some of the claims; default: all. Nothing is computed: a claim of which a
    result is missing is "not run". The study that is shipped with the project has more seeds:
    `sptlib claims --preset study --store data/study`.
    """
    from sptlib import ledger
    from sptlib.export import opened

    place = opened(store)
    found = ledger.ledger(place, preset, seeds or 0, ids)
    width = max(60, shutil.get_terminal_size().columns)
    for j in found:
        seeds_text = f"n = {j.n}" if j.parts else ""
        click.echo(f"{j.claim.id:4} {j.verdict:11} {seeds_text:10} {j.result}")
        click.echo(
            textwrap.fill(j.claim.text, width, initial_indent=" " * 5, subsequent_indent=" " * 5)
        )
        if details or ids:
            click.echo(
                textwrap.fill(
                    f"rule: {j.claim.rule}",
                    width,
                    initial_indent=" " * 5,
                    subsequent_indent=" " * 7,
                )
            )
        for part in j.parts if details or ids else ():
            answer = "not asked" if not part.asked else "yes" if part.holds else "no"
            p = f", p = {part.p:.2g}" if part.asked else ""
            click.echo(f"       {answer:9} {part.where}: {part.question}: {part.text}{p}")
    if file is not None:
        ledger.details(found).to_csv(file)
        click.echo(f"{file} has every question and answer")
    total = ", ".join(f"{n} {name}" for name, n in ledger.counts(found).items())
    click.echo(f"{total}; preset {preset}, results in {place.path}")
    missing = dict.fromkeys(j.claim.experiment for j in found if j.missing)
    if missing:
        click.echo("what is missing is computed by:")
        for name in missing:
            more = f" --seeds {seeds}" if seeds else ""
            click.echo(f"  sptlib sweep {name} --preset {preset}{more}")
