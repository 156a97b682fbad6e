"""The presets: how large everything is, as Python functions that return a Run.

smoke runs everything and shows nothing; classroom is what a reader re-runs live; study has small
versions of every task, and more seeds; paper has the published sizes. A preset gives the Run with
self-pretraining; the experiments derive their other arms from it.

A recipe is named by its task, or by task and label where a task has two: ``text:direction``.
"""

from collections.abc import Callable
from dataclasses import replace

from sptlib import tasks
from sptlib.config import FinetuneConfig, ModelConfig, PretrainConfig, Run
from sptlib.errors import unknown
from sptlib.tasks import (
    ImageConfig,
    ListOpsConfig,
    NeighborConfig,
    PathfinderConfig,
    RetrievalConfig,
    TextConfig,
)
from sptlib.tasks.base import TaskConfig

#: seeds 0 … n−1 of each preset
N_SEEDS = {"smoke": 2, "classroom": 5, "study": 10, "paper": 5}

#: every task, and the second label of the one that has two
RECIPES = (*tasks.CONFIGS, "text:direction")

_TINY = {"n_train": 64, "n_val": 32, "n_test": 32}


def _smoke_task(recipe: str) -> TaskConfig:
    name, _, label = recipe.partition(":")
    if name == "neighbor":
        return NeighborConfig(**_TINY, length=16)
    if name == "listops":
        return ListOpsConfig(**_TINY, max_depth=3, max_args=3, min_length=3, max_length=17)
    if name == "image":
        return ImageConfig(n_train=96, n_val=40, n_test=40, n_labels=48)
    if name == "pathfinder":
        return PathfinderConfig(**_TINY, side=16, contour_length=5, levels=3)
    if name == "text":
        kind = {"label": label or "sentiment"}
        return TextConfig(**_TINY, **kind, source="reviews", alphabet="simple", max_len=24)
    return RetrievalConfig(**_TINY, source="halves", alphabet="simple", max_len=24)


def smoke(recipe: str) -> Run:
    """As small as can be: a second per Run."""
    model = ModelConfig(width=8, mlp_ratio=1.0)
    pretrain = PretrainConfig(epochs=2.0, warmup_steps=2, n_evals=2)
    finetune = FinetuneConfig(epochs=2.0, warmup_steps=2, n_evals=2)
    return Run(task=_smoke_task(recipe), model=model, pretrain=pretrain, finetune=finetune)


def classroom(recipe: str) -> Run:
    """Minutes on two CPU cores; every rate was chosen on other seeds (``data/tuning``)."""
    if recipe == "neighbor":
        return Run(
            task=NeighborConfig(),
            model=ModelConfig(width=32, n_layers=1, n_heads=1, mlp_ratio=2.0),
            pretrain=PretrainConfig(epochs=16.0, lr=1e-2, mask_ratio=0.3, batch_size=32),
            finetune=FinetuneConfig(epochs=5.0, lr=5e-3, batch_size=8, n_evals=20),
        )
    if recipe == "image":
        return Run(
            task=ImageConfig(n_labels=200),
            model=ModelConfig(width=48, n_layers=2, n_heads=4, mlp_ratio=2.0),
            pretrain=PretrainConfig(
                epochs=21.0, lr=1e-2, mask_ratio=0.6, warmup_steps=50, clip=1.0
            ),
            finetune=FinetuneConfig(epochs=48.0, lr=1e-2, warmup_steps=50, clip=1.0),
        )
    return MINI[recipe]()


def _mini(task: TaskConfig, model: dict, pretrain: dict, finetune: dict) -> Run:
    """A small version of an LRA task: pre-norm, sinusoids, mean pooling, constant rate."""
    both = {"warmup_steps": 100, "clip": 1.0}
    return Run(
        task=task,
        model=ModelConfig(**{"mlp_ratio": 2.0, **model}),
        pretrain=PretrainConfig(**{**both, "n_evals": 5, **pretrain}),
        finetune=FinetuneConfig(**{**both, "n_evals": 10, **finetune}),
    )


def _mini_listops() -> Run:
    return _mini(
        ListOpsConfig(
            n_train=20_000, n_val=1000, n_test=2000,
            max_depth=6, max_args=5, min_length=20, max_length=64,
        ),
        {"width": 64, "n_layers": 2, "n_heads": 4},
        {"epochs": 3.2, "lr": 5e-3, "batch_size": 32, "mask_ratio": 0.15},
        {"epochs": 2.4, "lr": 2e-3, "batch_size": 32, "n_evals": 15},
    )  # fmt: skip


def _mini_pathfinder() -> Run:
    return _mini(
        PathfinderConfig(
            n_train=10_000, n_val=1000, n_test=2000, side=16, contour_length=5, levels=5
        ),
        {"width": 32, "n_layers": 2, "n_heads": 2},
        {
            "epochs": 2.4, "lr": 5e-3, "batch_size": 16, "mask_ratio": 0.5,
            "criterion": "loss",  # nearly nine pixels in ten are black
        },
        {"epochs": 1.6, "lr": 1e-3, "batch_size": 16},
    )  # fmt: skip


def _mini_text() -> Run:
    return _mini(
        TextConfig(
            source="reviews", alphabet="simple", max_len=128,
            n_train=20_000, n_val=1000, n_test=2000,
        ),
        {"width": 32, "n_layers": 1, "n_heads": 2},
        {"epochs": 1.6, "lr": 5e-3, "batch_size": 16, "mask_ratio": 0.15},
        {"epochs": 1.2, "lr": 1e-3, "batch_size": 16, "n_evals": 15},
    )  # fmt: skip


def _mini_text_direction() -> Run:
    return _mini(
        TextConfig(
            source="reviews", label="direction", alphabet="simple", max_len=96,
            n_train=4000, n_val=500, n_test=1000,
        ),
        {"width": 32, "n_layers": 1, "n_heads": 2},
        {"epochs": 8.0, "lr": 5e-3, "batch_size": 16, "mask_ratio": 0.2, "warmup_steps": 50},
        {"epochs": 1.6, "lr": 2e-3, "batch_size": 16, "warmup_steps": 50},
    )  # fmt: skip


def _mini_retrieval() -> Run:
    return _mini(
        RetrievalConfig(
            source="halves", alphabet="simple", max_len=128,
            n_train=20_000, n_val=1000, n_test=2000,
        ),
        {"width": 32, "n_layers": 1, "n_heads": 2, "head_norm": "batch"},
        {"epochs": 0.8, "lr": 5e-3, "batch_size": 16, "mask_ratio": 0.15},
        {"epochs": 1.2, "lr": 1e-3, "batch_size": 16, "n_evals": 15},
    )  # fmt: skip


#: small versions of the tasks
MINI: dict[str, Callable[[], Run]] = {
    "listops": _mini_listops,
    "pathfinder": _mini_pathfinder,
    "text": _mini_text,
    "text:direction": _mini_text_direction,
    "retrieval": _mini_retrieval,
}


def study(recipe: str) -> Run:
    """The classroom's Run; a study has more seeds."""
    return classroom(recipe)


#: published sizes (Amos et al. 2024): width, layers, heads, MLP; rates of labels and of SPT;
#: batches of labels and of SPT; hidden share; weight decay; task
_PAPER = {
    "listops": ((512, 6, 8, 4.0), (1e-4, 1e-3), (32, 32), 0.1, 0.0, ListOpsConfig()),
    "image": (
        (64, 3, 4, 2.0), (1e-3, 1e-3), (50, 32), 0.5, 0.0,
        ImageConfig(
            source="cifar10", tokenised=False, n_train=45_000, n_val=5_000, n_test=10_000
        ),
    ),
    "pathfinder": ((128, 4, 8, 1.0), (5e-4, 1e-3), (32, 32), 0.5, 0.0, PathfinderConfig()),
    "retrieval": ((128, 4, 4, 4.0), (5e-4, 5e-3), (32, 32), 0.15, 0.0, RetrievalConfig()),
    "text": ((512, 6, 8, 4.0), (1e-4, 5e-4), (32, 32), 0.15, 0.1, TextConfig()),
}  # fmt: skip


def paper(recipe: str) -> Run:
    """The published sizes and rates (Amos et al. 2024), for GPUs.

    200 epochs at most in each stage, AdamW with a constant rate after 2,000 steps of warm-up. Image
    is pooled by the maximum, has a hidden layer in its head, and is reconstructed with L1; all
    others by cross-entropy. The direction of texts and `neighbor` are this project's own and have
    no published size: the former takes its task's, the latter is run at the study's.

    What differs from the published runs: pixels enter divided by 255 instead of standardised (the
    first layer is linear, so that only the scale of L1 and of the initial weights is another), and
    texts have all 256 bytes instead of their 135 or 98 most frequent characters.
    """
    if recipe == "neighbor":
        return study(recipe)
    name, _, label = recipe.partition(":")
    (width, n_layers, n_heads, mlp), rates, batches, mask_ratio, decay, task = _PAPER[name]
    if recipe == "text:direction":
        task = replace(task, label=label)
    image = {"pooling": "max", "head_hidden": True} if name == "image" else {}
    both = {"epochs": 200.0, "warmup_steps": 2000, "n_evals": 200, "weight_decay": decay}
    return Run(
        task=task,
        model=ModelConfig(width=width, n_layers=n_layers, n_heads=n_heads, mlp_ratio=mlp, **image),
        pretrain=PretrainConfig(**both, lr=rates[1], batch_size=batches[1], mask_ratio=mask_ratio),
        finetune=FinetuneConfig(**both, lr=rates[0], batch_size=batches[0]),
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


def check_recipe(recipe: str) -> str:
    """The name itself; raises `ConfigError` with a suggestion if there is no such recipe."""
    if recipe not in RECIPES:
        raise unknown("task", recipe, RECIPES)
    return recipe


def get(preset: str, recipe: str) -> Run:
    """The Run with self-pretraining of a preset; raises `ConfigError` for an unknown name."""
    return PRESETS[check(preset)](check_recipe(recipe))


def n_seeds(preset: str) -> int:
    """How many seeds a preset has."""
    return N_SEEDS[check(preset)]
