"""CIFAR-10, the "python version" (pickles) and the "binary version" (Krizhevsky 2009).

The pickles are read by `sptlib.formats.pickles`, which runs nothing that they ask for.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sptlib.errors import DataError
from sptlib.formats import pickles
from sptlib.formats.base import Report, listed

FOLDERS = ("cifar-10-batches-py", "cifar-10-batches-bin")
TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = "test_batch"
OFFICIAL = {"train": 50_000, "test": 10_000}
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
N_CLASSES = len(CLASSES)
KEYS = (b"data", b"labels")
PIXELS = 32 * 32
#: bytes of a row of the binary version: the label, then the red, green and blue planes
ROW = 1 + 3 * PIXELS
#: red, green and blue in 1/10,000
LUMA = (2989, 5870, 1140)


@dataclass(frozen=True)
class Cifar:
    """Images (N, 32, 32, 3) uint8, channels red, green, blue; labels (N,) uint8 in 0 … 9."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def read(folder: Path) -> Cifar:
    """All images of a folder: ``cifar-10-batches-py``, ``cifar-10-batches-bin``, or their parent.

    Batches may have any size; the official ones have 10,000 images.

    Raises:
        DataError: for a missing, empty, damaged or refused batch.
    """
    batches = {name: read_batch(path) for name, path in _paths(Path(folder)).items()}
    train_images, train_labels = zip(*(batches[name] for name in TRAIN), strict=True)
    return Cifar(np.concatenate(train_images), np.concatenate(train_labels), *batches[TEST])


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """One batch: binary if the name ends in ``.bin``, else a pickle.

    Returns:
        Images (N, 32, 32, 3) and labels (N,), both uint8.

    Raises:
        DataError: if the file is missing, empty, damaged, refused, or no CIFAR-10 batch.
    """
    images, labels, faults = _batch(Path(path))
    if faults:
        raise faults[0]
    return images, labels


def files(folder: Path) -> list[Path]:
    """The six files that `read` reads, whether or not all of them are there.

    Raises:
        DataError: if none is there.
    """
    return list(_paths(Path(folder)).values())


def grey(images: np.ndarray) -> np.ndarray:
    """Grey levels 0.2989 R + 0.5870 G + 0.1140 B, rounded to the nearest integer.

    The weights are those of TensorFlow's ``rgb_to_grayscale``, which the Long Range Arena (Tay et
    al. 2021) calls. TensorFlow returns to integers by ``int(level / 255 · 255.5)``, so that its
    levels are up to one lower than these.

    Args:
        images: (N, 32, 32, 3) uint8.

    Returns:
        (N, 1024) uint8, row by row.
    """
    flat = images.reshape(len(images), PIXELS, 3)
    levels = np.empty((len(images), PIXELS), np.uint8)
    for start in range(0, len(images), 1000):  # in parts: the sums are four times as large
        part = flat[start : start + 1000].astype(np.uint32)
        total = sum(part[..., c] * np.uint32(weight) for c, weight in enumerate(LUMA))
        levels[start : start + 1000] = (total + 5000) // 10_000  # whole numbers: no float error
    return levels


def check(folder: Path) -> Report:
    """Counts and label balance of both splits, and every fault of every batch."""
    report = Report()
    try:
        paths = _paths(Path(folder))
    except DataError as error:
        report.faults.append(str(error))
        return report
    counts = {split: np.zeros(N_CLASSES, int) for split in OFFICIAL}
    sizes = dict.fromkeys(OFFICIAL, 0)
    for name, path in paths.items():
        try:
            _, labels, faults = _batch(path)
        except DataError as error:
            report.faults.append(str(error))
            continue
        report.faults += map(str, faults)
        split = "test" if name == TEST else "train"
        sizes[split] += len(labels)
        counts[split] += np.bincount(labels[labels < N_CLASSES], minlength=N_CLASSES)
    for split, of_class in counts.items():
        n = sizes[split]
        report.facts.append(
            f"{split}: {n:,} images; of classes 0 … 9: {' '.join(map(str, of_class))}"
        )
        if n < OFFICIAL[split]:
            report.notes.append(f"{split}: {n:,} images; the official set has {OFFICIAL[split]:,}")
    report.facts.append("an image is 3,072 bytes, 1,024 grey pixels: nothing is truncated")
    report.faults = listed(report.faults)
    return report


def _paths(folder: Path) -> dict[str, Path]:
    """Where the six batches are or should be: in the first layout of which there is any."""
    for place in (folder, *(folder / name for name in FOLDERS)):
        for suffix in ("", ".bin"):
            paths = {name: place / (name + suffix) for name in (*TRAIN, TEST)}
            if any(path.is_file() for path in paths.values()):
                return paths
    raise DataError(
        folder,
        "no CIFAR-10 here: expected data_batch_1 … 5 and test_batch (python version) or the same "
        f"with .bin (binary version), here or in {' or '.join(FOLDERS)}",
    )


def _batch(path: Path) -> tuple[np.ndarray, np.ndarray, list[DataError]]:
    """Images, labels, and the faults that do not keep one from looking at the rest."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(
            path, "missing; expected are five training batches and a test batch"
        ) from error
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror or error})") from error
    if not raw:
        raise DataError(path, "the file is empty; download it again", byte=0)
    planes, labels, faults = (_binary if path.suffix == ".bin" else _pickled)(path, raw)
    images = planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels, faults


def _binary(path: Path, raw: bytes) -> tuple[np.ndarray, np.ndarray, list[DataError]]:
    whole, rest = divmod(len(raw), ROW)
    rows = np.frombuffer(raw, np.uint8, whole * ROW).reshape(whole, ROW)
    faults = [
        DataError(path, f"the label is {rows[i, 0]}, expected 0 … 9", byte=int(i) * ROW)
        for i in np.flatnonzero(rows[:, 0] >= N_CLASSES)
    ]
    if rest:
        faults.append(
            DataError(
                path,
                f"{len(raw):,} bytes are no multiple of {ROW} (label and 3,072 pixels): the last "
                f"row has {rest}; download it again",
                byte=whole * ROW,
            )
        )
    return rows[:, 1:], rows[:, 0].copy(), faults  # not a view of what may not be written


def _pickled(path: Path, raw: bytes) -> tuple[np.ndarray, np.ndarray, list[DataError]]:
    batch = pickles.load(path, raw)
    if not isinstance(batch, dict):
        raise DataError(path, f"holds a {type(batch).__name__}, expected a dictionary")
    for key in KEYS:
        if key not in batch:
            found = ", ".join(repr(k[:30]) for k in list(batch)[:10]) or "none"
            raise DataError(path, f"no key {key!r}; expected b'data', b'labels'; found: {found}")
    data, labels = map(pickles.plain, map(batch.get, KEYS))
    if not isinstance(data, np.ndarray):
        raise DataError(path, f"b'data' is a {type(data).__name__}, expected an array of uint8")
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * PIXELS:
        raise DataError(path, f"b'data' is {data.dtype} {data.shape}, expected uint8 (N, 3072)")
    if not len(data):
        raise DataError(path, "b'data' has no images")
    if isinstance(labels, np.ndarray) and labels.ndim == 1:
        labels = labels.tolist()
    if not isinstance(labels, list):
        raise DataError(path, f"b'labels' is a {type(labels).__name__}, expected a list of numbers")
    faults = []
    if len(labels) != len(data):
        faults.append(DataError(path, f"{len(labels):,} labels for {len(data):,} images"))
    clean = np.full(len(labels), 255, np.uint8)
    for i, label in enumerate(labels):
        if type(label) is not int:
            text = f"b'labels'[{i}] is a {type(label).__name__}, expected a whole number"
            faults.append(DataError(path, text))
        elif not 0 <= label < N_CLASSES:
            value = f"{label}" if abs(label) < 10**6 else "huge"  # it may have a million digits
            faults.append(DataError(path, f"b'labels'[{i}] is {value}, expected 0 … 9"))
        else:
            clean[i] = label
    return data, clean, faults
