"""How long a training takes: on GPUs by their data sheets and two assumptions, here by a clock.

GPUs. Peak rates, memory and bandwidth are published values. What a training reaches of them is
assumed: `UTILISATION` of the peak in matrix products, all of the bandwidth for `MOVES` passes over
whatever is kept for backward, and `DISPATCH` seconds for every operation that Python starts. A step
takes as long as its arithmetic and its memory traffic together, but no less than starting its
operations does: small models wait for Python. Not counted: making and copying data, checkpoints,
and whatever else the machine does.

Here. `measure` runs real training steps of each shape, on made-up sequences of that shape, with one
thread, as a sweep does. It reads the processor's clock, which stands still while other processes
have the core: the result is for a machine that does nothing else. A GPU that is here is measured by
the clock on the wall, once it has done what it was told.
"""

import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from tqdm import tqdm

from sptlib import evaluate, masking, tasks, train
from sptlib.config import FinetuneConfig, ModelConfig, Pretraining, Run
from sptlib.cost import flops
from sptlib.cost.workload import Lengths, Workload
from sptlib.errors import unknown
from sptlib.execute import Where, compute, cpu_threads
from sptlib.model import build
from sptlib.seeding import generator
from sptlib.store import Store
from sptlib.tasks import NeighborConfig, Split, TaskData

UTILISATION = 0.4
DISPATCH = 20e-6
MOVES = 4
#: operations of a training step that take a kernel each: per layer, and once (a test counts)
PER_LAYER, ONCE = {"fp32": 40, "tf32": 40, "bf16": 60}, 60


@dataclass(frozen=True)
class Gpu:
    """Published values of a GPU.

    Attributes:
        name: model and variant.
        memory: bytes.
        bandwidth: of the memory, bytes per second.
        peak: dense FLOPs per second by precision; fp32 without tensor cores, as PyTorch does it
            unless tf32 is asked for. What is missing has no units for it and runs as fp32.
        source: where the values are from.
    """

    name: str
    memory: float
    bandwidth: float
    peak: dict[str, float]
    source: str


GPUS = {
    "h200": Gpu(
        "NVIDIA H200 SXM", 141e9, 4.8e12, {"fp32": 67e12, "tf32": 494.7e12, "bf16": 989.4e12},
        "NVIDIA H200 Tensor Core GPU, data sheet (tensor rates are given with sparsity: halved)",
    ),
    "a100": Gpu(
        "NVIDIA A100 SXM 80 GB", 80e9, 2.039e12,
        {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12},
        "NVIDIA A100 Tensor Core GPU, data sheet",
    ),
    "v100": Gpu(
        "NVIDIA V100 SXM2 32 GB", 32e9, 0.9e12, {"fp32": 15.7e12},
        "NVIDIA V100 Tensor Core GPU, data sheet (its tensor cores know fp16 only)",
    ),
    "rtx3090": Gpu(
        "NVIDIA GeForce RTX 3090", 24e9, 0.936e12,
        {"fp32": 35.6e12, "tf32": 35.6e12, "bf16": 71e12},
        "NVIDIA Ampere GA102 GPU architecture, white paper (bf16 with fp32 accumulation)",
    ),
}  # fmt: skip
#: steps, and passes of an evaluation, after which their time is known well enough
MOST_STEPS, MOST_PASSES = 300, 30
#: FLOPs per second by kind of device, until a measurement says better
RATE = {"cpu": 5e9, "cuda": 1e14}
#: names for the machine that this runs on, one thread of it
HERE = ("cpu", "this")


def check(device: str) -> str:
    """The name itself; raises `ConfigError` with a suggestion if there is no such device."""
    if device not in GPUS and device not in HERE:
        raise unknown("device", device, (*GPUS, *HERE))
    return device


@dataclass(frozen=True)
class Pace:
    """How fast a shape of work goes on a device.

    Attributes:
        step: seconds of a training step.
        item: seconds of evaluating one sequence, or pair.
        fixed: seconds of a training besides: starting, storing.
        by: "measured", "scaled" from a smaller measurement, or what limits a GPU: "arithmetic",
            "memory" or "dispatch".
        note: for people.
    """

    step: float
    item: float
    fixed: float
    by: str
    note: str = ""


def on_gpu(work: Workload, gpu: Gpu, precision: str = "") -> Pace:
    """The pace by data sheet and assumptions; precision "" = the training's own."""
    precision = precision or work.precision
    rate = UTILISATION * gpu.peak.get(precision, gpu.peak["fp32"])
    kept = float(np.mean(work.kept(work.batch_lengths, precision)))
    weights = sum(flops.parameters(work.model, work.inputs).values())
    # AdamW reads weight, gradient and two moments, and writes all but the gradient
    parts = {
        "arithmetic": work.step_flops / rate,
        "memory": (MOVES * kept + 7 * 4 * weights) / gpu.bandwidth,
        "dispatch": DISPATCH * (PER_LAYER[precision] * work.model.n_layers + ONCE),
    }
    busy = parts["arithmetic"] + parts["memory"]
    slower = max(("arithmetic", "memory"), key=parts.__getitem__)
    limit = "dispatch" if parts["dispatch"] > busy else slower
    # an evaluation has a third of the operations, and nothing to keep: half the moves
    moved = MOVES / 2 * kept / work.items / gpu.bandwidth
    item = max(work.item_flops / rate + moved, parts["dispatch"] / 3 / work.piece)
    return Pace(max(busy, parts["dispatch"]), item, 0.0, limit)


# --- this machine ------------------------------------------------------------------------------


class _EnoughError(Exception):
    """Ends a training whose steps have been timed."""


def measure(
    works: Iterable[Workload], seconds: float = 30.0, device: str | torch.device = "cpu"
) -> dict[Workload, Pace]:
    """The pace of every shape on this machine, one thread, within about so many seconds.

    Args:
        works: what is to be trained; those of the same `Workload.shape` are measured once.
        seconds: for all shapes together. A step that would take more than a sixth of its shape's
            share is measured at a smaller batch, or length, and scaled by FLOPs.
        device: "cpu", or a GPU of this machine: "cuda", "cuda:1".

    Returns:
        By shape. Progress is shown on stderr if it takes more than a few seconds.
    """
    device = torch.device(device)
    shapes = sorted({work.shape for work in works}, key=lambda s: s.step_flops)
    rate, found = RATE[device.type], {}
    with cpu_threads(1):
        fixed = _fixed(device)
        share = seconds / max(1, len(shapes))
        for shape in tqdm(shapes, "measuring", unit="shape", file=sys.stderr, delay=3, leave=False):
            small, factor = _reduced(shape, rate * share / 6)
            data = _data(small).to(device)
            step = _mean(_steps(small, data, 0.7 * share))
            rate = max(rate, 0.7 * small.step_flops / step)
            item = _evaluation(small, data, 0.3 * share, rate)
            item *= shape.item_flops / small.item_flops
            note, by = "", "measured"
            if factor > 1:
                by = "scaled"
                note = f"measured at batch {small.items}, length {small.inputs.max_len}"
            found[shape] = Pace(step * factor, item, fixed, by, note)
    return found


def _reduced(shape: Workload, most: float) -> tuple[Workload, float]:
    """The shape with a smaller batch, then shorter sequences, until a step has so many FLOPs."""
    if shape.step_flops <= most:
        return shape, 1.0
    least = 2 if shape.model.head_norm == "batch" else 1
    small = replace(shape, n_train=max(least, int(shape.items * most / shape.step_flops)))
    length = int(shape.batch_lengths.mean())
    while small.step_flops > most and length > 64:
        length //= 2
        lengths = Lengths(length, padded=shape.lengths.padded)
        inputs = replace(shape.inputs, max_len=length)
        small = replace(small, inputs=inputs, lengths=lengths)
    return small, shape.step_flops / small.step_flops


def _data(shape: Workload) -> TaskData:
    """Made-up sequences of this shape; real ones where a training draws them at every step."""
    n = max(shape.items, min(64 * shape.items, 2**21 // shape.inputs.max_len))
    if shape.fresh is not None:
        few = {"n_train": n, "n_val": 64, "n_test": 1, "n_labels": 0}
        return tasks.load(replace(shape.fresh, **few), 0)
    g, inputs = generator("cost", "data"), shape.inputs
    pairs = inputs.pairs and shape.stage == "finetune"

    def split(n: int) -> Split:
        size = (n, 2, inputs.max_len) if pairs else (n, inputs.max_len)
        x = torch.randint(min(256, inputs.vocab_size or 256), size, generator=g)
        y = torch.randint(inputs.n_classes, (n,), generator=g)
        return Split(x.to(torch.uint8), y, _some_lengths(shape.lengths, size[:-1], g))

    train_split = split(n)
    return TaskData(
        kind=inputs.kind, n_classes=inputs.n_classes, max_len=inputs.max_len,
        unlabelled=train_split, train=train_split, val=split(1), test=split(1),
        vocab_size=inputs.vocab_size, scale=255.0 if inputs.kind == "pixels" else 1.0, pairs=pairs,
    )  # fmt: skip


def _some_lengths(lengths: Lengths, size: tuple, g: torch.Generator) -> Tensor | None:
    if not lengths.padded:
        return None
    if not lengths.sample:
        return torch.full(size, lengths.longest)
    known = torch.tensor(lengths.sample)
    drawn = known[torch.randint(len(known), size[:1], generator=g)]
    return drawn if drawn.shape == size else drawn[:, None].expand(size)


def _spec(shape: Workload, data: TaskData) -> Run | Pretraining:
    """A training of this shape that nobody will see the end of."""
    task = shape.fresh or NeighborConfig(n_train=len(data.train), n_val=1, n_test=1)
    config = replace(shape.config, batch_size=shape.items, epochs=1e5 / len(data.train))
    if shape.stage == "pretrain":
        return Pretraining(task=task, model=shape.model, pretrain=config)
    return Run(task=task, model=shape.model, freeze=shape.freeze, finetune=config)


def _steps(shape: Workload, data: TaskData, seconds: float) -> list[float]:
    """Seconds of consecutive training steps, at least two; the first ones, which warm up, are out.

    The clock is read after every step of the optimiser, whatever the training loop looks like.
    """
    stamps, started, device = [], time.perf_counter(), data.train.x.device

    def stamp(*_: object) -> None:
        stamps.append(_clock(device))
        enough = time.perf_counter() - started > seconds or len(stamps) > MOST_STEPS
        if len(stamps) > 2 and enough:
            raise _EnoughError

    spec = _spec(shape, data)
    hook = register_optimizer_step_post_hook(stamp)
    try:
        if shape.stage == "pretrain":
            train.pretrain(spec, data)
        else:
            train.finetune(spec, data)
    except _EnoughError:
        pass
    finally:
        hook.remove()
    taken = np.diff(stamps).tolist()
    return taken[len(taken) // 10 :]


def _clock(device: torch.device) -> float:
    """Seconds of the processor, or on the wall once a GPU has done what it was told."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def _mean(taken: list[float]) -> float:
    """The mean, in which an interruption counts no more than three steps."""
    return float(np.minimum(taken, 3 * np.median(taken)).mean())


def _evaluation(shape: Workload, data: TaskData, seconds: float, rate: float) -> float:
    """Seconds of evaluating one item, the median of some passes over a few."""
    n = max(1, min(shape.piece, int(seconds / 4 * rate / shape.item_flops), len(data.train)))
    part, device = data.train.take(slice(0, n)), data.train.x.device
    model = build(shape.model, data, "cost").eval().to(device)
    hidden, taken, started = None, [], time.perf_counter()
    if shape.stage == "pretrain":
        hidden = masking.hide(shape.config, part.x, part.length, generator("cost", "mask"))
    while len(taken) < 3 or (time.perf_counter() - started < seconds and len(taken) < MOST_PASSES):
        before = _clock(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=shape.precision == "bf16"):
            if shape.stage == "pretrain":
                evaluate.reconstruction(model, part, hidden)
            else:
                evaluate.accuracy(model, part)
        taken.append(_clock(device) - before)
        if taken[-1] > seconds:
            break
    return float(np.median(taken)) / n


def _fixed(device: torch.device) -> float:
    """Seconds of starting and storing: a whole training of one step, the faster of two."""
    taken = []
    for seed in range(2):  # the first one loads what all others find
        run = Run(
            task=NeighborConfig(n_train=2, n_val=1, n_test=1, length=2),
            model=ModelConfig(width=2, mlp_ratio=1.0),
            finetune=FinetuneConfig(epochs=1.0, n_evals=1),
            seed=seed,
        )
        with tempfile.TemporaryDirectory() as folder:
            before = time.perf_counter()
            compute(run, Store(folder), Where(device=str(device)))
            taken.append(time.perf_counter() - before)
    return min(taken)
