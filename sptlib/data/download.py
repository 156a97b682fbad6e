"""One file over https: resumed where it was cut off, checked, there as a whole or not at all.

While a download is under way, ``NAME.part`` holds the bytes so far and ``NAME.part.json`` what the
server called that version of the file (its ETag or time of change). A later call continues the part
only if the server still has that version; else it starts over.
"""

import contextlib
import errno
import hashlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from sptlib import __version__
from sptlib.errors import DataError
from sptlib.formats.base import writing

#: called with the bytes that are there and their final number (None: the server does not say)
Progress = Callable[[int, int | None], None]

_BLOCK = 1 << 18
_BUSY = {408, 425, 429, 500, 502, 503, 504}  # worth another try
_FULL = {errno.ENOSPC, errno.EDQUOT}
_LOCAL = {"127.0.0.1", "localhost", "::1"}


def fetch(
    url: str,
    path: str | os.PathLike,
    sha256: str | None,
    size: int | None = None,
    progress: Progress | None = None,
    *,
    force: bool = False,
    timeout: float = 60.0,
    attempts: int = 5,
    pause: float = 1.0,
    opener: urllib.request.OpenerDirector | None = None,
) -> Path:
    """Download a file, unless it is there already.

    A connection that is cut or stalls is taken up again in the same call; after the last attempt
    the part stays on disk and the next call continues it. A full disk leaves the part as well.
    Everything else that fails leaves nothing new.

    Args:
        url: https; http only from this machine itself.
        path: of the finished file.
        sha256: of the whole file, 64 hexadecimal digits; None if it is not known.
        size: of the whole file in bytes, None if it is not known.
        progress: called after every block.
        force: download it even if it is there; the old file stays until the new one is checked.
        timeout: seconds without a byte after which a connection counts as cut.
        attempts: connections that one call makes.
        pause: seconds before the second attempt; doubled for each further one, 30 at most.
        opener: of urllib, for proxies or certificates of one's own; it has to refuse redirects to
            plain http itself, as the default one does.

    Returns:
        ``path``.

    Raises:
        DataError: if the server cannot be reached, refuses or sends something else; if the file,
            or one that lay there before, has the wrong checksum or size; if the disk is full; if
            another process is downloading it.
    """
    path = Path(path)
    if not _allowed(url, from_here=True):
        raise DataError(url, "only https addresses are downloaded")
    if not force and path.exists():
        return _accept(path, sha256, size)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path):
        if not force and path.exists():  # another process was faster
            return _accept(path, sha256, size)
        opener = opener or urllib.request.build_opener(_Redirects())
        download = _Download(url, path, sha256, size, progress, timeout, opener)
        download.run(attempts, pause)
    return path


def _accept(path: Path, sha256: str | None, size: int | None) -> Path:
    """A file that lay there, which somebody may have put there by hand: checked, never removed."""
    for fault in _faults(path, sha256, size):
        raise DataError(path, f"{fault}; remove it, or download it again with --force")
    return path


def _faults(path: Path, sha256: str | None, size: int | None) -> Iterator[str]:
    if size is not None and (found := path.stat().st_size) != size:
        yield f"has {found:,} bytes, expected {size:,}"
    if sha256 is not None:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != sha256.lower():
            yield f"has SHA-256 {digest}, expected {sha256.lower()}"


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Refuse a second process: two that write one part would mix it up."""
    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0)
    try:
        with lock:
            yield
            Path(lock.lock_file).unlink(missing_ok=True)
    except Timeout as error:
        raise DataError(path, "another process is downloading it; wait until it is done") from error
    except BaseException:
        Path(lock.lock_file).unlink(missing_ok=True)
        raise


def _allowed(url: str, from_here: bool) -> bool:
    """https, or plain http within this machine, where there is nobody in between."""
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in _LOCAL
    return bool(parts.scheme == "https" and parts.hostname) or (local and from_here)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects are followed as long as nobody on the way can read or change what comes."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        if not _allowed(newurl, from_here=urlsplit(req.full_url).hostname in _LOCAL):
            fp.close()
            raise DataError(req.full_url, f"redirects to {newurl}, which is not https: refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _CutError(Exception):
    """The connection broke or the server is busy: try again."""


class _UnreachableError(_CutError):
    """There was no connection at all."""


def _write(file, block: bytes) -> None:
    """All of a block into an unbuffered file: after an error, the file is what was written."""
    rest = memoryview(block)
    while rest:
        rest = rest[file.write(rest) :]


class _Download:
    """The state of one call of `fetch`."""

    def __init__(self, url, path, sha256, size, progress, timeout, opener):
        self.url, self.path, self.sha256, self.size = url, path, sha256, size
        self.progress, self.timeout, self.opener = progress, timeout, opener
        self.part = path.with_name(f"{path.name}.part")
        self.side = path.with_name(f"{path.name}.part.json")
        self.answered = False  # the server, in this call

    def run(self, attempts: int, pause: float) -> None:
        for attempt in range(max(attempts, 1)):
            if attempt:
                time.sleep(min(pause * 2 ** (attempt - 1), 30.0))
            try:
                self._transfer()
                return self._finish()
            except _CutError as error:
                cut = error
                if isinstance(error, _UnreachableError) and not self.answered:
                    break  # no network: waiting a few seconds does not mend that
        have, _, total = self._resumable()
        text = f"{cut}. "
        if have:
            of = f" of {total:,}" if total else ""
            text += f"{have:,}{of} bytes are kept in {self.part}: repeat the command to continue. "
        else:
            self._discard()  # a part of a version without a name cannot be continued
        raise DataError(self.url, text + self._by_hand()) from cut

    def _by_hand(self) -> str:
        check = f" (SHA-256 {self.sha256})" if self.sha256 else ""
        check = check or (f" ({self.size:,} bytes)" if self.size else "")
        return f"By hand: download the file elsewhere, put it at {self.path}{check} and repeat"

    def _resumable(self) -> tuple[int, str, int | None]:
        """Bytes of the part, the version that they are of, and that version's size if known."""
        try:
            known = json.loads(self.side.read_bytes())
            have, version, total = self.part.stat().st_size, known["version"], known["total"]
            fits = known["url"] == self.url and isinstance(version, str) and version
            if fits and (total is None or have <= int(total)):
                return have, version, total
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0, "", None  # a side file that was cut off, or none: the part is of no use
        return 0, "", None

    def _transfer(self) -> None:
        """One connection, to the end of the file."""
        have, version, total = self._resumable()
        if have and have == total:
            return  # interrupted between the last byte and the name
        headers = {"User-Agent": f"sptlib/{__version__}", "Accept-Encoding": "identity"}
        if have:
            headers |= {"Range": f"bytes={have}-", "If-Range": version}
        response = self._open(headers, have)
        if response is None:
            return
        with response:
            if response.status == 206:
                first, last_total = _content_range(response.headers)
                if not have or first != have or _version(response.headers) not in ("", version):
                    self._discard()
                    raise _CutError("the server did not send the part that was asked for")
                total = last_total or total
            elif response.status == 200:
                have, total = 0, None
            else:
                raise DataError(
                    self.url, f"the server answers {response.status}. {self._by_hand()}"
                )
            if total is None and response.length is not None:
                total = have + response.length
            if self.size is not None and total not in (None, self.size):
                self._discard()
                raise DataError(
                    self.url,
                    f"the server has {total:,} bytes, expected {self.size:,}: the file there has "
                    f"changed. {self._by_hand()}",
                )
            try:
                self._receive(response, have, total if total is not None else self.size)
            except OSError as error:  # of the disk: the connection's have become `_CutError`
                if error.errno not in _FULL:
                    raise
                kept = self.part.stat().st_size if self.part.exists() else 0
                raise DataError(
                    self.part,
                    f"the disk is full; {kept:,} bytes are kept here: make room, then repeat the "
                    "command to continue, or remove the file",
                ) from error

    def _open(self, headers: dict, have: int) -> http.client.HTTPResponse | None:
        """The server's answer; None if the part is the whole file already."""
        request = urllib.request.Request(self.url, headers=headers)
        try:
            response = self.opener.open(request, timeout=self.timeout)
        except urllib.error.HTTPError as error:
            self.answered = True
            with error:
                if error.code == 416 and have:
                    if _content_range(error.headers)[1] == have:
                        return None
                    self._discard()
                    raise _CutError("the server's file is shorter than the part") from error
                text = f"the server answers {error.code} {error.reason}"
                if error.code in _BUSY:
                    raise _CutError(text) from error
                raise DataError(self.url, f"{text}. {self._by_hand()}") from error
        except urllib.error.URLError as error:
            raise _UnreachableError(
                f"the server cannot be reached ({_reason(error.reason)})"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise _CutError(f"the server does not answer ({_reason(error)})") from error
        self.answered = True
        return response

    def _receive(self, response, have: int, total: int | None) -> None:
        with self.part.open("ab" if have else "wb", buffering=0) as file:
            if not have:  # only now: an old part is empty before it gets a new version's name
                about = {"url": self.url, "version": _version(response.headers), "total": total}
                with writing(self.side) as side:
                    side.write(json.dumps(about).encode())
            while True:
                try:
                    block = response.read1(_BLOCK)
                except (OSError, http.client.HTTPException) as error:
                    raise _CutError(f"the connection was cut ({_reason(error)})") from error
                if not block:
                    break
                _write(file, block)
                have += len(block)
                if self.progress is not None:
                    self.progress(have, total)
        if total is not None and have < total:  # http.client takes this for the end
            raise _CutError("the connection was cut")

    def _finish(self) -> None:
        for fault in _faults(self.part, self.sha256, self.size):
            self._discard()
            raise DataError(
                self.url,
                f"the download {fault}; it was removed. Repeat the command; if that does not help, "
                "the file on the server has changed",
            )
        os.replace(self.part, self.path)
        self.side.unlink(missing_ok=True)

    def _discard(self) -> None:
        self.part.unlink(missing_ok=True)
        self.side.unlink(missing_ok=True)


def _version(headers) -> str:
    """What the server calls this version of the file; "" if it does not.

    A weak ETag may stay the same when bytes change, so that a part must not be continued by it.
    """
    etag = headers.get("ETag", "")
    return etag if etag and not etag.startswith("W/") else headers.get("Last-Modified", "")


def _content_range(headers) -> tuple[int | None, int | None]:
    """First byte and whole size of a ``Content-Range``, each None if it is not given."""
    found = re.fullmatch(
        r"bytes\s+(?:(\d+)-\d+|\*)/(?:(\d+)|\*)", headers.get("Content-Range", "").strip()
    )
    first, total = found.groups() if found else (None, None)
    return int(first) if first else None, int(total) if total else None


def _reason(error: object) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
