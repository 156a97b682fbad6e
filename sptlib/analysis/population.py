"""The expected force of masked reconstruction on attention, exact for stationary sequences.

At uniform attention and in expectation, reconstruction pushes the score of query i and key j by
tr(Vᵀ C_ij): the covariance of the clean token i with the corrupted token j, as the values V read
it. For the walks of `neighbor` the covariances have a closed form. Derivations are our own.

Shapes: n positions, d features, m symbols.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from sptlib.errors import ConfigError
from sptlib.tasks.neighbor import NeighborConfig


def centred_one_hot(tokens: Tensor, n_symbols: int) -> Tensor:
    """Tokens (..., n) as one-hot vectors minus 1/m, (..., n, m) float64; a hidden one is zero."""
    return F.one_hot(tokens.long(), n_symbols).double() - 1 / n_symbols


def neighbor_covariances(config: NeighborConfig) -> Tensor:
    """Cov(x_i, x_{i+k}) of clean, centred one-hot tokens of `neighbor`, exact.

    After k steps the walk has never jumped with probability p^k, and is uniform otherwise:
    Σ_k = (p^k / m) (mean over labels of P_d^k − 11ᵀ/m), P_d the shift by d; Σ_{−k} = Σ_kᵀ.

    Returns:
        (2n − 1, m, m) float64 for the signed distances k = j − i from −(n − 1) to n − 1.
    """
    m, n = config.n_symbols, config.length
    k = torch.arange(n)
    eye = torch.eye(m, dtype=torch.float64)
    start = torch.arange(m)
    shifts = [eye[(start + k[:, None] * step) % m] for step in config.steps]
    forward = config.p ** k.double()[:, None, None] / m * (sum(shifts) / len(shifts) - 1 / m)
    return torch.cat([forward[1:].flip(0).mT, forward])


def hidden_covariances(clean: Tensor, mask_ratio: float) -> Tensor:
    """C_k = Cov(x_i, x̃_{i+k}) given that i is hidden, of the shape of ``clean``.

    Every other token is visible with probability 1 − ``mask_ratio``; the hidden one itself is
    zero, so that C_0 = 0: its own column has nothing to offer.

    Args:
        clean: Σ_k, (2n − 1, d, d), e.g. from `neighbor_covariances`.
        mask_ratio: in [0, 1), else `ConfigError`.
    """
    if not 0 <= mask_ratio < 1:
        raise ConfigError(f"mask_ratio must be in [0, 1), found {mask_ratio}")
    C = (1 - mask_ratio) * clean
    C[len(clean) // 2] = 0
    return C


def first_values(clean: Tensor, mask_ratio: float) -> Tensor:
    """Cov(x_i, c̄), c̄ = (1/n) Σ_j x̃_j, mean over i given that i is hidden: (d, d).

    Half of −∂L/∂V at V = 0 and S = 0: the direction in which V leaves 0. It is (1/n²) Σ_ij C_ij, so
    that its own force, summed over all pairs, is n² ‖V‖² > 0. Arguments: `hidden_covariances`.
    """
    n = len(clean) // 2 + 1
    return (_pairs(n) * hidden_covariances(clean, mask_ratio)).sum(0) / n**2


def fitted_values(clean: Tensor, mask_ratio: float) -> Tensor:
    """The V that reconstructs best at uniform attention: Cov(x_i, c̄) Cov(c̄)⁺, (d, d).

    c̄ is all that uniform attention shows; both covariances are means over i, given that i is
    hidden. Arguments are those of `hidden_covariances`.
    """
    n = len(clean) // 2 + 1
    # a visible token with itself, and with another; neither is the target: n − 1, n − 2 of n
    own = (n - 1) * (1 - mask_ratio) * clean[n - 1]
    others = (n - 2) / n * (1 - mask_ratio) * _pairs(n) * hidden_covariances(clean, mask_ratio)
    pooled = (own + others.sum(0)) / n**2
    return first_values(clean, mask_ratio) @ torch.linalg.pinv(pooled, rtol=1e-10, hermitian=True)


def _pairs(n: int) -> Tensor:
    """How many pairs (i, j) are at each signed distance: (2n − 1, 1, 1)."""
    return (n - torch.arange(1 - n, n, dtype=torch.float64).abs())[:, None, None]


def expected_force(covariances: Tensor, values: Tensor) -> Tensor:
    """tr(Vᵀ C): how far reconstruction pushes a score up at S = 0, in expectation; (...).

    n²/2 times −∂L/∂S_ij is tr(Vᵀ C_ij) minus its mean over j, plus a term that contains no target:
    −E⟨V c̄, V(x̃_j − c̄)⟩, the shrinkage of the guess. The force is linear in V and that term is
    quadratic, so that the two can be told apart exactly.

    Args:
        covariances: C, (..., d, d), from `hidden_covariances`.
        values: V, (d, d).
    """
    return torch.einsum("...ab,ab->...", covariances, values)


def force_profile(
    clean: Tensor, values: Tensor, mask_ratio: float, reach: int = 10
) -> tuple[list[int], list[float]]:
    """`expected_force` against signed distance k = j − i.

    Args:
        clean: Σ_k, (2n − 1, d, d).
        values: V, (d, d).
        mask_ratio: share of hidden tokens.
        reach: distances −reach … reach, as far as there are any.
    """
    middle = len(clean) // 2
    reach = min(reach, middle)
    force = expected_force(hidden_covariances(clean, mask_ratio), values)
    return list(range(-reach, reach + 1)), force[middle - reach : middle + reach + 1].tolist()
