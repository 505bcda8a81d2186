"""The order of a sampler and the lengths of shards → what each rank and node reads in an epoch.

Computed from the order alone: no shard is opened and no index of a sample is looked at, beyond the
chunks that two runs share. This room knows nothing of caches and files; it says between which two
numbers the downloads will be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wids.files.sizes import nbytes_text
from wids.sampling import order
from wids.sampling.samplers import ChunkedSampler
from wids.specs.loader import DatasetSpec

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SamplingCost:
    """What some epochs read. ``print`` shows it as a table.

    A *visit* is the opening of a shard: a rank that comes back to a shard for another of its chunks
    visits it again. Bytes are those of whole shards, and NaN where the spec does not state them.
    With a cache that holds all that a node reads, it downloads ``new_nbytes``; with one that holds
    no more than the chunks in hand, ``visited_nbytes`` of its ranks.

    Attributes:
        epochs: The epochs, ascending.
        num_shards: Different shards that each rank reads, shape ``(num_epochs, num_replicas)``.
        num_visits: Visits of each rank, same shape.
        nbytes: Bytes of the different shards of each rank, same shape.
        visited_nbytes: Bytes of the visited shards of each rank, same shape.
        node_nbytes: Bytes of the different shards that the ranks of a node read, shape
            ``(num_epochs, num_nodes)``.
        new_nbytes: The part of them that the node did not read in an epoch before, same shape.
        num_mixed: Samples that are in the draw for the next batch of the whole job: the chunks that
            all runs have in hand at a time, on average.
    """

    epochs: tuple[int, ...]
    num_shards: IntArray
    num_visits: IntArray
    nbytes: FloatArray
    visited_nbytes: FloatArray
    node_nbytes: FloatArray
    new_nbytes: FloatArray
    num_mixed: int

    def __str__(self) -> str:
        """Give a table with the rank and the node that read most in each epoch."""
        num_replicas, num_nodes = self.nbytes.shape[1], self.node_nbytes.shape[1]
        title = (
            f"the most that one of {num_replicas} ranks reads, and one of {num_nodes} nodes; "
            f"{self.num_mixed:,} samples are mixed at a time"
        )
        header = "epoch    shards    visits     bytes  by visits |      node       new"
        lines = [title, "", header]
        for number, epoch in enumerate(self.epochs):
            counts = (self.num_shards[number].max(), self.num_visits[number].max())
            sizes = (self.nbytes, self.visited_nbytes, self.node_nbytes, self.new_nbytes)
            rank, visited, node, new = (nbytes_text(size[number].max()) for size in sizes)
            lines.append(
                f"{epoch:5} {counts[0]:9,} {counts[1]:9,} {rank:>9} {visited:>10} | {node:>9} "
                f"{new:>9}"
            )
        return "\n".join(lines)


def sampling_cost(
    spec: DatasetSpec,
    sampler: ChunkedSampler,
    *,
    num_nodes: int = 1,
    epochs: Iterable[int] = range(2),
) -> SamplingCost:
    """Compute what each rank and node reads, to choose ``chunksize`` and ``redeal`` by looking.

    Takes seconds for an epoch of a billion samples on a thousand ranks.

    Args:
        spec: Spec of the dataset, for the lengths of the shards in bytes.
        sampler: A sampler over this dataset, for any rank; it is not changed.
        num_nodes: Nodes that share the ranks equally, neighbours together, as ``torchrun`` has it.
        epochs: Epochs to look at.

    Raises:
        ValueError: The sampler is of another dataset, or the nodes cannot share its ranks.
    """
    settings, num_replicas = sampler.settings, getattr(sampler, "num_replicas", 1)
    counts = [shard.num_samples for shard in spec.shards]
    lengths = settings.lengths.tolist()
    if len(lengths) != len(counts) or any(
        count not in (None, length) for count, length in zip(counts, lengths, strict=True)
    ):
        raise ValueError(
            f"sampler: expected one over the {len(counts)} shards of the spec, found one over "
            f"{len(lengths)} of other lengths; make it from the whole dataset, with num_samples "
            "for a part"
        )
    if not isinstance(num_nodes, int) or num_nodes < 1 or num_replicas % num_nodes:
        raise ValueError(
            f"num_nodes: expected a divisor of the {num_replicas} ranks, found {num_nodes!r}"
        )
    stated = [np.nan if shard.nbytes is None else shard.nbytes for shard in spec.shards]
    sizes = np.asarray(stated, np.float64)
    epochs = tuple(sorted(epochs))
    if epochs and epochs[0] < 0:
        raise ValueError(f"epochs: expected numbers from 0 on, found {epochs[0]}")
    num_shards, num_visits = np.zeros((2, len(epochs), num_replicas), np.int64)
    nbytes, visited_nbytes = np.zeros((2, len(epochs), num_replicas))
    node_nbytes, new_nbytes = np.zeros((2, len(epochs), num_nodes))
    seen = np.zeros((num_nodes, len(sizes)), bool)
    for row, epoch in enumerate(epochs):
        runs = list(order.visits(settings, sampler.seed, epoch))
        shards = []
        for rank, visits in enumerate(_joined_for(runs, num_replicas)):
            read = np.unique(visits)
            num_shards[row, rank], nbytes[row, rank] = len(read), sizes[read].sum()
            num_visits[row, rank], visited_nbytes[row, rank] = len(visits), sizes[visits].sum()
            shards.append(read)
        for node, reads in enumerate(_joined_for(shards, num_nodes)):
            read = np.unique(reads)
            node_nbytes[row, node] = sizes[read].sum()
            new_nbytes[row, node] = sizes[read[~seen[node, read]]].sum()
            seen[node, read] = True
    mean_chunk = settings.num_indices / max(order.num_chunks(settings), 1)
    return SamplingCost(
        epochs=epochs,
        num_shards=num_shards,
        num_visits=num_visits,
        nbytes=nbytes,
        visited_nbytes=visited_nbytes,
        node_nbytes=node_nbytes,
        new_nbytes=new_nbytes,
        num_mixed=min(round(settings.num_runs * mean_chunk), settings.num_indices),
    )


def _joined_for(arrays: list[IntArray], num_parts: int) -> list[IntArray]:
    """Join neighbouring arrays into equally many for each part."""
    width = len(arrays) // num_parts
    return [np.concatenate(arrays[at : at + width]) for at in range(0, len(arrays), width)]
