"""Archives of strangers: bad members are named and refused; nothing half-written ever stays."""

import errno
import gzip
import io
import tarfile
from pathlib import Path

import pytest

from sptlib.data import archives
from sptlib.data.archives import unpack
from sptlib.errors import DataError

FILES = {"top/a.txt": b"first", "top/deep/b.bin": bytes(range(256)) * 40, "other/c": b""}


def member(name: str, content: bytes = b"", **fields) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def symlink(name: str, target: str):
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def hard_link(name: str, target: str):
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def pack(path: Path, *members, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return path


def good(path: Path, mode: str = "w:gz") -> Path:
    return pack(path, *(member(name, content) for name, content in FILES.items()), mode=mode)


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything under a folder, hidden files too; None for folders."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in folder.rglob("*")
        if not (p.is_dir() and any(p.iterdir()))
    }


@pytest.mark.parametrize(("name", "mode"), [("x.tar.gz", "w:gz"), ("x.gz", "w:gz"), ("x", "w:")])
def test_what_was_packed_comes_out(tmp_path, name, mode):
    seen = []
    archive = good(tmp_path / name, mode)
    out = tmp_path / "new" / "out"
    placed = unpack(archive, out, progress=lambda *x: seen.append(x))
    assert placed == [out / "top", out / "other"]
    assert tree(out) == FILES
    assert len(seen) == len(FILES)
    assert all(0 < done <= total == archive.stat().st_size for done, total in seen)


def test_only_what_matches_is_unpacked(tmp_path):
    archive = good(tmp_path / "x.tgz")
    unpack(archive, tmp_path / "out", members=["*/deep/*", "other/*"])
    assert tree(tmp_path / "out").keys() == {"top/deep/b.bin", "other/c"}
    with pytest.raises(DataError, match=r"holds no file or folder that matches nope/\* or no"):
        unpack(archive, tmp_path / "none", members=["nope/*", "no"])
    assert tree(tmp_path / "none") == {}


def test_names_longer_than_a_header_and_links_inside(tmp_path):
    long = "top/" + "n" * 180 + "/" + "m" * 120
    archive = pack(
        tmp_path / "x.tgz",
        member(long, b"long"),
        member("top/real", b"real"),
        symlink("top/deep/soft", "../real"),
        hard_link("top/hard", "top/real"),
    )
    unpack(archive, tmp_path / "out")
    out = tmp_path / "out"
    assert (out / long).read_bytes() == b"long"
    assert (out / "top/deep/soft").is_symlink()
    assert (out / "top/deep/soft").read_bytes() == b"real"
    assert (out / "top/hard").read_bytes() == b"real"


BAD = {
    "parent": ("name leads outside", member("../x", b"!")),
    "parent inside": ("name leads outside", member("top/../../x", b"!")),
    "absolute": ("name is absolute", member("/tmp/x", b"!")),
    "symlink outward": ("'../../x', which leads outside", symlink("top/l", "../../x")),
    "symlink to the root": ("'/etc', which leads outside", symlink("top/l", "/etc")),
    "symlink to the parent": ("'..', which leads outside", symlink("l", "..")),
    "bent symlink": ("which leads outside", symlink("a/b/l", "d/../../x")),
    "through a symlink": ("through a link", symlink("top/l", "deep"), member("top/l/x", b"!")),
    "onto a symlink": (
        "through a link",
        member("top/f", b"1"),
        symlink("top/l", "f"),
        member("top/l", b"!"),
    ),
    "hard link outward": ("'../secret', which leads outside", hard_link("top/l", "../secret")),
    "hard link to the root": ("which leads outside", hard_link("top/l", "/etc/passwd")),
    "hard link to nothing": ("no file that was unpacked", hard_link("top/l", "top/none")),
    "hard link to a symlink": (
        "no file that was unpacked",
        member("x", b"1"),
        symlink("a/b/l", "../../x"),
        hard_link("l", "a/b/l"),
    ),
    "device": (
        "neither file, folder nor link",
        member("top/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    ),
    "fifo": ("neither file, folder nor link", member("top/pipe", type=tarfile.FIFOTYPE)),
    "file as folder": ("of one name", member("top/f", b"1"), member("top/f/g", b"2")),
}


@pytest.mark.parametrize(("words", "members"), [(w, m) for w, *m in BAD.values()], ids=BAD.keys())
def test_a_bad_member_is_named_and_nothing_stays(tmp_path, words, members):
    (tmp_path / "secret").write_text("keep me")
    archive = pack(tmp_path / "x.tar.gz", member("top/good", b"good"), *members)
    before = tree(tmp_path)
    with pytest.raises(DataError) as caught:
        unpack(archive, tmp_path / "out")
    assert caught.value.path == str(archive)
    assert repr(members[-1][0].name) in caught.value.message
    assert "is refused: " in caught.value.message
    assert words in caught.value.message
    assert tree(tmp_path) == {**before, "out": None}  # an empty folder


@pytest.mark.parametrize("cut", [3, 15, 100, 200, -9, -1])
def test_a_gzip_file_that_is_cut_off(tmp_path, cut):
    whole = good(tmp_path / "x.tar.gz").read_bytes()
    (tmp_path / "x.tar.gz").write_bytes(whole[:cut])
    with pytest.raises(DataError, match="cut off") as caught:
        unpack(tmp_path / "x.tar.gz", tmp_path / "out")
    assert caught.value.byte == len(whole[:cut])
    assert tree(tmp_path / "out") == {}


# in a header, in a member, between two members (where tarfile itself would see no fault)
@pytest.mark.parametrize("cut", [700, 1024, 1024 + 512 + 5000])
def test_a_plain_tar_that_is_cut_off(tmp_path, cut):
    whole = good(tmp_path / "x.tar", "w:").read_bytes()
    (tmp_path / "x.tar").write_bytes(whole[:cut])
    with pytest.raises(DataError, match="cut off") as caught:
        unpack(tmp_path / "x.tar", tmp_path / "out")
    assert caught.value.byte == cut
    assert tree(tmp_path / "out") == {}


def test_a_gzip_file_around_a_tar_that_was_cut_off(tmp_path):
    whole = good(tmp_path / "x.tar", "w:").read_bytes()
    (tmp_path / "x.tgz").write_bytes(gzip.compress(whole[:1024]))
    with pytest.raises(DataError, match=r"cut off.*1,024 bytes"):
        unpack(tmp_path / "x.tgz", tmp_path / "out")
    assert tree(tmp_path / "out") == {}


def test_damage_in_the_middle(tmp_path):
    whole = bytearray(good(tmp_path / "x.tar", "w:").read_bytes())
    whole[1024 + 150] ^= 0xFF  # the second member's header: tarfile itself would stop in silence
    (tmp_path / "x.tar").write_bytes(whole)
    with pytest.raises(DataError, match=r"damaged .*byte 1,024 of the tar archive"):
        unpack(tmp_path / "x.tar", tmp_path / "out")
    packed = bytearray(good(tmp_path / "x.tgz").read_bytes())
    packed[-6] ^= 0xFF  # of the checksum at the end
    (tmp_path / "x.tgz").write_bytes(packed)
    with pytest.raises(DataError, match="damaged"):
        unpack(tmp_path / "x.tgz", tmp_path / "out")
    assert tree(tmp_path / "out") == {}


@pytest.mark.parametrize(
    "content",
    [b"<!DOCTYPE html><title>404</title>" * 50, b"", gzip.compress(b"just text " * 200)],
    ids=["page", "empty", "gzip of a text"],
)
def test_what_is_no_tar(tmp_path, content):
    (tmp_path / "x.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match="no tar archive"):
        unpack(tmp_path / "x.tar.gz", tmp_path / "out")
    assert tree(tmp_path / "out") == {}


def test_a_missing_archive(tmp_path):
    with pytest.raises(DataError, match=r"none\.tar\.gz: cannot be read"):
        unpack(tmp_path / "none.tar.gz", tmp_path / "out")


def test_what_is_in_the_way_is_kept_unless_it_may_be_replaced(tmp_path):
    archive = good(tmp_path / "x.tgz")
    (tmp_path / "out" / "top").mkdir(parents=True)
    (tmp_path / "out" / "top" / "mine").write_text("mine")
    with pytest.raises(DataError, match="top: is there already"):
        unpack(archive, tmp_path / "out")
    assert tree(tmp_path / "out") == {"top/mine": b"mine"}
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-20])
    with pytest.raises(DataError, match="cut off"):
        unpack(archive, tmp_path / "out", replace=True)
    assert tree(tmp_path / "out") == {"top/mine": b"mine"}  # a bad archive replaces nothing
    archive.write_bytes(whole)
    unpack(archive, tmp_path / "out", replace=True)
    assert tree(tmp_path / "out") == FILES


def test_what_cannot_be_moved_into_place_leaves_the_old_there(tmp_path, monkeypatch):
    archive = good(tmp_path / "x.tgz")
    (tmp_path / "out" / "top").mkdir(parents=True)
    (tmp_path / "out" / "top" / "mine").write_text("mine")
    original = archives.os.rename

    def rename(source, target):
        if "new" in Path(source).parts:
            raise PermissionError(errno.EACCES, "Permission denied", str(target))
        original(source, target)

    monkeypatch.setattr(archives.os, "rename", rename)
    with pytest.raises(PermissionError):
        unpack(archive, tmp_path / "out", replace=True)
    assert tree(tmp_path / "out") == {"top/mine": b"mine"}


def test_a_limit_on_what_comes_out(tmp_path):
    archive = pack(tmp_path / "x.tgz", member("top/zeros", bytes(1_000_000)))
    assert archive.stat().st_size < 5_000
    with pytest.raises(DataError, match="'top/zeros' is refused: more than 999,999 bytes"):
        unpack(archive, tmp_path / "out", max_bytes=999_999)
    assert tree(tmp_path / "out") == {}
    unpack(archive, tmp_path / "out", max_bytes=1_000_000)


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    archive = good(tmp_path / "x.tgz")
    original = tarfile.TarFile.makefile

    def makefile(self, info, target):
        original(self, info, target)
        if info.name.endswith("b.bin"):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "makefile", makefile)
    with pytest.raises(DataError, match=r"the disk is full; nothing of x\.tgz was unpacked"):
        unpack(archive, tmp_path / "out")
    assert tree(tmp_path / "out") == {}
