"""The catalogue: what it says of a folder is what lies in it."""

import re
from dataclasses import FrozenInstanceError
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sptlib.data.catalog import ALIASES, CATALOG, find, locate, status
from sptlib.errors import ConfigError


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("SPTLIB_DATA", str(tmp_path))
    return tmp_path


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_every_data_set_says_what_people_need():
    for name, dataset in CATALOG.items():
        assert name == dataset.name
        assert all((dataset.title, dataset.size, dataset.licence, dataset.by_hand)), name
        assert re.search(r"(19|20)\d\d", dataset.citation), name
        ways = (dataset.made, dataset.files, dataset.package, "get lra" in dataset.by_hand)
        assert any(ways), name
        assert bool(dataset.package) != bool(dataset.holds), name
    with pytest.raises(FrozenInstanceError):
        CATALOG["imdb"].licence = "mine"


def test_files_are_verified_or_say_why_not():
    remotes = [remote for dataset in CATALOG.values() for remote in dataset.files]
    assert {r.name for r in remotes} == {
        "cifar-10-python.tar.gz",
        "cifar-10-binary.tar.gz",
        "aclImdb_v1.tar.gz",
        "lra_release.gz",
    }
    for remote in remotes:
        assert urlsplit(remote.url).scheme == "https"
        if remote.sha256 is None:
            assert "without a published checksum" in remote.note
        else:
            assert re.fullmatch(r"[0-9a-f]{64}", remote.sha256)
            assert remote.size > 80e6


def test_names_and_tasks_find_a_data_set():
    assert {task: find(task).name for task in ALIASES} == {
        "image": "cifar10",
        "text": "imdb",
        "retrieval": "aan",
    }
    with pytest.raises(ConfigError, match="unknown data set 'cifar'; did you mean 'cifar10'"):
        find("cifar")
    with pytest.raises(ConfigError, match="did you mean 'listops'"):
        locate("listop")
    with pytest.raises(ConfigError, match="known: listops, "):
        status("x")


# files of which each line makes a data set complete
COMPLETE = [
    ("listops", ["basic_train.tsv", "basic_val.tsv", "basic_test.tsv"]),
    ("cifar10", ["cifar-10-batches-py/data_batch_1"]),
    ("cifar10", ["cifar-10-batches-bin/data_batch_1.bin"]),
    ("imdb", ["aclImdb/README"]),
    ("imdb", ["aclImdb_v1.tar.gz"]),
    ("aan", [f"new_aan_pairs.{split}.tsv" for split in ("train", "eval", "test")]),
    (
        "pathfinder",
        [
            "pathfinder32/curv_contour_length_14/imgs/0/sample_0.png",
            "pathfinder32/curv_contour_length_14/metadata/0.npy",
        ],
    ),
    ("lra", ["lra_release/lra_release/tsv_data/x"]),
]


@pytest.mark.parametrize(("name", "files"), COMPLETE, ids=[f"{n} {f[0]}" for n, f in COMPLETE])
def test_a_data_set_is_located_once_it_is_complete(home, name, files):
    assert (locate(name), status(name)) == (None, "not there")
    for file in files:
        assert locate(name) is None
        touch(home / name / file)
    assert (locate(name), status(name)) == (home / name, "there")


def test_what_is_partly_there_is_called_so(home):
    touch(home / "aan" / "new_aan_pairs.train.tsv")
    assert status("aan") == "incomplete: no new_aan_pairs.eval.tsv, new_aan_pairs.test.tsv"
    touch(home / "listops" / ".making" / "block", home / "listops" / "basic_test.tsv")
    assert status("listops") == "partly made; repeat the `make` that was stopped"
    touch(home / "pathfinder" / "pathfinder32" / "curv_baseline" / ".making" / "block")
    assert status("pathfinder") == "partly made; repeat the `make` that was stopped"
    touch(home / "cifar10" / "cifar-10-python.tar.gz")
    assert status("image") == "cifar-10-python.tar.gz is downloaded, not unpacked"
    part = home / "imdb" / "aclImdb_v1.tar.gz.part"
    touch(part)
    part.write_bytes(bytes(1_200_000))
    assert status("imdb") == "partly downloaded (1.2 of 84.1 MB)"
    part = home / "lra" / "lra_release.gz.part"
    touch(part)
    part.write_bytes(bytes(1_200_000))
    assert status("lra") == "partly downloaded (1.2 MB)"
    part.with_name("lra_release.gz.part.json").write_text('{"total": 7700000000}')
    assert status("lra") == "partly downloaded (1.2 of 7,700.0 MB)"
    assert [n for n in CATALOG if locate(n) and not CATALOG[n].package] == []


def test_the_release_is_there_if_its_parts_are(home):
    for place in ("listops", "aan", "pathfinder/pathfinder32"):
        touch(home / place / "x")
    assert status("lra") == "not there"
    touch(home / "pathfinder/pathfinder128/x")
    assert status("lra") == "its parts are there"


def test_packages(monkeypatch):
    assert status("digits") == "installed"
    assert (locate("digits") / "sklearn").is_dir()

    def distribution(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    assert [(status(n), locate(n)) for n in ("digits", "mnist", "reviews")] == [
        ("not installed", None)
    ] * 3
