"""Golden losses: the arithmetic of training has not changed unnoticed.

After an intended change, bump ``NUMERICS`` in sptlib/config.py, so that stored results of the older
trainer are not served any more, and write the numbers anew:

    python tests/test_golden.py --write

This refuses to replace numbers by others under the same NUMERICS.
"""

import json
import sys
import tempfile
from pathlib import Path

import pytest

from sptlib import config
from sptlib.config import FinetuneConfig, ModelConfig, PretrainConfig, Run
from sptlib.execute import Where, compute
from sptlib.store import Store
from sptlib.tasks import ImageConfig, NeighborConfig

FILE = Path(__file__).with_name("golden_losses.json")
N_LOSSES = 20
RTOL = 1e-5  # another CPU adds in another order

SMALL = {"batch_size": 16, "warmup_steps": 5, "n_evals": 2, "epochs": 5}  # 20 steps of 64 sequences
NEIGHBOR = Run(
    task=NeighborConfig(length=20, n_train=64, n_val=16, n_test=16),
    model=ModelConfig(width=16, n_heads=2),
    pretrain=PretrainConfig(**SMALL),
    transfer=("qk",),
    finetune=FinetuneConfig(**SMALL),
)
IMAGE = Run(
    task=ImageConfig(tokenised=False, n_train=64, n_val=16, n_test=16),
    model=ModelConfig(
        width=16,
        n_layers=2,
        n_heads=4,
        positions="rope",
        pooling="max",
        init="torch",
        head_hidden=True,
    ),  # dropout's bits differ between platforms
    pretrain=PretrainConfig(**SMALL, mask="span", mask_ratio=0.5, lr=1e-3),
    finetune=FinetuneConfig(**SMALL, lr=1e-3, clip=1.0, weight_decay=0.01),
    freeze=("embed",),
    seed=3,
)
CASES = {
    "neighbor, pretraining": NEIGHBOR.pretraining,
    "neighbor, labels after transfer of qk": NEIGHBOR,
    "image, pretraining": IMAGE.pretraining,
    "image, labels": IMAGE,
}


def losses(spec, store: Store) -> list[float]:
    """The first training losses of a configuration, computed now."""
    entry = compute(spec, store, Where(device="cpu"))
    return [line["loss"] for line in entry.metrics if "loss" in line][:N_LOSSES]


def advice() -> str:
    return (
        "the trainer's numbers have changed. If that is intended, bump NUMERICS in "
        f"sptlib/config.py (now {config.NUMERICS}) and run: python tests/test_golden.py --write"
    )


def write(path: Path, found: dict[str, list[float]]) -> None:
    """Store the losses; raises `SystemExit` for other numbers under the same NUMERICS."""
    if path.exists():
        old = json.loads(path.read_text())
        same = old["losses"].keys() <= found.keys() and all(
            found[name] == pytest.approx(values, rel=RTOL) for name, values in old["losses"].items()
        )
        if old["numerics"] == config.NUMERICS and not same:
            raise SystemExit(f"{path} is left as it is: {advice()}")
    path.write_text(json.dumps({"numerics": config.NUMERICS, "losses": found}, indent=1) + "\n")


@pytest.mark.parametrize("name", CASES)
def test_golden_losses(name, store):
    golden = json.loads(FILE.read_text())
    found = losses(CASES[name], store)
    assert len(found) == N_LOSSES
    assert found == pytest.approx(golden["losses"][name], rel=RTOL), advice()


def test_golden_losses_are_those_of_this_numerics():
    golden = json.loads(FILE.read_text())
    assert golden["numerics"] == config.NUMERICS, (
        "NUMERICS was bumped: write the golden losses anew with python tests/test_golden.py --write"
    )
    assert set(golden["losses"]) == set(CASES)


def test_write_refuses_other_numbers_under_the_same_numerics(tmp_path, monkeypatch):
    path = tmp_path / "golden.json"
    write(path, {"a": [1.0, 2.0]})
    write(path, {"a": [1.0, 2.0 + 1e-9], "b": [3.0]})  # another CPU; a further case
    before = path.read_text()
    for changed in ({"a": [1.0, 2.1], "b": [3.0]}, {"b": [3.0]}):
        with pytest.raises(SystemExit, match="bump NUMERICS"):
            write(path, changed)
    assert path.read_text() == before
    monkeypatch.setattr(config, "NUMERICS", config.NUMERICS + 1)
    write(path, {"a": [1.0, 2.1]})
    assert json.loads(path.read_text()) == {
        "numerics": config.NUMERICS,
        "losses": {"a": [1.0, 2.1]},
    }


def test_results_of_an_older_numerics_are_not_served(tiny, store, where, monkeypatch):
    old = compute(tiny, store, where)
    assert store.get(tiny).key == old.key
    monkeypatch.setattr(config, "NUMERICS", config.NUMERICS + 1)
    assert store.get(tiny) is None
    assert store.get(tiny.pretraining) is None
    new = compute(tiny, store, where)
    assert new.key != old.key
    assert len(list(store.entries())) == 4  # both Runs and both pretrainings


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        write(FILE, {name: losses(spec, Store(folder)) for name, spec in CASES.items()})
    print(FILE)
