"""The layout of Pathfinder images: dashed chains that keep apart, for a whole block at once.

Both curves grow from a middle dash, to both sides in turn; distractors grow to one side. A dash
that finds no room takes back some of those before it, the more the longer this goes on.

Directions are multiples of 1/1024 of a turn, and all coordinates multiples of 2^-17 pixels, so that
sums and products of two numbers are exact: which places fit does not depend on the machine.
"""

import math
from dataclasses import dataclass

import numpy as np

from sptlib.errors import ConfigError

#: images that are drawn together, from one random stream
BLOCK = 256

#: directions; a turn of the heading is a difference of two
N_DIRECTIONS = 1024

#: unit vectors as complex numbers x + iy, in multiples of 1/GRID
GRID = 2**14
UNIT = np.array(
    [
        complex(round(math.cos(a) * GRID), round(math.sin(a) * GRID)) / GRID
        for a in (2 * math.pi * k / N_DIRECTIONS for k in range(N_DIRECTIONS))
    ]
)

#: candidates for one dash before the place counts as a dead end: following another, or the first
PATIENCE, PATIENCE_FIRST = 20, 48

#: rounds after which a block is given up; 32×32 with contours of 14 takes about 2,500
MAX_ROUNDS = 30_000


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """What is drawn. Lengths are in pixels.

    Attributes:
        side: of the square image.
        contour_length: dashes of each of the two curves, at least 3.
        distractor_length: dashes of each distractor.
        n_distractors: how many.
        dash: length of a dash.
        thickness: of a dash, before antialiasing.
        gaps: between successive dashes; each image takes one of these.
        clearance: least distance of the centre lines of dashes that do not follow each other.
        radius: of a dot.
        seed_distance: between the middles of the two curves' middle dashes.
        continuity: successive dashes turn by at most a quarter turn divided by this.
        contrast: brightness of a dash; dots have 1.
        padding: margin of the image that stays empty.
        antialias: sub-pixels per pixel of the published renderer: edges are this much blurred.

    Raises:
        ConfigError: for sizes that cannot be drawn, or with which dashes could cross unnoticed.
    """

    side: int
    contour_length: int
    distractor_length: int
    n_distractors: int
    dash: float
    thickness: float
    gaps: tuple[float, ...]
    clearance: float
    radius: float
    seed_distance: float
    continuity: float
    contrast: float
    padding: float = 1
    antialias: int = 2

    def __post_init__(self):
        if self.contour_length < 3:
            raise ConfigError(f"contour_length={self.contour_length}: a curve has at least 3")
        if self.distractor_length < 1 or self.n_distractors < 0 or self.continuity < 1:
            raise ConfigError("distractor_length and continuity are at least 1, n_distractors 0")
        if self.clearance <= max(self.dash / 2, *self.gaps):
            raise ConfigError(
                f"clearance={self.clearance} must exceed half a dash ({self.dash / 2}) and the gap "
                f"({max(self.gaps)}): else chains may cross, or are no farther than their dashes"
            )
        # the numbers that directions are multiplied with: see the module's docstring
        if any(4 * x % 1 for x in (self.dash, self.seed_distance, *self.gaps)):
            raise ConfigError("dash, gaps and seed_distance are multiples of a quarter pixel")

    @property
    def width(self) -> float:
        """Of the ink of a dash: the published renderer covers sub-pixels that it only touches.

        Measured on images that it drew: 0.9 pixels for a thickness of 0.5.
        """
        return self.thickness + 0.8 / self.antialias

    @property
    def lengths(self) -> list[int]:
        """Dashes of each chain: two curves, then the distractors."""
        return [self.contour_length] * 2 + [self.distractor_length] * self.n_distractors


@dataclass(frozen=True)
class _Plan:
    """For each dash in the order of placing (all of length n_dashes).

    Attributes:
        first: it starts its chain.
        second_curve: it starts the second curve, at the seed distance from the first.
        before: the dash that it follows; its own number if it starts a chain.
        back: it is attached to that dash's start, and runs the other way.
        last: it ends a curve, so that a dot may sit on its end.
        order: the dashes along each chain, from one end to the other.
        flip: whether the dash of `order` runs against it.
    """

    first: np.ndarray
    second_curve: np.ndarray
    before: np.ndarray
    back: np.ndarray
    last: np.ndarray
    order: np.ndarray
    flip: np.ndarray


def _plan(drawing: Drawing) -> _Plan:
    rows: list[tuple] = []
    order: list[int] = []
    for chain, length in enumerate(drawing.lengths):
        at = len(rows)
        curve = chain < 2
        for k in range(length):
            # curves grow in turn to both sides (odd: forwards, even: backwards), others to one
            before = at + max(k - 2 if curve else k - 1, 0)
            last = curve and k >= length - 2
            rows.append((k == 0, chain == 1 and k == 0, before, curve and k == 2, last))
        ks = [*range(length)]
        order += [at + k for k in ([*ks[2::2][::-1], 0, *ks[1::2]] if curve else ks)]
    first, second, before, back, last = map(np.array, zip(*rows, strict=True))
    in_curves = np.arange(len(rows)) < 2 * drawing.contour_length
    place = np.arange(len(rows)) % drawing.contour_length
    flip = (in_curves & (place > 0) & (place % 2 == 0))[order]
    return _Plan(first, second, before, back, last, np.array(order), flip)


def _turns(continuity: float) -> np.ndarray:
    """64 equally likely turns with density cos² between ± a quarter turn / continuity."""

    def quantile(p: float) -> float:
        low, high = -math.pi / 2, math.pi / 2
        for _ in range(50):
            x = (low + high) / 2
            low, high = (low, x) if 0.5 + (x + math.sin(2 * x) / 2) / math.pi > p else (x, high)
        return low

    scale = N_DIRECTIONS / (2 * math.pi * continuity)
    return np.array([round(quantile((k + 0.5) / 64) * scale) for k in range(64)])


def layout(drawing: Drawing, rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
    """Places for the dashes of a block.

    Args:
        drawing: what is drawn.
        rng: source of randomness; only `random_sample` is called.

    Returns:
        Start and end of each dash, (BLOCK, n_dashes) complex x + iy in pixels. Chains follow each
        other as in `drawing.lengths`, dashes as along their chain.

    Raises:
        ConfigError: if it does not fit into the image.
    """
    plan, turns = _plan(drawing), _turns(drawing.continuity)
    total = len(plan.order)
    start, end = np.zeros((2, BLOCK, total), complex)
    heading = np.zeros((BLOCK, total), int)
    gap = np.array(drawing.gaps, float)[(rng.random_sample(BLOCK) * len(drawing.gaps)).astype(int)]
    # per image: dashes that are placed, the most that ever were, failures since, candidates tried
    placed, best, failures, tried = np.zeros((4, BLOCK), int)
    for _ in range(MAX_ROUNDS):
        live = np.flatnonzero(placed < total)
        if not len(live):
            backwards = plan.flip[None]
            start, end = start[:, plan.order], end[:, plan.order]
            return np.where(backwards, end, start), np.where(backwards, start, end)
        k = placed[live]
        # few images left: more candidates for each, so that a round always does similar work
        n_candidates = min(max(2 * BLOCK // len(live), 2), 16)
        random = rng.random_sample((3, len(live), n_candidates))
        before = plan.before[k]
        back = plan.back[k]
        tip = np.where(back, start[live, before], end[live, before])[:, None]
        ahead = (heading[live, before] + back * (N_DIRECTIONS // 2))[:, None]
        turn = turns[(random[0] * len(turns)).astype(int)]
        begin = tip + gap[live, None] * UNIT[(ahead + turn // 2) % N_DIRECTIONS]
        towards = (ahead + turn) % N_DIRECTIONS

        first = plan.first[k][:, None]
        anywhere = (random[0] * N_DIRECTIONS).astype(int)
        towards = np.where(first, anywhere, towards)
        middle = np.floor(random[1] * drawing.side * 1024) + 1j * np.floor(
            random[2] * drawing.side * 1024
        )
        away = UNIT[(random[1] * N_DIRECTIONS).astype(int)] * drawing.seed_distance
        seed = (start[live, :1] + end[live, :1]) / 2 + away
        middle = np.where(plan.second_curve[k][:, None], seed, middle / 1024)
        begin = np.where(first, middle - UNIT[towards] * (drawing.dash / 2), begin)
        finish = begin + UNIT[towards] * drawing.dash

        fits = _fits(drawing, plan, k, start[live], end[live], heading[live], begin, finish,
                     towards)  # fmt: skip
        hit = fits.any(1)
        at, choice = (live[hit], k[hit]), (np.flatnonzero(hit), fits[hit].argmax(1))
        start[at], end[at], heading[at] = begin[choice], finish[choice], towards[choice]
        placed[live[hit]] += 1
        tried[live[hit]] = 0
        farther = placed > best
        best[farther], failures[farther] = placed[farther], 0

        tried[live[~hit]] += n_candidates
        dead = tried[live] >= np.where(plan.first[k], PATIENCE_FIRST, PATIENCE)
        i = live[dead]
        failures[i] += 1
        placed[i] = np.maximum(placed[i] - 1 - failures[i] // 3, 0)
        tried[i] = 0
        start_over = placed[i] == 0
        failures[i[start_over]] = best[i[start_over]] = 0
    raise ConfigError(
        f"{drawing.contour_length} dashes per curve and {drawing.n_distractors} distractors do not "
        f"fit into {drawing.side}×{drawing.side} pixels; take a shorter contour"
    )


def _fits(drawing, plan, k, start, end, heading, begin, finish, towards) -> np.ndarray:
    """Which candidates (live, n_candidates) keep inside the image and away from placed dashes."""
    last = plan.last[k][:, None]

    def inside(z, margin):
        far = np.maximum(np.abs(z.real - drawing.side / 2), np.abs(z.imag - drawing.side / 2))
        return far <= drawing.side / 2 - drawing.padding - margin

    ink = drawing.width / 2
    fits = inside(begin, ink) & inside(finish, np.where(last, drawing.radius, ink))
    where = np.nonzero(fits)
    if not len(where[0]):
        return fits
    row = where[0]
    many = k.max()
    b, e, u = begin[where][:, None], finish[where][:, None], UNIT[towards[where]][:, None]
    starts, ends, units = start[row, :many], end[row, :many], UNIT[heading[row, :many]]

    def gap2(point, origin, unit):
        """Squared distance of points from dashes."""
        along = (point - origin) * unit.conj()
        beyond = along.real - np.clip(along.real, 0, drawing.dash)
        return beyond * beyond + along.imag * along.imag

    # dashes that do not cross are closest at an end of one of them; and none cross, as an end
    # would then be within half a dash of the other
    near = drawing.clearance
    dot = near + drawing.radius - ink  # round an end that may get a dot
    limit = np.where(last[row], dot, near) ** 2
    limits = np.where(plan.last[:many], dot, near) ** 2
    good = gap2(b, starts, units) >= near**2
    good &= gap2(e, starts, units) >= limit
    good &= gap2(starts, b, u) >= near**2
    good &= gap2(ends, b, u) >= limits
    between = e - ends  # two ends that may both get a dot
    apart = (near + 2 * (drawing.radius - ink)) ** 2
    good &= (between * between.conj()).real >= np.where(last[row] & plan.last[:many], apart, 0)
    number = np.arange(many)
    # the dash that it follows may be near; those not placed yet do not count
    good |= (number == plan.before[k][row, None]) | (number >= k[row, None])
    fits[where] = good.all(1)
    return fits
