"""What a result was computed with: versions, commit, device, threads, processes, time."""

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import torch

from sptlib import engine
from sptlib.processes import ALONE, Team

RECORDED = ("torch", "numpy", "scikit-learn", "safetensors", "pydantic", "sptlib")


def environment(
    device: torch.device,
    threads: int,
    seconds: float,
    config,
    accumulate: int = 1,
    team: Team = ALONE,
    packages: Sequence[str] = (),
) -> dict:
    """All of it, as it is stored beside a result; no number depends on reading it.

    Args:
        device: of the main process.
        threads: CPU threads per process.
        seconds: of the training, all its parts if it was interrupted.
        config: of the training; gives the precision.
        accumulate: pieces per process and batch.
        team: the processes.
        packages: whose versions are recorded besides `RECORDED`.
    """
    versions = {}
    accelerated = engine.uses_accelerate(config, accumulate, team)
    more = ("accelerate",) if accelerated else ()
    for package in dict.fromkeys((*RECORDED, *more, *packages)):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "python": platform.python_version(),
        "platform": platform.system(),
        "machine": platform.machine(),
        "processor": processor(),
        "device": device.type,
        "device_name": name,
        "threads": threads,
        "processes": team.size,
        "accumulate": accumulate,
        "precision": config.precision,
        "cpu_count": os.cpu_count(),
        "versions": versions,
        "commit": commit(),
        "seconds": round(seconds, 3),
    }


def processor() -> str:
    """The name of this machine's CPU; rounding may differ between two of them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def commit() -> str:
    """The commit of the checkout that the library is run from, or ""."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:  # no git on this machine
        return ""
    return done.stdout.strip()
