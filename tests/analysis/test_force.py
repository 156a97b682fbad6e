"""Forces on attention: against finite differences, and on losses whose answers are plain."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sptlib.analysis.force import REACH, force, nearness, probed
from sptlib.config import ModelConfig
from sptlib.errors import ConfigError
from sptlib.masking import reconstruction_loss
from sptlib.model import Transformer

B, T, V = 6, 7, 5
LENGTHS = torch.tensor([7, 3, 5, 6, 2, 7])


def make(max_len: int = T, kind: str = "tokens", **config) -> Transformer:
    """A tiny model in double precision, away from its start."""
    torch.manual_seed(0)
    config = {"width": 8, "n_layers": 2, "n_heads": 2, **config}
    model = Transformer(
        ModelConfig(**config), kind=kind, n_classes=3, max_len=max_len,
        vocab_size=V if kind == "tokens" else 0, scale=4.0,
    ).double()  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def batch(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(V, (B, T), generator=g)
    return x, torch.randint(3, (B,), generator=g), torch.rand(B, T, generator=g) < 0.4


def label_loss(model: Transformer, seed: int = 0, length: Tensor | None = None) -> Tensor:
    x, y, _ = batch(seed)
    return F.cross_entropy(model.classify(x, length), y)


def reconstruction(model: Transformer, seed: int = 0, length: Tensor | None = None) -> Tensor:
    x, _, hidden = batch(seed)
    if length is not None:
        hidden = hidden & (torch.arange(T) < length[:, None])
    return reconstruction_loss(model.reconstruct(x, hidden, length), x, hidden, model.scale)


LOSSES = {"label": label_loss, "reconstruction": reconstruction}


def biased(model: Transformer, layer: int, bias_HTT: Tensor, loss, length) -> float:
    """The loss with this added to the scores of a layer, by the way that encodings take."""
    attention = model.blocks[layer].attention
    before = attention.bias
    attention.bias = bias_HTT if before is None else before + bias_HTT
    try:
        with torch.no_grad():
            return float(loss(model, 0, length))
    finally:
        attention.bias = before


# --- the gradient -------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [None, LENGTHS], ids=["full", "padded"])
@pytest.mark.parametrize("positions", ["sinusoidal", "rope", "alibi"])
@pytest.mark.parametrize("name", LOSSES)
def test_the_probes_gradient_equals_finite_differences(name, positions, length):
    model, loss, small = make(positions=positions, proximity_bias=0.1), LOSSES[name], 1e-5
    with probed(model) as probes:
        found = torch.autograd.grad(loss(model, 0, length), probes)
    pairs = [(0, 0), (0, 1), (3, 2), (4, 1), (6, 5), (2, 6)]
    assert max(float(g.abs().max()) for g in found) > 1e-3
    for layer, head, (i, j) in product(range(2), range(2), pairs):
        bias = torch.zeros(2, T, T, dtype=torch.float64)
        bias[head, i, j] = small
        slope = biased(model, layer, bias, loss, length) - biased(model, layer, -bias, loss, length)
        assert float(found[layer][head, i, j]) == pytest.approx(slope / (2 * small), abs=1e-8)


@pytest.mark.parametrize("name", LOSSES)
def test_a_force_is_how_fast_the_loss_falls_when_attention_turns_near(name):
    model, loss, small = make(n_layers=1), LOSSES[name], 1e-5
    found = force(model, [lambda: loss(model)] * 2)
    towards = nearness(T).expand(2, T, T) / 2**0.5  # norm 1 over both heads
    fall = biased(model, 0, -small * towards, loss, None) - biased(
        model, 0, small * towards, loss, None
    )
    assert found["force"] == pytest.approx(fall / (2 * small), abs=1e-9)
    assert abs(found["force"]) > 1e-5
    assert found["noise"] == 0.0
    assert found["cosine"] == pytest.approx(found["force"] / found["norm"])


def test_mean_and_noise_are_over_batches():
    model = make()
    single = [force(model, [lambda s=s: label_loss(model, s)] * 2)["force"] for s in range(3)]
    found = force(model, [lambda s=s: label_loss(model, s) for s in range(3)])
    assert found["force"] == pytest.approx(sum(single) / 3)
    assert found["noise"] == pytest.approx(float(torch.tensor(single).double().std()))
    norms = [force(model, [lambda s=s: label_loss(model, s)] * 2)["norm"] for s in range(3)]
    assert found["norm"] < max(norms), "of the mean gradient, not the mean of norms"


def test_shorter_sequences_leave_the_rest_of_the_probe_alone():
    long = make(max_len=T + 4)
    with probed(long) as probes:
        assert [p.shape for p in probes] == [(2, T + 4, T + 4)] * 2
        found = torch.autograd.grad(label_loss(long), probes)
    for gradient in found:
        assert float(gradient[:, :T, :T].abs().max()) > 0
        assert float(gradient[:, T:].abs().max()) == float(gradient[:, :, T:].abs().max()) == 0


# --- the direction ------------------------------------------------------------------------------


def by_hand(n: int, distance: int, side: int) -> Tensor:
    near = torch.zeros(n, n, dtype=torch.float64)
    for i, j in product(range(n), range(n)):
        apart = abs(i - j)
        if side:
            apart = max(abs(i // side - j // side), abs(i % side - j % side))
        near[i, j] = 1 <= apart <= distance
    centred = torch.eye(n, dtype=torch.float64) - 1 / n
    near = centred @ near @ centred
    return near / near.norm()


@pytest.mark.parametrize(
    ("n", "distance", "side"),
    [(12, 2, 0), (12, 5, 0), (9, 1, 3), (16, 1, 4), (16, 2, 4), (12, 1, 4), (2, 2, 0), (3, 2, 0)],
)
def test_nearness_is_centred_and_of_norm_one(n, distance, side):
    found = nearness(n, distance, side)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, by_hand(n, distance, side))
    torch.testing.assert_close(found, found.T)
    assert float(found.norm()) == pytest.approx(1)
    for axis in (0, 1):
        torch.testing.assert_close(found.sum(axis), torch.zeros(n).double(), atol=1e-12, rtol=0)
    assert float(found.diagonal().max()) < float(found.max()), "its own place is not near"


def test_near_in_the_plane_is_not_near_in_the_row():
    image, row = nearness(16, 1, 4), nearness(16, 1)
    assert image[5, 9] > 0 > row[5, 9]  # the pixel below
    assert image[3, 4] < 0 < row[3, 4]  # the end of a row and the start of the next


@pytest.mark.parametrize(("n", "distance"), [(1, 2), (5, 0), (1, 0)])
def test_where_nothing_is_near_there_is_no_direction(n, distance):
    assert torch.equal(nearness(n, distance), torch.zeros(n, n, dtype=torch.float64))


# --- losses whose answers are plain -------------------------------------------------------------


def mass(model: Transformer, distance: int = 2, side: int = 0, seed: int = 0) -> Tensor:
    """How much the attention of all layers is on near tokens, to be differentiated."""
    x = batch(seed)[0]
    near = (by_hand(T, distance, side) > 0) if side else near_pairs(distance)
    h, found = model._embed(x, None), torch.zeros((), dtype=torch.float64)
    for block in model.blocks:
        found = found + (block.attention.weights(block.norm1(h)) * near).sum(-1).mean()
        h = block(h)
    return found


def near_pairs(distance: int) -> Tensor:
    apart = (torch.arange(T)[:, None] - torch.arange(T)).abs()
    return (apart >= 1) & (apart <= distance)


def test_a_loss_that_wants_near_attention_has_a_positive_force():
    model = make()
    wants = force(model, [lambda s=s: -mass(model, seed=s) for s in range(3)])
    fears = force(model, [lambda s=s: mass(model, seed=s) for s in range(3)])
    assert wants["force"] > 0.05
    assert wants["cosine"] > 0.3
    assert wants["noise"] > 0
    for name in ("force", "cosine"):
        assert fears[name] == pytest.approx(-wants[name])
    assert [-x for x in fears["lags"]] == pytest.approx(wants["lags"])
    assert fears["columns"] == pytest.approx(wants["columns"])


def of_probes(model: Transformer, weight_TT: Tensor):
    """A loss whose gradient with respect to every probe is this."""
    return lambda: sum((block.attention.probe * weight_TT).sum() for block in model.blocks)


def test_identical_rows_are_columns_alone_and_have_no_force():
    model = make()
    row = torch.randn(T, generator=torch.Generator().manual_seed(1)).double()
    found = force(model, [of_probes(model, row.expand(T, T))] * 2)
    assert found["columns"] == pytest.approx(1.0)
    assert found["force"] == pytest.approx(0.0, abs=1e-12)
    assert found["norm"] == pytest.approx(float(row.norm()) * (2 * 2 * T) ** 0.5)  # layers × heads
    # identical columns are something else; half of the square may be rows
    assert force(model, [of_probes(model, row[:, None].expand(T, T))] * 2)["columns"] < 0.9
    centred = row - row.mean()
    mixed = row.expand(T, T) / row.norm() + centred[:, None].expand(T, T) / centred.norm()
    assert force(model, [of_probes(model, mixed)] * 2)["columns"] == pytest.approx(0.5)


def test_the_direction_itself_has_cosine_one():
    for distance, side in ((2, 0), (1, 0), (1, 3)):
        model = make()
        wanted = of_probes(model, -nearness(T, distance, side))
        found = force(model, [wanted] * 2, distance, side)
        assert found["cosine"] == pytest.approx(1.0)
        assert found["force"] == pytest.approx(found["norm"]) == pytest.approx(4**0.5)
        assert found["columns"] == pytest.approx(0.0, abs=1e-12)
        assert force(model, [wanted] * 2, 3, 0)["cosine"] < 0.9


@pytest.mark.parametrize("d", [-3, 0, 5])
def test_lags_are_key_minus_query(d):
    model = make()
    weight = torch.zeros(T, T, dtype=torch.float64)
    for i, j in product(range(T), range(T)):
        weight[i, j] = -1.0 if j - i == d else 0.0  # it wants attention there
    lags = force(model, [of_probes(model, weight)] * 2)["lags"]
    reach = T - 1
    assert len(lags) == 2 * reach + 1
    assert lags == [1.0 if k == d else 0.0 for k in range(-reach, reach + 1)]


def test_lags_reach_ten_places():
    model = make(max_len=30)
    assert len(force(model, [lambda: label_loss(model)] * 2)["lags"]) == 2 * REACH + 1 == 21


def test_a_loss_that_does_not_see_attention_has_no_force():
    model = make()
    found = force(model, [of_probes(model, torch.zeros(T, T))] * 2)
    assert found.pop("lags") == [0.0] * (2 * T - 1)
    assert set(found.values()) == {0.0}


# --- it leaves the model alone ------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_batches_are_refused(n):
    model = make()
    with pytest.raises(ConfigError, match=f"at least two batches, found {n}"):
        force(model, [lambda: label_loss(model)] * n)
    assert all(block.attention.probe is None for block in model.blocks)


def test_the_probe_is_removed_even_when_the_loss_raises():
    model = make()

    def broken() -> Tensor:
        assert all(block.attention.probe is not None for block in model.blocks)
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        force(model, [broken, broken])
    assert all(block.attention.probe is None for block in model.blocks)


def test_weights_gradients_and_outputs_stay_as_they_are():
    model = make(positions="alibi")
    model.blocks[0].mlp.requires_grad_(False)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = batch(0)[0]
    out = model.classify(x).detach()
    with torch.no_grad():  # gradients are taken all the same
        found = force(model, [lambda s=s: label_loss(model, s) for s in range(2)])
        assert not torch.is_grad_enabled()
    assert found["norm"] > 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.blocks[0].mlp[0].weight.requires_grad
    assert model.blocks[1].mlp[0].weight.requires_grad
    assert set(model.state_dict()) == set(before)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(block.attention.probe is None for block in model.blocks)
    assert torch.equal(model.classify(x), out)
    with probed(model):  # zeros change nothing
        torch.testing.assert_close(model.classify(x), out)


def test_pixels_have_forces_as_well():
    model = make(kind="pixels")
    for loss in LOSSES.values():
        found = force(model, [lambda s=s, loss=loss: loss(model, s) for s in range(2)])
        assert found["norm"] > 0
        assert found["noise"] > 0
