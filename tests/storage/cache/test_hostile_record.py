"""A record of evictions that another user of a shared folder has written to."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from wids.storage.cache import cache_names, eviction, eviction_record
from wids.storage.cache.eviction import Unfinished
from wids.storage.cache.eviction_record import Record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shards = Path(cache_names.shards_folder(str(tmp_path)))
    shards.mkdir(parents=True)
    return tmp_path


def listed(folder: Path, *first: tuple[int, int, str]) -> None:
    """Store a record of many files, and these before them."""
    files = [*first, *((10**18, 9, f"{'0' * 32}-{n}.tar") for n in range(1000))]
    eviction_record.save_listing(str(folder), Record(time.time_ns(), 9000), files)


def test_only_names_of_the_folder_are_deleted(folder: Path) -> None:
    """A path in the queue leads to no file outside the cache (CACHE-9, CACHE-45)."""
    precious = folder / "precious.txt"
    precious.write_text("mine")
    os.utime(precious, ns=(10**18, 10**18))
    listed(folder, (10**18, 4, "../precious.txt"))
    found = eviction_record.load(str(folder))
    assert found is not None
    new = Unfinished("new.tmp", "new", 999)
    eviction._evict_recorded(str(folder), found, new, 1)
    assert precious.read_text() == "mine"


def test_the_record_is_its_users_alone(folder: Path) -> None:
    """Nobody else may write to it, whatever the permissions of the folder (SEC-40, CACHE-45)."""
    folder.chmod(0o770)
    listed(folder)
    files = [path for path in folder.rglob("evict*") if path.is_file()]
    assert files
    assert {path.stat().st_mode & 0o077 for path in files} == {0}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_its_place_is_not_waited_for(folder: Path) -> None:
    """A pipe that another user made in place of a file is as no record (SEC-40)."""
    listed(folder)
    assert eviction_record.load(str(folder)) is not None
    for path in [path for path in folder.rglob("evict*") if path.is_file()]:
        path.unlink()
        os.mkfifo(path)
    assert eviction_record.load(str(folder)) is None
