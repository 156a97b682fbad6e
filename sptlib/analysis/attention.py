"""What attention maps look at: how near, how sharply, in which direction.

B batch, T positions, H heads, L layers. Queries are rows, keys are columns.
"""

import torch
from torch import Tensor

from sptlib.model import Transformer, keep_mask
from sptlib.positions import distances


def _over_rows(rows: Tensor, keep: Tensor | None) -> Tensor:
    """Mean over the rows (..., T) that count."""
    if keep is None:
        return rows.mean(-1)
    return (rows * keep).sum(-1) / keep.sum(-1)


def proximity(
    maps: Tensor, distance: int = 2, keep: Tensor | None = None, side: int = 0
) -> Tensor:
    """Attention mass on positions at most this far away, oneself included.

    Args:
        maps: (..., T, T), rows summing to 1.
        distance: k.
        keep: (..., T), True at the rows that count, those that are no padding; None = all.
        side: pixels per row of an image, whose distances are in the plane; 0 = no image.

    Returns:
        (...), the mean over rows, between 0 and 1. `uniform_proximity` is what blind attention has.
    """
    near = (distances(maps.shape[-1], side) <= distance).to(maps)
    return _over_rows((maps * near).sum(-1), keep)


def uniform_proximity(n_positions: int, distance: int = 2, side: int = 0) -> float:
    """The proximity of uniform attention over T positions: the share of pairs that are near."""
    uniform = torch.full((n_positions, n_positions), 1 / n_positions, dtype=torch.float64)
    return float(proximity(uniform, distance, side=side))


def entropy(maps: Tensor, keep: Tensor | None = None) -> Tensor:
    """How spread attention is: the entropy of a row, in nats.

    Args:
        maps: (..., T, T), rows summing to 1; a weight of 0 adds nothing.
        keep: (..., T), True at the rows that count; None = all.

    Returns:
        (...), the mean over rows: 0 if every query looks at one key, log T if it looks at all T
        alike.
    """
    return _over_rows(torch.special.entr(maps).sum(-1), keep)


def diagonality(maps: Tensor, keep: Tensor | None = None) -> Tensor:
    """How close to the diagonal attention is, beside uniform attention.

    1 − (mean ``|i − j|`` under attention) / (mean ``|i − j|`` under uniform attention), where the
    latter is (n² − 1) / 3n for n positions.

    Args:
        maps: (..., T, T), rows summing to 1.
        keep: (..., T), True at the n rows that count, whose keys are the only ones with weight;
            None = all.

    Returns:
        (...): 1 if all is on the diagonal (as it must be where n = 1), 0 if attention is as far
        away as uniform attention, negative if farther.
    """
    T = maps.shape[-1]
    away = _over_rows((maps * distances(T).to(maps)).sum(-1), keep)
    n = (torch.tensor(T) if keep is None else keep.sum(-1)).to(maps)
    uniform = (n * n - 1) / (3 * n)
    return 1 - away / uniform.clamp(min=1e-6)


def column_share(maps: Tensor) -> Tensor:
    """How much of attention is the same for every query: a preference for some keys.

    Of the squared deviations from uniform attention, the share that identical rows have.

    Args:
        maps: (..., T, T), rows summing to 1.

    Returns:
        (...), between 0 and 1; 0 for uniform attention. It is what the label gradient of
        `sptlib.analysis.theory` can change to first order.
    """
    away = maps - 1 / maps.shape[-1]
    whole = away.square().sum((-1, -2))
    columns = maps.shape[-1] * away.mean(-2).square().sum(-1)
    return torch.where(whole > 0, columns / whole.clamp(min=1e-30), torch.zeros_like(whole))


def mean_map(
    model: Transformer,
    x_BT: Tensor,
    hidden_BT: Tensor | None = None,
    length_B: Tensor | None = None,
) -> Tensor:
    """Attention averaged over sequences: (L, H, T, T).

    With lengths, a row is averaged over the sequences that have that position; T must be the
    longest of them, so that there is one.
    """
    maps = model.attention_maps(x_BT, hidden_BT, length_B)
    keep_BT = keep_mask(x_BT, length_B)
    if keep_BT is None:
        return maps.mean(1)
    of_query = keep_BT[None, :, None, :, None].to(maps.dtype)
    return (maps * of_query).sum(1) / of_query.sum(1)


def distance_profile(map_TT: Tensor, reach: int = 10) -> tuple[list[int], list[float]]:
    """Mean attention weight against signed distance, key − query.

    Args:
        map_TT: one attention map, (T, T).
        reach: distances −reach … reach, as far as the map has them.

    Returns:
        The distances, and the mean weight at each (over the queries that have such a key).
    """
    reach = min(reach, len(map_TT) - 1)
    signed = list(range(-reach, reach + 1))
    return signed, [float(map_TT.diagonal(d).mean()) for d in signed]
