"""A reader keeps at most *n* shards open, and closes those first that were used longest ago."""

from __future__ import annotations

import os
import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import num_open, sample_members, write_tar

import wids
from wids.shards.capacity import default_num_open
from wids.shards.policy import Wanted
from wids.shards.read_options import ReadOptions
from wids.shards.reader import ShardReader
from wids.storage.cache.store import Cache
from wids.storage.fetch import Fetcher
from wids.storage.transport.admission import Admission

OpenReader = Callable[[int], ShardReader]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six shards of one sample each."""
    for number in range(6):
        write_tar(tmp_path / f"{number}.tar", sample_members(number, number + 1))
    return tmp_path


@pytest.fixture
def reader_of(folder: Path) -> OpenReader:
    """Return a callable that returns a reader with room for so many shards."""
    spec = wids.load_spec([str(folder / f"{number}.tar") for number in range(6)])
    store = Cache(str(folder / "cache"), Fetcher())
    return lambda size: ShardReader(spec, store, ReadOptions(lru_size=size))


def test_least_recently_used_goes_first(reader_of: OpenReader) -> None:
    """The shard that was used last stays open."""
    reader = reader_of(2)
    shards = [reader.open(number) for number in (0, 1, 0, 2, 0, 1)]
    assert shards[0] is shards[2] is shards[4]
    assert shards[1] is not shards[5]
    assert (*reader.accesses.sums(), reader.num_open) == (6, 4, 2)


def test_descriptors_stay_within_the_size(reader_of: OpenReader, folder: Path) -> None:
    """A shard that is evicted is closed at once, and so is each when the reader is dropped."""
    reader = reader_of(2)
    for number in range(6):
        reader.open(number)
    assert num_open(folder) == 2 * os.path.isdir("/proc/self/fd")
    reader.close()
    assert num_open(folder) == 0
    reader.open(0)
    del reader
    assert num_open(folder) == 0


def test_shard_in_use_survives_its_eviction(reader_of: OpenReader) -> None:
    """Who holds a shard can read it after it was evicted."""
    reader = reader_of(1)
    shard = reader.open(0)
    reader.open(1)
    assert shard[0]["__key__"] == "s00000"


def test_a_shard_that_is_opened_apart_is_not_kept(reader_of: OpenReader) -> None:
    """It takes the place of no other, and counts as no use."""
    reader = reader_of(1)
    kept = reader.open(0)
    with reader.open_apart(1, Wanted.PART) as shard:
        assert shard[0]["__key__"] == "s00001"
    assert reader.open(0) is kept
    assert reader.accesses.sums() == (2, 1)


def test_default_is_a_quarter_of_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default stays below the process's limit, and is at most 256."""
    resource = pytest.importorskip("resource")
    for soft, expected in ((400, 100), (1 << 20, 256), (2, 1), (-1, 256)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert default_num_open() == expected
        limit = Admission().server("http://host", is_awaited=True).limit
        for _ in range(300):
            limit.note_request(0.05)
        assert limit.value == expected, "as many connections"
        assert Admission().server("http://host").limit.value <= expected


def test_pickle_has_no_shards(reader_of: OpenReader) -> None:
    """An unpickled reader has none open, and opens them itself."""
    reader = reader_of(3)
    reader.open(0)
    copy = pickle.loads(pickle.dumps(reader))  # noqa: S301 - made here
    assert copy.num_open == 0
    assert copy.open(0)[0]["__key__"] == "s00000"


def test_threads_share_a_reader_of_one(reader_of: OpenReader) -> None:
    """Four threads and room for one shard: every read is right."""
    reader = reader_of(1)
    errors = []

    def read(seed: int) -> None:
        numbers = random.Random(seed)
        for _ in range(300):
            number = numbers.randrange(6)
            try:
                assert reader.open(number)[0]["__key__"] == f"s{number:05d}"
            except Exception as error:  # noqa: BLE001 - shown by the assertion
                errors.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert reader.num_open <= 1
