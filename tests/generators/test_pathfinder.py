"""Pathfinder images: the label is what geometry and pixels say, and nothing else says it."""

import hashlib
import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import StandardScaler

from sptlib.errors import ConfigError
from sptlib.generators import pathfinder
from sptlib.generators.pathfinder import BLOCK, Scenes, draw, drawing

KINDS = [(16, 5), (32, 6), (32, 9), (32, 14), (128, 14)]


@lru_cache
def scenes(side: int, contour_length: int) -> Scenes:
    return draw(drawing(side, contour_length), BLOCK, 0, "test")


each_kind = pytest.mark.parametrize("kind", KINDS, ids=[f"{s}-{c}" for s, c in KINDS])


# --- the label, from the geometry ---------------------------------------------------------------


def connected(dashes: np.ndarray, dots: np.ndarray, reach: float) -> bool:
    """Whether a walk from the first dot, from dash end to nearest dash end, ends at the second."""
    left = list(range(len(dashes)))
    here = dots[0]
    step = 1e-3  # the first dash starts under the dot
    while left:
        away = np.linalg.norm(dashes[left] - here, axis=2)
        which, end = np.unravel_index(away.argmin(), away.shape)
        if away[which, end] > step:
            break
        here = dashes[left.pop(which)][1 - end]
        step = reach
    return bool(np.linalg.norm(here - dots[1]) < 1e-3)


@each_kind
def test_a_walk_from_dash_to_dash_finds_every_label(kind):
    found, random = scenes(*kind), np.random.default_rng(0)
    reach = max(drawing(*kind).gaps) + 0.01
    for dashes, dots, label in zip(found.dashes[:128], found.dots, found.labels, strict=False):
        mixed = random.permutation(dashes)  # the walk knows neither order nor chains
        assert connected(mixed, dots, reach) == label
        assert connected(mixed, dots[::-1], reach) == label


@each_kind
def test_dots_are_on_the_ends_that_are_named(kind):
    found, n = scenes(*kind), kind[1]
    curves = found.dashes[:, : 2 * n].reshape(len(found), 2, n, 2, 2)
    tips = np.stack([curves[:, :, 0, 0], curves[:, :, -1, 1]], 2).reshape(len(found), 4, 2)
    ends = found.ends[..., None].astype(int)
    assert np.array_equal(found.dots, np.take_along_axis(tips, ends, 1))
    assert np.array_equal(found.labels, found.ends[:, 0] // 2 == found.ends[:, 1] // 2)
    assert (found.ends[:, 0] != found.ends[:, 1]).all()


# --- the label, from the pixels -----------------------------------------------------------------

FINE, ORIENTATIONS, REACH = 2, 16, 4


def line_filters(long: float = 1.0, wide: float = 0.8) -> torch.Tensor:
    """Detectors of short lines, at each half pixel and orientation; the sum of |weights| is 1."""
    y, x = np.mgrid[-REACH : REACH + 1, -REACH : REACH + 1]
    found = []
    for sub_y in range(FINE):
        for sub_x in range(FINE):
            dx, dy = x + 0.5 - (sub_x + 0.5) / FINE, y + 0.5 - (sub_y + 0.5) / FINE
            for angle in np.pi * np.arange(ORIENTATIONS) / ORIENTATIONS:
                along = dx * np.cos(angle) + dy * np.sin(angle)
                across = dy * np.cos(angle) - dx * np.sin(angle)
                weights = np.exp(-(along**2) / long**2 / 2 - across**2 / wide**2 / 2)
                weights *= 1 - across**2 / wide**2
                weights -= weights.mean()
                found.append(weights / np.abs(weights).sum())
    return torch.from_numpy(np.array(found)[:, None])


def traced(images: np.ndarray, radius: float, threshold: float = 0.1) -> np.ndarray:
    """Whether the two bright discs are linked by lines that turn little by little.

    Sees pixels only. Points (orientation, y, x) at which a line is detected are linked to their
    neighbours in all three; the label is whether a linked set touches both discs.

    Args:
        images: (n, side, side) uint8.
        radius: of the discs.
        threshold: of the detectors.
    """
    n, side, _ = images.shape
    lines = torch.nn.functional.conv2d(
        torch.from_numpy(images[:, None] / 255.0), line_filters(), padding=REACH
    )
    lines = lines.view(n, FINE, FINE, ORIENTATIONS, side, side).permute(0, 3, 4, 1, 5, 2)
    lines = lines.reshape(n, ORIENTATIONS, side * FINE, side * FINE).numpy() > threshold
    grid = np.mgrid[: side * FINE, : side * FINE]
    points = ((grid[1] + 0.5) + 1j * (grid[0] + 0.5)) / FINE
    answers = []
    for image, on in zip(images, lines, strict=True):
        blobs, n_blobs = ndimage.label(image > 210)  # no dash is as bright
        assert n_blobs == 2
        a, b = (complex(x, y) + 0.5 + 0.5j
                for y, x in ndimage.center_of_mass(image > 210, blobs, (1, 2)))  # fmt: skip
        if abs(a - b) < 6.6:  # discs so close look like dashes of a line: take out what is between
            between = (points - a) / (b - a)
            on = on & ~((abs(between.real - 0.5) < 0.25) & (abs(between.imag * (b - a)) < 1.5))
        # half a turn is the orientation that one began with
        sets, _ = ndimage.label(np.concatenate([on, on[:1]]), np.ones((3, 3, 3)))
        same = {*zip(sets[0][on[0]].tolist(), sets[-1][on[0]].tolist(), strict=True)}
        reached = {*np.unique(sets[:, abs(points - a) < radius + 0.75]).tolist()} - {0}
        grows = True
        while grows:
            more = reached | {x for pair in same if reached & {*pair} for x in pair}
            grows, reached = len(more) > len(reached), more
        goal = {*np.unique(sets[:, abs(points - b) < radius + 0.75]).tolist()}
        answers.append(bool(reached & goal))
    return np.array(answers)


def test_a_tracer_that_sees_only_pixels_finds_nearly_every_label():
    # on 1,000 other images: 97.8 %
    found = scenes(32, 14)
    images, labels = found.images[:200].reshape(-1, 32, 32), found.labels[:200]
    right = traced(images, drawing(32).radius) == labels
    assert right.mean() >= 0.95
    assert right[labels == 0].mean() >= 0.9
    assert right[labels == 1].mean() >= 0.9


# --- nothing else tells the label ---------------------------------------------------------------


def accuracy(features: np.ndarray, labels: np.ndarray, model) -> float:
    features = StandardScaler().fit_transform(features)
    return cross_val_score(model, features, labels, cv=5).mean()


@pytest.fixture(scope="module")
def many() -> Scenes:
    return draw(drawing(32, 6), 4096, 0, "many")


def test_dashes_and_ink_do_not_tell_the_label(many):
    ink = many.images.astype(int).sum(1)
    visible = [ndimage.label(image.reshape(32, 32) > 60)[1] for image in many.images]
    features = np.stack([ink, visible], 1)
    assert accuracy(features, many.labels, LogisticRegression()) < 0.55
    assert accuracy(ink[:, None], many.labels, HistGradientBoostingClassifier()) < 0.55


def test_the_place_of_the_dots_hardly_tells_the_label(many):
    trees = HistGradientBoostingClassifier(max_iter=50, max_depth=4)
    a, b = np.sort(many.dots[..., 0] + 1j * many.dots[..., 1], 1).T - (16 + 16j)
    apart, middle = abs(a - b), (a + b) / 2
    assert accuracy(apart[:, None], many.labels, trees) < 0.55
    lengthwise = abs(((a - b) * middle.conj()).real)
    features = [a.real, a.imag, b.real, b.imag, apart, abs(a), abs(b), abs(middle), lengthwise]
    assert accuracy(np.stack(features, 1), many.labels, trees) < 0.57


@each_kind
def test_dots_of_both_labels_are_equally_far_apart(kind):
    found = scenes(*kind)
    apart = np.linalg.norm(found.dots[:, 0] - found.dots[:, 1], axis=1)
    ones, zeros = (np.sort(apart[found.labels == k]) for k in (1, 0))
    assert np.abs(ones - zeros).mean() < 0.01 * kind[0]  # a hundredth of the image
    assert stats.ks_2samp(ones, zeros).pvalue > 0.2


@each_kind
def test_both_labels_have_the_same_dashes_and_as_many_images(kind):
    found, spec = scenes(*kind), drawing(*kind)
    assert np.bincount(found.chains).tolist() == spec.lengths
    assert spec.lengths[:2] == [kind[1]] * 2
    assert found.dashes.shape == (len(found), sum(spec.lengths), 2, 2)
    assert np.isfinite(found.dashes).all()
    pairs = found.labels.reshape(-1, 2)
    assert (pairs.sum(1) == 1).all()
    assert 0.3 < pairs[:, 0].mean() < 0.7


# --- distances ----------------------------------------------------------------------------------


def distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Least distance of pieces of lines a and b (..., 2, 2), from 9 points on each."""
    t = np.linspace(0, 1, 9)[:, None]
    on_a = a[..., :1, :] * (1 - t) + a[..., 1:, :] * t
    on_b = b[..., :1, :] * (1 - t) + b[..., 1:, :] * t
    gaps = on_a[..., :, None, :] - on_b[..., None, :, :]
    return np.sqrt((gaps**2).sum(-1).min((-1, -2)))


def crossing(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether pieces of lines cross: the ends of each are on different sides of the other."""

    def side(line, point):
        u, v = line[..., 1, :] - line[..., 0, :], point - line[..., 0, :]
        return np.sign(u[..., 0] * v[..., 1] - u[..., 1] * v[..., 0])

    return (side(a, b[..., 0, :]) != side(a, b[..., 1, :])) & (
        side(b, a[..., 0, :]) != side(b, a[..., 1, :])
    )


@each_kind
def test_dashes_that_do_not_follow_each_other_keep_apart(kind):
    found, spec = scenes(*kind), drawing(*kind)
    i, j = np.triu_indices(len(found.chains), 1)
    follow = (j == i + 1) & (found.chains[i] == found.chains[j])
    i, j = i[~follow], j[~follow]
    for dashes, ends, dots in zip(found.dashes[:30], found.ends, found.dots, strict=False):
        assert distances(dashes[i], dashes[j]).min() > spec.clearance - 1e-3
        assert not crossing(dashes[i], dashes[j]).any()
        n = spec.contour_length
        under = np.array([0, n - 1, n, 2 * n - 1])[ends]
        for dot, dash in zip(dots, under, strict=True):
            touching = [dash, dash + (1 if dash % n == 0 else -1)]
            others = np.delete(dashes, touching, 0)
            point = np.broadcast_to(dot, others.shape)
            free = distances(point, others).min() - spec.radius - spec.width / 2
            assert free > spec.clearance - spec.width - 1e-3
        between = np.linalg.norm(dots[0] - dots[1]) - 2 * spec.radius
        assert between > spec.clearance - spec.width - 1e-3


@each_kind
def test_curves_are_as_the_drawing_says(kind):
    found, spec = scenes(*kind), drawing(*kind)
    start, end = found.dashes[:, :, 0], found.dashes[:, :, 1]
    assert np.linalg.norm(end - start, axis=2) == pytest.approx(spec.dash, abs=2e-3)
    follow = np.flatnonzero(found.chains[:-1] == found.chains[1:])
    gaps = np.linalg.norm(start[:, follow + 1] - end[:, follow], axis=2)
    assert np.allclose(gaps, gaps[:, :1], atol=2e-3)  # one gap per image
    assert {*np.round(gaps[:, 0], 2).tolist()} == {*map(float, spec.gaps)}
    along = end - start
    heading = np.arctan2(along[..., 1], along[..., 0])
    turn = np.angle(np.exp(1j * (heading[:, follow + 1] - heading[:, follow])))
    assert np.abs(turn).max() <= math.pi / 2 / spec.continuity
    assert np.abs(turn).max() > 0.6 * math.pi / 2 / spec.continuity  # and the range is used
    assert abs(turn.mean()) < 0.05
    inner = np.array([0, spec.contour_length]) + (spec.contour_length - 1) // 2
    seeds = found.dashes[:, inner].mean(2)
    apart = np.linalg.norm(seeds[:, 0] - seeds[:, 1], axis=1)
    assert apart == pytest.approx(spec.seed_distance, abs=2e-3)
    for points, margin in ((found.dashes, spec.width / 2), (found.dots, spec.radius)):
        edge = spec.padding + margin - 1e-3
        assert points.min() > edge
        assert points.max() < spec.side - edge


# --- the pixels ---------------------------------------------------------------------------------


@each_kind
def test_images_are_what_finely_sampled_shapes_look_like(kind):
    found, spec = scenes(*kind), drawing(*kind)
    fine = 8
    at = (np.arange(spec.side * fine) + 0.5) / fine
    x, y = np.meshgrid(at, at)
    for i in range(3):
        picture = np.zeros_like(x)
        for (x0, y0), (x1, y1) in found.dashes[i].astype(float):
            ux, uy = (x1 - x0) / spec.dash, (y1 - y0) / spec.dash
            along = (x - x0) * ux + (y - y0) * uy
            across = (x - x0) * uy - (y - y0) * ux
            inside = (along >= 0) & (along <= spec.dash) & (np.abs(across) <= spec.width / 2)
            picture[inside] = spec.contrast
        for x0, y0 in found.dots[i]:
            picture[(x - x0) ** 2 + (y - y0) ** 2 <= spec.radius**2] = 1
        expected = 255 * picture.reshape(spec.side, fine, spec.side, fine).mean((1, 3))
        image = found.images[i].reshape(spec.side, spec.side).astype(float)
        assert np.corrcoef(image.ravel(), expected.ravel())[0, 1] > 0.97
        assert image.mean() == pytest.approx(expected.mean(), rel=0.06)


def test_ink_is_like_that_of_the_published_images():
    # mean of images that the published generator drew: 19.9 with contours of 14, 13.2 with 6
    assert scenes(32, 14).images.mean() == pytest.approx(19.9, rel=0.1)
    assert scenes(32, 6).images.mean() == pytest.approx(13.2, rel=0.1)


@each_kind
def test_pixels_have_their_types_and_ranges(kind):
    found, spec = scenes(*kind), drawing(*kind)
    assert found.images.dtype == found.labels.dtype == np.uint8
    assert found.images.shape == (len(found), spec.side**2)
    images = found.images.reshape(-1, spec.side, spec.side)
    frame = np.ones((spec.side, spec.side), bool)
    frame[1:-1, 1:-1] = False
    assert images[:, frame].max() < 255 * spec.contrast  # padding: blur at most
    assert (images.max((1, 2)) == 255).all()  # the dots


# --- the same bytes -----------------------------------------------------------------------------


def digest(found: Scenes) -> str:
    return hashlib.sha256(found.images.tobytes() + found.labels.tobytes()).hexdigest()[:16]


def test_blocks_do_not_depend_on_how_many_are_drawn_or_where(python):
    spec = drawing(16)
    whole = draw(spec, 300, 3, "x")
    assert np.array_equal(draw(spec, 131, 3, "x").images, whole.images[:131])
    last = pathfinder.block(spec, 1, 3, "x")
    for name in ("images", "labels", "dashes", "ends", "dots"):
        assert np.array_equal(getattr(last, name)[: 300 - BLOCK], getattr(whole, name)[BLOCK:])
    assert abs(int((whole.labels[:131] == 0).sum()) - 65.5) == 0.5
    code = (
        "import hashlib; from sptlib.generators.pathfinder import block, drawing\n"
        "found = block(drawing(16), 1, 3, 'x')\n"
        "both = found.images.tobytes() + found.labels.tobytes()\n"
        "print(hashlib.sha256(both).hexdigest()[:16])"
    )
    assert python("-c", code).stdout.strip() == digest(last)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ((16, 5), "864f4d5f395dc234"),
        ((32, 9), "f23d201576c31642"),
        ((128, 14), "4a6bb5eacbe0007f"),
    ],
)
def test_bytes_stay_as_they_are(kind, expected):
    """Where this fails on purpose, VERSION goes up, and caches are made anew."""
    assert pathfinder.VERSION == 1
    assert digest(scenes(*kind)) == expected


def test_streams_differ():
    spec = drawing(16)
    blocks = [pathfinder.block(spec, *a) for a in ((0, 0, "a"), (1, 0, "a"), (0, 1, "a"))]
    rows = np.concatenate([b.images for b in blocks])
    assert len(np.unique(rows, axis=0)) == len(rows)


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("side", [0, 31, 64, 256])
def test_unknown_sizes_are_refused(side):
    with pytest.raises(ConfigError, match="there are 16, 32 and 128"):
        drawing(side)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"contour_length": 2}, "at least 3"),
        ({"clearance": 1}, "exceed half a dash"),
        ({"dash": 6, "clearance": 3}, "exceed half a dash"),
        ({"gaps": (1, 0.3)}, "quarter pixel"),
        ({"continuity": 0.5}, "at least 1"),
        ({"distractor_length": 0}, "at least 1"),
    ],
)
def test_drawings_that_would_not_be_decidable_are_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        replace(drawing(32), **change)


def test_what_does_not_fit_is_said(monkeypatch):
    monkeypatch.setattr("sptlib.generators.pathfinder_layout.MAX_ROUNDS", 200)
    with pytest.raises(ConfigError, match="do not fit into 16×16"):
        draw(replace(drawing(16), contour_length=12), 1, 0)
    with pytest.raises(ConfigError, match="contour_length=12 does not fit into 16×16"):
        drawing(16, 12)
    with pytest.raises(ConfigError, match="at least one"):
        draw(drawing(16), 0, 0)
