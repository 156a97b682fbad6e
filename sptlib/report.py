"""What a chapter says about its own results: scale, settings, effects, verdicts.

Everything here is read off stored results, so that no number of the book is typed by hand.
"""

import html
from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd
from IPython.display import HTML, Markdown
from myst_nb import glue
from torch import Tensor

from sptlib import tuning
from sptlib.analysis import attention, stats, stored
from sptlib.analysis.stats import Interval
from sptlib.errors import ConfigError
from sptlib.experiments.base import Result, losses
from sptlib.export import Study
from sptlib.ledger import Judgement
from sptlib.store import Store
from sptlib.tasks import load


def training_seconds(results: Sequence[Result], store: Store | Study) -> float:
    """Training time of the results and of the pretrainings they share, each counted once."""
    entries = {r.entry.key: r.entry for r in results}
    for result in results:
        shared = result.entry.spec.pretraining
        if shared is not None and (entry := store.get(shared)) is not None:
            entries[entry.key] = entry
    return sum(e.environment["seconds"] for e in entries.values())


def scale(
    preset: str, results: Sequence[Result], store: Store | Study, what: str = "this page"
) -> Markdown:
    """One line: preset, seeds, Runs, training time, device."""
    seeds = sorted({r.entry.spec.seed for r in results})
    devices = sorted({r.entry.environment["device"] for r in results})
    threads = sorted({r.entry.environment["threads"] for r in results})
    n = len({r.entry.key for r in results})
    seconds = training_seconds(results, store)
    took = f"{seconds / 60:.1f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
    machines = sorted({r.entry.environment.get("processor", "") for r in results} - {""})
    machine = f" ({', '.join(machines)})" if machines else ""
    return Markdown(
        f"**Scale of {what}**: preset `{preset}`; seeds {seeds[0]}–{seeds[-1]} "
        f"(n = {len(seeds)}); {n} Runs, {took} of training on "
        f"{'/'.join(devices)}{machine} with {'/'.join(map(str, threads))} thread per Run."
        + ("" if preset == "paper" else " This is not the paper's scale.")
    )


def settings(result: Result) -> pd.DataFrame:
    """The task, model and training of one Run: its fields and their values, a row per part."""
    run = result.entry.spec
    task = {k: v for k, v in asdict(run.task).items() if k not in ("data_seed", "fresh", "name")}
    pretrain = (
        {k: v for k, v in asdict(run.pretrain).items() if k != "task"} if run.pretrain else {}
    )
    parts = {
        "task": task,
        "model": asdict(run.model),
        "pretrain": pretrain,
        "finetune": asdict(run.finetune),
    }
    shown = [
        {"part": part, "fields": ", ".join(f"{k} = {_short(v)}" for k, v in fields.items())}
        for part, fields in parts.items()
    ]
    return pd.DataFrame(shown).set_index("part")


def _short(value) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def steps_of(result: Result) -> dict[str, int]:
    """Optimiser steps by stage, planned."""
    run = result.entry.spec
    data = load(run.task, run.seed)
    steps = {"finetune": run.finetune.n_steps(len(data.train))}
    if run.pretrain is not None:
        steps["pretrain"] = run.pretrain.n_steps(len(data.unlabelled))
    return steps


def means(table: pd.DataFrame, by: Sequence[str], columns: dict[str, str]) -> pd.DataFrame:
    """Mean and range over seeds of some columns, as text: ``0.502 (0.481–0.523)``.

    Args:
        table: one row per Run.
        by: columns that name a row of the result.
        columns: heading by column of the table. Counts are rounded; what is missing is a dash.
    """
    if table.empty:
        return table[[*by]]

    def text(values: pd.Series) -> str:
        if values.isna().all():
            return "–"
        digits = 0 if pd.api.types.is_integer_dtype(values) else 3
        low, high = f"{values.min():.{digits}f}", f"{values.max():.{digits}f}"
        mean = f"{values.mean():.{digits}f}"
        return mean if low == high else f"{mean} ({low}–{high})"

    grouped = table.groupby(list(by), sort=False)
    shown = pd.DataFrame({title: grouped[name].agg(text) for name, title in columns.items()})
    shown["seeds"] = grouped["seed"].nunique()
    return shown


def effects(rows: dict[str, Interval], scale: float = 100.0, unit: str = "points") -> pd.DataFrame:
    """Intervals as a table with a row per comparison."""
    shown = [
        {
            "comparison": name,
            f"mean difference ({unit})": f"{i.mean * scale:+.1f}",
            f"{i.level:.0%} interval": f"[{i.low * scale:+.1f}, {i.high * scale:+.1f}]",
            "n": i.n,
            "excludes 0": "yes" if i.excludes(0.0) else "no",
        }
        for name, i in rows.items()
    ]
    return pd.DataFrame(shown).set_index("comparison") if shown else pd.DataFrame()


def glue_accuracy(table: pd.DataFrame, prefixes: dict[str, str]) -> None:
    """Glue mean, minimum and maximum of an arm's test accuracy for use in prose.

    Args:
        table: one row per Run.
        prefixes: by arm; prefix ``spt`` gives ``spt_acc``, ``spt_min`` and ``spt_max``.
    """
    for arm, prefix in prefixes.items():
        values = table.loc[table["arm"] == arm, "test_accuracy"]
        glue(f"{prefix}_acc", float(values.mean()), display=False)
        glue(f"{prefix}_min", float(values.min()), display=False)
        glue(f"{prefix}_max", float(values.max()), display=False)


def verdicts(rules: Sequence[tuple[str, Sequence[bool]]]) -> pd.DataFrame:
    """Decision rules with their outcomes: in how many cases a rule holds, and the verdict."""
    rows = [
        {
            "rule": text,
            "holds in": f"{sum(outcomes)} of {len(outcomes)}",
            "verdict": _verdict(outcomes),
        }
        for text, outcomes in rules
    ]
    return pd.DataFrame(rows).set_index("rule") if rows else pd.DataFrame()


def _verdict(outcomes: Sequence[bool]) -> str:
    if not outcomes:
        return "not run"
    return "holds" if all(outcomes) else "partly" if any(outcomes) else "does not hold"


def recovers(table: pd.DataFrame, part: str, share: float = 0.5) -> bool:
    """Whether a part recovers at least this share of SPT's gain; False if there is no gain."""
    try:
        return stats.recovered(table, "test_accuracy", "scratch", part, "SPT").low >= share
    except ConfigError:
        return False


def shares(table: pd.DataFrame, parts: Sequence[str], by: Sequence[str]) -> pd.DataFrame:
    """The share of SPT's gain over scratch that each part recovers, with its interval, by place.

    Args:
        table: one row per Run, with the arms scratch and SPT.
        parts: arms, the columns of the result.
        by: columns that name a place, the rows of the result.
    """
    rows = []
    for place, some in table.groupby(list(by), sort=False) if len(table) else ():
        shown = dict(zip(by, place, strict=True))
        gain = stats.paired(some, "test_accuracy", "SPT", "scratch")
        shown["gain"] = gain.text(100, 1, "points")
        for part in (arm for arm in parts if arm in set(some["arm"])):
            try:
                found = stats.recovered(some, "test_accuracy", "scratch", part, "SPT")
                shown[part] = found.text().split(", n =")[0]
            except ConfigError:  # no gain
                shown[part] = "–"
        rows.append(shown)
    return pd.DataFrame(rows).set_index(list(by)).fillna("") if rows else pd.DataFrame()


def curves(
    results: Sequence[Result], stage: str, arms: Sequence[str], **labels: object
) -> dict[str, list[pd.DataFrame]]:
    """Training losses by arm, one table per seed, of the results with these labels."""
    return {
        arm: [
            losses(r.entry, stage)
            for r in results
            if r.labels["arm"] == arm and all(r.labels[k] == v for k, v in labels.items())
        ]
        for arm in arms
    }


def pretrainings(results: Sequence[Result], store: Store, **labels: object) -> list[Result]:
    """The pretrainings behind the SPT arm of these labels, one per seed."""
    return [
        Result(r.labels, store.get(r.entry.spec.pretraining))
        for r in results
        if r.labels["arm"] == "SPT" and all(r.labels[k] == v for k, v in labels.items())
    ]


def starts(results: Sequence[Result], store: Store | Study, **labels: object) -> pd.DataFrame:
    """What each seed's pretraining had learned, beside what SPT made of it."""
    spt = {r.entry.spec.seed: r for r in results if r.labels == {**labels, "arm": "SPT"}}
    rows = []
    for seed, result in spt.items():
        shared = store.get(result.entry.spec.pretraining).result
        rows.append(
            {
                "seed": seed,
                "validation loss of reconstruction": shared["val_loss"],
                "hidden symbols restored": shared.get("val_accuracy"),
                "test accuracy after SPT": result.entry.result["test_accuracy"],
            }
        )
    return pd.DataFrame(rows).set_index("seed").round(3) if rows else pd.DataFrame()


def pretraining_curves(results: Sequence[Result], store: Store, **labels: object) -> list:
    """The loss of every seed's pretraining, one table per seed."""
    return [losses(r.entry, "pretrain") for r in pretrainings(results, store, **labels)]


def maps(results: Sequence[Result], store: Store, seed: int, **labels: object) -> dict[str, Tensor]:
    """Mean attention maps (L, H, T, T) of one seed: scratch before and after, pretraining after."""
    scratch = next(
        r
        for r in results
        if r.labels["arm"] == "scratch"
        and r.entry.spec.seed == seed
        and all(r.labels[k] == v for k, v in labels.items())
    )
    shared = next(r for r in pretrainings(results, store, **labels) if r.entry.spec.seed == seed)
    start, end = stored.start_and_end(scratch.entry)
    return {
        "random start": start,
        "labels only": end,
        "after pretraining": stored.start_and_end(shared.entry)[1],
    }


def proximities(results: Sequence[Result], store: Store, distance: int = 2) -> pd.DataFrame:
    """Attention mass near the query, mean over layers and heads: a row per variant, seed, model."""
    rows = []
    for result in pretrainings(results, store):
        labels, seed = result.labels, result.entry.spec.seed
        named = maps(results, store, seed, **{k: v for k, v in labels.items() if k != "arm"})
        rows += [
            {
                **labels,
                "seed": seed,
                "model": model,
                "proximity": float(attention.proximity(m, distance).mean()),
            }
            for model, m in named.items()
        ]
    return pd.DataFrame(rows)


def gains(
    table: pd.DataFrame, comparisons: Sequence[tuple[str, str]], by: str
) -> dict[str, Interval]:
    """Paired differences of test accuracy for each value of a column.

    Args:
        table: one row per Run.
        comparisons: pairs (a, b) of arms; the difference is a − b, over the seeds that both have.
        by: the column, e.g. "task".

    Returns:
        Intervals by ``"VALUE: a − b"``.
    """
    return {
        f"{name}: {a} − {b}": stats.paired(stats.common(rows, a, b), "test_accuracy", a, b)
        for name, rows in (table.groupby(by, sort=False) if len(table) else ())
        for a, b in comparisons
        if {a, b} <= set(rows["arm"]) and a != b
    }


def rate_grid(table: pd.DataFrame) -> pd.DataFrame:
    """The search for label rates in short: mean validation accuracy by task, arm and rate.

    Args:
        table: of `sptlib.tuning.read`, with a column task. The chosen rate has a tick.
    """
    chosen = tuning.choose_by(table, "task")
    means = table.groupby(["task", "arm", "lr"], sort=False)["val_accuracy"].mean()
    shown = {
        (task, arm, f"{lr:g}"): f"{value:.3f}" + (" ✓" if chosen[task][arm] == lr else "")
        for (task, arm, lr), value in means.items()
    }
    order = [f"{lr:g}" for lr in sorted(table["lr"].unique())]
    seeds = table.groupby(["task", "arm"], sort=False)["seed"].nunique()
    grid = pd.Series(shown).unstack(sort=False).reindex(columns=order).fillna("–")
    grid.index.names = ["task", "arm"]
    return grid.assign(seeds=seeds)


def rates(table: pd.DataFrame, by: Sequence[str] = ("arm",)) -> pd.DataFrame:
    """The search for rates: mean validation results by arm and rate; the chosen ones are marked.

    Args:
        table: of `sptlib.tuning.read`.
        by: what a rate was chosen for: the arm, or a task and the arm.
    """
    by = list(by)
    chosen = {
        (*(name if len(by) > 1 else ()), arm): lr
        for name, rows in (table.groupby(by[:-1], sort=False) if len(by) > 1 else [((), table)])
        for arm, lr in tuning.choose(rows).items()
    }
    shown = (
        table.groupby([*by, "lr"], sort=False)
        .agg(
            **{
                "validation accuracy": ("val_accuracy", "mean"),
                "validation loss": ("val_loss", "mean"),
                "runs": ("seed", "size"),
            }
        )
        .reset_index()
    )
    places = shown[by].itertuples(index=False, name=None)
    shown["chosen"] = [
        "✓" if chosen[place] == lr else "" for place, lr in zip(places, shown["lr"], strict=True)
    ]
    for column in ("validation accuracy", "validation loss"):
        shown[column] = shown[column].map(lambda v: "–" if pd.isna(v) else f"{v:.3f}")
    shown["lr"] = shown["lr"].map("{:g}".format)
    return shown.set_index([*by, "lr"])


def linked(judgements: Sequence[Judgement]) -> HTML:
    """The ledger as a table: each claim links to its figure, and to the code that is behind it."""
    rows = []
    for j in judgements:
        claim = j.claim
        name, code = claim.id, ""
        if claim.page:
            name = f'<a href="{claim.page}.html#{claim.figure}">{claim.id}</a>'
            anchor = f"sptlib-experiments-{claim.experiment}".replace("_", "-")
            code = f'<a href="../../book/api.html#{anchor}">{claim.experiment}</a>'
        rows.append(
            {
                "id": name,
                "claim": html.escape(claim.text),
                "verdict": f"<b>{j.verdict}</b>",
                "result": html.escape(j.result),
                "seeds": j.n if j.parts else "–",
                "code": code,
            }
        )
    table = pd.DataFrame(rows).set_index("id")
    return HTML(table.to_html(escape=False, classes="table", border=0, index_names=False))


def rules(judgements: Sequence[Judgement]) -> pd.DataFrame:
    """Of each claim: where it is made, what is measured, and the rule."""
    rows = [
        {
            "id": j.claim.id,
            "said in": j.claim.said,
            "metric": j.claim.metric,
            "reproduced if": j.claim.rule,
        }
        for j in judgements
    ]
    return pd.DataFrame(rows).set_index("id")
