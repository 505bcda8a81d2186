"""Pages in headless Chromium, driven by Playwright: each problem that they report is noticed.

Chromium is that of the system (``apt-get install chromium``).
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conftest import need
from events import LONG_S

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")

# The banner of `wids browse` is reported like any other error, at each change while it is shown.
_REPORT_BANNERS = """addEventListener("DOMContentLoaded", () => {
  const banner = document.getElementById("banner");
  if (!banner) return;
  const report = () => { if (!banner.hidden) console.error(`banner: ${banner.innerText}`); };
  new MutationObserver(report).observe(banner,
    { attributes: true, childList: true, characterData: true, subtree: true });
  report();
});"""


@contextmanager
def started() -> Iterator[Any]:
    """Start Chromium, for several tests."""
    need(importlib.util.find_spec("playwright"), "pip install playwright")
    need(PROGRAM, "apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # A GPU that software emulates takes all cores, and draws nothing on a busy machine.
        program = playwright.chromium.launch(
            executable_path=PROGRAM, args=["--no-sandbox", "--disable-gpu"], timeout=1000 * LONG_S
        )
        yield program
        program.close()


class Chromium:
    """The pages of one test, and the problems on them: banners, errors of console and scripts."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self._contexts: list[Any] = []
        self._causes: list[str] = []
        self._allows: list[str] = []
        self._problems: list[str] = []

    def new_page(self, **options: Any) -> Any:
        """Return a page in a context of its own."""
        return self.new_context(**options).new_page()

    def new_context(self, **options: Any) -> Any:
        """Return a context, all of whose pages are watched."""
        context = self._program.new_context(**options)
        context.set_default_timeout(1000 * LONG_S)
        context.on("console", self._record)
        context.on("weberror", lambda each: self._problems.append(f"uncaught: {each.error}"))
        context.add_init_script(_REPORT_BANNERS)
        self._contexts.append(context)
        return context

    def _record(self, message: Any) -> None:
        if message.type == "error":
            self._problems.append(message.text)

    def causes(self, *problems: str) -> None:
        """State problems that the test causes, as parts of their texts: each of them occurs."""
        self._causes += problems

    def allows(self, *problems: str) -> None:
        """State problems of pages that are not of wids, which may occur."""
        self._allows += problems

    def close(self) -> None:
        """Close all pages, and fail on problems that the test does not cause."""
        for context in self._contexts:
            context.close()
        known = (*self._causes, *self._allows)
        others = [p for p in self._problems if not any(part in p for part in known)]
        missing = [part for part in self._causes if not any(part in p for p in self._problems)]
        assert not others, f"the pages report what the test does not cause: {others}"
        assert not missing, f"the test should have caused: {missing}"


class Tab:
    """A page of `wids browse` that shows samples, and requests nothing from any other server."""

    def __init__(self, chromium: Chromium, url: str, **options: Any) -> None:
        self.chromium = chromium
        self.url = url
        self.page = chromium.new_page(**{"viewport": {"width": 1200, "height": 800}, **options})
        self.foreign_requests: list[str] = []
        self.page.on("request", self._record_request)
        self.page.goto(url)
        self.page.wait_for_selector("#grid[aria-busy=false] a")

    def _record_request(self, request: Any) -> None:
        if not request.url.startswith((self.url.partition("#")[0], "data:")):
            self.foreign_requests.append(request.url)

    def indices(self) -> list[int]:
        """Return the samples of the grid."""
        links = self.page.eval_on_selector_all("#grid a", "links => links.map(a => a.href)")
        return [int(re.findall(r"sample=(\d+)", link)[0]) for link in links]

    def wait_for_first(self, index: int) -> None:
        """Wait until the grid begins with a sample."""
        self.page.wait_for_selector(f'#grid[aria-busy=false] a:first-child[href*="sample={index}"]')

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.page.close()
        if kind is None:
            assert self.foreign_requests == []
