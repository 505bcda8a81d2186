"""The stored total of a cache folder: making space without listing the folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cache_parts import DATA, make_cache, read_copy
from loopback import Server

from wids.storage.cache import cache_names, eviction
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
            excess = eviction.make_space(str(self.path), file, nbytes, LIMIT, lambda: None)
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


def test_space_is_made_with_one_listing(folder: Folder, num_listings: Callable[[], int]) -> None:
    """CACHE-45: it makes room for a twentieth of the limit, in the order of use."""
    for number in range(NUM_COPIES, NUM_COPIES + 21):
        assert folder.fetch(number) == 0
    assert num_listings() == 1
    assert folder.numbers() == {*range(21, NUM_COPIES + 21)}
    folder.use(22)
    assert folder.fetch(NUM_COPIES + 21) == 0
    assert num_listings() == 2
    assert folder.numbers() == {22, *range(43, NUM_COPIES + 22)}


def test_few_large_copies_are_evicted_one_by_one(
    folder: Folder, num_listings: Callable[[], int]
) -> None:
    """CACHE-8: never so many that less than 95 % of the limit would be held."""
    large = LIMIT // 10
    for number in range(NUM_COPIES, NUM_COPIES + 10):
        assert folder.fetch(number, large) == 0
    assert folder.numbers() == {*range(NUM_COPIES, NUM_COPIES + 10)}
    before = num_listings()
    for number in range(NUM_COPIES + 10, NUM_COPIES + 12):
        assert folder.fetch(number, large) == 0
    assert num_listings() == before + 2
    assert folder.numbers() == {*range(NUM_COPIES + 2, NUM_COPIES + 12)}


def test_what_was_not_noted_is_listed(folder: Folder, num_listings: Callable[[], int]) -> None:
    """CACHE-45: a cut download, and what was deleted, count until the folder is listed."""
    folder.fetch(NUM_COPIES)
    for _ in range(20):
        folder.fetch(NUM_COPIES + 1, is_cut=True)
    for number in range(21, 40):
        (folder.shards / name_of(number)).unlink()
    assert num_listings() == 1
    for number in range(NUM_COPIES + 1, NUM_COPIES + 40):
        assert folder.fetch(number) == 0
    assert num_listings() == 2
    assert folder.numbers() == {*range(40, NUM_COPIES + 40)}


def test_copies_in_use_are_passed_over(folder: Folder, num_listings: Callable[[], int]) -> None:
    """CACHE-45: others make room for a twentieth of the limit."""
    leased = [lease(str(folder.shards / name_of(number))) for number in range(200)]
    for number in range(NUM_COPIES):  # a lease is a use
        folder.use(number)
    for number in range(NUM_COPIES, NUM_COPIES + 3):
        assert folder.fetch(number) == 0
    assert num_listings() == 1
    assert folder.numbers() == {*range(200), *range(221, NUM_COPIES + 3)}
    for file in leased:
        file.close()


def test_indexes_of_evicted_copies_count(folder: Folder) -> None:
    """CACHE-45: they outlive their copies, so the total has their bytes."""
    for number in range(NUM_COPIES):
        (folder.shards / f"{name_of(number)}.index").write_bytes(bytes(10))
    for number in range(NUM_COPIES, NUM_COPIES + 3):  # the first lists the folder
        assert folder.fetch(number) == 0
        total = eviction.load_total(str(folder.path))
        assert total is not None
        assert total.nbytes == eviction.sum_nbytes(
            eviction.held_files(eviction.contents(str(folder.path)))
        )


def as_damaged(path: Path, data: bytes) -> None:
    """Store another total, as its user."""
    path.unlink()
    path.write_bytes(data)
    path.chmod(0o600)


@pytest.mark.parametrize(
    "doubt",
    [
        lambda path: as_damaged(path, path.read_bytes()[:-1]),
        lambda path: as_damaged(path, path.read_bytes().replace(b"[1", b"[9")),
        pytest.param(
            lambda path: as_damaged(path, path.read_bytes().replace(b"[1", b"[0")),
            marks=pytest.mark.long,
        ),
        pytest.param(
            lambda path: as_damaged(path, path.read_bytes().replace(b"]", b".5]")),
            marks=pytest.mark.long,
        ),
        lambda path: as_damaged(path, b'{"made_ns": 1, "nbytes": 0, "at": 0, "unfinished": []}'),
        lambda path: path.unlink(),
        lambda path: eviction.clear(eviction.contents(str(path.parents[1]))[:1]),
    ],
    ids=[
        *("cut", "of the future", "old", "no whole number", "of an earlier version", "none"),
        "copies were cleared",
    ],
)
def test_a_doubtful_total_is_made_again(
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


def test_the_total_is_its_users_alone(folder: Folder) -> None:
    """Nobody else may write to it, whatever the permissions of the folder (SEC-40, CACHE-45)."""
    folder.path.chmod(0o770)
    folder.fetch(NUM_COPIES)
    files = [path for path in folder.path.rglob("evict*") if path.suffix != ".lock"]
    assert [path.stat().st_mode & 0o077 for path in files] == [0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_its_place_is_not_waited_for(folder: Folder) -> None:
    """A pipe that another user made in place of the file is as no total (SEC-40)."""
    folder.fetch(NUM_COPIES)
    path = Path(cache_names.eviction_path(str(folder.path), "json"))
    path.unlink()
    os.mkfifo(path)
    assert eviction.load_total(str(folder.path)) is None
    assert folder.fetch(NUM_COPIES + 1) == 0


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
