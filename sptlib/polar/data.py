"""Posts from files: the public layout of POLAR and that of its competition.

Public: ``{train,dev,test}/{lang}.csv`` with all labels in one file, some languages without
manifestations. Competition: ``subtask{1,2,3}/{train,dev}/{lang}.csv`` with the labels of one
subtask each, empty where they are not published. UTF-8 with or without byte order mark, LF or CRLF,
quoted fields with line breaks.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import pandas as pd
import torch

from sptlib.errors import ConfigError, DataError, unknown
from sptlib.places import data_home
from sptlib.polar import generator as synthetic
from sptlib.polar.augment import KINDS
from sptlib.polar.config import PolarTask
from sptlib.polar.files import content, read_file
from sptlib.polar.labels import LABELS, LANGUAGES, SUBTASKS, Subtask, subtask
from sptlib.seeding import generator

SPLITS = ("train", "dev", "test")
#: environment variable that names the folder of the posts
VARIABLE = "SPTLIB_POLAR"


def home() -> Path:
    """``$SPTLIB_POLAR``, else ``polar`` among the data (`sptlib.places.data_home`)."""
    named = os.environ.get(VARIABLE, "").strip()
    return Path(named).expanduser() if named else data_home() / "polar"


@contextmanager
def at(folder: str | Path) -> Iterator[None]:
    """Within the block, also in processes that are started there, this folder is `home`."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


class Unlabelled(DataError):  # noqa: N818 (nothing is wrong)
    """A split without the labels of a subtask, which is no fault of a dev or test split."""


@dataclass(frozen=True)
class Posts:
    """The posts of one split.

    Attributes:
        table: ``id``, ``lang``, ``text`` and the label columns (Int8; missing = not labelled), in
            the order of languages and of their files.
        notes: what was skipped, and why.
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()


def layout(folder: Path, number: int) -> Path:
    """The folder that holds the splits, in either layout; ``number`` is the subtask.

    Raises:
        DataError: if there is none.
    """
    if not folder.is_dir():
        raise DataError(
            folder, "there is no such folder; `sptlib polar make FOLDER` writes synthetic posts"
        )
    competition = folder / f"subtask{number}"
    for place in (competition, folder):
        if any((place / split).is_dir() for split in SPLITS):
            return place
    if any((folder / f"subtask{n}").is_dir() for n in SUBTASKS):
        raise DataError(folder, f"there is no subtask{number} in it")
    raise DataError(
        folder, "no posts: expected train/LANG.csv and dev/LANG.csv, or subtask1/train/LANG.csv"
    )


def splits(folder: Path, number: int = 1) -> tuple[str, ...]:
    """The splits that a folder has."""
    place = layout(folder, number)
    return tuple(s for s in SPLITS if any((place / s).glob("*.csv")))


def read(
    folder: Path, split: str, number: int, languages: Sequence[str] = (), labelled: bool = True
) -> Posts:
    """The posts of a split, for one subtask.

    Args:
        folder: in either layout.
        split: train, dev or test.
        number: of the subtask.
        languages: codes; empty = all that the folder has.
        labelled: leave out languages without this subtask's labels, with a note; posts without are
            refused then. False = posts to predict: labels may be empty, and languages without the
            columns are left out if others have them.

    Raises:
        DataError: naming file and line or byte, for whatever is not as it should be.
        ConfigError: for a language that the folder, or the task, does not have.
    """
    place = layout(folder, number) / split
    files = {path.stem: path for path in sorted(place.glob("*.csv"))}
    if not files:
        raise DataError(place, "there is no LANG.csv in it")
    for name in files:
        if name not in LANGUAGES:
            raise DataError(files[name], str(unknown("language", name, LANGUAGES)))
    for name in languages:
        if name not in files:
            raise unknown(f"language of {place}", name, files)
    asked, tables, notes, bare = subtask(number), [], [], []
    for name in dict.fromkeys(languages or files):
        table = read_file(files[name], name)
        missing = [label for label in asked.labels if label not in table]
        for label in LABELS:  # one shape for all languages
            if label not in table:
                table[label] = pd.array([pd.NA] * len(table), dtype="Int8")
        without = bool(missing) or table[list(asked.labels)].isna().any(axis=1).all()
        if missing and len(missing) < len(asked.labels):
            raise DataError(files[name], f"the column {missing[0]!r} is missing", line=1)
        if labelled and without:
            why = "has no" if missing else "has empty"
            notes.append(
                f"{name} ({LANGUAGES[name]}) {why} {asked.name} labels: left out of subtask "
                f"{number}"
            )
            continue
        if labelled:
            _all_labelled(files[name], table, asked)
        (bare if missing else tables).append(table)
    if tables:
        notes += [
            f"{t['lang'].iloc[0]} ({LANGUAGES[t['lang'].iloc[0]]}) has no {asked.name} labels: "
            f"left out of subtask {number}"
            for t in bare
        ]
    elif bare:
        tables = bare
    else:
        raise Unlabelled(place, f"no language has labels for subtask {number} ({asked.name})")
    columns = ["id", "lang", "text", *LABELS]
    return Posts(pd.concat(tables, ignore_index=True)[columns], tuple(notes))


def _all_labelled(path: Path, table: pd.DataFrame, asked: Subtask) -> None:
    some = table[list(asked.labels)].isna().any(axis=1)
    if some.any():
        row = table.loc[some.idxmax(), "id"]
        raise DataError(path, f"the post {row!r} has no {asked.name} label, others have")


def unique(table: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The posts without repeated texts of a language, and how many went; the first one stays."""
    again = table.duplicated(["lang", "text"])
    return table[~again].reset_index(drop=True), int(again.sum())


@dataclass(frozen=True)
class Data:
    """All splits for one subtask.

    Attributes:
        train: posts to learn from; no text is twice in them.
        val: held out of the training posts; picks checkpoint and thresholds.
        test: the dev or test posts, whole and in their order.
        notes: what was left out.
    """

    train: pd.DataFrame
    val: pd.DataFrame
    test: pd.DataFrame
    notes: tuple[str, ...] = field(default=())


def hold_out(
    table: pd.DataFrame, number: int, most: int, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split training posts into those to learn from and those held out.

    Of subtask 1 at most ``most`` for each label of each language are held out, of the others at
    most ``most`` for each language (Macko et al. 2026); never more than a fifth of a group, which
    matters for small sets and is an addition of this project. Copies, as `sptlib polar augment`
    writes them, are never held out, and go where their post does not stay to learn from.

    Returns:
        To learn from, held out; each in the order of the table.

    Raises:
        DataError: if nothing is left on one side.
    """
    by = ["lang", "polarization"] if number == 1 else ["lang"]
    chosen: list[int] = []
    source = _sources(table)
    for name, rows in table[source.isna()].groupby(by, sort=True):
        n = min(most, len(rows) // 5)
        order = torch.randperm(len(rows), generator=generator(seed, "held out", *map(str, name)))
        chosen += rows.index[order[:n].tolist()].tolist()
    if not chosen:
        raise DataError("train", f"{len(table)} posts are too few to hold out some for validation")
    held = table.index.isin(chosen)
    names = table["lang"] + " " + table["id"].astype(str)
    learn = ~held & ~(table["lang"] + " " + source.fillna("")).isin(names[held]).to_numpy()
    return table[learn].reset_index(drop=True), table[held].reset_index(drop=True)


def _sources(table: pd.DataFrame) -> pd.Series:
    """Of each copy the id of its post, if that is there, too; else missing."""
    ids = table["id"].astype(str)
    stems = ids.str.extract(rf"^(.+)_(?:{'|'.join(KINDS)})$")[0]
    known = set(table["lang"] + " " + ids)
    return stems.where((table["lang"] + " " + stems.fillna("")).isin(known))


def load(task: PolarTask, seed: int) -> Data:
    """The splits of a task.

    Args:
        task: which posts.
        seed: the run's; ``task.data_seed`` wins where it is set.

    Raises:
        DataError: if a file is missing or is not as it should be.
        ConfigError: for a language that is not there.
    """
    seed = seed if task.data_seed is None else task.data_seed
    if task.source == "files":
        return from_folder(home(), task, seed)
    names = task.languages or synthetic.languages()
    notes = []
    if task.subtask == 3:
        notes = [
            f"{name} ({LANGUAGES[name]}) has no manifestation labels: left out of subtask 3"
            for name in names
            if name in synthetic.NO_MANIFESTATION
        ]
        names = [name for name in names if name not in synthetic.NO_MANIFESTATION]
        if not names:
            raise ConfigError("no language is left that has manifestation labels")
    sizes = {"test": task.n_test, "val": task.n_val, "train": task.n_train}
    made = [synthetic.splits(name, sizes, seed) for name in names]
    train, val, test = (
        pd.concat([one[split] for one in made], ignore_index=True)
        for split in ("train", "val", "test")
    )
    return Data(train, val, test, tuple(notes))


def from_folder(folder: Path, task: PolarTask, seed: int) -> Data:
    """The splits of a folder: what is held out of its training posts, and its dev or test posts.

    Raises:
        DataError: as `read`.
    """
    train = read(folder, "train", task.subtask, task.languages)
    once, n_again = unique(train.table)
    notes = [*train.notes]
    if n_again:
        notes.append(f"{n_again} training posts were there twice")
    test = _labelled(folder, task)
    if test is not None:
        notes += [note for note in test.notes if note not in notes]
        here, there = set(once["lang"]), set(test.table["lang"])
        for names, text in ((there - here, "no training"), (here - there, "no test")):
            notes += [f"{name} ({LANGUAGES[name]}) has {text} posts" for name in sorted(names)]
        rows = test.table[test.table["lang"].isin(here)].reset_index(drop=True)
        if not len(rows):
            raise DataError(folder, "train has none of the languages of the test posts")
        seen = pd.MultiIndex.from_frame(rows[["lang", "text"]])
        again = pd.MultiIndex.from_frame(once[["lang", "text"]]).isin(seen)
        if again.any():
            notes.append(f"{again.sum()} training posts are test posts, too, and were left out")
            once = once[~again].reset_index(drop=True)
    learn, held = hold_out(once, task.subtask, task.held_out, seed)
    if test is None:
        notes.append("no labelled dev or test posts; the scores are those of the held-out ones")
        return Data(learn, held, held, tuple(notes))
    return Data(learn, held, rows, tuple(notes))


def _labelled(folder: Path, task: PolarTask) -> Posts | None:
    """The test posts, else the dev posts, of which some have labels."""
    for split in reversed(splits(folder, task.subtask)):
        if split == "train":
            continue
        there = {path.stem for path in (layout(folder, task.subtask) / split).glob("*.csv")}
        wanted = tuple(name for name in task.languages if name in there)
        if task.languages and not wanted:
            continue
        try:
            return read(folder, split, task.subtask, wanted)
        except Unlabelled:
            continue
    return None


def fingerprint() -> str:
    """SHA-256 of all files in `home`; raises `DataError` if there are none."""
    root = home().resolve()
    files = sorted(
        path
        for part in (root, *(root / f"subtask{n}" for n in SUBTASKS))
        for split in SPLITS
        for path in (part / split).glob("*.csv")
    )
    if not files:
        layout(root, 1)
        raise DataError(root, "there is no LANG.csv in it")
    stats = [path.stat() for path in files]
    state = tuple((str(f), s.st_size, s.st_mtime_ns) for f, s in zip(files, stats, strict=True))
    return _fingerprint(root, state)


@lru_cache(maxsize=8)
def _fingerprint(root: Path, state: tuple[tuple[str, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for path in (Path(name) for name, *_ in state):
        raw = content(path)
        digest.update(f"{path.relative_to(root)} {len(raw)}\n".encode())
        digest.update(raw)
    return digest.hexdigest()


def write(table: pd.DataFrame, folder: Path, split: str) -> list[Path]:
    """Write posts in the public layout, a file per language; returns the files.

    Label columns that are empty for a whole language are left out of its file.
    """
    from sptlib.formats.base import writing

    paths = []
    for name, rows in table.groupby("lang", sort=True):
        labels = [label for label in LABELS if label in rows and rows[label].notna().any()]
        path = folder / split / f"{name}.csv"
        content = rows[["id", "text", *labels]].to_csv(index=False, lineterminator="\r\n")
        with writing(path) as file:
            file.write(content.encode())
        paths.append(path)
    return paths
