"""Look into stored trainings: their weights, put back into models."""

import torch
from torch import Tensor

from sptlib.analysis import scores
from sptlib.analysis.attention import mean_map
from sptlib.analysis.scores import Split
from sptlib.config import Pretraining
from sptlib.masking import hide
from sptlib.model import Transformer, build
from sptlib.seeding import generator
from sptlib.store import Entry
from sptlib.tasks import Split as TestSplit
from sptlib.tasks import load


def start_and_end(entry: Entry, n: int = 100) -> tuple[Tensor, Tensor]:
    """Mean attention maps of a stored training, at its random start and at its best weights.

    Both are taken on the first n test sequences (of pairs, on both), with nothing hidden.

    Returns:
        Two tensors (L, H, T, T).
    """
    model, test, weights = _start(entry, n)
    start = mean_map(model, test.x, None, test.length)
    model.load_state_dict(weights)
    return start, mean_map(model, test.x, None, test.length)


def _start(entry: Entry, n: int) -> tuple[Transformer, TestSplit, dict[str, Tensor]]:
    """The model at its random start, the first n test sequences, and the best weights."""
    spec = entry.spec
    data = load(spec.task, spec.seed)
    stage = "pretrain" if isinstance(spec, Pretraining) else "finetune"
    model = build(spec.model, data, spec.seed, stage).eval()
    return model, data.test.take(slice(0, n)).sequences().trimmed(), entry.model()


@torch.no_grad()
def splits(entry: Entry, n: int = 200) -> tuple[Split, Split]:
    """The first layer's scores, split (`sptlib.analysis.scores`), at the start and at the end.

    Args:
        entry: of a pretraining, or of a Run from scratch; its start is the random one.
        n: test sequences.
    """
    model, test, weights = _start(entry, n)
    start = scores.split(model, test.x, test.length)
    model.load_state_dict(weights)
    return start, scores.split(model, test.x, test.length)


@torch.no_grad()
def reconstructed(entry: Entry, n: int = 10) -> dict[str, tuple]:
    """What a stored pretraining makes of hidden pixels, for `sptlib.plots.image_rows`.

    Args:
        entry: of a pretraining on images.
        n: how many test images.

    Returns:
        Rows "original", "hidden" and "filled in": values (n, T) in [0, 1] and, for the second,
        which of them are hidden (n, T).
    """
    spec = entry.spec
    data = load(spec.task, spec.seed)
    x = data.test.x[:n]
    hidden = hide(spec.pretrain, x, None, generator(spec.seed, "analysis", "mask"))
    model = build(spec.model, data, spec.seed, "pretrain").eval()
    model.load_state_dict(entry.model())
    out = model.reconstruct(x, hidden)
    top = data.vocab_size - 1 if data.kind == "tokens" else data.scale
    value = x / top
    guess = out.argmax(-1) / top if data.kind == "tokens" else out.clamp(0, 1)
    filled = torch.where(hidden, guess, value)
    return {
        "original": (value.numpy(), None),
        "hidden": (value.numpy(), hidden.numpy()),
        "filled in": (filled.numpy(), None),
    }
