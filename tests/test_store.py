"""The store: whole entries or none, every damage found, no writing where it is not allowed."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from sptlib import store as module
from sptlib.errors import StoreError
from sptlib.execute import compute
from sptlib.store import FILES, Store, default_path, repository_root

CONTENT = {
    "metrics": [{"step": 1, "loss": 0.1 + 0.2}, {"step": 2, "loss": 1e-30}],
    "result": {"test_accuracy": 1 / 3},
    "model": {"a.weight": torch.arange(6.0).view(2, 3)},
    "environment": {"seconds": 1.5},
}


def test_what_is_put_is_got(tiny, store):
    assert store.get(tiny) is None
    assert list(store.entries()) == []
    store.put(tiny, **CONTENT)
    entry = store.get(tiny)
    entry.verify()
    assert entry.spec == tiny
    assert entry.metrics == CONTENT["metrics"]  # to the last bit
    assert entry.result == CONTENT["result"]
    assert entry.environment == CONTENT["environment"]
    assert torch.equal(entry.model()["a.weight"], CONTENT["model"]["a.weight"])
    assert sorted(path.name for path in entry.path.iterdir()) == sorted([*FILES, "manifest.json"])
    assert [e.key for e in store.entries()] == [entry.key]
    assert store.get(tiny.pretraining) is None
    assert list((store.path / ".tmp").iterdir()) == []


def test_putting_again_replaces(tiny, store):
    store.put(tiny, **CONTENT)
    (store.get(tiny).path / "result.json").write_text("spoilt")
    store.put(tiny, **{**CONTENT, "result": {"test_accuracy": 1.0}})
    store.get(tiny).verify()
    assert store.get(tiny).result == {"test_accuracy": 1.0}
    assert list((store.path / ".tmp").iterdir()) == []


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_failure_while_writing_leaves_no_entry(tiny, store, monkeypatch, name):
    write = Path.write_bytes

    def failing(self, data):
        if self.name == name:
            write(self, data[: len(data) // 2])
            raise OSError("disk full")
        return write(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", failing)
        with pytest.raises(OSError, match="disk full"):
            store.put(tiny, **CONTENT)
    assert store.get(tiny) is None
    assert list(store.entries()) == []
    store.put(tiny, **CONTENT)
    store.get(tiny).verify()


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "spoil", [_truncate, _flip, Path.unlink], ids=["truncated", "bit", "missing"]
)
@pytest.mark.parametrize("name", FILES)
def test_every_damage_is_found(tiny, store, name, spoil):
    entry = store.put(tiny, **CONTENT)
    spoil(entry.path / name)
    entry = store.get(tiny)
    with pytest.raises(StoreError, match=r"is damaged.*verify --repair") as caught:
        entry.verify()
    assert str(entry.path / name) in str(caught.value)
    with pytest.raises(StoreError, match="is damaged"):
        entry.read(name)
    others = [n for n in FILES if n != name]
    assert all(entry.read(n) for n in others)  # the other files are still good


@pytest.mark.parametrize("text", ["", "{", "\udcff", "{}", None], ids=ascii)
def test_a_damaged_manifest_is_found(tiny, store, text):
    entry = store.put(tiny, **CONTENT)
    if text is None:
        (entry.path / "manifest.json").unlink()
    else:
        (entry.path / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(StoreError):
        store.get(tiny).verify()


def test_a_damaged_entry_is_not_served_and_is_recomputed_on_request(tiny, store, where):
    first = compute(tiny, store, where)
    before = first.read("model.safetensors"), first.read("metrics.jsonl")
    _flip(first.path / "result.json")
    with pytest.raises(StoreError, match=r"result\.json is damaged"):
        _ = compute(tiny, store, where).result
    again = compute(tiny, store, where, recompute=True)
    again.verify()
    assert (again.read("model.safetensors"), again.read("metrics.jsonl")) == before
    store.remove(again.key)
    assert store.get(tiny) is None
    compute(tiny, store, where).verify()


def test_a_damaged_pretraining_is_not_used_and_is_recomputed_on_request(tiny, store, where):
    first = compute(tiny.pretraining, store, where)
    _flip(first.path / "model.safetensors")
    with pytest.raises(StoreError, match=r"model\.safetensors is damaged"):
        compute(tiny, store, where)
    assert store.get(tiny) is None
    compute(tiny, store, where, recompute=True).verify()
    store.get(tiny.pretraining).verify()


def test_match_needs_one_entry(tiny, store):
    a = store.put(tiny, **CONTENT)
    store.put(tiny.pretraining, **CONTENT)
    assert store.match(a.key[:12]).key == a.key
    for prefix, n in (("", 2), ("xyz", 0)):
        with pytest.raises(StoreError, match=f"{n} entries"):
            store.match(prefix)


def test_where_the_store_is(monkeypatch, tmp_path):
    monkeypatch.setenv("SPTLIB_STORE", str(tmp_path / "mine"))
    assert Store().path == default_path() == tmp_path / "mine"
    assert Store(tmp_path / "other").path == tmp_path / "other"
    monkeypatch.delenv("SPTLIB_STORE")
    monkeypatch.chdir(tmp_path)
    assert repository_root() is None
    assert default_path() == module.user_cache_path("sptlib") / "store"
    (tmp_path / "_config.yml").touch()
    (tmp_path / "sptlib").mkdir()
    (tmp_path / "book" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "book" / "deep")
    assert default_path() == tmp_path / "results" / "store"
    assert not (tmp_path / "results").exists()  # created when something is written


def test_a_store_that_cannot_be_read_says_so(store, monkeypatch):
    store.path.mkdir()

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(StoreError, match=r"cannot be read .Permission denied"):
        list(store.entries())


def test_looking_creates_nothing(tiny, store):
    assert store.get(tiny) is None
    assert list(store.entries()) == []
    assert not store.path.exists()


# --- where it cannot be written -----------------------------------------------------------------


def test_a_store_below_a_file_is_refused(tiny, tmp_path, where):
    (tmp_path / "file").write_text("here")
    for path in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(StoreError, match=r"cannot be written.*--store"):
            compute(tiny, Store(path), where)
    assert (tmp_path / "file").read_text() == "here"


FORBIDDEN = """
import json, os, sys
from click.testing import CliRunner
from sptlib.cli import main
command = ["train", "--preset", "smoke", "--task", "neighbor", "--set", "pretrain.epochs=0.1",
           "--set", "finetune.epochs=0.1", "--device", "cpu"]

def train(seed, store):
    return CliRunner().invoke(main, [*command, "--seed", str(seed), "--store", store])

# once where it is allowed: everything is imported before the rights are given up
assert train(0, sys.argv[1]).exit_code == 0
for folder in ("", ".locks", ".tmp", ".work"):
    os.chmod(os.path.join(sys.argv[1], folder), 0o555)
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
assert train(0, sys.argv[1]).exit_code == 0  # what is stored can still be read
for folder in sys.argv[1:]:
    done = train(1, folder)
    print(json.dumps([done.exit_code, done.stderr, type(done.exception).__name__]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="rights are different there")
def test_a_store_without_permission_is_refused(python):
    """In a process without root's rights, if the tests have them."""
    root = Path(os.path.realpath("/tmp")) / f"sptlib-test-{os.getpid()}"  # readable for everyone
    try:
        for name, mode in (("allowed", 0o777), ("readable", 0o555), ("closed", 0o000)):
            (root / name).mkdir(parents=True)
            (root / name).chmod(mode)
        root.chmod(0o755)
        readable, closed = root / "readable", root / "closed"
        done = python(
            "-W",
            "ignore",
            "-c",
            FORBIDDEN,
            str(root / "allowed"),
            str(readable),
            str(readable / "new"),
            str(closed),
            str(closed / "new"),
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(lines) == 5, done.stderr
        for code, error, kind in lines:
            assert (code, kind) == (1, "SystemExit")
            assert "cannot be written" in error
            assert len(error.strip().splitlines()) == 1
        assert list(readable.iterdir()) == []
    finally:
        for path in root.iterdir():
            path.chmod(0o755)
        for folder, _, _ in os.walk(root):
            os.chmod(folder, 0o755)
        shutil.rmtree(root)
