"""The documentation site is built without a warning, is complete, and loads nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from conftest import need
from pages import ROOT
from tabs import Chromium

import wids

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as CONTRIBUTING says, where a warning is an error."""
    need(find_spec("furo") and find_spec("myst_parser"), "the extra docs: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (options,) = re.findall(r"^sphinx-build (.*) -c docs \. site", text, re.MULTILINE)
    command = ["-m", "sphinx", *options.split(), "-d", str(folder / "tmp"), "-c", "docs", "."]
    done = subprocess.run(
        [sys.executable, *command, str(folder / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, str]:
    """Return the text of each page."""
    return {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}


def test_links_and_anchors_of_the_site_exist(site: Path, pages: dict[Path, str]) -> None:
    """Each link inside the site leads to a file of it, and to an element if it names one."""
    ids = {page: set(re.findall(r'\sid="([^"]+)"', text)) for page, text in pages.items()}
    wrong = []
    for page, text in pages.items():
        for link in re.findall(r'\s(?:href|src)="([^"]*)"', text):
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (page.parent / unquote(url.path)).resolve() if url.path else page
            anchor = unquote(url.fragment)
            is_there = target.is_relative_to(site) and target.exists()
            if not is_there or (anchor and anchor not in ids.get(target, {anchor})):
                wrong.append((page.name, link))
    assert len(pages) > 60
    assert wrong == []


def test_every_public_name_is_in_the_reference(pages: dict[Path, str]) -> None:
    """The reference has each name of ``wids.__all__``, and every page is in the navigation."""
    text = "".join(text for page, text in pages.items() if page.parent.name == "api")
    assert [name for name in wids.__all__ if f'id="wids.{name}"' not in text] == []


def test_pictures_follow_the_mode(site: Path, chromium: Chromium) -> None:
    """Each ``<picture>`` shows the file of the system's colours, or of the mode that is chosen."""
    shown = "[...document.querySelectorAll('img')].filter((i) => i.offsetWidth && i.src.endsWith"
    shown += "('g')).map((i) => [i.complete && i.naturalWidth > 0, i.src.split(/[-.]/).at(-2)])"
    for scheme in ("light", "dark"):
        page = chromium.new_page(color_scheme=scheme)
        for name in ("index", "looking", "performance"):
            page.goto(f"file://{site}/docs/{name}.html")
            page.wait_for_load_state()
            assert [True, scheme] in page.evaluate(shown), name
            for mode in ("dark", "light"):
                page.evaluate(f"document.body.dataset.theme = '{mode}'")
                found = [kind for _, kind in page.evaluate(shown)]
                assert (mode in found, len({"light", "dark"} & {*found})) == (True, 1), name
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_the_window_and_load_nothing_else(
    site: Path,
    chromium: Chromium,
    width: int,
    scheme: str,
) -> None:
    """No page is wider than a desktop or a phone, and no request leaves the site."""
    size = {"width": width, "height": 844}
    context = chromium.new_context(viewport=size, color_scheme=scheme)
    page = context.new_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    for name in ("docs/index", "docs/start", "docs/tables", "docs/api/samplers", "specs/cache"):
        page.goto(f"file://{site}/{name}.html")
        wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(wider) <= 0, name
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        is_dark = sum(map(int, re.findall(r"\d+", color)[:3])) < 300
        assert is_dark == (scheme == "dark"), color
    context.close()
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def test_guides_come_before_specifications(site: Path, chromium: Chromium) -> None:
    """A search on the site finds guides first, and decisions last."""
    chromium.allows("CORS", "ERR_FAILED", "Failed to fetch")  # excerpts, in a page of a file
    page = chromium.new_page()
    page.goto(f"file://{site}/search.html?q=prefetch")
    page.wait_for_selector("ul.search li:nth-child(6) a")
    links = page.eval_on_selector_all("ul.search li > a", "all => all.map(a => a.pathname)")
    page.close()
    is_guide = ["/docs/" in link for link in links]
    assert is_guide[:3] == [True] * 3
    assert "/specs/decisions/" not in "".join(links[:5])
