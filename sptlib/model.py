"""The Transformer encoder, with a reconstruction and a classification head.

Pre-norm, GELU, biases everywhere: with copied weights it equals `torch.nn.TransformerEncoder`
(``norm_first=True, activation="gelu"``), which a test checks.

Letters in names give shapes: B batch, T positions, D width, H heads, K = D / H width of a head,
C classes, V symbols.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sptlib import initial
from sptlib.config import ModelConfig
from sptlib.errors import ConfigError
from sptlib.positions import rope_table, rotate, score_bias, sinusoidal
from sptlib.seeding import derive_seed
from sptlib.tasks import TaskData


class Attention(nn.Module):
    """Multi-head self-attention over all valid positions, in both directions.

    Attributes:
        probe: None, or (H, T, T) added to the scores of every sequence; the gradient with respect
            to it tells in which direction a loss pushes attention (`sptlib.analysis.force`).
    """

    probe: Tensor | None = None

    def __init__(self, config: ModelConfig, max_len: int):
        super().__init__()
        self.n_heads, self.positions = config.n_heads, config.positions
        self.q = nn.Linear(config.width, config.width)
        self.k = nn.Linear(config.width, config.width)
        self.v = nn.Linear(config.width, config.width)
        self.o = nn.Linear(config.width, config.width)
        if self.positions == "rope":
            cos, sin = rope_table(max_len, config.width // config.n_heads)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)
        bias = score_bias(config.positions, config.n_heads, max_len, config.proximity_bias)
        self.register_buffer("bias", bias, persistent=False)

    def _heads(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        return x_BTD.view(B, T, self.n_heads, D // self.n_heads).transpose(1, 2)

    def _queries_keys(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        q_BHTK, k_BHTK = self._heads(self.q(x_BTD)), self._heads(self.k(x_BTD))
        if self.positions == "rope":
            T = x_BTD.shape[1]
            q_BHTK = rotate(q_BHTK, self.cos[:T], self.sin[:T])
            k_BHTK = rotate(k_BHTK, self.cos[:T], self.sin[:T])
        return q_BHTK, k_BHTK

    def _score_bias(self, T: int, keep_BT: Tensor | None) -> Tensor | None:
        """What is added to the scores: a bias, a probe, and −inf at keys that are padding."""
        bias = None if self.bias is None else self.bias[:, :T, :T]
        if self.probe is not None:
            bias = self.probe[:, :T, :T] if bias is None else bias + self.probe[:, :T, :T]
        if keep_BT is None:
            return bias
        padding = torch.zeros_like(keep_BT, dtype=self.q.weight.dtype)
        padding = padding.masked_fill(~keep_BT, float("-inf"))[:, None, None, :]
        return padding if bias is None else bias + padding

    def forward(self, x_BTD: Tensor, keep_BT: Tensor | None = None) -> Tensor:
        q_BHTK, k_BHTK = self._queries_keys(x_BTD)
        bias = self._score_bias(x_BTD.shape[1], keep_BT)
        v_BHTK = self._heads(self.v(x_BTD))
        mixed_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=bias)
        return self.o(mixed_BHTK.transpose(1, 2).flatten(2))

    def weights(self, x_BTD: Tensor, keep_BT: Tensor | None = None) -> Tensor:
        """The attention map (B, H, T, T) that `forward` applies without ever storing it."""
        q_BHTK, k_BHTK = self._queries_keys(x_BTD)
        scores = q_BHTK @ k_BHTK.transpose(-1, -2) / q_BHTK.shape[-1] ** 0.5
        bias = self._score_bias(x_BTD.shape[1], keep_BT)
        return (scores if bias is None else scores + bias).softmax(dim=-1)


class Block(nn.Module):
    """One layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, max_len: int):
        super().__init__()
        hidden = int(config.width * config.mlp_ratio)
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config, max_len)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, hidden), nn.GELU(), nn.Linear(hidden, config.width)
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor, keep_BT: Tensor | None = None) -> Tensor:
        x_BTD = x_BTD + self.dropout(self.attention(self.norm1(x_BTD), keep_BT))
        return x_BTD + self.dropout(self.mlp(self.norm2(x_BTD)))


class Transformer(nn.Module):
    """Encoder with both heads, built for one kind of data.

    Args:
        config: sizes and options.
        kind: "tokens" or "pixels".
        vocab_size: V, for tokens; the mask embedding is row V of the table.
        n_classes: C, for the classification head.
        max_len: longest sequence it accepts.
        scale: pixels are divided by it.
        pairs: the classifier compares two sequences: its input is [u, v, u∘v, u − v] of their
            pooled features (the LRA's dual encoder, Tay et al. 2021).
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        kind: str,
        n_classes: int,
        max_len: int,
        vocab_size: int = 0,
        scale: float = 1.0,
        pairs: bool = False,
    ):
        super().__init__()
        self.pairs = pairs
        self.kind, self.vocab_size, self.max_len, self.scale = kind, vocab_size, max_len, scale
        self.pooling = config.pooling
        D = config.width
        if kind == "tokens":
            self.embed = nn.Embedding(vocab_size + 1, D)
        else:
            self.embed = nn.Linear(2, D)  # (value, hidden?)
        if config.positions == "learned":
            self.position = nn.Parameter(torch.randn(max_len, D) * 0.02)
        elif config.positions == "sinusoidal":
            self.register_buffer("position", sinusoidal(max_len, D), persistent=False)
        else:
            self.position = None
        self.blocks = nn.ModuleList(Block(config, max_len) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(D)
        self.reconstructor = nn.Linear(D, vocab_size if kind == "tokens" else 1)
        pooled = 4 * D if pairs else D
        self.classifier = (
            nn.Linear(pooled, n_classes)
            if not config.head_hidden
            else nn.Sequential(nn.Linear(pooled, D), nn.ReLU(), nn.Linear(D, n_classes))
        )
        self.standardise = nn.BatchNorm1d(D, affine=False) if config.head_norm == "batch" else None
        self._initialise(config)
        if config.embed_std is not None and kind == "tokens":
            nn.init.normal_(self.embed.weight, std=config.embed_std)

    def _initialise(self, config: ModelConfig) -> None:
        """What of the start is not PyTorch's own."""
        if config.init == "normal":
            self.apply(initial.normal)
        for layer in (block.attention for block in self.blocks):
            if config.init == "mimetic":
                initial.mimetic(layer.q, layer.k, layer.v, layer.o, config.n_heads)
            elif config.init == "identity":
                initial.identity(layer.q, layer.k)
            elif config.init == "uniform":
                initial.uniform(layer.q, layer.k)

    def _embed(self, x_BT: Tensor, hidden_BT: Tensor | None) -> Tensor:
        T = x_BT.shape[1]
        if self.max_len < T:
            raise ConfigError(
                f"a sequence of {T} positions is longer than the model's {self.max_len}"
            )
        if self.kind == "tokens":
            x_BT = x_BT.long()
            if hidden_BT is not None:
                x_BT = x_BT.masked_fill(hidden_BT, self.vocab_size)
            x_BTD = self.embed(x_BT)
        else:
            value = x_BT.to(self.embed.weight.dtype) / self.scale
            flag = torch.zeros_like(value) if hidden_BT is None else hidden_BT.to(value.dtype)
            x_BTD = self.embed(torch.stack([value.masked_fill(flag.bool(), 0.0), flag], dim=-1))
        return x_BTD if self.position is None else x_BTD + self.position[:T]

    def forward(
        self, x_BT: Tensor, hidden_BT: Tensor | None = None, length_B: Tensor | None = None
    ) -> Tensor:
        """Encode: features (B, T, D) after the final LayerNorm.

        Args:
            x_BT: token numbers or pixel values, as the task hands them out.
            hidden_BT: True where the value is hidden from the model.
            length_B: valid positions per sequence; None = all.
        """
        keep_BT = keep_mask(x_BT, length_B)
        x_BTD = self._embed(x_BT, hidden_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD, keep_BT)
        return self.norm(x_BTD)

    def reconstruct(
        self, x_BT: Tensor, hidden_BT: Tensor, length_B: Tensor | None = None
    ) -> Tensor:
        """Predict the inputs: logits (B, T, V) for tokens, scaled values (B, T) for pixels."""
        out = self.reconstructor(self(x_BT, hidden_BT, length_B))
        return out if self.kind == "tokens" else out.squeeze(-1)

    def classify(self, x_BT: Tensor, length_B: Tensor | None = None) -> Tensor:
        """Class logits (B, C) from the pooled features.

        Pairs come as x (B, 2, T) with lengths (B, 2); both are encoded by the same weights.
        """
        if self.pairs:
            x_BT = x_BT.flatten(0, 1)
            length_B = None if length_B is None else length_B.flatten()
        pooled_BD = pool(self(x_BT, None, length_B), keep_mask(x_BT, length_B), self.pooling)
        if self.standardise is not None:
            pooled_BD = self.standardise(pooled_BD)
        if self.pairs:
            u_BD, v_BD = pooled_BD[0::2], pooled_BD[1::2]
            pooled_BD = torch.cat([u_BD, v_BD, u_BD * v_BD, u_BD - v_BD], dim=-1)
        return self.classifier(pooled_BD)

    @torch.no_grad()
    def attention_maps(
        self, x_BT: Tensor, hidden_BT: Tensor | None = None, length_B: Tensor | None = None
    ) -> Tensor:
        """The attention weights of every layer, (L, B, H, T, T); each row sums to 1."""
        keep_BT = keep_mask(x_BT, length_B)
        x_BTD, maps = self._embed(x_BT, hidden_BT), []
        for block in self.blocks:
            maps.append(block.attention.weights(block.norm1(x_BTD), keep_BT))
            x_BTD = block(x_BTD, keep_BT)
        return torch.stack(maps)


def keep_mask(x_BT: Tensor, length_B: Tensor | None) -> Tensor | None:
    """True at valid positions, (B, T); None where nothing is padded."""
    if length_B is None:
        return None
    return torch.arange(x_BT.shape[1], device=x_BT.device) < length_B[:, None]


def pool(h_BTD: Tensor, keep_BT: Tensor | None, how: str) -> Tensor:
    """One vector per sequence, (B, D), that padding does not touch.

    Args:
        how: "mean" or "max" over the valid positions, or the "last" valid one.
    """
    if keep_BT is None:
        if how == "mean":
            return h_BTD.mean(1)
        return h_BTD.amax(1) if how == "max" else h_BTD[:, -1]
    if how == "mean":
        kept = h_BTD.masked_fill(~keep_BT[..., None], 0.0)
        return kept.sum(1) / keep_BT.sum(1, keepdim=True)
    if how == "max":
        return h_BTD.masked_fill(~keep_BT[..., None], float("-inf")).amax(1)
    return h_BTD[torch.arange(len(h_BTD), device=h_BTD.device), keep_BT.sum(1) - 1]


def build(config: ModelConfig, data: TaskData, *stream: str | int) -> Transformer:
    """A freshly initialised model for this data.

    Args:
        config: sizes and options.
        data: gives kind, vocabulary, classes and length.
        *stream: name of the random stream, e.g. ``(seed, "finetune")``; the caller's generator
            state is left alone.

    Raises:
        ConfigError: if the data's sequences are longer than ``config.max_len``.
    """
    if 0 < config.max_len < data.max_len:
        raise ConfigError(
            f"the task's sequences have {data.max_len} positions, but the model takes "
            f"max_len={config.max_len}; raise model.max_len or set it to 0"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(*stream, "init"))
        return Transformer(
            config,
            kind=data.kind,
            n_classes=data.n_classes,
            max_len=config.max_len or data.max_len,
            vocab_size=data.vocab_size,
            scale=data.scale,
            pairs=data.pairs,
        )
