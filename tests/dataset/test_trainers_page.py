"""The table in docs/trainers.md has all examples of training."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_example_is_in_the_table() -> None:
    """All examples of training have a row of the table, and the table names no others."""
    page = (ROOT / "docs" / "trainers.md").read_text(encoding="utf-8")
    rows = "\n".join(re.findall(r"^\| .* \|$", page, re.MULTILINE))
    examples = {path.name for path in (ROOT / "examples").glob("train_*.py")}
    assert set(re.findall(r"examples/(train_\w+\.py)", rows)) == examples
