"""Does `sptlib cost` predict how long a training takes on this machine?

For each of some workloads without early stopping, in turn: predict from a short measurement,
compute it into a store that is thrown away, with its pretraining, predict again. Prints the mean
of the two predictions, the measured seconds and their ratio, whose median over the rounds should be
within 25 % of 1. Run it on a machine that does nothing else: elsewhere only the processor's clock,
printed beside, says something.

    .venv/bin/python bench/cost.py [ROUNDS] [SECONDS]
"""

import statistics
import sys
import tempfile
import time
from dataclasses import replace

from sptlib import cost, presets, tasks
from sptlib.execute import Where, compute
from sptlib.experiments import replication, synthetic
from sptlib.experiments.base import Case
from sptlib.store import Store

WITHIN = 0.25


def workloads() -> dict[str, object]:
    """Runs of different tasks, lengths, batches and stages, none of which stops early."""
    neighbor = synthetic.base_run("classroom", (1, 3), 0)
    neighbor = replace(neighbor, finetune=replace(neighbor.finetune, stop_at=None))
    listops = replication.base_run("study", "ListOps", 0)
    listops = replace(  # a quarter of it is long enough
        listops,
        pretrain=replace(listops.pretrain, epochs=listops.pretrain.epochs / 4),
        finetune=replace(listops.finetune, epochs=listops.finetune.epochs / 4),
    )
    return {
        "neighbor, SPT": neighbor,
        "image, scratch": replace(presets.get("classroom", "image"), pretrain=None),
        "text:direction, SPT": presets.get("classroom", "text:direction"),
        "listops, SPT": listops,
    }


def predicted(run, seconds: float) -> float:
    """Seconds of the Run and its pretraining."""
    table = cost.estimate([Case({}, run)], device="cpu", seconds=seconds)
    return 3600 * table["hours_total"].sum()


def measured(run) -> tuple[float, float]:
    """The same by the clock on the wall, and by the processor's."""
    tasks.load(run.task, run.seed)  # making data is not part of the prediction
    with tempfile.TemporaryDirectory() as folder:
        wall, own = time.perf_counter(), time.process_time()
        compute(run, Store(folder), Where(device="cpu"))
        return time.perf_counter() - wall, time.process_time() - own


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 8.0
    ratios: dict[str, list[float]] = {}
    for seed in range(rounds):
        for name, run in workloads().items():
            run = replace(run, seed=seed)
            before, (took, own), after = (
                predicted(run, seconds), measured(run), predicted(run, seconds)
            )  # fmt: skip
            expected = (before + after) / 2
            ratios.setdefault(name, []).append(expected / took)
            print(
                f"{name:22s} seed {seed}: predicted {expected:6.1f} s, measured {took:6.1f} s, "
                f"ratio {expected / took:.2f} (processor {own:.1f} s, {expected / own:.2f})",
                flush=True,
            )
    worst = 0.0
    for name, some in ratios.items():
        median = statistics.median(some)
        worst = max(worst, abs(median - 1))
        print(f"{name:22s} median ratio {median:.2f} ({min(some):.2f} to {max(some):.2f})")
    print(f"all within {WITHIN:.0%}: {'yes' if worst <= WITHIN else 'no'}")


if __name__ == "__main__":
    main()
