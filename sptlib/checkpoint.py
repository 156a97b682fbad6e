"""Checkpoints of an unfinished training: one safetensors file, replaced atomically.

Since every random stream is named by its step (`sptlib.seeding`), a checkpoint holds weights,
optimiser moments and the log, but no generator state.
"""

import dataclasses
import json
import os
import time
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn, optim

MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class Checkpoint:
    """Where a training saves its state.

    Args:
        path: the file.
        every_seconds: save at the first step after this time has passed.
        every_steps: save after this many steps, too; 0 = by time only.
    """

    def __init__(self, path: Path, every_seconds: float = 20.0, every_steps: int = 0):
        self.path, self.every_seconds, self.every_steps = path, every_seconds, every_steps
        self._saved_at = time.monotonic()

    def exists(self) -> bool:
        """Whether there is a readable checkpoint; an unreadable one is as good as none."""
        try:
            with safe_open(self.path, "pt"):
                return True
        except (OSError, SafetensorError):
            return False

    def due(self, step: int) -> bool:
        """Whether it is time to save."""
        by_steps = bool(self.every_steps) and step % self.every_steps == 0
        return by_steps or time.monotonic() - self._saved_at >= self.every_seconds

    def save(
        self,
        state,
        model: nn.Module,
        optimizer: optim.Optimizer,
        trainable: list[tuple[str, nn.Parameter]],
        best: dict[str, Tensor],
    ) -> None:
        """Write everything that the rest of the training depends on."""
        tensors = {f"model/{k}": v for k, v in model.state_dict().items()}
        tensors |= {f"best/{k}": v for k, v in best.items()}
        for name, parameter in trainable:
            for moment, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{moment}/{name}"] = value
        temporary = self.path.with_suffix(".tmp")
        save_file(
            {k: v.contiguous() for k, v in tensors.items()},
            temporary,
            metadata={"state": json.dumps(dataclasses.asdict(state))},
        )
        os.replace(temporary, self.path)
        self._saved_at = time.monotonic()

    def load(
        self,
        state_class: type,
        model: nn.Module,
        optimizer: optim.Optimizer,
        trainable: list[tuple[str, nn.Parameter]],
    ) -> tuple:
        """Put model and optimiser back; returns the state and the best weights so far."""
        with safe_open(self.path, "pt") as file:
            state = state_class(**json.loads(file.metadata()["state"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        device = next(model.parameters()).device
        tensors = {k: v.to(device) for k, v in tensors.items()}

        def part(prefix: str) -> dict[str, Tensor]:
            return {
                k.removeprefix(f"{prefix}/"): v
                for k, v in tensors.items()
                if k.startswith(f"{prefix}/")
            }

        model.load_state_dict(part("model"))
        moments = {m: part(m) for m in MOMENTS}
        for name, parameter in trainable:
            if name in moments["step"]:  # absent: the parameter has had no gradient yet
                optimizer.state[parameter] = {m: moments[m][name] for m in MOMENTS}
        return state, part("best")

    def remove(self) -> None:
        """Delete the file; the training is finished and stored."""
        self.path.unlink(missing_ok=True)
