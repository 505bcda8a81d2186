"""Read a dataset whose class overrides ``__getitem__``: one index after the other.

The class decides what an index means, and how many there are. Its samples are read together where
they probably are what the indices mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

from wids.dataset.access import Access
from wids.dataset.failures import Indices
from wids.errors import WidsError
from wids.shards.positions import select_batch
from wids.storage.array_types import IntArray
from wids.storage.stages import READ, TRANSFORM, timed


def batch(dataset: Any, indices: Indices) -> list[Any]:
    """Return ``[dataset[i] for i in indices]``, as ``__getitems__`` of such a class."""
    access: Access = dataset.sample_access

    def read() -> list[Any]:
        with access.reader.reading(_positions_of(access, indices)):
            return timed(TRANSFORM, list, _each(dataset, indices))

    return timed(READ, read)


def in_turn(dataset: Any) -> Iterator[Any]:
    """Yield all samples, as ``__iter__`` of such a class."""
    access: Access = dataset.sample_access
    for index in range(len(dataset)):
        # A view may have one sample of each shard, so it reads as single samples do. Not around
        # `yield`: others read in between.
        with nullcontext() if access.is_view else access.reader.reading():
            samples = timed(TRANSFORM, list, _each(dataset, (index,)))
        yield from samples


def _positions_of(access: Access, indices: Indices) -> IntArray:
    """Return the positions that a batch probably has."""
    try:
        return select_batch(access.positions, indices)
    except (IndexError, TypeError):  # they may mean something else to the class
        return select_batch(access.positions, [])


def _each(dataset: Any, indices: Iterable[int]) -> Iterator[Any]:
    """Yield ``dataset[i]`` for each index; without the samples that are to be left out."""
    access: Access = dataset.sample_access
    failures = access.failures
    for index in indices:
        try:
            sample = dataset[index]
        except WidsError as error:
            # With "next", the access has looked for a replacement already, and found none.
            if failures is None or failures.policy == "next":
                raise
            failures.pass_over_one(access, error)
        else:
            yield sample
