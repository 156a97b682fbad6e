"""`sptlib data`: what data sets there are; download, make and check them."""

import contextlib
import importlib
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from sptlib.errors import ConfigError, DataError, unknown

# everything heavier is imported inside the command that needs it: `sptlib --help` is instant

_WIDTH = 96
_folder = click.Path(path_type=Path)


@click.group()
def data() -> None:
    """Data sets: list, download, make, check."""


@data.command("list")
def list_() -> None:
    """Every data set: licence, citation, where it lies, whether it is there, how to get it."""
    from sptlib.data import catalog

    for dataset in catalog.CATALOG.values():
        _say(dataset.name, dataset.title)
        where = f"package {dataset.package}" if dataset.package else str(dataset.folder)
        rows = {
            "size": dataset.size,
            "licence": dataset.licence,
            "cite": dataset.citation,
            "place": where,
            "state": catalog.status(dataset.name),
            "get": _how(dataset),
            "address": dataset.files[0].url if dataset.files else "",
            "note": " ".join(remote.note for remote in dataset.files).strip(),
        }
        for key, text in rows.items():
            if text:
                _say("", f"{key:<9}{text}", hanging=9)
        click.echo()


def _say(label: str, text: str, hanging: int = 0) -> None:
    click.echo(
        textwrap.fill(
            text,
            _WIDTH,
            initial_indent=f"{label:<12}",
            subsequent_indent=" " * (12 + hanging),
            break_long_words=False,  # addresses and paths stay whole
            break_on_hyphens=False,
        )
    )


def _how(dataset) -> str:
    if dataset.package:
        return dataset.by_hand
    ways = [f"`sptlib data make {dataset.name}`"] if dataset.made else []
    if dataset.files:
        others = [f", or with --file {remote.name}" for remote in dataset.files[1:]]
        ways.append(f"`sptlib data get {dataset.name}`{''.join(others)}")
    return "; ".join([*ways, f"by hand: {dataset.by_hand}"])


@data.command()
@click.argument("name")
@click.option("--file", default=None, metavar="NAME", help="Another file than the usual one.")
@click.option("--force", is_flag=True, help="Download and unpack again what is there.")
@click.pass_context
def get(ctx: click.Context, name: str, file: str | None, force: bool) -> None:
    """Download a data set, verify its checksum, unpack and check it.

    What was cut off is continued. An archive that was put into the folder by hand is verified and
    unpacked likewise.
    """
    from sptlib.data import catalog
    from sptlib.data.archives import unpack
    from sptlib.data.download import fetch

    dataset = catalog.find(name)
    if not dataset.files:
        raise ConfigError(f"{dataset.name} has no download of its own; get it so: {_how(dataset)}")
    remotes = {remote.name: remote for remote in dataset.files}
    if file is not None and file not in remotes:
        raise unknown(f"file of {dataset.name}", file, remotes)
    remote = remotes[file] if file else dataset.files[0]
    target = dataset.folder / remote.holds
    if target.exists() and not force:
        click.echo(f"{target} is there already")
    else:
        archive = dataset.folder / remote.name
        if remote.note:
            click.echo(remote.note, err=True)
        with _bar(f"downloading {remote.name}", "B") as progress:
            fetch(remote.url, archive, remote.sha256, remote.size, progress, force=force)
        with _bar(f"unpacking {remote.name}", "B") as progress:
            unpack(archive, dataset.folder, remote.members, replace=True, progress=progress)
        click.echo(f"{target} is unpacked; {archive} is not needed any more and may be removed")
    _distribute(dataset)
    ctx.exit(_check(dataset, None))


def _distribute(dataset) -> None:
    """Move the parts of a release to where their tasks look; what lies there already stays."""
    from sptlib.places import data_home

    for _, inside, place in dataset.parts:
        source, goal = _inside(dataset.folder, inside), data_home() / place
        if source is None:
            continue
        if goal.exists():
            click.echo(f"{goal} was there before and stays; {source} stays where it is")
        else:
            goal.parent.mkdir(parents=True, exist_ok=True)
            os.rename(source, goal)
            click.echo(f"{inside} is {goal}")


def _inside(folder: Path, name: str) -> Path | None:
    """A part of the LRA's release, whose archive holds lra_release/lra_release."""
    for base in (folder, folder / "lra_release", folder / "lra_release" / "lra_release"):
        if (base / name).is_dir():
            return base / name
    return None


@data.command()
@click.argument("name")
@click.option("--train", type=click.IntRange(min=1), help="Rows of listops.  [default: 96000]")
@click.option("--val", type=click.IntRange(min=1), help="Rows of listops.  [default: 2000]")
@click.option("--test", type=click.IntRange(min=1), help="Rows of listops.  [default: 2000]")
@click.option("-n", type=click.IntRange(min=1), help="Images of pathfinder.  [default: 200000]")
@click.option(
    "--side", type=click.Choice(["16", "32", "128"]), help="Of pathfinder, pixels.  [default: 32]"
)
@click.option(
    "--contour-length",
    type=click.IntRange(min=3),
    help="Of pathfinder, dashes; published are 14, 9 and 6.  [default: 14; 5 for side 16]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Processes; any number gives the same bytes.  [default: one per core]",
)
@click.option("--out", type=_folder, metavar="FOLDER", help="Default: where the task looks.")
def make(name, train, val, test, n, side, contour_length, seed, workers, out) -> None:
    """Generate listops or pathfinder in the official format.

    What was stopped is continued by the same command.
    """
    from sptlib.data import catalog

    dataset = catalog.find(name)
    if not dataset.made:
        raise ConfigError(f"{dataset.name} cannot be made; get it so: {_how(dataset)}")
    sizes = {"train": train, "val": val, "test": test}
    shape = {"n": n, "side": side, "contour_length": contour_length}
    foreign = shape if dataset.name == "listops" else sizes
    for option, value in foreign.items():
        if value is not None:
            flag = "-n" if option == "n" else f"--{option.replace('_', '-')}"
            raise ConfigError(f"{flag} is no option of {dataset.name}")
    folder = out or dataset.folder
    if dataset.name == "listops":
        sizes = {split: sizes[split] or rows for split, rows in dataset.counts}
        arguments = {"sizes": sizes}
    else:
        side = int(side or 32)
        length = contour_length or (5 if side == 16 else 14)
        if out is None:
            difficulty = importlib.import_module("sptlib.formats.pathfinder").difficulty
            folder = folder / f"pathfinder{side}" / difficulty(length)
        arguments = {"side": side, "contour_length": length, "n": n or 200_000}
    maker = getattr(importlib.import_module("sptlib.data.make"), dataset.name)
    with _bar(f"making {dataset.name}", "row" if dataset.name == "listops" else "image") as bar:
        maker(folder, seed=seed, workers=workers, progress=bar, **arguments)
    click.echo(f"{folder} is made; `sptlib data check {dataset.name} {folder}` checks it")


@data.command()
@click.argument("name")
@click.argument("folder", type=_folder, required=False)
@click.pass_context
def check(ctx: click.Context, name: str, folder: Path | None) -> None:
    """Check a folder in the format of a data set (or of image, text, retrieval).

    Prints facts, notes and faults; the exit code is 0 if there are no faults, else 1. FOLDER is
    where the data set lies by default.
    """
    from sptlib.data import catalog

    ctx.exit(_check(catalog.find(name), folder))


def _check(dataset, folder: Path | None) -> int:
    """Print what the check finds; returns the exit code."""
    if dataset.package:
        raise ConfigError(
            f"{dataset.name} comes with the package {dataset.package}: no folder to check"
        )
    if dataset.parts:
        return max([_check_part(part, dataset, folder) for part in dataset.parts])
    folder = folder or dataset.folder
    if not folder.exists():
        raise DataError(folder, f"there is no such folder; get it so: {_how(dataset)}")
    module = importlib.import_module(f"sptlib.formats.{dataset.check}")
    report = module.check(folder)
    click.echo(f"{dataset.name} in {folder}")
    for kind, found in (("", report.facts), ("note: ", report.notes), ("FAULT: ", report.faults)):
        for text in found:
            click.echo(f"  {kind}{text}")
    n = len(report.faults)
    click.echo("no faults" if not n else f"{n} fault{'s' * (n > 1)}")
    return int(n > 0)


def _check_part(part: tuple[str, str, str], release, folder: Path | None) -> int:
    from sptlib.data import catalog
    from sptlib.places import data_home

    name, inside, place = part
    found = _inside(folder or release.folder, inside)
    if found is None and folder is None and (data_home() / place).is_dir():
        found = data_home() / place
    if found is None:
        click.echo(f"{name}\n  FAULT: no folder {inside} in {folder or release.folder}")
        return 1
    return _check(catalog.find(name), found)


@contextlib.contextmanager
def _bar(what: str, unit: str) -> Iterator:
    """A progress bar on stderr, from the first call of what it yields on."""
    from tqdm import tqdm

    with contextlib.ExitStack() as stack:
        bar = None

        def progress(done: int, total: int | None) -> None:
            nonlocal bar
            if bar is None:  # what was there before does not count for the speed
                bar = stack.enter_context(
                    tqdm(total=total, initial=done, desc=what, unit=unit, unit_scale=unit == "B",
                         file=sys.stderr)
                )  # fmt: skip
            bar.total = total
            bar.update(done - bar.n)

        yield progress
