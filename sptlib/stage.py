"""One stage of training, as the loop of `sptlib.train` sees it, and what it leaves behind."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from sptlib.config import TrainConfig
from sptlib.model import Transformer
from sptlib.seeding import generator
from sptlib.tasks import Split


@dataclass(frozen=True)
class Trained:
    """What a training leaves behind.

    Attributes:
        model: with the weights of the best evaluation.
        metrics: one line per step (``stage, step, loss``) and per evaluation (``stage, step,
            val_loss, ..., best``).
        result: the summary that the store keeps.
        seconds: what the training took, all its parts if it was interrupted.
        snapshots: the weights at the steps at which it was watched.
    """

    model: Transformer
    metrics: list[dict]
    result: dict
    seconds: float = 0.0
    snapshots: dict[int, dict[str, Tensor]] = field(default_factory=dict)


@dataclass
class State:
    """Everything that a resumed training needs besides model and optimiser."""

    step: int = 0
    best_score: float = float("-inf")
    best_step: int = 0
    since_best: int = 0
    stopped: bool = False
    seconds: float = 0.0
    log: list[dict] = field(default_factory=list)
    moved: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """One stage of training, as the loop sees it.

    Attributes:
        name: "pretrain" or "finetune".
        config: length, rate, batch.
        seed: of batch order, masks and dropout.
        split: the training sequences.
        loss: ``loss(model, sequences, hidden)`` -> scalar, the mean over what counts.
        evaluate: ``evaluate(model)`` -> metrics with a ``score``, the higher the better.
        hidden: ``hidden(batch, step)`` -> (B, T) bool, True where the model is asked for the
            value; None = the loss is a mean over sequences.
        on_best: ``on_best(model)`` -> further metrics, computed whenever the score is a new best.
        stop_at: stop at this score.
        sample: draws fresh batches instead of taking them from ``split``.
        unused: the head that the loss does not depend on.
        watch: ``watch(model)`` -> what is measured on the way; see ``config.watch``.
    """

    name: str
    config: TrainConfig
    seed: int
    split: Split
    loss: Callable[[Transformer, Split, Tensor | None], Tensor]
    evaluate: Callable[[Transformer], dict[str, float]]
    hidden: Callable[[Split, int], Tensor | None] = lambda batch, step: None
    on_best: Callable[[Transformer], dict[str, float]] = lambda model: {}
    stop_at: float | None = None
    sample: Callable[[int, torch.Generator], Split] | None = None
    unused: str = "reconstructor"
    watch: Callable[[Transformer], dict] = lambda model: {}

    @property
    def watch_steps(self) -> set[int]:
        """The steps at which the training is watched, its start included; empty = never."""
        times, n_steps = self.config.watch, self.config.n_steps(len(self.split))
        return {round(i * n_steps / times) for i in range(times + 1)} if times else set()

    def batch(self, step: int) -> Split:
        """The batch of a step (from 0): consecutive pieces of an endless row of shuffled epochs."""
        n = len(self.split)
        size = min(self.config.batch_size, n)
        if self.sample is not None:
            fresh = self.sample(size, generator(self.seed, self.name, "fresh", step))
            return fresh.to(self.split.x.device).trimmed()
        epoch, offset = divmod(step * size, n)
        index = _order(self.seed, self.name, n, epoch)[offset : offset + size]
        if len(index) < size:
            following = _order(self.seed, self.name, n, epoch + 1)
            index = torch.cat([index, following[: size - len(index)]])
        return self.split.take(index.to(self.split.x.device)).trimmed()


@lru_cache(maxsize=2)  # a batch reaches into one epoch or two; shuffling anew costs at each step
def _order(seed: int, stage: str, n: int, epoch: int) -> Tensor:
    return torch.randperm(n, generator=generator(seed, stage, "order", epoch))
