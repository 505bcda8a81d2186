"""What a person looks at, in a real browser: headless Chromium, driven by Playwright.

Chromium is the system's own (``apt-get install chromium``); it is started once for this file.
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
from test_browse import browsing, write

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
    """A page of the browser that remembers what went wrong on it, and what it asked others for."""

    def __init__(self, chromium: Any, url: str, **options: Any) -> None:
        self.url = url
        self.page = chromium.new_page(**{"viewport": {"width": 1200, "height": 800}, **options})
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._note)
        self.page.on("request", self._look)
        self.page.goto(url)
        self.page.wait_for_selector("#grid a")

    def _note(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _look(self, request: Any) -> None:
        if not request.url.startswith((self.url.partition("#")[0], "data:")):
            self.strangers.append(request.url)

    def indices(self) -> list[int]:
        """The samples of the grid."""
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
            assert (self.errors, self.strangers) == ([], [])


def test_paging(chromium: Any, spec: Path) -> None:
    """By buttons and by keys, forwards and back, to the end."""
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        assert tab.indices() == list(range(48))
        assert tab.page.is_disabled("#before")
        tab.page.click("#after")
        tab.wait_for_first(48)
        tab.page.keyboard.press("ArrowRight")
        tab.wait_for_first(96)
        tab.page.keyboard.press("ArrowLeft")
        tab.wait_for_first(48)
        assert tab.page.inner_text("#where") == "48 to 95 of 200"
        tab.page.go_back()
        tab.wait_for_first(96)
        for first in (144, 192):
            tab.page.click("#after")
            tab.wait_for_first(first)
        assert tab.page.is_disabled("#after")


def test_samples_and_links(chromium: Any, spec: Path) -> None:
    """A click opens a sample, keys turn to the next, and its address opens it again."""
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        tab.page.click("#grid a:nth-child(8)")
        tab.page.wait_for_selector("#key:text('7 · k/0007')")
        assert "ndarray (16, 16) float32" in tab.page.inner_text("#sample")
        tab.page.keyboard.press("ArrowRight")
        tab.page.wait_for_selector("#key:text('8 · k/0008')")
        link = tab.page.url
        tab.page.keyboard.press("Escape")
        tab.page.wait_for_selector("#shown", state="hidden")
        assert "sample" not in tab.page.url
        with Tab(chromium, link) as other:
            other.page.wait_for_selector("#key:text('8 · k/0008')")


def test_jumping(chromium: Any, spec: Path) -> None:
    """To an index or a key, by keyboard; what is not there is told."""
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
        tab.page.fill("#jump", "nobody")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#said:text('no sample has the key')")
        assert all("404" in error for error in tab.errors)
        tab.errors.clear()  # the answers for what is not there


def test_filtering(chromium: Any, spec: Path) -> None:
    """Only samples with a field."""
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        tab.page.select_option("#field", ".npy")
        tab.page.wait_for_selector('#grid a:nth-child(2)[href*="sample=7"]')
        assert tab.indices() == list(range(0, 200, 7))
        assert "field=.npy" in tab.page.url


def test_a_hostile_dataset_runs_nothing(chromium: Any, spec: Path) -> None:
    """Captions, JSON, keys and names of fields that are scripts are shown as text (SEC-13)."""
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        assert "<script>" in tab.page.inner_text("#grid a:nth-child(4)")
        for index in (3, 60):
            tab.page.goto(f"{client.parts.geturl()}#sample={index}")
            tab.page.wait_for_selector(f"#key:text('{index} ·')")
        tab.page.wait_for_timeout(200)
        assert tab.page.title() == "looks · wids"
        assert tab.page.locator("script").count() == 1


def test_a_corrupt_picture_is_told(chromium: Any, spec: Path) -> None:
    """In the grid and in the sample, in place of the picture."""
    with browsing(spec) as client, Tab(chromium, f"{client.parts.geturl()}#sample=5") as tab:
        tab.page.wait_for_selector("#sample .none:text('not a picture')")
        assert tab.page.locator("#grid .none").count() == 1


def test_phone(chromium: Any, spec: Path) -> None:
    """At the width of a phone nothing is cut off sideways, and all can be reached."""
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
        tab.page.wait_for_selector("#shown", state="hidden")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(scheme: str, chromium: Any, spec: Path) -> None:
    """The page and a notebook's output take the colours that the reader has."""
    is_dark = "getComputedStyle(document.body).backgroundColor"
    with browsing(spec) as client, Tab(chromium, client.parts.geturl(), color_scheme=scheme) as tab:
        red = int(re.findall(r"\d+", tab.page.evaluate(is_dark))[0])
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
    """A real dataset of a million tiny samples: the first page, a jump, the last page."""
    path = write_tar(
        tmp_path / "a.tar", [(f"{n:06d}.cls", b"%d" % (n % 10)) for n in range(50_000)]
    )
    shards = []
    for number in range(20):  # the same bytes under twenty names, each a shard of its own
        other = tmp_path / f"tiny-{number:02d}.tar"
        other.hardlink_to(path)
        shards.append(other)
    spec = tmp_path / "tiny.json"
    wids.build_spec(shards, name="tiny", pack=tmp_path / "tiny.index").save(spec)
    with browsing(spec) as client, Tab(chromium, client.parts.geturl()) as tab:
        assert "1,000,000 samples" in tab.page.inner_text("#about")
        tab.page.fill("#jump", "987,654")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#key:text('987,654 · 037654')")
        tab.page.keyboard.press("Escape")
        tab.wait_for_first(987_648)
        tab.page.goto(f"{client.parts.geturl()}#start=999984")
        tab.wait_for_first(999_984)
        assert tab.indices() == list(range(999_984, 1_000_000))
        tab.errors.clear()  # the key 987,654 is not there, which is asked first
