"""The built book in a real browser. Skipped where there is no book or no Chromium."""

from pathlib import Path

import pytest

from .browser import ABSENT, HERE, Driver, chromedriver

ROOT = Path(__file__).parents[2]
HTML = ROOT / "_build" / "html"
PAGES = sorted(str(p.relative_to(HTML)) for folder in ("book", "results/notebooks")
               for p in (HTML / folder).glob("*.html"))

pytestmark = [
    pytest.mark.skipif(not PAGES, reason="no built book: make book"),
    pytest.mark.skipif(not HERE, reason=ABSENT),
]

DEBRIS = ("Traceback (most recent call last)", "it/s]", "cell/s]", "run/s]", "[IPKernelApp]",
          "Warning:", "nan [", "[nan")


@pytest.fixture(scope="module")
def address():
    with chromedriver() as address:
        yield address


@pytest.fixture(scope="module", params=[1280, 400])
def browser(request, address, tmp_path_factory):
    driver = Driver(address, request.param, tmp_path_factory.mktemp("profile"))
    yield driver
    driver.close()


@pytest.mark.parametrize("page", PAGES)
def test_page(browser, page):
    browser.open(HTML / page)
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
    browser.open(HTML / page)
    assert browser.resources() == []


def test_solutions_are_folded_until_asked_for(browser):
    page = next(p for p in PAGES if "01_synthetic" in p)
    browser.open(HTML / page)
    count = "return document.querySelectorAll('div.solution').length;"
    assert browser.js(count) >= 3
    hidden = browser.js("return [...document.querySelectorAll('div.solution')]"
                        ".every(s => s.offsetHeight < 120);")
    assert hidden


def test_the_explorer_moves_on_its_page(browser):
    browser.open(HTML / next(p for p in PAGES if "10_attention" in p))
    maps = "document.querySelectorAll('.sptlib-explorer canvas.map')"
    shown = f"return [...{maps}].map(c => c.toDataURL());"
    frame = "return document.querySelector('.sptlib-explorer').dataset.frame"
    browser.wait(f"{frame} === '0' && (() => {{ {shown} }})().length === 2;")
    before = browser.js(shown)
    browser.keys(".sptlib-explorer .time", "\ue014\ue014")  # the right arrow, twice
    browser.wait(f"{frame} === '2';")
    after = browser.js(shown)
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert browser.js("return document.querySelector('.sptlib-explorer img').offsetHeight;") == 0
    assert browser.errors() == []
