"""A Run: the frozen, validated description that fully determines a result.

Everything that influences numbers is a field here; where a computation happens, on which device and
with what progress bar is not. Construct with keywords; change with `dataclasses.replace`.
"""

import dataclasses
import hashlib
import json
from functools import cache
from importlib import import_module
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator
from pydantic.dataclasses import dataclass as validated

from sptlib import tasks
from sptlib.errors import ConfigError, unknown
from sptlib.groups import ALIASES, expand_groups
from sptlib.groups import GROUPS as GROUPS
from sptlib.tasks.base import STRICT, NonNegativeInt, PositiveInt

#: Version of the arithmetic. Bump it whenever a golden-loss test changes; it is part of every key,
#: so results of an older trainer are then not served any more.
NUMERICS = 1
#: Version of the layout of `Run`; part of every key.
SCHEMA = 1
#: Fields that were added since `SCHEMA` last changed, each with the value that means: as before it.
#: A configuration with that value keeps its key, so that older results are still found.
LATER: dict[str, Any] = {
    "pretrain.precision": "fp32",
    "finetune.precision": "fp32",
    "pretrain.watch": 0,
    "finetune.watch": 0,
    "model.proximity_bias": 0.0,
    "transfer_share": 1.0,
    "base.allow_pickle": False,
}

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@validated(frozen=True, kw_only=True, config=STRICT)
class ModelConfig:
    """The Transformer encoder.

    Attributes:
        width: D, features per position.
        n_layers: layers.
        n_heads: attention heads per layer; they divide width.
        mlp_ratio: hidden units of the MLP as a multiple of width.
        positions: how order enters: sinusoidal (added), learned (added), rope (rotates queries
            and keys), alibi (biases scores), none.
        proximity_bias: strength of a bias towards near positions that every head has besides:
            -strength · ``|i − j|`` is added to the scores.
        pooling: over positions before the classification head.
        init: initial weights: "torch" (each PyTorch module's own default); "normal" (weights and
            embeddings from N(0, 0.02²), biases zero, as in BERT and GPT-2); or PyTorch's but for
            the attention: "mimetic" (Trockman & Kolter 2023), "identity" (W_Q = W_K = I), "uniform"
            (W_Q = W_K = 0), see `sptlib.initial`.
        embed_std: standard deviation of the token embeddings at the start; None = what ``init``
            says, which is 1 for "torch". The sinusoids added to them have 0.71.
        head_hidden: classification head Linear-ReLU-Linear instead of Linear.
        head_norm: what the pooled vector passes before the head: "none" or "batch" (each feature
            standardised over the batch, without parameters; over the running mean and variance in
            evaluation). Pairs need it: u∘v of nearly equal vectors tells nothing.
        dropout: on the output of attention and MLP, while training.
        max_len: longest sequence; 0 = the task's length.
    """

    width: PositiveInt = 32
    n_layers: PositiveInt = 1
    n_heads: PositiveInt = 1
    mlp_ratio: PositiveFloat = 2.0
    positions: Literal["sinusoidal", "learned", "rope", "alibi", "none"] = "sinusoidal"
    proximity_bias: NonNegativeFloat = 0.0
    pooling: Literal["mean", "max", "last"] = "mean"
    init: Literal["torch", "normal", "mimetic", "identity", "uniform"] = "torch"
    embed_std: PositiveFloat | None = None
    head_hidden: bool = False
    head_norm: Literal["none", "batch"] = "none"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    max_len: NonNegativeInt = 0

    @model_validator(mode="after")
    def _heads_divide_width(self):
        if self.width % self.n_heads:
            raise ValueError(f"n_heads={self.n_heads} does not divide width={self.width}")
        if self.positions == "rope" and (self.width // self.n_heads) % 2:
            raise ValueError(
                f"rope needs an even width per head, found {self.width} / {self.n_heads}"
            )
        if int(self.width * self.mlp_ratio) < 1:
            raise ValueError(f"mlp_ratio={self.mlp_ratio} leaves no hidden unit")
        return self


@validated(frozen=True, kw_only=True, config=STRICT)
class TrainConfig:
    """What both stages of training share.

    Attributes:
        epochs: length of the training; steps = round(epochs * sequences / batch_size), at least 1.
        lr: peak learning rate of AdamW, constant after the warm-up.
        warmup_steps: steps of linear warm-up.
        clip: largest gradient norm; 0 = no clipping.
        n_evals: evaluations on the validation split, evenly spread, the last one at the end.
        patience: stop after this many evaluations without a new best; 0 = never.
        precision: of forward and backward pass: "fp32", or "bf16" where autocast says so (mixed
            precision; weights, their updates and the losses stay in float32).
        watch: how often, evenly spread and besides the start, attention is measured
            (`sptlib.watch`) and the weights are kept; no other number depends on it.
    """

    epochs: PositiveFloat = 16.0
    lr: PositiveFloat = 5e-3
    batch_size: PositiveInt = 32
    warmup_steps: NonNegativeInt = 100
    weight_decay: NonNegativeFloat = 0.0
    clip: NonNegativeFloat = 0.0
    n_evals: PositiveInt = 10
    patience: NonNegativeInt = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    watch: NonNegativeInt = 0

    def n_steps(self, n_sequences: int) -> int:
        """Optimiser steps for a training split of this size."""
        return max(1, round(self.epochs * n_sequences / min(self.batch_size, n_sequences)))


@validated(frozen=True, kw_only=True, config=STRICT)
class PretrainConfig(TrainConfig):
    """Masked reconstruction of the inputs.

    Attributes:
        mask_ratio: share of positions that are hidden, in (0, 1).
        mask: token (each position by itself) or span (runs of ``span_length``).
        task: pretrain on this task's inputs instead of the Run's own.
        labelled_only: reconstruct the labelled training inputs only, instead of all.
        criterion: whose best value on the validation inputs picks the weights that go on: "score"
            (share of hidden tokens restored, R² for pixels, as in Amos et al. 2024) or "loss",
            where one token is so frequent that always answering it scores best.
    """

    mask_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.15
    mask: Literal["token", "span"] = "token"
    span_length: PositiveInt = 3
    task: tasks.Task | None = None
    labelled_only: bool = False
    criterion: Literal["score", "loss"] = "score"


@validated(frozen=True, kw_only=True, config=STRICT)
class FinetuneConfig(TrainConfig):
    """Training from labels.

    Attributes:
        stop_at: stop as soon as this validation accuracy is reached; None = never.
    """

    stop_at: Annotated[float, Field(gt=0, le=1)] | None = None


@validated(frozen=True, kw_only=True, config=STRICT)
class Pretraining:
    """The part of a Run that its arms share: what one pretraining depends on."""

    kind: ClassVar[str] = "pretraining"
    stage: ClassVar[str] = "pretrain"
    #: it waits for nothing
    pretraining: ClassVar[None] = None

    task: tasks.Task
    model: ModelConfig
    pretrain: PretrainConfig
    seed: NonNegativeInt = 0

    @property
    def n_sequences(self) -> int:
        """Sequences that it trains on; a pair is two of them."""
        task = self.task
        labelled = task.n_labels if self.pretrain.labelled_only else 0
        return (labelled or task.n_train) * task.n_inputs // task.n_train

    @property
    def n_steps(self) -> int:
        """Planned optimiser steps; early stopping may take fewer."""
        return self.pretrain.n_steps(self.n_sequences)

    def data(self) -> str:
        """SHA-256 of the data."""
        return tasks.fingerprint(self.task, self.seed)


@validated(frozen=True, kw_only=True, config=STRICT)
class Run:
    """One training result: (pretraining,) transfer, freezing, training from labels.

    Attributes:
        pretrain: None = from scratch.
        transfer: parameter groups copied from the pretrained model; the others, and always the
            head unless named, start at random. Without pretraining it is emptied.
        transfer_share: how much of them: they start at (1 − share) · random + share · pretrained.
        freeze: parameter groups that labels do not change.
        seed: of initial weights, batches and masks, and of the data where the task leaves
            ``data_seed`` open.
    """

    kind: ClassVar[str] = "run"
    stage: ClassVar[str] = "finetune"

    task: tasks.Task
    model: ModelConfig = Field(default_factory=ModelConfig)
    pretrain: PretrainConfig | None = None
    transfer: tuple[str, ...] = ALIASES["all"]  # spelled out: pydantic does not validate defaults
    transfer_share: Annotated[float, Field(ge=0, le=1)] = 1.0
    freeze: tuple[str, ...] = ()
    finetune: FinetuneConfig = Field(default_factory=FinetuneConfig)
    seed: NonNegativeInt = 0

    @field_validator("transfer", "freeze")
    @classmethod
    def _spell_out(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return expand_groups(names)

    @model_validator(mode="after")
    def _consistent(self):
        if self.pretrain is None:
            object.__setattr__(self, "transfer", ())
            object.__setattr__(self, "transfer_share", 1.0)
        alone = self.finetune.batch_size == 1 and self.task.n_inputs == self.task.n_train
        if self.model.head_norm == "batch" and alone:
            raise ValueError("model.head_norm='batch' needs finetune.batch_size of at least 2")
        if set(self.freeze) == set(GROUPS):
            raise ValueError("freeze names every parameter group: nothing is left to train")
        return self

    @property
    def n_sequences(self) -> int:
        """Labelled training sequences, or pairs."""
        return self.task.n_labels or self.task.n_train

    @property
    def n_steps(self) -> int:
        """Planned optimiser steps of the second stage; early stopping may take fewer."""
        return self.finetune.n_steps(self.n_sequences)

    @property
    def pretraining(self) -> Pretraining | None:
        """The pretraining this Run starts from.

        How many labels there are and how the classifier reads the sequence do not matter to it,
        so Runs that differ only there share it.
        """
        if self.pretrain is None:
            return None
        task = self.pretrain.task or self.task
        if not self.pretrain.labelled_only:
            task = dataclasses.replace(task, n_labels=0)
        model = dataclasses.replace(self.model, pooling="mean", head_hidden=False, head_norm="none")
        if self.pretrain.task is not None:
            model = dataclasses.replace(model, max_len=0)
        return Pretraining(
            task=task,
            model=model,
            seed=self.seed,
            pretrain=dataclasses.replace(self.pretrain, task=None),
        )

    def data(self) -> str:
        """SHA-256 of the data."""
        return tasks.fingerprint(self.task, self.seed)


#: every kind of training that a store holds, and where its class is; those of another system say
#: by ``train`` how they are computed (`sptlib.execute`), and are imported when one is met
KINDS = {
    "run": "sptlib.config:Run",
    "pretraining": "sptlib.config:Pretraining",
    "polar": "sptlib.polar.config:PolarRun",
    "polar_base": "sptlib.polar.config:PolarBase",
}


@cache
def adapter(kind: str) -> TypeAdapter:
    """What reads and writes configurations of one of `KINDS`."""
    module, _, name = KINDS[kind].partition(":")
    return TypeAdapter(getattr(import_module(module), name))


def to_dict(spec: Run | Pretraining) -> dict[str, Any]:
    """The configuration as plain JSON values, every default spelled out."""
    return {
        "kind": spec.kind,
        "schema": SCHEMA,
        "numerics": NUMERICS,
        **adapter(spec.kind).dump_python(spec, mode="json"),
    }


def from_dict(fields: dict[str, Any]) -> Run | Pretraining:
    """Read what `to_dict` wrote.

    Raises:
        ConfigError: naming the field, for anything unknown, missing or out of range.
    """
    fields = dict(fields)
    kind, schema = fields.pop("kind", "run"), fields.pop("schema", SCHEMA)
    fields.pop("numerics", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise unknown("kind of configuration", kind, KINDS)
    if schema != SCHEMA:
        raise ConfigError(
            f"configuration of schema {schema}, but this sptlib reads {SCHEMA}; "
            "compute it anew with this version"
        )
    task = fields.get("task")
    ours = kind in ("run", "pretraining")
    if ours and isinstance(task, dict) and "name" in task:
        tasks.config_class(task["name"])  # a wrong name gets a suggestion instead of a union error
    try:
        return adapter(kind).validate_python(fields)
    except ValidationError as error:
        raise explain(error) from error


def explain(error: ValidationError) -> ConfigError:
    """pydantic's findings as one line: field, what was expected, what was found."""
    lines = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"] if part not in tasks.CONFIGS)
        found = item["input"]
        message = item["msg"].removeprefix("Value error, ")
        shown = (
            ""
            if isinstance(found, dict) or dataclasses.is_dataclass(found)
            else f" (found {found!r})"
        )
        lines.append(f"{where + ': ' if where else ''}{message}{shown}")
    return ConfigError("; ".join(lines))


def override(run: Run, changes: dict[str, Any]) -> Run:
    """A Run with some fields changed.

    Args:
        run: the start.
        changes: values by dotted field name, e.g. ``{"finetune.lr": 1e-3, "pretrain": None}``.

    Raises:
        ConfigError: for an unknown field (with a suggestion) or a value out of range.
    """
    fields = to_dict(run)
    about = {name: fields.pop(name) for name in ("kind", "schema", "numerics")}
    for dotted, value in changes.items():
        node, parts = fields, dotted.split(".")
        for depth, part in enumerate(parts):
            if not isinstance(node, dict) or part not in node:
                known = (
                    [".".join([*parts[:depth], k]) for k in node]
                    if isinstance(node, dict)
                    else ["a field of it; it is empty here"]
                )
                raise unknown("field", dotted, known)
            if depth < len(parts) - 1:
                node = node[part]
        node[parts[-1]] = value
    return from_dict({**fields, **about})


def _hashed(spec: Run | Pretraining) -> dict[str, Any]:
    """What the hashes cover: every field, defaults spelled out, but none of `LATER` as before."""
    fields = to_dict(spec)
    for dotted, before in LATER.items():
        *parents, name = dotted.split(".")
        node: Any = fields
        for parent in parents:
            node = node.get(parent) or {}
        if name in node and node[name] == before:
            del node[name]
    return fields


def _hash(fields: dict[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def digest(spec: Run | Pretraining) -> str:
    """A hash of the configuration alone, `SCHEMA` and `NUMERICS` included; no data are needed."""
    return _hash(_hashed(spec))


def key(spec: Run | Pretraining) -> str:
    """The content hash under which the result is stored: 20 hexadecimal digits.

    It covers the configuration, the bytes of the data, `SCHEMA` and `NUMERICS`; the same on every
    machine, in every process and Python version.
    """
    fields = _hashed(spec)
    fields["data"] = spec.data()
    if spec.pretraining is not None:
        fields["pretraining"] = key(spec.pretraining)
    return _hash(fields)
