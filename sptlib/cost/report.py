"""What `sptlib.cost` found, for people: tables as words, sentences, devices side by side."""

from collections.abc import Sequence

import pandas as pd

from sptlib.cost import devices
from sptlib.cost.devices import GPUS
from sptlib.cost.table import Cases, estimate
from sptlib.cost.workload import BEST
from sptlib.data.make import cores
from sptlib.experiments.base import Case
from sptlib.progress import size


def shown(table: pd.DataFrame) -> pd.DataFrame:
    """The table as words, the dearest first, with a row of totals; ≤ marks upper bounds.

    Memory is that of one training, so that its total is the largest; ! = the device has less.
    """
    rows = []
    for row in table.sort_values("hours_total", ascending=False).to_dict("records"):
        most = "≤ " if row["may_stop"] else ""
        rows.append(
            {
                "experiment": row["experiment"] + (f" (+ {row['also']})" if row["also"] else ""),
                "task": row["task"],
                "training": _training(row),
                "labels": row["cell"],
                "n": f"{row['n']}",
                "steps": f"{row['steps']:,}",
                "length": f"{row['length']:,.0f}",
                "FLOPs each": most + scientific(row["flops"]),
                "memory": size(row["bytes"]) + ("" if row["fits"] in (True, None) else " !"),
                "time each": most + duration(row["hours"]),
                "time of all": most + duration(row["hours_total"]),
                "share": f"{row['share']:.1%}",
            }
        )
    most = "≤ " if table["may_stop"].any() else ""
    total = {
        "experiment": "total",
        "n": f"{table['n'].sum()}",
        "FLOPs each": f"all {most}{scientific(table['flops_total'].sum())}",
        "memory": size(table["bytes"].max()),
        "time of all": most + duration(table["hours_total"].sum()),
        "share": "100.0%",
    }
    columns = {name: total.get(name, "") for name in rows[0]}
    return pd.DataFrame([*rows, columns])


def text(table: pd.DataFrame) -> str:
    """`shown`, for a terminal: words to the left, numbers to the right."""
    words = shown(table)
    left = ("experiment", "task", "training", "labels")
    wide = {name: max(len(name), *map(len, words[name])) for name in words}
    lines = [dict(zip(words, words, strict=True)), *words.to_dict("records")]
    return "\n".join(
        "  ".join(
            line[name].ljust(n) if name in left else line[name].rjust(n) for name, n in wide.items()
        )
        for line in lines
    )


def _training(row: dict) -> str:
    if row["stage"] == "finetune":
        return row["arm"] or "labels"
    return f"pretraining of {row['arm']}" if row["arm"] not in ("", "SPT") else "pretraining"


def scientific(flops: float) -> str:
    """``2.4e15``."""
    mantissa, exponent = f"{flops:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def unit_of(hours: float) -> tuple[str, float]:
    """The unit in which so many hours are easily read, and how many hours it has."""
    units = {"years": 365.25 * 24, "days": 24, "hours": 1, "min": 1 / 60, "s": 1 / 3600}
    return next(((u, n) for u, n in units.items() if hours >= 2 * n), ("s", 1 / 3600))


def duration(hours: float) -> str:
    """Hours in that unit: ``3.4 days``."""
    unit, many = unit_of(hours)
    return f"{hours / many:,.1f} {unit}"


def dominant(table: pd.DataFrame, share: float = 0.5) -> str:
    """A sentence: which kinds of training make up at least this share of the hours."""
    rows = table.sort_values("share", ascending=False)
    n = int((rows["share"].cumsum() < share).sum()) + 1
    named = ", ".join(
        f"{row['task']} {_training(row)} ({row['share']:.0%})"
        for row in rows.head(n).to_dict("records")
    )
    by_stage = table.groupby("stage")["hours_total"].sum() / table["hours_total"].sum()
    return (
        f"{rows['share'].head(n).sum():.0%} of the time goes into {n} of {len(table)} kinds of "
        f"training: {named}. Pretraining takes {by_stage.get('pretrain', 0.0):.0%} of all."
    )


def notes(table: pd.DataFrame, device: str) -> list[str]:
    """What the numbers rest on, a sentence each."""
    total = table["hours_total"].sum()
    more = (table["n"] * table["hours_max"]).sum() / total - 1
    found = []
    if device in GPUS:
        gpu = GPUS[device]
        rates = ", ".join(f"{name} {rate / 1e12:g}" for name, rate in gpu.peak.items())
        found.append(
            f"{gpu.name}: {rates} TFLOP/s dense, {gpu.memory / 1e9:g} GB, "
            f"{gpu.bandwidth / 1e12:g} TB/s; published values ({gpu.source})."
        )
        found.append(
            f"Assumed, not measured: {devices.UTILISATION:.0%} of the peak in matrix products, "
            f"{devices.MOVES} passes over what is kept for backward, and at least "
            f"{1e6 * devices.DISPATCH:g} µs per operation."
        )
        lacking = sorted({p for p in table["precision"] if p not in gpu.peak})
        if lacking:
            found.append(f"It has no units for {', '.join(lacking)}: fp32's rate is taken.")
        if not table["fits"].all():
            found.append("! = more memory than it has.")
    else:
        found.append(
            "One thread of this machine, measured now, as if it did nothing else; a sweep on its "
            f"{cores()} cores takes about {duration(total / cores())}, as long as they do not slow "
            "one another down."
        )
        if (table["by"] == "scaled").any():
            found.append(
                f"{(table['by'] == 'scaled').sum()} kinds of training were measured at a smaller "
                "batch or length and scaled by FLOPs: expect less accuracy."
            )
    found.append(
        f"Every new best is tested: of n evaluations, {BEST:g}·√n are taken for one; were all, it "
        f"would be {more:.1%} more."
    )
    if table["may_stop"].any():
        found.append("≤ = it may stop early, so that this is an upper bound.")
    varying = table[table["length_from"] != "fixed"].groupby("length_from")["task"].unique()
    if len(varying):
        named = "; ".join(f"{source} ({', '.join(some)})" for source, some in varying.items())
        found.append(f"Lengths are those of {named}.")
    found.append("Left out: making and reading data for the first time, checkpoints, starting up.")
    return found


def by_experiment(table: pd.DataFrame) -> pd.DataFrame:
    """Trainings, FLOPs and time of each experiment; what several share is the first one's."""
    sums = table.groupby("experiment", sort=False)[["n", "flops_total", "hours_total"]].sum()
    sums.loc["all"] = sums.sum()
    most = table.groupby("experiment", sort=False)["may_stop"].any()
    mark = {name: "≤ " if stops else "" for name, stops in most.items()}
    mark["all"] = "≤ " if most.any() else ""
    return pd.DataFrame(
        {
            "trainings": sums["n"].astype(int),
            "FLOPs": [mark[name] + scientific(x) for name, x in sums["flops_total"].items()],
            "time in sum": [mark[name] + duration(x) for name, x in sums["hours_total"].items()],
        }
    )


def by_device(
    cases: Cases | Sequence[Case], precisions: Sequence[str] = ("fp32", "tf32", "bf16")
) -> pd.DataFrame:
    """The same work on every GPU of the table, in every precision that it has units for."""
    rows = []
    for name, gpu in GPUS.items():
        for precision in (p for p in precisions if p in gpu.peak):
            table = estimate(cases, device=name, precision=precision)
            time = table.groupby("by")["hours_total"].sum() / table["hours_total"].sum()
            rows.append(
                {
                    "device": name,
                    "precision": precision,
                    "peak (TFLOP/s)": f"{gpu.peak[precision] / 1e12:g}",
                    "time of one device": duration(table["hours_total"].sum()),
                    "largest training": size(table["bytes"].max())
                    + ("" if table["fits"].all() else " !"),
                    "its memory": size(gpu.memory),
                    "waits for Python": f"{time.get('dispatch', 0.0):.0%} of the time",
                }
            )
    return pd.DataFrame(rows).set_index(["device", "precision"])


def equal_steps(table: pd.DataFrame) -> pd.DataFrame:
    """What equal steps mean in FLOPs: scratch's beside those of both stages of SPT, by task."""
    labels = table["stage"] == "finetune"
    parts = {
        "pretraining": ~labels,
        "labels after it": labels & (table["arm"] == "SPT"),
        "scratch": labels & (table["arm"] == "scratch"),
    }
    sums = {name: table[which].groupby("task")["flops"].max() for name, which in parts.items()}
    both = pd.DataFrame(sums).dropna()
    ratio = both["scratch"] / (both["pretraining"] + both["labels after it"])
    return both.map(scientific).assign(**{"scratch / SPT": ratio.map("{:.2f}".format)})


def beside(table: pd.DataFrame) -> pd.DataFrame:
    """Predicted seconds of one training beside those that the store recorded, where it has some."""
    rows = table[table["recorded"].notna()]
    return pd.DataFrame(
        {
            "experiment": rows["experiment"],
            "task": rows["task"],
            "training": [_training(row) for row in rows.to_dict("records")],
            "predicted (s)": [
                ("≤ " if stops else "") + f"{3600 * hours:.1f}"
                for hours, stops in zip(rows["hours"], rows["may_stop"], strict=True)
            ],
            "recorded (s)": [f"{3600 * hours:.1f}" for hours in rows["recorded"]],
            "ratio": [f"{x:.2f}" for x in rows["hours"] / rows["recorded"]],
        }
    )


def agreement(table: pd.DataFrame) -> str:
    """A sentence: how well predictions fit what the store recorded, bounds left out."""
    rows = table[table["recorded"].notna() & ~table["may_stop"]]
    if rows.empty:
        return "The store has none of these trainings."
    ratio = rows["hours"] / rows["recorded"]
    near = ((ratio - 1).abs() <= 0.25).sum()
    return (
        f"Of {len(rows)} kinds of training that do not stop early, {near} took within 25 % of the "
        f"prediction; the median ratio is {ratio.median():.2f}."
    )


def extrapolated(here: pd.DataFrame, elsewhere: pd.DataFrame) -> str:
    """A sentence: how long other work would take at the rate that these trainings reach."""
    rate = here["flops_total"].sum() / here["hours_total"].sum()
    total = elsewhere["flops_total"].sum()
    return (
        f"One thread gets {scientific(rate / 3600)} floating point operations per second out of "
        f"these trainings. At this rate, the {scientific(total)} of the comparison above would "
        f"take {duration(total / rate)}."
    )
