"""Chunks that a cache does not hold: what they download from a real server, and what is advised."""

from __future__ import annotations

import random
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_tar
from loopback import Server
from torch.utils.data import DataLoader

from wids import ChunkedSampler, MixedSampler, Prefetcher, ShardListDataset

NUM_SHARDS, LENGTH = 24, 15


class Site:
    """A dataset of small shards on a server."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder = server, folder
        shardlist = []
        for number in range(NUM_SHARDS):
            keys = range(number * LENGTH, (number + 1) * LENGTH)
            members = [(f"{key:05d}.bin", random.Random(key).randbytes(500)) for key in keys]
            body = write_tar(folder / f"{number}.tar", members).read_bytes()
            server.page(f"/{number}.tar", body)
            entry = {"url": f"{number}.tar", "nsamples": LENGTH, "filesize": len(body)}
            shardlist.append({**entry, "dataset": "ab"[number % 2]})
        self.nbytes = [entry["filesize"] for entry in shardlist]
        self.url = server.page("/train.json", {"shardlist": shardlist})
        self.num_caches = 0

    def dataset(self, cache_shards: int, **options: Any) -> ShardListDataset:
        """Return the dataset with a new cache that holds so many shards."""
        self.num_caches += 1
        return ShardListDataset(
            self.url,
            cache_dir=self.folder / f"cache{self.num_caches}",
            cache_size=cache_shards * max(self.nbytes),
            transformations=[],
            raw="bytes",
            **options,
        )

    def read(self, dataset: ShardListDataset, sampler: Any) -> tuple[float, list[str]]:
        """Read an epoch; return what was downloaded, in datasets, and the warnings."""
        self.server.log.clear()
        loader: DataLoader[Any] = DataLoader(
            dataset, batch_size=16, sampler=sampler, collate_fn=list
        )
        with dataset, warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            num_read = sum(map(len, loader))
        assert num_read == NUM_SHARDS * LENGTH
        return self.server.num_sent / sum(self.nbytes), [str(w.message) for w in found]


@pytest.fixture
def site(server: Server, tmp_path: Path) -> Site:
    return Site(server, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_chunk_that_the_cache_does_not_hold(site: Site, is_ahead: bool) -> None:
    """The dataset is downloaded many times, with a warning; with its settings once.

    A thread that fetches ahead, and comes late, may fetch once more what was read and evicted.
    """
    most = 1.5 if is_ahead else 1

    def read(dataset: ShardListDataset, **options: Any) -> tuple[float, list[str]]:
        sampler: Any = ChunkedSampler(dataset, **options)
        return site.read(dataset, Prefetcher(sampler, dataset) if is_ahead else sampler)

    times, (warning,) = read(site.dataset(8))
    assert times > 5
    assert f"up to {NUM_SHARDS} shards" in warning
    assert ("are fetched ahead" in warning) == is_ahead

    advised = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", warning)}
    times, found = read(site.dataset(8), chunksize=advised["chunksize"])
    assert times <= most
    assert found == []

    assert advised["cache_size"] == sum(site.nbytes) + 3 * max(site.nbytes)
    times, found = read(site.dataset(NUM_SHARDS + 3))
    assert times <= most
    assert found == []

    times, found = read(site.dataset(8), chunksize="auto")
    assert times <= most
    assert found == []


def test_parts_of_shards_are_downloaded_again(site: Site) -> None:
    """Chunks that cut shards read each part at another time, with a warning and its remedy."""
    dataset = site.dataset(8)
    times, (warning,) = site.read(dataset, ChunkedSampler(dataset, chunksize=10))
    assert times > 1.5
    assert "chunks of 10 samples cut shards of up to 15" in warning

    advised = int(re.findall(r"chunksize=(\d+)", warning)[0])
    dataset = site.dataset(8)
    times, found = site.read(dataset, ChunkedSampler(dataset, chunksize=advised))
    assert (times, found) == (1, [])


def test_a_mix_has_a_chunk_of_each_source(site: Site) -> None:
    """Its automatic chunks download each shard once for each pass over its source."""
    dataset = site.dataset(8)
    sampler = MixedSampler(dataset, chunksize="auto")
    assert sampler.chunksize == 2 * LENGTH - 1
    times, found = site.read(dataset, sampler)
    assert (times, found) == (1, [])


def test_a_prefetcher_knows_the_shards_of_other_samplers(site: Site) -> None:
    """A sampler that was made from a range has no limits; those of the dataset are compared."""
    with site.dataset(8) as dataset:
        with pytest.warns(UserWarning, match=f"have up to {NUM_SHARDS} shards"):
            indices = iter(Prefetcher(ChunkedSampler(range(360)), dataset))
        assert next(indices) >= 0
        indices.close()  # type: ignore[attr-defined]  # a generator


def test_limits_are_those_of_the_dataset(site: Site) -> None:
    """They state lengths and sizes of the shards of a view, the cache, and open shards."""
    with site.dataset(8, lru_size=5) as dataset:
        limits = dataset[20:40].limits
        assert limits.lengths.tolist() == [0, 10, 10] + [0] * (NUM_SHARDS - 3)
        assert limits.nbytes.tolist() == [0, *site.nbytes[1:3]] + [0] * (NUM_SHARDS - 3)
        assert (limits.cache_nbytes, limits.num_open) == (8 * max(site.nbytes), 5)
        shuffled = dataset[np.random.default_rng(0).permutation(360)].limits
        assert (shuffled.lengths.tolist(), shuffled.nbytes.tolist()) == ([360], [sum(site.nbytes)])


def test_what_is_not_fetched_needs_no_cache(site: Site) -> None:
    """Local shards, ranges of bytes and a cache without a limit are never in the way."""
    local = [str(site.folder / f"{number}.tar") for number in range(NUM_SHARDS)]
    with ShardListDataset(local, cache_size="1MB") as dataset:
        assert dataset.limits.nbytes.sum() == 0
    with site.dataset(8, access="range") as dataset:
        assert dataset.limits.cache_nbytes is None
    with ShardListDataset(site.url) as dataset:
        assert dataset.limits.cache_nbytes is None
