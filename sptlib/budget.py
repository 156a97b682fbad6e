"""An experiment cut to a given time on one device: every training shorter by the same factor.

The Runs of a preset are built as always, from base Runs whose two stages have so many times fewer
epochs; so whatever the arms have in common, equal total steps among it, they have still. Sizes,
rates and batches stay: another batch is another training. Evaluations become fewer where they would
take more than `EVALUATING` of a stage, and the warm-up is at most `WARMING` of its steps.

How fast the device is, is measured before. The factor is kept in a file, so that the same command
goes on with the same Runs when the time was too short.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import torch

from sptlib import export, presets
from sptlib.config import (
    NUMERICS,
    SCHEMA,
    FinetuneConfig,
    PretrainConfig,
    Pretraining,
    Run,
    digest,
    key,
)
from sptlib.cost import devices
from sptlib.cost.devices import Pace
from sptlib.cost.workload import Workload, workload
from sptlib.environment import processor
from sptlib.errors import ConfigError, StoreError
from sptlib.execute import Where
from sptlib.experiments.base import Case
from sptlib.formats.base import writing
from sptlib.store import Entry, Store

#: of the time that is left once the device was measured, this much is planned for
PLANNED = 0.85
#: of the time, and most seconds, for measuring the device
MEASURING, MEASURING_SECONDS = 0.1, 30.0
#: most of a stage's arithmetic that goes into evaluations, unless there are `FEWEST` of them
EVALUATING, FEWEST = 0.1, 2
#: most of a stage's steps that are warm-up
WARMING = 0.1
#: shorter than by this factor makes no sense: every stage has one step
SHORTEST = 1e-7

Build = Callable[[], list[Case]]
Stage = TypeVar("Stage", PretrainConfig, FinetuneConfig)


@dataclass(frozen=True)
class Plan:
    """What fits.

    Attributes:
        asked: what the command was, on which device; the same again has the same plan.
        device: its name.
        precision: of all trainings: "bf16" on a GPU that has it, else "fp32".
        factor: by which all trainings are shorter, at most 1.
        seconds: predicted, by name of the task.
    """

    asked: dict
    device: str
    precision: Literal["fp32", "bf16"]
    factor: float
    seconds: dict[str, float]

    def within(self, build: Build) -> Build:
        """The same cases, but as long as planned."""

        def built() -> list[Case]:
            with shortened(self.asked["preset"], self.factor, self.precision):
                return build()

        return built

    def __str__(self) -> str:
        each = ", ".join(f"{task} {s / 60:.2g} min" for task, s in self.seconds.items())
        total = sum(self.seconds.values()) / 60
        return (
            f"{self.device}, {self.precision}: every training has {self.factor:g} of its epochs; "
            f"predicted: {each}; {total:.2g} of {self.asked['minutes']:g} min in all"
        )


def check(minutes: float) -> float:
    """The number itself; raises `ConfigError` unless it is positive and finite."""
    if not (math.isfinite(minutes) and minutes > 0):
        raise ConfigError(f"--minutes must be a positive number, found {minutes:g}")
    return minutes


def paths(store: Store, experiment: str, preset: str) -> tuple[Path, Path]:
    """The files beside a store: of the plan, and of the finished results."""
    folder = store.path.absolute().parent
    name = f"{experiment}-{preset}"
    return folder / f"budget-{name}.json", folder / f"{name}-budget.jsonl"


def asked(
    experiment: str, preset: str, seeds: int, tasks: Sequence[str], minutes: float, where: Where
) -> dict:
    """What makes two commands the same, as plain JSON values.

    Raises:
        ConfigError: if there is no such device here.
    """
    return {
        "experiment": experiment,
        "preset": preset,
        "seeds": seeds,
        "tasks": list(tasks),
        "minutes": minutes,
        "device": _name(where.torch_device()),
        "schema": SCHEMA,
        "numerics": NUMERICS,
    }


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor() or "CPU"


def make(question: dict, build: Build, where: Where, deadline: float) -> Plan:
    """Measure the device and find the factor.

    Args:
        question: see `asked`.
        build: gives the cases of the experiment, by `sptlib.presets`.
        where: the device.
        deadline: when the time is up, by `time.monotonic`.

    Raises:
        ConfigError: if the time is too short for one step of every stage.
        DataError: if data are missing.
    """
    device, preset = where.torch_device(), question["preset"]
    real = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    precision = "bf16" if real else "fp32"
    with shortened(preset, 1.0, precision):
        specs = distinct(build())
    for spec in specs:
        key(spec)  # data are read or made, which takes time of its own
    seconds = min(MEASURING_SECONDS, MEASURING * 60 * question["minutes"])
    before = time.perf_counter(), time.process_time()
    paces = devices.measure(map(workload, specs), seconds, device)
    passed, worked = time.perf_counter() - before[0], time.process_time() - before[1]
    # a CPU's paces are for a machine that does nothing else; in too short a time one cannot tell
    slower = max(1.0, passed / worked) if device.type == "cpu" and worked > 0.2 else 1.0
    left = PLANNED * (deadline - time.monotonic()) / slower

    def predicted(factor: float) -> dict[str, float]:
        with shortened(preset, factor, precision):
            return predict(distinct(build()), paces)

    factor = largest(lambda f: sum(predicted(f).values()), left)
    if not factor:
        least = slower * sum(predicted(SHORTEST).values())
        raise ConfigError(
            f"one step of every training and its evaluations take about {least / 60:.2g} min on "
            f"{_name(device)}, of {question['minutes']:g}; give more --minutes, or name fewer "
            "--tasks"
        )
    by_task = {task: slower * s for task, s in predicted(factor).items()}
    return Plan(question, _name(device), precision, factor, by_task)


def largest(seconds: Callable[[float], float], most: float) -> float:
    """The largest factor ≤ 1 whose trainings take at most so many seconds; 0.0 = there is none.

    It has three digits, rounded down.
    """
    if seconds(1.0) <= most:
        return 1.0
    low, high = math.log(SHORTEST), 0.0
    if seconds(SHORTEST) > most:
        return 0.0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if seconds(math.exp(middle)) <= most else (low, middle)
    factor = math.exp(low)
    digits = 2 - math.floor(math.log10(factor))
    return math.floor(factor * 10**digits) / 10**digits


def predict(specs: Sequence[Run | Pretraining], paces: dict[Workload, Pace]) -> dict[str, float]:
    """Seconds of these trainings, one after the other, by name of the task."""
    found: dict[str, float] = {}
    for spec in specs:
        work = workload(spec)
        pace = paces[work.shape]
        taken = work.steps * pace.step + work.evaluated(work.n_tests) * pace.item + pace.fixed
        found[spec.task.name] = found.get(spec.task.name, 0.0) + taken
    return found


def distinct(cases: Sequence[Case]) -> list[Run | Pretraining]:
    """Every training behind these cases once, pretrainings included."""
    specs = (spec for case in cases for spec in (case.run.pretraining, case.run) if spec)
    return list({digest(spec): spec for spec in specs}.values())


@contextmanager
def shortened(preset: str, factor: float, precision: Literal["fp32", "bf16"]) -> Iterator[None]:
    """Within the block, the preset's Runs are shorter, and all arms that are made from them."""
    whole = presets.PRESETS[presets.check(preset)]
    presets.PRESETS[preset] = lambda recipe: shorter(whole(recipe), factor, precision)
    try:
        yield
    finally:
        presets.PRESETS[preset] = whole


def shorter(run: Run, factor: float, precision: Literal["fp32", "bf16"]) -> Run:
    """A preset's Run with so many times its epochs, at a precision; 1 leaves all else as it is."""
    both = {
        name: replace(stage, epochs=stage.epochs * factor, precision=precision)
        for name, stage in (("pretrain", run.pretrain), ("finetune", run.finetune))
    }
    run = replace(run, **both)
    if factor == 1:
        return run
    pretrain, finetune = workload(run.pretraining), workload(run)
    return replace(
        run, pretrain=_fewer(run.pretrain, pretrain), finetune=_fewer(run.finetune, finetune)
    )


def _fewer(config: Stage, work: Workload) -> Stage:
    """The stage with evaluations and warm-up in proportion; whatever is tested counts as new."""
    each = (work.n_val + work.n_test) * work.item_flops
    most = int(EVALUATING / (1 - EVALUATING) * work.steps * work.step_flops / each)
    return replace(
        config,
        n_evals=min(config.n_evals, max(FEWEST, most)),
        warmup_steps=min(config.warmup_steps, int(WARMING * work.steps)),
    )


def save(plan: Plan, path: Path) -> None:
    """Write a plan; raises `StoreError` if that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as file:
            file.write((json.dumps(asdict(plan), indent=1) + "\n").encode())
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror or error})") from error


def kept(question: dict, path: Path) -> Plan | None:
    """The plan that the same command left, or None."""
    try:
        plan = Plan(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return plan if plan.asked == question else None


def finished(cases: Sequence[Case], store: Store) -> list[Entry]:
    """What is stored of these cases, pretrainings included."""
    return [entry for spec in distinct(cases) if (entry := store.get(spec)) is not None]


def publish(cases: Sequence[Case], store: Store, path: Path) -> int:
    """Write the metrics of what is finished (`sptlib.export.write`); returns how many."""
    return export.write(path, finished(cases, store))
