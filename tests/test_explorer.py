"""The attention explorer: what it sends, and what a browser makes of it."""

import base64
import contextlib
import io
import json
import re
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image

from sptlib import explorer
from sptlib.analysis.attention import distance_profile, proximity, uniform_proximity
from sptlib.errors import ConfigError
from sptlib.explorer import Explorer, Film, pooled, sprite

from .book.browser import ABSENT, HERE, RIGHT, Driver, chromedriver


def made_up(strengths: list[float], T=40, L=1, H=1, seed=0) -> torch.Tensor:
    """From noise to a band: (S, L, H, T, T). Heads look to different sides."""
    draw = torch.Generator().manual_seed(seed)
    t = torch.arange(T)
    side = torch.arange(L * H).reshape(L, H, 1, 1) % 2 * 2 - 1
    band = 5 - (t[None] - t[:, None] - side).abs().clamp(max=6).float()
    noise = torch.randn(L, H, T, T, generator=draw)
    return torch.stack([(0.5 * noise + s * band).softmax(-1) for s in strengths])


def film(title: str, strengths: list[float], **sizes) -> Film:
    n = len(strengths)
    first = n // 2
    steps = [10 * i for i in range(first)] + [10 * i for i in range(n - first)]
    return Film(title, steps, ["pretraining"] * first + ["labels"] * (n - first),
                made_up(strengths, **sizes), [f"loss {2 - 0.1 * i:.2f}" for i in range(n)])


def two(**sizes) -> list[Film]:
    """11 and 6 frames: the second film shows each of its frames for two stops."""
    return [film("<scratch>", [0.01 * i for i in range(11)], **sizes),
            film("SPT, then labels", [0.2 * i for i in range(6)], seed=1, **sizes)]


@cache
def one() -> Explorer:
    return Explorer(two(), label="a </script> & b")


@cache
def many() -> Explorer:
    """Two layers of two heads."""
    return Explorer(two(L=2, H=2), label="many", unit="pixel")


def parts(shown: Explorer) -> tuple[str, dict]:
    """The HTML without what is in base64, and the script's data."""
    text = shown.html()
    data = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.S)[1]
    return re.sub(r"[A-Za-z0-9+/=]{200,}", "", text), json.loads(data)


def png(text: str) -> Image.Image:
    image = Image.open(io.BytesIO(base64.b64decode(text)))
    image.load()
    return image


# --- what is sent ----------------------------------------------------------------------------


def test_bundle_has_a_still_for_readers_without_scripts():
    bundle = one()._repr_mimebundle_()
    assert set(bundle) == {"text/html", "image/png", "text/plain"}
    still = png(bundle["image/png"])
    assert still.width > 600
    assert still.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert len(still.convert("RGB").getcolors()) > 100
    (image,) = re.findall(r"<img [^>]*>", bundle["text/html"])
    assert f'src="data:image/png;base64,{bundle["image/png"]}"' in image
    alt = re.search(r'alt="([^"]*)"', image)[1]
    assert alt.startswith("a &lt;/script&gt; &amp; b. ")
    near = [proximity(two()[0].maps[f]).item() for f in (0, 5, 10)]
    assert (f"&lt;scratch&gt;: {near[0]:.2f} at pretraining step 0, {near[1]:.2f} at labels step 0,"
            f" {near[2]:.2f} at labels step 50; SPT") in alt  # fmt: skip
    assert alt.endswith(f"uniform: {uniform_proximity(40):.2f}.")


def test_nothing_comes_from_outside():
    text, _ = parts(one())
    assert "http" not in text
    assert "<script src" not in text
    assert set(re.findall(r"""(?:src|href)=["']?(\w+:)""", text)) == {"data:"}
    assert not re.findall(r"@import|url\(", text)


def test_two_explorers_have_different_ids():
    ids = [set(re.findall(r'\bid="([^"]+)"', x.html())) for x in (one(), one(), many())]
    assert all(ids)
    assert len(set.union(*ids)) == sum(map(len, ids))


def test_maps_survive_eight_bits():
    films = two(L=2, H=2)
    _, data = parts(many())
    for sent, given in zip(data["films"], films, strict=True):
        assert sent["steps"] == given.steps
        for i in range(2):
            for j in range(2):
                grey = np.asarray(png(sent["sprites"][i][j])).reshape(-1, 40, 40)
                found = (grey / 255.0) ** 2 * data["top"]
                expected = given.maps[:, i, j].numpy()
                assert np.abs(np.sqrt(found) - np.sqrt(expected)).max() <= 0.51 / 255
                mass = proximity(torch.tensor(found / found.sum(-1, keepdims=True)))
                assert torch.allclose(mass.float(), proximity(given.maps[:, i, j]), atol=0.01)


def test_a_typical_figure_is_small():
    strengths = [0.1 * i for i in range(21)]
    shown = Explorer([film("a", strengths, T=100), film("b", strengths, T=100)], label="x")
    assert len(shown.html()) < 700_000


def test_long_maps_are_pooled():
    maps = made_up([0.0, 1.0], T=300)
    shown = Explorer([Film("a", [0, 1], ["s"] * 2, maps, [""] * 2)], label="x", unit="pixel")
    text, data = parts(shown)
    assert (data["size"], data["block"], data["positions"]) == (100, 3, 300)
    assert "3 pixels are shown as one block" in text
    small = pooled(maps, 7)  # the last of 43 blocks has 6
    assert small.shape[-2:] == (43, 43)
    assert torch.allclose(small.sum(-1), torch.ones(()))
    assert torch.allclose(small[..., 1, 2], maps[..., 7:14, 14:21].sum(-1).mean(-1))
    assert torch.allclose(small[..., 42, 42], maps[..., 294:, 294:].sum(-1).mean(-1))


def test_text_cannot_leave_its_place():
    text, data = parts(one())
    assert data["films"][0]["title"] == "<scratch>"
    assert "<scratch>" not in text
    assert text.count("</script>") == 2


def test_errors(monkeypatch):
    good = film("a", [0.0, 1.0])
    with pytest.raises(ConfigError, match="at least one film"):
        Explorer([], label="x")
    with pytest.raises(ConfigError, match=r"different shapes.*40, 40.*30, 30"):
        Explorer([good, film("b", [0.0], T=30)], label="x")
    monkeypatch.setattr(explorer, "MOST_BYTES", 20_000)
    with pytest.raises(ConfigError, match="take fewer frames, layers or heads"):
        Explorer([good], label="x")


@pytest.mark.parametrize(("change", "message"), [
    ({"steps": [0]}, "2 frames"),
    ({"stages": ["s"] * 3}, "2 frames"),
    ({"notes": []}, "2 frames"),
    ({"maps": made_up([0.0, 1.0])[:, 0]}, r"expected \(S, L, H, T, T\)"),
    ({"maps": made_up([0.0, 1.0])[..., :39]}, r"expected \(S, L, H, T, T\)"),
    ({"steps": [5, 5]}, "do not ascend"),
    ({"maps": torch.full((2, 1, 1, 4, 4), torch.nan)}, "NaN"),
    ({"maps": torch.full((2, 1, 1, 4, 4), 0.5)}, "rows of the maps sum to 2"),
])  # fmt: skip
def test_film_errors(change, message):
    fields = {"title": "a", "steps": [0, 1], "stages": ["s", "s"], "notes": ["", ""],
              "maps": made_up([0.0, 1.0])}  # fmt: skip
    Film(**fields)
    with pytest.raises(ConfigError, match=message):
        Film(**fields | change)


def test_sprite_is_one_column_of_frames():
    image = png(sprite(made_up([0.0, 1.0, 2.0])[:, 0, 0], 1.0))
    assert (image.mode, image.size) == ("L", (40, 120))


# --- what a browser makes of it --------------------------------------------------------------


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """Makes browsers of any width."""
    if not HERE:
        pytest.skip(ABSENT)
    with chromedriver() as address:
        yield lambda width: Driver(address, width, tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def browser(driver):
    with contextlib.closing(driver(1100)) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Two explorers: one of a layer and a head, one of two each."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    body = one().html() + many().html()
    path.write_text('<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" '
                    f'content="width=device-width"><body>{body}</body></html>')  # fmt: skip
    return path


def open_and_wait(browser, page) -> None:
    browser.open(page)
    browser.wait("return document.querySelectorAll('.sptlib-explorer.ready').length == 2;")


@pytest.fixture
def opened(browser, page):
    open_and_wait(browser, page)
    yield browser
    assert browser.errors() == []
    assert browser.resources() == []


ROOT = "const root = document.querySelectorAll('.sptlib-explorer')"


def pictures(browser, which: int = 0, kind: str = "map") -> list[str]:
    return browser.js(f"{ROOT}[{which}]; return [...root.querySelectorAll('canvas.{kind}')]"
                      ".map(c => c.toDataURL());")


def captions(browser, which: int = 0) -> list[str]:
    return browser.js(f"{ROOT}[{which}]; return [...root.querySelectorAll('.caption')]"
                      ".map(c => c.innerText);")


def visible(browser, selector: str) -> list[bool]:
    return browser.js(f"return [...document.querySelectorAll('{selector}')]"
                      ".map(x => x.getClientRects().length > 0);")


def test_slider_walks_through_the_trainings(opened):
    films = two()
    assert captions(opened)[0].startswith("pretraining · step 0 · loss 2.00\n")
    seen = [pictures(opened)]
    untouched = pictures(opened, 1)
    for stop in range(1, 11):
        opened.keys(".time", RIGHT)
        assert opened.js(f"{ROOT}[0]; return root.dataset.frame;") == str(stop)
        seen.append(pictures(opened))
        labels = opened.js("return [...document.querySelectorAll('.map')].map(c => c.ariaLabel);")
        for i, (caption, given) in enumerate(zip(captions(opened), films, strict=True)):
            f = int(stop * (len(given.steps) - 1) / 10 + 0.5)
            when, mass = caption.split("\n\n")
            assert when == f"{given.stages[f]} · step {given.steps[f]} · {given.notes[f]}"
            found = re.fullmatch(r"within 2 positions: (\S+) of .* \(uniform: (\S+)\)", mass)
            near = float(proximity(given.maps[f, 0, 0]))
            assert float(found[1]) == pytest.approx(near, abs=0.02)
            assert float(found[2]) == pytest.approx(uniform_proximity(40), abs=0.005)
            assert f"{when}; {mass}" in labels[i]
    assert len({first for first, _ in seen}) == 11
    assert len({second for _, second in seen}) == 6, "the nearest of its six frames"
    assert pictures(opened, 1) == untouched, "the other explorer stays"


def test_profile_is_that_of_the_library(opened):
    opened.keys(".time", RIGHT * 10)
    label = opened.js("return document.querySelectorAll('.profile')[1].ariaLabel;")
    distances, weights = distance_profile(two()[1].maps[-1, 0, 0])
    peak = max(range(21), key=weights.__getitem__)
    found = re.search(r"the largest is (\S+), at (\S+); uniform attention has (\S+)\.$", label)
    assert float(found[1]) == pytest.approx(weights[peak], abs=0.01)
    assert int(found[2].replace("−", "-")) == distances[peak]
    assert float(found[3]) == 0.025


def test_selectors(opened):
    shown = visible(opened, ".layer, .head")
    assert shown == [False, False, True, True], "there is nothing to choose in the first"
    opened.js("for (const x of document.querySelectorAll('.time')) "
              "{ x.value = 10; x.dispatchEvent(new Event('input')); }")
    films, seen = two(L=2, H=2), set()
    for layer in (0, 1):
        for head in ("mean", 0, 1):
            opened.js(f"{ROOT}[1]; for (const [name, value] of [['.layer', '{layer}'], "
                      f"['.head', '{head}']]) {{ const x = root.querySelector(name); "
                      "x.value = value; x.dispatchEvent(new Event('change')); }")
            maps = films[1].maps[-1, layer]
            expected = proximity(maps.mean(0) if head == "mean" else maps[head])
            found = re.search(r"within 2 pixels: (\S+)", captions(opened, 1)[1])[1]
            assert float(found) == pytest.approx(float(expected), abs=0.02)
            seen.add(pictures(opened, 1)[1])
    assert len(seen) == 6


def test_pointing_reads_a_weight(opened):
    opened.keys(".time", RIGHT * 10)
    opened.js("const map = document.querySelectorAll('.map')[1]; const side = map.clientWidth - 48;"
              "const box = map.getBoundingClientRect(); const at = k => (k + 0.5) / 40 * side;"
              "map.dispatchEvent(new PointerEvent('pointermove', "
              "{clientX: box.left + 46 + at(11), clientY: box.top + 38 + at(12)}));")
    texts = opened.js("return [...document.querySelectorAll('.probe')].map(p => p.innerText);")
    for text, given in zip(texts, two(), strict=False):
        found = re.fullmatch(r"query 12 → key 11: (\S+)", text)
        assert float(found[1]) == pytest.approx(float(given.maps[-1, 0, 0, 12, 11]), abs=0.01)


def test_dark_mode(opened):
    look = ("const s = getComputedStyle(document.querySelector('.sptlib-explorer'));"
            "return [s.color, s.backgroundColor].map(c => c.match(/[0-9.]+/g)"
            ".slice(0, 3).reduce((a, b) => a + +b / 3, 0));")
    corner = ("const c = document.querySelector('.profile');"
              "return [...c.getContext('2d').getImageData(1, 1, 1, 1).data].slice(0, 3);")
    light = pictures(opened, kind="profile")
    ink, paper = opened.js(look)
    assert paper - ink > 150
    assert min(opened.js(corner)) > 200
    opened.js("document.documentElement.dataset.theme = 'dark';")
    opened.wait(f"{corner.replace('return', 'return Math.max(...')[:-1]}) < 60;")
    ink, paper = opened.js(look)
    assert ink - paper > 150
    assert all(a != b for a, b in zip(light, pictures(opened, kind="profile"), strict=True))


def left_edges(browser) -> list[float]:
    return browser.js(f"{ROOT}[0]; return [...root.querySelectorAll('.map')]"
                      ".map(c => c.getBoundingClientRect().left);")


def test_films_are_side_by_side_where_there_is_room(opened):
    left, right = left_edges(opened)
    assert left + 400 < right


def test_telephones_show_one_below_the_other(driver, page):
    with contextlib.closing(driver(400)) as narrow:
        open_and_wait(narrow, page)
        assert narrow.js("return innerWidth;") == 400
        assert narrow.js("return document.documentElement.scrollWidth;") <= 400
        left, right = left_edges(narrow)
        assert left == right
        before = pictures(narrow)
        narrow.keys(".time", RIGHT)
        assert all(a != b for a, b in zip(before, pictures(narrow), strict=True))
        assert narrow.errors() == []


def test_plays_only_when_asked(opened):
    frame = f"{ROOT}[0]; return root.dataset.frame;"
    assert opened.js(frame) == "0"
    opened.js("const run = setInterval; window.setInterval = (f, ms) => run(f, 10 + 0 * ms);"
              "document.querySelector('.play').click();")
    opened.wait(f"{frame[:-1]} == '10';")
    opened.wait("return document.querySelector('.play').textContent.includes('Play');")
    assert opened.js("return document.querySelector('.caption').ariaLive;") == "polite"


def test_still_is_for_paper_and_for_readers_without_scripts(opened, page):
    assert visible(opened, ".still") == [False, False]
    assert visible(opened, ".live") == [True, True]
    try:
        opened.devtools("Emulation.setEmulatedMedia", media="print")
        assert visible(opened, ".still") == [True, True]
        assert visible(opened, ".live") == [False, False]
        opened.devtools("Emulation.setEmulatedMedia", media="")
        opened.devtools("Emulation.setScriptExecutionDisabled", value=True)
        opened.open(page)
        assert opened.js("return document.querySelectorAll('.ready').length;") == 0
        assert visible(opened, ".still") == [True, True]
        assert visible(opened, ".live") == [False, False]
        widths = opened.js("return [...document.images].map(i => i.naturalWidth && i.width);")
        assert all(600 < width < 1100 for width in widths)
    finally:
        opened.devtools("Emulation.setEmulatedMedia", media="")
        opened.devtools("Emulation.setScriptExecutionDisabled", value=False)
