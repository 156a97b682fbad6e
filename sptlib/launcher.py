"""What `accelerate launch` and torchrun say in the environment of the processes they start."""

import os
from collections.abc import Mapping

from sptlib.config import TrainConfig
from sptlib.errors import ConfigError


def launched() -> int:
    """How many processes were started for this training; 1 without a launcher.

    Raises:
        ConfigError: if the environment is incomplete.
    """
    text = os.environ.get("WORLD_SIZE", "1")
    size = int(text) if text.isdecimal() else 0
    names = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if size != 1 else ()
    missing = [f"{name} is not" for name in names if name not in os.environ]
    if size < 1:
        missing.insert(0, "that is no number of processes")
    if missing:
        raise ConfigError(
            f"WORLD_SIZE={text} is set, but {missing[0]}; start with `accelerate launch`, or unset "
            "WORLD_SIZE for a training in one process"
        )
    return size


def refuse(what: str) -> None:
    """Raise `ConfigError` if a launcher started several processes for what wants to be one."""
    if launched() > 1:
        raise ConfigError(
            f"{what} starts processes of its own; call it without `accelerate launch`, which is "
            "for one large training: accelerate launch -m sptlib train ..."
        )


def left_alone() -> str:
    """A warning if `accelerate launch` was asked for several processes and started one; else ""."""
    several = "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ
    if not several or "WORLD_SIZE" in os.environ:
        return ""
    return (
        "`accelerate launch` has started a single process; for several GPUs give it --multi_gpu, "
        "for several processes on CPUs --multi_gpu as well, and `sptlib train --device cpu`"
    )


def local_rank() -> int:
    """The number of this process on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def n_local() -> int:
    """How many processes of this training this machine has."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", str(local_rank() + 1)))


def wants_cpu() -> bool:
    """Whether the launcher was given --cpu."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1", "yes")


def accumulation() -> int:
    """Accumulation steps that the launcher asks for; 1 if it does not.

    Raises:
        ConfigError: if that is no positive number.
    """
    text = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"ACCELERATE_GRADIENT_ACCUMULATION_STEPS={text} is no number of steps; launch with "
            "--gradient_accumulation_steps 1 or more, or without"
        )
    return int(text)


def check(stages: Mapping[str, TrainConfig]) -> None:
    """Refuse what the launcher asks for against the Run, which alone determines a result.

    Args:
        stages: by name. ``--mixed_precision no``, the launcher's default, asks for nothing.

    Raises:
        ConfigError: naming the option that mends it.
    """
    asked = os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    for name, config in stages.items():
        if asked not in ("no", config.precision):
            ours = f", or say `sptlib train --precision {asked}`" if asked == "bf16" else ""
            raise ConfigError(
                f"the launcher asks for --mixed_precision {asked}, but {name}.precision of the Run "
                f"is {config.precision}; launch with --mixed_precision no{ours}"
            )
    for option in ("deepspeed", "fsdp", "megatron_lm"):
        if os.environ.get(f"ACCELERATE_USE_{option.upper()}", "").lower() == "true":
            raise ConfigError(
                "every process holds the whole model here: launch with --multi_gpu instead of "
                f"--use_{option}"
            )
    if os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower() != "no":
        raise ConfigError("models are not compiled here: launch with --dynamo_backend no")
