"""What a profile of scores by distance looks like: ALiBi's line, RoPE's waves, or neither."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sptlib.errors import ConfigError


@dataclass(frozen=True)
class Fit:
    """A curve that was fitted to a profile t(d), each distance weighted by its number of pairs.

    Attributes:
        name: of the family of curves.
        r2: share of the weighted variance of t that it explains; 0 if t has none.
        parameters: numbers, or lists of them, by name.
        curve: (2 reach + 1,) float64, its values at d = −reach … reach.
    """

    name: str
    r2: float
    parameters: dict[str, float | list[float]]
    curve: Tensor


def alibi_fit(profile: Tensor, reach: int | None = None) -> Fit:
    """Fit what ALiBi adds (Press et al. 2022): t(d) ≈ constant − slope · ``|d|``.

    Args:
        profile: (2T − 1,), from `toeplitz_profile`.
        reach: fit only ``|d|`` ≤ reach; None = all.

    Raises:
        ConfigError: if it is no profile, or reach is below 1.
    """
    d, t, weight = _pieces(profile, reach)
    found, r2, curve = _least_squares(torch.stack([torch.ones_like(d), -d.abs()], 1), t, weight)
    return Fit("alibi", r2, {"constant": float(found[0]), "slope": float(found[1])}, curve)


def rope_fit(profile: Tensor, width: int, reach: int | None = None) -> Fit:
    """Fit what RoPE can express (Su et al. 2021) with a head of this width.

    t(d) ≈ constant + Σ_f cos_f cos(θ_f d) + sin_f sin(θ_f d), with the rates θ_f = 10000^(−2f / K),
    f = 0 … K/2 − 1. The K + 1 numbers are free; the slow waves are nearly dependent, and of all
    solutions the smallest is taken. With as many distances as numbers every profile fits.

    Args:
        profile: (2T − 1,), from `toeplitz_profile`.
        width: K, even.
        reach: fit only ``|d|`` ≤ reach; None = all.

    Raises:
        ConfigError: if it is no profile, reach is below 1, or the width is not even.
    """
    if width < 2 or width % 2:
        raise ConfigError(f"width={width}, but RoPE turns pairs of features: give an even number")
    d, t, weight = _pieces(profile, reach)
    rate = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = d[:, None] * rate
    design = torch.cat([torch.ones_like(d)[:, None], angle.cos(), angle.sin()], 1)
    found, r2, curve = _least_squares(design, t, weight)
    constant, cos, sin = found.split([1, width // 2, width // 2])
    parameters = {"constant": float(constant), "cos": cos.tolist(), "sin": sin.tolist()}
    return Fit("rope", r2, parameters, curve)


def symmetric_share(profile: Tensor, reach: int | None = None) -> float:
    """How much of t is distance without direction: the share of its even part in its variance.

    Args:
        profile: (2T − 1,), from `toeplitz_profile`.
        reach: look only at ``|d|`` ≤ reach; None = all.

    Returns:
        Between 0 and 1, distances weighted by their number of pairs; 0 for a constant profile.

    Raises:
        ConfigError: if it is no profile, or reach is below 1.
    """
    _, t, weight = _pieces(profile, reach)
    even = (t + t.flip(0)) / 2
    return _explained(t, even, weight)


def _pieces(profile: Tensor, reach: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Distances, values and weights T − ``|d|`` within the reach, float64."""
    if profile.dim() != 1 or len(profile) % 2 == 0:
        raise ConfigError(
            f"a profile has 2T - 1 values, but this tensor is {tuple(profile.shape)}; "
            "toeplitz_profile makes one for each head"
        )
    if reach is not None and reach < 1:
        raise ConfigError(f"reach={reach}, expected at least 1")
    T = (len(profile) + 1) // 2
    reach = T - 1 if reach is None else min(reach, T - 1)
    d = torch.arange(-reach, reach + 1, dtype=torch.float64)
    return d, profile.detach().cpu().double()[T - 1 - reach : T + reach], T - d.abs()


def _least_squares(design: Tensor, t: Tensor, weight: Tensor) -> tuple[Tensor, float, Tensor]:
    """Coefficients, R² and curve."""
    root = weight.sqrt()
    right = (t * root)[:, None]
    found = torch.linalg.lstsq(design * root[:, None], right, driver="gelsd").solution[:, 0]
    curve = design @ found
    return found, _explained(t, curve, weight), curve


def _explained(t: Tensor, curve: Tensor, weight: Tensor) -> float:
    """1 − (weighted squares that the curve leaves) / (those around the mean); 0 if t is flat."""
    total = (weight * (t - (weight * t).sum() / weight.sum()).square()).sum()
    if total <= torch.finfo(t.dtype).eps ** 2 * (weight * t.square()).sum():
        return 0.0
    return float(1 - (weight * (t - curve).square()).sum() / total)
