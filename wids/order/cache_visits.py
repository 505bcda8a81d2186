"""Simulate what a node downloads if its cache does not hold everything that its ranks read.

Like the pool of open shards and the cache, without files: shards that a rank has open stay, and of
the others the least recently opened is deleted first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Final

import numpy as np

from wids.order import epoch_order
from wids.order.epoch_order import Order
from wids.storage.array_types import FloatArray, IntArray

NUM_OPEN: Final = 256
"""Shards that a process keeps open, where its descriptors allow that many."""
_OPEN_PART: Final = 4
"""A process keeps shards open up to this part of the cache, as `Cache.share_nbytes` has it."""


class NodeCache:
    """The copies that a node has, and the shards that its ranks have open.

    Args:
        sizes: Bytes of each shard.
        limit_nbytes: Most bytes of copies.
        num_ranks: Number of ranks of the node.

    Attributes:
        fetched_nbytes: Bytes that were downloaded so far.
    """

    def __init__(self, sizes: FloatArray, limit_nbytes: int, num_ranks: int) -> None:
        self.fetched_nbytes = 0.0
        self._sizes: list[float] = sizes.tolist()
        self._limit_nbytes = limit_nbytes
        self._copies: OrderedDict[int, None] = OrderedDict()
        self._copied_nbytes = 0.0
        self._open: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(num_ranks)]
        self._open_nbytes = [0.0] * num_ranks

    def visit(self, rank: int, shard: int) -> None:
        """Have a rank of the node read a shard."""
        opened, nbytes = self._open[rank], self._sizes[shard]
        if shard in opened:
            opened.move_to_end(shard)
            return
        if shard in self._copies:
            self._copies.move_to_end(shard)
        else:
            self._fetch(rank, shard, nbytes)
        opened[shard] = None
        self._open_nbytes[rank] += nbytes
        most_nbytes = self._limit_nbytes // _OPEN_PART
        while len(opened) > 1 and (len(opened) > NUM_OPEN or self._open_nbytes[rank] > most_nbytes):
            oldest, _ = opened.popitem(last=False)
            self._open_nbytes[rank] -= self._sizes[oldest]

    def _fetch(self, rank: int, shard: int, nbytes: float) -> None:
        self.fetched_nbytes += nbytes
        if self._copied_nbytes + nbytes > self._limit_nbytes:
            self._evict(nbytes)
        if self._copied_nbytes + nbytes > self._limit_nbytes:  # all the others are open
            self._open[rank].clear()
            self._open_nbytes[rank] = 0
            self._evict(nbytes)
        self._copies[shard] = None
        self._copied_nbytes += nbytes

    def _evict(self, nbytes: float) -> None:
        left, victims = self._copied_nbytes + nbytes - self._limit_nbytes, []
        for shard in self._copies:
            if left <= 0:
                break
            if not any(shard in opened for opened in self._open):
                victims.append(shard)
                left -= self._sizes[shard]
        for shard in victims:
            del self._copies[shard]
            self._copied_nbytes -= self._sizes[shard]


def visits_of_node(
    order: Order, seed: int, epoch: int, ranks: range, num_replicas: int, batch_size: int | None
) -> Iterator[tuple[int, int]]:
    """Yield what a node reads in an epoch, as numbers of a rank and a shard, in order of time.

    All ranks read equally fast.

    Args:
        order: The order.
        seed: Its seed.
        epoch: The epoch.
        ranks: The ranks of the node.
        num_replicas: Number of all ranks.
        batch_size: Samples that a rank reads together; None if the shards of a chunk all stay open
            while it is read, so that no order inside the chunk matters.
    """
    if batch_size is None:
        width = order.num_runs // num_replicas
        runs = order.runs(seed, epoch, range(ranks.start * width, ranks.stop * width))
        visited = [run.visits(order.lengths) for run in runs]
        each: list[Iterable[IntArray]] = [
            _one_of_each(visited[at : at + width]) for at in range(0, len(visited), width)
        ]
    else:
        ends = np.cumsum(order.lengths)
        each = [
            _batches(
                epoch_order.rank_blocks(order, seed, epoch, rank, num_replicas), ends, batch_size
            )
            for rank in ranks
        ]
    for step in zip_longest(*each, fillvalue=np.empty(0, np.int64)):
        for rank, shards in enumerate(step):
            for shard in shards.tolist():
                yield rank, shard


def _one_of_each(visited: list[IntArray]) -> Iterator[IntArray]:
    """Yield the visits of runs that a rank reads in turn."""
    for step in zip_longest(*(shards.tolist() for shards in visited), fillvalue=-1):
        yield np.array([shard for shard in step if shard >= 0])


def _batches(
    blocks: Iterable[IntArray], shard_ends: IntArray, batch_size: int
) -> Iterator[IntArray]:
    """Yield the shards of each batch, ascending, as a reader opens them."""
    rest = np.empty(0, np.int64)
    for block in blocks:
        shards = np.concatenate((rest, np.searchsorted(shard_ends, block, side="right")))
        stop = len(shards) // batch_size * batch_size
        for batch in shards[:stop].reshape(-1, batch_size):
            yield np.unique(batch) if batch_size > 1 else batch
        rest = shards[stop:]
    if len(rest):
        yield np.unique(rest)
