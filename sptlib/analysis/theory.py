"""Which attention patterns a loss can see: exact gradients with respect to free scores, in float64.

One layer, A = softmax(S) row by row, S (n, n) free, uniform attention at S = 0. Labels see a mean
over positions, so that at uniform attention every row of their gradient is the same: a pattern
whose columns have equal sums is invisible to them. Masked reconstruction compares each hidden
position with its own target, and its gradient depends on the row.

Every gradient is written twice: in closed form here, and by autograd from the loss
(`autograd_gradient`, `autograd_curvature`), which shares no derivative with it. The claim is that
of Coser et al. (2026); the derivations are our own.

Shapes: B sequences, n positions, d features, m symbols; without B, one sequence.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sptlib.errors import ConfigError, unknown
from sptlib.positions import distances


def _density(h: Tensor) -> Tensor:
    return torch.exp(-(h**2) / 2) / math.sqrt(2 * math.pi)


#: non-linearities by name: the function, and its first two derivatives written out
PHI: dict[str, tuple[Callable, Callable, Callable]] = {
    "identity": (lambda h: h, torch.ones_like, torch.zeros_like),
    "tanh": (
        torch.tanh,
        lambda h: 1 - torch.tanh(h) ** 2,
        lambda h: -2 * torch.tanh(h) * (1 - torch.tanh(h) ** 2),
    ),
    "gelu": (
        F.gelu,
        lambda h: torch.special.ndtr(h) + h * _density(h),
        lambda h: (2 - h**2) * _density(h),
    ),
}


@dataclass(frozen=True)
class Readout:
    """f = w · mean_i φ(h_i), h_i = r x_i + Σ_j A_ij u_j, u_j = W_v x_j: what a label sees.

    Attributes:
        w_v: W_v, (d, d) float64.
        w: (d,) float64.
        phi: φ, token by token: "identity" (the linear read-out), "tanh" or "gelu".
        residual: r, 0 without and 1 with a residual connection.
    """

    w_v: Tensor
    w: Tensor
    phi: str = "identity"
    residual: float = 0.0

    def __post_init__(self):
        if self.phi not in PHI:
            raise unknown("non-linearity", self.phi, PHI)


def _attention(x: Tensor, scores: Tensor | None) -> tuple[Tensor, Tensor]:
    """The inputs as (B, n, d) float64, and A (n, n); scores None means uniform attention."""
    x = x.double() if x.dim() == 3 else x.double()[None]
    n = x.shape[1]
    if scores is None:
        scores = torch.zeros(n, n, dtype=torch.float64)
    if scores.shape != (n, n):
        raise ConfigError(f"{n} positions need scores ({n}, {n}), found {tuple(scores.shape)}")
    return x, scores.double().softmax(-1)


# --- labels --------------------------------------------------------------------------------------


def label_loss(
    x: Tensor, y: Tensor | int, readout: Readout, scores: Tensor | None = None
) -> Tensor:
    """Logistic loss ℓ(f, y) of a read-out, mean over sequences: a scalar.

    Args:
        x: inputs, (n, d) or (B, n, d).
        y: label 0 or 1, or (B,) of them.
        readout: gives f.
        scores: S, (n, n); None means 0, uniform attention.
    """
    x, A = _attention(x, scores)
    h = readout.residual * x + A @ (x @ readout.w_v.T)
    f = PHI[readout.phi][0](h).mean(1) @ readout.w
    return (F.softplus(f) - torch.as_tensor(y) * f).mean()


def _derivatives(x, y, readout, scores):
    """A, u, Dφ(h_i)ᵀw and the diagonal of D²φ(h_i)ᵀw (B, n, d), ℓ' and ℓ'' (B, 1, 1)."""
    x, A = _attention(x, scores)
    u = x @ readout.w_v.T
    h = readout.residual * x + A @ u
    phi, first, second = PHI[readout.phi]
    chance = torch.sigmoid(phi(h).mean(1) @ readout.w)[:, None, None]
    slope = chance - torch.as_tensor(y).view(-1, 1, 1)
    return A, u, first(h) * readout.w, second(h) * readout.w, slope, chance * (1 - chance)


def label_gradient(
    x: Tensor, y: Tensor | int, readout: Readout, scores: Tensor | None = None
) -> Tensor:
    """∂L/∂S of `label_loss` in closed form, (n, n); arguments are those of the loss.

    ∂L/∂S_ij = (ℓ'/n) A_ij ⟨Dφ(h_i)ᵀw, u_j − Σ_k A_ik u_k⟩. At S = 0 without residual all h_i are
    the same ū, and it is (ℓ'/n²) (v_j − v̄) with v_j = ⟨Dφ(ū)ᵀw, u_j⟩, whatever i is.
    """
    A, u, reading, _, slope, _ = _derivatives(x, y, readout, scores)
    seen = reading @ u.mT  # (B, n, n): value j as row i reads it
    return (slope / len(A) * A * (seen - (A * seen).sum(-1, keepdim=True))).mean(0)


def label_curvature(
    x: Tensor,
    y: Tensor | int,
    readout: Readout,
    direction: Tensor,
    scores: Tensor | None = None,
) -> Tensor:
    """d²/dε² of `label_loss` at S + εT, ε = 0, in closed form: a scalar.

    ℓ'' (df)² + (ℓ'/n) Σ_i (wᵀD²φ(h_i)[δ_i, δ_i] + wᵀDφ(h_i) κ_i) with df = (1/n) Σ_i wᵀDφ(h_i) δ_i.
    δ_i = Σ_j A_ij t_ij u_j and κ_i = Σ_j A_ij (t_ij² − Σ_k A_ik t_ik²) u_j are the first two
    derivatives of Σ_j A_ij u_j, where t_ij = T_ij − Σ_k A_ik T_ik.

    Args:
        direction: T, (n, n). The other arguments are those of the loss.
    """
    A, u, reading, bending, slope, bend = _derivatives(x, y, readout, scores)
    t = direction.double()
    t = t - (A * t).sum(-1, keepdim=True)
    delta = (A * t) @ u
    kappa = (A * (t**2 - (A * t**2).sum(-1, keepdim=True))) @ u
    df = (reading * delta).sum((1, 2), keepdim=True) / len(A)
    ddf = (bending * delta**2 + reading * kappa).sum((1, 2), keepdim=True) / len(A)
    return (bend * df**2 + slope * ddf).mean()


# --- masked reconstruction -----------------------------------------------------------------------


def reconstruction_loss(
    x: Tensor, corrupted: Tensor, values: Tensor, hidden: Tensor, scores: Tensor | None = None
) -> Tensor:
    """Squared error of ŷ_i = Σ_j A_ij V x̃_j against x_i, mean over hidden positions: a scalar.

    Args:
        x: clean inputs, (n, d) or (B, n, d).
        corrupted: x̃, what attention sees, of the same shape.
        values: V, (d, d).
        hidden: M, (n,) or (B, n) bool; at least one is True, else `ConfigError`.
        scores: S, (n, n); None means 0.
    """
    error, _, _, _ = _errors(x, corrupted, values, hidden, scores)
    return (error**2).sum() / hidden.sum()


def _errors(x, corrupted, values, hidden, scores):
    """ŷ − x (B, n, d), zero where nothing is hidden; V x̃ and ŷ likewise; A."""
    if not hidden.any():
        raise ConfigError("reconstruction needs at least one hidden position, found none")
    u, A = _attention(corrupted, scores)
    u = u @ values.T
    guess = A @ u
    return (guess - x) * hidden.view(*u.shape[:2], 1), u, guess, A


def reconstruction_gradient(
    x: Tensor, corrupted: Tensor, values: Tensor, hidden: Tensor, scores: Tensor | None = None
) -> Tensor:
    """∂L/∂S of `reconstruction_loss` in closed form, (n, n); arguments are those of the loss.

    ∂L/∂S_ij = (2/m) A_ij ⟨ŷ_i − x_i, V x̃_j − ŷ_i⟩ for hidden i, summed over sequences; m positions
    are hidden in all.
    """
    error, u, guess, A = _errors(x, corrupted, values, hidden, scores)
    seen = error @ u.mT - (error * guess).sum(-1, keepdim=True)
    return 2 / float(hidden.sum()) * A * seen.sum(0)


# --- the second route, and directions ------------------------------------------------------------


def autograd_gradient(loss: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    """∂loss/∂S at these scores by backpropagation, (n, n); ``loss`` maps S to a scalar."""
    S = scores.double().clone().requires_grad_()
    return torch.autograd.grad(loss(S), S)[0]


def autograd_curvature(
    loss: Callable[[Tensor], Tensor], scores: Tensor, direction: Tensor
) -> Tensor:
    """d²/dε² loss(S + εT) at ε = 0 by backpropagating twice: a scalar."""
    strength = torch.zeros((), dtype=torch.float64, requires_grad=True)
    value = loss(scores.double() + strength * direction.double())
    (slope,) = torch.autograd.grad(value, strength, create_graph=True)
    return torch.autograd.grad(slope, strength)[0]


def column_constant(n: int, count: int, g: torch.Generator) -> Tensor:
    """Random directions whose columns all have the same sum, (count, n, n) float64.

    The common sum is random, too, one per direction.
    """
    T = torch.randn(count, n, n, generator=g, dtype=torch.float64)
    common = torch.randn(count, 1, 1, generator=g, dtype=torch.float64)
    return T - T.mean(1, keepdim=True) + common


def circulant(kernel: Tensor) -> Tensor:
    """T_ij = kernel[(j − i) mod n], (n, n) float64: a pattern of distance on a ring.

    Its softmax is circulant, too, so that all column sums of A stay 1. The linear read-out knows A
    by its column sums alone: its label loss is the same at every strength, not to first order only.
    """
    i = torch.arange(len(kernel))
    return kernel.double()[(i - i[:, None]) % len(kernel)]


def band(n: int, width: int, wrap: bool, diagonal: bool = True) -> Tensor:
    """1 where ``|i − j|`` ≤ width, else 0, (n, n) float64.

    Args:
        n: positions.
        width: at least 0.
        wrap: measure distance on a ring, which makes the band circulant.
        diagonal: whether a position is near itself.
    """
    away = distances(n)
    away = torch.minimum(away, n - away) if wrap else away
    return ((away <= width) & (diagonal | (away > 0))).double()


def projection(gradient: Tensor, direction: Tensor) -> Tensor:
    """⟨G, T⟩ / (‖G‖ ‖T‖), the cosine: (...), in [−1, 1]; 0 for a zero gradient.

    Args:
        gradient: G, (n, n).
        direction: T, (..., n, n); a zero direction is a `ConfigError`.
    """
    gradient, direction = gradient.double(), direction.double()
    norm = direction.flatten(-2).norm(dim=-1)
    if (norm == 0).any():
        raise ConfigError("a direction is zero everywhere: nothing can be projected on it")
    inner = (gradient * direction).sum((-2, -1))
    return inner / norm / gradient.norm().clamp_min(torch.finfo(torch.float64).tiny)


def row_spread(gradient: Tensor) -> float:
    """How far the rows of G (n, n) differ: ‖G − mean row‖ / ‖G‖, 0 if all are the same, at most 1.

    Its square is the share of G that sees patterns with equal column sums.
    """
    return float((gradient - gradient.mean(0)).norm() / gradient.norm())


def position_block(gradient: Tensor, positions: Tensor, centre: bool = True) -> Tensor:
    """PᵀGP: the position–position part of ∂L/∂M for scores S = X M Xᵀ, x_i = e_i + p_i; (d, d).

    At uniform attention the label gradient is 1aᵀ, so that its part is (Pᵀ1)(Pᵀa)ᵀ: zero exactly
    if positions are centred, Pᵀ1 = 0. A step in M can still touch scores of positions, through
    features that positions share with the mean input.

    Args:
        gradient: ∂L/∂S, (n, n).
        positions: P, (n, d).
        centre: subtract the mean position first.
    """
    P = positions.double()
    P = P - P.mean(0) if centre else P
    return P.T @ gradient @ P
