"""The example notebook, executed by a real kernel, and what its cells show.

nbclient starts the kernel of ipykernel; headless Chromium renders the output.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jobs
import pytest
from conftest import need
from test_chromium import chromium

from wids import demo

__all__ = ["chromium"]  # a fixture


EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=120).execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The output of each code cell, by media type."""
    for package in ("nbclient", "ipykernel"):
        need(importlib.util.find_spec(package), f"pip install {package}")
    folder = tmp_path_factory.mktemp("notebook")
    demo.write_dataset(str(folder / "wids-demo"))
    done = folder / "done.ipynb"
    command = [sys.executable, "-c", EXECUTE, str(jobs.EXAMPLES / "look.ipynb"), str(done)]
    # In a separate process, because the kernel client leaves threads running.
    subprocess.run(command, cwd=folder, check=True, timeout=200)
    found = []
    for cell in json.loads(done.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            data = cell["outputs"][-1].get("data", {})
            shown = {kind: "".join(parts) for kind, parts in data.items()}
            text = "".join("".join(output.get("text", "")) for output in cell["outputs"])
            found.append({**shown, "text": text})
    return found


def test_notebook_is_committed_without_outputs() -> None:
    """Only the source is committed; running the notebook makes the outputs."""
    cells = json.loads((jobs.EXAMPLES / "look.ipynb").read_text(encoding="utf-8"))["cells"]
    assert [cell for cell in cells if cell.get("outputs")] == []


def test_datasets_and_samples_display_themselves(outputs: list[dict[str, Any]]) -> None:
    """The cells show a summary, a sample, three galleries and a table."""
    summary, sample, sliced, random, chosen, cost = outputs
    assert "<h3>shapes</h3>" in summary["text/html"]
    assert "1,000" in summary["text/html"]
    assert "a yellow circle" in sample["text/html"]
    assert "data:image/jpeg" in sample["text/html"]
    assert sample["text/plain"].startswith("{'.jpg': <PIL.")
    assert sliced["text/html"].count('class="card"') == 6
    assert random["text/plain"] != sliced["text/plain"]
    assert chosen["text/html"].count("purple") == 6
    assert "the most that one of 4 ranks reads, and one of 2 nodes" in cost["text"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_output_looks_right(
    scheme: str, outputs: list[dict[str, Any]], chromium: Any, tmp_path: Path
) -> None:
    """In a real browser all pictures load, nothing overflows, and text is legible."""
    page = chromium.new_page(viewport={"width": 800, "height": 900}, color_scheme=scheme)
    html = "".join(output.get("text/html", "") for output in outputs)
    page.set_content(
        f"<body style='color-scheme:{scheme};background:Canvas;color:CanvasText'>{html}"
    )
    broken = "images => images.filter(i => !i.complete || !i.naturalWidth).length"
    assert page.eval_on_selector_all("img", broken) == 0
    assert page.locator("img").count() >= 6 + 1 + 18
    assert page.evaluate("document.documentElement.scrollWidth") <= 800
    colors = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('.wids td')).color]"
    )
    assert colors[0] != colors[1]
    (tmp_path / f"{scheme}.png").write_bytes(page.screenshot(full_page=True))  # for a human reader
    page.close()
