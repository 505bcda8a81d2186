"""A journal has records in its file, and only their places in memory."""

from __future__ import annotations

import tracemalloc

from wids.publish.describe import ShardRecord
from wids.publish.journal import Journal
from wids.shards.tars.index import TarIdentity

NUM_SHARDS = 5000


def record(number: int) -> ShardRecord:
    """Return the description of a shard."""
    identity = TarIdentity(10**8, 10**18 + number)
    url = f"/data/train-{number:08d}.tar"
    return ShardRecord(url, "first", identity, 10, 10**8, f"{number:064x}", b"index")


def test_a_shard_takes_two_hundred_bytes() -> None:
    """A coordinator of millions of tasks keeps no description of any (INDEX-30)."""
    tracemalloc.start()
    try:
        with Journal(None) as log:
            for number in range(NUM_SHARDS):
                log.add(record(number))
            assert tracemalloc.get_traced_memory()[0] < 200 * NUM_SHARDS + 100_000
            task = (record(7).url, record(7).key_split)
            assert log.with_blob(task) == record(7)
            assert [*log][:2] == [(record(n).url, "first") for n in (0, 1)]
            log.add(record(NUM_SHARDS))
            assert len(log) == NUM_SHARDS + 1
    finally:
        tracemalloc.stop()
