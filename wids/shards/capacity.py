"""Describe what this machine can hold of a dataset, so that samplers can choose their chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wids.storage.arrays import FloatArray, IntArray

if TYPE_CHECKING:
    from wids.shards.reader import ShardReader


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


def capacity_of(reader: ShardReader, lengths: Sequence[int]) -> Capacity:
    """Return what this machine can hold of a view.

    Args:
        reader: The shards.
        lengths: Number of samples of the view in each shard; a single number if the order of the
            view does not follow the shards, so that they count as one.
    """
    cache_nbytes, nbytes = reader.cache_nbytes, np.zeros(len(reader.shards))
    if cache_nbytes is not None:
        nbytes = reader.all_stored_nbytes
    if len(lengths) != len(reader.shards):
        nbytes = nbytes.sum(keepdims=True)
    counts = np.array(lengths, np.int64)
    return Capacity(counts, np.where(counts > 0, nbytes, 0), cache_nbytes, reader.pool.size)
