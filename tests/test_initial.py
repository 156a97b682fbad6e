"""The closed-form starts of attention, each against its defining property."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sptlib import initial, tasks
from sptlib.config import ModelConfig
from sptlib.model import Attention, Transformer, build
from sptlib.tasks import NeighborConfig
from sptlib.transfer import group_of

D = 64
INITS = ("mimetic", "identity", "uniform")


def make(init: str, n_heads: int = 1, width: int = 16, **config) -> Transformer:
    data = tasks.load(NeighborConfig(length=12, n_train=8, n_val=4, n_test=4), 0)
    return build(ModelConfig(width=width, n_heads=n_heads, init=init, **config), data, 0)


def attention(init: str, n_heads: int) -> Attention:
    return make(init, n_heads, width=D).blocks[0].attention


def weight(linear: nn.Linear) -> np.ndarray:
    return linear.weight.detach().double().numpy()


def products(layer: Attention) -> list[np.ndarray]:
    """W_Qᵀ W_K of each head, (D, D)."""
    q, k = (weight(m).reshape(layer.n_heads, -1, D) for m in (layer.q, layer.k))
    return [a.T @ b for a, b in zip(q, k, strict=True)]


@pytest.fixture
def drawn(monkeypatch) -> list[Tensor]:
    """What `mimetic` approximates from now on: one matrix per head, then that of the values."""
    found, original = [], initial._noisy_identity
    monkeypatch.setattr(
        initial, "_noisy_identity", lambda *a: (found.append(original(*a)), found[-1])[1]
    )
    return found


@pytest.mark.parametrize("n_heads", [1, 4])
def test_mimetic_products_are_the_nearest_of_their_rank(drawn, n_heads):
    """Eckart & Young (1936): the error is what the singular values beyond the rank amount to."""
    layer = attention("mimetic", n_heads)
    *scores, values = (m.double().numpy() for m in drawn)
    assert len(scores) == n_heads
    for wanted, found in zip(scores, products(layer), strict=True):
        # by another route: the squared singular values are eigenvalues of the Gram matrix
        squares = np.sort(np.linalg.eigvalsh(wanted.T @ wanted))
        assert np.linalg.matrix_rank(found, tol=1e-4) == D // n_heads
        error = ((found - wanted) ** 2).sum()
        assert error == pytest.approx(squares[: D - D // n_heads].sum(), rel=1e-4, abs=1e-6)
    assert weight(layer.o) @ weight(layer.v) == pytest.approx(values, abs=1e-4)


def test_mimetic_draws_identity_and_noise(drawn):
    attention("mimetic", 4)
    for matrix, diagonal, noise in zip(drawn, [0.7] * 4 + [-0.4], [0.7] * 4 + [0.4], strict=True):
        found = matrix.numpy()
        off = found[~np.eye(D, dtype=bool)]
        assert found.diagonal().mean() == pytest.approx(diagonal, abs=4 * noise / D)
        assert off.mean() == pytest.approx(0, abs=4 * noise / D**1.5)
        assert off.std() == pytest.approx(noise / D**0.5, rel=0.05)
    assert len({float(matrix[0, 1]) for matrix in drawn}) == 5


@pytest.mark.parametrize("n_heads", [1, 4])
def test_mimetic_attends_to_what_is_alike_and_corrects_it(n_heads):
    layer = attention("mimetic", n_heads)
    assert all(np.trace(found) > 0.1 * D for found in products(layer))
    assert np.trace(weight(layer.o) @ weight(layer.v)) == pytest.approx(-0.4 * D, rel=0.2)
    for linear in (layer.q, layer.k):
        assert not linear.bias.any()
    for a, b in ((layer.q, layer.k), (layer.o, layer.v)):  # neither factor carries it alone
        assert np.linalg.norm(weight(a)) == pytest.approx(np.linalg.norm(weight(b)), rel=1e-4)


@pytest.mark.parametrize("n_heads", [1, 4])
def test_identity_compares_features(n_heads):
    layer = attention("identity", n_heads)
    x = torch.randn(2, 5, D)
    parts = x.view(2, 5, n_heads, D // n_heads)
    scores = torch.einsum("bihk,bjhk->bhij", parts, parts) / (D // n_heads) ** 0.5
    assert torch.allclose(layer.weights(x), scores.softmax(-1), atol=1e-6)


def test_identity_starts_near_the_diagonal_with_sinusoids():
    """Scores fall with the distance; at PyTorch's start they do not."""
    x = torch.zeros(1, 12, dtype=torch.uint8)  # one token everywhere: positions alone tell
    maps = make("identity", width=64).attention_maps(x)[0, 0, 0]
    near, far = maps.diagonal(1).mean(), maps.diagonal(6).mean()
    assert near > 1.5 * far
    assert (maps.argmax(-1) == torch.arange(12)).all()


@pytest.mark.parametrize("n_heads", [1, 4])
def test_uniform_attends_to_all_alike(n_heads):
    maps = make("uniform", n_heads, n_layers=2).attention_maps(torch.arange(24).view(2, 12) % 10)
    assert maps.shape == (2, 2, n_heads, 12, 12)
    assert torch.equal(maps, torch.full_like(maps, 1 / 12))


@pytest.mark.parametrize("n_heads", [1, 4])
@pytest.mark.parametrize("init", INITS)
def test_attention_alone_differs_from_pytorch_s_start(init, n_heads):
    plain = make("torch", n_heads, n_layers=2).state_dict()
    changed = {
        name
        for name, value in make(init, n_heads, n_layers=2).state_dict().items()
        if not torch.equal(value, plain[name])
    }
    groups = {"qk", "vo"} if init == "mimetic" else {"qk"}
    assert {group_of(name) for name in changed} == groups
    expected = {name for name in plain if group_of(name) in groups}
    assert changed == {n for n in expected if not (group_of(n) == "vo" and n.endswith("bias"))}


@pytest.mark.parametrize("n_heads", [1, 4])
@pytest.mark.parametrize("init", INITS)
def test_every_start_can_be_trained(init, n_heads):
    """Labels reach all of attention but queries and keys at zero, which are a saddle."""
    model = make(init, n_heads)
    x = torch.randint(10, (6, 12), generator=torch.Generator().manual_seed(0))
    model.classify(x).square().sum().backward()
    layer = model.blocks[0].attention
    for linear in (layer.q, layer.k, layer.v, layer.o):
        assert torch.isfinite(linear.weight.grad).all()
    assert bool(layer.v.weight.grad.any())
    assert bool(layer.q.weight.grad.any()) is (init != "uniform")


def test_the_same_stream_gives_the_same_start():
    a, b = (make("mimetic", 2).state_dict() for _ in range(2))
    assert all(torch.equal(a[name], b[name]) for name in a)
