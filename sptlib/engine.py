"""How one step is computed: whole, here and in float32, or by Hugging Face Accelerate.

Accelerate does mixed precision, gradient accumulation and data-parallel training. The batch of a
step is always the same, however many processes there are: all draw it (random streams are named by
step), with its mask, and each computes its own rows. These are divided by the whole batch's number
of hidden positions or sequences, so that unequal pieces are right, too. Dropout alone draws other
numbers for another number of pieces.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn, optim

from sptlib.config import TrainConfig
from sptlib.errors import ConfigError
from sptlib.model import Transformer
from sptlib.processes import ALONE, Team, missing_accelerate
from sptlib.tasks import Split

ASK_SECONDS = 1.0  # how often several processes ask each other whether to save or stop, and
ASK_STEPS = 50  # the most steps between two such questions


class Engine:
    """One process, whole batches, float32: Accelerate is not even imported.

    Attributes:
        team: the processes.
        n_pieces: into how many pieces a batch is divided: processes × accumulation steps.
        model: what losses are computed with.
        evaluated: what evaluations are computed with.
        optimizer: what takes the steps.
    """

    n_pieces = 1

    def __init__(self, team: Team = ALONE):
        self.team = team

    def prepare(self, model: Transformer, optimizer: optim.Optimizer, unused: nn.Module) -> None:
        """Take over a model on its device; ``unused`` is the part that no loss depends on."""
        self.model = self.evaluated = model
        self.optimizer = optimizer

    def pieces(
        self, batch: Split, hidden: Tensor | None
    ) -> Iterator[tuple[int, Split, Tensor | None, float | Tensor]]:
        """This process's pieces of a batch, without padding that they do not need.

        Args:
            batch: the whole batch.
            hidden: (B, T) bool, the positions that count; None = the sequences do.

        Yields:
            Number of the piece (from 0, over all processes), its sequences, its part of
            ``hidden``, and its share of what counts.
        """
        yield 0, batch, hidden, 1.0

    def accumulate(self) -> AbstractContextManager:
        """Around forward and backward pass of one piece."""
        return nullcontext()

    def backward(self, loss: Tensor, share: float | Tensor) -> None:
        """Add a piece's gradients, given its mean loss and its share of the batch."""
        loss.backward()

    def clip(self, parameters: list[nn.Parameter], norm: float) -> None:
        """Bound the norm of all gradients together."""
        torch.nn.utils.clip_grad_norm_(parameters, norm)

    def total(self, losses: list[Tensor]) -> list[float]:
        """The losses of whole batches, given this process's parts of them (scalars)."""
        return torch.stack(losses).tolist()

    def wishes(
        self, step: int, now: bool, save: Callable[[int], bool], stop: Callable[[], bool]
    ) -> tuple[bool, bool]:
        """Whether to save and whether to stop after a step, the same in all processes.

        Args:
            step: steps that are done.
            now: ask in any case.
            save: what the main process thinks of it.
            stop: what each process thinks of it; one yes is enough.
        """
        return save(step), stop()


class Accelerated(Engine):
    """Several processes, pieces or bfloat16, by `accelerate.Accelerator`."""

    def __init__(self, team: Team, device: torch.device, precision: str, accumulate: int):
        super().__init__(team)
        self.n_own, self.n_pieces = accumulate, accumulate * team.size
        self.precision = precision
        self.accelerator = _accelerator(team, device, precision, accumulate)
        self._asked, self._asked_at, self._ask_at = 0, time.monotonic(), 0

    def prepare(self, model: Transformer, optimizer: optim.Optimizer, unused: nn.Module) -> None:
        unused.requires_grad_(False)  # DDP waits for the gradients of whatever could have some
        if self.precision != "fp32":  # the residual stream, and with it what norms see, stays fp32
            model.embed.register_forward_hook(lambda module, inputs, out_BTD: out_BTD.float())
        module, self.optimizer = self.accelerator.prepare(
            _Forward(model), optimizer, device_placement=[False, False]
        )
        # of DDP: buffers are constants, or SyncBatchNorm's, equal everywhere without being sent
        module.broadcast_buffers = False
        self.model = _Through(model, module)
        # evaluations are shared in unequal parts: DDP, which exchanges in its forward, is left out
        self.evaluated = _Through(model, self.accelerator.unwrap_model(module))

    def pieces(self, batch, hidden):
        if self.n_pieces == 1:
            yield from super().pieces(batch, hidden)
            return
        rows = torch.arange(len(batch)).tensor_split(self.n_pieces)
        first = self.team.rank * self.n_own
        for number in range(first, first + self.n_own):
            own = slice(int(rows[number][0]), int(rows[number][-1]) + 1)
            part = batch.take(own).trimmed()
            if hidden is None:
                yield number, part, None, len(part) / len(batch)
            else:  # as a tensor: a GPU need not wait
                share = hidden[own].sum() / hidden.sum()
                yield number, part, hidden[own, : part.x.shape[-1]], share

    def accumulate(self) -> AbstractContextManager:
        return self.accelerator.accumulate(self.model.module)

    def backward(self, loss: Tensor, share: float | Tensor) -> None:
        # Accelerate divides by the accumulation steps, DDP by the processes
        self.accelerator.backward(loss if self.n_pieces == 1 else loss * (share * self.n_pieces))

    def clip(self, parameters: list[nn.Parameter], norm: float) -> None:
        self.accelerator.clip_grad_norm_(parameters, norm)

    def total(self, losses: list[Tensor]) -> list[float]:
        own = torch.stack(losses)
        if self.team.size == 1:
            return own.tolist()
        return self.accelerator.gather(own).view(self.team.size, -1).double().sum(0).tolist()

    def wishes(self, step, now, save, stop):
        if self.team.size == 1:
            return super().wishes(step, now, save, stop)
        if not now and step < self._ask_at:
            return False, False
        clock = time.monotonic()
        per_second = (step - self._asked) / max(clock - self._asked_at, 1e-9)
        self._asked, self._asked_at = step, clock
        wait = max(1, min(ASK_STEPS, int(per_second * ASK_SECONDS)))
        to_save, to_stop, self._ask_at = self.team.agree(
            self.team.main and save(step), stop(), self.team.main and step + wait
        )
        return bool(to_save), bool(to_stop)


class _Forward(nn.Module):
    """A model's methods as a forward pass, which is what DDP and autocast hook into."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.model = model

    def forward(self, method: str, *inputs: Tensor | None) -> Tensor:
        return getattr(self.model, method)(*inputs)


class _Through:
    """A model whose `reconstruct` and `classify` go through a prepared `_Forward`."""

    def __init__(self, model: Transformer, module: nn.Module):
        self.kind, self.scale, self.module = model.kind, model.scale, module

    def reconstruct(self, *inputs: Tensor | None) -> Tensor:
        return self.module("reconstruct", *inputs)

    def classify(self, *inputs: Tensor | None) -> Tensor:
        return self.module("classify", *inputs)


def start(
    config: TrainConfig, model: Transformer, accumulate: int = 1, team: Team = ALONE
) -> Engine:
    """The engine of one stage of training. It may exchange parts of the model by equal ones.

    Args:
        config: gives the precision.
        model: on its device; before there is an optimizer for it.
        accumulate: pieces per process and batch.
        team: the processes.

    Raises:
        ConfigError: if Accelerate is needed and not installed, or the device cannot bfloat16.
    """
    if not uses_accelerate(config, accumulate, team):
        return Engine(team)
    if team.size > 1 and model.standardise is not None:  # `check` has refused it on CPUs
        nn.SyncBatchNorm.convert_sync_batchnorm(model)
    device = next(model.parameters()).device
    return Accelerated(team, device, config.precision, accumulate)


def uses_accelerate(config: TrainConfig, accumulate: int, team: Team) -> bool:
    """Whether a stage of training takes Accelerate."""
    return team.size > 1 or accumulate > 1 or config.precision != "fp32"


def check(
    stage: str,
    config: TrainConfig,
    n: int,
    batch_norm: bool,
    device: torch.device,
    accumulate: int,
    team: Team,
) -> None:
    """Refuse a stage of training that cannot be divided as asked.

    Args:
        stage: "pretrain" or "finetune", for the message.
        config: gives the batch size.
        n: training sequences.
        batch_norm: whether the loss depends on means over the batch.
        device: of the training.
        accumulate: pieces per process and batch.
        team: the processes.

    Raises:
        ConfigError: saying why, and what mends it.
    """
    n_pieces, size = accumulate * team.size, min(config.batch_size, n)
    if size < n_pieces:
        what = f"{stage}.batch_size" if size == config.batch_size else "the number of sequences"
        raise ConfigError(
            f"{stage}: a batch of {size} sequences does not give one to each of {n_pieces} pieces "
            f"({team.size} processes × {accumulate} accumulation steps); raise {what}, or take "
            "fewer processes or a smaller --accumulate"
        )
    why = "model.head_norm='batch' takes mean and variance over the whole batch, which "
    if batch_norm and accumulate > 1:
        raise ConfigError(
            f"{why}gradient accumulation never has at once; leave --accumulate out, or set "
            "model.head_norm=none"
        )
    if batch_norm and team.size > 1 and device.type != "cuda":
        raise ConfigError(
            f"{why}PyTorch (SyncBatchNorm) exchanges between GPUs only; take one process or GPUs, "
            "or set model.head_norm=none"
        )


def _accelerator(team: Team, device: torch.device, precision: str, accumulate: int):
    try:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
        from accelerate.utils import GradientAccumulationPlugin
    except ImportError as error:
        raise missing_accelerate(
            "bf16 and gradient accumulation" if team.size == 1 else "several processes"
        ) from error
    # its state is one per process and keeps the precision; here each stage has its own
    AcceleratorState._reset_state(reset_partial_state=team.size == 1)
    n_threads = torch.get_num_threads()
    try:
        return Accelerator(
            cpu=device.type == "cpu",
            mixed_precision="no" if precision == "fp32" else precision,
            # as a plugin, since a number would be overruled by the launcher's
            gradient_accumulation_plugin=GradientAccumulationPlugin(
                num_steps=accumulate, adjust_scheduler=False, sync_with_dataloader=False
            ),
        )
    except ValueError as error:
        raise ConfigError(f"precision {precision} on {device}: {error}") from error
    finally:
        torch.set_num_threads(n_threads)  # Accelerate may have changed it
