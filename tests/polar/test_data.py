"""Posts from files and the synthetic ones: layouts, splits, and what is refused."""

import os

import pandas as pd
import pytest

from sptlib.errors import ConfigError, DataError
from sptlib.notebooks import root
from sptlib.polar import augment, data, files, generator, statistics
from sptlib.polar.config import PolarTask
from sptlib.polar.labels import LABELS, SUBTASKS

SAMPLES = root().parent / "shared" / "samples" / "polar"
HEADER = ",".join(["id", "text", *LABELS])


@pytest.fixture
def folder(tmp_path):
    for split, n in (("train", 40), ("dev", 12)):
        posts = [generator.generate(name, split, n, 0) for name in ("eng", "rus", "arb")]
        data.write(pd.concat(posts, ignore_index=True), tmp_path, split)
    return tmp_path


def file(tmp_path, content: str | bytes, name="eng.csv"):
    path = tmp_path / "train" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def row(text="a post", name="1", labels="0" * 12):
    return f"{name},{text}," + ",".join(labels)


def test_what_is_written_is_read(folder):
    posts = data.read(folder, "train", 1).table
    assert posts["lang"].unique().tolist() == ["arb", "eng", "rus"]
    made = generator.generate("eng", "train", 40, 0)
    read = posts[posts["lang"] == "eng"].reset_index(drop=True)
    pd.testing.assert_frame_equal(read, made)
    assert (folder / "train" / "eng.csv").read_bytes().count(b"\r\n") == 41


def test_a_language_without_manifestations_is_left_out_of_subtask_3(folder):
    posts = data.read(folder, "train", 3)
    assert set(posts.table["lang"]) == {"eng", "arb"}
    assert posts.notes == ("rus (Russian) has no manifestation labels: left out of subtask 3",)
    dev = data.read(folder, "dev", 3, labelled=False)
    assert set(dev.table["lang"]) == {"eng", "arb"}
    assert len(dev.notes) == 1
    made = data.load(PolarTask(subtask=3, n_train=5, n_val=5, n_test=5), 0)
    assert "rus" not in set(made.train["lang"])
    assert made.notes == posts.notes


def test_the_competition_layout(tmp_path):
    posts = generator.generate("eng", "train", 30, 0)
    for n, asked in SUBTASKS.items():
        for split, some in (("train", posts[:20]), ("dev", posts[20:])):
            shown = some[["id", "text", *asked.labels]].copy()
            if split == "dev":
                shown[list(asked.labels)] = pd.NA
            place = tmp_path / f"subtask{n}" / split
            place.mkdir(parents=True)
            shown.to_csv(place / "eng.csv", index=False)
    for n in SUBTASKS:
        assert len(data.read(tmp_path, "train", n).table) == 20
        found = data.from_folder(tmp_path, PolarTask(source="files", subtask=n), 0)
        assert found.test.equals(found.val)
        assert "no labelled dev or test posts" in found.notes[-1]
        assert len(data.read(tmp_path, "dev", n, labelled=False).table) == 10
    together = statistics.of_folder(tmp_path)
    assert len(together) == 30
    table = statistics.table(together)
    expected = posts[:20]["political"].mean()
    assert table.loc[("train", "eng"), "political"] == pytest.approx(expected)
    assert pd.isna(table.loc[("dev", "eng"), "stereotype"])
    (tmp_path / "subtask2" / "train" / "eng.csv").write_bytes(LATIN)
    with pytest.raises(DataError, match="not UTF-8"):
        statistics.of_folder(tmp_path)


def test_at_most_so_many_are_held_out(folder):
    once = data.read(folder, "train", 1).table
    for number, by in ((1, ["lang", "polarization"]), (2, ["lang"])):
        learn, held = data.hold_out(once, number, 3, 0)
        assert len(learn) + len(held) == len(once)
        assert not set(learn["text"]) & set(held["text"])
        sizes = held.groupby(by).size()
        assert sizes.max() == 3
        assert len(sizes) == once.groupby(by).ngroups
    held = data.hold_out(once, 1, 100, 0)[1]
    shares = held.groupby("lang").size() / once.groupby("lang").size()
    assert shares.max() <= 0.2
    again = data.hold_out(once, 1, 100, 0)[1]
    assert again.equals(held)
    assert not data.hold_out(once, 1, 100, 1)[1].equals(held)


def test_no_text_is_in_two_splits(folder):
    made = data.load(PolarTask(), 0)
    texts = [set(zip(t["lang"], t["text"], strict=True)) for t in (made.train, made.val, made.test)]
    assert not texts[0] & texts[1]
    assert not texts[0] & texts[2]
    assert not texts[1] & texts[2]
    train = data.read(folder, "train", 1, ("eng",)).table
    dev = data.read(folder, "dev", 1, ("eng",)).table
    both = pd.concat([dev.assign(id="t" + dev["id"]).iloc[:3], train], ignore_index=True)
    data.write(both, folder, "train")
    found = data.from_folder(folder, PolarTask(source="files"), 0)
    assert not set(found.train["text"]) & set(found.test["text"])
    assert "3 training posts are test posts, too, and were left out" in found.notes


def test_train_and_test_have_the_same_languages(folder):
    (folder / "train" / "rus.csv").unlink()
    (folder / "dev" / "arb.csv").unlink()
    found = data.from_folder(folder, PolarTask(source="files"), 0)
    assert set(found.test["lang"]) == {"eng"}
    assert set(found.train["lang"]) == {"arb", "eng"}
    assert found.notes == ("rus (Russian) has no training posts", "arb (Arabic) has no test posts")
    asked = PolarTask(source="files", languages=("arb", "eng"))
    assert data.from_folder(folder, asked, 0).test.equals(found.test)


def test_damaged_test_posts_are_not_passed_over(folder):
    path = folder / "dev" / "eng.csv"
    path.write_bytes(path.read_bytes() + b"\xe9")
    with pytest.raises(DataError, match="not UTF-8"):
        data.from_folder(folder, PolarTask(source="files"), 0)


def test_copies_are_not_held_out_and_do_not_leak(folder):
    made = augment.augment(data.read(folder, "train", 1).table, 0, 1.0).posts
    learn, held = data.hold_out(made, 1, 3, 0)
    assert set(held["kind"]) == {"original"}
    stems = learn["id"].str.replace(r"_(anonymised|lower|upper|homoglyph)$", "", regex=True)
    assert not set(stems) & set(held["id"])
    assert (learn["kind"] != "original").any()


def test_the_fingerprint_follows_the_files(folder):
    with data.at(folder):
        before = data.fingerprint()
        assert data.fingerprint() == before
        path = folder / "train" / "eng.csv"
        content = path.read_bytes().replace(b",1,", b",0,", 1)
        path.write_bytes(content)
        os.utime(path, ns=(1, 1))
        assert data.fingerprint() != before
    with pytest.raises(DataError), data.at(folder / "nowhere"):
        data.fingerprint()


def test_repeated_texts_go_within_a_language(folder):
    table = data.read(folder, "train", 1).table
    twice = pd.concat([table, table.iloc[:3]], ignore_index=True)
    once, n = data.unique(twice)
    assert n == 3
    pd.testing.assert_frame_equal(once, table)


def test_text_is_kept_to_the_letter(tmp_path):
    long = "x" * 100_000
    texts = [
        'with "quotes", commas',
        "two\nlines",
        "שלום 👩‍👩‍👧 مرحبا",
        long,
        "line\u2028separator",
    ]
    quoted = ['"' + t.replace('"', '""') + '"' for t in texts]
    lines = [HEADER, *(row(t, str(i)) for i, t in enumerate(quoted))]
    for start, end in ((b"", "\n"), (b"\xef\xbb\xbf", "\r\n")):
        path = file(tmp_path, start + (end.join(lines) + end).encode())
        assert files.read_file(path, "eng")["text"].tolist() == texts


LATIN = f"{HEADER}\n{row('café')}\n".encode("latin-1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        (HEADER + "\n", "there is no post in it"),
        ("id,polarization\n1,0\n", "the column 'text' is missing"),
        (f"{HEADER}\n{row(labels='2' + '0' * 11)}\n", ":2: polarization is 0 or 1, found '2'"),
        (f"{HEADER}\n{row()}\n{row('   ', '2')}\n", ":3: the text of '2' is empty"),
        (f"{HEADER}\n{row()}\n{row()}\n", ":3: the id '1' is that of line 2, too"),
        (f"{HEADER}\n{row(chr(0x200B))}\n", ":2: the text of '1' is empty"),
        (f"{HEADER}\n{row(name='')}\n", ":2: an id is empty"),
        (f"{HEADER}\n{row('a' + chr(0))}\n", "there is a NUL byte"),
        (f"{HEADER}\r{row()}\r", "lines end in CR alone"),
        (f"{HEADER}\n{row()}\n".encode("utf-16"), "is UTF-16"),
        (f"{HEADER}\n{row()}\n".replace(",", ";"), "fields are separated by ';'"),
        (f"{HEADER}\n1,a,0\n", ":2: 14 fields expected, found 3"),
        (f'{HEADER}\n1,"open,{"0," * 11}0\n', "is a quote left open?"),
        (LATIN, f":2 (byte {LATIN.index(0xE9)}): 0xe9 is not UTF-8 text"),
    ],
)
def test_bad_files_are_refused_with_their_place(tmp_path, content, message):
    path = file(tmp_path, content)
    with pytest.raises(DataError) as error:
        data.read(tmp_path, "train", 1)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_what_is_not_there_is_said(tmp_path, folder):
    with pytest.raises(DataError, match="no such folder"):
        data.read(tmp_path / "nowhere", "train", 1)
    with pytest.raises(ValueError, match="unknown language 'english'"):
        PolarTask(languages=("english",))
    with pytest.raises(ConfigError, match="unknown language of"):
        data.read(folder, "train", 1, ("deu",))
    file(folder, f"{HEADER}\n{row()}\n", "klingon.csv")
    with pytest.raises(DataError, match="unknown language 'klingon'"):
        data.read(folder, "train", 1)
    with pytest.raises(DataError, match=r"there is no LANG.csv in it"):
        data.read(folder, "test", 1)


def test_synthetic_posts_are_labelled_by_construction():
    posts = generator.generate("eng", "train", 300, 0)
    of_type, of_way = posts[list(LABELS[1:6])].sum(axis=1), posts[list(LABELS[6:])].sum(axis=1)
    polarized = posts["polarization"] == 1
    assert ((of_type > 0) == polarized).all()
    assert ((of_way > 0) == polarized).all()
    assert not posts["text"].duplicated().any()
    assert generator.generate("eng", "train", 300, 0).equals(posts)
    assert set(generator.generate("eng", "val", 300, 0)["text"]) != set(posts["text"])
    assert len(generator.languages()) >= 8
    with pytest.raises(ConfigError, match="unknown language of the synthetic posts"):
        generator.generate("ita", "train", 5, 0)


def test_no_word_decides_by_itself():
    """Every hostile phrase and every group occurs in posts of both kinds."""
    posts = generator.generate("deu", "train", 1500, 0)
    words = generator.phrases()["deu"]
    for some in (*words["hostile"].values(), *words["groups"].values()):
        for phrase in some:
            having = posts["text"].str.contains(phrase[1:], regex=False)
            assert set(posts.loc[having, "polarization"]) == {0, 1}, phrase


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the samples are not here")
def test_real_posts_are_read():
    found = data.from_folder(SAMPLES, PolarTask(source="files", subtask=3), 0)
    assert (len(found.train), len(found.val), len(found.test)) == (384, 96, 699)
    assert [note.split()[0] for note in found.notes] == ["ita", "rus"]
