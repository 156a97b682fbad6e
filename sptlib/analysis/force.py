"""Where a loss pushes attention: its gradient with respect to the scores of a real model.

The same score bias is added to every sequence, and the loss is differentiated with respect to it at
zero. A force is minus that gradient. The direction of interest is proximity: more attention to the
nearest tokens, less to all others.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from sptlib.errors import ConfigError
from sptlib.model import Transformer
from sptlib.positions import distances

#: signed distances, key − query, at which the force is reported
REACH = 10


@contextmanager
def probed(model: Transformer) -> Iterator[list[Tensor]]:
    """Within the block every layer has a probe, (H, T, T) zeros, to differentiate by.

    T is the model's ``max_len``.
    """
    layers = [block.attention for block in model.blocks]
    T, like = model.max_len, model.norm.weight
    for layer in layers:
        layer.probe = torch.zeros(
            layer.n_heads, T, T, dtype=like.dtype, device=like.device, requires_grad=True
        )
    try:
        yield [layer.probe for layer in layers]
    finally:
        for layer in layers:
            layer.probe = None


def nearness(n_positions: int, distance: int = 2, side: int = 0) -> Tensor:
    """The direction towards near tokens: 1 at 1 ≤ ``|i − j|`` ≤ distance, centred, norm 1.

    Rows are centred because softmax does not see their means, columns because a loss that only
    tells columns apart (the label loss of the theorem does) sees the band's edges, where there are
    fewer near tokens, and not its proximity. A token's own place is left out: where it is hidden it
    tells nothing. With ``side``, distances are those of an image (`sptlib.positions.distances`).

    Returns:
        (T, T) float64; zero for a single position.
    """
    apart = distances(n_positions, side)
    near = ((apart >= 1) & (apart <= distance)).double()
    near = near - near.mean(1, keepdim=True)
    near = near - near.mean(0, keepdim=True)
    norm = near.norm()
    return near / norm if norm > 0 else near


def force(
    model: Transformer,
    losses: Sequence[Callable[[], Tensor]],
    distance: int = 2,
    side: int = 0,
) -> dict[str, float | list[float]]:
    """The force of a loss on attention, from its gradients on several batches.

    Args:
        model: in evaluation mode.
        losses: one per batch, each a function of nothing that computes the batch's mean loss.
        distance: how far near tokens are.
        side: pixels per row of an image; 0 = no image.

    Returns:
        ``force``: mean over batches of the force along `nearness`, over all layers and heads
        (nats per unit of score norm); ``noise``: its standard deviation over batches; ``norm`` of
        the mean gradient; ``cosine`` between the mean force and `nearness`; ``columns``: the share
        of the mean gradient's square that identical rows have, that is, to which proximity is
        invisible; ``lags``: mean force at signed distances −10 … 10 (key − query).

    Raises:
        ConfigError: for fewer than two batches, from which no noise can be told.
    """
    if len(losses) < 2:
        raise ConfigError(f"a force needs at least two batches, found {len(losses)}")
    T = model.max_len
    towards = nearness(T, distance, side).to(model.norm.weight.device)
    along, mean = [], torch.zeros(())
    with torch.enable_grad(), probed(model) as probes:
        towards = towards / sum(len(p) for p in probes) ** 0.5
        for loss in losses:
            found = torch.autograd.grad(loss(), probes)
            gradient_RTT = torch.cat(found).double()  # all layers' heads one after the other
            along.append(-float((gradient_RTT * towards).sum()))
            mean = mean.to(gradient_RTT.device) + gradient_RTT / len(losses)
    norm = float(mean.norm())
    forces = torch.tensor(along, dtype=torch.float64)
    reach = min(REACH, T - 1)
    return {
        "force": float(forces.mean()),
        "noise": float(forces.std()),
        "norm": norm,
        "cosine": float(forces.mean()) / norm if norm else 0.0,
        "columns": float(T * (mean.mean(1) ** 2).sum()) / norm**2 if norm else 0.0,
        "lags": [
            -float(mean.diagonal(d, 1, 2).mean()) for d in range(-reach, reach + 1)
        ],
    }
