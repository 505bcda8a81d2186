"""The pages of the documentation, and the code blocks on them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Block(NamedTuple):
    """A fenced block of code: where its first line is, its language, its text."""

    page: str
    line: int
    language: str
    code: str


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page. A block ends with a fence like the one that began it."""
    blocks, begun = [], None
    name = page.relative_to(ROOT).as_posix()
    for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
        fence = line[: len(line) - len(line.lstrip("`"))]
        if begun is None and len(fence) >= 3:
            begun = (fence, number + 1, line.removeprefix(fence), [])
        elif begun is not None and line == begun[0]:
            blocks.append(Block(name, begun[1], begun[2], "\n".join([*begun[3], ""])))
            begun = None
        elif begun is not None:
            begun[3].append(line)
    assert begun is None, f"{name}:{begun[1]} begins a block that does not end"
    return blocks


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
PYTHON = [block for block in BLOCKS if block.language == "python"]
# They run where there is a cluster: in tests/publish/test_clusters.py.
ON_CLUSTERS = [b for b in PYTHON if "import Client" in b.code or "import ray" in b.code]
