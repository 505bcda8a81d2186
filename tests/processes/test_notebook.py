"""The example notebook, executed by a real kernel, and what its cells show.

``python tests/processes/test_notebook.py`` writes the outputs that are committed.

nbclient starts the kernel of ipykernel; headless Chromium renders the output.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jobs
import pytest
from conftest import need, write_tar
from tabs import Chromium

from wids.cli import demo_command

pytestmark = pytest.mark.long


EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=250, startup_timeout=250).execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example after all of its cells were run."""
    return run_example(tmp_path_factory.mktemp("notebook"))


def run_example(folder: Path) -> Path:
    """Run the example in a folder, and return the notebook with its outputs."""
    for package in ("nbclient", "ipykernel"):
        need(importlib.util.find_spec(package), f"pip install {package}")
    demo_command.write_dataset(str(folder / "wids-demo"))
    done = folder / "done.ipynb"
    command = [sys.executable, "-c", EXECUTE, str(jobs.EXAMPLES / "look.ipynb"), str(done)]
    # In a separate process, because the kernel client leaves threads running.
    environment = {name: text for name, text in os.environ.items() if name != "WIDS_CACHE"}
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=280)
    return done


@pytest.fixture(scope="module")
def outputs(executed: Path) -> list[dict[str, Any]]:
    """The output of each code cell, by media type."""
    return outputs_of(executed)


def outputs_of(notebook: Path) -> list[dict[str, Any]]:
    """Return the output of each code cell of a notebook, by media type."""
    found = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            data = cell["outputs"][-1].get("data", {})
            shown = {kind: "".join(parts) for kind, parts in data.items()}
            text = "".join("".join(output.get("text", "")) for output in cell["outputs"])
            found.append({**shown, "text": text})
    return found


def as_committed(notebook: Path) -> str:
    """Return a notebook that was run without what differs between machines and runs."""
    text = notebook.read_text(encoding="utf-8").replace(str(notebook.parent), "/data")
    document = json.loads(re.sub(r" at 0x[0-9A-Fa-f]+", "", text))
    document["metadata"].pop("language_info", None)
    for cell in document["cells"]:
        cell["metadata"] = {}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def test_the_notebook_is_committed_with_its_outputs(executed: Path) -> None:
    """What it shows is what running it makes, but for the bytes of pictures."""
    committed = (jobs.EXAMPLES / "look.ipynb").read_text(encoding="utf-8")

    def without_pictures(text: str) -> list[str]:
        return re.sub(r"base64,[\w+/=]+", "", text).splitlines()

    assert without_pictures(committed) == without_pictures(as_committed(executed))
    assert len(committed) < 400_000
    assert committed.count("base64,") >= 6 + 1 + 24


def test_datasets_and_samples_display_themselves(outputs: list[dict[str, Any]]) -> None:
    """The cells show a summary, a sample, four galleries and a table."""
    summary, sample, sliced, random, following, chosen, cost = outputs
    assert "<h3>shapes</h3>" in summary["text/html"]
    assert "1,000" in summary["text/html"]
    assert "a yellow circle" in sample["text/html"]
    assert "data:image/png" in sample["text/html"]
    assert sample["text/plain"].startswith("{'.jpg': <PIL.")
    assert sliced["text/html"].count('class="card"') == 6
    assert len({page["text/plain"] for page in (random, following, sliced)}) == 3
    assert (
        "7 to 12 of 1,000 samples, in the random order of seed 1; next() shows more"
        in following["text/html"]
    )
    assert chosen["text/html"].count("purple") == 6
    assert "the most that one of 4 ranks reads, and one of 2 nodes" in cost["text"]


CELLS = [
    "import os, warnings, wids",
    "dataset = wids.ShardListDataset('damaged.tar', on_error='skip'); len(list(dataset))",
    """from torch.utils.data import DataLoader
other = wids.ShardListDataset('damaged.tar', on_error='skip')
len(list(DataLoader(other, 3, num_workers=1, collate_fn=wids.collate)))""",
    "warnings.warn('of the program')",
]


def test_warnings_are_text(tmp_path: Path) -> None:
    """A notebook shows those of wids without a line of code, and others as usual."""
    for package in ("nbclient", "ipykernel", "nbformat"):
        need(importlib.util.find_spec(package), f"pip install {package}")
    import nbformat

    write_tar(tmp_path / "damaged.tar", [("0.cls", b"0"), ("1.cls", b"one"), ("2.cls", b"2")])
    cells = [nbformat.v4.new_code_cell(code) for code in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "start.ipynb")
    command = [sys.executable, "-c", EXECUTE, "start.ipynb", "done.ipynb"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=280)
    done = nbformat.read(tmp_path / "done.ipynb", as_version=4)
    texts = [
        [(each["name"], each["text"]) for each in cell["outputs"] if "name" in each]
        for cell in done["cells"]
    ]
    for (name, text), *others in texts[1:3]:  # of this process, and of a worker
        assert (name, others) == ("stdout", [])
        assert re.fullmatch(r"UserWarning: /.*damaged.tar: sample \"1\" .*\n", text), text
    ((name, text),) = texts[3]
    assert name == "stderr"
    assert "warnings.warn('of the program')" in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_output_looks_right(scheme: str, outputs: list[dict[str, Any]], chromium: Chromium) -> None:
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
    page.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        fresh = as_committed(run_example(Path(name)))
    (jobs.EXAMPLES / "look.ipynb").write_text(fresh, encoding="utf-8")
