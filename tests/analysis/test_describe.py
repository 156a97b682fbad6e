"""Examples, statistics and counting baselines of the tasks."""

import numpy as np
import pytest
import torch

from sptlib import presets, tasks
from sptlib.analysis import describe
from sptlib.errors import ConfigError
from sptlib.plots import _tree, expression_tree
from sptlib.tasks import NeighborConfig, Split


@pytest.fixture(scope="module")
def data():
    return {r: tasks.load(presets.smoke(r).task, 0) for r in presets.RECIPES}


def test_texts_are_readable(data):
    (line,) = describe.as_text(data["listops"], data["listops"].test, 3)
    split = data["listops"].test
    assert len(line.split()) == int(split.length[3])
    assert line.startswith("[")
    assert line.endswith("X")
    first, second = describe.as_text(data["retrieval"], data["retrieval"].test, 0)
    assert len(first) == len(second) == 24
    assert " " in first
    with pytest.raises(ConfigError, match="no symbols to show"):
        describe.as_text(data["image"], data["image"].test, 0)


def test_statistics_have_a_row_per_task(data):
    table = describe.statistics(data)
    assert table.index.tolist() == list(presets.RECIPES)
    assert table.loc["retrieval", "training, validation, test"] == "64, 32, 32"
    assert table.loc["neighbor", "positions"] == "16"
    assert table.loc["listops", "positions"].startswith("4–")
    assert table.loc["text", "cut"] == "24,902 of 24,902"
    assert table.loc["text:direction", "share of a class"] == "0.50–0.50"


def test_counts_are_shares_of_the_valid_positions():
    split = Split(torch.tensor([[0, 1, 1, 0], [2, 2, 0, 0]]), torch.zeros(2), torch.tensor([3, 2]))
    assert np.allclose(describe.counts(split, 3), [[1 / 3, 2 / 3, 0], [0, 0, 1]])
    pair = Split(split.x.view(1, 2, 4), torch.zeros(1), split.length.view(1, 2))
    assert np.allclose(
        describe.counts(pair, 3), [[1 / 3, 2 / 3, 0, 0, 0, 1, 1 / 3, 2 / 3, 1]]
    )


def test_counting_finds_what_counts_tell_and_nothing_else():
    steps = tasks.load(NeighborConfig(n_train=400, n_test=400, length=30), 0)
    assert describe.counting(steps) == pytest.approx(0.5, abs=0.08)
    x = torch.randint(0, 5, (600, 20), generator=torch.Generator().manual_seed(0)).byte()
    y = (x == 3).sum(1).gt(4).long()
    parts = dict(zip(("unlabelled", "train", "val", "test"), (
        Split(x[:300], y[:300]), Split(x[:300], y[:300]), Split(x[:9], y[:9]),
        Split(x[300:], y[300:])), strict=True))  # fmt: skip
    told = tasks.TaskData(kind="tokens", n_classes=2, max_len=20, vocab_size=5, **parts)
    assert describe.counting(told) > 0.95
    assert describe.most_frequent(told) == pytest.approx(float((y[300:] == 0).float().mean()))


def test_entropy_of_single_symbols():
    walk = tasks.load(NeighborConfig(n_train=500), 0)
    assert describe.symbol_entropy(walk) == pytest.approx(np.log(10), abs=1e-3)
    split = Split(torch.tensor([[0, 0, 1, 9], [1, 9, 9, 9]]), torch.zeros(2), torch.tensor([3, 1]))
    parts = dict.fromkeys(("unlabelled", "train", "val", "test"), split)
    two = tasks.TaskData(kind="tokens", n_classes=2, max_len=4, vocab_size=10, **parts)
    assert describe.symbol_entropy(two) == pytest.approx(np.log(2))


def test_one_of_each_class_in_order():
    split = Split(torch.zeros(6, 1), torch.tensor([1, 0, 2, 1, 0, 2]))
    assert describe.one_of_each(split, 3).tolist() == [1, 0, 2]
    assert describe.one_of_each(split, 3, 2).tolist() == [1, 4, 0, 3, 2, 5]


def test_the_catalogue_says_how_to_get_each():
    table = describe.catalogue()
    assert table.loc["listops", "how"] == "sptlib data make listops"
    assert table.loc["cifar10", "how"] == "sptlib data get cifar10"
    assert table.loc["aan", "how"] == "sptlib data get lra"
    assert "pip install" in table.loc["reviews", "how"]
    assert (table["licence"].str.len() > 0).all()


def test_a_tree_has_operators_above_the_middle_of_their_arguments():
    place, parent, depth = _tree(["[MAX", "2", "[MIN", "4", "7", "0", "X", "9", "X"], "X")
    assert place == [(2.0, 0), (0, -1), (2.0, -1), (1, -2), (2, -2), (3, -2), (4, -1)]
    assert parent == [None, 0, 0, 2, 2, 2, 0]
    assert depth == 3
    figure = expression_tree(["[MAX", "2", "[MIN", "4", "7", "0", "X", "9", "X"])
    texts = [t.get_text() for t in figure.axes[0].texts]
    assert texts == ["MAX", "2", "MIN", "4", "7", "0", "9"]


def test_dots_alone_tell_little():
    """A forest on coordinates from 600 images: near chance, and far from the label."""
    found = describe.dots_alone(presets.smoke("pathfinder").task, 600)
    assert found == pytest.approx(0.5, abs=0.13)
