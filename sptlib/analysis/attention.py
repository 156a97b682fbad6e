"""What attention maps look at: proximity, and how strong it is."""

import torch
from torch import Tensor

from sptlib.config import Pretraining
from sptlib.masking import hide
from sptlib.model import Transformer, build, keep_mask
from sptlib.seeding import generator
from sptlib.store import Entry
from sptlib.tasks import load


def proximity(maps: Tensor, distance: int = 2) -> Tensor:
    """Attention mass on positions at most this far away, oneself included.

    Args:
        maps: (..., T, T), rows summing to 1.
        distance: k.

    Returns:
        (...), the mean over rows, between 0 and 1. `uniform_proximity` is what blind attention has.
    """
    t = torch.arange(maps.shape[-1], device=maps.device)
    near = (t[:, None] - t[None, :]).abs() <= distance
    return (maps * near).sum(-1).mean(-1)


def uniform_proximity(n_positions: int, distance: int = 2) -> float:
    """The proximity of uniform attention over T positions: the share of pairs that are near."""
    uniform = torch.full((n_positions, n_positions), 1 / n_positions, dtype=torch.float64)
    return float(proximity(uniform, distance))


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


def start_and_end(entry: Entry, n: int = 100) -> tuple[Tensor, Tensor]:
    """Mean attention maps of a stored training, at its random start and at its best weights.

    Both are taken on the first n test sequences (of pairs, on both), with nothing hidden.

    Returns:
        Two tensors (L, H, T, T).
    """
    spec = entry.spec
    data = load(spec.task, spec.seed)
    test = data.test.take(slice(0, n)).sequences().trimmed()
    stage = "pretrain" if isinstance(spec, Pretraining) else "finetune"
    model = build(spec.model, data, spec.seed, stage).eval()
    start = mean_map(model, test.x, None, test.length)
    model.load_state_dict(entry.model())
    return start, mean_map(model, test.x, None, test.length)


def distance_profile(map_TT: Tensor, reach: int = 10) -> tuple[list[int], list[float]]:
    """Mean attention weight against signed distance, key − query.

    Args:
        map_TT: one attention map, (T, T).
        reach: distances −reach … reach, as far as the map has them.

    Returns:
        The distances, and the mean weight at each (over the queries that have such a key).
    """
    reach = min(reach, len(map_TT) - 1)
    distances = list(range(-reach, reach + 1))
    return distances, [float(map_TT.diagonal(d).mean()) for d in distances]


@torch.no_grad()
def reconstructed(entry: Entry, n: int = 10) -> dict[str, tuple]:
    """What a stored pretraining makes of hidden pixels, for `sptlib.plots.image_rows`.

    Args:
        entry: of a pretraining on images.
        n: how many test images.

    Returns:
        Rows "original", "hidden" and "filled in": values (n, T) in [0, 1] and, for the second,
        which of them are hidden (n, T).
    """
    spec = entry.spec
    data = load(spec.task, spec.seed)
    x = data.test.x[:n]
    hidden = hide(spec.pretrain, x, None, generator(spec.seed, "analysis", "mask"))
    model = build(spec.model, data, spec.seed, "pretrain").eval()
    model.load_state_dict(entry.model())
    out = model.reconstruct(x, hidden)
    top = data.vocab_size - 1 if data.kind == "tokens" else data.scale
    value = x / top
    guess = out.argmax(-1) / top if data.kind == "tokens" else out.clamp(0, 1)
    filled = torch.where(hidden, guess, value)
    return {
        "original": (value.numpy(), None),
        "hidden": (value.numpy(), hidden.numpy()),
        "filled in": (filled.numpy(), None),
    }
