"""A fetch into the cache that is interrupted at any place, or any of whose calls fails."""

from __future__ import annotations

import errno
import gc
import io
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import sample_members, write_tar
from faults import failing, faults, interrupting, steps

from wids import ShardListDataset
from wids.storage import locks

TEXTS = [f"text {number}" for number in range(8)]

pytestmark = [
    # An object that is interrupted while it is made, or left, is closed when it is collected.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    """A shard."""
    return write_tar(tmp_path / "a.tar", sample_members(0, 8)).read_bytes()


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    """Cache folders that do not exist yet."""
    return (tmp_path / str(number) for number in range(10**6))


def read(folder: Path, data: bytes) -> list[str]:
    """Read all samples of a remote shard, in a cache with a limit."""
    with ShardListDataset(
        [{"url": "mem://host/a.tar", "nsamples": 8, "filesize": len(data)}],
        cache_dir=folder,
        cache_size=10 * len(data),
        handlers={"mem": lambda _: io.BytesIO(data)},
    ) as dataset:
        return [sample[".txt"] for sample in dataset]


def check(folder: Path, data: bytes, what: str) -> None:
    """Compare what a disturbed fetch left with the law, and fetch again."""
    gc.collect()
    copies = [path for path in folder.glob("shards/*") if not path.name.endswith(".index")]
    assert [path for path in copies if path.name.startswith(".")] == [], what
    assert all(path.read_bytes() == data for path in copies), f"{what}: a part of a copy"
    for path in folder.glob("*/*"):
        assert locks.probe(str(path)), f"{what}: {path.name} is locked"
    assert read(folder, data) == TEXTS, what
    left = sorted(path.name[33:] for path in folder.glob("shards/*"))
    assert left == ["a.tar", "a.tar.index"], what


@pytest.mark.parametrize("step", steps(97))
def test_an_interrupt_at_any_place(step: int, data: bytes, folders: Iterator[Path]) -> None:
    """There is a complete copy or none, and nothing else; the next fetch succeeds (CACHE-10)."""
    read(next(folders), data)  # imports what is imported when it is first needed
    for fault in faults(step, at_least=300):
        folder = next(folders)
        with interrupting(fault, "storage", "shards"):
            read(folder, data)
        check(folder, data, fault.where)


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failure_of_any_call(code: int, step: int, data: bytes, folders: Iterator[Path]) -> None:
    """A full or broken disk is an error or does no harm; the next fetch succeeds (CACHE-10)."""
    read(next(folders), data)
    for fault in faults(step, at_least=10):
        folder = next(folders)
        with suppress(OSError), failing(fault, code):
            assert read(folder, data) == TEXTS
        check(folder, data, fault.where)
