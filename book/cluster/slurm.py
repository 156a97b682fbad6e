"""A Dask cluster of Slurm jobs, for as long as this script runs.

    python slurm.py --jobs 4 --cores 8 --memory 16GB --walltime 02:00:00
    python slurm.py --jobs 4 --cores 8 --memory 16GB -- sptlib sweep synthetic --store /shared/store

The first prints the scheduler's address and waits until Ctrl-C. The second runs what follows ``--``
with ``--scheduler ADDRESS`` (and the certificates, if you give any) added to it, and ends with it.
Start it where jobs can reach it: on a login node in tmux, or in a small job of its own.

Needs ``pip install dask-jobqueue`` beside ``sptlib[cluster]``.
"""

import argparse
import getpass
import signal
import subprocess
import sys
import time
from contextlib import suppress

import dask
from dask_jobqueue import SLURMCluster
from distributed import Security

#: What a worker's environment gets. Dask itself sets OMP_NUM_THREADS=1; None takes away its
#: MALLOC_TRIM_THRESHOLD_, with which a training spends a fifth of its time on getting memory.
ENVIRONMENT = {"DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON": "{'MALLOC_TRIM_THRESHOLD_': None}"}


def main() -> int:
    args, command = arguments()
    # How often a training may lose its worker (a job at its time limit, a broken node) before
    # Dask gives it up; 3 unless told. Trainings resume, so this may be generous.
    dask.config.set({"distributed.scheduler.allowed-failures": 20})
    with cluster_of(args) as cluster:
        if args.show:
            print(cluster.job_script())
            return 0
        cluster.scale(jobs=args.jobs)
        address = cluster.scheduler_address
        print(f"the scheduler is {address}, its dashboard {cluster.dashboard_link}", flush=True)
        if not command:
            print("Ctrl-C ends it and cancels its jobs", flush=True)
            return supervise(cluster, args.jobs, None)
        process = subprocess.Popen([*command, "--scheduler", address, *tls(args)])
        try:
            return supervise(cluster, args.jobs, process)
        except KeyboardInterrupt:
            return process.wait()  # the terminal's Ctrl-C has reached it as well
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait()


def cluster_of(args: argparse.Namespace) -> SLURMCluster:
    """Scheduler in this process; no job yet."""
    more = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    if args.lifetime:  # workers leave in good order before Slurm ends their job
        more += ["--lifetime", args.lifetime, "--lifetime-stagger", "30s"]
    security = {}
    if args.tls_ca:
        pairs = {
            f"tls_{role}_{part}": getattr(args, f"tls_{part}")
            for role in ("scheduler", "worker", "client")
            for part in ("cert", "key")
        }
        security["security"] = Security(tls_ca_file=args.tls_ca, require_encryption=True, **pairs)
    return SLURMCluster(
        queue=args.partition,
        account=args.account,
        cores=args.cores,  # of one job ...
        processes=args.cores,  # ... and as many worker processes: one thread each
        memory=args.memory,  # of one job, for all its workers together
        walltime=args.walltime,
        interface=args.interface,
        local_directory=args.scratch,
        log_directory=args.logs,
        death_timeout=60,
        job_script_prologue=[
            *(f'export {name}="{value}"' for name, value in ENVIRONMENT.items()),
            *args.prologue,
        ],
        job_extra_directives=args.sbatch,
        worker_extra_args=more,
        scheduler_options={"port": args.port, "dashboard_address": "127.0.0.1:0"},
        **security,
    )


def supervise(cluster: SLURMCluster, jobs: int, process: subprocess.Popen | None) -> int:
    """Keep so many jobs until the process ends, or for ever; its exit status.

    ``cluster.adapt()`` is not used: with several workers in a job, dask-jobqueue 0.9 does not
    replace a job that has ended, and cancels a whole one when a single worker of it is idle.
    """
    answered, silent = set(), 0
    while process is None or process.poll() is None:
        answered |= {str(name) for name in cluster.observed}
        ours = {name: job.job_id for name, job in cluster.workers.items()}
        queue = subprocess.run(
            ["squeue", "-h", "-o", "%A", "-u", getpass.getuser()], capture_output=True, text=True
        )
        if queue.returncode == 0:
            ended = [name for name, job in ours.items() if job not in queue.stdout.split()]
            for name in ended:
                print(f"job {ours[name]} has ended, another follows", flush=True)
                silent = 0 if any(f"{w}-".startswith(f"{name}-") for w in answered) else silent + 1
            if silent >= 3:
                print("3 jobs in a row ended before a worker of theirs answered; see the logs")
                return 1
            if ended:
                cluster.sync(cluster.scale_down, ended)
            cluster.scale(jobs=jobs)
        pause(process, 10)
    return process.returncode


def pause(process: subprocess.Popen | None, seconds: float) -> None:
    """Wait, but not longer than the process lives."""
    if process is None:
        time.sleep(seconds)
        return
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def tls(args: argparse.Namespace) -> list[str]:
    """The certificates as options of the command."""
    names = ("tls_ca", "tls_cert", "tls_key")
    given = {name: getattr(args, name) for name in names if getattr(args, name)}
    return [word for name, file in given.items() for word in (f"--{name.replace('_', '-')}", file)]


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """The options, and the command after ``--``."""
    argv = sys.argv[1:]
    cut = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(usage="python slurm.py [options] [-- sptlib sweep ...]")
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    parser.add_argument("--cores", type=int, default=1, help="of one job: workers in it")
    parser.add_argument("--memory", default="2GB", help="of one job; 2 GB per worker are plenty")
    parser.add_argument("--walltime", default="01:00:00", help="of one job")
    parser.add_argument("--lifetime", help="workers leave after this, e.g. 55m; < walltime")
    parser.add_argument("--partition")
    parser.add_argument("--account")
    parser.add_argument("--interface", help="network that nodes share, e.g. ib0 (see: ip addr)")
    parser.add_argument("--port", type=int, default=0, help="of the scheduler; 0 = any free one")
    parser.add_argument("--scratch", default="/tmp", help="local disk of the nodes")
    parser.add_argument("--logs", default="slurm-logs", help="folder of the jobs' output")
    parser.add_argument("--prologue", action="append", default=[], help="e.g. 'module load gcc'")
    parser.add_argument("--sbatch", action="append", default=[], help="e.g. --sbatch=--gres=gpu:1")
    parser.add_argument("--tls-ca")
    parser.add_argument("--tls-cert")
    parser.add_argument("--tls-key")
    parser.add_argument("--show", action="store_true", help="print the job script, submit nothing")
    return parser.parse_args(argv[:cut]), argv[cut + 1 :]


def end(*_) -> None:
    """SIGTERM (of kill, of scancel) ends this script in order: no job may be left behind."""
    sys.exit(143)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # dask-jobqueue has put its own there
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
