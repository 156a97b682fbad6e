"""What it costs to watch a training, and what closed forms save over automatic differentiation.

One thread; the contestants alternate, medians and their ratio are printed. Run it with `make
bench`, on a machine that does nothing else.
"""

import statistics
import time
from dataclasses import replace
from functools import partial

import torch

from sptlib import presets
from sptlib.analysis import theory
from sptlib.seeding import generator
from sptlib.tasks import load
from sptlib.train import pretrain

ROUNDS = 5


def timed(*contestants, rounds: int = ROUNDS) -> list[float]:
    """Median seconds of each, in turns."""
    times = [[] for _ in contestants]
    for _ in range(rounds):
        for found, run in zip(times, contestants, strict=True):
            started = time.perf_counter()
            run()
            found.append(time.perf_counter() - started)
    return [statistics.median(found) for found in times]


def watching() -> None:
    """A short pretraining on `neighbor`, unwatched and with 20 looks."""
    spec = presets.classroom("neighbor").pretraining
    spec = replace(spec, pretrain=replace(spec.pretrain, epochs=8.0))
    watched = replace(spec, pretrain=replace(spec.pretrain, watch=20))
    data = load(spec.task, 0)
    alone, looked = timed(lambda: pretrain(spec, data), lambda: pretrain(watched, data), rounds=3)
    print(f"pretraining, {spec.n_steps} steps: {alone:.2f} s, watched 20 times {looked:.2f} s "
          f"(+{(looked - alone) / 21 * 1000:.0f} ms per look)")


def closed_forms(n: int = 100, d: int = 32) -> None:
    """Gradient and curvature of the label loss, closed form against autograd."""
    g = generator(0, "bench")
    x, scores, direction = (torch.randn(*shape, generator=g, dtype=torch.float64)
                            for shape in ((8, n, d), (n, n), (n, n)))
    w_v, w = (torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((d, d), (d,)))
    y, head = torch.arange(8) % 2, theory.Readout(w_v, w, "gelu", 1.0)
    loss = partial(theory.label_loss, x, y, head)
    for name, closed, automatic in (
        ("gradient", lambda: theory.label_gradient(x, y, head, scores),
         lambda: theory.autograd_gradient(loss, scores)),
        ("curvature", lambda: theory.label_curvature(x, y, head, direction, scores),
         lambda: theory.autograd_curvature(loss, scores, direction)),
    ):
        first, second = timed(closed, automatic, rounds=20 * ROUNDS)
        print(f"label {name}, n = {n}: closed form {first * 1000:.2f} ms, autograd "
              f"{second * 1000:.2f} ms, ratio {second / first:.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    watching()
    closed_forms()
