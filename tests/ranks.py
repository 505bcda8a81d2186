"""A dataset that has only lengths → the indices of each rank of a job."""

from __future__ import annotations

from typing import Any

from wids import DistributedChunkedSampler


class Lengths:
    """A dataset that has only lengths."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = list(lengths)

    def __len__(self) -> int:
        return sum(self.lengths)


DATA = Lengths(8, 5, 7)


def distributed(num_replicas: int, data: Any = DATA, **others: Any) -> list[list[int]]:
    """Return the indices of each rank; their numbers are the lengths of the samplers."""
    samplers = [
        DistributedChunkedSampler(data, num_replicas=num_replicas, rank=rank, **others)
        for rank in range(num_replicas)
    ]
    ranks = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(rank) for rank in ranks]
    return ranks
