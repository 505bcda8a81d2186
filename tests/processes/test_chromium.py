"""The pages in a real browser: headless Chromium, driven by Playwright.

The tests use the system's Chromium (``apt-get install chromium``) and start it once per module.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import need, write_tar
from looks import browsing, write

import wids
from wids.looking.html import sample_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    need(importlib.util.find_spec("playwright"), "pip install playwright")
    need(CHROMIUM, "apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("looks"), 200)


class Tab:
    """A tab of the browser that records errors, and requests to any other server."""

    def __init__(self, chromium: Any, url: str, **options: Any) -> None:
        self.url = url
        self.page = chromium.new_page(**{"viewport": {"width": 1200, "height": 800}, **options})
        self.errors: list[str] = []
        self.foreign_requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._record_error)
        self.page.on("request", self._record_request)
        self.page.goto(url)
        self.page.wait_for_selector("#grid a")

    def _record_error(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _record_request(self, request: Any) -> None:
        if not request.url.startswith((self.url.partition("#")[0], "data:")):
            self.foreign_requests.append(request.url)

    def indices(self) -> list[int]:
        """Return the samples of the grid."""
        links = self.page.eval_on_selector_all("#grid a", "links => links.map(a => a.href)")
        return [int(re.findall(r"sample=(\d+)", link)[0]) for link in links]

    def wait_for_first(self, index: int) -> None:
        """Wait until the grid begins with a sample."""
        self.page.wait_for_selector(f'#grid a:first-child[href*="sample={index}"]')

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.page.close()
        if kind is None:
            assert (self.errors, self.foreign_requests) == ([], [])


def test_paging(chromium: Any, spec: Path) -> None:
    """Buttons and arrow keys turn pages forwards and backwards, to the end."""
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        assert tab.indices() == list(range(48))
        assert tab.page.is_disabled("#previous-page")
        tab.page.click("#next-page")
        tab.wait_for_first(48)
        tab.page.keyboard.press("ArrowRight")
        tab.wait_for_first(96)
        tab.page.keyboard.press("ArrowLeft")
        tab.wait_for_first(48)
        assert tab.page.inner_text("#shown-range") == "48 to 95 of 200"
        tab.page.go_back()
        tab.wait_for_first(96)
        for first in (144, 192):
            tab.page.click("#next-page")
            tab.wait_for_first(first)
        assert tab.page.is_disabled("#next-page")


def test_samples_and_links(chromium: Any, spec: Path) -> None:
    """A click opens a sample, arrow keys move to the next, and the address opens it again."""
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        tab.page.click("#grid a:nth-child(8)")
        tab.page.wait_for_selector("#key:text('7 · k/0007')")
        assert "ndarray (16, 16) float32" in tab.page.inner_text("#sample")
        tab.page.keyboard.press("ArrowRight")
        tab.page.wait_for_selector("#key:text('8 · k/0008')")
        link = tab.page.url
        tab.page.keyboard.press("Escape")
        tab.page.wait_for_selector("#viewer", state="hidden")
        assert "sample" not in tab.page.url
        with Tab(chromium, link) as other:
            other.page.wait_for_selector("#key:text('8 · k/0008')")


def test_jumping(chromium: Any, spec: Path) -> None:
    """The keyboard leads to an index or a key; an unknown key shows an error."""
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        tab.page.keyboard.press("/")
        tab.page.keyboard.type("150")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#key:text('150 · k/0150')")
        tab.page.keyboard.press("Escape")
        tab.wait_for_first(144)
        tab.page.fill("#jump", "k/0033")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#key:text('33 · k/0033')")
        tab.page.keyboard.press("Escape")
        tab.page.fill("#jump", "unknown")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#status:text('no sample has the key')")
        assert all("404" in error for error in tab.errors)
        tab.errors.clear()  # the 404 for the unknown key


def test_filtering(chromium: Any, spec: Path) -> None:
    """The grid shows only samples with the chosen field."""
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        tab.page.select_option("#field", ".npy")
        tab.page.wait_for_selector('#grid a:nth-child(2)[href*="sample=7"]')
        assert tab.indices() == list(range(0, 200, 7))
        assert "field=.npy" in tab.page.url


def test_a_hostile_dataset_runs_nothing(chromium: Any, spec: Path) -> None:
    """Scripts in captions, JSON, keys and field names are shown as text (SEC-13)."""
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        assert "<script>" in tab.page.inner_text("#grid a:nth-child(4)")
        for index in (3, 60):
            tab.page.goto(f"{client.parts.geturl()}#sample={index}")
            tab.page.wait_for_selector(f"#key:text('{index} ·')")
        tab.page.wait_for_timeout(200)
        assert tab.page.title() == "looks · wids"
        assert tab.page.locator("script").count() == 1


def test_a_corrupt_picture_is_described(chromium: Any, spec: Path) -> None:
    """The grid and the sample describe it in place of the picture."""
    with browsing(spec) as client, Tab(chromium, f"{client.parts.geturl()}#sample=5") as tab:
        tab.page.wait_for_selector("#sample .none:text('not a picture')")
        assert tab.page.locator("#grid .none").count() == 1


def test_phone(chromium: Any, spec: Path) -> None:
    """At the width of a phone nothing overflows sideways, and everything can be reached."""
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
    with browsing(spec) as client, Tab(chromium, client.parts.geturl(), **phone) as tab:
        width = "document.documentElement.scrollWidth"
        assert tab.page.evaluate(width) <= 360
        tab.page.tap("#grid a:nth-child(2)")
        tab.page.wait_for_selector("#key:text('1 · k/0001')")
        assert tab.page.evaluate(width) <= 360
        box = tab.page.locator("#close").bounding_box()
        assert box["x"] + box["width"] <= 360
        tab.page.tap("#close")
        tab.page.wait_for_selector("#viewer", state="hidden")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(scheme: str, chromium: Any, spec: Path) -> None:
    """The page and the output in a notebook follow the colour scheme of the reader."""
    background = "getComputedStyle(document.body).backgroundColor"
    with browsing(spec) as client, Tab(chromium, client.parts.geturl(), color_scheme=scheme) as tab:
        red = int(re.findall(r"\d+", tab.page.evaluate(background))[0])
        assert (red < 80) == (scheme == "dark")
    html = sample_html({".txt": "text", ".json": {"a": list(range(50))}, "__key__": "k"})
    page = chromium.new_page()
    page.set_content(f"<body style='background:#111;color:#eee'>{html}</body>")
    assert (
        page.evaluate("getComputedStyle(document.querySelector('td')).color")
        == "rgb(238, 238, 238)"
    )
    background = page.evaluate("getComputedStyle(document.querySelector('pre')).backgroundColor")
    assert background == "rgba(0, 0, 0, 0)"
    page.close()


def test_a_million_samples(chromium: Any, tmp_path: Path) -> None:
    """A dataset of a million tiny samples shows the first page, a jump and the last page."""
    path = write_tar(
        tmp_path / "a.tar", [(f"{n:06d}.cls", b"%d" % (n % 10)) for n in range(50_000)]
    )
    shards = []
    for number in range(20):  # twenty names for the same bytes, each a shard of its own
        other = tmp_path / f"tiny-{number:02d}.tar"
        other.hardlink_to(path)
        shards.append(other)
    spec = tmp_path / "tiny.json"
    wids.build_spec(shards, name="tiny", pack=tmp_path / "tiny.index").save(spec)
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        assert "1,000,000 samples" in tab.page.inner_text("#summary")
        tab.page.fill("#jump", "987,654")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#key:text('987,654 · 037654')")
        tab.page.keyboard.press("Escape")
        tab.wait_for_first(987_648)
        tab.page.goto(f"{client.parts.geturl()}#start=999984")
        tab.wait_for_first(999_984)
        assert tab.indices() == list(range(999_984, 1_000_000))
