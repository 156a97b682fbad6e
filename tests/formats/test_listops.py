"""The official ListOps files: reading, writing, checking, and what is wrong with them."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from sptlib.errors import DataError
from sptlib.formats import listops
from sptlib.generators.listops import Grammar, generate

SAMPLE = Path(__file__).parents[2].parent / "shared" / "samples" / "listops-1000"
HEAD = b"Source\tTarget\r\n"
GOOD = b"( ( ( [MAX 3 ) 4 ) ] )\t4\r\n"
SHORT = Grammar(max_depth=5, max_args=5, min_length=3, max_length=40)


def folder(path: Path, **content: bytes) -> Path:
    path.mkdir(exist_ok=True)
    for split in ("train", "val", "test"):
        (path / f"basic_{split}.tsv").write_bytes(content.get(split, HEAD + GOOD))
    return path


def symbols(text: str) -> list[str]:
    return [listops.SYMBOLS[t] for t in listops.tokenise(text).tolist()]


def test_parentheses_go_and_the_bracket_becomes_x():
    text = "( ( ( ( [MIN 6 ) ( ( ( [SM 9 ) 8 ) ] ) ) 0 ) ] )"
    assert symbols(text) == ["[MIN", "6", "[SM", "9", "8", "X", "0", "X"]
    assert symbols("[MIN 6 [SM 9 8 X 0 X") == symbols(text)
    assert listops.to_text(listops.tokenise(text)) == text
    assert listops.depth(listops.tokenise(text)) == 3
    assert listops.evaluate(listops.tokenise(text)) == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[MIN 6 2 9 X", 2),
        ("[MAX 6 2 9 X", 9),
        ("[MED 6 2 9 X", 6),
        ("[MED 6 2 9 3 X", 4),  # the integer part of 4.5
        ("[MED 1 2 X", 1),
        ("[SM 6 2 9 X", 7),
        ("[SM [MAX 8 9 X [MED 1 X 5 X", 5),
        ("7", 7),
    ],
)
def test_values(text, value):
    assert listops.evaluate(listops.tokenise(text)) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[MAX 1 ten X", "unknown symbol 'ten'"),
        ("[MEAN 1 2 X", r"unknown symbol '\[MEAN'"),
        ("[MAX 1 2", "1 lists are not closed"),
        ("[MAX 1 2 X X", "symbol 5 closes what was not opened"),
        ("[MAX 1 X [MIN 2 X", "more than one expression"),
        ("1 2", "more than one expression"),
        ("( [MAX 1 2 X", "unbalanced parentheses: 1 opened, 0 closed"),
        ("( )", "no expression"),
    ],
)
def test_what_is_no_expression(text, message):
    with pytest.raises(ValueError, match=message):
        listops.tokenise(text)


def test_an_operator_needs_arguments():
    with pytest.raises(ValueError, match=r"\[MAX has no arguments"):
        listops.evaluate(listops.tokenise("[SM [MAX X 1 X"))


def test_what_is_written_is_read(tmp_path):
    rows = generate(SHORT, 200, "files")
    path = tmp_path / "basic_train.tsv"
    listops.write(path, rows)
    raw = path.read_bytes()
    assert raw.startswith(HEAD)
    assert raw.count(b"\r\n") == raw.count(b"\n") == 201
    back = listops.read(path)
    for name in ("tokens", "lengths", "targets", "depths"):
        assert np.array_equal(getattr(back, name), getattr(rows, name)), name


@pytest.mark.parametrize("change", [
    lambda raw: raw.replace(b"\r\n", b"\n"),
    lambda raw: b"\xef\xbb\xbf" + raw,
    lambda raw: raw.removesuffix(b"\r\n"),
    lambda raw: raw + b"\r\n",
])  # fmt: skip
def test_line_ends_and_marks_do_not_matter(tmp_path, change):
    path = tmp_path / "basic_train.tsv"
    path.write_bytes(change(HEAD + GOOD + GOOD))
    assert listops.read(path).targets.tolist() == [4, 4]
    packed = tmp_path / "basic_val.tsv.gz"
    packed.write_bytes(gzip.compress(change(HEAD + GOOD)))
    assert listops.read(listops.split_file(tmp_path, "val")).targets.tolist() == [4]


FAULTS = [
    (b"", "basic_val.tsv: the file is empty"),
    (HEAD, "holds a header and no rows"),
    (HEAD + b"\r\n\r\n", "holds a header and no rows"),
    (b"source\ttarget\r\n" + GOOD, ":1: the header is 'source\\ttarget'"),
    (GOOD, ":1: the header is "),
    (HEAD + GOOD + b"( 1 )\r\n", ":3: 1 tab-separated columns, expected 2"),
    (HEAD + b"1\t2\t3\r\n", ":2: 3 tab-separated columns"),
    (HEAD + b"1\tone\r\n", ":2: the target is 'one', expected an integer from 0 to 9"),
    (HEAD + b"1\t1.0\r\n", ":2: the target is '1.0'"),
    (HEAD + b"1\t10\r\n", ":2: the target is '10'"),
    (HEAD + b"1\t\r\n", ":2: the target is ''"),
    (HEAD + b"[MAX 1 ? X\t1\r\n", ":2: unknown symbol '?'"),
    (HEAD + b"[MAX 1 2\t1\r\n", ":2: unbalanced brackets"),
    (HEAD + GOOD + b"\xff\t1\r\n", ":3: byte 0 of the line is not UTF-8"),
]


@pytest.mark.parametrize(("raw", "message"), FAULTS)
def test_faults_name_file_and_line(tmp_path, raw, message):
    path = folder(tmp_path, val=raw) / "basic_val.tsv"
    with pytest.raises(DataError) as error:
        listops.read(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    report = listops.check(tmp_path)
    assert [f for f in report.faults if message in f], report.faults
    assert len(report.facts) == 4  # the other two files were looked at all the same


def test_truncated_gzip_is_named(tmp_path):
    folder(tmp_path)
    (tmp_path / "basic_val.tsv").unlink()
    packed = gzip.compress(HEAD + GOOD * 2000, mtime=0)
    (tmp_path / "basic_val.tsv.gz").write_bytes(packed[: len(packed) // 2])
    (fault,) = listops.check(tmp_path).faults
    assert "damaged or cut off after line" in fault


def test_deep_lists_are_read(tmp_path):
    row = "[MAX 1 " * 300 + "7" + " X" * 300
    folder(tmp_path, test=HEAD + f"{row}\t7\r\n".encode())
    assert listops.check(tmp_path).faults == []
    assert listops.read(tmp_path / "basic_test.tsv").depths.tolist() == [301]


def test_missing_file_names_the_command(tmp_path):
    with pytest.raises(DataError, match="sptlib data make listops"):
        listops.split_file(tmp_path, "train")


def test_check_recomputes_every_value(tmp_path):
    wrong = GOOD.replace(b"\t4", b"\t3")
    report = listops.check(folder(tmp_path, test=HEAD + GOOD + wrong))
    (fault,) = report.faults
    assert fault.endswith("basic_test.tsv:3: the target is 3, but the expression's value is 4")
    assert "3 rows repeat an earlier one" in report.notes
    assert any("smaller than the official set of 96,000" in note for note in report.notes)


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="no samples here")
def test_sample(tmp_path):
    report = listops.check(SAMPLE)
    assert report.faults == []
    assert len(report.notes) == 3
    for split, n in (("train", 400), ("val", 100), ("test", 100)):
        rows = listops.read(SAMPLE / f"basic_{split}.tsv")
        assert len(rows) == n
        listops.write(tmp_path / "again.tsv", rows)
        again = (tmp_path / "again.tsv").read_bytes()
        assert again == (SAMPLE / f"basic_{split}.tsv").read_bytes()
