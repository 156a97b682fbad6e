"""A finetuned model as a folder: base (if it was made here), adapters, and what is known of them.

``run.json`` (configuration, scores, thresholds), ``adapter/`` as PEFT lays it out, ``base/`` as
Hugging Face does, ``log.jsonl``. It holds everything that predictions need but a named base.
"""

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast

from sptlib import execute
from sptlib.config import from_dict, to_dict
from sptlib.errors import ConfigError, DataError, SptError
from sptlib.formats.base import writing
from sptlib.polar import base, compute, data, qlora
from sptlib.polar.config import PolarRun
from sptlib.polar.labels import Subtask, subtask
from sptlib.store import Entry, Store

ABOUT = "run.json"


def check(folder: Path, base: str = "") -> Path:
    """The folder's full path, if a model can be written there, in place of an older one.

    Args:
        folder: where.
        base: of the model, which must not lie in it.

    Raises:
        ConfigError: if it holds something else, or cannot be made.
    """
    folder = folder.expanduser().resolve()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is no folder")
    if folder.is_dir() and any(folder.iterdir()):
        try:
            read(folder)
        except DataError as error:
            raise ConfigError(
                f"{folder} holds something that is no such model; name another folder"
            ) from error
    if base and Path(base).is_dir() and Path(base).resolve().is_relative_to(folder):
        raise ConfigError(f"the base {base} lies in {folder}, which will be replaced")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror or error})") from error
    return folder


def write(entry: Entry, store: Store, folder: Path) -> None:
    """Write a stored run as a folder, in place of what such a folder held before.

    Args:
        entry: of a `PolarRun`.
        store: with the base that it started from.
        folder: see `check`.
    """
    run, weights = entry.spec, entry.model()
    folder = check(folder, run.base.model)
    place = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    place.chmod(0o777 & ~_umask())
    try:
        _fill(place, entry, run, weights, store)
        if folder.exists():
            shutil.rmtree(folder)
        place.rename(folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _umask() -> int:
    now = os.umask(0o077)
    os.umask(now)
    return now


def _fill(place: Path, entry: Entry, run: PolarRun, weights: dict, store: Store) -> None:
    name = run.base.model
    with qlora.quiet():
        if run.base.kind != "model":
            # it may have been pruned: then it is computed again
            before = execute.compute(run.pretraining, store) if run.pretraining else None
            stored = before.model() if before is not None else None
            copies = None if stored else compute.augmented(run, data.load(run.task, run.seed))
            compute.started(run, copies, stored, place / "base")
            name = "base"
    adapter = place / "adapter"
    adapter.mkdir()
    about = json.loads(bytes(weights.pop(compute.CONFIGURATION).numpy()))
    about["base_model_name_or_path"] = name
    (adapter / compute.CONFIGURATION).write_text(json.dumps(about, indent=1) + "\n")
    save_file(weights, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    log = "".join(json.dumps(line) + "\n" for line in entry.metrics)
    (place / "log.jsonl").write_text(log)
    content = {
        "key": entry.key,
        "config": to_dict(run),
        "result": entry.result,
        "environment": entry.environment,
    }
    with writing(place / ABOUT) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())


@dataclass
class Model:
    """A model that can predict.

    Attributes:
        run: how it was made.
        result: its scores; ``thresholds`` are the tuned ones.
        network: base, adapters and head.
        tokenizer: of the base.
    """

    run: PolarRun
    result: dict
    network: PeftModel
    tokenizer: PreTrainedTokenizerFast

    @property
    def asked(self) -> Subtask:
        """The subtask it answers."""
        return subtask(self.run.task.subtask)

    def probabilities(self, posts: pd.DataFrame) -> np.ndarray:
        """(N, L) of each label, in the order of the posts."""
        texts = posts["text"].tolist()
        length = self.run.qlora.max_length
        return qlora.probabilities(self.network, self.tokenizer, texts, self.asked, length)

    def n_cut(self, posts: pd.DataFrame) -> int:
        """How many posts are longer than the model reads."""
        return qlora.tokens(posts["text"].tolist(), self.tokenizer, self.run.qlora.max_length)[1]


def read(folder: Path) -> tuple[PolarRun, dict]:
    """Configuration and scores of a model's folder; raises `DataError` for anything else."""
    path = folder / ABOUT
    try:
        content = json.loads(path.read_text())
        run, result = from_dict(content["config"]), content["result"]
        thresholds = [float(t) for t in result["thresholds"]]
    except OSError as error:
        raise DataError(
            folder, f"no {ABOUT} in it: this is no model of `sptlib polar train`"
        ) from error
    except (ValueError, KeyError, TypeError, SptError) as error:
        raise DataError(path, f"is not what `sptlib polar train` writes ({error})") from error
    if not isinstance(run, PolarRun):
        raise DataError(path, f"is the configuration of a {run.kind}, not of a finetuned model")
    if len(thresholds) != len(subtask(run.task.subtask).labels):
        raise DataError(path, "has not one threshold for each label")
    return run, result


def load(folder: Path, device: torch.device) -> Model:
    """The model of a folder, for predictions.

    Raises:
        DataError: if the folder holds no such model.
        ConfigError: if its base cannot be loaded, or adapters and base do not fit each other.
    """
    run, result = read(folder)
    here = folder / "base"
    for part in (folder / "adapter", *([here] if run.base.kind != "model" else [])):
        if not part.is_dir():
            raise DataError(part, "there is no such folder; the model is not whole")
    with qlora.quiet():
        where = run.base.model if run.base.kind == "model" else str(here)
        start = base.opened(where, run.base.allow_pickle)
        network = qlora.reloaded(
            start,
            run.qlora,
            subtask(run.task.subtask),
            folder / "adapter",
            device,
            run.base.allow_pickle,
        )
    return Model(run, result, network, start.tokenizer)
