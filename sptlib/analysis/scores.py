"""What queries and keys compare: positions, content, or one with the other.

Attention multiplies queries and keys that are affine in its input h, the features after the layer's
LayerNorm. With μ_i the mean of h_i over the sequences ("position": what is the same in every
sequence at this place) and δ_i = h_i − μ_i ("content"), the scores are exactly the sum of four
parts, whatever the layer and the encoding. For an encoding that is added to the tokens, the first
layer without LayerNorm splits into positions and tokens, as in TUPE (Ke et al. 2021).

Letters: B batch, T positions, D width, H heads, K width per head, L layers. Queries are rows i,
keys are columns j; distances are key − query, d = j − i.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import torch
from torch import Tensor

from sptlib.analysis.attention import diagonality, entropy, proximity
from sptlib.analysis.fits import alibi_fit, rope_fit, symmetric_share
from sptlib.errors import ConfigError
from sptlib.model import Attention, Transformer, keep_mask

PARTS = ("pp", "pc", "cp", "cc")

# --- the four parts -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """One layer's scores as a sum of four; the first letter is the query's part, p or c.

    Attributes:
        pp: (H, T, T), position with position, and the bias that the encoding adds to the scores.
        pc: (B, H, T, T), the query's position with the key's content.
        cp: (B, H, T, T), the query's content with the key's position.
        cc: (B, H, T, T), content with content.
        keep: (B, T), True at valid positions; None = all.
    """

    pp: Tensor
    pc: Tensor
    cp: Tensor
    cc: Tensor
    keep: Tensor | None = None

    def maps(self) -> Tensor:
        """The attention weights (B, H, T, T), softmax of the sum, without keys that are padding."""
        scores = self.pp + self.pc + self.cp + self.cc
        if self.keep is not None:
            scores = scores.masked_fill(~self.keep[:, None, None, :], float("-inf"))
        return scores.softmax(-1)


def split(
    model: Transformer, x_BT: Tensor, length_B: Tensor | None = None, layer: int = 0
) -> Split:
    """The scores of one layer, split into positions and content.

    μ_i is estimated from these sequences, so that a share 1/B of the content remains in it: give
    hundreds. The model should be in evaluation mode.

    Args:
        model: a Transformer of this library.
        x_BT: token numbers or pixel values.
        length_B: valid positions per sequence; None = all. T is cut to the longest, and μ_i is the
            mean over the sequences that have position i.
        layer: from 0.

    Raises:
        ConfigError: if the model has no such layer.
    """
    if not 0 <= layer < len(model.blocks):
        raise ConfigError(f"layer={layer}, but the model has layers 0 to {len(model.blocks) - 1}")
    x_BT, keep_BT = _trimmed(x_BT, length_B)
    with torch.no_grad():
        attention, h_BTD = next(islice(_inputs(model, x_BT, keep_BT), layer, None))
        return _split(attention, h_BTD, _mean(h_BTD, keep_BT), keep_BT)


def _trimmed(x_BT: Tensor, length_B: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The sequences up to the longest, and where they are valid."""
    x_BT = x_BT if length_B is None else x_BT[:, : int(length_B.max())]
    return x_BT, keep_mask(x_BT, length_B)


def _inputs(
    model: Transformer, x_BT: Tensor, keep_BT: Tensor | None
) -> Iterator[tuple[Attention, Tensor]]:
    """The layers, one after the other: attention and its input (B, T, D)."""
    x_BTD = model._embed(x_BT, None)
    for before, block in zip([None, *model.blocks], model.blocks, strict=False):
        if before is not None:
            x_BTD = before(x_BTD, keep_BT)
        yield block.attention, block.norm1(x_BTD)


def _mean(h_BTD: Tensor, keep_BT: Tensor | None) -> Tensor:
    """μ (T, D): the mean over the sequences that have the position."""
    if keep_BT is None:
        return h_BTD.mean(0)
    keep_BT1 = keep_BT[..., None].to(h_BTD.dtype)
    return (h_BTD * keep_BT1).sum(0) / keep_BT1.sum(0)


def _split(attention: Attention, h_BTD: Tensor, mean_TD: Tensor, keep_BT: Tensor | None) -> Split:
    q_BHTK, k_BHTK = attention._queries_keys(h_BTD)
    q_HTK, k_HTK = (x_1HTK[0] for x_1HTK in attention._queries_keys(mean_TD[None]))
    dq_BHTK, dk_BHTK = q_BHTK - q_HTK, k_BHTK - k_HTK  # both maps are affine: no bias is left
    scale = q_HTK.shape[-1] ** -0.5
    pp_HTT = q_HTK @ k_HTK.mT * scale
    bias = attention._score_bias(len(mean_TD), None)
    return Split(
        pp=pp_HTT if bias is None else pp_HTT + bias,
        pc=q_HTK @ dk_BHTK.mT * scale,
        cp=dq_BHTK @ k_HTK.mT * scale,
        cc=dq_BHTK @ dk_BHTK.mT * scale,
        keep=keep_BT,
    )


def _squares(parts: Split) -> Tensor:
    """Sums of squares of the row-centred parts over all sequences and valid pairs, (4, H)."""
    B, H, T, _ = parts.cc.shape
    keep = parts.cc.new_ones(1, T) if parts.keep is None else parts.keep.to(parts.cc.dtype)
    key = keep[:, None, None, :]
    found = []
    for name in PARTS:
        part = getattr(parts, name).view(-1, H, T, T)  # pp is the same for all sequences
        mean = part @ key.mT / key.sum(-1, keepdim=True)
        square = ((part - mean).square() * (key.mT * key)).sum((-2, -1)).cpu().double()
        found.append(square.sum(0) * (B / len(square)))
    return torch.stack(found)


def shares(parts: Split) -> dict[str, Tensor]:
    """How much of the scores' variance each of the four parts makes.

    The softmax does not see what a whole row has in common; so each row's mean (over valid keys)
    is taken away first. A part's variance is the sum of squares of what is left, over all
    sequences and valid pairs; the shares are these sums, divided by their total. Products of two
    parts are left out: those of pp with pc and with cp add up to zero (without padding), because δ
    has mean zero; the others are small where the contents of different positions are unrelated.

    Returns:
        For "pp", "pc", "cp" and "cc" a tensor (H,); together they are 1 (0 if all scores of every
        row are equal).
    """
    return dict(zip(PARTS, _normalised(_squares(parts)), strict=True))


def _normalised(squares_4H: Tensor) -> Tensor:
    total = squares_4H.sum(0)
    return squares_4H / torch.where(total > 0, total, 1)


# --- distances ----------------------------------------------------------------------------------


def toeplitz_profile(pp: Tensor) -> Tensor:
    """What position–position scores say about distances: t(d) in pp_ij ≈ t(j − i) + r_i.

    Least squares with a free r_i for each row, because the softmax does not see it.

    Args:
        pp: (..., T, T).

    Returns:
        (..., 2T − 1) float64: t(d) for d = −(T − 1) … T − 1, key − query, whose mean over all
        pairs is zero.
    """
    return _toeplitz(pp.cpu().double())[0]


def toeplitz_share(pp: Tensor) -> Tensor:
    """How much of the position–position scores depends on the distance j − i alone.

    1 − (sum of squares that `toeplitz_profile` leaves) / (that of the row-centred pp). A matrix of
    independent random numbers has 2 / T on average.

    Args:
        pp: (..., T, T).

    Returns:
        (...) float64 between 0 and 1; 0 where every row is constant (up to rounding).
    """
    rounding, pp = torch.finfo(pp.dtype).eps, pp.cpu().double()
    _, residual = _toeplitz(pp)
    total = (pp - pp.mean(-1, keepdim=True)).square().sum((-2, -1))
    something = total > rounding**2 * pp.square().sum((-2, -1))
    left = residual.square().sum((-2, -1)) / torch.where(something, total, 1)
    return torch.where(something, 1 - left, 0.0)


def _toeplitz(pp: Tensor) -> tuple[Tensor, Tensor]:
    """The profile t (..., 2T − 1), and what it and the rows' constants leave (..., T, T).

    For given r, t(d) is the mean of pp_ij − r_i along a diagonal; that leaves T equations for r.
    """
    T = pp.shape[-1]
    t = torch.arange(T)
    place = t[None, :] - t[:, None] + T - 1  # of d = j − i in a profile
    right = (pp - _diagonal_means(pp)[..., place]).sum(-1, keepdim=True)
    rest = pp - torch.cholesky_solve(right, _row_factor(T))
    profile = _diagonal_means(rest)
    fitted = profile[..., place]
    return profile - fitted.mean((-2, -1))[..., None], rest - fitted


def _diagonal_means(x: Tensor) -> Tensor:
    """(..., T, T) to (..., 2T − 1)."""
    T = x.shape[-1]
    return torch.stack([x.diagonal(d, -2, -1).mean(-1) for d in range(1 - T, T)], -1)


@lru_cache(maxsize=8)
def _row_factor(n_positions: int) -> Tensor:
    """Cholesky factor of the normal equations for the rows' constants r, (T, T) float64.

    The matrix is T·I − G, where G_ij is the sum of 1 / (T − |d|) over the distances that both rows
    have; 1 is added to all entries, which makes the mean of r zero.
    """
    T = n_positions
    d = torch.arange(1 - T, T, dtype=torch.float64)
    up_to = torch.cat([d.new_zeros(1), (1 / (T - d.abs())).cumsum(0)])
    i = torch.arange(T)
    low, high = torch.minimum(i[:, None], i), torch.maximum(i[:, None], i)
    overlap = up_to[2 * T - 1 - high] - up_to[T - 1 - low]  # of d = −low … T − 1 − high
    return torch.linalg.cholesky(T * torch.eye(T, dtype=torch.float64) - overlap + 1)


# --- all at once --------------------------------------------------------------------------------


@torch.no_grad()
def measures(
    model: Transformer,
    x_BT: Tensor,
    length_B: Tensor | None = None,
    distance: int = 2,
    side: int = 0,
) -> dict[str, list]:
    """What each head looks at, in a few numbers.

    Of maps: a sequence's measure is over its own valid rows; then comes the mean over sequences.
    The model should be in evaluation mode.

    Args:
        model: a Transformer of this library.
        x_BT: token numbers or pixel values, some hundreds of sequences.
        length_B: valid positions per sequence; None = all.
        distance: of `proximity`.
        side: pixels per row of an image, for `proximity`; 0 = no image.

    Returns:
        "proximity", "entropy" and "diagonality" of the maps; "toeplitz" (`toeplitz_share` of the
        position–position scores), "position" (their share of the variance, see `shares`), and of
        their profile by distance "alibi" and "rope" (R² of the fits) and "symmetric": for each a
        list of layers, each a list of heads. "profile": attention by distance key − query,
        −10 … 10 as far as there are such pairs, the mean over them, sequences, heads and layers.
    """
    x_BT, keep_BT = _trimmed(x_BT, length_B)
    (B, T), H = x_BT.shape, model.blocks[0].attention.n_heads
    step = max(1, min(100, 4_000_000 // (H * T * T)))
    pieces = [slice(start, start + step) for start in range(0, B, step)]
    names = (
        "proximity", "entropy", "diagonality", "toeplitz", "position",
        "alibi", "rope", "symmetric",
    )  # fmt: skip
    found: dict[str, list] = {name: [] for name in names}
    weight_TT = torch.zeros(T, T, dtype=torch.float64)
    for attention, h_BTD in _inputs(model, x_BT, keep_BT):
        mean_TD = _mean(h_BTD, keep_BT)
        of_maps, squares_4H = 0.0, 0.0
        for piece in pieces:
            keep = None if keep_BT is None else keep_BT[piece]
            rows = None if keep is None else keep[:, None, :]
            parts = _split(attention, h_BTD[piece], mean_TD, keep)
            maps = parts.maps()
            near = proximity(maps, distance, rows, side)
            each = (near, entropy(maps, rows), diagonality(maps, rows))
            of_maps += torch.stack(each).cpu().double().sum(1) / B
            squares_4H += _squares(parts)
            weight_TT += (maps if rows is None else maps * rows[..., None]).sum((0, 1)).cpu()
        of_layer = [*of_maps, toeplitz_share(parts.pp), _normalised(squares_4H)[0]]
        of_layer += _fitted(toeplitz_profile(parts.pp), h_BTD.shape[-1] // H)
        for name, of_head in zip(names, of_layer, strict=True):
            found[name].append([round(value, 6) for value in of_head.tolist()])
    keep_BT = torch.ones(B, T) if keep_BT is None else keep_BT.cpu()
    pairs_TT = keep_BT.double().mT @ keep_BT.double() * H * len(model.blocks)
    reach = min(10, T - 1)
    found["profile"] = [
        round(float(weight_TT.diagonal(d).sum() / pairs_TT.diagonal(d).sum()), 6)
        for d in range(-reach, reach + 1)
    ]
    return found


def _fitted(profiles: Tensor, width: int) -> Tensor:
    """R² of ALiBi's line and of RoPE's waves, and the symmetric share, of every head: (3, H)."""
    turning = width - width % 2  # RoPE turns pairs of features

    def waves(t: Tensor) -> float:
        return rope_fit(t, turning).r2 if turning else 0.0

    rows = [(alibi_fit(t).r2, waves(t), symmetric_share(t)) for t in profiles]
    return torch.tensor(rows, dtype=torch.float64).T
