"""The specifications, and what cites them, know of each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def stated() -> list[str]:
    pages = (ROOT / "specs").glob("*.md")
    return re.findall(r"\*\*([A-Z]+-\d+)\*\*", "".join(page.read_text() for page in pages))


def cited(pattern: str) -> set[str]:
    prefixes = {name.partition("-")[0] for name in stated()}
    identifier = re.compile(rf"\b(?:{'|'.join(sorted(prefixes))})-\d+\b")
    pages = (path for path in ROOT.glob(pattern) if path != Path(__file__))
    return {name for page in pages for name in identifier.findall(page.read_text())}


def test_every_requirement_is_cited_by_a_test() -> None:
    """A requirement without a test would be a wish."""
    assert sorted(set(stated()) - cited("tests/**/test_*.py")) == []


@pytest.mark.parametrize(
    "pattern", ["*.md", "docs/**/*.md", "specs/**/*.md", "tests/**/*.py", "wids/**/*.py"]
)
def test_every_citation_is_a_requirement(pattern: str) -> None:
    """What is cited is stated by a page of specs/, once."""
    assert sorted(cited(pattern) - set(stated())) == []
    assert len(stated()) == len(set(stated())) > 100


def test_every_decision_is_listed() -> None:
    """The list of decisions has each page once, under its number, and no other."""
    folder = ROOT / "specs" / "decisions"
    page = (folder / "README.md").read_text()
    listed = re.findall(r"^- \[(\d+)\]\((.*)\) ", page, re.MULTILINE)
    assert sorted(listed) == sorted((path.name[:4], path.name) for path in folder.glob("0*.md"))
