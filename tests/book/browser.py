"""A small client of the WebDriver protocol, for tests in a real browser."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

DRIVER = shutil.which("chromedriver")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
HERE = bool(DRIVER and BROWSER)
ABSENT = "no Chromium with its driver"

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--allow-file-access-from-files"]
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # what the protocol calls an element's id
RIGHT = "\ue014"  # the key of the arrow


class Driver:
    """The few calls of the WebDriver protocol that these tests need."""

    def __init__(self, address: str, width: int, profile: Path):
        self.address, self.width = address, width
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

    def open(self, page: Path) -> None:
        self.call("POST", f"{self.session}/url", {"url": page.as_uri()})

    def js(self, script: str):
        return self.call("POST", f"{self.session}/execute/sync", {"script": script, "args": []})

    def wait(self, script: str, seconds: float = 10):
        """Until what the script returns is true."""
        end = time.monotonic() + seconds
        while not (value := self.js(script)):
            assert time.monotonic() < end, f"not true after {seconds} s: {script}"
            time.sleep(0.02)
        return value

    def keys(self, selector: str, text: str) -> None:
        """Type into the first element that matches."""
        wanted = {"using": "css selector", "value": selector}
        element = self.call("POST", f"{self.session}/element", wanted)[ELEMENT]
        self.call("POST", f"{self.session}/element/{element}/value", {"text": text})

    def devtools(self, command: str, **parameters):
        """A command of the DevTools protocol."""
        return self.call("POST", f"{self.session}/goog/cdp/execute",
                         {"cmd": command, "params": parameters})

    def errors(self) -> list[str]:
        lines = self.call("POST", f"{self.session}/se/log", {"type": "browser"})
        # the theme complains once that nobody has chosen a mode yet
        return [x["message"] for x in lines
                if x["level"] == "SEVERE" and "invalid theme mode" not in x["message"]]

    def resources(self) -> list[str]:
        """Addresses outside files and the page itself that the page has asked for."""
        return self.js("return performance.getEntriesByType('resource').map(r => r.name)"
                       ".filter(n => !n.startsWith('file:') && !n.startsWith('data:'));")

    def close(self) -> None:
        self.call("DELETE", self.session)


@contextlib.contextmanager
def chromedriver() -> Iterator[str]:
    """The address of a driver that lives as long as the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, env={**os.environ, "LANG": "C"})
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
