"""Downloads from a server that misbehaves: whole and right, or nothing under the name."""

import errno
import hashlib
import socket
import struct
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sptlib.data import download
from sptlib.data.download import fetch
from sptlib.errors import DataError

CONTENT = bytes((i * i + i // 251) % 256 for i in range(700_000))  # more than two blocks
SHA = hashlib.sha256(CONTENT).hexdigest()
OTHER = CONTENT[::-1]
QUICK = {"pause": 0.01, "timeout": 5.0}


class Site:
    """What the server does; a test sets it, and reads the requests."""

    def __init__(self, address: str):
        self.url = f"{address}/file.bin"
        self.content, self.version, self.weak = CONTENT, '"v1"', False
        self.ranges = True  # does it know Range?
        self.if_range = True  # does it know If-Range?
        self.shift = 0  # of the part that is sent, against the one that is asked for
        self.length = True  # does it say how long the file is?
        self.cuts: list[int] = []  # bytes after which the next answers are cut off
        self.reset = False  # a cut is a reset, not an orderly end
        self.stalls = False  # a cut answer does not end
        self.statuses: list[int] = []  # of the next answers
        self.location = ""
        self.requests: list[dict[str, str]] = []
        self.over = threading.Event()

    def starts(self) -> list[str | None]:
        """The Range of each request."""
        return [request.get("Range") for request in self.requests]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        site: Site = self.server.site
        site.requests.append(dict(self.headers))
        status = site.statuses.pop(0) if site.statuses else 200
        if status != 200:
            self.send_response(status)
            if site.location:
                self.send_header("Location", site.location)
            self.end_headers()
            return
        first = self.first(site)
        if first >= len(site.content) > 0 and first:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(site.content)}")
            self.end_headers()
            return
        body = site.content[first:]
        self.send_response(206 if first else 200)
        if first:
            last = len(site.content) - 1
            self.send_header("Content-Range", f"bytes {first}-{last}/{last + 1}")
        if site.version:
            self.send_header("ETag", site.version)
        if site.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not site.cuts:
            self.wfile.write(body)
            return
        self.wfile.write(body[: site.cuts.pop(0)])
        if site.stalls:
            site.over.wait(30)
        if site.reset:
            time.sleep(0.05)  # what was sent arrives before the reset
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()

    def first(self, site: Site) -> int:
        """The first byte that is asked for, as the server sees it."""
        if "Range" not in self.headers or not site.ranges:
            return 0
        if site.if_range and self.headers["If-Range"] != site.version:
            return 0
        return int(self.headers["Range"].removeprefix("bytes=").removesuffix("-")) + site.shift

    def log_message(self, *args):
        """Quiet."""


class Server(ThreadingHTTPServer):
    daemon_threads = False  # joined at the end

    def handle_error(self, request, client_address):
        """A client that went away is what these tests are about."""


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server(("127.0.0.1", 0), Handler) as server:
        server.site = Site(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.site
        server.site.over.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def goal(tmp_path) -> Path:
    return tmp_path / "data" / "file.bin"


def names(goal: Path) -> list[str]:
    """Everything beside the goal, hidden files too."""
    return sorted(p.name for p in goal.parent.iterdir())


PART = ["file.bin.part", "file.bin.part.json"]


# --- as it should be ------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [True, False])
def test_a_file_comes_whole_with_progress(site, goal, length):
    site.length, seen = length, []
    assert fetch(site.url, goal, SHA, None, lambda *x: seen.append(x), **QUICK) == goal
    assert goal.read_bytes() == CONTENT
    assert names(goal) == ["file.bin"]
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (len(CONTENT), len(CONTENT) if length else None)
    assert site.starts() == [None]


def test_a_file_that_is_there_is_not_downloaded(site, goal):
    fetch(site.url, goal, SHA, len(CONTENT), **QUICK)
    fetch(site.url, goal, SHA.upper(), len(CONTENT), **QUICK)
    fetch(site.url, goal, None, **QUICK)
    assert len(site.requests) == 1
    fetch(site.url, goal, SHA, force=True, **QUICK)
    assert len(site.requests) == 2


def test_a_wrong_file_that_is_there_is_kept_and_reported(site, goal):
    goal.parent.mkdir()
    goal.write_bytes(b"by hand")
    found = hashlib.sha256(b"by hand").hexdigest()
    with pytest.raises(DataError, match=f"file.bin: has SHA-256 {found}, expected {SHA}.*--force"):
        fetch(site.url, goal, SHA, **QUICK)
    with pytest.raises(DataError, match="has 7 bytes, expected 700,000"):
        fetch(site.url, goal, SHA, len(CONTENT), **QUICK)
    assert goal.read_bytes() == b"by hand"
    assert site.requests == []
    site.content = OTHER
    with pytest.raises(DataError, match="it was removed"):
        fetch(site.url, goal, SHA, force=True, **QUICK)
    assert goal.read_bytes() == b"by hand"  # a bad download replaces nothing
    assert names(goal) == ["file.bin"]


# --- cut off --------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True], ids=["end", "reset"])
def test_a_cut_connection_is_resumed_in_the_same_call(site, goal, reset):
    site.cuts, site.reset = [100_000, 300_000], reset
    fetch(site.url, goal, SHA, **QUICK)
    assert goal.read_bytes() == CONTENT
    assert names(goal) == ["file.bin"]
    assert site.starts() == [None, "bytes=100000-", "bytes=400000-"]
    assert site.requests[1]["If-Range"] == '"v1"'


def test_what_is_always_cut_is_continued_by_the_next_call(site, goal):
    site.cuts = [100_000] * 3
    with pytest.raises(DataError) as caught:
        fetch(site.url, goal, SHA, attempts=3, **QUICK)
    assert "300,000 of 700,000 bytes are kept in" in caught.value.message
    assert "repeat the command to continue" in caught.value.message
    assert names(goal) == PART
    assert (goal.parent / PART[0]).read_bytes() == CONTENT[:300_000]
    seen = []
    fetch(site.url, goal, SHA, None, lambda *x: seen.append(x), **QUICK)
    assert goal.read_bytes() == CONTENT
    assert names(goal) == ["file.bin"]
    assert site.starts()[3:] == ["bytes=300000-"]
    assert seen[0][0] > 300_000


def test_a_server_without_ranges_starts_over(site, goal):
    site.cuts, site.ranges = [100_000], False
    fetch(site.url, goal, SHA, **QUICK)
    assert goal.read_bytes() == CONTENT
    assert site.starts() == [None, "bytes=100000-"]


@pytest.mark.parametrize("version", ["", 'W/"v1"'], ids=["none", "weak"])
def test_without_the_name_of_a_version_nothing_is_continued(site, goal, version):
    site.cuts, site.version = [100_000] * 2, version
    with pytest.raises(DataError, match="the connection was cut"):
        fetch(site.url, goal, SHA, attempts=2, **QUICK)
    assert names(goal) == []  # it would be of no use
    fetch(site.url, goal, SHA, **QUICK)
    assert goal.read_bytes() == CONTENT
    assert site.starts() == [None] * 3


@pytest.mark.parametrize("if_range", [True, False])
def test_a_changed_file_is_not_glued_to_an_old_part(site, goal, if_range):
    site.cuts = [100_000]
    with pytest.raises(DataError, match="100,000 of 700,000 bytes"):
        fetch(site.url, goal, None, attempts=1, **QUICK)
    # a server that does not know If-Range continues the wrong file, but calls it by its name
    site.content, site.version, site.if_range = OTHER, '"v2"', if_range
    fetch(site.url, goal, None, **QUICK)  # no checksum that could help
    assert goal.read_bytes() == OTHER
    assert names(goal) == ["file.bin"]


def test_another_address_does_not_continue_a_part(site, goal):
    site.cuts = [100_000]
    with pytest.raises(DataError, match="are kept"):
        fetch(site.url, goal, SHA, attempts=1, **QUICK)
    fetch(site.url + "?mirror", goal, SHA, **QUICK)
    assert site.starts() == [None, None]
    assert goal.read_bytes() == CONTENT


@pytest.mark.parametrize("side", [b"", b"[1]", b'{"url": "'], ids=["empty", "list", "cut"])
def test_a_part_without_its_side_file_is_not_used(site, goal, side):
    goal.parent.mkdir()
    (goal.parent / PART[0]).write_bytes(b"?" * 1000)
    (goal.parent / PART[1]).write_bytes(side)
    fetch(site.url, goal, SHA, **QUICK)
    assert goal.read_bytes() == CONTENT
    assert site.starts() == [None]


def test_a_part_of_another_place_is_not_used(site, goal):
    site.cuts, site.shift = [100_000], -500
    fetch(site.url, goal, None, **QUICK)  # no checksum that could help
    assert goal.read_bytes() == CONTENT
    assert site.starts() == [None, "bytes=100000-", None]


def interrupted(site: Site, goal: Path, part: bytes, total: str = "null") -> None:
    """Leave a part as after a kill; null: the server did not say how long the file is."""
    goal.parent.mkdir()
    (goal.parent / PART[0]).write_bytes(part)
    about = f'{{"url": "{site.url}", "version": "\\"v1\\"", "total": {total}}}'
    (goal.parent / PART[1]).write_text(about)


def test_a_part_that_is_the_whole_file_is_taken(site, goal):
    interrupted(site, goal, CONTENT)
    fetch(site.url, goal, SHA, **QUICK)  # the server answers 416
    assert site.starts() == ["bytes=700000-"]
    assert goal.read_bytes() == CONTENT
    assert names(goal) == ["file.bin"]


def test_a_kill_between_the_last_byte_and_the_name(site, goal):
    interrupted(site, goal, CONTENT, "700000")
    fetch(site.url, goal, SHA, **QUICK)
    assert site.requests == []
    assert goal.read_bytes() == CONTENT
    interrupted(site, goal.parent / "x" / "file.bin", OTHER, "700000")
    with pytest.raises(DataError, match="it was removed"):
        fetch(site.url, goal.parent / "x" / "file.bin", SHA, **QUICK)
    assert list((goal.parent / "x").iterdir()) == []


def test_a_part_that_is_longer_than_the_file_is_dropped(site, goal):
    interrupted(site, goal, CONTENT + b"more")
    fetch(site.url, goal, SHA, **QUICK)
    assert site.starts() == ["bytes=700004-", None]
    assert goal.read_bytes() == CONTENT


def test_a_cut_that_looks_like_the_end(site, goal):
    site.cuts, site.length = [100_000], False
    with pytest.raises(DataError, match=r"SHA-256 .*it was removed"):
        fetch(site.url, goal, SHA, **QUICK)
    assert names(goal) == []
    site.cuts = [100_000]
    fetch(site.url, goal, SHA, len(CONTENT), **QUICK)  # who knows the size knows that it was cut
    assert site.starts() == [None, None, "bytes=100000-"]
    assert goal.read_bytes() == CONTENT


def test_a_stalled_connection_counts_as_cut(site, goal):
    site.cuts, site.stalls = [100_000], True
    started = time.monotonic()
    fetch(site.url, goal, SHA, pause=0.01, timeout=0.3)
    assert time.monotonic() - started < 5
    assert goal.read_bytes() == CONTENT
    assert site.starts() == [None, "bytes=100000-"]


def test_a_busy_server_is_asked_again(site, goal):
    site.statuses = [503, 429]
    fetch(site.url, goal, SHA, **QUICK)
    assert goal.read_bytes() == CONTENT
    site.statuses = [503] * 2
    with pytest.raises(DataError, match=f"{site.url}: the server answers 503"):
        fetch(site.url, goal, SHA, attempts=2, force=True, **QUICK)
    assert names(goal) == ["file.bin"]


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_names_address_and_status(site, goal, status):
    site.statuses = [status]
    with pytest.raises(DataError, match=f"{site.url}: the server answers {status} ") as caught:
        fetch(site.url, goal, SHA, **QUICK)
    assert f"put it at {goal} (SHA-256 {SHA})" in caught.value.message
    assert len(site.requests) == 1  # asking again would not help
    assert names(goal) == []


def test_a_wrong_checksum_removes_the_download(site, goal):
    site.content = OTHER
    found = hashlib.sha256(OTHER).hexdigest()
    with pytest.raises(DataError, match=f"has SHA-256 {found}, expected {SHA}; it was removed"):
        fetch(site.url, goal, SHA, **QUICK)
    assert names(goal) == []


def test_a_wrong_size_is_refused_before_it_comes(site, goal):
    seen = []
    with pytest.raises(DataError, match="the server has 700,000 bytes, expected 699,999"):
        fetch(site.url, goal, SHA, 699_999, lambda *x: seen.append(x), **QUICK)
    assert seen == []
    assert names(goal) == []


@pytest.mark.parametrize(
    "url", ["http://example.invalid/x", "ftp://127.0.0.1/x", "file:///etc/passwd", "https:///x"]
)
def test_only_https_is_downloaded(goal, url):
    with pytest.raises(DataError, match="only https"):
        fetch(url, goal, SHA)
    assert not goal.parent.exists()


@pytest.mark.parametrize("location", ["http://example.invalid/file.bin", "ftp://127.0.0.1/file"])
def test_a_redirect_to_something_else_than_https_is_refused(site, goal, location):
    site.statuses, site.location = [302], location
    with pytest.raises(DataError, match=r"302|not https") as caught:
        fetch(site.url, goal, SHA, **QUICK)
    assert caught.value.path == site.url
    assert len(site.requests) == 1
    assert names(goal) == []


def test_which_redirects_are_followed(site, goal):
    site.statuses, site.location = [302], "/elsewhere"  # within this machine
    fetch(site.url, goal, SHA, **QUICK)
    assert goal.read_bytes() == CONTENT
    follow = download._Redirects().redirect_request
    secure = urllib.request.Request("https://example.invalid/x", headers={"Range": "bytes=5-"})
    with open(goal, "rb") as fp:
        onward = follow(secure, fp, 302, "Found", {}, "https://mirror.invalid/x")
        assert onward.full_url == "https://mirror.invalid/x"
        assert onward.headers["Range"] == "bytes=5-"
        with pytest.raises(DataError, match=r"redirects to http://127\.0\.0\.1/x.*refused"):
            follow(secure, fp, 302, "Found", {}, "http://127.0.0.1/x")


# --- no network, no room --------------------------------------------------------------------------


def test_no_server_says_what_to_do_by_hand(site, goal):
    with socket.socket() as free:  # bound, but nobody listens
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/file.bin"
        with pytest.raises(DataError, match=r"cannot be reached \(Connection refused\)") as caught:
            fetch(url, goal, SHA, pause=1000)  # and does not wait
    assert f"put it at {goal} (SHA-256 {SHA})" in caught.value.message
    assert names(goal) == []


def test_no_name_resolution_says_what_to_do_by_hand(goal, monkeypatch):
    def getaddrinfo(*args, **options):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(DataError, match="Temporary failure in name resolution") as caught:
        fetch("https://example.invalid/file.bin", goal, SHA, pause=1000)
    assert f"put it at {goal} (SHA-256 {SHA})" in caught.value.message
    assert names(goal) == []


def test_a_full_disk_keeps_the_part_and_the_next_call_continues(site, goal, monkeypatch):
    def write(file, block):
        file.write(block[:1000])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(download, "_write", write)
        with pytest.raises(DataError, match="the disk is full; 1,000 bytes are kept") as caught:
            fetch(site.url, goal, SHA, **QUICK)
    assert caught.value.path == str(goal.parent / PART[0])
    assert len(site.requests) == 1
    assert names(goal) == PART
    fetch(site.url, goal, SHA, **QUICK)
    assert site.starts() == [None, "bytes=1000-"]
    assert goal.read_bytes() == CONTENT


def test_another_error_of_the_disk_is_not_taken_for_one_of_the_network(site, goal, monkeypatch):
    def write(file, block):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(download, "_write", write)
    with pytest.raises(OSError, match="Input/output error"):
        fetch(site.url, goal, SHA, **QUICK)
    assert len(site.requests) == 1


def test_two_processes_do_not_write_one_part(site, goal):
    site.cuts, site.stalls = [100_000], True
    first = threading.Thread(target=fetch, args=(site.url, goal, SHA), kwargs=QUICK)
    first.start()
    deadline = time.monotonic() + 5
    while not (goal.parent / PART[0]).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(DataError, match="another process is downloading it"):
        fetch(site.url, goal, SHA, **QUICK)
    site.over.set()
    first.join()
    assert goal.read_bytes() == CONTENT
    assert names(goal) == ["file.bin"]
