"""What is measured of a training along the way: its attention, and where both losses push it.

Attention is that of test sequences with nothing hidden. Near are tokens at most two places away, in
an image the eight pixels around one. Both losses are measured at every look,
whichever of them is trained: the one of labels, and the one of reconstruction with 15 % of the
positions hidden, on the same training sequences. Each goes through its own head: that of the other
stage is as it started, but for the reconstruction head, which a wholly pretrained model keeps.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sptlib.analysis import force, scores
from sptlib.analysis.attention import uniform_proximity
from sptlib.config import PretrainConfig
from sptlib.masking import hide, reconstruction_loss
from sptlib.model import Transformer
from sptlib.seeding import generator
from sptlib.tasks import Split, TaskData

#: test sequences whose attention is measured
SEQUENCES = 200
#: most batches of a loss, and most sequences in each
BATCHES, BATCH_SIZE = 16, 32
#: most attention weights of a batch, of all layers and heads; batches of long sequences are smaller
WEIGHTS = 2**28
#: what is hidden where reconstruction is measured
MASK = PretrainConfig()
#: attention's measures that are averaged over all layers and heads, and over the first layer's
EVERYWHERE = ("proximity", "entropy", "diagonality")
FIRST_LAYER = ("toeplitz", "position", "alibi", "rope", "symmetric")
#: the forces' measures that go into a result
FORCES = ("force", "noise", "cosine", "columns")


def measure(model: Transformer, data: TaskData) -> dict[str, Any]:
    """Look at a model.

    Args:
        model: in evaluation mode, on the device of the data.
        data: of its task.

    Returns:
        ``attention``: `sptlib.analysis.scores.measures`; ``uniform``: the proximity that uniform
        attention has on the same sequences; ``label`` and ``reconstruction``: the
        forces of both losses, `sptlib.analysis.force.force`. Nothing but numbers and lists.

    Raises:
        FloatingPointError: if the model's outputs, or a measure, are not finite.
    """
    test = data.test.take(slice(0, SEQUENCES)).sequences().trimmed()
    few = test.take(slice(0, 8))
    with torch.no_grad():
        if not bool(model(few.x, None, few.length).isfinite().all()):
            raise FloatingPointError("the model's outputs are not finite")
    where = {"distance": near(data.side), "side": data.side}
    losses = {"label": _label_losses, "reconstruction": _reconstruction_losses}
    return _rounded(
        {
            "attention": scores.measures(model, test.x, test.length, **where),
            "uniform": _uniform(test, **where),
            **{name: force.force(model, of(model, data), **where) for name, of in losses.items()},
        }
    )


def near(side: int) -> int:
    """How far near tokens are: at most 2 along a sequence, the eight around it in an image."""
    return 1 if side else 2


def summary(line: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """A look in a few numbers, by name.

    Args:
        line: of `measure`.
        prefix: of the names.

    Returns:
        Attention's measures, means over heads (and layers), and both losses' forces: e.g.
        ``proximity`` and ``label_force``.
    """
    found = {}
    for name in EVERYWHERE + FIRST_LAYER:
        layers = line["attention"][name]
        heads = [v for layer in (layers if name in EVERYWHERE else layers[:1]) for v in layer]
        found[name] = sum(heads) / len(heads)
    found["uniform"] = line["uniform"]
    for loss in ("label", "reconstruction"):
        found |= {f"{loss}_{name}": line[loss][name] for name in FORCES}
    return {f"{prefix}{name}": value for name, value in found.items()}


def _uniform(split: Split, distance: int, side: int) -> float:
    T = split.x.shape[-1]
    lengths = [T] * len(split) if split.length is None else split.length.tolist()
    each = {n: uniform_proximity(n, distance, side) for n in set(lengths) if n}
    return sum(each.get(n, 0.0) for n in lengths) / len(lengths)


def _slices(n: int, model: Transformer) -> list[slice]:
    """Batches of equal size; small data have at least two."""
    each = len(model.blocks) * model.blocks[0].attention.n_heads * model.max_len**2
    each *= 1 + model.pairs
    size = max(1, min(BATCH_SIZE, n // 2, WEIGHTS // each))
    return [slice(i * size, (i + 1) * size) for i in range(min(BATCHES, n // size))]


def _label_losses(model: Transformer, data: TaskData) -> list:
    def loss(piece: slice) -> Tensor:
        part = data.train.take(piece).trimmed()
        return F.cross_entropy(model.classify(part.x, part.length), part.y)

    return [lambda piece=piece: loss(piece) for piece in _slices(len(data.train), model)]


def _reconstruction_losses(model: Transformer, data: TaskData) -> list:
    split = data.train.sequences()

    def loss(piece: slice, number: int) -> Tensor:
        part = split.take(piece).trimmed()
        hidden = hide(MASK, part.x, part.length, generator(0, "watch", "mask", number))
        out = model.reconstruct(part.x, hidden, part.length)
        return reconstruction_loss(out, part.x, hidden, model.scale)

    pieces = enumerate(_slices(len(split), model))
    return [lambda piece=piece, number=number: loss(piece, number) for number, piece in pieces]


def _rounded(found: Any) -> Any:
    """Five digits are more than batches can tell, and take a third of the space."""
    if isinstance(found, dict):
        return {name: _rounded(value) for name, value in found.items()}
    if isinstance(found, list):
        return [_rounded(value) for value in found]
    if not math.isfinite(found):
        raise FloatingPointError("a measure is not finite")
    return float(f"{found:.5g}")
