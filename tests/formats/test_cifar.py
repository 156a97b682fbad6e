"""CIFAR-10 from small files in both official layouts, and what is wrong with files that are not."""

import pickle
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from sptlib.errors import DataError
from sptlib.formats import cifar, pickles

SAMPLE = Path(__file__).parents[2].parent / "shared" / "samples" / "cifar-10-batches-py"
NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
ROW = 3073


def batch(name: str, n: int = 3) -> tuple[np.ndarray, list[int]]:
    """Planes (n, 3072) and labels, the same whenever they are asked for."""
    random = np.random.default_rng(NAMES.index(name))
    return random.integers(0, 256, (n, 3072), np.uint8), random.integers(0, 10, n).tolist()


def pickled(folder: Path, protocol: int = 2, **other) -> Path:
    """The python version, 3 images in each batch; `other` replaces what a name's file holds."""
    folder.mkdir(parents=True)
    for name in NAMES:
        data, labels = batch(name)
        whole = {b"batch_label": b"x", b"labels": labels, b"data": data, b"filenames": [b"a.png"]}
        (folder / name).write_bytes(pickle.dumps(other.get(name, whole), protocol))
    return folder


def binary(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in NAMES:
        data, labels = batch(name)
        rows = np.concatenate([np.array(labels, np.uint8)[:, None], data], axis=1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return folder


def python_2(data: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 pickled it in protocol 2: keys and pixels are its plain strings."""
    raw = data.tobytes()
    return (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b"
        b"\x87R(K\x01K" + bytes([len(data)]) + b"M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + len(raw).to_bytes(4, "little") + raw + b"tb"
        b"U\x06labels](" + b"".join(b"K" + bytes([label]) for label in labels) + b"eu."
    )  # fmt: skip


# --- reading ------------------------------------------------------------------------------------


def expected(split: str) -> tuple[np.ndarray, list[int]]:
    """Pixel by pixel, as the format's page says it: 1,024 red ones, then green, then blue."""
    names = NAMES[:-1] if split == "train" else NAMES[-1:]
    planes = np.concatenate([batch(name)[0] for name in names])
    images = np.zeros((len(planes), 32, 32, 3), np.uint8)
    for channel in range(3):
        for row in range(32):
            at = channel * 1024 + row * 32
            images[:, row, :, channel] = planes[:, at : at + 32]
    return images, [label for name in names for label in batch(name)[1]]


@pytest.mark.parametrize("where", ["", "cifar-10-batches-py", "cifar-10-batches-bin"])
@pytest.mark.parametrize("make", [pickled, binary])
def test_both_versions_from_the_folder_or_its_parent(tmp_path, make, where):
    make(tmp_path / "x" / where)
    found = cifar.read(tmp_path / "x")
    suffix = ".bin" if make is binary else ""
    place = tmp_path / "x" / where
    assert cifar.files(tmp_path / "x") == [place / (name + suffix) for name in NAMES]
    for split in ("train", "test"):
        images, labels = expected(split)
        assert np.array_equal(getattr(found, f"{split}_images"), images)
        assert getattr(found, f"{split}_labels").tolist() == labels
    for part in vars(found).values():
        assert part.dtype == np.uint8
        assert part.flags.c_contiguous
        assert part.flags.writeable  # PyTorch warns of arrays that are not


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_every_protocol(tmp_path, protocol):
    found = cifar.read(pickled(tmp_path / "x", protocol))
    assert np.array_equal(found.test_images, expected("test")[0])


def test_pickle_of_python_2(tmp_path):
    data, labels = batch("test_batch")
    path = tmp_path / "test_batch"
    path.write_bytes(python_2(data, labels))
    images, found = cifar.read_batch(path)
    assert np.array_equal(images, expected("test")[0])
    assert found.tolist() == labels


def test_labels_may_be_an_array(tmp_path):
    data, labels = batch("test_batch")
    path = tmp_path / "test_batch"
    path.write_bytes(pickle.dumps({b"data": data, b"labels": np.array(labels)}))
    assert cifar.read_batch(path)[1].tolist() == labels


def test_grey_is_the_nearest_integer():
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (1003, 32, 32, 3), np.uint8)  # more than one part
    images[0, 0, :3] = [(255, 255, 255), (0, 0, 0), (10, 200, 77)]
    found = cifar.grey(images)
    assert (found.shape, found.dtype) == ((1003, 1024), np.uint8)
    level = images.astype(np.float64) @ [0.2989, 0.5870, 0.1140]
    # the nearest: never farther than a half
    assert np.abs(found.reshape(1003, 32, 32) - level).max() <= 0.5 + 1e-9
    assert found[0, :2].tolist() == [255, 0]
    one = 10 * Fraction("0.2989") + 200 * Fraction("0.5870") + 77 * Fraction("0.1140")
    assert found[0, 2] == round(one) == 129


# --- errors -------------------------------------------------------------------------------------


def error_of(path: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        cifar.read_batch(path)
    assert caught.value.path == str(path)
    return caught.value


DATA, LABELS = batch("test_batch")


@pytest.mark.parametrize(
    ("holds", "text"),
    [
        ([1, 2], "holds a list, expected a dictionary"),
        ({b"labels": LABELS}, "no key b'data'.*found: b'labels'"),
        ({b"data": DATA}, "no key b'labels'.*found: b'data'"),
        ({"data": DATA, "labels": LABELS}, "no key b'data'.*found: 'data', 'labels'"),
        ({}, "found: none"),
        ({b"data": [1], b"labels": [1]}, "b'data' is a list, expected an array of uint8"),
        ({b"data": DATA.astype(float), b"labels": LABELS}, r"float64 \(3, 3072\), expected uint8"),
        ({b"data": DATA[:, :3000], b"labels": LABELS}, r"uint8 \(3, 3000\), expected uint8 \(N"),
        ({b"data": DATA.reshape(3, 32, 32, 3), b"labels": LABELS}, r"\(3, 32, 32, 3\), expected"),
        ({b"data": DATA[:0], b"labels": []}, "has no images"),
        ({b"data": DATA, b"labels": LABELS[:2]}, "2 labels for 3 images"),
        ({b"data": DATA, b"labels": "012"}, "b'labels' is a str, expected a list"),
        ({b"data": DATA, b"labels": [1, 2.0, 3]}, r"b'labels'\[1\] is a float, expected a whole"),
        ({b"data": DATA, b"labels": [1, True, 3]}, r"b'labels'\[1\] is a bool, expected a whole"),
        ({b"data": DATA, b"labels": [1, 2, 10]}, r"b'labels'\[2\] is 10, expected 0 … 9"),
        ({b"data": DATA, b"labels": [-1, 2, 3]}, r"b'labels'\[0\] is -1, expected 0 … 9"),
        ({b"data": DATA, b"labels": [1 << 20000, 2, 3]}, r"\[0\] is huge, expected 0 … 9"),
    ],
)
def test_batch_with_other_content(tmp_path, holds, text):
    path = tmp_path / "test_batch"
    path.write_bytes(pickle.dumps(holds, 2))
    error = error_of(path)
    with pytest.raises(DataError, match=text):
        raise error


def test_attack_is_refused_with_the_name_of_its_file(tmp_path):
    marker = tmp_path / "executed"
    folder = pickled(tmp_path / "x")
    (folder / "data_batch_3").write_bytes(f"cos\nmkdir\n(V{marker}\ntR.".encode())
    with pytest.raises(DataError, match=r"data_batch_3 .*asks for the function os.mkdir; refused"):
        cifar.read(folder)
    (fault,) = cifar.check(folder).faults
    assert "data_batch_3" in fault
    assert "os.mkdir" in fault
    assert not marker.exists()


def test_cut_off_pickle_says_where(tmp_path):
    path = pickled(tmp_path / "x") / "data_batch_2"
    raw = path.read_bytes()
    path.write_bytes(raw[:5000])
    error = error_of(path)
    assert error.byte == 5000
    assert "cut off" in str(error)


@pytest.mark.parametrize("name", ["test_batch", "test_batch.bin"])
def test_empty_and_missing_files(tmp_path, name):
    path = tmp_path / name
    assert "missing" in str(error_of(path))
    path.write_bytes(b"")
    error = error_of(path)
    assert (error.byte, "is empty" in str(error)) == (0, True)
    path.unlink()
    path.mkdir()
    assert "cannot be read" in str(error_of(path))


def test_binary_rows(tmp_path):
    path = binary(tmp_path / "x") / "data_batch_1.bin"
    raw = path.read_bytes()
    path.write_bytes(raw[:-1])
    error = error_of(path)
    assert error.byte == 2 * ROW
    assert "no multiple of 3073" in str(error)
    path.write_bytes(raw[:ROW] + b"\x0a" + raw[ROW + 1 :])
    error = error_of(path)
    assert error.byte == ROW
    assert "label is 10" in str(error)
    path.write_bytes(b"\x01\x02")
    assert error_of(path).byte == 0


def test_missing_batches_and_folders(tmp_path):
    with pytest.raises(DataError, match=r"no CIFAR-10 here.*cifar-10-batches-py"):
        cifar.read(tmp_path)
    assert "no CIFAR-10 here" in cifar.check(tmp_path / "nowhere").faults[0]
    folder = pickled(tmp_path / "x")
    (folder / "data_batch_4").unlink()
    (folder / "test_batch").unlink()
    with pytest.raises(DataError, match="data_batch_4: missing"):
        cifar.read(folder)
    report = cifar.check(folder)
    assert [Path(fault.split(": ")[0]).name for fault in report.faults] == [
        "data_batch_4",
        "test_batch",
    ]
    assert report.facts[0].startswith("train: 12 images")
    assert report.facts[1].startswith("test: 0 images")


# --- check --------------------------------------------------------------------------------------


def test_check_goes_on_after_a_fault_and_stops_listing_them(tmp_path):
    folder = binary(tmp_path / "x")
    path = folder / "data_batch_1.bin"
    raw = bytearray(path.read_bytes() * 9)
    raw[::ROW] = bytes([99]) * 27
    path.write_bytes(bytes(raw) + b"\x00")
    (folder / "test_batch.bin").write_bytes(b"")
    faults = cifar.check(folder).faults
    assert len(faults) == 21
    assert f"data_batch_1.bin (byte {19 * ROW})" in faults[19]
    assert faults[20] == "and 9 more"  # of 27 labels, one row cut off, one empty file


def test_check_of_a_whole_folder(tmp_path):
    report = cifar.check(pickled(tmp_path / "cifar-10-batches-py").parent)
    counts = np.bincount(expected("train")[1], minlength=10)
    assert report.facts[0] == f"train: 15 images; of classes 0 … 9: {' '.join(map(str, counts))}"
    assert report.notes == [
        "train: 15 images; the official set has 50,000",
        "test: 3 images; the official set has 10,000",
    ]
    assert report.faults == []


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="no samples here")
def test_sample():
    found = cifar.read(SAMPLE)
    assert found.train_images.shape == (150, 32, 32, 3)
    assert found.test_images.shape == (50, 32, 32, 3)
    assert len(cifar.read_batch(SAMPLE / "data_batch_5")[1]) == 30
    # photographs: neighbouring pixels are alike, in rows and in columns, other ones are not
    pixels = found.train_images.astype(int)
    steps = [np.abs(np.diff(pixels, axis=axis)).mean() for axis in (1, 2)]
    assert max(steps) < 0.4 * np.abs(pixels[1:] - pixels[:-1]).mean()
    meta = pickles.load("batches.meta", (SAMPLE / "batches.meta").read_bytes())
    assert [name.decode() for name in meta[b"label_names"]] == list(cifar.CLASSES)
    report = cifar.check(SAMPLE.parent)
    assert report.faults == []
    assert len(report.notes) == 2
