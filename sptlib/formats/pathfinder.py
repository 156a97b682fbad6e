"""The official tree of Pathfinder images, as in the Long Range Arena's release (Tay et al. 2021).

One difficulty is a folder ``{imgs/<b>/sample_<i>.png, metadata/<b>.npy}``, b the number of a batch.
Metadata are text rows, whatever their name says, of eleven fields between spaces: folder and file
of the image, its number in the batch, label, continuity, dashes per curve and per distractor,
length and thickness of a dash, gap, number of contrasts. Only the first, second and fourth are
read. Today's version of the published generator saves the same rows as an array of strings.
"""

import io
import re
import tokenize
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
from PIL import Image, UnidentifiedImageError

from sptlib.errors import ConfigError, DataError
from sptlib.formats.base import Report, lines, listed, refuse_unfinished, writing
from sptlib.generators.pathfinder_layout import Drawing

#: folders of the published difficulties, by dashes per curve
DIFFICULTIES = {
    6: "curv_baseline",
    9: "curv_contour_length_9",
    14: "curv_contour_length_14",
}


def difficulty(contour_length: int) -> str:
    """The folder of a difficulty; the shortest published contours have a name of their own."""
    return DIFFICULTIES.get(contour_length, f"curv_contour_length_{contour_length}")


#: images of a difficulty
OFFICIAL = 200_000

#: pixels per side; more is no Pathfinder image, and is not unpacked
MAX_SIDE = 1024

#: what Pillow raises for a damaged PNG
BROKEN = (UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError, zlib.error,
          Image.DecompressionBombError)  # fmt: skip

Progress = Callable[[int, int], None]
Fault = Callable[[DataError], None]


@dataclass(frozen=True)
class Tree:
    """Images (N, side * side) uint8, row by row; labels (N,) uint8, 1 = connected.

    Attributes:
        skipped: what was left out, ``difficulty/imgs/0/sample_172.png: reason``.
        broken: the files of the images among them.
    """

    images: np.ndarray
    labels: np.ndarray
    skipped: list[str] = field(default_factory=list)
    broken: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class _Row:
    """A row of metadata: the image, its path below the folder, its label; where that stands."""

    image: Path
    below: str
    label: int
    metadata: Path
    line: int | None
    prefix: str

    def error(self, message: str) -> DataError:
        return DataError(self.metadata, self.prefix + message, line=self.line)


def read(folder: Path | Sequence[Path], progress: Progress | None = None) -> Tree:
    """All images of a difficulty, or of several, by batch number and then row.

    A broken PNG is skipped, and said: the official release has one
    (``curv_baseline/imgs/0/sample_172.png``). So is a metadata file whose name is no number.

    Args:
        folder: of a difficulty, e.g. ``pathfinder32/curv_contour_length_14``; or several of them.
        progress: called as ``progress(images, images in all)``.

    Raises:
        DataError: for anything else that is wrong, with file and line: no such folder, too few
            fields, a label other than 0 and 1, an image that is missing, outside of the folder, of
            another size than the first, or not 8-bit grey; pickled metadata; no image at all.
    """

    def fail(error: DataError) -> None:
        raise error

    folders = [Path(folder)] if isinstance(folder, str | Path) else [Path(f) for f in folder]
    return _read(folders, fail, progress)


def write(
    folder: Path,
    images: np.ndarray,
    labels: np.ndarray,
    drawing: Drawing,
    batch_size: int = 1000,
    progress: Progress | None = None,
) -> None:
    """Write a difficulty in the official layout; what is there of the same batches is replaced.

    Args:
        folder: it is made.
        images: (N, side * side) or (N, side, side) uint8.
        labels: (N,), each 0 or 1.
        drawing: what was drawn, for the metadata; several gaps are written as ``2/3``.
        batch_size: images per batch.
        progress: called as ``progress(images, images in all)``.

    Raises:
        ConfigError: if sizes do not agree, there are no images, or a label is neither 0 nor 1.
        DataError: if the folder holds batches that would remain beside these.
    """
    images, labels = np.asarray(images), np.asarray(labels)
    n, side = len(labels), drawing.side
    if n < 1 or batch_size < 1:
        raise ConfigError(f"{n} images in batches of {batch_size}: at least 1 of each is needed")
    if images.dtype != np.uint8 or images.shape not in ((n, side * side), (n, side, side)):
        raise ConfigError(
            f"images are {images.dtype} {images.shape}; expected uint8 ({n}, {side * side})"
        )
    if labels.shape != (n,) or not np.isin(labels, (0, 1)).all():
        raise ConfigError("labels are one per image, each 0 or 1")
    n_batches = -(-n // batch_size)
    others = [p for b, p in _numbered(folder) if b is None or b >= n_batches]
    if others:
        raise DataError(
            others[0], f"belongs to another set than the {n_batches} batches; remove {folder}"
        )
    gap = "/".join(f"{g:g}" for g in drawing.gaps)
    about = (f"{float(drawing.continuity)} {drawing.contour_length} {drawing.distractor_length} "
             f"{drawing.dash:g} {drawing.thickness:g} {gap} 1")  # fmt: skip
    images = images.reshape(n, side, side)
    for batch in range(n_batches):
        place = folder / "imgs" / str(batch)
        place.mkdir(parents=True, exist_ok=True)
        rows = []
        for i in range(min(batch_size, n - batch * batch_size)):
            at = batch * batch_size + i
            Image.fromarray(images[at]).save(place / f"sample_{i}.png")
            rows.append(f"imgs/{batch} sample_{i}.png {i} {int(labels[at])} {about}\n")
        # after its images, and at once: a batch that is listed is whole
        with writing(folder / "metadata" / f"{batch}.npy") as file:
            file.write("".join(rows).encode())
        if progress is not None:
            progress(min(n, (batch + 1) * batch_size), n)


def check(folder: Path) -> Report:
    """Counts, balance and ink of a difficulty, of all in ``pathfinder32``, or of all sizes."""
    report, folder = Report(), Path(folder)
    found = [folder]
    if not any((folder / part).is_dir() for part in ("imgs", "metadata")):
        found = sorted({*folder.glob("curv_*/"), *folder.glob("pathfinder*/curv_*/")})
    if not found:
        report.faults.append(
            f"{folder}: neither imgs and metadata nor folders curv_* are here; expected "
            "e.g. curv_contour_length_14/{imgs/0/sample_0.png, metadata/0.npy}"
        )
    for place in found:
        name = place.relative_to(folder).as_posix() if place != folder else place.name
        faults: list[DataError] = []
        tree = _read([place], faults.append, None)
        report.faults += listed(faults)
        report.notes += [f"skipped {text}" for text in tree.skipped]
        n = len(tree.labels)
        if not n:
            continue
        side = int(tree.images.shape[1] ** 0.5)
        # in parts: a float of every pixel would need eight times the memory
        ink = np.concatenate([part.mean(1) for part in np.array_split(tree.images, n // 5000 + 1)])
        by_label = " and ".join(
            f"{ink[tree.labels == k].mean():.2f} with label {k}" for k in np.unique(tree.labels)
        )
        report.facts += [
            f"{name}: {n:,} images of {side}×{side}, {100 * tree.labels.mean():.1f} % connected",
            f"{name}: mean brightness of an image {ink.min():.2f} to {ink.max():.2f} of 255, on "
            f"average {by_label}",
        ]
        if n + len(tree.skipped) < OFFICIAL:
            report.notes.append(f"{name}: the official set has {OFFICIAL:,} images")
    return report


# --- reading ------------------------------------------------------------------------------------


def _read(folders: Sequence[Path], fault: Fault, progress: Progress | None) -> Tree:
    """What `read` does; each fault is given to `fault`, which may raise it or go on."""
    skipped: list[str] = []
    rows = [row for folder in folders for row in _rows(folder, skipped, fault)]
    images = np.zeros((0, 0), np.uint8)
    kept: list[int] = []
    broken: list[Path] = []
    for i, row in enumerate(rows):
        try:
            side = int(images.shape[1] ** 0.5) if len(images) else None
            pixels = _pixels(row, side)
            if side is None:
                images = np.empty((len(rows), pixels.size), np.uint8)
            images[len(kept)] = pixels.ravel()
            kept.append(row.label)
        except DataError as error:
            fault(error)
        except BROKEN as error:
            # the text of this error has a memory address in it, and no more to say
            unknown = isinstance(error, UnidentifiedImageError)
            reason = "not recognised" if unknown else str(error) or type(error).__name__
            skipped.append(f"{row.below}: broken PNG ({reason})")
            broken.append(row.image)
        if progress is not None and ((i + 1) % 1000 == 0 or i + 1 == len(rows)):
            progress(i + 1, len(rows))
    if rows and not kept:
        fault(DataError(folders[0], f"none of {len(rows)} images can be read"))
    return Tree(images[: len(kept)], np.array(kept, np.uint8), skipped, broken)


def _pixels(row: _Row, side: int | None) -> np.ndarray:
    """An image (side, side); raises one of `BROKEN` if it is damaged."""
    try:
        raw = row.image.read_bytes()
    except FileNotFoundError as error:
        raise row.error(f"there is no image {row.below}") from error
    except (OSError, ValueError) as error:  # e.g. a folder, or a name that no file can have
        raise row.error(f"{row.below} cannot be read ({error})") from error
    with Image.open(io.BytesIO(raw), formats=["PNG"]) as image:
        width, height = image.size
        if image.mode != "L":
            raise row.error(f"{row.below} has mode {image.mode}; expected 8-bit grey (L)")
        if width != height or width != (side or width) or width > MAX_SIDE:
            wanted = f"{side}×{side}, as the first image" if side else f"a square, ≤ {MAX_SIDE}"
            raise row.error(f"{row.below} has {width}×{height} pixels; expected {wanted}")
        return np.asarray(image)


def _numbered(folder: Path) -> list[tuple[int | None, Path]]:
    """The metadata files with their numbers, in order; None for one whose name is no number."""
    found = []
    for path in folder.glob("metadata/*.npy"):
        if not path.name.startswith("."):  # a draft that an interrupted writer left
            found.append((int(path.stem) if re.fullmatch(r"[0-9]+", path.stem) else None, path))
    return sorted(found, key=lambda f: (f[0] is None, f[0] or 0, f[1].name))


def _rows(folder: Path, skipped: list[str], fault: Fault) -> Iterator[_Row]:
    numbered = _numbered(folder)
    if not any(number is not None for number, _ in numbered):
        fault(DataError(folder, "there is no metadata/0.npy, … here; expected a difficulty, e.g. "
                        "pathfinder32/curv_contour_length_14"))  # fmt: skip
    try:
        refuse_unfinished(folder)
    except DataError as error:
        fault(error)
    for number, path in numbered:
        if number is None:
            skipped.append(f"{folder.name}/metadata/{path.name}: its name is no batch number")
            continue
        n = 0
        try:
            for line, prefix, fields in _fields(path):
                n += 1
                try:
                    yield _row(folder, path, line, prefix, fields)
                except DataError as error:
                    fault(error)
            if not n:
                raise DataError(path, "is empty; expected a row per image")
        except DataError as error:
            fault(error)


def _row(folder: Path, path: Path, line: int | None, prefix: str, fields: list[str]) -> _Row:
    def error(message: str) -> DataError:
        return DataError(path, prefix + message, line=line)

    if len(fields) < 4:
        raise error(
            f"{len(fields)} fields; expected at least 4: folder, file, number and label of an image"
        )
    below = f"{fields[0]}/{fields[1]}"
    windows = PureWindowsPath(below)  # knows drives and both slashes
    if PurePosixPath(below).is_absolute() or windows.anchor or ".." in windows.parts:
        raise error(f"{below!r} points outside of {folder}")
    if fields[3] not in ("0", "1"):
        kind = "neither 0 nor 1" if re.fullmatch(r"[+-]?[0-9]+", fields[3]) else "no integer"
        raise error(f"label {fields[3]!r} is {kind}")
    return _Row(folder / below, f"{folder.name}/{below}", int(fields[3]), path, line, prefix)


def _fields(path: Path) -> Iterator[tuple[int | None, str, list[str]]]:
    """The rows of a metadata file: line (of text), prefix for messages (of an array), fields."""
    try:
        with path.open("rb") as file:
            start = file.read(6)
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror or error})") from error
    if start[:1] == b"\x80":
        raise DataError(path, _PICKLE)
    if start != b"\x93NUMPY":
        for line, text in lines(path):
            if text.strip():
                yield line, "", text.split()
        return
    try:  # mapped: a header that promises more than the file has is refused
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, OverflowError, tokenize.TokenError) as error:
        pickled = "pickle" in str(error) or "Python objects" in str(error)
        message = _PICKLE if pickled else f"damaged array of metadata ({error})"
        raise DataError(path, message) from error
    if rows.ndim != 2 or rows.dtype.kind not in "US":
        raise DataError(
            path, f"array of {rows.dtype} {rows.shape}; expected strings, a row per image"
        )
    for number, row in enumerate(rows):
        try:
            yield None, f"row {number}: ", row.astype(str).tolist()
        except UnicodeDecodeError as error:
            raise DataError(path, f"row {number}: bytes that are not ASCII text") from error


_PICKLE = (
    "holds pickled Python objects, which can run any code when they are read, so that they are "
    "not; expected text rows, or an array of strings: np.save(path, np.array(rows, dtype=str))"
)
