"""Positional encodings: how a Transformer, blind to order by itself, is told where a token stands.

Sinusoidal and learned encodings are added to the input; RoPE rotates queries and keys; ALiBi adds a
bias to the scores. Sources: Vaswani et al. (2017), Su et al. (2021), Press et al. (2022).
"""

import torch
from torch import Tensor


def sinusoidal(n_positions: int, width: int) -> Tensor:
    """The sinusoidal table of Vaswani et al. (2017), section 3.5.

    Returns:
        (n_positions, width) float32; even columns are sines, odd ones cosines, wavelengths from
        2π to 10000·2π.
    """
    t = torch.arange(n_positions, dtype=torch.float64)[:, None]
    rate = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    table = torch.stack([torch.sin(t * rate), torch.cos(t * rate)], dim=-1).flatten(1)
    return table[:, :width].float()


def rope_table(n_positions: int, head_width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of RoPE's angles, each (n_positions, head_width / 2) float32."""
    rate = 10000.0 ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angle = torch.arange(n_positions, dtype=torch.float64)[:, None] * rate
    return angle.cos().float(), angle.sin().float()


def rotate(x_BHTK: Tensor, cos_TF: Tensor, sin_TF: Tensor) -> Tensor:
    """Rotate each pair of features by its position's angle (Su et al. 2021, equation 34).

    Args:
        x_BHTK: queries or keys.
        cos_TF: from `rope_table`, F = K / 2, cut to T positions.
        sin_TF: likewise.

    Returns:
        Same shape; scores of rotated queries and keys depend on positions through i − j only.
    """
    even, odd = x_BHTK[..., 0::2], x_BHTK[..., 1::2]
    turned = torch.stack([even * cos_TF - odd * sin_TF, even * sin_TF + odd * cos_TF], dim=-1)
    return turned.flatten(-2)


def distances(n_positions: int, side: int = 0) -> Tensor:
    """How far apart query i and key j are, (n_positions, n_positions) int64.

    Args:
        n_positions: T.
        side: 0 = along the sequence, ``|i − j|``; else the positions are an image's pixels, row by
            row of so many, and it is the larger one of the distances in rows and in columns.
    """
    t = torch.arange(n_positions)
    if not side:
        return (t[:, None] - t[None, :]).abs()
    row, column = t // side, t % side
    return torch.maximum(
        (row[:, None] - row[None, :]).abs(), (column[:, None] - column[None, :]).abs()
    )


def alibi_bias(n_heads: int, n_positions: int) -> Tensor:
    """Symmetric ALiBi for encoders: ``−slope · |i − j|``.

    Slopes are the geometric series of Press et al. (2022), 2^(−8h/H) for head h = 1…H.

    Returns:
        (n_heads, n_positions, n_positions) float32, to be added to the scores.
    """
    slope = 2.0 ** (-8.0 * torch.arange(1, n_heads + 1) / n_heads)
    return -slope[:, None, None] * distances(n_positions)


def score_bias(
    positions: str, n_heads: int, n_positions: int, proximity_bias: float
) -> Tensor | None:
    """What an encoding and an imposed proximity bias add to the scores; None if they add nothing.

    Args:
        positions: name of the encoding; only "alibi" adds to the scores.
        n_heads: heads.
        n_positions: T.
        proximity_bias: strength; −strength · ``|i − j|`` is added.

    Returns:
        (n_heads, n_positions, n_positions) float32.
    """
    bias = alibi_bias(n_heads, n_positions) if positions == "alibi" else None
    if proximity_bias:
        imposed = (-proximity_bias * distances(n_positions)).expand(n_heads, -1, -1)
        bias = imposed if bias is None else bias + imposed
    return bias
