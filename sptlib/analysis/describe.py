"""What a task's data look like: examples for people, statistics, and what counting alone tells."""

import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from sptlib.data.catalog import CATALOG
from sptlib.errors import ConfigError
from sptlib.generators import pathfinder
from sptlib.tasks import PathfinderConfig, Split, TaskData

#: the splits that have labels
LABELLED = ("train", "val", "test")


def as_text(data: TaskData, split: Split, i: int) -> list[str]:
    """A sequence as people read it: one string, or two for a pair.

    Raises:
        ConfigError: if the tokens have no symbols.
    """
    if not data.symbols:
        raise ConfigError("the tokens of this task have no symbols to show")
    x = split.x[i].reshape(-1, split.x.shape[-1])
    length = split.length[i].reshape(-1).tolist()
    between = " " if any(len(s) > 1 and s[0] != "\\" for s in data.symbols) else ""
    return [
        between.join(data.symbols[token] for token in row[:n].tolist())
        for row, n in zip(x, length, strict=True)
    ]


def one_of_each(split: Split, n_classes: int, n: int = 1) -> torch.Tensor:
    """Indices of the first n sequences of each class, classes in order."""
    return torch.cat([(split.y == c).nonzero()[:n, 0] for c in range(n_classes)])


def statistics(named: dict[str, TaskData]) -> pd.DataFrame:
    """A row per task: how many sequences, how long, how many symbols, how balanced the labels.

    Args:
        named: data by the name of the row.
    """
    rows = []
    for name, data in named.items():
        train = data.train
        length = train.length if train.length is not None else torch.tensor([train.x.shape[-1]])
        share = torch.bincount(train.y, minlength=data.n_classes) / len(train)
        low, middle, high = (int(f(length.flatten())) for f in (torch.min, torch.median, torch.max))
        rows.append(
            {
                "task": name,
                "training, validation, test": ", ".join(
                    f"{len(getattr(data, s)):,}" for s in LABELLED
                ),
                "positions": str(low) if low == high else f"{low}–{high}, median {middle}",
                "symbols": data.vocab_size or f"{int(data.scale) + 1} levels",
                "classes": data.n_classes,
                "share of a class": f"{float(share.min()):.2f}–{float(share.max()):.2f}",
                "cut": " ".join(n.split(" sequences were cut")[0] for n in data.notes) or "none",
            }
        )
    return pd.DataFrame(rows).set_index("task")


def counts(split: Split, n_symbols: int) -> np.ndarray:
    """How often each symbol occurs in each sequence, as a share of its positions.

    Returns:
        (N, V); for pairs (N, 3·V): of the first, of the second, and their absolute difference.
    """
    flat = split.sequences()
    length = flat.length if flat.length is not None else torch.full((len(flat),), flat.x.shape[-1])
    kept = torch.arange(flat.x.shape[-1]) < length[:, None]
    found = torch.zeros(len(flat), n_symbols)
    found.scatter_add_(1, flat.x.long(), kept.float())
    share = (found / length[:, None]).numpy()
    if split.x.dim() == 2:
        return share
    u, v = share[0::2], share[1::2]
    return np.hstack([u, v, np.abs(u - v)])


def symbol_entropy(data: TaskData) -> float:
    """Entropy (nats) of single symbols: the loss of a reconstruction that looks at nothing."""
    flat = data.unlabelled
    length = flat.length if flat.length is not None else torch.full((len(flat),), flat.x.shape[-1])
    found = counts(flat, data.vocab_size) * length.numpy()[:, None]
    share = found.sum(0)[found.sum(0) > 0] / found.sum()
    return float(-(share * np.log(share)).sum())


def counting(data: TaskData) -> float:
    """Test accuracy of a logistic regression that sees how often each symbol occurs, and no order.

    Where it is above chance, a model can get that far without looking at positions at all.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    n_symbols = data.vocab_size or int(data.scale) + 1
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a baseline may stop early
        model.fit(counts(data.train, n_symbols), data.train.y.numpy())
    return float(model.score(counts(data.test, n_symbols), data.test.y.numpy()))


def dots_alone(config: PathfinderConfig, n: int) -> float:
    """How well the places of Pathfinder's two dots alone tell the label.

    Args:
        config: size and contour.
        n: images, drawn for this purpose.

    Returns:
        Accuracy of a random forest on the four coordinates, by fivefold cross-validation.
    """
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import cross_val_score

    drawing = pathfinder.drawing(config.side, config.contour_length)
    scenes = pathfinder.draw(drawing, n, "describe", "dots")
    # one thread: processes that train beside this one would slow down several a lot
    forest = RandomForestClassifier(200, min_samples_leaf=10, random_state=0, n_jobs=1)
    return float(cross_val_score(forest, scenes.dots.reshape(n, 4), scenes.labels, cv=5).mean())


def most_frequent(data: TaskData) -> float:
    """Test accuracy of always answering the class that is most frequent in training."""
    answer = int(torch.bincount(data.train.y).argmax())
    return float((data.test.y == answer).float().mean())


def catalogue(names: Sequence[str] = tuple(CATALOG)) -> pd.DataFrame:
    """The data sets: what, how large, licence, how to get it, and whether it is here."""
    rows = []
    for name in names:
        dataset = CATALOG[name]
        if dataset.package:
            how = dataset.by_hand
        else:
            how = f"sptlib data {'make' if dataset.made else 'get'} {name}"
        if not dataset.package and not dataset.made and not dataset.files:
            how = "sptlib data get lra"
        rows.append(
            {
                "data set": name,
                "what": dataset.title,
                "size": dataset.size,
                "licence": dataset.licence,
                "how": how,
            }
        )
    return pd.DataFrame(rows).set_index("data set")
