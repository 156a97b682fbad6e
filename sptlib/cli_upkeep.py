"""`sptlib runs verify` and `sptlib runs prune`."""

import sys

import click

from sptlib import cli_options as options
from sptlib.errors import ConfigError

# everything heavier is imported inside the command that needs it: `sptlib --help` is instant


@click.command()
@click.option("--repair", is_flag=True, help="Remove damaged entries, so that they are recomputed.")
@click.option(
    "--recompute",
    "n_runs",
    type=click.IntRange(min=1),
    default=None,
    metavar="K",
    help="Compute K Runs anew, with their pretrainings, and compare every number.",
)
@click.option(
    "--choose",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="SEED",
    help="Which K Runs.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=0.05,
    show_default=True,
    help="How far apart test accuracies may be that come from different kinds of machines.",
)
@options.workers
@click.option(
    "--device", default="", help="Device for --recompute; default: the kind that was used before."
)
@options.store
def verify(repair, n_runs, choose, tolerance, workers, device, store) -> None:
    """Check every file of every result against its checksum; recompute some of them.

    Exit code 1 if something is damaged, or if a recomputed number differs although the environment
    is the same. In another one rounding differs, and training amplifies it: then it is 1 if a test
    accuracy differs by more than the tolerance.
    """
    from sptlib import export, upkeep

    place = export.run_store(store) if repair else export.opened(store)
    good, n_damaged, n_removed = {}, 0, 0
    for fault in export.faults(place):
        n_damaged += 1
        click.echo(fault, err=True)
    for entry in place.entries():
        try:
            if not isinstance(entry, export.Shipped):
                entry.verify()
            good[entry.key] = entry
        except export.UNREADABLE as error:
            n_damaged += 1
            click.echo(f"{entry.key}: {export.explain(error)}", err=True)
            n_removed += repair and upkeep.repair(place, entry.key)
    n = len(good) + n_damaged
    removed = f", {n_removed} of them removed" if repair and n_damaged else ""
    click.echo(f"{n} results in {place.path}, {n_damaged} damaged{removed}")
    bad = n_damaged > n_removed
    if n_runs is not None:
        bad |= _recompute(good, n_runs, choose, tolerance, workers, device)
    if bad:
        sys.exit(1)


def _recompute(known: dict, n_runs: int, choose: int, tolerance: float, workers, device) -> bool:
    """Recompute some Runs and say what came out; returns whether it is bad."""
    from sptlib import recheck
    from sptlib.data.make import cores
    from sptlib.progress import duration

    chosen, able = recheck.draw(list(known.values()), n_runs, choose), []
    for entry in chosen:
        reason = recheck.comparable(entry)
        if reason is None:
            able.append(entry)
        else:
            click.echo(str(reason))
    if not able:
        click.echo(f"{len(chosen)} Runs chosen, none can be recomputed here")
        return True
    trainings = recheck.with_pretrainings(known, able)
    took = recheck.seconds(trainings)
    processes = max(1, min(workers or cores(), len(able)))
    click.echo(
        f"recomputing {len(able)} Runs, {len(trainings)} trainings with their pretrainings: they "
        f"took {duration(took)}, about {duration(took / processes)} in {processes} processes"
    )
    found = recheck.recompute(known, able, workers, device)
    for comparison in found:
        click.echo(str(comparison))
    counts = {o: sum(c.outcome == o for c in found) for o in ("identical", "different", "failed")}
    text = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
    click.echo(f"{len(found)} recomputed: {text}; {len(chosen) - len(able)} Runs not compared")
    if any(c.outcome == "different" and c.elsewhere for c in found):
        click.echo(
            "in another environment rounding may differ, and training amplifies it; what counts "
            f"is that test accuracies are within {tolerance:g}"
        )
    return any(comparison.bad(tolerance) for comparison in found)


@click.command()
@click.option("--yes", is_flag=True, help="Remove it; without, it is only shown.")
@click.option("--unfinished", is_flag=True, help="Checkpoints of unfinished trainings, too.")
@click.option("--failed", is_flag=True, help="Logs of failed trainings, too.")
@click.option(
    "--keep",
    multiple=True,
    metavar="EXPERIMENT[:PRESET[:SEEDS]]",
    help="All results, too, that this experiment does not need at this preset (default: "
    "classroom); EXPERIMENT:tune is its search for rates. May be repeated: what none of them needs "
    "goes.",
)
@options.store
def prune(yes, unfinished, failed, keep, store) -> None:
    """Show what can go from the store, and why; with --yes, remove it.

    Drafts, leases of dead processes, leftovers of trainings that are stored, and results that are
    never served again: of an older version, or on data that have changed. What a living process
    works at, what is damaged (`sptlib runs verify --repair`), and files that are not the store's
    stay.
    """
    from sptlib import export
    from sptlib.formats.base import listed
    from sptlib.upkeep import Pruning

    place = export.run_store(store)
    pruning = Pruning(place, unfinished, failed, _digests(keep) if keep else None)
    litter = pruning.look()
    reasons: dict[str, list] = {}
    for item in litter:
        reasons.setdefault(item.why, []).append(item)
    for why, items in reasons.items():
        click.echo(f"{len(items)} × {why}, {_size(items)}:")
        lines = [f"  {_size([x]):>9}  {x.path.relative_to(place.path)}" for x in items]
        click.echo("\n".join(listed(lines)))
    for note in pruning.notes:
        click.echo(note, err=True)
    if not litter:
        click.echo(f"nothing to remove in {place.path}")
    elif not yes:
        click.echo(
            f"{len(litter)} things, {_size(litter)} in {place.path}; nothing is removed yet: "
            "repeat it with --yes"
        )
    else:
        gone = [item for item in litter if pruning.remove(item)]
        stayed = len(litter) - len(gone)
        click.echo(
            f"{len(gone)} things, {_size(gone)} removed from {place.path}"
            + (f"; {stayed} are in use or were gone by then" if stayed else "")
        )


def _digests(wanted: tuple[str, ...]) -> set[str]:
    """Digests of everything that some experiments need."""
    from sptlib import experiments, presets, tuning
    from sptlib.config import digest

    specs: list = []
    for text in wanted:
        name, preset, seeds, *rest = [*text.split(":"), "", ""]
        module = experiments.get(name)
        if any(rest) or (seeds and not (seeds.isdigit() and int(seeds))):
            raise ConfigError(f"--keep {text}: expected EXPERIMENT[:PRESET[:SEEDS]]")
        if preset == "tune":
            if not hasattr(module, "TUNED_AT"):
                raise ConfigError(f"--keep {text}: {name} searches no rates")
            specs += tuning.runs(module, module.TUNED_AT)
        else:
            preset = presets.check(preset or "classroom")
            specs += [case.run for case in module.cases(preset, int(seeds or 0))]
    specs += [s.pretraining for s in specs if s.pretraining is not None]
    return {digest(spec) for spec in specs}


def _size(items: list) -> str:
    from sptlib.progress import size

    return size(sum(item.size for item in items))
