"""Masks: the expected ratio, never on padding, at least one, in runs; and the loss on them."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from sptlib.config import PretrainConfig
from sptlib.masking import hide, reconstruction_loss


def mask(B=1, T=20, lengths=None, seed=0, **config) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return hide(PretrainConfig(**config), torch.zeros(B, T, dtype=torch.uint8), lengths, g)


kinds = st.sampled_from(["token", "span"])
ratios = st.floats(0.001, 0.999)


@given(
    kind=kinds,
    ratio=ratios,
    span=st.integers(1, 12),
    seed=st.integers(0, 999),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_at_least_one_and_never_padding(kind, ratio, span, seed, lengths):
    lengths = torch.tensor(lengths)
    hidden = mask(len(lengths), 9, lengths, seed, mask=kind, mask_ratio=ratio, span_length=span)
    assert hidden.shape == (len(lengths), 9)
    assert hidden.dtype == torch.bool
    assert hidden.any(1).all()
    assert not hidden[torch.arange(9) >= lengths[:, None]].any()


@pytest.mark.parametrize("kind", ["token", "span"])
@pytest.mark.parametrize("ratio", [0.15, 0.5, 0.9])
def test_each_position_is_hidden_with_the_ratio(kind, ratio):
    # 4000 draws per position: six standard deviations of a share are below 0.048
    hidden = mask(4000, 40, mask=kind, mask_ratio=ratio, span_length=4).float()
    share = hidden.mean(0)
    assert float(hidden.mean()) == pytest.approx(ratio, abs=0.01)
    assert float((share - ratio).abs().max()) < 0.048  # the ends as often as the middle


@given(seed=st.integers(0, 200), span=st.integers(2, 6))
def test_spans_are_at_least_as_long_as_asked(seed, span):
    hidden = mask(4, 40, seed=seed, mask="span", mask_ratio=0.2, span_length=span)
    for row in hidden.tolist():
        text = "".join("x" if h else " " for h in row)
        runs = [r for r in text.strip("x").split(" ") if r]  # without those cut by an end
        assert all(len(r) >= span for r in runs) or sum(row) == 1  # 1: the empty row's one


def test_spans_come_in_fewer_runs_than_tokens():
    def n_runs(hidden):
        return int((hidden[:, 1:] & ~hidden[:, :-1]).sum())

    token = mask(200, 60, mask="token", mask_ratio=0.3)
    assert n_runs(mask(200, 60, mask="span", mask_ratio=0.3, span_length=5)) < n_runs(token) / 3
    one = n_runs(mask(200, 60, mask="span", mask_ratio=0.3, span_length=1))
    assert one == pytest.approx(n_runs(token), rel=0.1)


def test_the_one_of_an_empty_row_is_uniform_over_the_valid_positions():
    lengths = torch.full((4000,), 5)
    hidden = mask(4000, 8, lengths, mask_ratio=1e-6)
    assert (hidden.sum(1) == 1).all()
    assert (hidden.float().mean(0)[:5] - 0.2).abs().max() < 0.04


def test_masks_come_from_their_generator_only():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a = mask(8, 30, seed=3, mask="span")
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a, mask(8, 30, seed=3, mask="span"))
    assert not torch.equal(a, mask(8, 30, seed=4, mask="span"))


def test_loss_is_taken_at_hidden_positions_only():
    g = torch.Generator().manual_seed(0)
    hidden = torch.tensor([[True, False, True], [False, True, False]])
    tokens = torch.tensor([[1, 2, 0], [3, 3, 1]], dtype=torch.uint8)
    logits = torch.randn(2, 3, 4, generator=g)
    rows = [(0, 0), (0, 2), (1, 1)]
    by_hand = -sum(F.log_softmax(logits[r], -1)[int(tokens[r])] for r in rows) / 3
    assert float(reconstruction_loss(logits, tokens, hidden, 1.0)) == pytest.approx(float(by_hand))
    pixels = torch.tensor([[16, 2, 8], [3, 0, 1]], dtype=torch.uint8)
    values = torch.randn(2, 3, generator=g)
    by_hand = sum(abs(float(values[r]) - int(pixels[r]) / 16) for r in rows) / 3
    assert float(reconstruction_loss(values, pixels, hidden, 16.0)) == pytest.approx(by_hand)
    changed = values + ~hidden * 100.0
    assert torch.equal(
        reconstruction_loss(values, pixels, hidden, 16.0),
        reconstruction_loss(changed, pixels, hidden, 16.0),
    )
