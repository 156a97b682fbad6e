"""The presets: how large everything is, as Python functions that return a Run.

smoke runs everything and shows nothing; classroom is what a reader re-runs live; study has more
seeds; paper has the published sizes. A preset gives the Run
with self-pretraining; the experiments derive their other arms from it.
"""

from collections.abc import Callable

from sptlib import tasks
from sptlib.config import FinetuneConfig, ModelConfig, PretrainConfig, Run
from sptlib.errors import unknown
from sptlib.tasks import ImageConfig, NeighborConfig

#: seeds 0 … n−1 of each preset
N_SEEDS = {"smoke": 2, "classroom": 5, "study": 10, "paper": 5}


def smoke(task: str) -> Run:
    """As small as can be: a second per Run."""
    model = ModelConfig(width=8, mlp_ratio=1.0)
    pretrain = PretrainConfig(epochs=2.0, warmup_steps=2, n_evals=2)
    finetune = FinetuneConfig(epochs=2.0, warmup_steps=2, n_evals=2)
    if task == "neighbor":
        config = NeighborConfig(n_train=64, n_val=32, n_test=32, length=16)
    else:
        config = ImageConfig(n_train=96, n_val=40, n_test=40, n_labels=48)
    return Run(task=config, model=model, pretrain=pretrain, finetune=finetune)


def classroom(task: str) -> Run:
    """Minutes on two CPU cores; every rate was chosen on other seeds (``data/tuning``)."""
    if task == "neighbor":
        return Run(
            task=NeighborConfig(),
            model=ModelConfig(width=32, n_layers=1, n_heads=1, mlp_ratio=2.0),
            pretrain=PretrainConfig(epochs=16.0, lr=1e-2, mask_ratio=0.3, batch_size=32),
            finetune=FinetuneConfig(epochs=5.0, lr=5e-3, batch_size=8, n_evals=20),
        )
    return Run(
        task=ImageConfig(n_labels=200),
        model=ModelConfig(width=48, n_layers=2, n_heads=4, mlp_ratio=2.0),
        pretrain=PretrainConfig(epochs=21.0, lr=1e-2, mask_ratio=0.6, warmup_steps=50, clip=1.0),
        finetune=FinetuneConfig(epochs=48.0, lr=1e-2, warmup_steps=50, clip=1.0),
    )


def study(task: str) -> Run:
    """The classroom's Run; a study has more seeds."""
    return classroom(task)


def paper(task: str) -> Run:
    """The published sizes (Amos et al. 2024), for GPUs.

    Their Image model: width 64, 3 layers, 4 heads, MLP ×2, max pooling, a head with one hidden
    layer, half of the pixels hidden, L1, 200 epochs, AdamW with a constant rate after 2,000 steps
    of warm-up. `neighbor` is this project's own construction and has no published size; it is run
    at the study's.
    """
    if task == "neighbor":
        return study(task)
    return Run(
        task=ImageConfig(tokenised=False),
        model=ModelConfig(
            width=64, n_layers=3, n_heads=4, mlp_ratio=2.0, pooling="max", head_hidden=True
        ),
        pretrain=PretrainConfig(
            epochs=200.0, lr=1e-3, batch_size=32, mask_ratio=0.5, warmup_steps=2000, n_evals=200
        ),
        finetune=FinetuneConfig(
            epochs=200.0, lr=1e-3, batch_size=50, warmup_steps=2000, n_evals=200
        ),
    )


PRESETS: dict[str, Callable[[str], Run]] = {
    "smoke": smoke,
    "classroom": classroom,
    "study": study,
    "paper": paper,
}


def check(preset: str) -> str:
    """The name itself; raises `ConfigError` with a suggestion if there is no such preset."""
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    return preset


def get(preset: str, task: str) -> Run:
    """The Run with self-pretraining of a preset; raises `ConfigError` for an unknown name."""
    tasks.config_class(task)
    return PRESETS[check(preset)](task)


def n_seeds(preset: str) -> int:
    """How many seeds a preset has."""
    return N_SEEDS[check(preset)]
