"""Exact gradients: closed form, autograd, finite differences and enumeration agree."""

from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sptlib.analysis import checks
from sptlib.analysis.checks import exact_checks
from sptlib.analysis.population import (
    centred_one_hot,
    expected_force,
    first_values,
    fitted_values,
    force_profile,
    hidden_covariances,
    neighbor_covariances,
)
from sptlib.analysis.theory import (
    PHI,
    Readout,
    autograd_curvature,
    autograd_gradient,
    band,
    circulant,
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
from sptlib.errors import ConfigError
from sptlib.positions import sinusoidal
from sptlib.seeding import generator
from sptlib.tasks.neighbor import NeighborConfig, sample

SEEDS = st.integers(0, 10**6)
Y = torch.tensor([0, 1, 1])
BENT = ["gelu", "tanh"]


def normal(g, *shape):
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def problem(seed, n=12, d=5, phi="identity", r=0.0):
    """Three sequences and a read-out whose logits are far from 0."""
    g = generator(seed, "test")
    return normal(g, 3, n, d), Readout(normal(g, d, d), 2 * normal(g, d), phi, r), g


def hiding(seed, n=12, d=5):
    """Clean and corrupted inputs, V, hidden positions: the arguments of a reconstruction."""
    g = generator(seed, "test")
    hidden = torch.rand(3, n, generator=g) < 0.3
    hidden[1, 0] = True
    return (normal(g, 3, n, d), normal(g, 3, n, d), normal(g, d, d), hidden), g


def assert_same(a, b, relative=1e-10):
    assert float((a - b).abs().max()) <= relative * float(b.abs().max()) + 1e-17


# --- closed forms ------------------------------------------------------------------------------


@given(seed=SEEDS, n=st.integers(2, 9), phi=st.sampled_from(sorted(PHI)), r=st.sampled_from([0, 1]),
       scale=st.sampled_from([0, 0.3, 3]), one=st.booleans())
def test_label_gradient_and_curvature_agree_with_autograd(seed, n, phi, r, scale, one):
    x, head, g = problem(seed, n, 4, phi, r)
    x, y = (x[0], 1) if one else (x, Y)
    S, T = scale * normal(g, n, n), normal(g, n, n)
    loss = partial(label_loss, x, y, head)
    assert_same(label_gradient(x, y, head, S), autograd_gradient(loss, S))
    assert_same(label_curvature(x, y, head, T, S), autograd_curvature(loss, S, T), 1e-9)
    if not scale:
        assert torch.equal(label_gradient(x, y, head), label_gradient(x, y, head, S))


@given(seed=SEEDS, n=st.integers(2, 9), scale=st.sampled_from([0, 0.3, 3]), one=st.booleans())
def test_reconstruction_gradient_agrees_with_autograd(seed, n, scale, one):
    data, g = hiding(seed, n, 4)
    if one:
        x, corrupted, V, hidden = data
        data = x[1], corrupted[1], V, hidden[1]
    S = scale * normal(g, n, n)
    gradient = reconstruction_gradient(*data, S)
    assert_same(gradient, autograd_gradient(partial(reconstruction_loss, *data), S))
    if one:
        assert not gradient[~data[3]].any()  # rows that are not hidden have no target


@pytest.mark.parametrize("r", [0.0, 1.0])
def test_finite_differences_are_a_third_route(r):
    x, head, g = problem(0, 5, 4, "gelu", r)
    S, T, e = normal(g, 5, 5), normal(g, 5, 5), 1e-4
    data, _ = hiding(0, 5, 4)
    for gradient, loss in (
        (label_gradient(x, Y, head, S), partial(label_loss, x, Y, head)),
        (reconstruction_gradient(*data, S), partial(reconstruction_loss, *data)),
    ):
        for i, j in product(range(5), repeat=2):
            step = torch.zeros(5, 5, dtype=torch.float64)
            step[i, j] = e
            slope = (loss(S + step) - loss(S - step)) / (2 * e)
            assert float(gradient[i, j]) == pytest.approx(float(slope), rel=1e-5, abs=1e-9)
    loss = partial(label_loss, x, Y, head)
    bend = (loss(S + e * T) - 2 * loss(S) + loss(S - e * T)) / e**2
    assert float(label_curvature(x, Y, head, T, S)) == pytest.approx(float(bend), rel=1e-5)


def test_label_gradient_at_uniform_attention_by_hand():
    """(ℓ'/n²) 1 (v − v̄)ᵀ, in numpy."""
    x, head, _ = problem(1)
    expected = np.zeros((12, 12))
    for one, y in zip(x.numpy(), Y.tolist(), strict=True):
        v = one @ head.w_v.numpy().T @ head.w.numpy()
        slope = 1 / (1 + np.exp(-v.mean())) - y
        expected += np.outer(np.ones(12), v - v.mean()) * slope / 12**2 / 3
    np.testing.assert_allclose(label_gradient(x, Y, head).numpy(), expected, rtol=1e-12, atol=1e-17)


def test_reconstruction_gradient_at_uniform_attention_by_hand():
    (x, corrupted, V, hidden), _ = hiding(1)
    x, corrupted, hidden = x[1], corrupted[1], hidden[1]
    mean = corrupted.mean(0)
    for i in range(12):
        pull = 2 / (12 * float(hidden.sum())) * (V @ mean - x[i]) * hidden[i]
        expected = torch.stack([pull @ V @ (corrupted[j] - mean) for j in range(12)])
        torch.testing.assert_close(
            reconstruction_gradient(x, corrupted, V, hidden)[i], expected, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("phi", BENT)
def test_written_derivatives(phi):
    h = torch.linspace(-4, 4, 81, dtype=torch.float64, requires_grad=True)
    function, first, second = PHI[phi]
    (slope,) = torch.autograd.grad(function(h).sum(), h, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), h)
    torch.testing.assert_close(first(h), slope, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(second(h), bend, rtol=1e-12, atol=1e-14)


# --- what labels do not see --------------------------------------------------------------------


@pytest.mark.parametrize("phi", ["identity", *BENT])
def test_labels_are_blind_to_equal_column_sums(phi):
    x, head, g = problem(2, 50, 16, phi)
    G = label_gradient(x, Y, head)
    blind = projection(G, column_constant(50, 1000, g))
    assert blind.shape == (1000,)
    assert blind.abs().max() < 1e-12
    for width in (1, 2, 5):
        assert projection(G, band(50, width, wrap=True)).abs() < 1e-12
        assert projection(G, band(50, width, wrap=True, diagonal=False)).abs() < 1e-12
    assert row_spread(G) < 1e-12


@given(seed=SEEDS, n=st.integers(3, 20))
def test_labels_are_blind_to_every_circulant(seed, n):
    x, head, g = problem(seed, n)
    assert projection(label_gradient(x, Y, head), circulant(normal(g, n))).abs() < 1e-12


def test_other_column_sums_are_seen():
    x, head, g = problem(3, 50, 16)
    G, T = label_gradient(x, Y, head), normal(g, 50, 50)
    column = G[0]  # every row is this one
    assert projection(G, T).abs() > 1e-3
    torch.testing.assert_close((G * T).sum(), column @ T.sum(0))
    raised = column_constant(50, 1, g)[0]
    raised[:, 7] += 1
    torch.testing.assert_close((G * raised).sum(), 50 * column[7])


def test_an_open_band_is_seen_through_its_edge_columns_only():
    x, head, _ = problem(4, 50, 16)
    G, T, width = label_gradient(x, Y, head), band(50, 3, wrap=False), 3
    missing = 2 * width + 1 - T.sum(0)
    assert missing.nonzero().flatten().tolist() == [0, 1, 2, 47, 48, 49]
    assert projection(G, T).abs() > 1e-5
    torch.testing.assert_close((G * T).sum(), -(G[0] @ missing))
    closed = T.clone()
    closed[0] += missing  # whatever row the missing weight is put into
    assert projection(G, closed).abs() < 1e-12


@given(seed=SEEDS, strength=st.floats(-5, 5))
def test_circulant_scores_are_doubly_stochastic_and_leave_the_linear_label_loss(seed, strength):
    x, head, g = problem(seed)
    S = strength * circulant(normal(g, 12))
    torch.testing.assert_close(S.softmax(-1).sum(0), torch.ones(12, dtype=torch.float64))
    torch.testing.assert_close(label_loss(x, Y, head, S), label_loss(x, Y, head), rtol=1e-12,
                               atol=1e-15)


def test_reconstruction_and_bent_labels_change_along_a_circulant():
    T = band(12, 1, wrap=True)
    data, _ = hiding(5)
    for strength in (0.1, 1, 5):
        x, bent, _ = problem(5, phi="gelu")
        changes = (
            reconstruction_loss(*data, strength * T) / reconstruction_loss(*data) - 1,
            label_loss(x, Y, bent, strength * T) / label_loss(x, Y, bent) - 1,
        )
        assert all(abs(change) > 1e-5 for change in changes)
    assert projection(reconstruction_gradient(*data), T).abs() > 1e-3


def test_equal_column_sums_are_invisible_at_first_order_only():
    """Unlike a circulant, a random such direction changes the column sums of A at second order."""
    x, head, g = problem(6)
    T = column_constant(12, 1, g)[0]
    curvature = float(label_curvature(x, Y, head, T))
    assert abs(curvature) > 1e-4
    change = label_loss(x, Y, head, 1e-3 * T) - label_loss(x, Y, head)
    assert float(change) == pytest.approx(curvature * 1e-6 / 2, rel=0.02)
    assert abs(label_curvature(x, Y, head, circulant(normal(g, 12)))) < 1e-15


@pytest.mark.parametrize("phi", BENT)
def test_a_nonlinearity_bends_the_loss_along_circulants(phi):
    """First order 0; second (ℓ'/n) Σ_i wᵀD²φ(ū)[δ_i, δ_i], one sequence."""
    x, head, g = problem(7, phi=phi)
    x, T = x[0], circulant(normal(g, 12))
    loss = partial(label_loss, x, 0, head)
    flat = torch.zeros(12, 12, dtype=torch.float64)
    assert abs((autograd_gradient(loss, flat) * T).sum()) < 1e-12
    mean = (x @ head.w_v.T).mean(0)
    slope = torch.sigmoid(PHI[phi][0](mean) @ head.w)
    delta = (T - T.mean(1, keepdim=True)) @ (x @ head.w_v.T) / 12
    expected = slope * (delta**2 @ (PHI[phi][2](mean) * head.w)).mean()
    assert abs(expected) > 1e-4
    assert_same(label_curvature(x, 0, head, T), expected)
    assert_same(autograd_curvature(loss, flat, T), expected)


@pytest.mark.parametrize("phi", BENT)
def test_what_breaks_the_blindness(phi):
    T = band(12, 1, wrap=True)
    x, head, g = problem(8)
    w_v, w = head.w_v, head.w

    def spread(phi, r, scores=None):
        G = label_gradient(x, Y, Readout(w_v, w, phi, r), scores)
        seen = float(projection(G, T).abs())
        assert (row_spread(G) < 1e-12) == (seen < 1e-12)
        return row_spread(G)

    assert spread("identity", 0) < 1e-12
    assert spread("identity", 1) < 1e-12  # an affine path
    assert spread(phi, 0) < 1e-12
    assert spread(phi, 1) > 0.1
    scores = normal(g, 12, 12)
    spreads = [spread("identity", 0, scale * scores) for scale in (0.001, 0.01, 0.1)]
    assert spreads[0] > 1e-4
    assert spreads[1] == pytest.approx(10 * spreads[0], rel=0.05)
    assert spreads[2] == pytest.approx(100 * spreads[0], rel=0.3)


def test_row_spread_is_what_equal_column_sums_can_see():
    g = generator(0)
    G = normal(g, 6, 6)
    best = G - G.mean(0)  # the direction of equal column sums that is nearest to G
    assert row_spread(G) == pytest.approx(float(projection(G, best)))
    assert row_spread(best) == pytest.approx(1)
    assert projection(G, column_constant(6, 200, g)).abs().max() < row_spread(G)


def test_position_block_needs_centred_positions():
    x, head, _ = problem(9, 20, 8)
    P = sinusoidal(20, 8)
    G = label_gradient(x, Y, head)
    scale = float(P.norm() ** 2 * G.norm())
    assert float(position_block(G, P).norm()) < 1e-12 * scale
    assert float(position_block(G, P, centre=False).norm()) > 1e-2 * scale
    data, _ = hiding(9, 20, 8)
    seen = reconstruction_gradient(*data)
    assert float(position_block(seen, P).norm()) > 1e-2 * float(P.norm() ** 2 * seen.norm())
    # it is ∂L/∂M for scores P M Pᵀ
    P = P.double() - P.double().mean(0)
    automatic = autograd_gradient(
        lambda M: reconstruction_loss(*data, P @ M @ P.T), torch.zeros(8, 8))
    assert_same(position_block(seen, P), automatic)


# --- directions ----------------------------------------------------------------------------------


def test_directions():
    T = column_constant(7, 30, generator(1))
    sums = T.sum(1)
    assert T.shape == (30, 7, 7)
    torch.testing.assert_close(sums, sums[:, :1].expand(-1, 7))
    assert sums[:, 0].std() > 1  # not all of them zero
    assert circulant(torch.tensor([1, 2, 3])).tolist() == [[1, 2, 3], [3, 1, 2], [2, 3, 1]]
    assert band(4, 1, wrap=False).tolist() == [
        [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert band(4, 1, wrap=True, diagonal=False).tolist() == [
        [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]
    assert torch.equal(band(9, 2, wrap=True), circulant(band(9, 2, wrap=True)[0]))
    assert torch.equal(band(5, 0, wrap=True), torch.eye(5, dtype=torch.float64))


def test_projection_is_a_cosine():
    G = normal(generator(2), 4, 4)
    assert projection(G, torch.stack([3 * G, -G])).tolist() == pytest.approx([1, -1])
    assert projection(torch.zeros(4, 4), G) == 0
    with pytest.raises(ConfigError, match="zero everywhere"):
        projection(G, torch.stack([G, 0 * G]))


def test_errors():
    x, head, _ = problem(0)
    with pytest.raises(ConfigError, match=r"need scores \(12, 12\), found \(5, 5\)"):
        label_gradient(x, Y, head, torch.zeros(5, 5))
    with pytest.raises(ConfigError, match="did you mean 'gelu'"):
        Readout(head.w_v, head.w, "gelo")
    (x, corrupted, V, hidden), _ = hiding(0)
    for function in (reconstruction_loss, reconstruction_gradient):
        with pytest.raises(ConfigError, match="at least one hidden"):
            function(x, corrupted, V, hidden & False)
    with pytest.raises(ConfigError, match=r"mask_ratio must be in \[0, 1\), found 1"):
        hidden_covariances(neighbor_covariances(NeighborConfig()), 1)


# --- the population ------------------------------------------------------------------------------

SMALL, RATIO = NeighborConfig(length=3, n_symbols=5, p=0.7, steps=(1, 3)), 0.3


@pytest.fixture(scope="module")
def everything():
    """Every sequence and mask of SMALL: tokens, hidden, and the probability of both."""
    n, m, p = SMALL.length, SMALL.n_symbols, SMALL.p
    rows = []
    for tokens in product(range(m), repeat=n):
        chance = 0.0
        for d in SMALL.steps:
            walk = [p * ((b - a - d) % m == 0) + (1 - p) / m for a, b in pairwise(tokens)]
            chance += np.prod(walk) / m / 2
        for mask in product([False, True], repeat=n):
            hiding = RATIO ** sum(mask) * (1 - RATIO) ** (n - sum(mask))
            rows.append((tokens, mask, chance * hiding))
    tokens, mask, chance = (torch.tensor(column) for column in zip(*rows, strict=True))
    chance = chance.double()
    assert float(chance.sum()) == pytest.approx(1)
    return centred_one_hot(tokens, m), mask, chance


def by_pairs(covariances):
    n = len(covariances) // 2 + 1
    return torch.stack([covariances[n - 1 - i : 2 * n - 1 - i] for i in range(n)])


def test_covariances_by_enumeration(everything):
    x, hidden, chance = everything
    given_i = chance[:, None] * hidden / RATIO
    corrupted = x * ~hidden[..., None]
    C = torch.einsum("si,sia,sjb->ijab", given_i, x, corrupted)
    exact = by_pairs(hidden_covariances(neighbor_covariances(SMALL), RATIO))
    torch.testing.assert_close(exact, C, rtol=0, atol=1e-15)
    assert float(torch.einsum("s,sja->ja", chance, corrupted).abs().max()) < 1e-15  # centred
    clean = by_pairs(neighbor_covariances(SMALL))
    of_pairs = torch.einsum("s,sia,sjb->ijab", chance, x, x)
    torch.testing.assert_close(clean, of_pairs, rtol=0, atol=1e-15)


def test_covariances_by_monte_carlo():
    config, g = NeighborConfig(length=5), generator(3)
    x = centred_one_hot(sample(config, 40_000, g).x, 10)
    hidden = torch.rand(x.shape[:2], generator=g) < 0.3
    exact = by_pairs(hidden_covariances(neighbor_covariances(config), 0.3))
    i = 1
    seen = x[hidden[:, i]], (x * ~hidden[..., None])[hidden[:, i]]
    for j in range(5):
        products = seen[0][:, i, :, None] * seen[1][:, j, None, :]
        error = products.std(0) / len(products) ** 0.5
        assert ((products.mean(0) - exact[i, j]).abs() <= 5 * error).all()
        if j == 2:
            assert (exact[i, j].abs() > 10 * error).any()  # it would see a wrong value


def test_fitted_values_are_least_squares(everything):
    x, hidden, chance = everything
    pooled = (x * ~hidden[..., None]).mean(1)
    weight = (chance[:, None] * hidden).sqrt()
    from_pooled = (weight[..., None] * pooled[:, None]).flatten(0, 1)
    targets = (weight[..., None] * x).flatten(0, 1)
    V = np.linalg.lstsq(from_pooled.numpy(), targets.numpy(), rcond=1e-10)[0].T
    clean = neighbor_covariances(SMALL)
    np.testing.assert_allclose(fitted_values(clean, RATIO).numpy(), V, rtol=0, atol=1e-10)
    first = from_pooled.T @ targets / RATIO / SMALL.length  # given that i is hidden, mean over i
    torch.testing.assert_close(first_values(clean, RATIO), first.T, rtol=0, atol=1e-15)


def test_expected_force_is_the_part_of_the_mean_gradient_that_knows_the_target(everything):
    """Linear in V, where the shrinkage of the guess is quadratic: the odd part, row-centred."""
    x, hidden, chance = everything
    n, V = SMALL.length, normal(generator(4), 5, 5)
    odd = torch.zeros(n, n, dtype=torch.float64)
    for one, mask, weight in zip(x, hidden, chance, strict=True):
        if mask.any():
            gradient = partial(reconstruction_gradient, one, one * ~mask[:, None], hidden=mask)
            odd += weight / RATIO * mask.sum() * (gradient(values=V) - gradient(values=-V)) / 2
    force = expected_force(by_pairs(hidden_covariances(neighbor_covariances(SMALL), RATIO)), V)
    force = force - force.mean(1, keepdim=True)
    assert force.abs().max() > 0.01
    torch.testing.assert_close(-n / 2 * odd, force, rtol=0, atol=1e-14)


@pytest.mark.parametrize("steps", [(1, 3), (1, -1)])
@pytest.mark.parametrize("fit", [first_values, fitted_values])
def test_force_is_towards_the_neighbours_once_values_fit(steps, fit):
    clean = neighbor_covariances(NeighborConfig(steps=steps))
    V = fit(clean, 0.15)
    distances, force = force_profile(clean, V, 0.15, reach=4)
    assert distances == list(range(-4, 5))
    assert force == pytest.approx(force[::-1])  # a mean over both labels is all that V can use
    assert force[4] == 0  # the hidden token itself
    assert force[5] > 0
    assert force[5] > 2 * abs(force[6])
    assert force[5] == max(force)
    eye = torch.eye(10, dtype=torch.float64)
    assert force_profile(clean, eye, 0.15, reach=4)[1][5] == pytest.approx(-0.85 * 0.8 / 10)
    # the sum over all pairs is positive for either V
    counts = torch.tensor([100.0 - abs(k) for k in range(-99, 100)])
    assert counts @ torch.tensor(force_profile(clean, V, 0.15, reach=500)[1]) > 0


def test_known_forces_of_first_values():
    """d = ±1, no other token hidden: +0.019, +0.007, ≈ 0 at distances 1, 2, 3, as measured once."""
    clean = neighbor_covariances(NeighborConfig(steps=(1, -1)))
    V = first_values(clean, 0)
    force = force_profile(clean, 100 * V, 0, reach=3)[1]
    assert force[4:] == pytest.approx([0.019, 0.007, 0], abs=1.5e-3)
    total = expected_force(by_pairs(hidden_covariances(clean, 0)), V).sum()
    assert float(total) == pytest.approx(100**2 * float(V.norm() ** 2))


def test_the_gradient_of_sampled_sequences_pushes_as_expected():
    config, g = NeighborConfig(length=30), generator(5)
    clean = neighbor_covariances(config)
    x = centred_one_hot(sample(config, 4000, g).x, 10)
    hidden = torch.rand(x.shape[:2], generator=g) < 0.15
    for V, sign in ((fitted_values(clean, 0.15), 1), (torch.eye(10, dtype=torch.float64), -1)):
        G = reconstruction_gradient(x, x * ~hidden[..., None], V, hidden)
        lags = [-float(G.diagonal(k).mean()) * 30**2 / 2 for k in range(-6, 7)]
        _, force = force_profile(clean, V, 0.15, reach=6)
        assert sign * lags[5] > 0
        assert sign * lags[7] > 0
        off = [k for k in range(13) if k != 6]  # the hidden column has a shrinkage of its own
        assert np.corrcoef([lags[k] for k in off], [force[k] for k in off])[0, 1] > 0.97


# --- the table -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_exact_checks_hold(seed):
    table = exact_checks(seed)
    assert list(table.columns) == ["quantity", "value", "bound", "holds"]
    assert table["holds"].all(), table[~table["holds"]].to_string()
    assert table["quantity"].is_unique
    assert table["value"].map(np.isfinite).all()
    assert exact_checks(seed).equals(table)


@pytest.mark.parametrize(
    ("name", "wrong", "rows"),
    [("label_gradient", lambda f: lambda *a: f(*a) + 1e-9 * torch.eye(20), "labels: projection"),
     ("label_curvature", lambda f: lambda *a: 2 * f(*a), "label curvature"),
     ("reconstruction_gradient", lambda f: lambda *a: -f(*a), "reconstruction")])
def test_exact_checks_can_fail(monkeypatch, name, wrong, rows):
    monkeypatch.setattr(checks, name, wrong(getattr(checks, name)))
    table = exact_checks(n=20, d=8, count=50)
    assert table.loc[~table["holds"], "quantity"].str.startswith(rows).any()
