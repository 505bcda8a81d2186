"""The rooms and the direction of their imports, as the design lists them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import wids

LAYERS = """
errors    keys     publish  progress locks raw tenbin
urls      order     tar      decode
transports index  samplers encode
fetch
spec      shard     remote
cache     build     display  catalog  rangepack
pool      opener    writer   verify   prefetch cost   markup
preview
dataset
demo      browse
cli
"""
LAYER_OF = {
    room: number for number, line in enumerate(LAYERS.strip().splitlines()) for room in line.split()
}
PACKAGE = Path(wids.__file__).parent
ROOMS = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")


def imported_rooms(source: str) -> set[str]:
    """Give the rooms that a module imports anywhere: in functions and type checks too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            found.add("a relative import")
        elif isinstance(node, ast.ImportFrom) and node.module == "wids":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("wids."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("wids.")}
    return found


def forbidden(room: str, source: str) -> list[str]:
    """Give the imports of a room that do not come from a line above its own."""
    lowest = LAYER_OF[room]
    return sorted(
        other for other in imported_rooms(source) if LAYER_OF.get(other, lowest) >= lowest
    )


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_only_from_lines_above(room: str) -> None:
    """Every room is in the list, and imports only rooms from lines above its own."""
    assert room in LAYER_OF
    assert forbidden(room, (PACKAGE / f"{room}.py").read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "from wids.dataset import ShardListDataset",
        "from wids import dataset",
        "import wids.dataset",
        "def f():\n    from wids.pool import ShardPool",
        "if TYPE_CHECKING:\n    from wids import spec",
        "from wids import shard",
        "from . import tar",
    ],
)
def test_an_import_against_the_list_is_found(line: str) -> None:
    """An import of the same line or of one below is found in every spelling."""
    assert forbidden("shard", line) != []


def test_rooms_have_no_vague_names() -> None:
    """A thing without a room shows that a room is missing, not that there should be utilities."""
    assert not {"utils", "common", "helpers", "base", "types"} & set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_room_opens_with_a_docstring(room: str) -> None:
    """A room says first what it turns into what."""
    assert len(ast.get_docstring(ast.parse((PACKAGE / f"{room}.py").read_text())) or "") > 40
