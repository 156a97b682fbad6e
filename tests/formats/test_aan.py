"""Pairs of papers in the layout of the official files, and what is wrong with others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sptlib.errors import DataError
from sptlib.formats import aan

SAMPLE = Path(__file__).parents[2].parent / "shared" / "samples" / "aan"
GOOD = b"1.0\tA1\tB2\tfirst text\tsecond text\n"


def pairs(*rows: tuple[int, str, str, bytes, bytes]) -> aan.Pairs:
    labels, *rest = zip(*rows, strict=True)
    return aan.Pairs(np.array(labels, np.uint8), *map(list, rest))


def folder(root: Path, **of_split: bytes) -> Path:
    """All three files, each with two good lines if nothing else is said."""
    root.mkdir(parents=True)
    for split in ("train", "eval", "test"):
        content = of_split.get(split, GOOD + GOOD.replace(b"1.0", b"0.0"))
        (root / f"new_aan_pairs.{split}.tsv").write_bytes(content)
    return root


# --- reading and writing ------------------------------------------------------------------------


def test_read_takes_the_fields_as_they_are(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_bytes(
        b"\xef\xbb\xbf" + b'1.0\tA1\tB2\t"open quote\t a ""b"" \n'
        b"0\t\tC3\tstray \r within\tends with CR LF\r\n"
        + "0.0\tA1\tB2\tna\u00efve \u2028 \x85 \x0b\t\"open quote\n1\tA\tB\tx\ty".encode()
    )
    found = aan.read(path)
    assert found.labels.tolist() == [1, 0, 0, 1]
    assert found.labels.dtype == np.uint8
    assert found.ids1 == ["A1", "", "A1", "A"]
    assert found.ids2 == ["B2", "C3", "B2", "B"]
    assert found.texts1 == [
        b'"open quote', b"stray \r within", "na\u00efve \u2028 \x85 \x0b".encode(), b"x"
    ]  # fmt: skip
    assert found.texts2 == [b' a ""b"" ', b"ends with CR LF", b'"open quote', b"y"]
    assert found.texts1[0] is found.texts2[2]  # a text of many pairs is kept once
    assert len(found) == 4


def test_written_bytes(tmp_path):
    aan.write(tmp_path / "a" / "x.tsv", pairs((1, "A", "B", b'"x', "\u00e9".encode())))
    assert (tmp_path / "a" / "x.tsv").read_bytes() == b'1.0\tA\tB\t"x\t\xc3\xa9\n'


FIELD = st.text(st.characters(codec="utf-8", exclude_characters="\t\n"), max_size=20)
TEXT = FIELD.filter(str.strip).map(str.encode)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1), FIELD, FIELD, TEXT, TEXT.filter(lambda t: not t.endswith(b"\r"))
        ),
        min_size=1,
        max_size=8,
    )
)
def test_what_is_written_is_read(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "round-trip.tsv"
    whole = pairs(*rows)
    aan.write(path, whole)
    found = aan.read(path)
    assert found.labels.tolist() == whole.labels.tolist()
    for name in ("ids1", "ids2", "texts1", "texts2"):
        assert getattr(found, name) == getattr(whole, name)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((2, "A", "B", b"x", b"y"), ":2: label 2, expected 0 or 1"),
        ((1, "A\t", "B", b"x", b"y"), ":2: a tab, a line feed"),
        ((1, "A", "B\n", b"x", b"y"), ":2: a tab, a line feed"),
        ((1, "A", "B", b"x\tz", b"y"), ":2: a tab, a line feed"),
        ((1, "A", "B", b"x", b"y\nz"), ":2: a tab, a line feed"),
        ((1, "A", "B", b"x", b"y\r"), ":2: a tab, a line feed, or a CR at the end"),
        ((1, "A", "B", b"x", b"\xff"), ":2: a field is not UTF-8"),
    ],
)
def test_write_refuses_what_would_not_come_back(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        aan.write(tmp_path / "x.tsv", pairs((1, "A", "B", b"x", b"y"), row))
    assert list(tmp_path.iterdir()) == []


def test_write_refuses_other_lengths_and_nothing(tmp_path):
    good = pairs((1, "A", "B", b"x", b"y"))
    with pytest.raises(DataError, match=r"columns of lengths \[1, 1, 1, 1, 2\]"):
        aan.write(tmp_path / "x.tsv", replace(good, texts2=[b"y", b"z"]))
    with pytest.raises(DataError, match="no pairs to write"):
        aan.write(tmp_path / "x.tsv", aan.Pairs(np.zeros(0, np.uint8), [], [], [], []))


# --- errors -------------------------------------------------------------------------------------

FAULTS = [
    (b"1.0\tA\tB\tx\n", "4 fields between tabs, expected 5"),
    (b"1.0\tA\tB\tx\ty\tz\n", "6 fields between tabs, expected 5"),
    (b"\n", "1 fields between tabs, expected 5"),
    (b"2\tA\tB\tx\ty\n", "label '2', expected 0, 1, 0.0 or 1.0"),
    (b"True\tA\tB\tx\ty\n", "label 'True', expected"),
    (b" 1\tA\tB\tx\ty\n", "label ' 1', expected"),
    (b"label\tid1\tid2\ttext1\ttext2\n", "label 'label', expected"),
    (b"1\tA\tB\tx\t\xff\n", "byte 8 of the line is not UTF-8"),
]


def test_an_empty_text_is_read_and_noted(tmp_path):
    root = folder(tmp_path / "x", eval=GOOD + b"1\tA\tB\t\t \r\n")
    found = aan.read(root / "new_aan_pairs.eval.tsv")
    assert (found.texts1[-1], found.texts2[-1]) == (b"", b" ")
    assert "eval: empty texts: 1" in aan.check(root).notes


@pytest.mark.parametrize(("line", "message"), FAULTS)
def test_faulty_line_is_named(tmp_path, line, message):
    root = folder(tmp_path / "x", eval=GOOD + GOOD + line + GOOD)
    path = root / "new_aan_pairs.eval.tsv"
    with pytest.raises(DataError, match=message) as caught:
        aan.read(path)
    assert (caught.value.path, caught.value.line) == (str(path), 3)
    report = aan.check(root)
    assert report.faults == [str(caught.value)]
    rest = 2 if "UTF-8" in message else 3  # beyond bytes that are no text nothing is read
    assert f"eval: {rest} pairs, {rest} with label 1, 0 with 0" in report.facts
    assert "test: 2 pairs, 1 with label 1, 1 with 0" in report.facts


def test_empty_and_missing_files(tmp_path):
    root = folder(tmp_path / "x", eval=b"")
    path = root / "new_aan_pairs.eval.tsv"
    with pytest.raises(DataError, match="the file is empty; expected a pair per line"):
        aan.read(path)
    assert len(aan.check(root).faults) == 1
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        aan.read(path)
    (fault,) = aan.check(root).faults
    assert fault.startswith(f"{path}: cannot be read")


def test_no_pairs_at_all(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=r"expected new_aan_pairs.train.tsv, new_"):
            aan.find(place, "train")
        assert len(aan.check(place).faults) == 1


# --- check --------------------------------------------------------------------------------------


def test_check_of_the_folder_or_its_parent(tmp_path):
    long = b"0\tA\tB\t" + b"x" * 4000 + b"\t" + "\u00e9".encode() * 2001 + b"\n"
    root = folder(tmp_path / "y" / "tsv_data", train=GOOD + long)
    for place in (root, root.parent):
        report = aan.check(place)
        assert report.faults == []
        assert report.facts[:3] == [
            "train: 2 pairs, 1 with label 1, 1 with 0",
            f"train: bytes per text: mean {(10 + 11 + 4000 + 4002) / 4:,.0f}, median 2,006, max "
            "4,002; 1 of 4 are longer than 4,000 and would be truncated",
            "eval: 2 pairs, 1 with label 1, 1 with 0",
        ]
        assert report.notes == [
            "train: 2 pairs; the official set has 147,086",
            "eval: 2 pairs; the official set has 18,090",
            "test: 2 pairs; the official set has 17,437",
        ]
        assert aan.find(place, "eval") == root / "new_aan_pairs.eval.tsv"


def test_check_lists_faults_up_to_a_limit(tmp_path):
    report = aan.check(folder(tmp_path / "x", train=b"x\n" * 15, test=b"y\n" * 15))
    assert len(report.faults) == 21
    assert "new_aan_pairs.test.tsv:5: " in report.faults[19]
    assert report.faults[20] == "and 10 more"


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="no samples here")
def test_sample():
    for split, n in (("train", 224), ("eval", 48), ("test", 48)):
        found = aan.read(SAMPLE / f"new_aan_pairs.{split}.tsv")
        assert np.bincount(found.labels).tolist() == [n // 2, n // 2]
        assert sum(not t for t in found.texts1 + found.texts2) == (split == "eval")
    report = aan.check(SAMPLE.parent)
    assert report.faults == []
    assert "eval: empty texts: 1" in report.notes
    assert len(report.notes) == 4
