"""The core runs without each extension; the page of the architecture says what leads to them."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from conftest import write_shards
from loopback import Page, Server
from test_layers import MODULES, ROOT, TOP

PAGE = (ROOT.parent / "specs" / "architecture.md").read_text(encoding="utf-8")


def modules_in(text: str) -> list[str]:
    """Return the modules and packages that a cell of the table names."""
    paths = re.findall(r"`([\w/]+(?:/|\.py))`", text)
    return [path.removesuffix(".py").strip("/").replace("/", ".") for path in paths]


ROWS = [
    [modules_in(cell) for cell in row.split("|")[1:4]]
    for row in PAGE.partition("| extension |")[2].partition("\n\n")[0].splitlines()[2:]
]
EXTENSIONS = {row[0][0]: row[0] for row in ROWS}
LEADING = {row[0][0]: {*row[2]} for row in ROWS}
"""By the first path of each extension, its modules, and those of the core that import it late."""


def extension_of(name: str) -> str:
    """Return the extension that a module, or a name in it, belongs to; ``""`` for the core."""
    for extension, paths in EXTENSIONS.items():
        if any(f"{name}.".startswith(f"{path}.") for path in paths):
            return extension
    return ""


def imports_of(node: ast.AST, *, is_late: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield what a module imports of wids, except for types, and whether only when it is called."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.ImportFrom):
            start = (child.module or "").removeprefix("wids.")
            yield from ((f"{start}.{alias.name}", is_late) for alias in child.names)
        elif isinstance(child, ast.Import):
            yield from ((alias.name.removeprefix("wids."), is_late) for alias in child.names)
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from imports_of(child, is_late=is_late or is_function)


def test_every_extension_of_the_design_is_in_the_table() -> None:
    """The table names the extensions, and every module that it calls core exists."""
    assert {"tables", "publish", "look", "cli", "shards.foreign"} <= EXTENSIONS.keys()
    named = [path for row in ROWS for path in (*row[0], *row[2])]
    assert [p for p in named if not {p, f"{p}.__init__"} & MODULES.keys()] == []


def test_the_core_imports_extensions_only_where_the_table_says() -> None:
    """Modules of the core import an extension late, and those that do so are in its row."""
    leading: dict[str, set[str]] = {extension: set() for extension in EXTENSIONS}
    early = []
    for module, source in MODULES.items():
        if module in TOP or extension_of(module):
            continue
        for name, is_late in imports_of(ast.parse(source)):
            if extension := extension_of(name):
                leading[extension].add(module)
                if not is_late:
                    early.append((module, name))
    assert early == []
    assert leading == LEADING


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("from wids.tables import joins", [("tables.joins", False)]),
        ("import wids.look.html", [("look.html", False)]),
        ("def f():\n    from wids.cli.main import main", [("cli.main.main", True)]),
        ("class A:\n    def f(self):\n        import wids.cli.main", [("cli.main", True)]),
        ("if TYPE_CHECKING:\n    from wids.cli.main import main", []),
    ],
)
def test_an_early_import_is_found(line: str, expected: list[tuple[str, bool]]) -> None:
    """Imports are found in every spelling, those in functions as late ones."""
    assert list(imports_of(ast.parse(line))) == expected


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What processes did without each extension, by its first path; under ``""``, without all."""
    folder = tmp_path_factory.mktemp("alone")
    write_shards(folder, [8, 5, 7])
    pages = {f"/{path.name}": Page(path.read_bytes()) for path in folder.iterdir()}
    server = Server(pages=pages)
    try:
        result = subprocess.run(
            [
                *(sys.executable, str(Path(__file__).with_name("alone.py")), str(folder)),
                *(server.url, json.dumps([[*chain(*EXTENSIONS.values())], *EXTENSIONS.values()])),
            ],
            env={**os.environ, "WIDS_CACHE": str(folder / "cache")},
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        server.close()
    return dict(zip(["", *EXTENSIONS], map(json.loads, result.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("extension", ["", *EXTENSIONS])
def test_the_core_stands_alone(extension: str, alone: dict[str, dict[str, Any]]) -> None:
    """Without an extension, and without all, specs are loaded, read, fetched and sampled."""
    found = alone[extension]
    assert "error" not in found, found["error"]
    texts = [f"text {number}" for number in range(20)]
    fields = "fields .txt .cls, through Decoder(images='PIL')"
    assert found["loaded"] == found["indexed"] == [8, 5, 7]
    assert found["read"] == found["fetched"] == found["cached"] == texts
    assert found["requests of fetched"] == found["requests of cached"] - 1 == 4
    assert found["batch"] == [9, 3]
    assert (found["keys"], found["by_key"]) == ([20, "s00000", True, 12], "text 12")
    assert found["fields"] == [".cls", ".txt"]
    assert found["printed"] == f"<ShardListDataset 'train': 20 samples, 3 shards, {fields}>"
    assert sorted(found["ranks"][0] + found["ranks"][1]) == list(range(20))
    assert found["resumed"] == found["ranks"][0]
    imported = {extension_of(name.removeprefix("wids.")) for name in found["imported"]}
    assert imported <= {"", "shards.foreign"}  # which counts, unless it is missing


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_what_leads_to_an_extension_names_it(
    extension: str, alone: dict[str, dict[str, Any]]
) -> None:
    """A method that needs a missing extension raises ModuleNotFoundError with its name."""
    raised = alone[extension]["raised"]
    assert raised
    paths = "|".join(re.escape(path) for path in EXTENSIONS[extension])
    for text in raised:
        assert re.search(rf"wids\.({paths})\b", text), text
