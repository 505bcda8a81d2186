"""Compute what each rank and node reads in an epoch, from a sampler and the sizes of shards.

No shard is opened, and indices of samples are computed only in the chunks that two runs share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch  # noqa: F401 - whole, before its parts: threads must not import both at once
from torch.utils.data import Sampler

from wids.order import epoch_order, fit
from wids.order.bucket_sampler import RoundsSampler
from wids.order.samplers import ChunkedSampler
from wids.shards.specs.model import DatasetSpec
from wids.storage.arrays import BoolArray, FloatArray, IntArray
from wids.storage.sizes import count_text, nbytes_text


@dataclass(frozen=True, eq=False)
class SamplingCost:
    """What the ranks and nodes of a job read in some epochs. ``print`` shows it as a table.

    A rank *visits* a shard each time it opens it; returning to a shard for another chunk is another
    visit. Bytes are those of entire shards, and NaN where the spec does not state them. A node with
    a cache for everything that it reads downloads ``new_nbytes``. With a smaller one that holds
    the working set, it downloads at most ``visited_nbytes`` of its ranks.

    Attributes:
        epochs: The epochs, ascending.
        num_shards: Number of different shards that each rank reads, shape
            ``(num_epochs, num_replicas)``.
        num_visits: Number of visits of each rank, same shape.
        nbytes: Bytes of the different shards of each rank, same shape.
        visited_nbytes: Bytes of all visits of each rank, same shape.
        node_nbytes: Bytes of the different shards that the ranks of each node read, shape
            ``(num_epochs, num_nodes)``.
        new_nbytes: The bytes among them that the node did not read in an earlier epoch, same shape.
        working_shards: Most shards of the working set of a rank: those of the chunks that its runs
            are reading, each of which is read in random order.
        working_nbytes: Their bytes. A cache that holds fewer for all ranks of a node downloads
            shards repeatedly.
        num_mixed: Number of samples from which the next batch of the job is drawn: the chunks that
            all runs are reading at the same time, on average.

    Example:
        >>> import wids
        >>> shards = [wids.ShardSpec(f"/{i}.tar", 1000, 5_000_000) for i in range(8)]
        >>> sampler = wids.ShardListSampler(range(8000), lengths=[1000] * 8)
        >>> cost = wids.sampling_cost(wids.DatasetSpec(tuple(shards)), sampler)
        >>> cost.node_nbytes[0].tolist(), cost.new_nbytes[1].tolist()  # the cache has all of them
        ([40000000.0], [0.0])
    """

    epochs: tuple[int, ...]
    num_shards: IntArray
    num_visits: IntArray
    nbytes: FloatArray
    visited_nbytes: FloatArray
    node_nbytes: FloatArray
    new_nbytes: FloatArray
    num_mixed: int
    working_shards: int
    working_nbytes: float

    def __str__(self) -> str:
        """Return a table of the rank and the node that read most in each epoch."""
        num_replicas, num_nodes = self.nbytes.shape[1], self.node_nbytes.shape[1]
        title = (
            f"the most that one of {num_replicas} ranks reads, and one of {num_nodes} nodes; "
            f"{self.num_mixed:,} samples are mixed at a time"
        )
        of_rank = nbytes_text(self.working_nbytes)
        of_node = nbytes_text(self.working_nbytes * num_replicas / num_nodes)
        working_set = (
            f"working set: at most {count_text(self.working_shards, 'shard')} ({of_rank}) of a "
            f"rank, {of_node} of a node"
        )
        header = "epoch    shards    visits     bytes  by visits |      node       new"
        lines = [title, working_set, "", header]
        for row, epoch in enumerate(self.epochs):
            num_shards, num_visits = self.num_shards[row].max(), self.num_visits[row].max()
            sizes = (self.nbytes, self.visited_nbytes, self.node_nbytes, self.new_nbytes)
            rank, visited, node, new = (nbytes_text(size[row].max()) for size in sizes)
            lines.append(
                f"{epoch:5} {num_shards:9,} {num_visits:9,} {rank:>9} {visited:>10} | {node:>9} "
                f"{new:>9}"
            )
        return "\n".join(lines)


def sampling_cost(
    spec: DatasetSpec,
    sampler: Sampler[Any],
    *,
    num_nodes: int = 1,
    epochs: Iterable[int] = range(2),
) -> SamplingCost:
    """Compute what each rank and node reads, to help choose ``chunksize`` and ``redeal``.

    It takes seconds for an epoch of a billion samples on a thousand ranks. ORDER-13 in
    specs/sampler-order.md defines visits.

    Args:
        spec: Spec of the dataset, which states the sizes of the shards in bytes.
        sampler: A sampler over this dataset, for any rank, or batches or a `Prefetcher` around
            one; it is not changed. Batches that a rank takes from others are not in the cost.
        num_nodes: Number of nodes. Each has the same number of neighbouring ranks, as with
            ``torchrun``.
        epochs: Epochs to compute. Nodes have no copies before the first one.

    Raises:
        ValueError: The sampler belongs to another dataset, ``num_nodes`` does not divide its number
            of ranks, or an epoch is negative.
        TypeError: The sampler is not one of wids' own.

    Example:
        >>> import wids
        >>> shards = [wids.ShardSpec(f"/{i}.tar", 1000, 5_000_000) for i in range(8)]
        >>> spec = wids.DatasetSpec(tuple(shards))
        >>> sampler = wids.ShardListSampler(range(8000), lengths=[1000] * 8)
        >>> wids.sampling_cost(spec, sampler).nbytes.tolist()
        [[40000000.0], [40000000.0]]
    """
    order = _with_settings(sampler)
    settings, num_replicas = order.settings, getattr(order, "num_replicas", 1)
    seed = getattr(order, "sampler", order).seed
    _check_same_shards(spec, settings.lengths.tolist())
    if not isinstance(num_nodes, int) or num_nodes < 1 or num_replicas % num_nodes:
        raise ValueError(
            f"num_nodes: expected a divisor of the {num_replicas} ranks, found {num_nodes!r}"
        )
    epochs = tuple(sorted(epochs))
    if epochs and epochs[0] < 0:
        raise ValueError(f"epochs: expected numbers of at least 0, found {epochs[0]}")
    stated = [np.nan if shard.nbytes is None else shard.nbytes for shard in spec.shards]
    sizes = np.asarray(stated, np.float64)
    peak = fit.working_set(settings, settings.chunksize, settings.lengths, sizes)
    runs_per_rank = settings.num_runs // num_replicas
    by_rank, by_node = (len(epochs), num_replicas), (len(epochs), num_nodes)
    cost = SamplingCost(  # the loop below fills in the arrays
        epochs=epochs,
        num_shards=np.zeros(by_rank, np.int64),
        num_visits=np.zeros(by_rank, np.int64),
        nbytes=np.zeros(by_rank),
        visited_nbytes=np.zeros(by_rank),
        node_nbytes=np.zeros(by_node),
        new_nbytes=np.zeros(by_node),
        num_mixed=settings.num_mixed,
        working_shards=peak.num_shards * runs_per_rank,
        working_nbytes=peak.nbytes * runs_per_rank,
    )
    seen = np.zeros((num_nodes, len(sizes)), bool)
    for row, epoch in enumerate(epochs):
        runs = list(epoch_order.visits(settings, seed, epoch))
        _count_epoch(cost, row, _joined_for(runs, num_replicas), sizes, seen)
    return cost


def _with_settings(sampler: Any) -> Any:
    """Return a sampler of samples or of batches, or the one inside a prefetcher."""
    inner = sampler
    while not isinstance(inner, ChunkedSampler | RoundsSampler) and hasattr(inner, "sampler"):
        inner = inner.sampler
    if not isinstance(inner, ChunkedSampler | RoundsSampler):
        raise TypeError(
            "sampler: expected one of wids' samplers, such as wids.ChunkedSampler(dataset), found "
            f"{type(sampler).__name__}"
        )
    return inner


def _check_same_shards(spec: DatasetSpec, lengths: list[int]) -> None:
    counts = [shard.num_samples for shard in spec.shards]
    if len(lengths) != len(counts) or any(
        count not in (None, length) for count, length in zip(counts, lengths, strict=True)
    ):
        raise ValueError(
            f"sampler: expected one over the {len(counts)} shards of the spec, found one over "
            f"{len(lengths)} of other lengths; create it from the whole dataset, with num_samples "
            "for a part"
        )


def _count_epoch(
    cost: SamplingCost,
    row: int,
    visits_of_ranks: list[IntArray],
    sizes: FloatArray,
    seen: BoolArray,
) -> None:
    """Write the row of an epoch, and mark in `seen` the shards that each node has now read."""
    shards_of_ranks = []
    for rank, visits in enumerate(visits_of_ranks):
        shards = np.unique(visits)
        cost.num_shards[row, rank], cost.nbytes[row, rank] = len(shards), sizes[shards].sum()
        cost.num_visits[row, rank] = len(visits)
        cost.visited_nbytes[row, rank] = sizes[visits].sum()
        shards_of_ranks.append(shards)
    for node, shards in enumerate(_joined_for(shards_of_ranks, len(seen))):
        read = np.unique(shards)
        cost.node_nbytes[row, node] = sizes[read].sum()
        cost.new_nbytes[row, node] = sizes[read[~seen[node, read]]].sum()
        seen[node, read] = True


def _joined_for(arrays: list[IntArray], num_parts: int) -> list[IntArray]:
    """Join neighbouring arrays into as many as there are parts, each of equally many."""
    width = len(arrays) // num_parts
    return [np.concatenate(arrays[at : at + width]) for at in range(0, len(arrays), width)]
