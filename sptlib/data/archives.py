"""Unpacks .tar and .tar.gz files of strangers: nothing outside the folder, nothing half-written."""

import contextlib
import errno
import gzip
import os
import posixpath
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from sptlib.errors import DataError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_END = bytes(tarfile.BLOCKSIZE)

#: tarfile's own filter, on top of the checks here; Python before 3.11.4 does not have it
SAFE = {"filter": "data"} if hasattr(tarfile, "data_filter") else {"set_attrs": False}
FILTERED = getattr(tarfile, "FilterError", ())


def unpack(
    archive: str | os.PathLike,
    folder: str | os.PathLike,
    members: Iterable[str] | None = None,
    *,
    replace: bool = False,
    max_bytes: int | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> list[Path]:
    """Unpack an archive, compressed by gzip or not (its first bytes tell, not its name).

    Everything goes to a temporary folder inside ``folder``; after the last byte of the archive was
    read and checked, its top-level files and folders are renamed into place. Owners and special
    modes are dropped (``filter="data"`` of tarfile).

    Args:
        archive: the file.
        folder: made if it is not there.
        members: shell patterns; only members that match one of them are unpacked (``*`` crosses
            slashes, so ``*/listops-1000/*`` is a folder anywhere). None: all.
        replace: top-level files and folders that are there already are replaced, not refused.
        max_bytes: of all unpacked files together; None: no limit.
        progress: called with the bytes of the archive that were read, and its size.

    Returns:
        The top-level files and folders, in the archive's order.

    Raises:
        DataError: if the archive is missing, no tar archive, cut off or damaged; if a member would
            land or point outside, is a device or the like (it is named), if nothing matches, if
            something is in the way, or the disk is full.
    """
    archive, folder = Path(archive), Path(folder)
    patterns = None if members is None else list(members)
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder))
    new, old = draft / "new", draft / "old"
    try:
        new.mkdir()
        old.mkdir()
        with _opened(archive) as (raw, stream):
            taken = _Taken(archive, new, patterns, max_bytes)
            for member, tar in _members(stream):
                top = taken.take(member, tar)
                if top and not replace and os.path.lexists(folder / top):
                    raise DataError(folder / top, "is there already, and would be overwritten")
                if progress is not None:
                    progress(raw.tell(), archive.stat().st_size)
        if not taken.tops:
            wanted = f" that matches {' or '.join(patterns)}" if patterns is not None else ""
            raise DataError(archive, f"holds no file or folder{wanted}")
        for top in taken.tops:
            _place(new / top, folder / top, old / top)
        return [folder / top for top in taken.tops]
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DataError(
            folder, f"the disk is full; nothing of {archive.name} was unpacked. Make room, repeat"
        ) from error
    finally:
        shutil.rmtree(draft)


@contextlib.contextmanager
def _opened(archive: Path) -> Iterator[tuple]:
    """The file and the stream of the tar archive; what goes wrong in it becomes a `DataError`."""
    try:
        raw = archive.open("rb")
    except OSError as error:
        raise DataError(archive, f"cannot be read ({error.strerror})") from error
    with raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        with gzip.GzipFile(fileobj=raw) if packed else contextlib.nullcontext(raw) as file:
            stream = _Counted(file)
            try:
                yield raw, stream
            except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
                if isinstance(error, EOFError) or "unexpected end" in str(error):
                    what = "the archive is cut off"
                elif stream.no_member:
                    what = "no tar archive, or damaged at its start"
                else:
                    what = "the archive is damaged"
                raise DataError(
                    archive, f"{what} ({error}); get the file again", byte=raw.tell()
                ) from error


class _Counted:
    """A stream that knows how far it was read, and remembers the last bytes.

    tarfile takes a damaged header in the middle, or a file that ends between two members, for the
    end of the archive. The memory shows whether the end was marked as such.
    """

    def __init__(self, file):
        self.file, self.position, self.blocks = file, 0, [b"", b""]
        self.no_member = True  # so far

    def read(self, n: int) -> bytes:
        block = self.file.read(n)
        if block:
            self.position += len(block)
            self.blocks = [self.blocks[-1], block]
        return block

    def at(self, offset: int, n: int) -> bytes:
        """n bytes from an offset that lies in the last two blocks."""
        recent = b"".join(self.blocks)
        start = offset - (self.position - len(recent))
        assert start >= 0
        return recent[start : start + n]


def _members(stream: _Counted) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """Members in order, in one pass without a step back; checks that the archive ends properly."""
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        while (member := tar.next()) is not None:
            stream.no_member = False
            yield member, tar
            tar.members.clear()  # millions of them would fill the memory
        end = tar.offset
        block = stream.at(end, len(_END))
        if len(block) < len(_END):
            raise EOFError(f"after {end:,} bytes of the tar archive its end is not marked")
        if block != _END:
            raise tarfile.ReadError(f"no member begins at byte {end:,} of the tar archive")
        while stream.read(1 << 16):
            pass  # to the checksum at the end of a gzip file


class _Taken:
    """Checks members one by one and writes them into a folder."""

    def __init__(
        self,
        archive: Path,
        folder: Path,
        patterns: list[str] | None,
        max_bytes: int | None,
    ):
        self.archive, self.folder = archive, folder
        self.patterns, self.max_bytes = patterns, max_bytes
        self.n_bytes, self.links = 0, set()
        self.tops: list[str] = []

    def take(self, member: tarfile.TarInfo, tar: tarfile.TarFile) -> str:
        """The first part of the member's name; "" if the member is not wanted."""
        path = PurePosixPath(member.name)
        self._check(member, path)
        if path == PurePosixPath(".") or not self._wanted(str(path)):
            return ""
        self.n_bytes += member.size
        if self.max_bytes is not None and self.n_bytes > self.max_bytes:
            self._refuse(member, f"more than {self.max_bytes:,} bytes would be unpacked")
        if member.islnk():
            source = self.folder / member.linkname
            # a second name of a symbolic link would lead elsewhere than the first
            if source.is_symlink() or not source.is_file():
                self._refuse(member, f"it links to {member.linkname!r}, no file that was unpacked")
        try:
            tar.extract(member, self.folder, **SAFE)
        except FILTERED as error:
            self._refuse(member, str(error))
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            self._refuse(member, "a file and a folder of one name")
        if member.issym():
            self.links.add(path)
        if path.parts[0] not in self.tops:
            self.tops.append(path.parts[0])
        return path.parts[0]

    def _wanted(self, name: str) -> bool:
        return self.patterns is None or any(fnmatchcase(name, p) for p in self.patterns)

    def _check(self, member: tarfile.TarInfo, path: PurePosixPath) -> None:
        if path.is_absolute():
            self._refuse(member, "its name is absolute")
        if ".." in path.parts:
            self._refuse(member, "its name leads outside")
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            self._refuse(member, "it is neither file, folder nor link")
        if self.links.intersection((path, *path.parents)):
            self._refuse(member, "it would be written through a link")
        if member.issym() or member.islnk():
            target = member.linkname
            base = str(path.parent) if member.issym() else "."
            end = posixpath.normpath(posixpath.join(base, target))
            # a target in normal form goes up first and down then, so that no other link can bend it
            normal = posixpath.normpath(target) == target
            if target.startswith("/") or end.split("/")[0] == ".." or not normal:
                self._refuse(member, f"it links to {target!r}, which leads outside")

    def _refuse(self, member: tarfile.TarInfo, why: str) -> None:
        raise DataError(self.archive, f"member {member.name!r} is refused: {why}") from None


def _place(new: Path, final: Path, old: Path) -> None:
    """Move a finished file or folder into place; what is there goes to ``old``."""
    if os.path.lexists(final):
        os.rename(final, old)
    try:
        os.rename(new, final)
    except OSError:
        if os.path.lexists(old):
            os.rename(old, final)
        raise
