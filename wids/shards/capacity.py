"""Limit what a process may hold of a dataset: its open shards, and its share of the cache.

Samplers choose their chunks by the same limits, so they stand here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wids.storage.arrays import FloatArray, IntArray
from wids.storage.descriptors import num_descriptors

MAX_OPEN_SHARDS: Final = 256
"""Most shards that a pool keeps open by default, if the process may open four times as many files.
"""

CACHE_SHARE: Final = 0.25
"""Part of the cache's limit that one process may have in use: open, read in one chunk, or fetched
ahead. The rest is for other processes, and for what was just read."""


def default_num_open() -> int:
    """Return how many shards to keep open: at most a quarter of the process's descriptors."""
    return num_descriptors(4, MAX_OPEN_SHARDS)


def cache_share_nbytes(limit_nbytes: int | None) -> int | None:
    """Return the share of one process in a cache with this limit; None if there is no limit."""
    return None if limit_nbytes is None else int(limit_nbytes * CACHE_SHARE)


@dataclass(frozen=True, eq=False)
class Capacity:
    """What a machine can hold of a dataset.

    Attributes:
        lengths: Number of samples in each shard.
        nbytes: Bytes that the cache has to store for each shard: 0 if it is local, NaN if the
            length is unknown.
        cache_nbytes: Most bytes in the cache, which all ranks of a node share; None for no limit.
        num_open: Most shards that a process keeps open.
    """

    lengths: IntArray
    nbytes: FloatArray
    cache_nbytes: int | None
    num_open: int
