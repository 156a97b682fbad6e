"""The store: whole entries or none, every damage found, no writing where it is not allowed."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import Timeout

from sptlib import execute
from sptlib import store as module
from sptlib.config import key, to_dict
from sptlib.errors import StoreError
from sptlib.execute import compute
from sptlib.store import FILES, SNAPSHOTS, Store, default_path, repository_root

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
    write = module._write

    def failing(path, content):
        if path.name == name:
            write(path, content[: len(content) // 2])
            raise OSError("lightning")
        return write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write", failing)
        with pytest.raises(OSError, match="lightning"):
            store.put(tiny, **CONTENT)
    assert store.get(tiny) is None
    assert list(store.entries()) == []
    assert list((store.path / ".tmp").iterdir()) == []
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


# --- packed, and unpacked elsewhere -------------------------------------------------------------


def test_an_entry_travels_as_bytes(tiny, store, tmp_path):
    here = store.put(tiny, **CONTENT)
    there = Store(tmp_path / "there").unpack(here.key, here.pack())
    there.verify()
    assert there.key == here.key
    assert all(there.read(name) == here.read(name) for name in FILES)
    assert there.manifest == here.manifest
    _flip(here.path / "model.safetensors")
    with pytest.raises(StoreError, match="is damaged"):
        store.get(tiny).pack()


KEPT = {0: {"a.weight": torch.zeros(2, 3)}, 12: {"a.weight": torch.ones(3, 2).T, "b": torch.eye(2)}}


def test_weights_along_the_way_are_kept_and_travel(tiny, store, tmp_path):
    here = store.put(tiny, **CONTENT, snapshots=KEPT)
    there = Store(tmp_path / "there").unpack(here.key, here.pack())
    for entry in (here, there):
        entry.verify()
        found = entry.snapshots()
        assert list(found) == [0, 12], "steps are numbers, in order"
        for step, weights in KEPT.items():
            assert found[step].keys() == weights.keys()
            assert all(torch.equal(found[step][name], value) for name, value in weights.items())
        assert torch.equal(entry.model()["a.weight"], CONTENT["model"]["a.weight"])
    assert there.manifest == here.manifest
    assert set(here.pack()) == {*FILES, SNAPSHOTS}


@pytest.mark.parametrize("snapshots", [None, {}])
def test_an_entry_without_them_says_so(tiny, store, snapshots):
    entry = store.put(tiny, **CONTENT, snapshots=snapshots)
    assert not (entry.path / SNAPSHOTS).exists()
    with pytest.raises(StoreError, match="its watch is 0"):
        entry.snapshots()
    assert set(entry.pack()) == set(FILES)


@pytest.mark.parametrize(
    "spoil", [_truncate, _flip, Path.unlink], ids=["truncated", "bit", "missing"]
)
def test_damaged_weights_along_the_way_are_found(tiny, store, spoil):
    entry = store.put(tiny, **CONTENT, snapshots=KEPT)
    spoil(entry.path / SNAPSHOTS)
    entry = store.get(tiny)
    for look in (entry.verify, entry.snapshots, entry.pack):
        with pytest.raises(StoreError, match=r"snapshots\.safetensors is damaged"):
            look()
    assert entry.result == CONTENT["result"]


def test_an_entry_that_is_replaced_while_it_is_read(tiny, store):
    """The manifest is the old one, the file the new one: it is not damage."""
    entry = store.put(tiny, **CONTENT)
    assert entry.manifest
    store.put(tiny, **{**CONTENT, "result": {"test_accuracy": 0.5}})
    assert entry.result == {"test_accuracy": 0.5}
    (entry.path / "metrics.jsonl").write_text("[]")
    with pytest.raises(StoreError, match="is damaged"):
        _ = entry.metrics


def test_two_who_publish_at_once(tiny, store, monkeypatch):
    """Somebody else's result appears between our look and our rename: one of them is kept."""
    replace, calls = os.replace, []

    def late(source, target):
        calls.append(target)
        if len(calls) == 1:
            monkeypatch.setattr(os, "replace", replace)
            Store(store.path).put(tiny, **{**CONTENT, "result": {"test_accuracy": 0.0}})
        return replace(source, target)

    monkeypatch.setattr(os, "replace", late)
    store.put(tiny, **CONTENT)
    store.get(tiny).verify()
    assert store.get(tiny).result == CONTENT["result"]
    assert len(list(store.entries())) == 1
    assert list((store.path / ".tmp").iterdir()) == []


# --- leases -------------------------------------------------------------------------------------

HOLD = """
import json, socket, sys, time
from sptlib import store
from sptlib.config import from_dict
store.LEASE_SECONDS = float(sys.argv[3])
if sys.argv[4]:
    socket.gethostname = lambda: sys.argv[4]
with store.Store(sys.argv[2]).lock(from_dict(json.loads(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(1000)
"""


def hold(tiny, store, seconds: float = 30.0, host: str = "") -> subprocess.Popen:
    """A process that holds the lease on `tiny`, perhaps on what it says is another host."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLD,
            json.dumps(to_dict(tiny)),
            str(store.path),
            str(seconds),
            host,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen) -> None:
    process.kill()
    process.communicate()


def test_a_lease_that_lives_is_waited_for(tiny, store):
    process = hold(tiny, store, 1.5, "another-host")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "LEASE_SECONDS", 1.5)
            lock = store.lock(tiny)
            with pytest.raises(Timeout):  # it is touched twice and more in this time
                lock.acquire(timeout=4)
            with store.lock(replace(tiny, seed=1)):
                pass  # another result is another lease
    finally:
        end(process)


def test_a_lease_of_the_dead_on_this_host_is_taken_over_at_once(tiny, store):
    end(hold(tiny, store))
    assert list(store.path.glob(".locks/*"))
    started = time.monotonic()
    with store.lock(tiny):
        assert time.monotonic() - started < module.LEASE_SECONDS / 2
    assert not list(store.path.glob(".locks/*"))


def test_a_lease_of_the_dead_on_another_host_is_taken_over_in_time(tiny, store, monkeypatch):
    """No clocks are compared: the waiting process only sees that nobody touches the file."""
    end(hold(tiny, store, 1.5, "another-host"))
    monkeypatch.setattr(module, "LEASE_SECONDS", 1.5)
    started = time.monotonic()
    with store.lock(tiny):
        assert time.monotonic() - started >= 1.5


def test_a_holder_that_slept_too_long_does_no_harm(tiny, store, where, monkeypatch):
    """It lost its lease to one who thinks that it is dead; both end with the same result."""
    original, other = execute.pretrain, []

    def successor():
        other.append(compute(tiny.pretraining, Store(store.path), where))

    def slow(*arguments, **options):
        monkeypatch.setattr(execute, "pretrain", original)
        for lease in store.path.glob(".locks/*"):
            lease.unlink()  # what a takeover does
        thread = threading.Thread(target=successor)
        thread.start()
        thread.join()
        return original(*arguments, **options)

    monkeypatch.setattr(execute, "pretrain", slow)
    mine = compute(tiny.pretraining, store, where)
    mine.verify()
    assert other[0].key == mine.key
    assert len(list(store.entries())) == 1


# --- a full disk --------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 256 KiB, if one can be mounted here."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk(tiny, small_disk, where):
    store = Store(small_disk / "store")
    compute(tiny.pretraining, store, where)
    (small_disk / "ballast").write_bytes(bytes(os.statvfs(small_disk).f_bfree * 4096 - 3 * 4096))
    with pytest.raises(StoreError, match=r"^no space for the store .*No space left on device"):
        compute(tiny, store, where)
    assert [entry.key for entry in store.entries()] == [key(tiny.pretraining)]
    assert list((store.path / ".tmp").iterdir()) == []
    for entry in store.entries():
        entry.verify()
    (small_disk / "ballast").unlink()
    compute(tiny, store, where).verify()


LIMITED = """
import json, resource, sys
from sptlib.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
try:
    main(sys.argv[2:])
finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such limits there")
def test_a_file_that_may_not_grow(tmp_path, python):
    """Where no disk can be filled, the kernel refuses large files all the same."""
    store = Store(tmp_path / "store")
    train = ["train", "--preset", "smoke", "--device", "cpu", "--store", str(store.path)]
    done = python("-c", LIMITED, "2000", *train)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()[-1:]) == 1
    assert "no space for the store" in done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(store.entries()) == []
    done = python("-c", LIMITED, "10000000", *train)
    assert done.returncode == 0, done.stderr
    assert len(list(store.entries())) == 2


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


def test_an_entry_is_never_missing_while_it_is_replaced(tiny, store):
    """A reader in another thread finds one or the other, whole, however often it looks."""
    store.put(tiny, **CONTENT)
    done, found = threading.Event(), []

    def look():
        while not done.is_set():
            try:
                store.get(tiny).verify()
            except (StoreError, AttributeError) as error:  # None has no verify
                found.append(error)
            time.sleep(0.001)

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(30):
        store.put(tiny, **CONTENT)
    done.set()
    thread.join()
    assert len(found) <= 3, found[:3]  # the gap between two renames; it was a folder's deletion
    store.get(tiny).verify()
    assert list((store.path / ".tmp").iterdir()) == []


def test_an_empty_lease_that_is_old_holds_nobody_up(tiny, store):
    """What a holder leaves that dies before it has written its name, or a power cut."""
    path = store.path / ".locks" / f"{key(tiny)}.lease"
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(Timeout):  # a young one may be somebody's who is just writing
        store.lock(tiny).acquire(timeout=0.5)
    old = time.time() - 2 * module.LEASE_SECONDS
    os.utime(path, (old, old))
    with store.lock(tiny).acquire(timeout=5):
        assert path.stat().st_size > 0


def test_a_lease_of_another_version_is_an_error_not_a_wait(tiny, store, where, monkeypatch):
    """Whoever has another `LEASE_SECONDS` cannot be waited for; neither sweep would ever end."""
    process = hold(tiny.pretraining, store, 7.0)
    try:
        for patient in (True, False):
            with pytest.raises(StoreError, match=r"the lease .*\.lease cannot be taken"):
                compute(tiny.pretraining, store, replace(where, wait=patient))
    finally:
        end(process)
    compute(tiny.pretraining, store, where).verify()


def test_a_young_empty_lease_is_looked_at_again(tiny, store, where, monkeypatch):
    """Who waits for it goes on once it has grown old, without being called again."""
    monkeypatch.setattr(module, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(execute, "LEASE_SECONDS", 1.0)
    path = store.lease_path(key(tiny.pretraining))
    path.parent.mkdir(parents=True)
    path.touch()
    compute(tiny.pretraining, store, where).verify()
    assert not path.exists()
