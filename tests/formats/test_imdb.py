"""IMDb reviews from a folder and an archive, and what is wrong with others."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from sptlib.errors import DataError
from sptlib.formats import imdb

SAMPLE = Path(__file__).parents[2].parent / "shared" / "samples" / "aclImdb_sample"
#: names are in no order; 10 sorts after 9 only as a number
FILES = {
    "train/pos/10_7.txt": b"ten",
    "train/pos/9_10.txt": "n\u00efne<br />\n".encode(),
    "train/neg/2_1.txt": b"two",
    "train/neg/0_4.txt": b"zero",
    "train/neg/1_3.txt": b"one\r\nand more",
    "test/pos/0_8.txt": b"pos",
    "test/neg/0_2.txt": b"neg",
    "train/unsup/0_0.txt": b"\xff no one looks at this",
    "train/unsup/1_0.txt": b"",
}
#: what lies beside the reviews in the official folder, or comes from a Mac, and is no review
BESIDE = {
    "README": b"x",
    "imdb.vocab": b"the",
    "train/labeledBow.feat": b"9 0:9",
    "train/urls_pos.txt": b"x",
    "train/pos/._9_10.txt": b"\x00\xff",
    "train/pos/notes.md": b"x",
}


def folder(root: Path, files: dict[str, bytes] = FILES) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def archive(path: Path, files: dict[str, bytes] = FILES, prefix: str = "aclImdb/") -> Path:
    """A tar file, through gzip if the name says so, with folders and a link among the files."""
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{prefix}{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, kind in (("train/pos", tarfile.DIRTYPE), ("train/pos/5_9.txt", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(f"{prefix}{name}")
            member.type, member.linkname = kind, "/etc/hostname"
            tar.addfile(member)
    return path


def check_content(data: imdb.Imdb) -> None:
    assert data.train.texts == [
        "n\u00efne<br />\n".encode(), b"ten", b"zero", b"one\r\nand more", b"two"
    ]  # fmt: skip
    assert data.train.labels.tolist() == [1, 1, 0, 0, 0]
    assert data.test.texts == [b"pos", b"neg"]
    assert data.test.labels.tolist() == [1, 0]
    assert data.train.labels.dtype == np.uint8
    assert data.n_unsup == 2


# --- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["", "aclImdb"])
def test_folder_or_its_parent(tmp_path, where):
    folder(tmp_path / where, FILES | BESIDE)
    check_content(imdb.read(tmp_path))


@pytest.mark.parametrize("prefix", ["aclImdb/", "./aclImdb/", ""])
@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_archive(tmp_path, name, prefix):
    path = archive(tmp_path / name, FILES | BESIDE, prefix)
    check_content(imdb.read(path))
    assert sorted(tmp_path.iterdir()) == [path]  # nothing is extracted


def test_archive_with_reviews_elsewhere(tmp_path):
    whole = {f"aclImdb/{name}": content for name, content in FILES.items()}
    whole |= {"backup/train/pos/8_8.txt": b"x", "aclImdb/dev/pos/8_8.txt": b"x", "8_8.txt": b"x"}
    check_content(imdb.read(archive(tmp_path / "x.tar", whole, prefix="")))


def test_folder_that_holds_the_archive(tmp_path):
    archive(tmp_path / "aclImdb_v1.tar.gz")
    check_content(imdb.read(tmp_path))
    assert imdb.check(tmp_path).faults == []


def test_no_unsup(tmp_path):
    rated = {name: content for name, content in FILES.items() if "unsup" not in name}
    folder(tmp_path, rated)
    assert imdb.read(tmp_path).n_unsup == 0
    assert any("no unsup" in note for note in imdb.check(tmp_path).notes)


@pytest.mark.parametrize("make", [folder, archive])
def test_stamp_changes_with_the_files(tmp_path, make):
    source = make(tmp_path / "x.tar")
    before = imdb.stamp(source)
    assert json.loads(json.dumps(before)) == before == imdb.stamp(source)
    for changed in ({"train/pos/10_7.txt": b"longer"}, {"test/neg/5_1.txt": b"another"}):
        make(source, FILES | changed)
        assert imdb.stamp(source) != before
    with pytest.raises(DataError, match="no IMDb reviews here"):
        imdb.stamp(tmp_path / "nowhere")


# --- errors -------------------------------------------------------------------------------------

FAULTS = [
    ("train/pos/3_9.txt", b"ab\xff", "byte 2.*not UTF-8"),
    ("train/neg/3_2.txt", b"", "is empty"),
    ("train/neg/3_2.txt", b" \n", "is empty"),
    ("test/pos/review.txt", b"x", "not ID_RATING.txt"),
    ("test/pos/-3_9.txt", b"x", "not ID_RATING.txt"),
    ("test/pos/\u0663_9.txt", b"x", "not ID_RATING.txt"),
    (f"test/pos/{'9' * 50}_9.txt", b"x", "not ID_RATING.txt"),
    ("train/pos/3_4.txt", b"x", "rating 4 in pos, expected 7 … 10"),
    ("train/pos/3_11.txt", b"x", "rating 11 in pos, expected 7 … 10"),
    ("test/neg/3_7.txt", b"x", "rating 7 in neg, expected 1 … 4"),
    ("test/neg/3_0.txt", b"x", "rating 0 in neg, expected 1 … 4"),
]


@pytest.mark.parametrize(("name", "content", "message"), FAULTS)
def test_faulty_review_is_named(tmp_path, name, content, message):
    folder(tmp_path / "aclImdb", {**FILES, name: content})
    tar = archive(tmp_path / "x.tar.gz", {**FILES, name: content})
    for source, where in ((tmp_path, str(Path(name))), (tar, f"x.tar.gz, member aclImdb/{name}")):
        with pytest.raises(DataError, match=message) as caught:
            imdb.read(source)
        assert caught.value.path.endswith(where)
        (fault,) = imdb.check(source).faults
        assert fault == str(caught.value)


@pytest.mark.parametrize("part", ["train/pos", "train/neg", "test/pos", "test/neg"])
def test_missing_folder(tmp_path, part):
    rest = {name: content for name, content in FILES.items() if not name.startswith(part)}
    for source in (folder(tmp_path / "x", rest), archive(tmp_path / "x.tar", rest)):
        with pytest.raises(DataError, match=f"no reviews in {part}; expected {part}/ID_RATING.txt"):
            imdb.read(source)
        assert len(imdb.check(source).faults) == 1


def test_missing_split_and_no_reviews_at_all(tmp_path):
    train = {name: content for name, content in FILES.items() if name.startswith("train")}
    report = imdb.check(folder(tmp_path / "x", train))
    assert len(report.faults) == 2
    assert "train: 5 reviews, 2 pos, 3 neg" in report.facts
    (tmp_path / "empty").mkdir()
    for place in ("empty", "nowhere"):
        with pytest.raises(DataError, match="no IMDb reviews here"):
            imdb.read(tmp_path / place)
        assert len(imdb.check(tmp_path / place).faults) == 1


def test_review_that_cannot_be_read(tmp_path):
    folder(tmp_path)
    (tmp_path / "train/pos/77_9.txt").mkdir()
    with pytest.raises(DataError, match=r"77_9.txt: cannot be read"):
        imdb.read(tmp_path)


# --- archives that are damaged ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_archive_that_is_cut_off_anywhere(tmp_path, name):
    """Also between two members, which the standard library takes for the end."""
    path = archive(tmp_path / name)
    raw = path.read_bytes()
    with tarfile.open(path) as tar:
        members = [member.offset for member in tar.getmembers()]
    end = members[-1] + 512
    whole = raw if path.suffix == ".tar" else gzip.decompress(raw)
    # without the last bytes of the mark it is taken for whole: no review is lost
    sizes = [0, 1, 100, *range(512, end + 512, 256), end + 700]
    if path.suffix == ".gz":
        sizes = [*range(0, len(raw), 7), len(raw) - 1]
    for size in sizes:
        path.write_bytes(raw[:size])
        with pytest.raises(DataError, match=r"cut off; the last whole member is .*\(") as caught:
            imdb.read(path)
        assert caught.value.byte <= min(len(whole), size if path.suffix == ".tar" else 10**9)
        assert len(imdb.check(path).faults) == 1
    path.write_bytes(whole[: members[3]])
    with pytest.raises(DataError, match=r"member is aclImdb/train/neg/2_1.txt \(") as caught:
        imdb.read(path)
    assert caught.value.byte == members[3]


def test_archive_within_gzip_that_is_cut_off_between_members(tmp_path):
    """gzip itself is whole here."""
    path = archive(tmp_path / "x.tar")
    with tarfile.open(path) as tar:
        cut = tar.getmembers()[4].offset
    (tmp_path / "y.tar.gz").write_bytes(gzip.compress(path.read_bytes()[:cut]))
    with pytest.raises(DataError, match="mark of the end is missing"):
        imdb.read(tmp_path / "y.tar.gz")


def test_archive_with_a_changed_byte_or_of_another_kind(tmp_path):
    path = archive(tmp_path / "x.tar.gz")
    raw = bytearray(path.read_bytes())
    raw[-6] ^= 1  # of the check sum
    path.write_bytes(raw)
    with pytest.raises(DataError, match="damaged"):
        imdb.read(path)
    path.write_bytes(b"<html>not found</html>" * 100)
    with pytest.raises(DataError, match=r"no tar archive.*download it again") as caught:
        imdb.read(path)
    assert caught.value.path == str(path)


# --- check --------------------------------------------------------------------------------------


def test_check_counts_and_measures(tmp_path):
    sizes = {"7_9": 10, "8_9": 4096, "9_9": 4097}
    more = {f"train/pos/{name}.txt": b"x" * size for name, size in sizes.items()}
    report = imdb.check(folder(tmp_path, FILES | more | {"train/neg/99_1.txt": b"two"}))
    lengths = sorted([*sizes.values(), 3, *(len(FILES[name]) for name in list(FILES)[:5])])
    mean, median = round(sum(lengths) / 9), lengths[4]
    assert report.facts == [
        "train: 9 reviews, 5 pos, 4 neg",
        f"train: bytes per review: mean {mean:,}, median {median}, max 4,097; 1 of 9 are longer "
        "than 4,096 and would be truncated",
        "test: 2 reviews, 1 pos, 1 neg",
        "test: bytes per review: mean 3, median 3, max 3; 0 of 2 are longer than 4,096 and would "
        "be truncated",
        "without rating: 2 reviews",
    ]
    assert report.notes == [
        "train: 1 reviews repeat an earlier one",
        "train: 9 reviews; the official set has 25,000",
        "test: 2 reviews; the official set has 25,000",
    ]
    assert report.faults == []


def test_check_lists_faults_up_to_a_limit(tmp_path):
    empty = {f"train/pos/{i}_9.txt": b"" for i in range(100, 130)}
    report = imdb.check(folder(tmp_path, FILES | empty))
    assert len(report.faults) == 21
    assert all("is empty" in fault for fault in report.faults[:20])
    assert report.faults[20] == "and 10 more"
    assert "train: 5 reviews, 2 pos, 3 neg" in report.facts


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="no samples here")
def test_sample():
    data = imdb.read(SAMPLE)
    for part in (data.train, data.test):
        assert len(part.texts) == 200
        assert np.bincount(part.labels).tolist() == [100, 100]
    assert data.n_unsup == 100
    report = imdb.check(SAMPLE)
    assert report.faults == []
    assert sum("official" in note for note in report.notes) == 2
