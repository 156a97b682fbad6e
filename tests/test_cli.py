"""The command line: what it says, its exit codes, and that errors are short and leave nothing."""

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sptlib.cli import main
from sptlib.cli_options import read_value
from sptlib.store import Store

SMOKE = ("train", "--preset", "smoke", "--device", "cpu")
STUDY = Path(__file__).parents[1] / "data" / "study"
QUICK = (*SMOKE, "--set", "pretrain.epochs=0.5", "--set", "finetune.epochs=0.5")


@pytest.fixture
def sptlib(store):
    """Run a command on a store of the test's own."""

    def call(*arguments: str) -> Result:
        takes_store = arguments[0] in ("train", "sweep", "runs")
        return CliRunner().invoke(main, [*arguments, *(("--store", str(store.path)) * takes_store)])

    return call


def assert_short_error(done: Result, *words: str, code: int = 1) -> None:
    assert done.exit_code == code, done.output
    assert isinstance(done.exception, SystemExit)  # not the error itself: no traceback
    lines = done.stderr.strip().splitlines()
    assert 1 <= len(lines) <= 2, done.stderr
    assert lines[0].startswith("sptlib: ")
    assert all(word in done.stderr for word in words), done.stderr


def nothing_stored(store: Store) -> bool:
    return list(store.entries()) == [] and not list(store.path.glob(".tmp/*"))


# --- bad input ----------------------------------------------------------------------------------


def with_set(*changes: str) -> tuple[str, ...]:
    return (*SMOKE, *(word for change in changes for word in ("--set", change)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*SMOKE, "--task", "neighbour"), "did you mean 'neighbor'?"),
        (("train", "--preset", "smoky"), "did you mean 'smoke'?"),
        (with_set("finetune.lrr=1"), "did you mean 'finetune.lr'?"),
        (with_set("width=8"), "unknown field 'width'"),
        (with_set("task.name=imge"), "did you mean 'image'?"),
        (with_set("model.width"), "FIELD=VALUE"),
        (with_set("model.width=[1"), "cannot read the value"),
        ((*SMOKE, "--transfer", "qkv"), "did you mean 'qkvo'?"),
        ((*SMOKE, "--freeze", "qk,atention"), "unknown parameter group 'atention'"),
        ((*SMOKE, "--freeze", "all,head"), "nothing is left to train"),
        ((*SMOKE, "--scratch", "--set", "pretrain.lr=1"), "unknown field 'pretrain.lr'"),
        (with_set("model.max_len=5"), "max_len=5"),
        (with_set("model.width=-8"), "model.width"),
        (with_set("model.n_layers=0"), "model.n_layers"),
        (with_set("task.n_train=0"), "task.n_train"),
        (with_set("task.length=many"), "task.length"),
        (with_set("finetune.batch_size=-1"), "finetune.batch_size"),
        (with_set("model.n_heads=3"), "n_heads=3 does not divide width=8"),
        (with_set("pretrain.mask_ratio=0"), "pretrain.mask_ratio"),
        (with_set("pretrain.mask_ratio=1.0"), "pretrain.mask_ratio"),
        (with_set("pretrain.mask_ratio=nan"), "pretrain.mask_ratio"),
        (with_set("pretrain.mask_ratio=-0.5"), "pretrain.mask_ratio"),
        ((*SMOKE[:-1], "gpu"), "unknown device 'gpu'"),
        (("sweep", "synthetik"), "did you mean 'synthetic'?"),
        (("sweep", "synthetic", "--preset", "smoky"), "did you mean 'smoke'?"),
        (("runs", "show", "abc"), "runs ls"),
        (("runs", "export", "/no/such/folder/x.csv"), "/no/such/folder/x.csv"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
def test_bad_input_is_refused_in_a_line_and_leaves_nothing(sptlib, store, arguments, words):
    assert_short_error(sptlib(*arguments), words)
    assert nothing_stored(store)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("trian",), "Did you mean 'train'"),
        (("train", "--seed", "-1"), "'--seed'"),
        (("train", "--threads", "0"), "'--threads'"),
        (("sweep", "synthetic", "--seeds", "0"), "'--seeds'"),
        (("runs", "verify", "--fix"), "`sptlib runs verify -h`"),
        (("sweep",), "EXPERIMENT"),
    ],
    ids=str,
)
def test_wrong_usage_is_refused_in_a_line(arguments, words):
    assert_short_error(CliRunner().invoke(main, list(arguments)), words, code=2)


def test_a_process_ends_with_the_code_and_without_traceback(python, tmp_path):
    done = python("-m", "sptlib", *SMOKE, "--task", "nothing", "--store", str(tmp_path / "store"))
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("sptlib: unknown task 'nothing'; known: neighbor, listops, image, ")
    assert not (tmp_path / "store").exists()


def test_debug_shows_the_error_itself():
    done = CliRunner().invoke(main, ["--debug", *SMOKE, "--task", "nothing"])
    assert type(done.exception).__name__ == "ConfigError"


def test_a_store_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    done = CliRunner().invoke(main, [*QUICK, "--store", str(tmp_path / "file" / "store")])
    assert_short_error(done, "cannot be written", "--store", "$SPTLIB_STORE")


def test_divergence_stops_and_keeps_the_log(sptlib, store):
    done = sptlib(*SMOKE, "--set", "finetune.lr=1e38", "--set", "finetune.warmup_steps=0")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith("sptlib: finetune diverged: ")
    assert "at step 2" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(list(store.entries())) == 1  # the pretraining
    (log,) = store.path.glob(".work/*/metrics.jsonl")
    assert json.loads(log.read_text().splitlines()[-1])["step"] == 2
    assert sptlib(*SMOKE).exit_code == 0


# --- train --------------------------------------------------------------------------------------


def test_train_says_what_came_out_and_where_it_is(sptlib, store):
    done = sptlib(*QUICK, "--seed", "3", "--transfer", "qk,mlp", "--freeze", "norm")
    assert done.exit_code == 0, done.stderr
    (run,) = (e for e in store.entries() if e.path.name in done.stdout)
    assert done.stdout.splitlines()[-1] == f"stored in {run.path}"
    assert f"test accuracy {run.result['test_accuracy']:.4f}" in done.stdout
    assert (run.spec.seed, run.spec.transfer, run.spec.freeze) == (3, ("qk", "mlp"), ("norm",))
    assert run.spec.finetune.epochs == 0.5  # an explicit value wins over the preset's
    assert "pretrain: " in done.stderr  # progress
    again = sptlib(*QUICK, "--seed", "3", "--transfer", "mlp,qk", "--freeze", "norm")
    assert again.stdout == done.stdout
    assert again.stderr == ""  # nothing was computed


def test_train_from_scratch_and_on_another_task(sptlib, store):
    assert sptlib(*SMOKE, "--scratch").exit_code == 0
    (entry,) = store.entries()
    assert entry.spec.pretrain is None
    done = sptlib(
        *QUICK,
        "--set",
        "pretrain.task={name: image, n_train: 40, n_val: 9, n_test: 9}",
        "--set",
        "model.positions=learned",
    )
    assert done.exit_code == 0, done.stderr
    assert "did not fit and started at random: position, embed.weight" in done.stdout


def test_recompute_mends_a_damaged_entry(sptlib, store):
    assert sptlib(*QUICK).exit_code == 0
    for entry in store.entries():
        before = (entry.path / "result.json").read_bytes()
        (entry.path / "result.json").write_bytes(before[:-5])
    assert_short_error(sptlib(*QUICK), "result.json is damaged", "--repair")
    done = sptlib(*QUICK, "--recompute")
    assert done.exit_code == 0, done.stderr


def test_values_are_read_as_yaml():
    read = {
        "2": 2,
        "1e-3": 1e-3,
        "0.5": 0.5,
        "true": True,
        "null": None,
        "": None,
        "text": "text",
        "[0, 1, 5]": [0, 1, 5],
        "{a: 1}": {"a": 1},
    }
    for text, value in read.items():
        assert read_value(text) == value
        assert type(read_value(text)) is type(value)


# --- runs ---------------------------------------------------------------------------------------


@pytest.fixture
def filled(sptlib, store) -> Store:
    assert sptlib(*QUICK).exit_code == 0
    return store


def test_ls_show_and_export(sptlib, filled, tmp_path):
    (run,) = (e for e in filled.entries() if "test_accuracy" in e.result)
    shown = json.loads(sptlib("runs", "show", run.key[:8]).stdout)
    assert shown["result"] == run.result
    assert shown["config"] == json.loads(run.read("config.json"))
    assert sptlib("runs", "export", str(tmp_path / "x.csv")).exit_code == 0
    with (tmp_path / "x.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["key"] == run.key
    assert float(row["test_accuracy"]) == run.result["test_accuracy"]
    assert (row["task.name"], row["model.width"]) == ("neighbor", "8")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(path.read_bytes()[:-9] + b"?" * 9),
        Path.unlink,
    ],
    ids=["truncated", "altered", "missing"],
)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "manifest.json"])
def test_verify_finds_damage_and_repair_removes_it(sptlib, filled, name, spoil):
    clean = sptlib("runs", "verify")
    assert (clean.exit_code, clean.stderr) == (0, "")
    assert "2 results" in clean.stdout
    entry = next(filled.entries())
    spoil(entry.path / name)
    found = sptlib("runs", "verify")
    assert found.exit_code == 1
    assert len(found.stderr.splitlines()) == 1
    assert entry.key in found.stderr
    assert name in found.stderr
    assert "1 damaged" in found.stdout
    if name != "model.safetensors":
        listed = sptlib("runs", "ls")
        assert listed.exit_code == 0
        assert entry.key in listed.stdout
        assert "DAMAGED" in listed.stdout
    assert sptlib("runs", "verify", "--repair").exit_code == 0
    assert [e.key for e in filled.entries()] != []
    assert filled.find(entry.key) is None
    assert sptlib("runs", "verify").exit_code == 0
    assert sptlib(*QUICK).exit_code == 0  # and it is computed again


@pytest.mark.parametrize("command", ["sweep duration", "run 01"])
def test_what_starts_processes_itself_is_refused_under_a_launcher(sptlib, monkeypatch, command):
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    done = sptlib(*command.split(), "--preset", "smoke")
    assert done.exit_code == 1
    assert "starts processes of its own" in done.stderr


def test_a_sweep_says_what_is_missing_and_then_what_failed(sptlib, store, monkeypatch):
    from sptlib import execute

    words = ("sweep", "duration", "--preset", "smoke", "--seeds", "1", "--workers", "1")
    dry = sptlib(*words, "--dry-run")
    assert dry.stdout.startswith(f"13 Runs, 13 of them not in {store.path}; they need 10 pretrain")
    assert not list(store.entries())
    original = execute.finetune

    def failing(run, *arguments, **options):
        if run.pretrain is None:
            raise RuntimeError("no labels today")
        return original(run, *arguments, **options)

    monkeypatch.setattr(execute, "finetune", failing)
    done = sptlib(*words)
    assert done.exit_code == 1
    assert done.stderr.count("RuntimeError: no labels today\n") == 6  # at once, and in the table
    assert "Traceback" not in done.stderr
    assert f"sptlib: 3 trainings failed; the others are stored in {store.path}" in done.stderr
    traced = sptlib("--debug", *words)
    assert traced.exit_code == 1
    assert 'raise RuntimeError("no labels today")' in traced.stderr
    monkeypatch.setattr(execute, "finetune", original)
    done = sptlib(*words)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == f"13 Runs stored in {store.path}"
    assert sptlib(*words, "--dry-run").stdout.startswith("13 Runs, 0 of them not in")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tls-ca", "x.pem"), "--tls-ca, --tls-cert and --tls-key go together"),
        (("--tune",), "duration searches no rates"),
        (("--store", str(STUDY)), "holds exported results, which are only read"),
    ],
)
def test_sweeps_that_are_refused(words, message):
    done = CliRunner().invoke(main, ["sweep", "duration", "--preset", "smoke", *words])
    assert done.exit_code == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("cost duration --preset smoke --seconds nan", "--seconds must be a finite number"),
        ("cost duration --preset smoke --seconds inf", "--seconds must be a finite number"),
        ("cost duration --preset smoke --csv .", "is a directory"),
        ("train --preset smoke --device meta", "device 'meta' is not supported"),
        ("train --preset smoke --threads 100000", "--threads"),
    ],
)
def test_odd_options_are_refused_in_a_line(words, message):
    done = CliRunner().invoke(main, words.split())
    assert done.exit_code in (1, 2)
    assert isinstance(done.exception, SystemExit)
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_one_entry_of_nonsense_does_not_hide_the_others(sptlib, store):
    assert sptlib(*QUICK).exit_code == 0
    bad = next(store.entries())
    (bad.path / "manifest.json").write_text("[" * 100_000)
    done = sptlib("runs", "ls")
    assert done.exit_code == 0
    assert "DAMAGED" in done.stdout
    assert len([entry for entry in store.entries() if entry.key in done.stdout]) == 2
