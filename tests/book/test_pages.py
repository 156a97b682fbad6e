"""The built book in a real browser. Skipped where there is no book or no Chromium."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HTML = ROOT / "_build" / "html"
PAGES = sorted(str(p.relative_to(HTML)) for folder in ("book", "results/notebooks")
               for p in (HTML / folder).glob("*.html"))
DRIVER = shutil.which("chromedriver")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.skipif(not PAGES, reason="no built book: make book"),
    pytest.mark.skipif(not (DRIVER and BROWSER), reason="no Chromium with its driver"),
]

DEBRIS = ("Traceback (most recent call last)", "it/s]", "cell/s]", "run/s]", "[IPKernelApp]",
          "Warning:", "nan [", "[nan")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--allow-file-access-from-files"]


class Driver:
    """The few calls of the WebDriver protocol that these tests need."""

    def __init__(self, address: str, width: int, profile: Path):
        self.address = address
        options = {"args": [*FLAGS, f"--user-data-dir={profile}"], "binary": BROWSER,
                   "mobileEmulation": {"deviceMetrics": {"width": width, "height": 900,
                                                         "pixelRatio": 1, "mobile": False}}}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options,
                  "goog:loggingPrefs": {"browser": "ALL"}}
        made = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{made['sessionId']}"

    def call(self, method: str, path: str, body: dict | None = None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, method=method,
                                         headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, page: str) -> None:
        self.call("POST", f"{self.session}/url", {"url": (HTML / page).as_uri()})

    def js(self, script: str):
        return self.call("POST", f"{self.session}/execute/sync", {"script": script, "args": []})

    def errors(self) -> list[str]:
        lines = self.call("POST", f"{self.session}/se/log", {"type": "browser"})
        # the theme complains once that nobody has chosen a mode yet
        return [x["message"] for x in lines
                if x["level"] == "SEVERE" and "invalid theme mode" not in x["message"]]

    def close(self) -> None:
        self.call("DELETE", self.session)


@pytest.fixture(scope="module")
def chromedriver():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, env={**os.environ, "LANG": "C"})
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            break
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


@pytest.fixture(scope="module", params=[1280, 400])
def browser(request, chromedriver, tmp_path_factory):
    driver = Driver(chromedriver, request.param, tmp_path_factory.mktemp("profile"))
    driver.width = request.param
    yield driver
    driver.close()


@pytest.mark.parametrize("page", PAGES)
def test_page(browser, page):
    browser.open(page)
    for mode in ("light", "dark"):
        browser.js(f"document.documentElement.dataset.theme = '{mode}';")
        wide = browser.js("return document.documentElement.scrollWidth;")
        assert wide <= browser.width, f"{page} is {wide} px wide in a window of {browser.width}"
    text = browser.js("return document.querySelector('main').textContent;")
    assert not [d for d in DEBRIS if d in text]
    broken = browser.js("return [...document.images].filter(i => i.complete && !i.naturalWidth)"
                        ".map(i => i.src);")
    assert broken == []
    silent = browser.js("return [...document.querySelectorAll('main img')]"
                        ".filter(i => !i.alt || i.alt.startsWith('../')).map(i => i.src);")
    assert silent == [], "pictures without a description"
    assert browser.errors() == []


@pytest.mark.parametrize("page", PAGES)
def test_needs_no_network(browser, page):
    browser.open(page)
    outside = browser.js(
        "return performance.getEntriesByType('resource').map(r => r.name)"
        ".filter(n => !n.startsWith('file:') && !n.startsWith('data:'));")
    assert outside == []


def test_solutions_are_folded_until_asked_for(browser):
    page = next(p for p in PAGES if "01_synthetic" in p)
    browser.open(page)
    count = "return document.querySelectorAll('div.solution').length;"
    assert browser.js(count) >= 3
    hidden = browser.js("return [...document.querySelectorAll('div.solution')]"
                        ".every(s => s.offsetHeight < 120);")
    assert hidden
