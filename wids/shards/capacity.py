"""Describe what this machine can hold of a dataset, so that samplers can choose their chunks."""

from __future__ import annotations

from dataclasses import dataclass

from wids.storage.arrays import FloatArray, IntArray


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
