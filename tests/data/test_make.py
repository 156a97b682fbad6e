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
from sptlib.formats import listops, pathfinder
from sptlib.generators.listops import Grammar
from sptlib.tasks import ListOpsConfig

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
