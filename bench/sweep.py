"""A sweep of eight equal trainings: on two cores against one after the other.

Each round computes the same eight Runs with one worker (this process) and with two, in turn, in
empty stores; starting Dask and its workers is part of the time. The ratio of the medians is what
the second core brings.
"""

import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from sptlib import presets
from sptlib.experiments.base import with_steps
from sptlib.store import Store
from sptlib.sweep import compute_all

N_RUNS = 8
ROUNDS = 3
STEPS = 4000


def seconds(runs, workers: int) -> float:
    """Wall time of the whole sweep."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        compute_all(runs, Store(Path(folder)), workers=workers, device="cpu")
        return time.perf_counter() - started


def main(steps: int) -> None:
    base = with_steps(replace(presets.get("classroom", "neighbor"), pretrain=None), steps)
    runs = [replace(base, seed=seed) for seed in range(N_RUNS)]
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for workers, found in times.items():
            found.append(seconds(runs, workers))
            print(f"{workers} worker(s): {found[-1]:.1f} s", flush=True)
    one, two = (statistics.median(times[workers]) for workers in (1, 2))
    print(f"{N_RUNS} runs of {steps} steps, medians of {ROUNDS}: {one:.1f} s one after the other, "
          f"{two:.1f} s on two cores: {one / two:.2f} times as fast")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else STEPS)
