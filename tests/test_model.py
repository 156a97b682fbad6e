"""The model: against PyTorch's encoder, against its attention maps, and what padding may change."""

import pytest
import torch
from torch import nn

from sptlib import tasks
from sptlib.config import ModelConfig
from sptlib.errors import ConfigError
from sptlib.model import Transformer, build, keep_mask, pool
from sptlib.tasks import ImageConfig, NeighborConfig

POSITIONS = ("sinusoidal", "learned", "rope", "alibi", "none")
POOLINGS = ("mean", "max", "last")
B, T, V = 5, 13, 7
LENGTHS = torch.tensor([13, 1, 7, 12, 2])


def make(kind: str = "tokens", max_len: int = T, **config) -> Transformer:
    """A model in which every parameter, norms and biases included, is away from its default."""
    torch.manual_seed(0)
    config = {"width": 16, "n_layers": 2, "n_heads": 4, **config}
    model = Transformer(
        ModelConfig(**config),
        kind=kind,
        n_classes=3,
        max_len=max_len,
        vocab_size=V if kind == "tokens" else 0,
        scale=16.0,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def inputs(kind: str, seed: int = 1) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(V if kind == "tokens" else 17, (B, T), generator=g).to(torch.uint8)


# --- two routes ---------------------------------------------------------------------------------


def torch_encoder(model: Transformer, config: ModelConfig) -> nn.TransformerEncoder:
    """PyTorch's encoder with the weights of ours."""
    layer = nn.TransformerEncoderLayer(
        config.width,
        config.n_heads,
        int(config.width * config.mlp_ratio),
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=True,
    )
    encoder = nn.TransformerEncoder(
        layer, config.n_layers, norm=nn.LayerNorm(config.width), enable_nested_tensor=False
    )
    with torch.no_grad():
        for theirs, ours in zip(encoder.layers, model.blocks, strict=True):
            a = ours.attention
            theirs.self_attn.in_proj_weight.copy_(torch.cat([a.q.weight, a.k.weight, a.v.weight]))
            theirs.self_attn.in_proj_bias.copy_(torch.cat([a.q.bias, a.k.bias, a.v.bias]))
            for mine, other in (
                (theirs.self_attn.out_proj, a.o),
                (theirs.linear1, ours.mlp[0]),
                (theirs.linear2, ours.mlp[2]),
                (theirs.norm1, ours.norm1),
                (theirs.norm2, ours.norm2),
            ):
                mine.load_state_dict(other.state_dict())
        encoder.norm.load_state_dict(model.norm.state_dict())
    return encoder.eval()


@pytest.mark.parametrize("length", [None, LENGTHS], ids=["full", "padded"])
@pytest.mark.parametrize(
    ("n_layers", "n_heads", "mlp_ratio"), [(1, 1, 2.0), (2, 4, 1.0), (4, 8, 4.0)]
)
def test_equals_torch_transformer_encoder(n_layers, n_heads, mlp_ratio, length):
    config = ModelConfig(width=32, n_layers=n_layers, n_heads=n_heads, mlp_ratio=mlp_ratio)
    model = make(**{f: getattr(config, f) for f in ("width", "n_layers", "n_heads", "mlp_ratio")})
    x, keep = inputs("tokens"), keep_mask(inputs("tokens"), length)
    ours = model(x, None, length)
    theirs = torch_encoder(model, config)(
        model._embed(x, None), src_key_padding_mask=None if keep is None else ~keep
    )
    valid = slice(None) if keep is None else keep
    torch.testing.assert_close(ours[valid], theirs[valid], rtol=1e-5, atol=1e-5)
    assert ours.std() > 0.1  # it is not the comparison of two constants


@pytest.mark.parametrize("length", [None, LENGTHS], ids=["full", "padded"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_maps_times_values_are_what_attention_puts_out(positions, length):
    model, x = make(positions=positions), inputs("tokens")
    maps, keep = model.attention_maps(x, None, length), keep_mask(x, length)
    assert maps.shape == (2, B, 4, T, T)
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, B, 4, T))
    if keep is not None:
        assert float(maps.masked_select(~keep[None, :, None, None, :]).abs().max()) == 0.0
    h = model._embed(x, None)
    for layer, block in enumerate(model.blocks):
        attention, normed = block.attention, block.norm1(h)
        values = attention.v(normed).view(B, T, 4, 4).transpose(1, 2)
        by_maps = attention.o((maps[layer] @ values).transpose(1, 2).flatten(2))
        torch.testing.assert_close(by_maps, attention(normed, keep), rtol=1e-5, atol=1e-5)
        h = h + by_maps
        h = h + block.mlp(block.norm2(h))
    torch.testing.assert_close(model.norm(h), model(x, None, length), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("positions", POSITIONS)
def test_order_matters_exactly_when_positions_are_given(positions):
    model, x = make(positions=positions), inputs("tokens")
    order = torch.randperm(T, generator=torch.Generator().manual_seed(3))
    same = torch.allclose(model.classify(x), model.classify(x[:, order]), atol=1e-5)
    assert same is (positions == "none")


@pytest.mark.parametrize("positions", ["rope", "alibi"])
def test_relative_positions_matter_through_their_distance_only(positions):
    """In a sequence of equal tokens, weight ratios are functions of key − query."""
    model = make(positions=positions, n_layers=1)
    with torch.no_grad():
        model.blocks[0].attention.q.weight.mul_(3)  # far from uniform
    logs = model.attention_maps(torch.full((1, T), 2, dtype=torch.uint8))[0, 0].log()
    ratio = logs - logs.diagonal(dim1=1, dim2=2)[..., None]
    for distance in range(1 - T, T):
        along = ratio.diagonal(distance, 1, 2)
        torch.testing.assert_close(along, along[:, :1].expand_as(along), rtol=1e-4, atol=1e-4)
    assert float(ratio.std()) > 0.1


# --- no leak ------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [None, LENGTHS], ids=["full", "padded"])
@pytest.mark.parametrize("kind", ["tokens", "pixels"])
def test_hidden_values_do_not_reach_the_reconstruction(kind, length):
    model, x, other = make(kind), inputs(kind), inputs(kind, seed=2)
    hidden = torch.rand(B, T, generator=torch.Generator().manual_seed(5)) < 0.4
    changed = torch.where(hidden, other, x)
    assert not torch.equal(changed, x)
    before, after = (model.reconstruct(v, hidden, length) for v in (x, changed))
    assert torch.equal(before, after)
    assert torch.equal(
        model.attention_maps(x, hidden, length), model.attention_maps(changed, hidden, length)
    )
    visible = torch.where(hidden, x, other)
    assert not torch.allclose(before, model.reconstruct(visible, hidden, length))


@pytest.mark.parametrize("kind", ["tokens", "pixels"])
def test_a_hidden_value_differs_from_every_visible_one(kind):
    model, x = make(kind, positions="none"), torch.arange(V)[None].to(torch.uint8)
    hidden = torch.zeros(1, V, dtype=torch.bool)
    seen = model._embed(x, hidden)
    assert torch.equal(seen, model._embed(x, None))  # hiding nothing is the classifier's view
    masked = model._embed(x, ~hidden)
    assert (masked == masked[:, :1]).all()
    assert (seen - masked).abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("kind", ["tokens", "pixels"])
def test_padding_does_not_reach_the_class(kind, positions, pooling):
    model = make(kind, max_len=2 * T, positions=positions, pooling=pooling)
    x, other = inputs(kind), inputs(kind, seed=2)
    keep = keep_mask(x, LENGTHS)
    before = model.classify(x, LENGTHS)
    # another content: not a bit differs
    assert torch.equal(before, model.classify(torch.where(keep, x, other), LENGTHS))
    # another amount: equal up to the order of summation
    longer = torch.cat([x, other], dim=1)
    torch.testing.assert_close(model.classify(longer, LENGTHS), before, rtol=1e-5, atol=1e-5)
    for row, n in enumerate(LENGTHS.tolist()):
        alone = model.classify(x[row : row + 1, :n])
        torch.testing.assert_close(alone, before[row : row + 1], rtol=1e-5, atol=1e-5)
    full = torch.full((B,), T)
    torch.testing.assert_close(model.classify(x, full), model.classify(x), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(model.classify(x), before, atol=1e-3)


def test_pool_reads_the_valid_positions():
    h = torch.tensor([[[1.0], [5.0], [3.0]], [[-2.0], [-4.0], [9.0]]])
    keep = torch.tensor([[True, True, True], [True, True, False]])
    assert [pool(h, None, how).flatten().tolist() for how in POOLINGS] == [[3, 1], [5, 9], [3, 9]]
    assert [pool(h, keep, how).flatten().tolist() for how in POOLINGS] == [
        [3, -3],
        [5, -2],
        [3, -4],
    ]


# --- heads and construction ---------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "shape"), [("tokens", (B, T, V)), ("pixels", (B, T))])
def test_shapes(kind, shape):
    model, x = make(kind, head_hidden=True), inputs(kind)
    assert model(x).shape == (B, T, 16)
    assert model.reconstruct(x, torch.ones(B, T, dtype=torch.bool)).shape == shape
    assert model.classify(x).shape == (B, 3)


def test_build_depends_on_its_stream_only():
    data = tasks.load(NeighborConfig(length=6, n_train=8, n_val=4, n_test=4), 0)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a = build(ModelConfig(dropout=0.1), data, 3, "finetune").state_dict()
    assert torch.equal(torch.get_rng_state(), before)  # the caller's generator is left alone
    torch.manual_seed(2)
    b = build(ModelConfig(dropout=0.1), data, 3, "finetune").state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)
    for stream in ((4, "finetune"), (3, "pretrain")):
        c = build(ModelConfig(), data, *stream).state_dict()
        assert not torch.equal(a["blocks.0.attention.q.weight"], c["blocks.0.attention.q.weight"])


def test_inits_are_what_they_say():
    data = tasks.load(ImageConfig(n_train=20, n_val=10, n_test=10), 0)
    normal = build(ModelConfig(width=64, init="normal"), data, 0)
    plain = build(ModelConfig(width=64, init="torch"), data, 0)
    for linear in (m for m in normal.modules() if isinstance(m, nn.Linear)):
        assert float(linear.weight.detach().std()) == pytest.approx(0.02, rel=0.2)
        assert float(linear.bias.detach().abs().max()) == 0.0
    mlp = plain.blocks[0].mlp[0].weight.detach()  # PyTorch's: uniform within 1/sqrt(64)
    assert float(mlp.abs().max()) == pytest.approx(1 / 8, rel=0.01)


def test_sequences_longer_than_the_model_are_refused():
    data = tasks.load(NeighborConfig(length=6, n_train=8, n_val=4, n_test=4), 0)
    with pytest.raises(ConfigError, match=r"6 positions.*max_len=5.*model.max_len"):
        build(ModelConfig(max_len=5), data, 0)
    assert build(ModelConfig(max_len=9, positions="learned"), data, 0).position.shape == (9, 32)
    with pytest.raises(ConfigError, match="14 positions is longer than the model's 13"):
        make().classify(torch.zeros(1, T + 1, dtype=torch.uint8))


def test_room_for_longer_sequences_changes_nothing():
    for positions in ("sinusoidal", "rope", "alibi", "none"):
        small, large = make(positions=positions), make(positions=positions, max_len=40)
        large.load_state_dict(small.state_dict())
        x = inputs("tokens")
        torch.testing.assert_close(small.classify(x), large.classify(x))


def test_only_weights_are_in_the_state():
    for positions in POSITIONS:
        model = make(positions=positions)
        assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_embed_std_sets_how_loud_tokens_are():
    data = tasks.load(NeighborConfig(n_train=8, n_val=4, n_test=4), 0)
    for embed_std, expected in ((None, 1.0), (2.0, 2.0)):
        model = build(ModelConfig(width=64, embed_std=embed_std), data, 0)
        assert float(model.embed.weight.detach().std()) == pytest.approx(expected, rel=0.1)


# --- what is added to the scores ----------------------------------------------------------------


def imposed(strength: float, positions: str) -> torch.Tensor:
    """The biases of four heads, number by number."""
    found = torch.zeros(4, T, T)
    for h in range(4):
        slope = 2.0 ** (-2 * (h + 1)) if positions == "alibi" else 0.0
        for i in range(T):
            for j in range(T):
                found[h, i, j] = -(strength + slope) * abs(i - j)
    return found


@pytest.mark.parametrize("length", [None, LENGTHS], ids=["full", "padded"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_a_proximity_bias_is_added_to_the_scores(positions, length):
    model, x = make(positions=positions, proximity_bias=0.3), inputs("tokens")
    plain = make(positions="none" if positions == "alibi" else positions)
    plain.load_state_dict(model.state_dict())
    before = plain.attention_maps(x, None, length)[0]
    # weights are multiplied by exp(bias), whatever they were; the first layer's input is the same
    tilted = before * imposed(0.3, positions).exp()
    expected = tilted / tilted.sum(-1, keepdim=True)
    found = model.attention_maps(x, None, length)[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert float((found - before).abs().max()) > 0.05
    for block in plain.blocks:  # by the way that `forward` takes
        block.attention.bias = imposed(0.3, positions)
    torch.testing.assert_close(
        model.classify(x, length), plain.classify(x, length), rtol=1e-5, atol=1e-5
    )
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("length", [None, LENGTHS], ids=["full", "padded"])
@pytest.mark.parametrize("positions", ["sinusoidal", "alibi"])
def test_a_probe_is_added_to_the_scores_of_every_sequence(positions, length):
    """It has room for longer sequences than these."""
    model = make(positions=positions, max_len=T + 3, n_layers=1)
    x, attention = inputs("tokens"), model.blocks[0].attention
    before, plain = model.attention_maps(x, None, length)[0], model.classify(x, length)
    probe = torch.randn(4, T + 3, T + 3, generator=torch.Generator().manual_seed(2))
    attention.probe = probe
    tilted = before * probe[:, :T, :T].exp()
    found = model.attention_maps(x, None, length)[0]
    torch.testing.assert_close(found, tilted / tilted.sum(-1, keepdim=True), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(model.classify(x, length), plain, atol=1e-3)
    attention.probe = None
    assert torch.equal(model.classify(x, length), plain)


def test_a_proximity_bias_is_not_negative():
    with pytest.raises(ValueError, match="proximity_bias"):
        ModelConfig(proximity_bias=-0.1)
    assert make(proximity_bias=0.0).blocks[0].attention.bias is None
