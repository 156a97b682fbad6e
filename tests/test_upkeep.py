"""Pruning: what is litter goes, what anybody is served or works at stays."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import settings as options
from hypothesis import strategies as st

from sptlib import config, upkeep
from sptlib.config import Run, digest, key, to_dict
from sptlib.errors import Stopped, StoreError
from sptlib.execute import Where, compute
from sptlib.store import FILES, LEASE_SECONDS, Store
from sptlib.upkeep import Pruning, holding, in_use

CONTENT = {
    "metrics": [{"stage": "finetune", "step": 1, "loss": 0.5}],
    "result": {"steps": 1, "test_accuracy": 0.5, "val_loss": 0.7},
    "model": {"a": torch.zeros(2)},
    "environment": {"seconds": 1.0},
}

HOLD = """
import sys
from filelock import SoftFileLease
with SoftFileLease(sys.argv[1], lease_duration=float(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(store: Store, name: str) -> subprocess.Popen:
    """A living process that holds the lease on a key."""
    (store.path / ".locks").mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store.lease_path(name)), str(LEASE_SECONDS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    return process


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


@pytest.fixture(scope="module")
def dead_lease(tmp_path_factory) -> Path:
    """The lease that a killed process leaves."""
    store = Store(tmp_path_factory.mktemp("dead"))
    kill(holder(store, "0" * 20))
    return store.lease_path("0" * 20)


def age(path: Path, seconds: float = 2 * upkeep.GRACE) -> None:
    moment = time.time() - seconds
    for each in (*path.rglob("*"), path):
        os.utime(each, (moment, moment))


def put_as(store: Store, run: Run, name: str, **versions: int) -> None:
    """An entry with this key, whatever it should be, of another version."""
    path = store.put(run, **CONTENT).path
    fields = {**to_dict(run), **versions}
    rewrite(path, fields)
    os.replace(path, store.path / name)


def rewrite(path: Path, fields: dict) -> None:
    import hashlib

    content = json.dumps(fields).encode()
    (path / "config.json").write_bytes(content)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["config.json"] = hashlib.sha256(content).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


def draft(store: Store, name: str) -> Path:
    folder = store.path / ".tmp" / f"{name}.{'a' * 32}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{")
    return folder


def unfinished(store: Store, run: Run) -> Path:
    """A training that was stopped after step 4 of 12, or its folder beside a stored one."""

    def halt(stage, step, n_steps, loss):
        if stage == "finetune" and step >= 8:
            raise KeyboardInterrupt

    other = Store(store.path.with_name("other"))
    where = Where(device="cpu", checkpoint_seconds=1e9, checkpoint_steps=4, progress=halt)
    with pytest.raises(KeyboardInterrupt):
        compute(run, other, where)
    folder = store.work_folder(run)
    shutil.copytree(other.path / ".work" / key(run), folder, dirs_exist_ok=True)
    shutil.rmtree(other.path)
    (folder / "config.json").write_text(json.dumps(to_dict(run)))
    return folder


def tree(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def served(store: Store, runs: list) -> dict:
    """Everything that `get` serves, to the byte."""
    found = {digest(run): store.get(run) for run in runs}
    return {d: {n: e.read(n) for n in FILES} for d, e in found.items() if e is not None}


def prune(store: Store, **which) -> list[str]:
    """What was removed, relative to the store."""
    pruning = Pruning(store, **which)
    return [str(x.path.relative_to(store.path)) for x in pruning.look() if pruning.remove(x)]


# --- what goes, what stays ----------------------------------------------------------------------


def test_a_healthy_store_has_nothing_to_prune(tiny, store):
    assert Pruning(store).look() == []  # and neither has one that is not there
    assert not store.path.exists()
    for run in (tiny, tiny.pretraining):
        store.put(run, **CONTENT)
    assert Pruning(store, unfinished=True, failed=True).look() == []


def test_entries_that_are_never_served_again_go(tiny, store):
    kept = store.put(tiny, **CONTENT).key
    put_as(store, replace(tiny, seed=1), "1" * 20)  # its data gave another key then
    put_as(store, replace(tiny, seed=2), "2" * 20, numerics=config.NUMERICS - 1)
    put_as(store, replace(tiny, seed=3), "3" * 20, numerics=config.NUMERICS + 1)
    put_as(store, replace(tiny, seed=4), "4" * 20, schema=config.SCHEMA + 1)
    pruning = Pruning(store)
    assert {x.path.name: x.why.split(",")[0] for x in pruning.look()} == {
        "1" * 20: "result on other data than there are now",
        "2" * 20: f"of an older version (schema {config.SCHEMA}",
    }
    assert [note.count("a newer version") for note in pruning.notes] == [1, 1]
    sizes = {x.path.name: x.size for x in pruning.look()}
    assert sizes["1" * 20] >= sum(p.stat().st_size for p in (store.path / ("1" * 20)).iterdir())
    assert len(store.path.joinpath("1" * 20, "config.json").read_bytes()) > 100  # looking is free
    assert sorted(prune(store)) == ["1" * 20, "2" * 20]
    assert {e.key for e in store.entries()} == {kept, "3" * 20, "4" * 20}
    assert list((store.path / ".tmp").iterdir()) == []


def test_entries_whose_data_are_not_here_stay(tiny, store, monkeypatch, tmp_path):
    monkeypatch.setenv("SPTLIB_DATA", str(tmp_path / "nothing"))
    path = store.put(tiny, **CONTENT).path
    fields = to_dict(tiny)
    fields["task"] = {"name": "listops", "source": "files", "n_train": 9, "n_val": 9, "n_test": 9}
    rewrite(path, fields)
    pruning = Pruning(store)
    assert pruning.look() == []
    assert "its data are not here" in pruning.notes[0]


def test_damaged_entries_are_for_repair(tiny, store):
    good, bad = store.put(tiny, **CONTENT), store.put(replace(tiny, seed=1), **CONTENT)
    (bad.path / "config.json").write_text("{")
    pruning = Pruning(store, keep=set())
    assert [x.path.name for x in pruning.look()] == [good.key]
    assert "damaged" in pruning.notes[0]
    assert upkeep.repair(store, good.key) is False
    assert upkeep.repair(store, bad.key) is True
    assert [e.key for e in store.entries()] == [good.key]


def test_drafts_go_after_an_hour(tiny, store):
    store.put(tiny, **CONTENT)
    young, old, grave = draft(store, "a" * 20), draft(store, "b" * 20), store.path / ".tmp" / "tmpx"
    grave.mkdir()
    for each in (old, grave):
        age(each)
    (old / "late").write_text("written just now")
    assert prune(store) == [".tmp/tmpx"]
    age(old)
    assert prune(store) == [f".tmp/{old.name}"]
    assert list((store.path / ".tmp").iterdir()) == [young]


def test_work_of_stored_trainings_goes_and_other_work_if_asked(tiny, store):
    store.put(tiny, **CONTENT)
    stored = unfinished(store, tiny)
    halfway = unfinished(store, replace(tiny, seed=1))
    failed = store.fail(replace(tiny, seed=2), [], "diverged at step 3").parent
    empty = store.work_folder(replace(tiny, seed=3))
    old = store.fail(replace(tiny, seed=4), [], "diverged").parent
    (old / "config.json").write_text(json.dumps({**to_dict(tiny), "numerics": 0}))
    (found,) = (w for w in upkeep.work(store) if w.path == halfway)
    assert (found.step, found.n_steps, found.error) == (4, 12, "")
    everything = upkeep.work(store)
    assert len(everything) == 5
    assert {x.path for x in Pruning(store).look()} == {stored, empty, old}
    prune(store)
    assert {w.path for w in upkeep.work(store)} == {halfway, failed}
    assert prune(store, failed=True) == [f".work/{failed.name}"]
    assert prune(store, unfinished=True) == [f".work/{halfway.name}"]


def test_work_beside_a_damaged_result_stays(tiny, store):
    entry = store.put(tiny, **CONTENT)
    unfinished(store, tiny)
    (entry.path / "model.safetensors").write_bytes(b"")
    assert prune(store) == []


def test_locks_of_earlier_versions_and_leases_of_the_dead_go(tiny, store, dead_lease):
    from filelock import FileLock

    locks = store.path / ".locks"
    locks.mkdir(parents=True)
    for name in "ab":
        (locks / f"{name * 20}.lock").touch()
    shutil.copy2(dead_lease, locks / f"{'d' * 20}.lease")
    before = tree(store.path)
    with FileLock(locks / f"{'a' * 20}.lock"):  # an earlier version is still at work
        assert len(Pruning(store).look()) == 2
        assert tree(store.path) == before
        assert sorted(prune(store)) == [f".locks/{'b' * 20}.lock", f".locks/{'d' * 20}.lease"]
    assert [p.name for p in locks.iterdir()] == [f"{'a' * 20}.lock"]


def test_keep_leaves_what_is_named_with_its_pretrainings(tiny, store):
    other = replace(tiny, seed=1)
    scratch = replace(tiny, pretrain=None)
    for run in (tiny, tiny.pretraining, other, other.pretraining, scratch):
        store.put(run, **CONTENT)
    keep = {digest(tiny), digest(tiny.pretraining)}
    assert set(prune(store, keep=keep)) == {key(other), key(other.pretraining), key(scratch)}
    assert prune(store, keep=keep) == []


def test_what_is_not_the_stores_is_not_touched(tiny, store):
    entry = store.put(tiny, **CONTENT)
    shutil.copytree(entry.path, store.path / f"{entry.key}-backup")  # no key, whatever is in it
    for name in ("notes/a", "README", "A" * 20 + "/x", ".work/mine/x", ".locks/me.txt", ".git/x"):
        path = store.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
        age(path)
    (store.path / ("e" * 20)).write_text("a file")
    before = tree(store.path)
    assert prune(store, unfinished=True, failed=True, keep={digest(tiny)}) == []
    assert tree(store.path) == before


# --- others at work -----------------------------------------------------------------------------


def test_the_lease_is_the_one_that_trainings_take(tiny, store):
    assert Path(store.lock(tiny).lock_file) == store.lease_path(key(tiny))
    with store.lock(tiny):
        assert in_use(store, key(tiny))
        with holding(store, key(tiny)) as free:
            assert not free
    assert not in_use(store, key(tiny))
    with holding(store, key(tiny)) as free:
        assert free
        assert in_use(store, key(tiny))
    assert list((store.path / ".locks").iterdir()) == []


def test_nothing_goes_that_a_living_process_holds(tiny, store):
    run = replace(tiny, seed=1)
    name = key(run)
    store.put(tiny, **CONTENT)
    folder, old = unfinished(store, run), draft(store, name)
    put_as(store, replace(tiny, seed=2), "1" * 20, numerics=0)
    age(old)
    pruning = Pruning(store, unfinished=True)
    early = pruning.look()  # before anybody takes the lease
    assert len(early) == 3
    process = holder(store, name)
    try:
        assert [x.path.name for x in pruning.look()] == ["1" * 20]
        assert sum("in use" in note for note in pruning.notes) == 2
        assert [pruning.remove(x) for x in early] == [True, False, False]
        assert upkeep.repair(store, name) is False
        assert folder.is_dir()
        assert old.is_dir()
    finally:
        kill(process)
    assert len(prune(store, unfinished=True)) == 3  # the dead one's lease as well
    assert [e.key for e in store.entries()] == [key(tiny)]


def test_what_was_finished_meanwhile_is_not_removed(tiny, store):
    pruning = Pruning(store, unfinished=True, keep=set())
    put_as(store, tiny, key(tiny), numerics=0)
    (item,) = pruning.look()
    store.put(tiny, **CONTENT)  # computed anew since then
    pruning.keep = None
    assert pruning.remove(item) is False
    store.get(tiny).verify()
    (item,) = Pruning(store, keep=set()).look()
    store.remove(key(tiny))
    assert pruning.remove(item) is False


def test_pruning_beside_a_training_changes_nothing(tiny, store, where):
    run = replace(tiny, pretrain=replace(tiny.pretrain, epochs=20, n_evals=20))
    script = (
        "import sys, json\nfrom sptlib.config import from_dict\nfrom sptlib.store import Store\n"
        "from sptlib.execute import Where, compute\nprint('go', flush=True)\n"
        "where = Where('cpu', checkpoint_seconds=0)\n"
        "compute(from_dict(json.loads(sys.argv[1])), Store(sys.argv[2]), where)\n"
    )
    words = [sys.executable, "-c", script, json.dumps(to_dict(run)), str(store.path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        seen = 0
        while process.poll() is None:
            pruning = Pruning(store, unfinished=True, failed=True)
            for item in pruning.look():
                pruning.remove(item)
            seen += bool(pruning.notes)
            time.sleep(0.01)
        assert process.returncode == 0
    assert seen > 0  # they did meet
    other = Store(store.path.with_name("undisturbed"))
    compute(run, other, where)
    for spec in (run, run.pretraining):
        for name in ("metrics.jsonl", "result.json", "model.safetensors"):
            assert store.get(spec).read(name) == other.get(spec).read(name)
    assert prune(store) == []


STOPPED = """
import os, shutil, sys
from sptlib.store import Store
from sptlib.upkeep import Pruning
n = 2
remove = shutil.rmtree
def rmtree(path, *args, **kwargs):
    global n
    n -= os.path.dirname(path).endswith(".tmp")
    if n == 0:
        os.unlink(path / "result.json")
        os._exit(9)
    return remove(path, *args, **kwargs)
shutil.rmtree = rmtree
pruning = Pruning(Store(sys.argv[1]), keep=set())
for item in pruning.look():
    pruning.remove(item)
"""


def test_a_pruning_that_is_killed_leaves_whole_entries(tiny, store, python):
    runs = [replace(tiny, seed=seed) for seed in range(4)]
    for run in runs:
        store.put(run, **CONTENT)
    assert python("-c", STOPPED, str(store.path)).returncode == 9
    left = list(store.entries())
    assert len(left) == 2
    for entry in left:
        entry.verify()
    (grave,) = (store.path / ".tmp").iterdir()
    assert len(list((store.path / ".locks").iterdir())) == 1  # of the dead
    age(grave)
    assert len(prune(store)) == 2
    assert len(prune(store, keep=set())) == 2
    assert [p for p in store.path.rglob("*") if p.is_file()] == []


def test_a_store_that_cannot_be_written_says_so(tiny, store, monkeypatch):
    store.put(tiny, **CONTENT)
    (item,) = Pruning(store, keep=set()).look()

    def refuse(*args):
        raise PermissionError(13, "Permission denied", str(item.path))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises((OSError, StoreError), match="Permission denied"):
        Pruning(store, keep=set()).remove(item)
    assert store.get(tiny) is not None


# --- in general ---------------------------------------------------------------------------------


LITTER = ("entry", "version", "draft", "work", "failed", "empty", "lock", "lease", "damaged")


@options(max_examples=25)
@given(
    stored=st.lists(st.integers(0, 3), max_size=4, unique=True),
    litter=st.lists(st.tuples(st.sampled_from(LITTER), st.integers(0, 5)), max_size=6, unique=True),
    which=st.fixed_dictionaries({"unfinished": st.booleans(), "failed": st.booleans()}),
)
def test_whatever_was_served_is_served_afterwards(
    tiny_at_module_level, dead_lease, tmp_path_factory, stored, litter, which
):
    runs = [replace(tiny_at_module_level, seed=seed) for seed in range(6)]
    store = Store(tmp_path_factory.mktemp("any") / "store")
    for seed in stored:
        store.put(runs[seed], **CONTENT)
    for what, seed in litter:
        run, name = runs[seed], key(runs[seed])
        if what == "entry":
            put_as(Store(store.path / "aside"), run, name)
            os.replace(store.path / "aside" / name, store.path / f"{seed}{name[1:]}")
            shutil.rmtree(store.path / "aside")
        elif what == "version" and seed not in stored:
            put_as(store, run, name, numerics=0)
        elif what == "draft":
            age(draft(store, name))
        elif what == "work":
            (store.work_folder(run) / "checkpoint.safetensors").write_bytes(b"")
        elif what == "failed":
            store.fail(run, [], "diverged")
        elif what == "empty":
            store.work_folder(run)
        elif what == "lock":
            (store._ensure(".locks") / f"{name}.lock").touch()
        elif what == "lease":
            shutil.copy2(dead_lease, store._ensure(".locks") / f"{name}.lease")
        elif what == "damaged" and (entry := store.find(name)) is not None:
            (entry.path / "result.json").write_text("?")
    current = [r for r in runs if (e := store.get(r)) is not None and _whole(e)]
    before, files = served(store, current), tree(store.path)
    Pruning(store, **which).look()
    assert tree(store.path) == files  # looking changes nothing
    prune(store, **which)
    assert served(store, current) == before
    assert Pruning(store, **which).look() == []  # and once is enough
    left = {w.key for w in upkeep.work(store)}
    assert left <= {key(run) for run in runs if run not in current}
    assert list((store.path / ".locks").glob("*")) == []


def _whole(entry) -> bool:
    try:
        entry.verify()
    except StoreError:
        return False
    return json.loads(entry.read("config.json"))["numerics"] == config.NUMERICS


@pytest.fixture(scope="module")
def tiny_at_module_level() -> Run:
    """Hypothesis calls the test many times; a Run is a value that may be shared."""
    from sptlib.config import ModelConfig
    from sptlib.tasks import NeighborConfig

    return Run(
        task=NeighborConfig(length=8, n_train=8, n_val=8, n_test=8), model=ModelConfig(width=8)
    )


def test_a_lease_that_nobody_touched_for_long_is_dead_on_any_host(tiny, store):
    """Its holder would have touched it; which host that was on does not matter."""
    path = store.lease_path(key(tiny))
    with store.lock(tiny):
        text = path.read_text()
    path.write_text(re.sub("host=.*", "host=elsewhere", text))
    assert upkeep.in_use(store, key(tiny))
    old = time.time() - 2 * upkeep.GRACE
    os.utime(path, (old, old))
    assert not upkeep.in_use(store, key(tiny))
    with upkeep.holding(store, key(tiny)) as free:
        assert free


def test_a_checkpoint_beside_an_error_is_no_log(tiny, store):
    """A training that failed for lack of memory goes on from its checkpoint."""
    other = replace(tiny, seed=9)
    steps = iter(range(100))
    where = Where(device="cpu", stop=lambda: next(steps) == 7)
    with pytest.raises(Stopped):
        compute(other, store, where)
    (folder,) = (file.parent for file in store.path.glob(".work/*/checkpoint.safetensors"))
    (folder / "error.txt").write_text("OutOfMemoryError: so large\n")
    assert not [x for x in upkeep.Pruning(store, failed=True).look() if x.path == folder]
    assert [x for x in upkeep.Pruning(store, unfinished=True).look() if x.path == folder]


def test_what_cannot_be_read_is_not_removed(tiny, store, monkeypatch):
    """No permission, or a network that fails: the result may well be good."""
    entry = compute(tiny, store, Where(device="cpu"))
    read = Path.read_bytes

    def refuse(path):
        if path.name == "model.safetensors":
            raise PermissionError(13, "Permission denied")
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        with pytest.raises(StoreError, match=r"cannot be read \(Permission denied\)$"):
            entry.verify()
        assert not upkeep.repair(store, entry.key)
    store.get(tiny).verify()
    (entry.path / "model.safetensors").unlink()  # this is damage
    assert upkeep.repair(store, entry.key)
