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


def test_every_cited_decision_is_a_page() -> None:
    """A number of a decision in code, tests and documents leads to a page."""
    pages = {path.name[:4] for path in (ROOT / "specs" / "decisions").glob("0*.md")}
    files = [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *(ROOT / ".ci").glob("*")]
    for folder in ("wids", "tests", "benchmarks", "docs", "specs"):
        files += (
            path for kind in ("py", "md", "txt") for path in (ROOT / folder).rglob(f"*.{kind}")
        )
    # In a list of pages, only the name of a file follows the bracket.
    citation = re.compile(r"\bdecisions?[ /\n#]+(\d+)|\]\((0\d{3})-")
    found = [
        (str(path.relative_to(ROOT)), (first or second).zfill(4))
        for path in files
        if path.is_file()
        for first, second in citation.findall(path.read_text())
    ]
    assert len(found) > 50
    assert [(name, number) for name, number in found if number not in pages] == []
