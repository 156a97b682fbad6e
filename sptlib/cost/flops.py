"""How much arithmetic and memory one step of this Transformer takes, in closed form.

FLOPs are those of the matrix products, a multiply-add counting two; embeddings by table, norms,
GELU, softmax, losses and the optimiser are left out, as is customary (Kaplan et al. 2020). Backward
takes a product for the gradient of each factor: a training step is three forward passes, less what
nobody needs, which is the gradient of the inputs and of frozen weights. Fused attention computes
its scores a second time in backward; that is not counted either (model FLOPs, as Chowdhery et al.
2022 count them).

Memory is counted in bytes: what autograd keeps for backward, parameters with gradients and AdamW's
two moments, and the copy of the best weights. Letters are those of `sptlib.model`; B counts the
sequences that are encoded, twice as many as pairs. Tests compare everything with what PyTorch
itself counts. Functions take lengths as arrays, too.
"""

from dataclasses import dataclass
from typing import Any, Literal

from sptlib.config import ModelConfig
from sptlib.tasks import TaskData

Stage = Literal["pretrain", "finetune"]

#: bytes of a number, by the precision of forward and backward pass
BYTES = {"fp32": 4, "tf32": 4, "bf16": 2}


@dataclass(frozen=True)
class Inputs:
    """What a model is built for: the part of `TaskData` that decides shapes."""

    kind: str
    n_classes: int
    max_len: int
    vocab_size: int = 0
    pairs: bool = False

    @classmethod
    def of(cls, data: TaskData) -> "Inputs":
        """Those of loaded data."""
        return cls(data.kind, data.n_classes, data.max_len, data.vocab_size, data.pairs)

    def sequences(self, stage: Stage, items: int) -> int:
        """B: how many sequences are encoded for so many items of a stage's batch."""
        return 2 * items if self.pairs and stage == "finetune" else items


def _hidden(model: ModelConfig) -> int:
    return int(model.width * model.mlp_ratio)


def _head(model: ModelConfig, inputs: Inputs) -> int:
    """Multiply-adds per item of the classification head, which are its weights."""
    D, C = model.width, inputs.n_classes
    pooled = 4 * D if inputs.pairs else D
    return pooled * D + D * C if model.head_hidden else pooled * C


def forward(model: ModelConfig, inputs: Inputs, stage: Stage, items: int, length: Any) -> Any:
    """FLOPs of one forward pass.

    Args:
        model: sizes and options.
        inputs: what it is built for.
        stage: its head: reconstruction, of every position, or classification.
        items: sequences of the batch, or pairs.
        length: T, positions of each; an array gives an array.
    """
    B, T, D = inputs.sequences(stage, items), length, model.width
    N = B * T  # positions of the batch
    products = N * 2 * D if inputs.kind == "pixels" else 0
    products += model.n_layers * (4 * N * D**2 + 2 * N * T * D + 2 * N * D * _hidden(model))
    if stage == "pretrain":
        products += N * D * (inputs.vocab_size or 1)
    else:
        products += items * _head(model, inputs)
    return 2 * products


def backward(
    model: ModelConfig,
    inputs: Inputs,
    stage: Stage,
    items: int,
    length: Any,
    freeze: tuple[str, ...] = (),
) -> Any:
    """FLOPs of one backward pass; the arguments of `forward`, and the groups that are frozen.

    A product's gradients are taken where something that learns lies beneath it.
    """
    B, T, D = inputs.sequences(stage, items), length, model.width
    N = B * T
    learns = {group: group not in freeze for group in ("embed", "qk", "vo", "mlp", "norm", "head")}
    square, wide = N * D**2, N * D * _hidden(model)

    def linear(products: Any, group: str, beneath: bool) -> Any:
        return products * (learns[group] + beneath)

    pixels = inputs.kind == "pixels"
    total = N * 2 * D * learns["embed"] if pixels else 0
    # token rows, learned positions and the pixels' weights are all the group embed's
    x = learns["embed"]
    for _ in range(model.n_layers):
        h = x or learns["norm"]
        total += 2 * linear(square, "qk", h) + linear(square, "vo", h)
        scores, values = h or learns["qk"], h or learns["vo"]
        mixed = scores or values
        # scores have two factors, and so has the mixing: gradients of the map and of the values
        total += N * T * D * (2 * scores + scores + values)
        total += linear(square, "vo", mixed)
        x = x or mixed or learns["vo"]
        h = x or learns["norm"]
        total += linear(wide, "mlp", h)
        total += linear(wide, "mlp", h or learns["mlp"])
        x = h or learns["mlp"]
    beneath = x or learns["norm"]
    if stage == "pretrain":  # its head belongs to no group and always learns
        total += N * D * (inputs.vocab_size or 1) * (1 + beneath)
    elif model.head_hidden:
        pooled = 4 * D if inputs.pairs else D
        total += items * linear(pooled * D, "head", beneath)
        total += items * linear(D * inputs.n_classes, "head", beneath or learns["head"])
    else:
        total += items * linear(_head(model, inputs), "head", beneath)
    return 2 * total


def parameters(model: ModelConfig, inputs: Inputs) -> dict[str, int]:
    """Number of parameters by group; ``reconstructor`` is the head that belongs to none."""
    D, M, L, V = model.width, _hidden(model), model.n_layers, inputs.vocab_size
    embed = (V + 1) * D if inputs.kind == "tokens" else 3 * D
    if model.positions == "learned":
        embed += (model.max_len or inputs.max_len) * D
    biases = inputs.n_classes + (D if model.head_hidden else 0)
    return {
        "embed": embed,
        "qk": L * 2 * (D**2 + D),
        "vo": L * 2 * (D**2 + D),
        "mlp": L * (2 * D * M + M + D),
        "norm": (2 * L + 1) * 2 * D,
        "head": _head(model, inputs) + biases,
        "reconstructor": (D + 1) * (V or 1),
    }


def state(model: ModelConfig, inputs: Inputs, stage: Stage, freeze: tuple[str, ...] = ()) -> int:
    """Bytes of weights, gradients, AdamW's two moments, the best weights so far, and tables.

    Both heads are there in both stages; only one of them, and no frozen group, has gradients.
    """
    count = parameters(model, inputs)
    still = {*freeze, "head" if stage == "pretrain" else "reconstructor"}
    learning = sum(n for group, n in count.items() if group not in still)
    T, D = model.max_len or inputs.max_len, model.width
    tables = {
        "sinusoidal": T * D,
        "rope": model.n_layers * T * D // model.n_heads,
        "alibi": model.n_layers * model.n_heads * T**2,
    }
    return 4 * (2 * sum(count.values()) + 3 * learning + tables.get(model.positions, 0))


def activations(
    model: ModelConfig,
    inputs: Inputs,
    stage: Stage,
    items: int,
    length: Any,
    *,
    padded: bool = False,
    hidden: float = 0.15,
    precision: str = "fp32",
    fused: bool = True,
) -> Any:
    """Bytes that autograd keeps from forward for backward, all parameters learning.

    Args:
        model: sizes and options.
        inputs: what it is built for.
        stage: which head.
        items: sequences of the batch, or pairs.
        length: T, positions of each.
        padded: whether sequences have different lengths, so that a mask is kept.
        hidden: share of positions whose reconstruction enters the loss.
        precision: fp32, or bf16: matrix products and what enters them in two bytes, the residual
            stream, norms and losses in four, besides a copy of the weights.
        fused: attention without the T×T map; without fusion each layer keeps one map per head.
            ALiBi without padding is not fused whatever is said here.
    """
    B, T, D, H = inputs.sequences(stage, items), length, model.width, model.n_heads
    N, w = B * T, BYTES[precision]
    fused = fused and (model.positions != "alibi" or padded)
    total = 8 * N + 4 * N * D + 8 * N  # token numbers, or value and flag; the last norm
    layer = 2 * (4 * N * D + 8 * N)  # what enters the two norms, and their statistics
    # its result, which autocast copies for each of q, k and v; those three; what enters o
    layer += w * N * D * (1 if w == 4 else 3)
    layer += (w if fused else 4) * 3 * N * D + w * N * D
    # the log of the softmax's sums, or the whole map
    layer += 4 * N * H if fused else 4 * N * T * H
    if fused:
        layer += w * N * D * (model.positions == "rope")  # the heads' own copy of what enters o
        layer += w * N * (T * H if model.positions == "alibi" else 1) * padded  # added to scores
    layer += w * N * D + 2 * w * N * _hidden(model)  # what enters the MLP, GELU, and its last part
    total += model.n_layers * layer
    if stage == "pretrain":
        # what enters the head, which positions count, and their log-probabilities and targets
        total += w * N * D + N
        total += hidden * N * (4 * inputs.vocab_size + 8 if inputs.vocab_size else 4)
    else:
        pooled = 4 * D if inputs.pairs else D
        total += items * (w * pooled + 4 * inputs.n_classes + 8)
        total += (N + 8 * B) * padded
        total += (4 * N * D + 4 * B * D) * (model.pooling == "max")
    if precision == "bf16":
        matrices = {"qk", "vo", "mlp", "reconstructor" if stage == "pretrain" else "head"}
        total += 2 * sum(n for g, n in parameters(model, inputs).items() if g in matrices)
    return total


def evaluation(model: ModelConfig, inputs: Inputs, stage: Stage, items: int, length: Any) -> Any:
    """Bytes at the fullest point of a forward pass without gradients: inside an MLP, or at the
    logits of a reconstruction."""
    N = inputs.sequences(stage, items) * length
    D, M, V = model.width, _hidden(model), inputs.vocab_size
    inside = 2 * D + 2 * M
    return 4 * N * max(inside, D + V) if stage == "pretrain" else 4 * N * inside
