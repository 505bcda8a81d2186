"""A journal has records in its file, and only their places in memory."""

from __future__ import annotations

import gc
import random
import tracemalloc
from dataclasses import replace

import pytest

from wids.publish import journal
from wids.publish.describe import ShardRecord
from wids.publish.journal import Journal, RecordPlaces
from wids.shards.tars.index import TarIdentity

NUM_SHARDS = 5000


def record(number: int) -> ShardRecord:
    """Return the description of a shard."""
    identity = TarIdentity(10**8, 10**18 + number)
    url = f"/data/train-{number:08d}.tar"
    return ShardRecord(url, "first", identity, 10, 10**8, f"{number:064x}", b"index")


@pytest.mark.long
def test_a_shard_takes_sixteen_bytes() -> None:
    """A coordinator of millions of tasks keeps two numbers of each."""
    tracemalloc.start()
    try:
        with Journal(None) as log:
            for number in range(NUM_SHARDS):
                log.add(record(number))
            assert len(log) == NUM_SHARDS
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 17 * NUM_SHARDS + 60_000
            task = (record(7).url, record(7).key_split)
            assert log.record(task, has_blob=True) == record(7)
            assert [*log][:2] == [(record(n).url, "first") for n in (0, 1)]
            log.add(record(NUM_SHARDS))
            log.add(replace(record(7), blob=b"again"))
            assert len(log) == NUM_SHARDS + 1
            assert log.record(task, has_blob=True).blob == b"again"
    finally:
        tracemalloc.stop()


def test_tasks_of_one_hash_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptions of shards whose hashes are equal are not confused."""
    monkeypatch.setattr(journal, "_NUM_KEYS", 3)
    with Journal(None) as log:
        for number in range(3):
            assert (record(number).url, "first") not in log
            log.add(record(number))
            log.add(record(number))
        assert [log.record((record(n).url, "first"), has_blob=True) for n in range(3)] == [
            *map(record, range(3))
        ]
        assert len(log) == 3


def test_places_are_those_of_a_dict() -> None:
    """Keys that are added and replaced in any order are found as in a dict."""
    places, expected, rng = RecordPlaces(), dict[int, int](), random.Random(0)
    for place in range(20_000):
        key = rng.randrange(9000)
        places[key] = expected[key] = place
    assert [places.get(key) for key in range(9001)] == [expected.get(key) for key in range(9001)]
    assert len(places) == len(expected)
    assert list(places) == sorted(expected.values())
