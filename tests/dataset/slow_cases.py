"""Seven ways to make a training loop wait for data, each with what recognises it.

`CASES` are used with `wids.timings` and by tests of other tools that look for bottlenecks.

What is slow on purpose takes more than a second of a few batches. On a busy machine every other
stage may take 50 ms more in each batch, and 0.3 s in one of them: that changes no bottleneck. A
machine that stops for a second does, so `attempts` offers a case again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import sample_members, write_tar
from loopback import Server
from served_shards import LENGTH, identity, serve_shards

import wids
from wids.shards.tars import shard


@dataclass(frozen=True)
class Case:
    """A dataset, how it is read, and the bottleneck that this has.

    Attributes:
        name: What was made slow.
        bottleneck: The key of `wids.dataset.timing.ADVICE`.
        shards: What `ShardListDataset` takes.
        options: Its other arguments.
        loader: Those of a DataLoader.
        chunksize: That of a `ChunkedSampler`; None for no sampler.
    """

    name: str
    bottleneck: str
    shards: Any
    options: dict[str, Any] = field(default_factory=dict)
    loader: dict[str, Any] = field(default_factory=dict)
    chunksize: int | None = None

    def dataset(self) -> wids.ShardListDataset:
        """Return the dataset, of which nothing is open."""
        return wids.ShardListDataset(self.shards, **self.options)


def late(seconds: float, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Wait, and return what a call returns."""
    time.sleep(seconds)
    return call(*arguments, **options)


def local_shards(folder: Path, num_shards: int, length: int) -> list[str]:
    """Write small shards."""
    ends = [(n * length, (n + 1) * length) for n in range(num_shards)]
    return [str(write_tar(folder / f"{a}.tar", sample_members(a, b))) for a, b in ends]


def slow_disk(folder: Path, _: Server, patch: pytest.MonkeyPatch) -> Case:
    """A disk that takes long for the samples of a batch, which no real one surely does."""
    read = shard.Shard.read_many

    def read_slowly(*arguments: Any, **options: Any) -> Any:
        return late(0.3, read, *arguments, **options)

    patch.setattr(shard.Shard, "read_many", read_slowly)
    options = {"transformations": []}
    loader = {"batch_size": 2, "collate_fn": identity}
    return Case("slow disk", "disk", local_shards(folder, 1, 8), options, loader)


def slow_server(folder: Path, server: Server, _: pytest.MonkeyPatch) -> Case:
    """A server that sends 70 kB in a second."""
    server.rate_nbytes = 70_000
    options = {"access": "download", "cache_dir": str(folder / "cache")}
    shards = serve_shards(folder, server)[:2]
    return Case("slow server", "network", shards, options, {"batch_size": LENGTH})


def slow_decoder(folder: Path, _: Server, __: pytest.MonkeyPatch) -> Case:
    """A decoder that takes long, and a worker for each processor."""
    options = {"transformations": [wids.Decoder(decoders={"txt": partial(late, 0.15, len)})]}
    loader = {"num_workers": 1, "batch_size": 2}
    return Case("slow decoder", "decode", local_shards(folder, 2, 4), options, loader)


def too_few_workers(folder: Path, server: Server, patch: pytest.MonkeyPatch) -> Case:
    """The same without workers."""
    case = slow_decoder(folder, server, patch)
    return Case("too few workers", "workers", case.shards, case.options, {"batch_size": 2})


def slow_collate(folder: Path, _: Server, __: pytest.MonkeyPatch) -> Case:
    """A collate function that takes long."""
    loader = {"num_workers": 1, "batch_size": 2, "collate_fn": partial(late, 0.3, len)}
    return Case("collate-bound", "collate", local_shards(folder, 2, 4), {}, loader)


def small_cache(folder: Path, server: Server, _: pytest.MonkeyPatch) -> Case:
    """A cache that has room for two of four shards, which are read in random order."""
    server.rate_nbytes = 350_000
    options = {
        "access": "download",
        "cache_dir": str(folder / "cache"),
        "cache_size": 130_000,
        "lru_size": 1,
    }
    shards, chunksize = serve_shards(folder, server)[:4], 4 * LENGTH
    loader = {"batch_size": 2 * LENGTH}
    return Case("cache too small", "cache", shards, options, loader, chunksize)


def large_chunk(folder: Path, _: Server, patch: pytest.MonkeyPatch) -> Case:
    """Chunks of all samples, of which one shard stays open, where it takes long to open a file."""
    patch.setattr(shard, "map_file", partial(late, 0.08, shard.map_file))
    options = {"transformations": [], "lru_size": 1}
    loader = {"batch_size": 3, "collate_fn": identity}
    shards = local_shards(folder, 3, 6)
    return Case("chunk too large", "chunk", shards, options, loader, chunksize=18)


Make = Callable[[Path, Server, pytest.MonkeyPatch], Case]
"""Makes a case, from a folder for its files and a server for its shards."""

CASES: tuple[Make, ...] = (
    slow_disk,
    slow_server,
    slow_decoder,
    too_few_workers,
    slow_collate,
    small_cache,
    large_chunk,
)


def attempts(make: Make, folder: Path, server: Server) -> Iterator[Case]:
    """Yield a case a few times, each with files and a cache of its own."""
    for number in range(5):
        own = folder / str(number)
        own.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            yield make(own, server, patch)
