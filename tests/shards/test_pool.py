"""At most *n* open shards, and which of them is closed first."""

from __future__ import annotations

import os
import pickle
import random
import threading
from pathlib import Path

import pytest
from conftest import num_open, sample_members, write_tar

from wids import Shard
from wids.shards.capacity import default_num_open
from wids.shards.shard_pool import ShardPool


class Opener:
    """Opens shard ``n`` as ``n.tar``, and records that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[int] = []

    def __call__(self, number: int, **_: object) -> Shard:
        self.opened.append(number)
        return Shard(self.folder / f"{number}.tar")


@pytest.fixture
def opener(tmp_path: Path) -> Opener:
    for number in range(6):
        write_tar(tmp_path / f"{number}.tar", sample_members(number, number + 1))
    return Opener(tmp_path)


def test_least_recently_used_goes_first(opener: Opener) -> None:
    """The shard that was used last stays open."""
    pool = ShardPool(opener, 2)

    for number in (0, 1, 0, 2, 0, 1):
        pool.get(number)

    assert opener.opened == [0, 1, 2, 1]
    assert (pool.num_accesses, pool.num_misses, len(pool)) == (6, 4, 2)


def test_descriptors_stay_within_the_size(opener: Opener) -> None:
    """A shard that is evicted is closed at once."""
    pool = ShardPool(opener, 2)

    for number in range(6):
        pool.get(number)

    assert num_open(opener.folder) == 2 * os.path.isdir("/proc/self/fd")
    pool.close()
    assert num_open(opener.folder) == 0


def test_shard_in_use_survives_its_eviction(opener: Opener) -> None:
    """A reader that holds a shard can read it after it was evicted."""
    pool = ShardPool(opener, 1)
    shard = pool.get(0)
    pool.get(1)

    assert shard[0]["__key__"] == "s00000"


def test_default_is_a_quarter_of_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default stays below the process's limit, and is at most 256."""
    resource = pytest.importorskip("resource")
    for soft, expected in ((400, 100), (1 << 20, 256), (2, 1), (-1, 256)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert default_num_open() == expected


def test_pickle_has_no_shards(opener: Opener) -> None:
    """An unpickled pool is empty, and opens shards itself."""
    pool = ShardPool(opener, 3)
    pool.get(0)

    copy = pickle.loads(pickle.dumps(pool))  # noqa: S301 - made here

    assert len(copy) == 0
    assert copy.get(0)[0]["__key__"] == "s00000"


def test_threads_share_a_pool_of_one(opener: Opener) -> None:
    """Four threads and room for one shard: every read is right."""
    pool = ShardPool(opener, 1)
    errors = []

    def read(seed: int) -> None:
        numbers = random.Random(seed)
        for _ in range(100):
            number = numbers.randrange(6)
            try:
                assert pool.get(number)[0]["__key__"] == f"s{number:05d}"
            except Exception as error:  # noqa: BLE001 - shown by the assertion
                errors.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert len(pool) <= 1
