"""Measures on a whole split, in pieces that several processes share.

The pieces do not depend on the number of processes, and their results are added in their order, so
that the numbers do not depend on it either.
"""

from collections.abc import Callable
from itertools import zip_longest
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sptlib.masking import reconstruction_loss
from sptlib.model import Transformer
from sptlib.processes import ALONE, Team
from sptlib.tasks import Split

T = TypeVar("T")

EVAL_BATCH = 500  # sequences per forward pass without gradients, and
EVAL_POSITIONS = 2**19  # positions: fewer sequences if they are long


def _pieces(split: Split) -> list[slice]:
    """Pieces of a split that are small enough for one forward pass."""
    size = max(1, min(EVAL_BATCH, EVAL_POSITIONS // split.x[0].numel()))
    return [slice(start, start + size) for start in range(0, len(split), size)]


def _measured(split: Split, measure: Callable[[slice], T], team: Team) -> list[T]:
    """``measure(piece)`` of all pieces in their order; each process computes every size-th."""
    with torch.no_grad():
        mine = [measure(piece) for piece in _pieces(split)[team.rank :: team.size]]
    turns = zip_longest(*team.gather(mine))
    return [found for turn in turns for found in turn if found is not None]


def accuracy(model: Transformer, split: Split, team: Team = ALONE) -> dict[str, float]:
    """Classification accuracy and mean cross-entropy (nats) on a split.

    Args:
        model: in evaluation mode, on the device of the split.
        split: labelled sequences.
        team: the processes that share the work; all must call.
    """

    def measure(piece: slice) -> tuple[int, float]:
        part = split.take(piece).trimmed()
        logits = model.classify(part.x, part.length)
        correct = int((logits.argmax(-1) == part.y).sum())
        return correct, float(F.cross_entropy(logits, part.y, reduction="sum"))

    correct, loss = 0, 0.0
    for more, nats in _measured(split, measure, team):
        correct, loss = correct + more, loss + nats
    return {"accuracy": correct / len(split), "loss": loss / len(split)}


def reconstruction(
    model: Transformer, split: Split, hidden_NT: Tensor, team: Team = ALONE
) -> dict[str, float]:
    """How well hidden values are reconstructed.

    Args:
        model: in evaluation mode, on the device of the split.
        split: single sequences.
        hidden_NT: True where the value is hidden from the model.
        team: the processes that share the work; all must call.

    Returns:
        loss per hidden position, and ``accuracy`` (tokens) or ``r2`` (pixels) as ``score``: the
        criterion by which Amos et al. (2024) pick the checkpoint that goes on to finetuning.
    """
    tokens = model.kind == "tokens"

    def measure(piece: slice) -> tuple[float, int | Tensor]:
        part = split.take(piece).trimmed()
        hidden = hidden_NT[piece, : part.x.shape[1]]
        out = model.reconstruct(part.x, hidden, part.length)
        loss = float(reconstruction_loss(out, part.x, hidden, model.scale)) * int(hidden.sum())
        if tokens:
            return loss, int((out[hidden].argmax(-1) == part.x[hidden]).sum())
        return loss, out[hidden] if team.size == 1 else out[hidden].cpu()

    measured = _measured(split, measure, team)
    total, loss = int(hidden_NT.sum()), 0.0
    for more, _ in measured:
        loss += more
    if tokens:
        hits = sum(more for _, more in measured)
        return {"loss": loss / total, "accuracy": hits / total, "score": hits / total}
    y_hat = torch.cat([outputs for _, outputs in measured]).to(split.x.device)
    y = split.x[hidden_NT].to(y_hat.dtype) / model.scale
    spread = ((y - y.mean()) ** 2).sum()  # 0 if all hidden values are the same: nothing to explain
    r2 = float(1 - ((y - y_hat) ** 2).sum() / spread) if spread > 0 else 0.0
    return {"loss": loss / total, "r2": r2, "score": r2}
