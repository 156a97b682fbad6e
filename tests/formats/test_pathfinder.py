"""The official tree of Pathfinder: what is written is read, and what is wrong is named."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sptlib.errors import ConfigError, DataError
from sptlib.formats import pathfinder
from sptlib.formats.base import LISTED
from sptlib.generators.pathfinder import drawing

SAMPLE = Path(__file__).parents[2].parent / "shared" / "samples" / "pathfinder32"
SPEC = drawing(32)


def pictures(n: int, side: int = 32, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (n, side * side), np.uint8), random.integers(0, 2, n, np.uint8)


@pytest.fixture
def tree(tmp_path) -> Path:
    """Seven images in batches of 3, 3 and 1."""
    folder = tmp_path / "curv_contour_length_14"
    pathfinder.write(folder, *pictures(7), SPEC, batch_size=3)
    return folder


def edit(tree: Path, old: str, new: str, batch: int = 1) -> Path:
    """Replace text in a metadata file, where it is once."""
    path = tree / "metadata" / f"{batch}.npy"
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    return path


# --- there and back -----------------------------------------------------------------------------


def test_what_is_written_is_read(tree):
    calls = []
    found = pathfinder.read(tree, lambda *a: calls.append(a))
    images, labels = pictures(7)
    assert np.array_equal(found.images, images)
    assert np.array_equal(found.labels, labels)
    assert found.images.dtype == found.labels.dtype == np.uint8
    assert found.skipped == []
    assert calls == [(7, 7)]


def test_the_layout_is_the_official_one(tmp_path):
    images, labels = pictures(5)
    calls = []
    pathfinder.write(tmp_path / "x", images.reshape(5, 32, 32), labels, SPEC, 3,
                     lambda *a: calls.append(a))  # fmt: skip
    assert calls == [(3, 5), (5, 5)]
    files = {p.relative_to(tmp_path / "x").as_posix() for p in (tmp_path / "x").rglob("*.*")}
    assert files == {
        *(f"imgs/0/sample_{i}.png" for i in range(3)),
        *(f"imgs/1/sample_{i}.png" for i in range(2)),
        *("metadata/0.npy", "metadata/1.npy"),
    }
    rows = (tmp_path / "x/metadata/1.npy").read_bytes()
    assert rows == b"".join(
        b"imgs/1 sample_%d.png %d %d 1.0 14 4 2 0.5 1 1\n" % (i, i, labels[3 + i]) for i in range(2)
    )
    with Image.open(tmp_path / "x/imgs/1/sample_1.png") as image:
        assert (image.format, image.mode, image.size) == ("PNG", "L", (32, 32))
        assert np.array_equal(np.asarray(image).ravel(), images[4])


def test_several_gaps_are_written_as_one_field(tmp_path):
    pathfinder.write(tmp_path, *pictures(1, 128), drawing(128))
    (row,) = (tmp_path / "metadata/0.npy").read_text().splitlines()
    assert row.split()[4:] == ["1.8", "14", "4", "5", "1.5", "2/3", "1"]


def test_batches_are_in_the_order_of_their_numbers(tmp_path):
    images, labels = pictures(12)
    pathfinder.write(tmp_path, images, labels, SPEC, batch_size=1)
    assert np.array_equal(pathfinder.read(tmp_path).images, images)  # 2 before 10


def test_several_difficulties_are_read_one_after_the_other(tree, tmp_path):
    other = tmp_path / "curv_baseline"
    pathfinder.write(other, *pictures(2, seed=1), SPEC)
    (other / "imgs/0/sample_0.png").write_bytes(b"")
    found = pathfinder.read([other, tree])
    images = np.concatenate([pictures(2, seed=1)[0][1:], pictures(7)[0]])
    assert np.array_equal(found.images, images)
    assert found.skipped == ["curv_baseline/imgs/0/sample_0.png: broken PNG (not recognised)"]
    small = tmp_path / "small"
    pathfinder.write(small, *pictures(2, 16), drawing(16))
    with pytest.raises(DataError, match=r"small/metadata/0\.npy:1: .*16×16.*expected 32×32"):
        pathfinder.read([tree, small])


def test_a_stopped_writer_goes_on(tree):
    images, labels = pictures(7, seed=1)
    (tree / "metadata/2.npy").unlink()
    pathfinder.write(tree, images, labels, SPEC, batch_size=3)
    assert np.array_equal(pathfinder.read(tree).images, images)


def test_a_smaller_set_is_not_mixed_with_what_remains_of_a_larger_one(tree):
    with pytest.raises(DataError, match=r"2\.npy: belongs to another set than the 2 batches"):
        pathfinder.write(tree, *pictures(6), SPEC, batch_size=3)
    assert len(pathfinder.read(tree).labels) == 7


# --- metadata as arrays -------------------------------------------------------------------------


def rows_of(tree: Path, batch: int = 1) -> list[list[str]]:
    return [row.split() for row in (tree / "metadata" / f"{batch}.npy").read_text().splitlines()]


@pytest.mark.parametrize("kind", [str, np.bytes_])
def test_metadata_as_an_array_of_strings_are_read(tree, kind):
    np.save(tree / "metadata/1.npy", np.array(rows_of(tree), kind))
    found = pathfinder.read(tree)
    assert np.array_equal(found.images, pictures(7)[0])
    assert np.array_equal(found.labels, pictures(7)[1])


def test_a_fault_in_an_array_is_named_by_its_row(tree):
    rows = rows_of(tree)
    rows[1][3] = "2"
    np.save(tree / "metadata/1.npy", np.array(rows))
    with pytest.raises(DataError, match=r"1\.npy: row 1: label '2' is neither 0 nor 1"):
        pathfinder.read(tree)


class Trap:
    """Leaves a trace if it is unpickled."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_pickles_are_refused_and_not_run(tree, tmp_path):
    trace, path = tmp_path / "trace", tree / "metadata/1.npy"
    np.save(path, np.array([[Trap(trace), "x"]], object), allow_pickle=True)
    with pytest.raises(DataError, match=r"1\.npy: holds pickled Python objects"):
        pathfinder.read(tree)
    path.write_bytes(pickle.dumps(Trap(trace)))
    with pytest.raises(DataError, match=r"1\.npy: holds pickled Python objects"):
        pathfinder.read(tree)
    assert not trace.exists()
    pickle.loads(path.read_bytes())
    assert trace.exists()  # the trap works


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((3, 11)), "array of float64 .*expected strings"),
        (np.array(["a", "b"]), "expected strings, a row per image"),
        (np.array([["imgs/1", "sample_0.png", "0"]]), "row 0: 3 fields; expected at least 4"),
        (np.array([[b"imgs/1", b"\xff", b"0", b"1"]]), "row 0: bytes that are not ASCII"),
    ],
)
def test_other_arrays_are_refused(tree, array, words):
    np.save(tree / "metadata/1.npy", array)
    with pytest.raises(DataError, match=words):
        pathfinder.read(tree)


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:6],
        lambda raw: raw[:40],
        lambda raw: raw[:-9],
        lambda raw: raw.replace(b"}", b" "),
        lambda raw: raw.replace(b"(3, 11), }   ", b"(3, 11111)}  "),
    ],
)
def test_damaged_arrays_are_said(tree, damage):
    path = tree / "metadata/1.npy"
    np.save(path, np.array(rows_of(tree)))
    assert damage(path.read_bytes()) != path.read_bytes()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"1\.npy: damaged array of metadata"):
        pathfinder.read(tree)


# --- what is wrong ------------------------------------------------------------------------------

ROW = "imgs/1 sample_1.png 1 {} 1.0"
LABEL = int(pictures(7)[1][4])
FAULTS = [
    ("imgs/1 sample_1.png 1", "imgs/1 sample_9.png 1", r"there is no image .*sample_9\.png"),
    ("imgs/1 sample_1.png 1", "../../x sample_1.png 1", "points outside of"),
    ("imgs/1 sample_1.png 1", "imgs/1 ../../../x.png 1", "points outside of"),
    ("imgs/1 sample_1.png 1", "/etc hostname 1", "points outside of"),
    ("imgs/1 sample_1.png 1", "C:/x sample_1.png 1", "points outside of"),
    ("imgs/1 sample_1.png 1", "..\\..\\x sample_1.png 1", "points outside of"),
    ("imgs/1 sample_1.png 1", "imgs . 1", "cannot be read"),
    ("imgs/1 sample_1.png 1", "imgs \0 1", "cannot be read"),
    (ROW.format(LABEL), ROW.format(2), "label '2' is neither 0 nor 1"),
    (ROW.format(LABEL), ROW.format(-1), "label '-1' is neither 0 nor 1"),
    (ROW.format(LABEL), ROW.format("1.0"), "label '1.0' is no integer"),
    (ROW.format(LABEL), ROW.format("yes"), "label 'yes' is no integer"),
    (f"sample_1.png 1 {LABEL} 1.0 14 4 2 0.5 1 1", "sample_1.png 1", "3 fields; expected at least"),
]


@pytest.mark.parametrize(("old", "new", "words"), FAULTS, ids=[f[1] + " " + f[2] for f in FAULTS])
def test_a_wrong_row_is_named_with_file_and_line(tree, old, new, words):
    path = edit(tree, old, new)
    with pytest.raises(DataError, match=words) as caught:
        pathfinder.read(tree)
    assert (caught.value.path, caught.value.line) == (str(path), 2)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert pathfinder.check(tree).faults == [str(caught.value)]


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (Image.new("L", (16, 16)), "has 16×16 pixels; expected 32×32, as the first image"),
        (Image.new("L", (32, 16)), "has 32×16 pixels; expected 32×32, as the first image"),
        (Image.new("RGB", (32, 32)), "has mode RGB; expected 8-bit grey"),
        (Image.new("1", (32, 32)), "has mode 1; expected 8-bit grey"),
    ],
)
def test_an_image_of_another_kind_is_named(tree, image, words):
    image.save(tree / "imgs/1/sample_1.png")
    with pytest.raises(DataError, match=words) as caught:
        pathfinder.read(tree)
    assert str(caught.value).startswith(f"{tree / 'metadata/1.npy'}:2: ")


def test_the_first_image_is_square_and_no_giant(tree):
    for size in ((32, 16), (2000, 2000)):
        Image.new("L", size).save(tree / "imgs/0/sample_0.png")
        with pytest.raises(DataError, match=r"0\.npy:1: .*expected a square, ≤ 1024"):
            pathfinder.read(tree)


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: b"no image at all",
        lambda raw: raw[:200],
        lambda raw: raw[:20],
        lambda raw: raw.replace(b"IDAT", b"IDAX"),
        lambda raw: raw[:60] + bytes(200) + raw[260:],
    ],
)
def test_a_broken_png_is_skipped_and_said(tree, damage):
    path = tree / "imgs/1/sample_1.png"
    assert damage(path.read_bytes()) != path.read_bytes()
    path.write_bytes(damage(path.read_bytes()))
    found = pathfinder.read(tree)
    images, labels = pictures(7)
    assert np.array_equal(found.images, np.delete(images, 4, 0))
    assert np.array_equal(found.labels, np.delete(labels, 4))
    (text,) = found.skipped
    assert text.startswith("curv_contour_length_14/imgs/1/sample_1.png: broken PNG (")
    assert "0x" not in text
    assert text == pathfinder.read(tree).skipped[0]
    assert f"skipped {text}" in pathfinder.check(tree).notes


def test_no_image_at_all_is_a_fault(tree):
    for path in tree.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="none of 7 images can be read"):
        pathfinder.read(tree)
    for path in tree.rglob("*.npy"):
        path.write_bytes(b"\n\n")
    with pytest.raises(DataError, match="is empty; expected a row"):
        pathfinder.read(tree)


def test_a_folder_without_metadata_is_a_fault(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(DataError, match=r"there is no metadata/0\.npy"):
            pathfinder.read(folder)


def test_metadata_that_are_no_batch_are_left_out_and_said(tree):
    (tree / "metadata/combined.npy").write_text("whatever")
    (tree / "metadata/.1.npy.draft.npy").write_text("whatever")
    found = pathfinder.read(tree)
    assert len(found.labels) == 7
    assert found.skipped == [
        "curv_contour_length_14/metadata/combined.npy: its name is no batch number"
    ]


def test_text_that_is_none_is_named(tree):
    (tree / "metadata/1.npy").write_bytes(b"imgs/1 sample_0.png 0 1\n\xff\xfe\n")
    with pytest.raises(DataError, match=r"1\.npy:2: .*not UTF-8"):
        pathfinder.read(tree)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": np.zeros((2, 1024))}, "images are float64"),
        ({"images": np.zeros((2, 256), np.uint8)}, r"expected uint8 \(2, 1024\)"),
        ({"labels": np.array([0, 2])}, "each 0 or 1"),
        ({"labels": np.array([0, 1, 1])}, r"expected uint8 \(3, 1024\)"),
        ({"labels": np.array([])}, "at least 1"),
        ({"batch_size": 0}, "at least 1"),
        ({"drawing": replace(SPEC, side=64)}, r"expected uint8 \(2, 4096\)"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, change, words):
    images, labels = pictures(2)
    arguments = {"images": images, "labels": labels, "drawing": SPEC, **change}
    with pytest.raises(ConfigError, match=words):
        pathfinder.write(tmp_path / "x", **arguments)
    assert not (tmp_path / "x").exists()


# --- checking -----------------------------------------------------------------------------------


def test_a_check_counts(tree, tmp_path):
    report = pathfinder.check(tree)
    images, labels = pictures(7)
    assert report.faults == []
    assert report.notes == ["curv_contour_length_14: the official set has 200,000 images"]
    assert report.facts[0] == (
        f"curv_contour_length_14: 7 images of 32×32, {100 * labels.mean():.1f} % connected"
    )
    ink = images.mean(1)
    for value in (ink.min(), ink.max(), ink[labels == 0].mean(), ink[labels == 1].mean()):
        assert f" {value:.2f} " in report.facts[1]
    assert pathfinder.check(tmp_path).facts == report.facts  # the folder of a size


def test_a_check_finds_all_sizes_and_difficulties(tmp_path):
    for place, side in (("pathfinder16/curv_baseline", 16), ("pathfinder32/curv_baseline", 32)):
        pathfinder.write(tmp_path / place, *pictures(3, side), drawing(side))
    report = pathfinder.check(tmp_path)
    assert [fact.split(",")[0] for fact in report.facts[::2]] == [
        "pathfinder16/curv_baseline: 3 images of 16×16",
        "pathfinder32/curv_baseline: 3 images of 32×32",
    ]
    assert report.faults == []


def test_a_check_lists_every_fault_but_not_thousands(tree, tmp_path):
    edit(tree, "sample_1.png", "sample_8.png")
    edit(tree, "sample_2.png", "sample_9.png")
    report = pathfinder.check(tree)
    assert len(report.faults) == 2
    assert "5 images" in report.facts[0]
    pathfinder.write(tmp_path / "many", *pictures(30), SPEC)
    for path in (tmp_path / "many").rglob("*.png"):
        path.unlink()
    report = pathfinder.check(tmp_path / "many")
    assert len(report.faults) == LISTED + 1
    assert report.faults[-1].endswith("and 11 more")  # with: none can be read
    assert report.facts == []


def test_a_check_of_nothing_is_a_fault(tmp_path):
    (fault,) = pathfinder.check(tmp_path).faults
    assert fault.startswith(f"{tmp_path}: neither imgs and metadata nor folders curv_*")
    (tmp_path / "curv_baseline" / "imgs").mkdir(parents=True)
    (fault,) = pathfinder.check(tmp_path / "curv_baseline").faults
    assert "there is no metadata/0.npy" in fault


# --- images of the published generator ----------------------------------------------------------


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="no samples here")
def test_images_of_the_published_generator_are_read():
    sizes = {6: 60, 9: 60, 14: 200}
    places = {n: SAMPLE / pathfinder.DIFFICULTIES[n] for n in sizes}
    for n, place in places.items():
        found = pathfinder.read(place)
        assert found.images.shape == (sizes[n], 1024)
        assert {*found.labels.tolist()} == {0, 1}
        assert found.skipped == []
        row = (place / "metadata/1.npy").read_text().splitlines()[2].split()
        at = sum(1 for _ in (place / "metadata/0.npy").read_text().splitlines()) + 2
        with Image.open(place / row[0] / row[1]) as image:
            assert np.array_equal(np.asarray(image).ravel(), found.images[at])
        assert found.labels[at] == int(row[3])
    assert len(pathfinder.read(list(places.values())).labels) == 320
    report = pathfinder.check(SAMPLE)
    assert report.faults == []
    assert len(report.facts) == 6
