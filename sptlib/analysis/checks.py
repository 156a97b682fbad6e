"""The statements of `sptlib.analysis.theory` and `sptlib.analysis.population`, as one table."""

from functools import partial

import pandas as pd
import torch
from torch import Tensor

from sptlib.analysis.population import (
    centred_one_hot,
    first_values,
    fitted_values,
    force_profile,
    neighbor_covariances,
)
from sptlib.analysis.theory import (
    Readout,
    autograd_curvature,
    autograd_gradient,
    band,
    column_constant,
    label_curvature,
    label_gradient,
    label_loss,
    position_block,
    projection,
    reconstruction_gradient,
    reconstruction_loss,
    row_spread,
)
from sptlib.positions import sinusoidal
from sptlib.seeding import generator
from sptlib.tasks.neighbor import NeighborConfig, sample

TINY = 1e-12  # rounding, in float64


def _normal(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def _largest(values: Tensor) -> float:
    return float(values.abs().max())


def _position_share(gradient: Tensor, d: int) -> float:
    """‖PᵀGP‖ / (‖P‖² ‖G‖) with sinusoidal P and its spectral norm: in [0, 1]."""
    P = sinusoidal(len(gradient), d).double()
    P = P - P.mean(0)
    size = torch.linalg.matrix_norm(P, 2) ** 2 * gradient.norm()
    return float(position_block(gradient, P).norm() / size)


def _agreement(g: torch.Generator, n: int, d: int):
    """Closed forms against autograd, at scores that are not uniform."""
    (x, corrupted), (S, T) = _normal(g, 2, 4, n, d), _normal(g, 2, n, n)
    w_v, w, y = _normal(g, d, d) / d**0.5, _normal(g, d), torch.tensor([0, 1, 1, 0])
    for phi, r in (("identity", 0.0), ("gelu", 0.0), ("gelu", 1.0)):
        head, name = Readout(w_v, w, phi, r), f"({phi}, r = {r:.0f})"
        loss = partial(label_loss, x, y, head)
        gradients = label_gradient(x, y, head, S), autograd_gradient(loss, S)
        curvatures = label_curvature(x, y, head, T, S), autograd_curvature(loss, S, T)
        yield f"label gradient {name}", *gradients
        yield f"label curvature {name}", *curvatures
    data = x, corrupted, w_v, torch.arange(4 * n).view(4, n) % 5 == 0
    loss = partial(reconstruction_loss, *data)
    yield "reconstruction gradient", reconstruction_gradient(*data, S), autograd_gradient(loss, S)


def _labels(g: torch.Generator, n: int, d: int, count: int) -> list[tuple]:
    """What labels see at uniform attention, and what lets them see more."""
    x, y, w_v, w = _normal(g, 4, n, d), torch.tensor([0, 1, 1, 0]), _normal(g, d, d), _normal(g, d)
    linear, added, bent, both = (
        Readout(w_v / d**0.5, w, phi, r) for phi in ("identity", "gelu") for r in (0.0, 1.0)
    )
    G, ring, open_band = label_gradient(x, y, linear), band(n, 2, True), band(n, 2, False)
    rings = torch.stack([band(n, width, wrap=True) for width in (1, 2, 5)])
    equal, free = column_constant(n, count, g), _normal(g, count, n, n)
    along = torch.stack([label_loss(x, y, linear, e * ring) for e in (0, 1, 2, 5)])

    def spread(head: Readout, scores: Tensor | None = None) -> float:
        return row_spread(label_gradient(x, y, head, scores))

    def trained(head: Readout) -> float:
        """Row spread of the scores after 200 steps of gradient descent from uniform attention."""
        scores = torch.zeros(n, n, dtype=torch.float64)
        for _ in range(200):
            scores = scores - n * label_gradient(x, y, head, scores)
        return row_spread(scores)

    def bend(head: Readout, direction: Tensor) -> float:
        return _largest(label_curvature(x, y, head, direction))

    return [
        (f"projection, {count} equal column sums", _largest(projection(G, equal)), "<", TINY),
        ("projection, wrapped bands 1, 2, 5", _largest(projection(G, rings)), "<", TINY),
        ("projection, unwrapped band 2", _largest(projection(G, open_band)), ">", 1e-6),
        ("projection, free directions, mean", float(projection(G, free).abs().mean()), ">", 1e-3),
        ("row spread, linear", spread(linear), "<", TINY),
        ("row spread, linear + residual", spread(added), "<", TINY),
        ("row spread, GELU", spread(bent), "<", TINY),
        ("row spread, GELU + residual", spread(both), ">", 1e-2),
        ("row spread, linear, random scores × 0.1", spread(linear, free[0] / 10), ">", 1e-2),
        ("row spread of S after 200 steps, GELU", trained(bent), "<", TINY),
        ("row spread of S after 200 steps, GELU + residual", trained(both), ">", 1e-2),
        ("change along wrapped band 2, ε ≤ 5", _largest(along / along[0] - 1), "<", TINY),
        ("curvature, linear, wrapped band 2", bend(linear, ring), "<", TINY),
        ("curvature, linear, equal column sums", bend(linear, equal[0]), ">", 1e-6),
        ("curvature, GELU, wrapped band 2", bend(bent, ring), ">", 1e-6),
        ("position–position block", _position_share(G, d), "<", TINY),
    ]


def _reconstruction(g: torch.Generator, n: int, d: int, mask_ratio: float = 0.15) -> list[tuple]:
    """What masked reconstruction of `neighbor` sees at uniform attention."""
    config = NeighborConfig(length=n)
    clean, eye = neighbor_covariances(config), torch.eye(config.n_symbols, dtype=torch.float64)
    x = centred_one_hot(sample(config, 500, g).x, config.n_symbols)
    hidden = torch.rand(x.shape[:2], generator=g) < mask_ratio
    data, near = (x, x * ~hidden[..., None]), band(n, 1, wrap=False, diagonal=False)
    rows = []
    for name, V, sign in (
        ("first V", first_values(clean, mask_ratio), ">"),
        ("fitted V", fitted_values(clean, mask_ratio), ">"),
        ("V = I", eye, "<"),
    ):
        G = reconstruction_gradient(*data, V, hidden)
        _, force = force_profile(clean, V, mask_ratio, reach=2)
        rows += [
            (f"projection of −G on neighbours, {name}", float(projection(-G, near)), sign, 0),
            (f"expected force / ‖V‖, distance 1, {name}", force[3] / float(V.norm()), sign, 0),
            (f"… its ratio at distances 2 and 1, {name}", force[4] / force[3], "<", 1),
            (f"row spread, {name}", row_spread(G), ">", 1e-2),
            (f"position–position block, {name}", _position_share(G, d), ">", 1e-3),
        ]
    start, end = (reconstruction_loss(*data, V, hidden, e * band(n, 2, True)) for e in (0, 1))
    rows.append(("change along wrapped band 2, ε = 1", _largest(end / start - 1), ">", 1e-6))
    return rows


def exact_checks(seed: int = 0, n: int = 50, d: int = 16, count: int = 1000) -> pd.DataFrame:
    """The statements, measured: ``quantity, value, bound, holds``, a row for each.

    Args:
        seed: of inputs, labels, weights and directions.
        n: positions, at least 12.
        d: features of the label part; `neighbor` has its ten symbols.
        count: random directions.
    """
    g = generator(seed, "theory")
    rows = [(f"labels: {what}", *rest) for what, *rest in _labels(g, n, d, count)]
    rows += [(f"reconstruction: {what}", *rest) for what, *rest in _reconstruction(g, n, d)]
    for what, closed, automatic in _agreement(g, n, d):
        difference = _largest(closed - automatic) / _largest(automatic)
        rows.append((f"{what}: closed form against autograd", difference, "<", 1e-10))
    return pd.DataFrame(
        [
            (what, value, f"{sign} {limit:.3g}", value < limit if sign == "<" else value > limit)
            for what, value, sign, limit in rows
        ],
        columns=["quantity", "value", "bound", "holds"],
    )
