"""`sptlib data`: what it prints, its exit codes, what it leaves on disk."""

import hashlib
import importlib
import io
import sys
import tarfile
import types
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from sptlib.cli_data import data
from sptlib.data import catalog, download
from sptlib.errors import ConfigError, DataError
from sptlib.formats import pathfinder
from sptlib.formats.base import Report


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("SPTLIB_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(data, [str(a) for a in arguments])


def refused(done: Result, kind: type, *words: str) -> bool:
    assert isinstance(done.exception, kind), done.output
    assert all(word in str(done.exception) for word in words), str(done.exception)
    return True


@pytest.fixture
def checks(monkeypatch) -> list[tuple[str, Path]]:
    """Checks that find a fault if a folder holds a file `bad`; which ones were called."""
    called = []

    def fake(name: str) -> types.ModuleType:
        def check(folder: Path) -> Report:
            called.append((name, folder))
            bad = sorted(str(p) for p in folder.rglob("bad"))
            return Report(["7 rows"], ["smaller than official"], [f"{p}:3: bad" for p in bad])

        module = types.ModuleType(f"sptlib.formats.{name}")
        module.check = check
        module.difficulty = pathfinder.difficulty
        return module

    for name in ("listops", "pathfinder", "cifar", "imdb", "aan"):
        monkeypatch.setitem(sys.modules, f"sptlib.formats.{name}", fake(name))
    return called


# --- list -----------------------------------------------------------------------------------------


def test_list_shows_everything_within_a_hundred_columns(home, monkeypatch):
    (home / "imdb" / "aclImdb").mkdir(parents=True)
    done = call("list")
    assert done.exit_code == 0, done.exception
    blocks = dict(zip(catalog.CATALOG, done.stdout.strip().split("\n\n"), strict=True))
    for name, dataset in catalog.CATALOG.items():
        text = " ".join(blocks[name].split())
        assert text.startswith(f"{name} {dataset.title} size {dataset.size}")
        for part in (dataset.licence, dataset.citation, dataset.by_hand):
            assert part in text
        assert f"state {catalog.status(name)} get" in text
        assert dataset.package or f"place {dataset.folder} " in text
        assert all(f"address {r.url}" in text for r in dataset.files[:1])
    assert "state there" in " ".join(blocks["imdb"].split())
    assert "403" in blocks["lra"]
    unbroken = ("https://", str(home))
    assert [x for x in done.stdout.splitlines() if len(x) > 96 and not any(
        u in x for u in unbroken)] == []  # fmt: skip


# --- check ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("listops", "listops"),
        ("pathfinder", "pathfinder"),
        ("cifar10", "cifar"),
        ("image", "cifar"),
        ("imdb", "imdb"),
        ("text", "imdb"),
        ("aan", "aan"),
        ("retrieval", "aan"),
    ],
)
def test_check_hands_the_folder_to_the_format(home, tmp_path, checks, name, module):
    folder = tmp_path / "some folder"
    folder.mkdir()
    done = call("check", name, folder)
    assert done.exit_code == 0, done.exception
    assert done.stdout == (
        f"{catalog.find(name).name} in {folder}\n"
        "  7 rows\n  note: smaller than official\nno faults\n"
    )
    (catalog.find(name).folder / "x").mkdir(parents=True)
    assert call("check", name).exit_code == 0
    assert checks == [(module, folder), (module, home / catalog.find(name).name)]


def test_faults_are_printed_and_make_the_exit_code(tmp_path, checks):
    (tmp_path / "bad").touch()
    done = call("check", "aan", tmp_path)
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-2:] == [f"  FAULT: {tmp_path / 'bad'}:3: bad", "1 fault"]


def test_the_checks_of_the_formats_exist():
    for dataset in catalog.CATALOG.values():
        if dataset.check:
            assert callable(importlib.import_module(f"sptlib.formats.{dataset.check}").check)


def test_check_refuses_what_it_cannot_check(home, checks):
    assert refused(call("check", "listop"), ConfigError, "did you mean 'listops'?")
    assert refused(call("check", "digits"), ConfigError, "scikit-learn")
    done = call("check", "cifar10")
    assert refused(done, DataError, str(home / "cifar10"), "`sptlib data get cifar10`")
    assert checks == []


# --- get ------------------------------------------------------------------------------------------


def packed(path: Path, *names: str) -> bytes:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 5
            tar.addfile(info, io.BytesIO(b"12345"))
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.fixture
def shelf(monkeypatch, tmp_path):
    """A catalogue whose archives are what a test puts there; `fetched` lists the downloads."""
    fetched, contents = [], {}

    def put(name: str, *members: str) -> bytes:
        dataset = catalog.CATALOG[name]
        content = packed(tmp_path / "x.tgz", *members)
        file = dataset.files[0]
        sha = file.sha256 and hashlib.sha256(content).hexdigest()
        size = file.size and len(content)
        new = replace(dataset, files=(replace(file, sha256=sha, size=size), *dataset.files[1:]))
        monkeypatch.setitem(catalog.CATALOG, name, new)
        contents[file.url] = content
        return content

    class Opener:
        def open(self, request, timeout):
            fetched.append(request.full_url)
            answer = io.BytesIO(contents[request.full_url])
            answer.status, answer.length, answer.headers = 200, len(answer.getvalue()), {}
            return answer

    monkeypatch.setattr(download.urllib.request, "build_opener", lambda *handlers: Opener())
    put.fetched = fetched
    return put


def test_get_downloads_unpacks_and_checks(home, checks, shelf):
    shelf("imdb", "aclImdb/train/pos/0_9.txt")
    done = call("get", "text")
    assert done.exit_code == 0, done.exception
    assert (home / "imdb/aclImdb/train/pos/0_9.txt").read_text() == "12345"
    assert sorted(p.name for p in (home / "imdb").iterdir()) == ["aclImdb", "aclImdb_v1.tar.gz"]
    assert "aclImdb_v1.tar.gz is not needed any more" in done.stdout
    assert done.stdout.endswith("no faults\n")
    assert "downloading aclImdb_v1.tar.gz: 100%" in done.stderr
    assert checks == [("imdb", home / "imdb")]
    again = call("get", "imdb")
    assert "aclImdb is there already" in again.stdout
    assert again.stderr == ""
    assert len(shelf.fetched) == 1
    (home / "imdb/aclImdb/mine").touch()
    assert call("get", "imdb", "--force").exit_code == 0
    assert len(shelf.fetched) == 2
    assert not (home / "imdb/aclImdb/mine").exists()


def test_an_archive_that_was_put_there_by_hand_is_verified_and_unpacked(home, checks, shelf):
    content = shelf("cifar10", "cifar-10-batches-py/test_batch", "cifar-10-batches-py/bad")
    archive = home / "cifar10" / "cifar-10-python.tar.gz"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(content[:-1] + b"?")
    assert refused(call("get", "cifar10"), DataError, str(archive), "SHA-256", "--force")
    assert list(archive.parent.iterdir()) == [archive]
    archive.write_bytes(content)
    done = call("get", "cifar10")
    assert (archive.parent / "cifar-10-batches-py" / "test_batch").is_file()
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (1, "1 fault")
    assert shelf.fetched == []


def test_get_refuses_what_has_no_download(home):
    assert refused(call("get", "listops"), ConfigError, "`sptlib data make listops`", "get lra")
    assert refused(call("get", "retrieval"), ConfigError, "tsv_data", "`sptlib data get lra`")
    assert refused(call("get", "mnist"), ConfigError, "pip install 'sptlib[data]'")
    assert refused(call("get", "imbd"), ConfigError, "did you mean 'imdb'?")
    done = call("get", "cifar10", "--file", "cifar-10-binary.tgz")
    assert refused(done, ConfigError, "did you mean 'cifar-10-binary.tar.gz'?")
    assert not home.exists()


def test_the_release_is_distributed_to_where_the_tasks_look(home, checks, shelf):
    inner = "lra_release/lra_release"
    shelf(
        "lra",
        f"{inner}/listops-1000/basic_train.tsv",
        f"{inner}/tsv_data/new_aan_pairs.train.tsv",
        f"{inner}/pathfinder32/curv_baseline/imgs/0/sample_0.png",
        f"{inner}/pathfinder64/curv_baseline/imgs/0/sample_0.png",
        f"{inner}/pathfinder128/curv_baseline/bad",
    )
    (home / "listops").mkdir(parents=True)
    (home / "listops" / "mine").touch()
    done = call("get", "lra")
    assert "403" in done.stderr
    official = home / "lra" / inner / "listops-1000"
    assert f"{home / 'listops'} was there before and stays; {official} stays" in done.stdout
    assert [p.name for p in (home / "listops").iterdir()] == ["mine"]
    assert (home / "aan/new_aan_pairs.train.tsv").read_text() == "12345"
    assert (home / "pathfinder/pathfinder32/curv_baseline/imgs/0/sample_0.png").is_file()
    assert not list(home.rglob("pathfinder64"))
    assert checks == [
        ("listops", official),
        ("aan", home / "aan"),
        ("pathfinder", home / "pathfinder/pathfinder32"),
        ("pathfinder", home / "pathfinder/pathfinder128"),
    ]
    assert done.exit_code == 1  # by the last one
    (home / "pathfinder/pathfinder128/curv_baseline/bad").unlink()
    assert call("check", "lra").exit_code == 0


def test_check_of_a_release_elsewhere_names_what_is_missing(tmp_path, checks):
    (tmp_path / "lra_release" / "tsv_data").mkdir(parents=True)
    done = call("check", "lra", tmp_path)
    assert done.exit_code == 1
    assert checks == [("aan", tmp_path / "lra_release" / "tsv_data")]
    assert done.stdout.count("FAULT: no folder") == 3
    assert f"FAULT: no folder listops-1000 in {tmp_path}" in done.stdout


# --- make -----------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch, checks) -> list[tuple]:
    """What the makers were called with; they write nothing but a file of their own."""
    calls = []
    module = types.ModuleType("sptlib.data.make")

    def listops(folder, sizes, seed, workers, progress):
        calls.append((folder, sizes, seed, workers))
        progress(1, 2)
        progress(2, 2)

    def pathfinder(folder, side, contour_length, n, seed, workers, progress):
        calls.append((folder, side, contour_length, n, seed, workers))

    module.listops, module.pathfinder = listops, pathfinder
    monkeypatch.setitem(sys.modules, "sptlib.data.make", module)
    return calls


def test_make_listops(home, tmp_path, made):
    done = call("make", "listops")
    assert done.exit_code == 0, done.exception
    assert f"`sptlib data check listops {home / 'listops'}`" in done.stdout
    assert "making listops: 100%" in done.stderr
    call("make", "listops", "--train", 5, "--test", 3, "--seed", 7, "--workers", 2,
         "--out", tmp_path / "x")  # fmt: skip
    assert made == [
        (home / "listops", {"train": 96_000, "val": 2_000, "test": 2_000}, 0, None),
        (tmp_path / "x", {"train": 5, "val": 2_000, "test": 3}, 7, 2),
    ]


def test_make_pathfinder(home, tmp_path, made):
    assert call("make", "pathfinder").exit_code == 0
    call("make", "pathfinder", "--side", 128, "--contour-length", 6, "-n", 10)
    call("make", "pathfinder", "--side", 16)
    call("make", "pathfinder", "--out", tmp_path / "x", "--seed", 1, "--workers", 1)
    place = home / "pathfinder"
    assert made == [
        (place / "pathfinder32" / "curv_contour_length_14", 32, 14, 200_000, 0, None),
        (place / "pathfinder128" / "curv_baseline", 128, 6, 10, 0, None),
        (place / "pathfinder16" / "curv_contour_length_5", 16, 5, 200_000, 0, None),
        (tmp_path / "x", 32, 14, 200_000, 1, 1),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("listops", "--side", 16), "--side is no option of listops"),
        (("listops", "-n", 5), "-n is no option of listops"),
        (("listops", "--contour-length", 9), "--contour-length is no option of listops"),
        (("pathfinder", "--val", 5), "--val is no option of pathfinder"),
        (("imdb",), "`sptlib data get imdb`"),
        (("pathfindr",), "did you mean 'pathfinder'?"),
    ],
    ids=str,
)
def test_make_refuses_what_makes_no_sense(home, made, arguments, words):
    assert refused(call("make", *arguments), ConfigError, words)
    assert made == []
    assert not home.exists()


@pytest.mark.parametrize(
    "arguments", [("--side", 64), ("--train", 0), ("--workers", 0), ("--seed", -1), ("-n", 0)]
)
def test_make_refuses_wrong_numbers(made, arguments):
    done = call("make", "pathfinder", *arguments)
    assert done.exit_code == click.UsageError.exit_code
    assert arguments[0] in done.stderr
    assert made == []
