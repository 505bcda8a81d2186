"""What notebooks show, under the real style sheets: JupyterLab, Notebook 7, nbconvert.

A Jupyter server is started, and Chromium opens the executed example in it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import need
from events import LONG_S
from tabs import Chromium
from test_notebook import executed

__all__ = ["executed"]  # a fixture
pytestmark = pytest.mark.long

# What other style sheets would change: places, alignment, borders, sizes and colours.
LOOK = """() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const box = (node) => node.getBoundingClientRect();
  const facts = all('.wids .facts > div').map((fact) => {
    const [label, value] = [...fact.children].map(box);
    return [Math.abs(label.left - value.left) < 2, label.bottom <= value.top + 4,
      box(fact).width > 20];
  });
  const rows = new Set(all('.wids .facts > div').map((fact) => Math.round(box(fact).top)));
  const cell = (node) => {
    const style = getComputedStyle(node);
    const text = getComputedStyle(document.querySelector('.wids')).color;
    return [style.textAlign, style.borderTopWidth, style.borderBottomWidth, style.backgroundColor,
      style.float, style.paddingLeft, style.color === text];
  };
  const cards = all('.wids .card');
  return {
    facts,
    num_rows: rows.size,
    cells: all('.wids table').map((table) => [...table.querySelectorAll('th, td')].map((node) =>
      [...cell(node), node.classList.contains('n')])).flat(),
    wide: all('.wids').filter((node) => node.scrollWidth > node.clientWidth + 1).length,
    pictures: all('.wids img').filter((image) => !image.complete || !image.naturalWidth).length,
    num_pictures: all('.wids .card img').length,
    stretched: all('.wids .card img').filter((image) => Math.abs(box(image).width
      - box(image.parentNode).width) > 3 || box(image).height !== 130).length,
    paragraphs: all('.wids .card p').map((node) => getComputedStyle(node).marginBottom),
    stacked: cards.length > 1 && box(cards[0]).top !== box(cards[1]).top,
    text: getComputedStyle(document.querySelector('.wids')).color,
  };
}"""


def check(page: Any) -> dict[str, Any]:
    """Check what a page shows of the example: the summary, the sample and the galleries."""
    page.wait_for_function("[...document.querySelectorAll('.wids img')].every((i) => i.complete)")
    look: dict[str, Any] = page.evaluate(LOOK)
    assert len(look["facts"]) == 6
    assert all(all(fact) for fact in look["facts"]), "a value stands below its label"
    assert look["num_rows"] <= 3, "facts stand beside each other"
    assert len(look["cells"]) > 12
    for align, top, bottom, background, floating, padding, has_colour, is_number in look["cells"]:
        assert align == ("right" if is_number else "left")
        assert (top, bottom, padding, floating) == ("0px", "1px", "0px", "none")
        assert background == "rgba(0, 0, 0, 0)"
        assert has_colour
    assert (look["wide"], look["pictures"], look["stretched"], look["stacked"]) == (0, 0, 0, False)
    assert look["num_pictures"] >= 6
    assert set(look["paragraphs"]) == {"0px"}
    return look


def brightness(colour: str) -> float:
    """Return the mean of the three parts of a colour, from 0 to 1."""
    parts = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    return sum(parts) / 3 / 255


@pytest.fixture(scope="module")
def jupyter(executed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return the address of a server with JupyterLab and Notebook 7, and its settings folder."""
    for package in ("jupyterlab", "notebook"):
        need(importlib.util.find_spec(package), f"pip install {package}")
    home = tmp_path_factory.mktemp("jupyter")
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    environment = {
        **os.environ,
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
    }
    run = [sys.executable, "-m"]
    # Untrusted notebooks lose the style sheets of their outputs; those that a person runs do not.
    subprocess.run(
        [*run, "jupyter", "trust", executed.name], cwd=executed.parent, env=environment, check=True
    )
    command = [
        *(*run, "jupyter", "lab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"),
        *("--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True"),
        *(f"--LabApp.user_settings_dir={home / 'settings'}", "--expose-app-in-browser"),
    ]
    with (
        (home / "log").open("w+") as log,
        subprocess.Popen(
            command, cwd=executed.parent, env=environment, stdout=log, stderr=log
        ) as server,
    ):
        try:
            yield address_of(home / "runtime", server), settings
        finally:
            server.terminate()
            server.wait(LONG_S)


def address_of(runtime: Path, server: subprocess.Popen[bytes]) -> str:
    """Wait until the server states its address, and return it."""
    import time

    deadline_s = time.monotonic() + 90
    while time.monotonic() < deadline_s and server.poll() is None:
        for path in runtime.glob("jpserver-*.json"):
            text = path.read_text()
            if text.rstrip().endswith("}"):
                return str(json.loads(text)["url"])
        time.sleep(0.1)
    raise RuntimeError("the Jupyter server did not start")


@pytest.mark.parametrize(
    ("app", "theme"), [("lab/tree", "Light"), ("lab/tree", "Dark"), ("notebooks", "Light")]
)
def test_in_a_real_notebook(
    app: str, theme: str, jupyter: Any, executed: Path, chromium: Chromium
) -> None:
    """Summary, samples and galleries look the same in JupyterLab and Notebook 7."""
    address, settings = jupyter
    (settings / "themes.jupyterlab-settings").write_text(
        json.dumps({"theme": f"JupyterLab {theme}"})
    )
    if app == "notebooks":  # Notebook 7 looks for plugins that only JupyterLab has
        chromium.allows("(reading 'schema')", "Command 'filebrowser:open-path' not registered")
    page = chromium.new_page(viewport={"width": 1200, "height": 3400})
    page.goto(f"{address}{app}/{executed.name}")
    page.wait_for_selector(".wids .facts", timeout=90_000)
    is_light = "true" if theme == "Light" else "false"
    page.wait_for_selector(f"body[data-jp-theme-light={is_light}]", state="attached")
    page.wait_for_selector(".wids .grid >> nth=2")
    look = check(page)
    assert (brightness(look["text"]) > 0.5) == (theme == "Dark")
    page.close()


CONVERT = """
import sys
from nbconvert import HTMLExporter
for template in ("lab", "classic"):
    html, _ = HTMLExporter(template_name=template).from_filename(sys.argv[1])
    open(f"{sys.argv[2]}/{template}.html", "w", encoding="utf-8").write(html)
"""


@pytest.fixture(scope="module")
def pages(executed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the pages that nbconvert makes of the example."""
    need(importlib.util.find_spec("nbconvert"), "pip install nbconvert")
    folder = tmp_path_factory.mktemp("pages")
    command = [sys.executable, "-c", CONVERT, str(executed), str(folder)]
    subprocess.run(command, check=True, timeout=120)
    return folder


@pytest.mark.parametrize("template", ["lab", "classic"])
def test_as_a_page(template: str, pages: Path, chromium: Chromium) -> None:
    """So they do on pages that nbconvert makes."""
    page = chromium.new_page(viewport={"width": 1200, "height": 1600})
    # Templates name scripts of other sites, which are not there.
    chromium.causes("Failed to load resource: net::ERR_FAILED")
    page.route("**/*", lambda r: r.continue_() if r.request.url[:4] == "file" else r.abort())
    page.goto((pages / f"{template}.html").as_uri(), wait_until="domcontentloaded")
    page.wait_for_selector(".wids .facts")
    check(page)
    page.close()


HOSTILE = """
dl, dt, dd, div > small, div > span { color: inherit }
dt, dd { float: left; width: 20% }
table { width: 100%; border: 3px solid red; margin: 2em; font-size: 20px; background: yellow }
th, td { border: 2px solid red; text-align: center; padding: 30px; background: yellow; color: red }
tr:nth-child(even) { background: pink }
p { margin: 3em; line-height: 3 }
h3 { margin: 3em; color: red; border-bottom: 1px solid }
code, pre { background: yellow; color: red; padding: 2em; border: 1px solid }
img { border: 5px solid red; margin: 10px; max-width: 30px }
"""


def test_under_any_style_sheet(executed: Path, chromium: Chromium) -> None:
    """Rules for elements of outputs, as editors such as VS Code have them, change nothing."""
    outputs = [
        "".join(output["data"]["text/html"])
        for cell in json.loads(executed.read_text(encoding="utf-8"))["cells"]
        for output in cell.get("outputs", [])
        if "text/html" in output.get("data", {})
    ]
    page = chromium.new_page(viewport={"width": 1000, "height": 1600})
    page.set_content(f"<style>{HOSTILE}</style><body>{''.join(outputs)}")
    check(page)
    page.close()
