"""Shared fixtures: Runs of milliseconds and an empty store for each test."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import settings

from sptlib import execute
from sptlib.config import FinetuneConfig, ModelConfig, PretrainConfig, Run
from sptlib.execute import Where
from sptlib.store import Store
from sptlib.tasks import ImageConfig, NeighborConfig

torch.set_num_threads(1)
# the same examples in every run, and no deadline: the machine may be busy
settings.register_profile("suite", deadline=None, derandomize=True, database=None, max_examples=50)
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path_factory):
    """No test touches the user's store: whoever forgets to name one writes to a temporary one."""
    monkeypatch.setenv("SPTLIB_STORE", str(tmp_path_factory.mktemp("default") / "store"))
    monkeypatch.setenv("SPTLIB_DATA", str(_data(tmp_path_factory)))


def _data(tmp_path_factory):
    """Generated data and read packages are kept for the whole session."""
    return tmp_path_factory.getbasetemp() / "data"


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture(scope="session")
def tiny() -> Run:
    """Pretraining and finetuning on `neighbor`, 12 + 12 steps."""
    return Run(
        task=NeighborConfig(length=12, n_train=48, n_val=16, n_test=16),
        model=ModelConfig(width=8, n_heads=2),
        pretrain=PretrainConfig(epochs=4, batch_size=16, warmup_steps=2, n_evals=3),
        finetune=FinetuneConfig(epochs=4, batch_size=16, warmup_steps=2, n_evals=3),
    )


@pytest.fixture
def tiny_image() -> Run:
    """Continuous pixels of the digits, max pooling, spans."""
    return Run(
        task=ImageConfig(tokenised=False, n_train=40, n_val=20, n_test=20, n_labels=20),
        model=ModelConfig(width=8, n_heads=2, pooling="max", head_hidden=True),
        pretrain=PretrainConfig(epochs=3, batch_size=20, warmup_steps=2, n_evals=2, mask="span"),
        finetune=FinetuneConfig(epochs=3, batch_size=10, warmup_steps=2, n_evals=2),
    )


@pytest.fixture
def where() -> Where:
    """This process, one thread, no checkpoint unless a test asks for it."""
    return Where(device="cpu", checkpoint_seconds=1e9)


@pytest.fixture
def python():
    """Run Python code or arguments in a process of its own; returns the finished process."""

    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            timeout=100,
            env={**os.environ, **environment},
            check=False,
        )

    return call


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """The stages that are computed in this process from now on."""
    calls = []
    for name in ("pretrain", "finetune"):
        original = getattr(execute, name)
        monkeypatch.setattr(
            execute,
            name,
            lambda *a, original=original, name=name, **k: (
                calls.append(name),
                original(*a, **k),
            )[1],
        )
    return calls
