"""Initial weights: PyTorch's own, BERT's, and closed forms that look like trained attention.

The closed forms only change attention. They are counterpoints to self-pretraining: what of it could
be had without any training?
"""

import torch
from torch import Tensor, nn

#: weight of the random and of the identity part: of queries and keys, of values and output, as
#: Trockman & Kolter (2023) use them on images
QUERY_KEY, VALUE_OUTPUT = (0.7, 0.7), (0.4, 0.4)


def normal(module: nn.Module) -> None:
    """BERT's and GPT-2's start: weights and embeddings from N(0, 0.02²), biases zero."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


@torch.no_grad()
def mimetic(q: nn.Linear, k: nn.Linear, v: nn.Linear, o: nn.Linear, n_heads: int) -> None:
    """The closed form of Trockman & Kolter (2023): attention to what is alike, values that correct.

    Of each head, W_Qᵀ W_K ≈ 0.7 Z + 0.7 I, in rank K the best approximation; of all heads together,
    W_O W_V ≈ 0.4 Z − 0.4 I. Z has entries from N(0, 1/D), D = width, K = D / heads. Biases of
    queries and keys are zero, so that scores are what the products say.

    Args:
        q: weight (D, D), one head after the other, changed in place; k, v and o likewise.
        k: of the keys.
        v: of the values.
        o: of the output.
        n_heads: heads, which share the rows of q and k.
    """
    width = q.weight.shape[1]
    K = width // n_heads
    for head in range(n_heads):
        rows = slice(head * K, (head + 1) * K)
        u_DK, v_KD = _factors(_noisy_identity(width, *QUERY_KEY), K)
        q.weight[rows], k.weight[rows] = u_DK.T, v_KD
    alpha, beta = VALUE_OUTPUT
    o_DD, v_DD = _factors(_noisy_identity(width, alpha, -beta), width)
    o.weight.copy_(o_DD)
    v.weight.copy_(v_DD)
    nn.init.zeros_(q.bias)
    nn.init.zeros_(k.bias)


def _noisy_identity(width: int, alpha: float, beta: float) -> Tensor:
    return alpha * torch.randn(width, width) / width**0.5 + beta * torch.eye(width)


def _factors(product_DD: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """L (D, rank) and R (rank, D) of equal norm, with L R the best approximation of a product."""
    u, s, vt = torch.linalg.svd(product_DD.double())
    root = s[:rank].sqrt()
    return (u[:, :rank] * root).to(product_DD.dtype), (root[:, None] * vt[:rank]).to(
        product_DD.dtype
    )


@torch.no_grad()
def identity(q: nn.Linear, k: nn.Linear) -> None:
    """W_Q = W_K = I without biases: each head compares its own features of query and key.

    With added sinusoids near positions are alike, so that attention starts near the diagonal.
    """
    for linear in (q, k):
        nn.init.eye_(linear.weight)
        nn.init.zeros_(linear.bias)


@torch.no_grad()
def uniform(q: nn.Linear, k: nn.Linear) -> None:
    """W_Q = W_K = 0 without biases: all scores are 0, every position attends to all alike."""
    for linear in (q, k):
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
