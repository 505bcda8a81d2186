"""Seven ways to make a training loop wait for data, each with what recognises it.

`CASES` are used with `wids.timings` and by tests of other tools that look for bottlenecks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conftest import sample_members, write_tar
from loopback import Server
from served_shards import identity, serve_shards

import wids


@dataclass(frozen=True)
class Case:
    """A dataset, how it is read, and the bottleneck that this has.

    Attributes:
        name: What was made slow.
        bottleneck: The key of `wids.dataset.stage_times.ADVICE`.
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


def decode_slowly(data: bytes) -> int:
    """Decode for two milliseconds."""
    time.sleep(0.002)
    return len(data)


def collate_slowly(samples: list[Any]) -> int:
    """Collate for ten milliseconds."""
    time.sleep(0.01)
    return len(samples)


def local_shards(folder: Path, num_shards: int, length: int) -> list[str]:
    """Write small shards."""
    ends = [(n * length, (n + 1) * length) for n in range(num_shards)]
    return [str(write_tar(folder / f"{a}.tar", sample_members(a, b))) for a, b in ends]


def slow_disk(folder: Path, _: Server) -> Case:
    """Members of four megabytes that the system no longer has in memory."""
    members = [(f"{n}.bin", bytes(4 << 20)) for n in range(16)]
    path = write_tar(folder / "large.tar", members)
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    options = {"transformations": []}
    return Case("slow disk", "disk", [str(path)], options, {"collate_fn": identity})


def slow_server(folder: Path, server: Server) -> Case:
    """A server that sends a megabyte in a second."""
    server.rate_nbytes = 1e6
    options = {"access": "download", "cache_dir": str(folder / "cache")}
    return Case("slow server", "network", serve_shards(folder, server)[:3], options)


def slow_decoder(folder: Path, _: Server) -> Case:
    """A decoder that takes long, and a worker for each processor."""
    options = {"transformations": [wids.Decoder(decoders={"txt": decode_slowly})]}
    loader = {"num_workers": 1, "batch_size": 8}
    return Case("slow decoder", "decode", local_shards(folder, 2, 64), options, loader)


def too_few_workers(folder: Path, server: Server) -> Case:
    """The same without workers."""
    case = slow_decoder(folder, server)
    return Case("too few workers", "workers", case.shards, case.options, {"batch_size": 8})


def slow_collate(folder: Path, _: Server) -> Case:
    """A collate function that takes long."""
    loader = {"num_workers": 1, "batch_size": 4, "collate_fn": collate_slowly}
    return Case("collate-bound", "collate", local_shards(folder, 2, 64), {}, loader)


def small_cache(folder: Path, server: Server) -> Case:
    """A cache that has room for two of eight shards, which are read in random order."""
    options = {
        "access": "download",
        "cache_dir": str(folder / "cache"),
        "cache_size": 130_000,
        "lru_size": 1,
    }
    loader = {"batch_size": 4, "shuffle": True}
    return Case("cache too small", "cache", serve_shards(folder, server), options, loader)


def large_chunk(folder: Path, _: Server) -> Case:
    """Chunks of all samples, of which two shards stay open."""
    options = {"transformations": [], "lru_size": 2}
    loader = {"batch_size": 4, "collate_fn": identity}
    shards = local_shards(folder, 16, 25)
    return Case("chunk too large", "chunk", shards, options, loader, chunksize=400)


CASES: tuple[Callable[[Path, Server], Case], ...] = (
    slow_disk,
    slow_server,
    slow_decoder,
    too_few_workers,
    slow_collate,
    small_cache,
    large_chunk,
)
