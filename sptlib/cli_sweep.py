"""`sptlib sweep`: all Runs of an experiment."""

import inspect
import time
from functools import partial

import click

from sptlib import cli_options as options
from sptlib.errors import ConfigError

# everything heavier is imported inside the command that needs it: `sptlib --help` is instant


@click.command()
@click.argument("experiment")
@options.preset
@options.seeds
@options.tasks
@options.minutes
@click.option(
    "--tune",
    is_flag=True,
    help="Search the rates instead: the grid on seeds from 100 on, at the preset that the "
    "experiment names; the table lands in data/tuning/.",
)
@click.option("--dry-run", is_flag=True, help="Say what is stored and what is missing, no more.")
@click.option("--scheduler", default="", help="Address of a Dask scheduler; default: this machine.")
@options.tls
@options.workers
@options.store
@options.device
@options.checkpoint_seconds
@options.recompute
@click.pass_context
def sweep(
    ctx,
    experiment,
    preset,
    seeds,
    names,
    minutes,
    tune,
    dry_run,
    scheduler,
    tls_ca,
    tls_cert,
    tls_key,
    workers,
    store,
    device,
    checkpoint_seconds,
    recompute,
) -> None:
    """Compute all Runs of an experiment that are not stored yet.

    Ctrl-C stops it in order; the same command goes on from there.
    """
    from sptlib import experiments, launcher, presets, tuning
    from sptlib.experiments import base
    from sptlib.export import run_store
    from sptlib.notebooks import root
    from sptlib.sweep import SweepError, TimeUp, Tls, compute_all

    launcher.refuse("sptlib sweep")
    module = experiments.get(experiment)
    presets.check(preset)
    if tune and not hasattr(module, "TUNED_AT"):
        raise ConfigError(f"{experiment} searches no rates, it takes another experiment's")
    if tune and preset != module.TUNED_AT:
        raise ConfigError(
            f"the rates of {experiment} are searched at the preset {module.TUNED_AT}, "
            f"found {preset!r}"
        )
    tasks = () if names is None else options.read_names(names)
    if tune and tasks:
        raise ConfigError("--tune searches the rates of all tasks; leave --tasks out")
    if minutes is not None:
        if module.NAME not in experiments.OF_RUNS:
            raise ConfigError(f"--minutes cannot plan {module.NAME}, whose models are no Runs")
        options.apart(
            "--minutes",
            {
                "--tune": tune,
                "--scheduler": scheduler,
                "--recompute": recompute,
                "--workers": (workers or 1) > 1,
            },
        )
    files = (tls_ca, tls_cert, tls_key)
    if any(files) and not (all(files) and scheduler):
        raise ConfigError("--tls-ca, --tls-cert and --tls-key go together, with --scheduler")
    place = run_store(store)
    how = {
        "scheduler": scheduler,
        "tls": Tls(*files) if all(files) else None,
        "workers": workers,
        "device": device,
        "checkpoint_seconds": checkpoint_seconds,
        "recompute": recompute,
    }
    plan, seeds = None, seeds or (0 if minutes is None else 1)
    build = partial(cases_of, module, preset, seeds, tasks)
    if minutes is not None:
        question = (module.NAME, preset, seeds, tasks, minutes)
        plan, how["deadline"] = _plan(question, build, device, place, dry_run)
        build, how["workers"] = plan.within(build), 1
    cases = [] if tune else build()
    runs = tuning.runs(module, preset) if tune else [case.run for case in cases]
    if dry_run:
        _say_what_is_missing(runs, place, recompute)
        return
    try:
        entries = compute_all(runs, place, **how)
    except TimeUp:
        _publish(cases, place, module, preset)
        return
    except SweepError as error:
        click.echo(error.table(), err=True)
        if ctx.find_root().params.get("debug"):
            click.echo("\n".join(error.tracebacks.values()), err=True)
        n = len(error.failed)
        click.echo(
            f"sptlib: {n} trainings failed; the others are stored in {place.path}. The same "
            "command tries these again",
            err=True,
        )
        if plan is not None:
            _publish(cases, place, module, preset)
        ctx.exit(1)
    if tune:
        path = tuning.write(module, preset, entries, root())
        click.echo(f"{len(entries)} trainings; the table is {path}")
    else:
        results = base.paired(cases, entries)
        cells = module.table(results).groupby(module.GROUP_BY, sort=False)[
            getattr(module, "SCORE", "test_accuracy")
        ]
        click.echo(cells.agg(["mean", "min", "max", "count"]).round(4).to_string())
        click.echo(f"{len(results)} Runs stored in {place.path}")
    if plan is not None:
        _publish(cases, place, module, preset)


def cases_of(module, preset: str, seeds: int, tasks: tuple[str, ...]) -> list:
    """The cases of an experiment, all or those of some tasks, each once."""
    takes = inspect.signature(module.cases).parameters
    if not tasks:
        return module.cases(preset, seeds)
    if "tasks" in takes:
        return module.cases(preset, seeds, tasks=tasks)
    if "task" not in takes:
        raise ConfigError(f"{module.NAME} has no choice of tasks; leave --tasks out")
    found: list = []
    for task in tasks:
        found += [case for case in module.cases(preset, seeds, task=task) if case not in found]
    return found


def _plan(question: tuple, build, device: str, place, dry_run: bool) -> tuple:
    """What fits into the time, said before it starts, and when the time is up."""
    from sptlib import budget
    from sptlib.execute import Where

    deadline = time.monotonic() + 60 * budget.check(question[-1])
    where = Where(device=device)
    asked = budget.asked(*question, where)
    path, _ = budget.paths(place, *question[:2])
    plan = budget.kept(asked, path)
    if plan is not None:
        click.echo(f"going on with the plan in {path}")
    else:
        plan = budget.make(asked, build, where, deadline)
        if not dry_run:
            budget.save(plan, path)
    click.echo(str(plan))
    return plan, deadline


def _publish(cases, place, module, preset: str) -> None:
    """What is finished of a sweep with a given time, and where its metrics are."""
    from sptlib import budget

    _, path = budget.paths(place, module.NAME, preset)
    n, total = budget.publish(cases, place, path), len(budget.distinct(cases))
    if n < total:
        click.echo(
            f"{n} trainings are finished, {total - n} are left; the same command goes on from there"
        )
    click.echo(f"metrics of {n} trainings: {path}")


def _say_what_is_missing(runs, store, recompute: bool) -> None:
    from sptlib.config import key
    from sptlib.sweep import plan

    missing = {key(r): r for r in runs if recompute or store.get(r) is None}
    extra = len(plan(missing, store, recompute)) - len(missing)
    click.echo(
        f"{len(set(runs))} Runs, {len(missing)} of them not in {store.path}; they need {extra} "
        "pretrainings that are not there either"
    )
