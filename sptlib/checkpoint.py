"""Checkpoints of an unfinished training: one safetensors file, replaced atomically.

Since every random stream is named by its step (`sptlib.seeding`), a checkpoint holds weights,
optimiser moments and the log, but no generator state. Its metadata hold a SHA-256 of all that: a
file that does not match is not used.
"""

import dataclasses
import errno
import hashlib
import json
import os
import re
import sys
import time
import uuid
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn, optim, uint8

from sptlib.errors import NO_SPACE, StoreError

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

    def due(self, step: int) -> bool:
        """Whether it is time to save."""
        return self.due_by_steps(step) or time.monotonic() - self._saved_at >= self.every_seconds

    def due_by_steps(self, step: int) -> bool:
        """Whether it is time to save for the number of steps alone."""
        return bool(self.every_steps) and step % self.every_steps == 0

    def save(
        self,
        state,
        model: nn.Module,
        optimizer: optim.Optimizer,
        trainable: list[tuple[str, nn.Parameter]],
        best: dict[str, Tensor],
        seen: dict[int, dict[str, Tensor]] | None = None,
    ) -> None:
        """Write everything that the rest of the training depends on.

        Args:
            state: of the loop.
            model: as it is.
            optimizer: with its moments.
            trainable: parameters by name.
            best: the best weights so far.
            seen: weights that are kept, by step.

        Raises:
            StoreError: if there is no space; the last checkpoint is kept.
        """
        tensors = {f"model/{k}": v for k, v in model.state_dict().items()}
        tensors |= {f"best/{k}": v for k, v in best.items()}
        for step, weights in (seen or {}).items():
            tensors |= {f"seen/{step}/{k}": v for k, v in weights.items()}
        for name, parameter in trainable:
            for moment, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{moment}/{name}"] = value
        tensors = {k: v.contiguous() for k, v in tensors.items()}
        text = json.dumps(dataclasses.asdict(state))
        # a name of its own: whoever took this training over may be writing here, too
        draft = self.path.with_suffix(f".{uuid.uuid4().hex}.tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)  # it may have finished and tidied
            save_file(tensors, draft, metadata={"state": text, "sha256": _digest(tensors, text)})
            os.replace(draft, self.path)
        except (OSError, SafetensorError) as error:
            draft.unlink(missing_ok=True)
            number = _errno(error)
            if number == errno.ENOENT and not draft.parent.exists():
                return  # tidied away just now
            if number not in NO_SPACE:
                raise
            raise StoreError(
                f"no space for the checkpoint {self.path} ({os.strerror(number)}); the last one "
                "is kept. Free some space, and the same command goes on from there"
            ) from error
        self._saved_at = time.monotonic()

    def load(
        self,
        state_class: type,
        model: nn.Module,
        optimizer: optim.Optimizer,
        trainable: list[tuple[str, nn.Parameter]],
        report: bool = True,
    ) -> tuple | None:
        """Put model and optimiser back; returns state, best weights so far, and those kept by step.

        Returns:
            None, and model and optimiser are left alone, if there is no checkpoint, or none that
            can be used: then a line on stderr says why, unless ``report`` is False.
        """
        try:
            state, tensors = self._read(state_class)
            device = next(model.parameters()).device
            parts: dict[str, dict[str, Tensor]] = {
                p: {} for p in ("model", "best", "seen", *MOMENTS)
            }
            for name, value in tensors.items():
                part, _, rest = name.partition("/")
                parts[part][rest] = value if part == "seen" else value.to(device)
            _fits(model.state_dict(), parts["model"])
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            if report:
                why = f"the checkpoint {self.path} cannot be used ({error})"
                print(f"sptlib: {why}; this training starts anew", file=sys.stderr)
            return None
        model.load_state_dict(parts["model"])
        for name, parameter in trainable:
            if name in parts["step"]:  # absent: the parameter has had no gradient yet
                optimizer.state[parameter] = {m: parts[m][name] for m in MOMENTS}
        seen: dict[int, dict[str, Tensor]] = {}
        for name, value in parts["seen"].items():
            step, _, rest = name.partition("/")
            seen.setdefault(int(step), {})[rest] = value
        return state, parts["best"], seen

    def _read(self, state_class: type) -> tuple:
        with safe_open(self.path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if "sha256" not in metadata:
            raise ValueError("it has no checksum: an earlier version of this library wrote it")
        if _digest(tensors, metadata["state"]) != metadata["sha256"]:
            raise ValueError("its checksum is wrong: the file is damaged")
        return state_class(**json.loads(metadata["state"])), tensors

    def tidy(self) -> None:
        """Delete what a process left that was killed while it wrote (safetensors: ``.tmp…``)."""
        for draft in (*self.path.parent.glob("*.tmp"), *self.path.parent.glob(".tmp*")):
            draft.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the file; the training is finished and stored."""
        self.path.unlink(missing_ok=True)


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    """SHA-256 of every tensor's name, shape, type and bytes, and of the state."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.cpu().contiguous().flatten().view(uint8).numpy())
    return digest.hexdigest()


def _fits(expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    wanted = {name: value.shape for name, value in expected.items()}
    if wanted != {name: value.shape for name, value in found.items()}:
        raise ValueError("its weights are those of another model")


def _errno(error: Exception) -> int | None:
    """The system's error number; safetensors only has it in its message."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"(?:os error|code:) (\d+)", str(error))
    return int(found[1]) if found else None
