"""The record of what a cache folder holds: making space without listing the folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cache_parts import DATA, make_cache, read_copy
from loopback import Server

from wids.storage.cache import cache_names, eviction, eviction_record
from wids.storage.cache.cache_names import RemoteFile
from wids.storage.cache.leases import lease

NUM_COPIES, NBYTES = 400, 100
LIMIT = NUM_COPIES * NBYTES


def name_of(number: int) -> str:
    """Return the name of a copy."""
    return f"{number:032x}-{number}.tar"


class Folder:
    """A full cache folder, in which each copy was used a second after the one before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shards = path / "shards"
        self.shards.mkdir()
        self.used_s = time.time() - 10_000
        for number in range(NUM_COPIES):
            copy = self.shards / name_of(number)
            copy.write_bytes(bytes(NBYTES))
            self.use(number)

    def use(self, number: int) -> None:
        """Set the time of use of a copy."""
        self.used_s += 1
        os.utime(self.shards / name_of(number), (self.used_s, 0))

    def fetch(self, number: int, nbytes: int = NBYTES, *, is_cut: bool = False) -> int:
        """Make space for a copy, and write it unless its download is cut."""
        temporary = self.shards / f".{name_of(number)}.{'0' * 16}.tmp"
        with temporary.open("xb") as file:
            excess = eviction.make_space(
                str(self.path), file, nbytes, LIMIT, lambda: None, name_of(number)
            )
        if is_cut:
            temporary.unlink()
        else:
            temporary.rename(self.shards / name_of(number))
        return excess

    def numbers(self) -> set[int]:
        """Return the copies that are there."""
        return {int(name.partition("-")[0], 16) for name in os.listdir(self.shards)}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def num_listings(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count how often a folder is listed."""
    listed = []
    list_files = eviction._list_files
    monkeypatch.setattr(
        eviction, "_list_files", lambda folder: listed.append(folder) or list_files(folder)
    )
    return lambda: len(listed)


def test_space_is_made_without_listing_the_folder(
    folder: Folder, num_listings: Callable[[], int]
) -> None:
    """CACHE-45: the first process lists it; the limit and the order of use are kept exactly."""
    for number in range(NUM_COPIES, NUM_COPIES + 20):
        assert folder.fetch(number) == 0
    folder.use(20)
    folder.use(22)
    for number in range(NUM_COPIES + 20, NUM_COPIES + 30):
        assert folder.fetch(number) == 0
    assert num_listings() == 1
    assert folder.numbers() == {20, 22, *range(32, NUM_COPIES + 30)}


def test_what_was_not_noted_is_noticed(folder: Folder, num_listings: Callable[[], int]) -> None:
    """CACHE-45: a cut download counts no longer, nor what was deleted, once its turn comes."""
    folder.fetch(NUM_COPIES)
    for _ in range(5):
        folder.fetch(NUM_COPIES + 1, is_cut=True)
    for number in range(2, 12):
        (folder.shards / name_of(number)).unlink()
    for number in range(NUM_COPIES + 1, NUM_COPIES + 11):
        folder.fetch(number)
    assert num_listings() == 1
    assert folder.numbers() == {*range(12, NUM_COPIES + 11)}


def test_copies_in_use_are_passed_over_once(
    folder: Folder, num_listings: Callable[[], int]
) -> None:
    """CACHE-45: few others may be left then, which is no reason to list the folder again."""
    leased = [lease(str(folder.shards / name_of(number))) for number in range(200)]
    for number in range(NUM_COPIES):  # a lease is a use
        folder.use(number)
    for number in range(NUM_COPIES, NUM_COPIES + 3):
        assert folder.fetch(number) == 0
    assert num_listings() == 1
    assert folder.numbers() == {*range(200), *range(203, NUM_COPIES + 3)}
    for file in leased:
        file.close()


def test_indexes_of_evicted_copies_count(folder: Folder) -> None:
    """CACHE-45: they outlive their copies, so the record has their bytes."""
    for number in range(NUM_COPIES):
        (folder.shards / f"{name_of(number)}.index").write_bytes(bytes(10))
    for number in range(NUM_COPIES, NUM_COPIES + 3):  # the first lists the folder
        assert folder.fetch(number) == 0
        record = eviction_record.load(str(folder.path))
        assert record is not None
        held = eviction.held_files(eviction.contents(str(folder.path)))
        assert record.settled(str(folder.shards)).nbytes == held.nbytes()


@pytest.mark.parametrize(
    "doubt",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"made_ns": 1', b'"made_ns": 9')),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"at": ', b'"at": 0.')),
        lambda path: path.with_name("evict.queue").write_bytes(b""),
        lambda path: path.with_name("evict.queue").unlink(),
        lambda path: path.unlink(),
        lambda path: eviction.clear(eviction.contents(str(path.parents[1]))[:1]),
    ],
    ids=[
        "cut",
        "of the future",
        "no whole number",
        "another queue",
        "no queue",
        "none",
        "copies were cleared",
    ],
)
def test_a_doubtful_record_is_made_again(
    doubt: Callable[[Path], None], folder: Folder, num_listings: Callable[[], int]
) -> None:
    """CACHE-45: the folder is then listed, and the limit kept."""
    folder.fetch(NUM_COPIES)
    doubt(Path(cache_names.eviction_path(str(folder.path), "json")))
    before = num_listings()
    assert folder.fetch(NUM_COPIES + 1, 3 * NBYTES) == 0
    assert folder.fetch(NUM_COPIES + 2) == 0
    assert num_listings() == before + 1
    assert sum(path.stat().st_size for path in folder.shards.iterdir()) <= LIMIT


def test_a_queue_that_ends_is_made_again(
    folder: Folder, num_listings: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CACHE-45: after so many evictions the folder is listed again."""
    monkeypatch.setattr(eviction_record, "_MOST_QUEUED", 10)
    for number in range(NUM_COPIES, NUM_COPIES + 22):
        assert folder.fetch(number) == 0
    assert num_listings() == 2
    assert folder.numbers() == {*range(22, NUM_COPIES + 22)}


def test_a_cache_without_a_limit_has_its_copies_counted(
    folder: Folder, server: Server, num_listings: Callable[[], int]
) -> None:
    """CACHE-45: what a process without a limit adds is counted by those that have one."""
    folder.fetch(NUM_COPIES)
    file = RemoteFile(server.page("/0.tar", DATA[:10_000]), 10_000)
    read_copy(make_cache(folder.path), file)
    assert folder.fetch(NUM_COPIES + 1) == 0
    assert num_listings() == 2
    assert sum(path.stat().st_size for path in folder.shards.iterdir()) <= LIMIT + NBYTES
