"""What newcomers met was mended: the page names a commit and a test for each row."""

from __future__ import annotations

import re
import subprocess

import pytest
from pages import ROOT

PAGE = (ROOT / "specs" / "first-contact.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| .* \| (\w*) \| (\S*) \|$", PAGE, re.MULTILINE)


def test_every_row_has_a_test() -> None:
    """Each row of the tables names a test that exists."""
    num_rows = len([line for line in PAGE.split("\n") if line.startswith("| ")]) - 3
    assert len([row for row in ROWS if row != ("commit", "test")]) == num_rows >= 25
    for commit, test in ROWS:
        if commit != "commit":
            path, _, name = test.partition("::")
            assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), test


def test_every_row_has_a_commit() -> None:
    """Each row names a commit of the history before this one."""
    history = subprocess.run(
        ["git", "log", "--format=%h", "--abbrev=7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    if len(history) < 100:
        pytest.skip("the whole history is not here: git clone without --depth")
    assert [commit for commit, _ in ROWS if commit not in {"commit", *history}] == []
