"""The table in docs/trainers.md: every cell names tests, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "trainers.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "::" in line
]
NAMED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def functions(name: str) -> set[str]:
    """Return the names of the tests in the file of a name, which is unique."""
    (path,) = TESTS.rglob(name)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:30])
def test_every_cell_names_a_test(row: list[str]) -> None:
    """A cell is "no", or names at least one test that exists."""
    assert len(row) == 5
    for cell in row[1:]:
        named = NAMED.findall(cell)
        assert bool(named) != (cell == "no"), cell
        assert [f"{file}::{test}" for file, test in named if test not in functions(file)] == []


def test_every_example_and_every_named_test_is_there() -> None:
    """All examples of training have a row, and the text names no test that does not exist."""
    examples = {path.name for path in (TESTS.parent / "examples").glob("train_*.py")}
    assert {name for row in ROWS for name in re.findall(r"train_\w+\.py", row[0])} == examples
    for file, test in NAMED.findall(PAGE.read_text(encoding="utf-8")):
        assert test in functions(file), f"{file}::{test}"
