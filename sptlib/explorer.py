"""The attention explorer: an interactive figure that shows how attention changes in training.

It is one piece of HTML, with plain JavaScript and without a network: the template is
``explorer.html`` beside this file. The maps travel as grey PNG images, one per film, layer and
head, whose frames lie one below the other; a grey level is the square root of a weight. Readers
without scripts, printed pages and PDF see a still image instead.
"""

import base64
import html
import io
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from PIL import Image
from scipy.spatial import cKDTree
from torch import Tensor

from sptlib.analysis.attention import proximity, uniform_proximity
from sptlib.errors import ConfigError
from sptlib.plots import finished, use_style

#: maps with more positions are pooled to this many blocks at most
MOST_POSITIONS = 128
#: largest HTML, in bytes
MOST_BYTES = 1_500_000

_numbers = itertools.count(1)


@dataclass(frozen=True, eq=False)
class Film:
    """One training, watched: mean attention maps at some steps.

    Attributes:
        title: e.g. "from scratch" or "self-pretraining, then labels".
        steps: of the S frames; ascending within a stage.
        stages: one name per frame, e.g. "pretraining" or "labels".
        maps: (S, L, H, T, T), float; the rows (queries) sum to 1.
        notes: one short text per frame, e.g. "loss 2.30"; may be empty.

    Raises:
        ConfigError: the fields do not fit together, or the maps are not attention maps.
    """

    title: str
    steps: list[int]
    stages: list[str]
    maps: Tensor
    notes: list[str]

    def __post_init__(self):
        shape, where = tuple(self.maps.shape), f"film {self.title!r}"
        if self.maps.ndim != 5 or shape[3] != shape[4] or 0 in shape:
            raise ConfigError(f"{where}: maps have shape {shape}, expected (S, L, H, T, T)")
        found = {"steps": len(self.steps), "stages": len(self.stages), "notes": len(self.notes)}
        if set(found.values()) != {shape[0]}:
            raise ConfigError(f"{where}: maps of {shape[0]} frames, but {found}; expected the same")
        of_stage = itertools.groupby(zip(self.stages, self.steps, strict=True), lambda x: x[0])
        for stage, frames in of_stage:
            steps = [step for _, step in frames]
            if steps != sorted(set(steps)):
                raise ConfigError(f"{where}: the steps of {stage!r} do not ascend: {steps}")
        if not torch.isfinite(self.maps).all():
            raise ConfigError(f"{where}: maps hold NaN or infinite weights")
        sums = self.maps.double().sum(-1)
        if self.maps.min() < 0 or (sums - 1).abs().max() > 0.01:
            raise ConfigError(
                f"{where}: rows of the maps sum to {sums.min():.3g} … {sums.max():.3g} and their "
                f"least weight is {self.maps.min():.3g}; expected weights >= 0 that sum to 1"
            )


class Explorer:
    """Trainings side by side under one slider, for a notebook to show.

    The slider goes through each training from its first frame to its last: films with fewer frames
    than others show the nearest one. All films have one scale of colours. With more than
    `MOST_POSITIONS` positions, blocks of them are shown as one: averaged over the queries of a
    block, summed over its keys.

    Args:
        films: all with the same number of layers, heads and positions.
        label: title of the figure.
        unit: what a position is, e.g. "pixel".

    Raises:
        ConfigError: no films, films of different shapes, or more than `MOST_BYTES` of HTML.
    """

    def __init__(self, films: Sequence[Film], *, label: str, unit: str = "position"):
        if not films:
            raise ConfigError("an explorer needs at least one film, found none")
        shapes = [tuple(film.maps.shape[1:]) for film in films]
        if len(set(shapes)) > 1:
            raise ConfigError(f"films have maps of different shapes (L, H, T, T): {shapes}")
        self.label, self.unit, self.n_positions = label, unit, films[0].maps.shape[-1]
        self.block = -(-self.n_positions // MOST_POSITIONS)
        self.films = list(films)
        self.maps = [pooled(film.maps.detach().cpu().float(), self.block) for film in films]
        self.top = max(float(maps.max()) for maps in self.maps)
        self._still = self._draw()
        self._data = self._pack()
        if (size := len(self.html().encode())) > MOST_BYTES:
            raise ConfigError(
                f"the explorer {label!r} has {size / 1e6:.1f} MB of HTML, at most "
                f"{MOST_BYTES / 1e6:.1f} MB are allowed; take fewer frames, layers or heads"
            )

    def html(self) -> str:
        """The figure; every call gives it another id, so that a page can hold several."""
        values = {
            "id": f"sptlib-explorer-{next(_numbers)}",
            "label": html.escape(self.label),
            "alt": html.escape(self.alt()),
            "still": self._still,
            "words": html.escape(self._words()),
            "data": self._data,
        }
        template = resources.files("sptlib").joinpath("explorer.html").read_text("utf-8")
        return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)

    def alt(self) -> str:
        """What the still image shows, in words."""
        parts = []
        for film, maps in zip(self.films, self.maps, strict=True):
            mass = [f"{proximity(maps[f, 0].mean(0)):.2f} at {stage} step {step}"
                    for f, stage, step in _frames(film)]  # fmt: skip
            parts.append(f"{film.title}: {', '.join(mass)}")
        uniform = uniform_proximity(self.maps[0].shape[-1])
        return (f"{self.label}. Attention maps; the share of attention within 2 {self._unit()}s"
                f"{self._selection()} is, {'; '.join(parts)}; uniform: {uniform:.2f}.")  # fmt: skip

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        titles = ", ".join(film.title for film in self.films)
        return {
            "text/html": self.html(),
            "image/png": self._still,
            "text/plain": f"Explorer {self.label!r}: {titles}",
        }

    def _selection(self) -> str:
        """What the still image shows of the layers and heads, as the script does at its start."""
        _, n_layers, n_heads = self.maps[0].shape[:3]
        return ", layer 1" * (n_layers > 1) + ", mean over heads" * (n_heads > 1)

    def _unit(self) -> str:
        return self.unit if self.block == 1 else "block"

    def _words(self) -> str:
        """What a reader must know to read the maps."""
        words = (f"Attention weight of a key ({self.unit} looked at, column) for a query "
                 f"({self.unit} that looks, row). The same colour is the same weight in all maps; "
                 "colours follow its square root, so that faint patterns are seen.")  # fmt: skip
        if self.block > 1:
            words += (f" {self.block} {self.unit}s are shown as one block: mean over its queries, "
                      "sum over its keys. Distances count blocks.")  # fmt: skip
        return words

    def _pack(self) -> str:
        """What the script reads, as JSON that may stand inside HTML."""
        _, n_layers, n_heads, size, _ = self.maps[0].shape
        films = [
            {
                "title": film.title,
                "steps": [int(step) for step in film.steps],
                "stages": film.stages,
                "notes": film.notes,
                "sprites": [[sprite(maps[:, i, j], self.top) for j in range(n_heads)]
                            for i in range(n_layers)],
            }
            for film, maps in zip(self.films, self.maps, strict=True)
        ]  # fmt: skip
        data = {"films": films, "size": size, "layers": n_layers, "heads": n_heads,
                "top": self.top, "block": self.block, "positions": self.n_positions,
                "unit": self.unit, "pooled": self._unit()}  # fmt: skip
        return json.dumps(data).replace("<", "\\u003c")

    def _draw(self) -> str:
        """The still image: first, middle and last frame of every film, as PNG in base64."""
        use_style()
        shown = [_frames(film) for film in self.films]
        shape = (len(shown), max(map(len, shown)))
        size = (2.9 * shape[1] + 0.9, 2.9 * shape[0] + 0.3)
        fig, axes = plt.subplots(*shape, figsize=size, squeeze=False)
        scale = PowerNorm(0.5, 0, self.top)
        edge = (-0.5, self.block * self.maps[0].shape[-1] - 0.5)
        for line, film, maps, frames in zip(axes, self.films, self.maps, shown, strict=True):
            for ax in line[len(frames) :]:
                ax.set_axis_off()
            for ax, (f, stage, step) in zip(line, frames, strict=False):
                image = ax.imshow(maps[f, 0].mean(0).numpy(), cmap="viridis", norm=scale,
                                  extent=(*edge, *edge[::-1]))  # fmt: skip
                ax.set_title(f"{stage}, step {step}", fontsize=10)
                ax.grid(visible=False)
            line[0].set_ylabel(f"{film.title}\n\nquery", fontsize=10)
        for ax in axes[-1]:
            ax.set_xlabel("key", fontsize=10)
        bar = fig.colorbar(image, ax=axes.ravel().tolist(), shrink=0.7)
        bar.set_label("attention weight" + self._selection())
        ticks = [0, self.top / 4, self.top]
        bar.set_ticks(ticks, labels=[f"{tick:.2g}" for tick in ticks])
        return _png(fig)


def pooled(maps: Tensor, block: int) -> Tensor:
    """Maps of blocks of positions, whose rows still sum to 1; the last block may be smaller.

    Args:
        maps: (..., T, T), rows sum to 1.
        block: positions per block.

    Returns:
        (..., ⌈T / block⌉, ⌈T / block⌉): averaged over queries, summed over keys.
    """
    size = maps.shape[-1]
    of = torch.arange(size) // block
    member = torch.nn.functional.one_hot(of).to(maps.dtype)  # (T, blocks)
    return (member / member.sum(0)).T @ maps @ member


def sprite(maps: Tensor, top: float) -> str:
    """Maps (S, T, T) as one grey PNG in base64, frames one below the other.

    A grey level is 255 · √(weight / top): faint weights keep their relative precision.
    """
    grey = (255 * (maps / top).clamp(0, 1).sqrt()).round().to(torch.uint8)
    return _base64(Image.fromarray(grey.flatten(0, 1).numpy()))


def _frames(film: Film) -> list[tuple[int, str, int]]:
    """Number, stage and step of the first, the middle and the last frame."""
    last = len(film.steps) - 1
    return [(f, film.stages[f], film.steps[f]) for f in sorted({0, last // 2, last})]


def _png(figure: Figure) -> str:
    """A figure in base64; viridis and greys as a palette make the file a third as large."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=90)
    finished(figure)
    viridis = plt.get_cmap("viridis")(np.linspace(0, 1, 208))[:, :3]
    grey = np.linspace(0, 1, 48)[:, None].repeat(3, 1)
    palette = np.uint8(255 * np.concatenate([viridis, grey]))
    rgb = np.asarray(Image.open(drawn).convert("RGB"))
    image = Image.fromarray(np.uint8(cKDTree(palette).query(rgb)[1]))
    image.putpalette(palette.tobytes())  # which makes its grey levels indices
    return _base64(image)


def _base64(image: Image.Image) -> str:
    data = io.BytesIO()
    image.save(data, "PNG", optimize=True)
    return base64.b64encode(data.getvalue()).decode()
