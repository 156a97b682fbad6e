"""Pathfinder images: are two dots the two ends of one dashed curve?

The task of Linsley et al. (2018, "Learning long-range spatial dependencies with horizontal gated
recurrent units") and Kim et al. (2020, "Disentangling neural mechanisms for perceptual grouping"),
in the sizes of the Long Range Arena (Tay et al. 2021). Same parameters and look as there, but our
own construction, which differs in what makes the label decidable and free of other cues:

- Chains never touch or cross: every two dashes that do not follow each other keep a distance, which
  exceeds the gap between two that do. (In the published images they may cross.)
- The layout, two curves of full length and distractors, is drawn before the labels and knows
  nothing of them. Only the place of the two dots tells the classes apart.
- The ends for the dots are chosen such that those of both classes are equally far apart, and lie
  alike in the image, as far as possible. From 4,000 images and more, boosted trees learn at best
  52 % by the distance; by all coordinates of the dots 58 % at 16×16, at 32×32 53, 51 and 51 % with
  contours of 6, 9 and 14. (200 images of the published generator, contours of 14: a threshold of
  the distance has 62 %.)

Where the dashes go is the matter of `sptlib.generators.pathfinder_layout`.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
from scipy.optimize import linear_sum_assignment

from sptlib.errors import ConfigError
from sptlib.generators.pathfinder_layout import BLOCK, GRID, Drawing, layout
from sptlib.seeding import frozen_generator

#: version of the bytes; raised whenever the same stream gives other images
VERSION = 1


#: dashes of a curve that still fit, by side; more take long to place, or cannot be
MAX_CONTOUR = {16: 6, 32: 18, 128: 24}


def drawing(side: int, contour_length: int | None = None) -> Drawing:
    """The parameters for images of this size.

    Args:
        side: 32 and 128 are the Long Range Arena's Pathfinder and Path-X, 16 is our own size for
            the classroom. The clearance is ours for all.
        contour_length: dashes per curve. Published are 6, 9, 14 (the default; 5 for side 16).

    Raises:
        ConfigError: for another side, or a contour that cannot be drawn.
    """
    if side not in (16, 32, 128):
        raise ConfigError(f"no Pathfinder parameters for side {side!r}; there are 16, 32 and 128")
    length = (5 if side == 16 else 14) if contour_length is None else contour_length
    if length > MAX_CONTOUR[side]:
        raise ConfigError(
            f"contour_length={length} does not fit into {side}×{side} pixels beside another one; "
            f"at most {MAX_CONTOUR[side]}"
        )
    distractor = max(length // 3, 1)
    if side == 16:
        return Drawing(
            side=16, contour_length=length, distractor_length=2, n_distractors=2, dash=1.75,
            thickness=0.5, gaps=(0.75,), clearance=2, radius=1.25, seed_distance=5, continuity=1.0,
            contrast=0.75,
        )  # fmt: skip
    if side == 32:
        return Drawing(
            side=32, contour_length=length, distractor_length=distractor,
            n_distractors=20 // distractor, dash=2, thickness=0.5, gaps=(1,), clearance=2.5,
            radius=1.5, seed_distance=7, continuity=1.0, contrast=0.75,
        )  # fmt: skip
    return Drawing(
        side=128, contour_length=length, distractor_length=distractor,
        n_distractors=35 // distractor, dash=5, thickness=1.5, gaps=(2, 3), clearance=6,
        radius=3, seed_distance=20, continuity=1.8, contrast=0.9,
    )  # fmt: skip


@dataclass(frozen=True)
class Scenes:
    """Images with what was drawn. Coordinates are (x, y) in pixels, from the upper left corner.

    Attributes:
        images: (n, side * side) uint8, row by row.
        labels: (n,) uint8; 1 if the dots are on the two ends of one curve.
        dashes: (n, n_dashes, 2, 2) float32; start and end of each dash, in order along each chain.
        chains: (n_dashes,) uint8; which chain each dash belongs to. 0 and 1 are the curves.
        ends: (n, 2) uint8; under each dot, 2 * curve + (0: start of its first dash, 1: end of its
            last).
        dots: (n, 2, 2) float32; centres of the dots.
    """

    images: np.ndarray
    labels: np.ndarray
    dashes: np.ndarray
    chains: np.ndarray
    ends: np.ndarray
    dots: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


def draw(drawing: Drawing, n: int, *stream: str | int) -> Scenes:
    """n images: blocks 0, 1, ... of the stream, the last one cut.

    Of images 2k and 2k + 1 one has label 1 and one label 0, in random order: as many of each as can
    be, whatever n is.

    Raises:
        ConfigError: if n is below 1, or the drawing does not fit into its image.
    """
    if n < 1:
        raise ConfigError(f"n={n}: draw at least one image")
    blocks = [block(drawing, index, *stream) for index in range(-(-n // BLOCK))]
    parts = {f.name: [getattr(b, f.name) for b in blocks] for f in fields(Scenes)}
    chains = parts.pop("chains")[0]
    return Scenes(chains=chains, **{k: np.concatenate(v)[:n] for k, v in parts.items()})


def block(drawing: Drawing, index: int, *stream: str | int) -> Scenes:
    """The `BLOCK` images number `index * BLOCK` and on of this stream, whoever draws the others.

    Raises:
        ConfigError: if the drawing does not fit into its image.
    """
    rng = frozen_generator(*stream, index)
    start, end = layout(drawing, rng)
    n = drawing.contour_length
    tips = np.stack([start[:, 0], end[:, n - 1], start[:, n], end[:, 2 * n - 1]], 1)
    centre = drawing.side / 2 * (1 + 1j)
    order, labels, ends = _dots(tips - centre, rng)
    start, end, tips = start[order], end[order], tips[order]
    dots = np.take_along_axis(tips, ends, 1)
    return Scenes(
        images=_render(drawing, start, end, dots),
        labels=labels.astype(np.uint8),
        dashes=_xy(np.stack([start, end], 2)),
        chains=np.repeat(np.arange(len(drawing.lengths)), drawing.lengths).astype(np.uint8),
        ends=ends.astype(np.uint8),
        dots=_xy(dots),
    )


def _xy(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], -1).astype(np.float32)


# --- dots ---------------------------------------------------------------------------------------


def _dots(tips: np.ndarray, rng: np.random.RandomState) -> tuple[np.ndarray, ...]:
    """Labels and dots for layouts, such that the place of the dots hardly tells the label.

    A random half of the layouts becomes label 1, with two ways to put the dots on the ends of one
    curve; the others become label 0, with four ways to put them on two curves. Layouts and ways are
    paired such that the dots of partners are alike in their distance, first of all, and in how the
    line between them lies to the centre of the image: dots of one curve lie to one side of it, as
    the other curve needs room, dots of two curves on both.

    Args:
        tips: (BLOCK, 4) complex; the ends of curve 0 and those of curve 1, from the image's centre.
        rng: source of randomness.

    Returns:
        The order of the layouts, then in this order the labels (BLOCK,) and the ends under the
        dots (BLOCK, 2). Partners are neighbours.
    """
    half = BLOCK // 2
    shuffled = np.argsort(rng.random_sample(BLOCK), kind="stable")
    ones, zeros = shuffled[:half], shuffled[half:]
    same = np.array([(0, 1), (2, 3)])
    across = np.array([(0, 2), (0, 3), (1, 2), (1, 3)])

    def length(z):
        return np.sqrt(z.real**2 + z.imag**2)

    def traits(tips, ways):
        a, b = tips[:, ways[:, 0]], tips[:, ways[:, 1]]
        middle, apart = (a + b) / 2, length(a - b)
        lengthwise = np.abs(((a - b) * middle.conj()).real) / apart
        return np.stack([apart, length(middle), lengthwise / 2])

    wanted, offered = traits(tips[ones], same), traits(tips[zeros], across)
    off = ((wanted[:, :, None, :, None] - offered[:, None, :, None, :]) ** 2).sum(0)
    off = off.reshape(half, half, -1)  # (one, zero, ways of both)
    _, partner = linear_sum_assignment(off.min(2))
    way = off[np.arange(half), partner].argmin(1)
    order = np.stack([ones, zeros[partner]], 1)
    ends = np.stack([same[way // len(across)], across[way % len(across)]], 1)
    labels = np.tile([1, 0], (half, 1))
    swap = rng.random_sample(half) < 0.5
    for pairs in (order, labels, ends):
        pairs[swap] = pairs[swap, ::-1]
    return order.reshape(-1), labels.reshape(-1), ends.reshape(-1, 2)


# --- rendering ----------------------------------------------------------------------------------


def _render(drawing: Drawing, start, end, dots) -> np.ndarray:
    """The images, (n, side * side) uint8. Where things overlap the brighter counts."""
    side, n = drawing.side, len(start)
    reach = math.ceil(max(drawing.dash / 2 + drawing.width, drawing.radius + 1))
    wide = side + 2 * reach  # an empty frame, so that no patch leaves the canvas
    canvas = np.zeros((n, wide * wide))
    span = np.arange(-reach, reach + 1)
    patch = (span[:, None] * wide + span).ravel()
    centres = (span[:, None] * 1j + span).ravel() + (0.5 + 0.5j)
    row = np.arange(n)[:, None]

    def stamp(middle, cover):
        x, y = np.floor(middle.real), np.floor(middle.imag)
        from_middle = centres + (x + 1j * y - middle)[:, None]
        at = ((y + reach) * wide + x + reach).astype(int)[:, None] + patch
        canvas[row, at] = np.maximum(canvas[row, at], cover(from_middle))

    def covered(distance, extent):
        """The part of a pixel this far from the middle that lies within an extent."""
        return np.clip((extent + 1) / 2 - np.abs(distance), 0, min(extent, 1))

    for d in range(start.shape[1]):
        along = (end[:, d] - start[:, d])[:, None]
        # back to the grid of directions, on which the products below are exact
        x, y = (np.rint(part / drawing.dash * GRID) / GRID for part in (along.real, along.imag))

        def dash(z, unit=x - 1j * y):
            z = z * unit
            return (drawing.contrast * covered(z.real, drawing.dash)
                    * covered(z.imag, drawing.width))  # fmt: skip

        stamp((start[:, d] + end[:, d]) / 2, dash)
    for d in range(2):
        stamp(
            dots[:, d],
            lambda z: np.clip(drawing.radius + 0.5 - np.sqrt(z.real**2 + z.imag**2), 0, 1),
        )
    canvas = canvas.reshape(n, wide, wide)[:, reach:-reach, reach:-reach]
    return np.rint(canvas * 255).astype(np.uint8).reshape(n, side * side)
