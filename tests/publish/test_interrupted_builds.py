"""`build_spec` is interrupted at any line, in a process that continues, such as a notebook."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from conftest import write_shards
from faults import interrupted

from wids import DatasetSpec, build_spec
from wids.storage import locks

PACKAGES = ("describing", "files")

pytestmark = [
    # A file that is interrupted before it is closed is closed when it is collected.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def build(shards: list[Path], folder: Path) -> DatasetSpec:
    folder.mkdir(exist_ok=True)
    pack = folder / "a.index"
    return build_spec(shards, journal=folder / "journal", pack=pack, progress=False)


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.long)])
def test_no_lock_is_left(step: int, tmp_path: Path) -> None:
    """The same process resumes at once, from any line: no file is locked or open."""
    write_shards(tmp_path, [3, 2])
    shards = sorted(tmp_path.glob("*.tar"))
    expected = build(shards, tmp_path / "first")  # which imports what is needed
    with interrupted(PACKAGES, 0) as count:
        build(shards, tmp_path / "0")
    for number in range(1, count.reached + 1, step):
        folder = tmp_path / f"{number}"
        with pytest.raises(KeyboardInterrupt), interrupted(PACKAGES, number):
            build(shards, folder)
        gc.collect()
        what = f"interrupted at line {number} of {count.reached}"
        assert all(map(locks.probe, map(str, folder.iterdir()))), what
        assert not locks._held, what
        assert build(shards, folder).shards == expected.shards, what
