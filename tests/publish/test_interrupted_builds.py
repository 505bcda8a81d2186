"""`build_spec` is interrupted at any place, in a process that continues, such as a notebook."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from conftest import write_shards
from faults import faults, interrupting, steps

from wids import DatasetSpec, build_spec
from wids.storage import locks

pytestmark = [
    # A file that is interrupted before it is closed is closed when it is collected.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def build(shards: list[Path], folder: Path) -> DatasetSpec:
    folder.mkdir(exist_ok=True)
    dataset_index = folder / "a.index"
    return build_spec(
        shards, journal=folder / "journal", dataset_index=dataset_index, progress=False
    )


@pytest.mark.parametrize("step", steps(23))
def test_no_lock_is_left(step: int, tmp_path: Path) -> None:
    """The same process resumes at once, from any place: no file is locked or open."""
    write_shards(tmp_path, [3, 2])
    shards = sorted(tmp_path.glob("*.tar"))
    expected = build(shards, tmp_path / "first")  # which imports what is needed
    for fault in faults(step, at_least=300):
        folder = tmp_path / f"{fault.number}"
        with interrupting(fault, "publish", "storage", "shards"):
            build(shards, folder)
        gc.collect()
        assert all(map(locks.probe, map(str, filter(Path.is_file, folder.rglob("*"))))), fault.where
        assert not locks._held, fault.where
        assert build(shards, folder).shards == expected.shards, fault.where
