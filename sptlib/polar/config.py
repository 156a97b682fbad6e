"""What determines a result of the polarization system: posts, base model, copies, training.

The defaults of `QLoRAConfig` and `AugmentConfig` are the published ones (Macko et al. 2026); the
tiny offline base needs other ones, see `sptlib.polar.presets`.
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pydantic.dataclasses import dataclass as validated

from sptlib.errors import unknown
from sptlib.polar.augment import CHARACTERS, KINDS, RATE
from sptlib.polar.labels import LANGUAGES
from sptlib.tasks.base import STRICT, NonNegativeInt, PositiveInt

#: bump it when the same configuration gives other numbers
VERSION = 1
#: positions of the small base
POSITIONS = 512

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


@validated(frozen=True, kw_only=True, config=STRICT)
class PolarTask:
    """Which posts, and what is asked about them.

    Attributes:
        source: "synthetic" (made here) or "files" (read from `sptlib.polar.data.home`).
        subtask: 1 detection, 2 type, 3 manifestation.
        languages: codes; empty = all there are.
        n_train: training posts per language (synthetic).
        n_val: validation posts per language (synthetic).
        n_test: test posts per language (synthetic).
        held_out: of files, most training posts per label and language (subtask 1), or per language
            (the others), that are kept for validation.
        data_seed: seed of synthetic posts and of what is held out; None = the run's seed.
    """

    name: Literal["polar"] = "polar"
    source: Literal["synthetic", "files"] = "synthetic"
    subtask: Literal[1, 2, 3] = 1
    languages: tuple[str, ...] = ()
    n_train: PositiveInt = 240
    n_val: PositiveInt = 40
    n_test: PositiveInt = 100
    held_out: PositiveInt = 100
    data_seed: int | None = None

    @field_validator("languages")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in LANGUAGES:
                raise unknown("language", name, LANGUAGES)
        return tuple(sorted(set(names)))


@validated(frozen=True, kw_only=True, config=STRICT)
class BaseConfig:
    """The causal language model that is finetuned.

    Attributes:
        kind: "spt" (small, self-pretrained here on the unlabelled training posts), "random" (the
            same, as it was before its pretraining) or "model" (one from Hugging Face).
        model: of kind "model": a folder, or a name on the Hub.
        allow_pickle: take a model whose weights are only there as pickle, which can run any code.
        architecture: of the small one: "llama" (rotary positions) or "opt" (learned positions,
            which are added to the embeddings).
        vocab_size: symbols of the tokenizer that is trained on the training posts.
        width: features per position.
        n_layers: layers.
        n_heads: attention heads.
        mlp_ratio: hidden units of the MLP as a multiple of width.
        steps: of self-pretraining, next-token prediction on blocks of ``block`` tokens.
        lr: peak rate, AdamW, constant after 50 steps.
        batch_size: blocks per step.
        block: tokens per block.
    """

    kind: Literal["spt", "random", "model"] = "spt"
    model: str = ""
    allow_pickle: bool = False
    architecture: Literal["llama", "opt"] = "llama"
    vocab_size: PositiveInt = 1500
    width: PositiveInt = 64
    n_layers: PositiveInt = 2
    n_heads: PositiveInt = 4
    mlp_ratio: PositiveFloat = 2.0
    steps: PositiveInt = 400
    lr: PositiveFloat = 5e-3
    batch_size: PositiveInt = 32
    block: PositiveInt = 64

    @model_validator(mode="after")
    def _fits(self):
        if (self.kind == "model") != bool(self.model):
            raise ValueError("model belongs to kind 'model', and to it alone")
        if self.width % self.n_heads or self.width // self.n_heads % 2:
            raise ValueError(
                f"width={self.width} must be an even multiple of n_heads={self.n_heads}"
            )
        if self.block > POSITIONS:
            raise ValueError(f"block={self.block}, but the small base has {POSITIONS} positions")
        return self

    @property
    def precision(self) -> str:
        """What is recorded about a training."""
        return "fp32"


@validated(frozen=True, kw_only=True, config=STRICT)
class AugmentConfig:
    """Copies of training posts in other forms; see `sptlib.polar.augment`.

    Attributes:
        rate: copies of each kind as a share of the training posts; 0 = no augmentation.
        kinds: of copies.
        joiner_rate: of homoglyphed copies, probability of a zero-width joiner after a character.
    """

    rate: Share = RATE
    kinds: tuple[str, ...] = KINDS
    joiner_rate: Share = CHARACTERS

    @field_validator("kinds")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in KINDS:
                raise unknown("kind of augmentation", name, KINDS)
        return tuple(kind for kind in KINDS if kind in names)

    @model_validator(mode="after")
    def _none(self):
        if not self.rate or not self.kinds:  # one way to say that there is no augmentation
            object.__setattr__(self, "rate", 0.0)
            object.__setattr__(self, "kinds", ())
            object.__setattr__(self, "joiner_rate", 0.0)
        return self


@validated(frozen=True, kw_only=True, config=STRICT)
class QLoRAConfig:
    """Adapters on a quantised model (Dettmers et al. 2023), trained from labels.

    Attributes:
        quantise: the base's linear layers in 4-bit NF4 with double quantisation; False = LoRA.
        compute_dtype: what 4-bit weights are unpacked to.
        rank: of the adapters on all linear layers; never more than a layer's smaller side.
        alpha: scale of the adapters, as a multiple of 1/rank.
        dropout: of an adapter's inputs.
        lr: peak rate, constant after the warm-up.
        warmup_ratio: share of the steps with a linear warm-up.
        batch_size: posts per step; those of a batch are of similar length.
        epochs: length of the training.
        steps: length of the training in steps instead; 0 = by ``epochs``.
        weight_decay: of AdamW.
        clip: largest gradient norm.
        max_length: tokens per post; longer posts are cut.
        eval_steps: steps between evaluations on the validation posts, the best of which is kept;
            0 = as published, 500 for subtask 1 and 1,000 for the others.
        class_weights: of subtask 1: cross-entropy weighted by N / (2 N_class).
        optimiser: "paged_adamw_32bit", "adamw_torch", or "auto": the former on a GPU.
        gradient_checkpointing: less memory for more time.
    """

    quantise: bool = True
    compute_dtype: Literal["bf16", "fp32"] = "bf16"
    rank: PositiveInt = 64
    alpha: PositiveFloat = 16.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    lr: PositiveFloat = 2e-5
    warmup_ratio: Share = 0.03
    batch_size: PositiveInt = 1
    epochs: PositiveFloat = 1.0
    steps: NonNegativeInt = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip: PositiveFloat = 1.0
    max_length: PositiveInt = 512
    eval_steps: NonNegativeInt = 0
    class_weights: bool = True
    optimiser: Literal["auto", "paged_adamw_32bit", "adamw_torch"] = "auto"
    gradient_checkpointing: bool = True

    @property
    def precision(self) -> str:
        """What is recorded about a training."""
        return self.compute_dtype


@validated(frozen=True, kw_only=True, config=STRICT)
class PolarBase:
    """The self-pretraining that runs share: what one base model depends on."""

    kind: ClassVar[str] = "polar_base"
    stage: ClassVar[str] = "pretrain"
    #: it waits for nothing
    pretraining: ClassVar[None] = None

    task: PolarTask
    base: BaseConfig
    augment: AugmentConfig
    seed: NonNegativeInt = 0

    @property
    def n_steps(self) -> int:
        """Steps of the training."""
        return self.base.steps

    def data(self) -> str:
        """SHA-256 of the posts; see `sptlib.config.key`."""
        return _fingerprint(self.task, self.seed)

    def train(self, before, where, work: Path):
        """Compute it; see `sptlib.polar.compute.pretrain`."""
        from sptlib.polar import compute

        return compute.pretrain(self, compute.how(where, work))


@validated(frozen=True, kw_only=True, config=STRICT)
class PolarRun:
    """One finetuned model, and how well it does on the test posts and their copies.

    Attributes:
        seed: of the posts (unless the task fixes it), the base, the copies, adapters and batches.
    """

    kind: ClassVar[str] = "polar"
    stage: ClassVar[str] = "finetune"

    task: PolarTask = Field(default_factory=PolarTask)
    base: BaseConfig = Field(default_factory=BaseConfig)
    augment: AugmentConfig = Field(default_factory=AugmentConfig)
    qlora: QLoRAConfig = Field(default_factory=QLoRAConfig)
    seed: NonNegativeInt = 0

    @property
    def n_steps(self) -> int:
        """About how many steps it takes."""
        epochs = 8 * self.task.n_train * self.qlora.epochs / self.qlora.batch_size
        return self.qlora.steps or max(1, round(epochs))

    @property
    def pretraining(self) -> PolarBase | None:
        """The self-pretrained base, of the training posts and their copies.

        It does not depend on what is asked, unless what is held out does.
        """
        if self.base.kind != "spt":
            return None
        task = self.task
        if task.source == "synthetic":
            task = dataclasses.replace(task, subtask=1)
        return PolarBase(task=task, base=self.base, augment=self.augment, seed=self.seed)

    def data(self) -> str:
        """SHA-256 of the posts; see `sptlib.config.key`."""
        return _fingerprint(self.task, self.seed, self.base.model)

    def train(self, before, where, work: Path):
        """Compute it; see `sptlib.polar.compute.finetune`."""
        from sptlib.polar import compute

        return compute.finetune(self, before, compute.how(where, work))


def _fingerprint(task: PolarTask, seed: int, model: str = "") -> str:
    from sptlib.polar import data, generator

    posts = generator.fingerprint() if task.source == "synthetic" else data.fingerprint()
    text = f"polar {VERSION} {posts} {seed if task.data_seed is None else task.data_seed}"
    for path in sorted(Path(model).expanduser().glob("*")) if model else ():
        if path.is_file():  # a folder may be filled anew
            about = path.stat()
            text += f" {path.name} {about.st_size} {about.st_mtime_ns}"
    return hashlib.sha256(text.encode()).hexdigest()
