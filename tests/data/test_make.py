"""Generating data sets: the same bytes for any number of processes, and after being stopped."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from sptlib import tasks
from sptlib.cli import main
from sptlib.data import make
from sptlib.errors import ConfigError, DataError
from sptlib.formats import listops, pathfinder
from sptlib.generators.listops import Grammar
from sptlib.tasks import ListOpsConfig, PathfinderConfig

SHORT = Grammar(max_depth=5, max_args=5, min_length=3, max_length=40)
SIZES = {"train": 5000, "val": 50, "test": 60}
SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"


def content(folder: Path) -> dict[str, str]:
    """The hash of every file below a folder."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


@pytest.mark.parametrize("what", ["listops", "pathfinder"])
def test_any_number_of_processes_gives_the_same_bytes(tmp_path, what):
    seen = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        if what == "listops":
            make.listops(folder, SIZES, 3, workers, lambda *a: seen.append(a), SHORT)
        else:
            make.pathfinder(folder, 16, 5, 600, 3, workers, lambda *a: seen.append(a))
    assert content(tmp_path / "1") == content(tmp_path / "2")
    total = sum(SIZES.values()) if what == "listops" else 600
    assert seen[-1] == (total, total)
    assert {n for _, n in seen} == {total}
    assert not list(tmp_path.rglob(".making"))
    if what == "listops":
        assert set(content(tmp_path / "1")) == {f"basic_{s}.tsv" for s in SIZES}
        report = listops.check(tmp_path / "1")
        assert report.faults == []
        assert not [n for n in report.notes if "repeat" in n], "distinct over all three files"
    else:
        assert len(pathfinder.read(tmp_path / "1").labels) == 600


def test_a_task_generates_the_rows_that_make_writes(tmp_path, monkeypatch):
    """So that results on generated data can be compared with results on the written files."""
    monkeypatch.setenv("SPTLIB_DATA", str(tmp_path))
    make.listops(tmp_path / "listops", {"train": 40, "val": 20, "test": 30}, 7, 1, None, SHORT)
    sizes = {"n_train": 40, "n_val": 20, "n_test": 30}
    grammar = vars(SHORT)
    generated = tasks.load(ListOpsConfig(**sizes, **grammar), 7)
    read = tasks.load(ListOpsConfig(**sizes, source="files", max_len=39), 7)
    assert generated.fingerprint == read.fingerprint


class StopError(Exception):
    pass


@pytest.mark.parametrize("what", ["listops", "pathfinder"])
def test_what_was_stopped_goes_on_from_its_blocks(tmp_path, monkeypatch, what):
    def run(folder: Path, progress) -> None:
        if what == "listops":
            make.listops(folder, SIZES, 0, 1, progress, SHORT)
        else:
            make.pathfinder(folder, 16, 5, 700, 0, 1, progress)

    run(tmp_path / "whole", lambda *a: None)

    def stop(done: int, total: int) -> None:
        if done > 300:
            raise StopError

    with pytest.raises(StopError):
        run(tmp_path / "stopped", stop)
    left = list((tmp_path / "stopped" / ".making").rglob("*.npz"))
    assert left
    assert set(content(tmp_path / "stopped")) - {str(p.relative_to(tmp_path / "stopped"))
                                                 for p in left} <= {"basic_test.tsv",
                                                                    "basic_val.tsv"}
    made = []
    original = make._call
    monkeypatch.setattr(make, "_call", lambda *a: (made.append(a[-1]), original(*a))[1])
    run(tmp_path / "stopped", lambda *a: None)
    n_blocks = {"listops": 1, "pathfinder": 3}[what]
    assert len(made) < n_blocks + len(left), "finished blocks are not made again"
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")


def test_blocks_of_another_set_are_not_used(tmp_path):
    def stop(done: int, total: int) -> None:
        raise StopError

    with pytest.raises(StopError):
        make.listops(tmp_path / "a", SIZES, 1, 1, stop, SHORT)
    make.listops(tmp_path / "a", SIZES, 2, 1, None, SHORT)
    make.listops(tmp_path / "b", SIZES, 2, 1, None, SHORT)
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_nothing_that_is_there_is_overwritten(tmp_path):
    official = tmp_path / "x" / "basic_train.tsv.gz"
    official.parent.mkdir()
    official.write_bytes(b"precious")
    with pytest.raises(DataError, match=r"basic_train\.tsv\.gz: there is a set already"):
        make.listops(tmp_path / "x", SIZES, 0, 1, None, SHORT)
    assert content(tmp_path / "x") == {official.name: hashlib.sha256(b"precious").hexdigest()}
    make.pathfinder(tmp_path / "p", 16, 5, 30, 0, 1)
    before = content(tmp_path / "p")
    with pytest.raises(DataError, match="there is a set already"):
        make.pathfinder(tmp_path / "p", 16, 5, 30, 1, 1)
    assert content(tmp_path / "p") == before


def test_an_unfinished_set_is_not_mixed_with_another_and_not_read(tmp_path, monkeypatch):
    """Stopped while its images were being written; then somebody tries another seed."""
    place = tmp_path / "pathfinder" / "pathfinder16" / "curv_contour_length_5"
    monkeypatch.setenv("SPTLIB_DATA", str(tmp_path))
    original = pathfinder.write

    def stop(folder, images, labels, drawing):
        original(folder, images[:20], labels[:20], drawing)
        raise StopError

    monkeypatch.setattr(pathfinder, "write", stop)
    with pytest.raises(StopError):
        make.pathfinder(place, 16, 5, 30, 0, 1)
    monkeypatch.setattr(pathfinder, "write", original)
    with pytest.raises(DataError, match="an unfinished set of other parameters"):
        make.pathfinder(place, 16, 5, 30, 1, 1)
    done = CliRunner().invoke(main, ["data", "check", "pathfinder"])
    assert (done.exit_code, "this set is unfinished" in done.output) == (1, True)
    assert "partly made" in CliRunner().invoke(main, ["data", "list"]).output
    task = PathfinderConfig(source="files", side=16, contour_length=5, n_train=10, n_val=4,
                            n_test=6)  # fmt: skip
    with pytest.raises(DataError, match="this set is unfinished"):
        tasks.load(task, 0)
    make.pathfinder(place, 16, 5, 30, 0, 1)
    make.pathfinder(tmp_path / "whole", 16, 5, 30, 0, 1)
    assert content(place) == content(tmp_path / "whole")
    assert len(tasks.load(task, 0).train) == 10


def test_two_at_once_do_not_meddle(tmp_path):
    tried = []

    def second(done: int, total: int) -> None:
        if not tried:
            with pytest.raises(DataError, match="another process is making this set"):
                make.listops(tmp_path / "x", SIZES, 1, 1, None, SHORT)
            tried.append(done)

    make.listops(tmp_path / "x", SIZES, 0, 1, second, SHORT)
    assert tried
    make.listops(tmp_path / "y", SIZES, 0, 1, None, SHORT)
    assert content(tmp_path / "x") == content(tmp_path / "y")


@pytest.mark.parametrize("damage", [b"", b"text", b"PK\x03\x04 half an archive"])
def test_damaged_blocks_are_made_anew(tmp_path, damage):
    def stop(done: int, total: int) -> None:
        raise StopError

    with pytest.raises(StopError):
        make.listops(tmp_path / "x", SIZES, 0, 1, stop, SHORT)
    (block,) = (tmp_path / "x").rglob("*.npz")
    block.write_bytes(damage)
    make.listops(tmp_path / "x", SIZES, 0, 1, None, SHORT)
    assert listops.check(tmp_path / "x").faults == []


def test_a_contour_that_does_not_fit_leaves_nothing(tmp_path):
    with pytest.raises(ConfigError, match="contour_length=99 does not fit into 16×16"):
        make.pathfinder(tmp_path / "x", 16, 99, 10)
    assert not (tmp_path / "x").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file.*cannot be written .*another folder by --out"):
        make.listops(tmp_path / "file", SIZES, 0, 1, None, SHORT)


def test_killed_in_the_middle_and_started_again(tmp_path):
    """The real command, the real signal."""
    command = [sys.executable, "-m", "sptlib", "data", "make", "listops", "--train", "3000",
               "--val", "20", "--test", "20", "--workers", "1", "--out", str(tmp_path / "x")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "x").rglob("train/*.npz"))) < 2 and time.monotonic() < deadline:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "x" / "basic_train.tsv").exists()
    done = CliRunner().invoke(main, command[3:])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(main, ["data", "check", "listops", str(tmp_path / "x")])
    assert (done.exit_code, "3,000 rows" in done.output) == (0, True)
    assert sorted(os.listdir(tmp_path / "x")) == [
        "basic_test.tsv", "basic_train.tsv", "basic_val.tsv",
    ]  # fmt: skip


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="no samples here")
@pytest.mark.parametrize(("name", "folder"), [
    ("listops", "listops-1000"), ("pathfinder", "pathfinder32"), ("retrieval", "aan"),
    ("aan", "aan"), ("text", "aclImdb_sample"), ("imdb", "aclImdb_sample/aclImdb"),
    ("image", "cifar-10-batches-py"),
])  # fmt: skip
def test_every_sample_passes_the_check_and_is_smaller_than_official(name, folder):
    done = CliRunner().invoke(main, ["data", "check", name, str(SAMPLES / folder)])
    assert done.exit_code == 0, done.output
    assert "official set" in done.output
    assert done.output.endswith("no faults\n")
