"""Masked reconstruction: which positions are hidden, and the loss at exactly those.

What replaces a hidden value is the model's business (`Transformer._embed`): a mask embedding for
tokens, (0, 1) instead of (value, 0) for pixels, as in Amos et al. (2024).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from sptlib.config import PretrainConfig
from sptlib.model import keep_mask


def hide(
    config: PretrainConfig, x_BT: Tensor, length_B: Tensor | None, g: torch.Generator
) -> Tensor:
    """Choose the positions to hide.

    Args:
        config: ratio, and token-wise or spans.
        x_BT: only its shape and device are read.
        length_B: valid positions; padding is never hidden.
        g: CPU generator, so that masks are the same on every device.

    Returns:
        (B, T) bool, True = hidden. Each valid position is hidden with probability ``mask_ratio``;
        a sequence in which none came up has one, drawn uniformly.
    """
    B, T = x_BT.shape
    if config.mask == "token":
        hidden = torch.rand(B, T, generator=g) < config.mask_ratio
    else:
        # a span starts anywhere, also before the sequence, so that all positions are equally likely
        length = min(config.span_length, T)
        p_start = 1 - (1 - config.mask_ratio) ** (1 / length)
        start = torch.rand(B, T + length - 1, generator=g) < p_start
        hidden = start.unfold(1, length, 1).any(-1)
    one = torch.rand(B, generator=g)
    n_valid = torch.full((B,), T) if length_B is None else length_B.cpu()
    keep = keep_mask(hidden, n_valid)
    hidden &= keep
    empty = ~hidden.any(1)
    hidden[empty, (one * n_valid).long()[empty]] = True
    return hidden.to(x_BT.device)


def reconstruction_loss(output: Tensor, x_BT: Tensor, hidden_BT: Tensor, scale: float) -> Tensor:
    """Mean loss over hidden positions: cross-entropy for tokens, L1 for pixels.

    Args:
        output: (B, T, V) logits or (B, T) values from `Transformer.reconstruct`.
        x_BT: the inputs before hiding.
        scale: pixels are divided by it.
    """
    if output.dim() == 3:
        return F.cross_entropy(output[hidden_BT], x_BT[hidden_BT].long())
    return (output[hidden_BT] - x_BT[hidden_BT].to(output.dtype) / scale).abs().mean()
