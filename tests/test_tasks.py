"""The tasks: their statistics, and splits that share nothing."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import sklearn.datasets
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sptlib import tasks
from sptlib.errors import ConfigError
from sptlib.seeding import derive_seed, generator
from sptlib.tasks import ImageConfig, NeighborConfig, Split, TaskData
from sptlib.tasks.base import labelled_subset
from sptlib.tasks.neighbor import sample

SPLITS = ("unlabelled", "train", "val", "test")


def rows(split: Split) -> set[bytes]:
    return {row.tobytes() for row in split.x.numpy()}


# --- neighbor -----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [(1, 3), (1, -1)])
def test_single_tokens_carry_nothing_and_neighbours_almost_everything(steps):
    config = NeighborConfig(steps=steps, p=0.8)
    split = sample(config, 2000, generator(0, "test"))
    x = split.x.long()
    for label, d in enumerate(steps):
        mine = x[split.y == label]
        assert len(mine) == 1000
        # tokens of one sequence depend on each other, so each position is tested by itself
        low = [stats.chisquare(np.bincount(mine[:, t], minlength=10)).pvalue for t in range(100)]
        assert stats.kstest(low, "uniform").pvalue > 1e-4
        jump = (mine[:, 1:] - mine[:, :-1]) % 10
        share = np.bincount(jump.flatten(), minlength=10) / jump.numel()
        expected = np.full(10, 0.2 / 10)
        expected[d % 10] += 0.8
        assert share == pytest.approx(expected, abs=0.006)  # five standard deviations
        at = (jump == d % 10).float().mean(0)  # and so at every position
        assert float((at - 0.82).abs().max()) < 0.06


@given(
    n=st.integers(1, 60),
    seed=st.integers(0, 99),
    length=st.integers(2, 20),
    n_symbols=st.integers(4, 256),
)
def test_neighbor_is_balanced_and_in_range(n, seed, length, n_symbols):
    config = NeighborConfig(length=length, n_symbols=n_symbols)
    split = sample(config, n, generator(seed))
    assert split.x.shape == (n, length)
    assert split.x.dtype == torch.uint8
    assert int(split.x.max()) < n_symbols
    assert abs(int((split.y == 0).sum()) - int((split.y == 1).sum())) == n % 2


def test_p_one_walks_and_p_zero_does_not():
    walk = sample(NeighborConfig(p=1.0), 20, generator(0))
    d = torch.tensor((1, 3))[walk.y]
    assert torch.equal(
        (walk.x[:, 1:].long() - walk.x[:, :-1].long()) % 10, d[:, None].expand(20, 99)
    )
    noise = sample(NeighborConfig(p=0.0), 200, generator(0))
    jump = (noise.x[:, 1:].long() - noise.x[:, :-1].long()) % 10
    assert float((jump == 1).float().mean()) == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    "task",
    [
        NeighborConfig(n_train=60, n_val=20, n_test=30, length=30),
        ImageConfig(n_train=60, n_val=20, n_test=30),
    ],
    ids=lambda t: t.name,
)
def test_splits_do_not_depend_on_each_others_sizes(task):
    base = tasks.load(task, 0)
    for field, value, same in (
        ("n_train", 90, ("val", "test")),
        ("n_val", 40, ("unlabelled", "test")),
        ("n_test", 31, ("unlabelled",)),
        ("n_labels", 10, ("unlabelled", "test")),
    ):
        other = tasks.load(replace(task, **{field: value}), 0)
        for name in same:
            assert torch.equal(getattr(base, name).x, getattr(other, name).x), (field, name)
            assert torch.equal(getattr(base, name).y, getattr(other, name).y), (field, name)


def test_no_sequence_of_neighbor_is_in_two_splits():
    data = tasks.load(NeighborConfig(), 0)
    assert len(rows(data.train)) == 1000  # they are too long to coincide by chance
    for a, b in (("train", "val"), ("train", "test"), ("val", "test"), ("unlabelled", "test")):
        assert not rows(getattr(data, a)) & rows(getattr(data, b))
    fresh = data.sample(500, generator(0, "pretrain", "fresh", 0))
    assert not rows(fresh) & (rows(data.test) | rows(data.val))


def test_synthetic_data_vary_with_the_seed_unless_it_is_fixed():
    task = NeighborConfig(n_train=8, n_val=8, n_test=8)
    assert not torch.equal(tasks.load(task, 0).test.x, tasks.load(task, 1).test.x)
    fixed = replace(task, data_seed=5)
    assert torch.equal(tasks.load(fixed, 0).test.x, tasks.load(fixed, 1).test.x)
    assert torch.equal(tasks.load(fixed, 0).test.x, tasks.load(task, 5).test.x)


# --- image --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_labels", [0, 50])
def test_no_image_is_in_two_splits(monkeypatch, n_labels):
    """Each image is replaced by its number, so that equal images count as the two that they are."""
    y = sklearn.datasets.load_digits(return_X_y=True)[1]
    number = np.arange(len(y))
    x = np.zeros((len(y), 64))
    x[:, 0], x[:, 1], x[:, 2] = number % 17, number // 17 % 17, number // 289
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda return_X_y: (x, y))
    data = tasks.image.load(ImageConfig(n_labels=n_labels), 0)
    number_of = {
        name: (getattr(data, name).x[:, :3].long() * torch.tensor([1, 17, 289])).sum(1)
        for name in SPLITS
    }
    for name, found in number_of.items():
        assert len(found.unique()) == len(found)
        assert torch.equal(getattr(data, name).y, torch.from_numpy(y)[found])
    sets = {name: set(found.tolist()) for name, found in number_of.items()}
    assert sets["unlabelled"].isdisjoint(sets["val"] | sets["test"])
    assert sets["val"].isdisjoint(sets["test"])
    assert sets["train"] <= sets["unlabelled"]
    assert len(sets["unlabelled"] | sets["val"] | sets["test"]) == 1797


def test_images_are_those_of_scikit_learn():
    data = tasks.load(ImageConfig(), 0)
    x = sklearn.datasets.load_digits(return_X_y=True)[0]
    everything = np.concatenate(
        [getattr(data, name).x.numpy() for name in ("train", "val", "test")]
    )
    assert sorted(map(bytes, everything)) == sorted(map(bytes, x.astype(np.uint8)))
    assert data.vocab_size == 17
    assert int(data.train.x.max()) == 16
    for name in ("train", "val", "test"):  # every split has all digits, about equally often
        counts = np.bincount(getattr(data, name).y, minlength=10)
        assert counts.max() - counts.min() <= 15
    pixels = tasks.load(ImageConfig(tokenised=False), 0)
    assert (pixels.kind, pixels.scale) == ("pixels", 16.0)
    assert torch.equal(pixels.test.x, data.test.x)


def test_the_seed_chooses_labelled_images_and_nothing_else():
    a, b = (tasks.load(ImageConfig(n_labels=50), seed) for seed in (0, 1))
    assert not torch.equal(a.train.x, b.train.x)
    for name in ("unlabelled", "val", "test"):
        assert torch.equal(getattr(a, name).x, getattr(b, name).x)


# --- common -------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [NeighborConfig(), ImageConfig()], ids=lambda t: t.name)
def test_labelled_subsets_are_nested_and_balanced(task):
    sizes = (20, 50, 200, 400)
    subsets = [tasks.load(replace(task, n_labels=n), 7) for n in sizes]
    for n, data in zip(sizes, subsets, strict=True):
        counts = np.bincount(data.train.y, minlength=data.n_classes)
        assert len(data.train) == n
        assert counts.max() - counts.min() <= 1
        assert rows(data.train) <= rows(data.unlabelled)
    for small, large in pairwise(subsets):
        assert torch.equal(small.train.x, large.train.x[: len(small.train)])


@given(y=st.lists(st.integers(0, 4), min_size=1, max_size=40), data=st.data())
def test_labelled_subset_takes_distinct_sequences(y, data):
    n = data.draw(st.integers(1, len(y)))
    split = Split(torch.arange(len(y))[:, None], torch.tensor(y))
    subset = labelled_subset(split, n, generator(0))
    taken = subset.x.flatten()
    assert len(taken.unique()) == n
    assert torch.equal(split.y[taken], subset.y)
    # as balanced as the classes allow: no class has more than one above another that has some left
    have, all_of = (np.bincount(s.y, minlength=5) for s in (subset, split))
    assert all(have[a] - have[b] <= 1 for a in range(5) for b in range(5) if have[b] < all_of[b])


def test_split_take_and_to_keep_lengths():
    split = Split(torch.arange(12).view(4, 3), torch.arange(4), torch.tensor([1, 2, 3, 2]))
    part = split.take(torch.tensor([3, 0]))
    assert (part.x[:, 0].tolist(), part.y.tolist(), part.length.tolist()) == (
        [9, 0],
        [3, 0],
        [2, 1],
    )
    assert len(split.take(slice(1, 3)).to("cpu").length) == 2


def test_fingerprint_covers_lengths():
    split = Split(torch.zeros(2, 3, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))
    parts = dict.fromkeys(SPLITS, split)
    plain = TaskData(kind="tokens", n_classes=2, max_len=3, **parts)
    padded = TaskData(
        kind="tokens",
        n_classes=2,
        max_len=3,
        **{**parts, "test": replace(split, length=torch.tensor([3, 2]))},
    )
    assert plain.fingerprint != padded.fingerprint
    assert plain.to("cpu").fingerprint == plain.fingerprint


def test_streams_are_named():
    assert derive_seed(0, "a") != derive_seed(0, "b") != derive_seed(1, "a")
    assert derive_seed("1") != derive_seed(1)
    assert 0 <= derive_seed(2**80) < 2**63
    assert torch.equal(
        torch.rand(3, generator=generator(1, "x")), torch.rand(3, generator=generator(1, "x"))
    )


def test_unknown_names():
    with pytest.raises(ConfigError, match="did you mean 'image'"):
        tasks.config_class("images")
