"""A Dask cluster of Slurm jobs, for as long as this script runs.

    python slurm.py --jobs 4 --cores 8 --memory 16GB --walltime 02:00:00
    python slurm.py --jobs 4 --cores 8 --memory 16GB -- sptlib sweep synthetic --store /shared/store

The first prints the scheduler's address and waits until Ctrl-C. The second runs what follows ``--``
with ``--scheduler ADDRESS`` (and the certificates, if you give any) added to it, and ends with it.
Start it where jobs can reach it: on a login node in tmux, or in a small job of its own.

Needs ``pip install dask-jobqueue`` beside ``sptlib[cluster]``.
"""

import argparse
import signal
import subprocess
import sys

import dask
from dask.utils import parse_timedelta
from dask_jobqueue import SLURMCluster
from distributed import Security

# What every worker's environment gets; None takes away what Dask would set (see the page).
ENVIRONMENT = {
    "DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON": "{'MALLOC_TRIM_THRESHOLD_': None}",
    "OMP_NUM_THREADS": "1",
}


def main() -> int:
    args, command = arguments()
    # How often a training may lose its worker (a job that ran into its time limit, a node that
    # broke) before the sweep gives it up. Trainings resume, so this may be generous.
    dask.config.set({"distributed.scheduler.allowed-failures": 20})

    security = {}
    if args.tls_ca:
        security["security"] = Security(
            tls_ca_file=args.tls_ca,
            tls_scheduler_cert=args.tls_cert,
            tls_scheduler_key=args.tls_key,
            tls_worker_cert=args.tls_cert,
            tls_worker_key=args.tls_key,
            tls_client_cert=args.tls_cert,
            tls_client_key=args.tls_key,
            require_encryption=True,
        )

    worker_options = ["--no-dashboard"]
    if args.lifetime:
        # A worker hands its work back before Slurm kills the job; not all of them at once.
        stagger = parse_timedelta(args.lifetime) / 10
        worker_options += ["--lifetime", args.lifetime, "--lifetime-stagger", f"{stagger:.0f}s"]

    with SLURMCluster(
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
        worker_extra_args=worker_options,
        scheduler_options={"port": args.port, "dashboard_address": "127.0.0.1:0"},
        **security,
    ) as cluster:
        if args.show:
            print(cluster.job_script())
            return 0
        # Jobs are asked for while there is work, given back when there is none, and replaced when
        # they end. The short target duration means: a worker for every training that waits.
        cluster.adapt(minimum_jobs=args.keep, maximum_jobs=args.jobs, target_duration="1ms")
        address = cluster.scheduler_address
        print(f"the scheduler is {address}, its dashboard {cluster.dashboard_link}", flush=True)
        if not command:
            print("Ctrl-C ends it and cancels its jobs", flush=True)
            signal.pause()
        command += ["--scheduler", address]
        if args.tls_ca:
            command += ["--tls-ca", args.tls_ca, "--tls-cert", args.tls_cert]
            command += ["--tls-key", args.tls_key]
        return run(command)


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """The options, and the command after ``--``."""
    argv = sys.argv[1:]
    cut = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(usage="python slurm.py [options] [-- sptlib sweep ...]")
    parser.add_argument("--jobs", type=int, default=1, help="at most so many at a time")
    parser.add_argument("--keep", type=int, default=0, help="at least so many, even without work")
    parser.add_argument("--cores", type=int, default=1, help="of one job: workers in it")
    parser.add_argument("--memory", default="2GB", help="of one job; 2 GB per worker are plenty")
    parser.add_argument("--walltime", default="01:00:00", help="of one job")
    parser.add_argument("--lifetime", help="workers leave after this, e.g. 50m; < walltime")
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


def run(command: list[str]) -> int:
    """The exit status of a command, which hears of Ctrl-C and SIGTERM before this script ends."""
    process = subprocess.Popen(command)
    try:
        return process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise


if __name__ == "__main__":
    # SIGTERM (from scancel, kill) ends this like Ctrl-C does: jobs must not be left behind
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
