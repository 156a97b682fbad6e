"""The four parts of the scores, what of them is distance, and the curves through it."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sptlib import tasks
from sptlib.analysis.attention import (
    diagonality,
    distance_profile,
    entropy,
    mean_map,
    proximity,
)
from sptlib.analysis.fits import alibi_fit, rope_fit, symmetric_share
from sptlib.analysis.scores import (
    Split,
    measures,
    shares,
    split,
    toeplitz_profile,
    toeplitz_share,
)
from sptlib.config import ModelConfig
from sptlib.errors import ConfigError
from sptlib.model import Transformer, keep_mask
from sptlib.positions import sinusoidal
from sptlib.seeding import generator
from sptlib.tasks import NeighborConfig

POSITIONS = ("sinusoidal", "learned", "rope", "alibi", "none")
B, T, V = 6, 9, 5
LENGTHS = torch.tensor([8, 1, 5, 8, 2, 3])  # none has all 9 positions


def make(max_len: int = T, vocab_size: int = V, **config) -> Transformer:
    """A model in which every parameter, norms and biases included, is away from its default."""
    torch.manual_seed(0)
    config = ModelConfig(**{"width": 16, "n_layers": 2, "n_heads": 2, **config})
    model = Transformer(
        config, kind="tokens", n_classes=2, max_len=max_len, vocab_size=vocab_size
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def inputs(n: int = B, length: int = T, seed: int = 1) -> torch.Tensor:
    return torch.randint(V, (n, length), generator=generator(seed)).to(torch.uint8)


def every_sequence(n_symbols: int, length: int) -> torch.Tensor:
    return torch.tensor(list(itertools.product(range(n_symbols), repeat=length)))


# --- the split ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "padded"])
@pytest.mark.parametrize("n_heads", [1, 2, 4])
@pytest.mark.parametrize("positions", POSITIONS)
def test_the_parts_add_up_to_the_scores(positions, n_heads, lengths):
    model, x = make(positions=positions, n_heads=n_heads), inputs()
    n = T if lengths is None else 8
    maps = model.attention_maps(x, None, lengths)[..., :n, :n]
    for layer in (0, 1):
        parts = split(model, x, lengths, layer)
        assert parts.pp.shape == (n_heads, n, n)
        assert parts.pc.shape == parts.cp.shape == parts.cc.shape == (B, n_heads, n, n)
        torch.testing.assert_close(parts.maps(), maps[layer])
        for name in ("pp", "pc", "cp", "cc"):  # each is needed
            left_out = {"pp": parts.pp, "pc": parts.pc, "cp": parts.cp, "cc": parts.cc}
            left_out[name] = left_out[name] * 0
            changed = Split(**left_out, keep=parts.keep).maps()
            assert (changed - maps[layer]).abs().max() > 1e-4


def test_an_imposed_bias_belongs_to_positions():
    x, strength = inputs(), 0.7
    plain, biased = (split(make(proximity_bias=b), x) for b in (0.0, strength))
    t = torch.arange(T)
    imposed = -strength * (t[:, None] - t).abs().double()
    torch.testing.assert_close(biased.pp, plain.pp + imposed, rtol=1e-6, atol=1e-6)
    assert torch.equal(biased.cc, plain.cc)


@pytest.mark.parametrize("positions", POSITIONS)
def test_content_has_mean_zero(positions):
    parts = split(make(positions=positions), inputs(), layer=1)
    assert parts.pc.mean(0).abs().max() < 1e-12
    assert parts.cp.mean(0).abs().max() < 1e-12
    assert parts.pc.abs().max() > 1e-2
    alone = split(make(positions=positions), inputs(1), layer=1)
    assert max(alone.pc.abs().max(), alone.cp.abs().max(), alone.cc.abs().max()) < 1e-12


def test_a_mean_is_over_the_sequences_that_have_the_position():
    model, x = make(), inputs()
    parts = split(model, x, LENGTHS)
    for i in range(8):
        has = i < LENGTHS
        assert parts.cp[has, :, i].mean(0).abs().max() < 1e-12
        assert parts.pc[has, :, :, i].mean(0).abs().max() < 1e-12
    # what stands in the padding changes nothing
    other = torch.where(keep_mask(x, LENGTHS), x, V - 1 - x)
    again = split(model, other, LENGTHS)
    torch.testing.assert_close(again.pp, parts.pp, rtol=0, atol=1e-12)
    assert shares(again)["cc"].tolist() == pytest.approx(shares(parts)["cc"].tolist())


def test_without_norm_it_is_the_split_into_positions_and_tokens():
    """Over all sequences the mean token is ē: positions p_i + ē and contents e − ē, by hand."""
    model, x = make(max_len=3, vocab_size=3, n_heads=2), every_sequence(3, 3)
    model.blocks[0].norm1 = torch.nn.Identity()
    attention, K = model.blocks[0].attention, 8
    parts = split(model, x)
    with torch.no_grad():
        e = model.embed.weight[:3]
        position, token = model.position + e.mean(0), e - e.mean(0)
        for h in range(2):
            rows = slice(h * K, (h + 1) * K)
            w_q, w_k = attention.q.weight[rows], attention.k.weight[rows]
            q_p = position @ w_q.T + attention.q.bias[rows]
            k_p = position @ w_k.T + attention.k.bias[rows]
            q_c, k_c = token @ w_q.T, token @ w_k.T
            torch.testing.assert_close(parts.pp[h], q_p @ k_p.T / K**0.5)
            for b, i, j in itertools.product(range(27), range(3), range(3)):
                u, v = x[b, i], x[b, j]
                expected = torch.stack([q_p[i] @ k_c[v], q_c[u] @ k_p[j], q_c[u] @ k_c[v]])
                found = torch.stack([part[b, h, i, j] for part in (parts.pc, parts.cp, parts.cc)])
                torch.testing.assert_close(found, expected / K**0.5)


def expected_pp(model: Transformer, n_symbols: int) -> torch.Tensor:
    """pp of the first layer when every position has every symbol equally often, (H, T, T)."""
    block, H = model.blocks[0], model.blocks[0].attention.n_heads
    with torch.no_grad():
        sums = model.embed.weight[:n_symbols, None] + model.position  # (V, T, D)
        centred = sums - sums.mean(-1, keepdim=True)
        normal = centred / (centred.square().mean(-1, keepdim=True) + block.norm1.eps).sqrt()
        mean = (normal * block.norm1.weight + block.norm1.bias).mean(0)
        q, k = (
            (mean @ a.weight.T + a.bias).view(len(mean), H, -1).transpose(0, 1)
            for a in (block.attention.q, block.attention.k)
        )
        return q @ k.transpose(1, 2) / q.shape[-1] ** 0.5


def test_positions_are_the_mean_over_symbols_after_the_norm():
    model = make(max_len=3, vocab_size=4)
    torch.testing.assert_close(split(model, every_sequence(4, 3)).pp, expected_pp(model, 4))


def test_positions_of_neighbor():
    data = tasks.load(NeighborConfig(n_train=4000, length=12), 0)
    model = make(max_len=12, vocab_size=10)
    expected, found = expected_pp(model, 10), split(model, data.train.x).pp
    error = (found - expected).norm() / expected.norm()
    few = (split(model, data.train.x[:40]).pp - expected).norm() / expected.norm()
    assert error < 0.02
    assert error < few / 4  # a tenth is expected


def test_there_is_no_such_layer():
    for layer in (2, -1):
        with pytest.raises(ConfigError, match=rf"layer={layer}, but the model has layers 0 to 1"):
            split(make(), inputs(), layer=layer)


# --- shares -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "padded"])
def test_shares_by_loops(lengths):
    parts = split(make(), inputs(), lengths)
    found = shares(parts)
    valid = [T] * B if lengths is None else lengths.tolist()
    for h in range(2):
        squares = dict.fromkeys(("pp", "pc", "cp", "cc"), 0.0)
        for name, b in itertools.product(squares, range(B)):
            part = getattr(parts, name)
            part = part[h] if name == "pp" else part[b, h]
            for i in range(valid[b]):
                row = part[i, : valid[b]].tolist()
                squares[name] += sum((s - sum(row) / len(row)) ** 2 for s in row)
        for name, square in squares.items():
            assert found[name].shape == (2,)
            assert float(found[name][h]) == pytest.approx(square / sum(squares.values()), rel=1e-9)


def test_shares_of_known_scores():
    g = generator(0)
    zero, some = torch.zeros(3, 1, 4, 4), torch.randn(3, 1, 4, 4, generator=g)
    assert shares(Split(some[0], zero, zero, zero))["pp"].tolist() == [1]
    assert shares(Split(zero[0], zero, some, zero))["cp"].tolist() == [1]
    # constants of rows do not count
    constant = torch.randn(1, 4, 1, generator=g).expand(1, 4, 4)
    unseen = shares(Split(constant, some, zero, zero))
    assert unseen["pp"].item() == pytest.approx(0, abs=1e-9)
    assert unseen["pc"].item() == pytest.approx(1)
    # twice as large is four times the variance
    found = shares(Split(zero[0], some, 2 * some, zero))
    assert [found[name].item() for name in ("pp", "pc", "cp", "cc")] == pytest.approx(
        [0, 0.2, 0.8, 0]
    )
    assert shares(Split(zero[0], zero, zero, zero))["pp"].tolist() == [0]


# --- Toeplitz -----------------------------------------------------------------------------------


def toeplitz(profile: torch.Tensor) -> torch.Tensor:
    """The matrix with these values at j − i = −(T − 1) … T − 1, by loops."""
    n = (len(profile) + 1) // 2
    rows = [[float(profile[j - i + n - 1]) for j in range(n)] for i in range(n)]
    return torch.tensor(rows, dtype=torch.float64)


@given(seed=st.integers(0, 99), n=st.integers(2, 20))
def test_toeplitz_matrices_are_all_distance(seed, n):
    g = generator(seed)
    t = torch.randn(2 * n - 1, generator=g).double()
    constants = 10 * torch.randn(n, 1, generator=g).double()
    pairs = torch.tensor([n - abs(d) for d in range(1 - n, n)]).double()
    for pp in (toeplitz(t), toeplitz(t) + constants):
        assert float(toeplitz_share(pp)) == pytest.approx(1, abs=1e-10)
        torch.testing.assert_close(toeplitz_profile(pp), t - (pairs * t).sum() / pairs.sum())


def test_profiles_are_key_minus_query():
    looks_ahead = torch.eye(6).roll(2, 1)
    looks_ahead[4:] = 0  # no wrap-around
    distances, weights = distance_profile(looks_ahead, reach=5)
    assert distances[int(toeplitz_profile(looks_ahead).argmax())] == 2
    assert distances[int(torch.tensor(weights).argmax())] == 2


@given(seed=st.integers(0, 99))
def test_toeplitz_equals_least_squares_with_a_design_matrix(seed):
    n = 7
    pp = torch.randn(n, n, generator=generator(seed)).double()
    design = torch.zeros(n * n, 2 * n - 1 + n, dtype=torch.float64)
    for i, j in itertools.product(range(n), range(n)):
        design[i * n + j, j - i + n - 1] = 1
        design[i * n + j, 2 * n - 1 + i] = 1
    found = torch.linalg.lstsq(design, pp.flatten()[:, None], driver="gelsd").solution
    left = (pp.flatten() - (design @ found)[:, 0]).square().sum()
    total = sum((s - row.mean()).square() for row in pp for s in row)
    assert float(toeplitz_share(pp)) == pytest.approx(float(1 - left / total), abs=1e-12)
    t = found[: 2 * n - 1, 0]
    pairs = design[:, : 2 * n - 1].sum(0)
    torch.testing.assert_close(toeplitz_profile(pp), t - (pairs * t).sum() / pairs.sum())


def test_random_matrices_have_as_much_as_there_are_numbers():
    """2T − 2 of T (T − 1) degrees of freedom; the share of one has standard deviation 0.017."""
    pp = torch.randn(4, 100, 15, 15, generator=generator(0))
    found = toeplitz_share(pp)
    assert found.shape == (4, 100)
    assert float(found.mean()) == pytest.approx(28 / (15 * 14), abs=0.003)
    assert toeplitz_profile(pp).shape == (4, 100, 29)
    torch.testing.assert_close(toeplitz_profile(pp)[1, 2], toeplitz_profile(pp[1, 2]))


def test_sinusoids_compared_with_themselves_are_distance():
    p = sinusoidal(40, 16).double()
    assert float(toeplitz_share(p @ p.T)) == pytest.approx(1, abs=1e-9)
    skew = torch.randn(16, 16, generator=generator(0)).double()
    assert float(toeplitz_share(p @ skew @ p.T)) < 0.9


def test_nothing_is_no_distance():
    constants = torch.randn(5, 1, generator=generator(0)).expand(5, 5)
    for pp in (torch.zeros(2, 5, 5), constants[None], 7 * torch.ones(1, 1, 1)):
        assert toeplitz_share(pp).tolist() == [0] * len(pp)
        assert toeplitz_profile(pp).abs().max() < 1e-12


def test_rope_compares_equal_inputs_by_distance_alone():
    """With the same symbol everywhere all contents are gone: Toeplitz, and RoPE's own curve."""
    model = make(positions="rope", max_len=40, n_layers=1)
    parts = split(model, torch.full((3, 40), 2))
    assert parts.cc.abs().max() < 1e-12
    assert toeplitz_share(parts.pp).tolist() == pytest.approx([1, 1], abs=1e-6)
    for t in toeplitz_profile(parts.pp):
        fit = rope_fit(t, width=8)
        assert fit.r2 == pytest.approx(1, abs=1e-6)
        assert alibi_fit(t).r2 < 0.9
        assert 0.05 < symmetric_share(t) < 0.95  # queries and keys differ, so it has a direction


# --- curves -------------------------------------------------------------------------------------


def test_alibi_s_own_slopes_are_found():
    model = make(positions="alibi", n_heads=4, n_layers=1)
    with torch.no_grad():
        for part in (model.blocks[0].attention.q, model.blocks[0].attention.k):
            part.weight.zero_()
            part.bias.zero_()
    fits = [alibi_fit(t) for t in toeplitz_profile(split(model, inputs()).pp)]
    assert [fit.parameters["slope"] for fit in fits] == pytest.approx([2**-2, 2**-4, 2**-6, 2**-8])
    assert [fit.r2 for fit in fits] == pytest.approx([1] * 4)
    found = measures(model, inputs())
    assert found["toeplitz"] == [[1.0] * 4]
    assert found["position"] == [[1.0] * 4]


@pytest.mark.parametrize("reach", [None, 3, 50])
def test_alibi_fit_is_weighted_regression(reach):
    n = 8
    t = torch.randn(2 * n - 1, generator=generator(0)).double()
    near = n - 1 if reach is None else min(reach, n - 1)
    pairs = [(abs(j - i), float(t[j - i + n - 1]))
             for i in range(n) for j in range(n) if abs(j - i) <= near]  # fmt: skip
    x, y = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    slope = sum((a - x) * (b - y) for a, b in pairs) / sum((a - x) ** 2 for a, _ in pairs)
    total = sum((b - y) ** 2 for _, b in pairs)
    left = sum((b - y - slope * (a - x)) ** 2 for a, b in pairs)
    fit = alibi_fit(t, reach)
    assert fit.name == "alibi"
    assert fit.parameters == pytest.approx({"slope": -slope, "constant": y - slope * x})
    assert fit.r2 == pytest.approx(1 - left / total)
    expected = [y + slope * (abs(d) - x) for d in range(-near, near + 1)]
    assert fit.curve.tolist() == pytest.approx(expected)


def test_rope_fit_finds_waves():
    d = torch.arange(-29, 30).double()
    # width 4 has the rates 1 and 1/100
    t = 0.5 + 2 * (d + 1).cos() + 3 * (d / 100).sin()
    fit = rope_fit(t, width=4)
    assert fit.name == "rope"
    assert fit.r2 == pytest.approx(1)
    torch.testing.assert_close(fit.curve, t)
    assert fit.parameters["cos"][0] == pytest.approx(2 * math.cos(1))
    assert fit.parameters["sin"] == pytest.approx([-2 * math.sin(1), 3])
    assert fit.parameters["constant"] + fit.parameters["cos"][1] == pytest.approx(0.5, abs=1e-3)
    assert rope_fit((1.7 * d).cos(), width=4).r2 < 0.2
    assert rope_fit(t, width=4, reach=6).curve.tolist() == pytest.approx(t[23:36].tolist())
    # width 2 has the rate 1 alone, which leaves the slow wave
    assert rope_fit(t, width=2).r2 < 0.95


def test_rope_fit_minimises_the_weighted_squares():
    t = torch.randn(21, generator=generator(0)).double()
    weight = torch.tensor([11 - abs(d) for d in range(-10, 11)]).double()
    fit, d = rope_fit(t, width=4), torch.arange(-10, 11).double()
    left = (weight * (t - fit.curve).square()).sum()
    total = (weight * (t - (weight * t).sum() / weight.sum()).square()).sum()
    assert fit.r2 == pytest.approx(float(1 - left / total))
    for column in (torch.ones(21).double(), d.cos(), d.sin(), (d / 100).cos(), (d / 100).sin()):
        assert float((weight * (t - fit.curve) * column).sum()) == pytest.approx(0, abs=1e-9)


def test_symmetric_share_of_known_profiles():
    d = torch.arange(-9, 10).double()
    assert symmetric_share(-d.abs()) == pytest.approx(1)
    assert symmetric_share(d.sin() + 3) == pytest.approx(0)
    even, odd = (d.square() / 9).cos(), d / 9
    pairs = 10 - d.abs()
    of_even = float((pairs * (even - (pairs * even).sum() / pairs.sum()).square()).sum())
    of_odd = float((pairs * odd.square()).sum())
    assert symmetric_share(even + odd) == pytest.approx(of_even / (of_even + of_odd))
    assert symmetric_share(torch.where(d.abs() <= 2, -d.abs(), d), reach=2) == pytest.approx(1)
    assert symmetric_share(torch.full((19,), 0.1)) == 0
    assert alibi_fit(torch.full((19,), 0.1)).r2 == 0


def test_what_is_no_profile_is_refused():
    for fit in (alibi_fit, symmetric_share, lambda t, reach=None: rope_fit(t, 4, reach)):
        for bad in (torch.zeros(2, 5), torch.zeros(4), torch.zeros(())):
            with pytest.raises(ConfigError, match="a profile has 2T - 1 values"):
                fit(bad)
        with pytest.raises(ConfigError, match="reach=0, expected at least 1"):
            fit(torch.zeros(5), reach=0)
    for width in (3, 0):
        with pytest.raises(ConfigError, match=f"width={width}, but RoPE turns pairs"):
            rope_fit(torch.zeros(5), width)


# --- all at once --------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", ["sinusoidal", "rope", "alibi"])
def test_measures_are_those_of_the_maps(positions):
    model, x = make(positions=positions), inputs(150)  # two pieces
    found, maps = measures(model, x, distance=1), model.attention_maps(x)
    assert list(found) == [
        "proximity", "entropy", "diagonality", "toeplitz", "position",
        "alibi", "rope", "symmetric", "profile",
    ]  # fmt: skip
    mean = mean_map(model, x)
    for layer, head in itertools.product(range(2), range(2)):
        one = {name: found[name][layer][head] for name in list(found)[:5]}
        parts = split(model, x, layer=layer)
        assert one == pytest.approx({
            "proximity": float(proximity(mean[layer, head], 1)),
            "entropy": float(entropy(maps[layer, :, head]).mean()),
            "diagonality": float(diagonality(mean[layer, head])),
            "toeplitz": float(toeplitz_share(parts.pp[head])),
            "position": float(shares(parts)["pp"][head]),
        }, abs=1e-6)  # fmt: skip
        assert all(type(value) is float and value == round(value, 6) for value in one.values())
    assert found["profile"] == pytest.approx(distance_profile(mean.mean((0, 1)))[1], abs=1e-6)
    assert len(found["profile"]) == 2 * T - 1


def test_measures_of_padded_sequences_by_loops():
    model, x = make(), inputs()
    found = measures(model, x, LENGTHS)
    maps = model.attention_maps(x, None, LENGTHS)
    at: dict[int, list[float]] = {d: [] for d in range(-7, 8)}
    for layer, head in itertools.product(range(2), range(2)):
        cut = [maps[layer, b, head, :n, :n] for b, n in enumerate(LENGTHS)]
        for name, measure in (
            ("proximity", proximity), ("entropy", entropy), ("diagonality", diagonality)
        ):  # fmt: skip
            expected = sum(float(measure(one)) for one in cut) / B
            assert found[name][layer][head] == pytest.approx(expected, abs=1e-6)
        parts = split(model, x, LENGTHS, layer)
        expected = float(shares(parts)["pp"][head])
        assert found["position"][layer][head] == pytest.approx(expected, abs=1e-6)
        for one in cut:
            for i, j in itertools.product(range(len(one)), repeat=2):
                at[j - i].append(float(one[i, j]))
    expected = [sum(values) / len(values) for values in at.values()]
    assert found["profile"] == pytest.approx(expected, abs=1e-6)


def test_measures_do_not_depend_on_the_pieces():
    """Long sequences go through in smaller pieces; a pass one by one must add up to the same."""
    model = make(max_len=300, n_heads=4, n_layers=1).float()
    x = inputs(14, 300)
    long = measures(model, x)  # pieces of 11
    parts = split(model, x)
    assert long["entropy"][0] == pytest.approx(entropy(parts.maps()).mean(0).tolist(), abs=1e-5)
    assert long["position"][0] == pytest.approx(shares(parts)["pp"].tolist(), abs=1e-5)
    assert len(long["profile"]) == 21
    assert long["profile"] == pytest.approx(
        distance_profile(parts.maps().mean((0, 1)))[1], abs=1e-6
    )
