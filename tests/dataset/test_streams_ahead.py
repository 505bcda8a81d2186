"""`wids.stream` of a sampler inside a `Prefetcher`."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain, islice
from pathlib import Path

import pytest
from conftest import raises
from events import wait_for
from loopback import Server
from served_shards import NUM_SAMPLES, NUM_SHARDS, identity, serve_shards
from torch.utils.data import DataLoader, SequentialSampler

import wids

EVERY_SHARD = Counter(f"/{n}.tar" for n in range(NUM_SHARDS))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_fetches_ahead(num_workers: int, server: Server, tmp_path: Path) -> None:
    """The order is the sampler's, and each shard is downloaded once, ahead of its reader.

    All shards are asked for while the first samples are used.
    """
    with wids.ShardListDataset(serve_shards(tmp_path, server), access="download") as dataset:
        expected = list(wids.ChunkedSampler(dataset, chunksize=30))
        sampler = wids.Prefetcher(wids.ChunkedSampler(dataset, chunksize=30), dataset)
        stream = wids.stream(dataset, sampler, batch_size=10)
        loader = DataLoader(
            stream,
            batch_size=10,
            num_workers=num_workers,
            collate_fn=identity,
        )
        batches = iter(loader)
        first = next(batches)
        wait_for(lambda: Counter(server.requests) == EVERY_SHARD)
        seen = [sample["__index__"] for sample in chain(first, *batches)]
        assert seen == expected
        assert Counter(server.requests) == EVERY_SHARD
        assert len(stream) == NUM_SAMPLES


def test_the_state_is_exact(server: Server, tmp_path: Path) -> None:
    """What was fetched ahead does not count; a resumed stream fetches what is left."""
    shards = serve_shards(tmp_path, server)

    def stream(cache: str) -> wids.dataset.streaming.SampleStream:
        dataset = wids.ShardListDataset(shards, access="download", cache_dir=tmp_path / cache)
        sampler = wids.Prefetcher(wids.ChunkedSampler(dataset, shuffle=False), dataset)
        return wids.stream(dataset, sampler, batch_size=10)

    before = stream("a")
    samples = iter(before)
    assert [sample["__index__"] for sample in islice(samples, 155)] == list(range(155))
    state = json.loads(json.dumps(before.state_dict()))
    samples.close()  # type: ignore[attr-defined]
    server.log.clear()
    after = stream("b")
    after.load_state_dict(state)
    assert [sample["__index__"] for sample in after] == list(range(155, 200))
    assert Counter(server.requests) == Counter(["/6.tar", "/7.tar"])
    for used in (before, after):
        used.dataset.close()  # type: ignore[attr-defined]


def test_a_prefetcher_of_a_foreign_sampler_is_refused(train: Path) -> None:
    """The error names the sampler inside, and what is accepted."""
    with wids.ShardListDataset(train) as dataset:
        sampler = wids.Prefetcher(SequentialSampler(dataset), dataset)
        with raises(TypeError, "expected one of wids' samplers", "found SequentialSampler"):
            wids.stream(dataset, sampler)
