"""Real schedulers, workers and signals: nothing is lost, and nothing is computed twice."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sptlib import cluster, scheduler
from sptlib.config import to_dict
from sptlib.errors import ConfigError
from sptlib.scheduler import SchedulerError, Tls
from sptlib.store import Store
from sptlib.sweep import compute_all

SAME = ("config.json", "metrics.jsonl", "result.json", "model.safetensors")
PATIENCE = 90.0


def wait(condition, process=None, patience: float = PATIENCE):
    """The first true value of a condition, within some time."""
    end = time.monotonic() + patience
    while not (value := condition()):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return value


def assert_same(a: Store, b: Store, n: int) -> None:
    ours, theirs = list(a.entries()), list(b.entries())
    assert [e.key for e in ours] == [e.key for e in theirs]
    assert len(ours) == n
    for one, other in zip(ours, theirs, strict=True):
        other.verify()
        assert all(one.read(name) == other.read(name) for name in SAME), one.spec


@pytest.fixture(scope="module")
def long(tiny):
    """Two Runs that share a pretraining of some seconds, and one from scratch."""
    stage = {"epochs": 200, "n_evals": 20}  # 600 steps
    run = replace(
        tiny, pretrain=replace(tiny.pretrain, **stage), finetune=replace(tiny.finetune, **stage)
    )
    return [run, replace(run, transfer=("qk",)), replace(run, pretrain=None)]


@pytest.fixture(scope="module")
def undisturbed(long, tmp_path_factory):
    """What the long Runs give when nothing happens."""
    store = Store(tmp_path_factory.mktemp("undisturbed"))
    compute_all(long, store, workers=1)
    return store


class Processes:
    """A Dask scheduler and workers, each a process of its own, on loopback."""

    def __init__(self, folder: Path):
        self.folder, self.all, self.options = folder, [], []
        folder.mkdir()
        self.file = folder / "scheduler.json"

    def start(self, *command: str) -> subprocess.Popen:
        environment = os.environ | {"PYTHONPATH": str(Path(cluster.__file__).parents[1])}
        with (self.folder / f"{len(self.all)}.log").open("w") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=self.folder
            )
        self.all.append(process)
        return process

    def scheduler(self, *options: str, port: int = 0) -> str:
        self.file.unlink(missing_ok=True)
        dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1"]
        where = ["--port", str(port), "--scheduler-file", str(self.file), "--no-dashboard"]
        self.start(*dask, *where, *options)
        wait(lambda: self.file.exists() and self.file.read_text().endswith("}"))
        return json.loads(self.file.read_text())["address"]

    def worker(self, address: str, *options: str, before: tuple[str, ...] = ()) -> None:
        dask = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1"]
        self.start(*before, *dask, "--no-dashboard", "--host", "127.0.0.1", *options)

    def kill(self, process: subprocess.Popen) -> None:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()


@pytest.fixture
def processes(tmp_path):
    found = Processes(tmp_path / "dask")
    yield found
    for process in found.all:
        if process.poll() is None:
            found.kill(process)


def test_scheduler_and_workers_in_processes_of_their_own(long, undisturbed, tmp_path, processes):
    """The same bytes as in this process; then the scheduler is killed in the middle."""
    store = Store(tmp_path / "store")
    address = processes.scheduler()
    for _ in range(2):
        processes.worker(address)
    compute_all(long, store, scheduler=address)
    assert_same(undisturbed, store, 4)

    again = Store(tmp_path / "again")
    scheduler = processes.all[0]
    found = []

    def kill():
        wait(lambda: list(again.entries()))  # the first result is there
        found.extend(entry.key for entry in again.entries())
        scheduler.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    more = [*long, *(replace(run, seed=1) for run in long)]
    started = time.monotonic()
    with pytest.raises(SchedulerError, match=r"went away; [1-7] of 8 trainings are stored") as it:
        compute_all(more, again, scheduler=address)
    thread.join()
    assert time.monotonic() - started < PATIENCE
    assert "call the same command" in str(it.value)
    assert found
    kept = {e.key: (e.path / "manifest.json").stat().st_mtime_ns for e in again.entries()}
    assert set(found) <= set(kept)
    for process in processes.all[1:]:
        processes.kill(process)
    address = processes.scheduler()
    processes.worker(address)
    compute_all(long, again, scheduler=address)
    for name, at in kept.items():
        assert (again.path / name / "manifest.json").stat().st_mtime_ns == at
    for entry in undisturbed.entries():
        assert all(again.find(entry.key).read(name) == entry.read(name) for name in SAME)


def test_a_scheduler_that_hangs(long, tmp_path, processes, monkeypatch):
    """It is there, and does not answer: at the start, and in the middle."""
    monkeypatch.setattr(scheduler, "CONNECT_SECONDS", 2.0)
    monkeypatch.setattr(scheduler, "LOST_SECONDS", 1.0)
    for name, value in (("CONNECT_SECONDS", 4.0), ("LOST_SECONDS", 1.0), ("COUNT_SECONDS", 1.0)):
        monkeypatch.setattr(cluster, name, value)
    store = Store(tmp_path / "store")
    address = processes.scheduler()
    processes.all[0].send_signal(signal.SIGSTOP)
    with pytest.raises(SchedulerError, match="no Dask scheduler answers"):
        compute_all(long, store, scheduler=address)
    processes.all[0].send_signal(signal.SIGCONT)
    monkeypatch.setattr(scheduler, "CONNECT_SECONDS", 20.0)
    processes.worker(address)

    def stop():
        wait(lambda: list(store.path.glob(".locks/*.lease")))
        processes.all[0].send_signal(signal.SIGSTOP)

    thread = threading.Thread(target=stop)
    thread.start()
    more = [replace(run, seed=seed) for run in long for seed in range(4)]
    with pytest.raises(SchedulerError, match="went away"):
        compute_all(more, store, scheduler=address)
    thread.join()


def test_workers_that_do_not_see_the_store_send_results_back(
    long, undisturbed, tmp_path, processes, capsys
):
    """In a mount namespace of their own, an empty file system lies over the store."""
    store = Store(tmp_path / "store")
    store.path.mkdir()
    hide = f"mount -t tmpfs none {store.path}"
    namespace = ("unshare", "--user", "--map-root-user", "--mount")
    if shutil.which("unshare") is None or subprocess.run([*namespace, "sh", "-c", hide]).returncode:
        pytest.skip("no mount namespaces here")
    compute_all([long[0].pretraining], store, workers=1)  # so that it has to travel, too
    address = processes.scheduler()
    before = (*namespace, "sh", "-c", f'{hide} && exec "$@"', "sh")
    processes.worker(address, "--local-directory", str(tmp_path / "local"), before=before)
    compute_all(long, store, scheduler=address)
    assert "the workers do not see the store; results are sent back" in capsys.readouterr().err
    assert_same(undisturbed, store, 4)


def test_a_worker_with_several_threads_computes_one_training_at_a_time(tiny, tmp_path, processes):
    """PyTorch's random numbers are one process's: dropout would mix those of two trainings."""
    run = replace(tiny, pretrain=None, model=replace(tiny.model, dropout=0.3))
    run = replace(run, finetune=replace(run.finetune, epochs=50))
    runs = [replace(run, seed=seed) for seed in range(4)]
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    compute_all(runs, here, workers=1)
    address = processes.scheduler()
    processes.worker(address, "--nthreads", "4")
    compute_all(runs, there, scheduler=address)
    assert_same(here, there, 4)


def test_a_notebook_on_a_cluster(tmp_path, processes, monkeypatch):
    """papermill with an address: the workers compute, and the numbers are those of this machine."""
    from papermill import execute_notebook

    root = Path(cluster.__file__).parents[1]
    address = processes.scheduler()
    processes.worker(address)
    numbers = {}
    for name, where in (("here", ""), ("there", address)):
        monkeypatch.setenv("SPTLIB_STORE", str(tmp_path / name))
        done = execute_notebook(
            root / "notebooks" / "01_synthetic.ipynb",
            None,
            {"preset": "smoke", "seeds": 1, "scheduler": where},
            kernel_name="python3",
            cwd=str(root),
            progress_bar=False,
        )
        numbers[name] = {
            glued: output["data"]
            for cell in done.cells
            for output in cell.get("outputs", [])
            if (glued := output.get("metadata", {}).get("scrapbook", {}).get("name"))
        }
    assert len(numbers["here"]) > 3
    assert numbers["here"] == numbers["there"]
    assert_same(Store(tmp_path / "here"), Store(tmp_path / "there"), 15)


# --- TLS ----------------------------------------------------------------------------------------


def certificates(folder: Path) -> dict[str, str]:
    """An authority of our own, a certificate that it signed, and one that it did not."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    for authority in ("ca", "other"):
        openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test",
            "-keyout", f"{authority}.key", "-out", f"{authority}.pem",
        )  # fmt: skip
        openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1",
            "-keyout", f"{authority}-node.key", "-out", "node.csr",
        )  # fmt: skip
        openssl(
            "x509", "-req", "-in", "node.csr", "-CA", f"{authority}.pem", "-days", "2",
            "-CAkey", f"{authority}.key", "-CAcreateserial", "-out", f"{authority}-node.pem",
        )  # fmt: skip
    return {path.name: str(path) for path in folder.iterdir()}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_tls(tiny, tmp_path, processes, monkeypatch):
    folder = tmp_path / "certificates"
    folder.mkdir()
    file = certificates(folder)
    ours = ("--tls-ca-file", file["ca.pem"], "--tls-cert", file["ca-node.pem"])
    ours += ("--tls-key", file["ca-node.key"])
    address = processes.scheduler("--protocol", "tls", *ours)
    assert address.startswith("tls://")
    processes.worker(address, *ours)
    store = Store(tmp_path / "store")
    monkeypatch.setattr(scheduler, "CONNECT_SECONDS", 3.0)
    strangers = [
        None,
        Tls(file["ca.pem"], file["other-node.pem"], file["other-node.key"]),
        Tls(file["other.pem"], file["ca-node.pem"], file["ca-node.key"]),
    ]
    for tls in strangers:
        with pytest.raises(SchedulerError, match="no Dask scheduler answers"):
            compute_all([tiny], store, scheduler=address, tls=tls)
    with pytest.raises(ConfigError, match=r"cannot read the TLS file .*nothing\.pem"):
        compute_all([tiny], store, scheduler=address, tls=Tls("nothing.pem", "", ""))
    assert list(store.entries()) == []
    monkeypatch.setattr(scheduler, "CONNECT_SECONDS", 20.0)
    tls = Tls(file["ca.pem"], file["ca-node.pem"], file["ca-node.key"])
    compute_all([tiny], store, scheduler=address, tls=tls)
    assert len(list(store.entries())) == 2


# --- the local cluster --------------------------------------------------------------------------


def holder(store: Store) -> psutil.Process | None:
    """The process that computes something now: the one that holds a lease."""
    for file in store.path.glob(".locks/*.lease"):
        try:
            lines = file.read_text().splitlines()
        except OSError:
            continue
        for process in psutil.Process().children(recursive=True):
            if f"pid={process.pid}" in lines:
                return process
    return None


def test_a_worker_killed_in_mid_run(long, undisturbed, tmp_path):
    store = Store(tmp_path / "store")
    killed = []

    def kill():
        wait(lambda: list(store.path.glob(".work/*/checkpoint.safetensors")))
        process = wait(lambda: holder(store))
        process.kill()
        killed.append(process.pid)

    thread = threading.Thread(target=kill)
    thread.start()
    compute_all(long, store, workers=2, checkpoint_seconds=0.1)
    thread.join()
    assert len(killed) == 1
    assert_same(undisturbed, store, 4)
    assert not list(store.path.glob(".work/*"))


def test_the_local_cluster_listens_on_loopback_only(long, tmp_path):
    """Every socket that this process and its workers listen on."""
    store = Store(tmp_path / "store")
    found = []

    def look():
        wait(lambda: list(store.path.glob(".locks/*.lease")))
        for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
            found.extend(
                c.laddr.ip
                for c in process.net_connections("inet")
                if c.status == psutil.CONN_LISTEN
            )

    thread = threading.Thread(target=look)
    thread.start()
    compute_all(long[1:], store, workers=2)
    thread.join()
    assert len(found) >= 3  # a scheduler and two workers
    assert set(found) == {"127.0.0.1"}


# --- whole processes ----------------------------------------------------------------------------

SWEEP = """
import json, os, sys
from sptlib import execute
from sptlib.config import from_dict
from sptlib.store import Store
from sptlib.sweep import SweepError, compute_all

def counted(name):
    original = getattr(execute, name)
    def train(*arguments, **options):
        with open(sys.argv[3], "a") as log:
            log.write(f"{os.getpid()} {name}\\n")
        return original(*arguments, **options)
    setattr(execute, name, train)

if __name__ == "__main__":
    counted("pretrain"), counted("finetune")
    compute_all([from_dict(fields) for fields in json.loads(sys.argv[1])], Store(sys.argv[2]),
                workers=int(sys.argv[4]), checkpoint_seconds=0.1)
"""


@pytest.fixture
def sweep(long, tmp_path):
    """Start a sweep of the long Runs as a process of its own."""
    script = tmp_path / "sweep.py"
    script.write_text(SWEEP)
    started = []

    def start(store: Store, workers: int = 1) -> subprocess.Popen:
        process = subprocess.Popen(
            [
                sys.executable,
                str(script),
                json.dumps([to_dict(run) for run in long]),
                str(store.path),
                str(tmp_path / "log"),
                str(workers),
            ],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(cluster.__file__).parents[1])},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_the_whole_sweep_killed_and_started_again(long, undisturbed, tmp_path, sweep):
    """With its workers, which do not outlive it; what is finished stays as it is."""
    store = Store(tmp_path / "store")
    process = sweep(store, workers=2)
    wait(lambda: list(store.entries()), process)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait(lambda: not any(worker.is_running() for worker in workers))
    kept = {e.key: (e.path / "manifest.json").stat().st_mtime_ns for e in store.entries()}
    assert 1 <= len(kept) < 4
    compute_all(long, store, workers=1)
    for name, at in kept.items():
        assert (store.path / name / "manifest.json").stat().st_mtime_ns == at
    assert_same(undisturbed, store, 4)


def test_two_sweeps_at_once_compute_everything_once(undisturbed, tmp_path, sweep):
    store = Store(tmp_path / "store")
    both = [sweep(store), sweep(store)]
    for process in both:
        _, error = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, error
    log = (tmp_path / "log").read_text().split("\n")[:-1]
    assert sorted(line.split()[1] for line in log) == ["finetune"] * 3 + ["pretrain"]
    assert len({line.split()[0] for line in log}) == 2, "both had something to do"
    assert_same(undisturbed, store, 4)


def to_one(process, signum):
    process.send_signal(signum)


def to_its_group(process, signum):
    """What a terminal and systemd do: workers get it, too."""
    os.killpg(process.pid, signum)


def twice(process, signum):
    """What `timeout` does."""
    to_one(process, signum)
    to_its_group(process, signum)


@pytest.mark.parametrize(
    ("workers", "signum", "send"),
    [
        (1, signal.SIGINT, to_one),
        (1, signal.SIGTERM, twice),
        (2, signal.SIGINT, to_its_group),
        (2, signal.SIGTERM, to_one),
        (2, signal.SIGTERM, twice),
    ],
)
def test_a_sweep_stopped_by_a_signal(long, undisturbed, tmp_path, workers, signum, send):
    """It ends in order, says how to go on, and goes on from a checkpoint that it wrote then."""
    store = Store(tmp_path / "store")
    command = [sys.executable, "-c", CLI, json.dumps([to_dict(run) for run in long])]
    process = subprocess.Popen(
        [*command, str(store.path), str(workers)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait(lambda: list(store.path.glob(".locks/*.lease")), process)
    time.sleep(0.3)
    children = psutil.Process(process.pid).children(recursive=True)
    send(process, signum)
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signum, error
    assert "sptlib: stopped: 0 trainings are stored, 4 are left" in error
    assert "the same command goes on from there" in error
    assert "Traceback" not in error
    wait(lambda: not any(child.is_running() for child in children))
    # none was due within the 1000 seconds that were set: it was written when it was told to stop
    assert list(store.path.glob(".work/*/checkpoint.safetensors"))
    assert not list(store.path.glob(".locks/*.lease"))
    compute_all(long, store, workers=1)
    assert_same(undisturbed, store, 4)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_local_workers_start(long, tmp_path, signum):
    """The first process that appears is one of multiprocessing's: workers come after it."""
    store = Store(tmp_path / "store")
    command = [sys.executable, "-c", CLI, json.dumps([to_dict(run) for run in long])]
    process = subprocess.Popen(
        [*command, str(store.path), "2"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait(lambda: psutil.Process(process.pid).children(recursive=True), process)
    to_its_group(process, signum)
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signum, error
    assert "sptlib: stopped: 0 trainings are stored, 4 are left" in error
    assert "Traceback" not in error
    compute_all(long[2:], store, workers=1)  # nothing is in the way


def test_a_signal_while_a_scheduler_is_asked(long, tmp_path):
    """Somebody listens, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, "-m", "sptlib", "sweep", "duration", "--preset", "smoke"]
        process = subprocess.Popen(
            [*command, "--store", str(tmp_path / "store"), "--scheduler", address],
            stderr=subprocess.PIPE,
            text=True,
        )
        with server.accept()[0]:
            started = time.monotonic()
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=PATIENCE)
        assert time.monotonic() - started < scheduler.CONNECT_SECONDS / 2
    assert process.returncode == 130, error
    assert "sptlib: stopped: 0" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("banner", [bytes(64), b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x08" * 99])
def test_what_listens_is_no_scheduler(banner, tiny, tmp_path, capfd):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            with server.accept()[0] as connection:
                connection.sendall(banner)
                connection.recv(1000)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler, "CONNECT_SECONDS", 3.0)
            with pytest.raises(SchedulerError, match="no Dask scheduler answers"):
                compute_all(
                    [tiny],
                    Store(tmp_path / "store"),
                    scheduler=f"tcp://127.0.0.1:{server.getsockname()[1]}",
                )
    assert "Traceback" not in capfd.readouterr().err


CLI = """
import json, sys
from sptlib import experiments
from sptlib.cli import main
from sptlib.config import from_dict
from sptlib.experiments.base import Case

runs = [from_dict(fields) for fields in json.loads(sys.argv[1])]
experiments.duration.cases = lambda *arguments: [
    Case({"epochs": i, "arm": ""}, run) for i, run in enumerate(runs)
]
if __name__ == "__main__":
    main(["sweep", "duration", "--store", sys.argv[2], "--workers", sys.argv[3],
          "--checkpoint-seconds", "1000"])
"""
