"""Map each index of a dataset, also inside torch's wrappers, to the shards of its sample.

Shards of several datasets are numbered together. No shard is fetched or opened.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from wids.order.wrapped import unwrapped
from wids.shards.reader import ShardReader
from wids.shards.sample_access import SampleAccess, access_of

Numbers: TypeAlias = int | tuple[int, ...]
"""The shards of an index, by their numbers among the shards of all datasets. Nearly always there is
one, which is not worth a tuple for each sample."""

NumbersOf: TypeAlias = Callable[[int], Numbers]


class ShardMap:
    """The shards that the samples of a dataset are read from.

    Args:
        dataset: A `ShardListDataset` or view; or torch's ``Subset``, ``ConcatDataset`` or
            ``StackDataset`` around some. Parts that are no datasets of shards have none.

    Attributes:
        numbers: Returns the shards of an index.
        readers: The readers of the datasets.

    Raises:
        TypeError: No dataset of shards is found in it.
    """

    def __init__(self, dataset: Any) -> None:
        self.readers: list[ShardReader] = []
        self._first_numbers: list[int] = []
        self.numbers: NumbersOf = self._numbers_of(dataset)
        if not self.readers:
            raise TypeError(
                f"dataset: expected a wids.ShardListDataset, or torch's Subset, ConcatDataset or "
                f"StackDataset around some, found {type(dataset).__name__}; pass the "
                "ShardListDataset inside it if both have the same indices, or make a view of it, "
                "dataset[indices]"
            )

    def _numbers_of(self, dataset: Any) -> NumbersOf:
        access = access_of(dataset)
        if access is not None:
            return self._numbers_of_shards(access)
        wrapper = unwrapped(dataset)
        if wrapper is None:
            return lambda _: ()
        parts = list(map(self._numbers_of, wrapper.parts))
        if wrapper.indices is not None:
            return _selected(wrapper.indices, parts[0])
        if wrapper.is_stacked:
            return _together(parts)
        return _one_after_another(dataset.cumulative_sizes, parts)

    def _numbers_of_shards(self, access: SampleAccess) -> NumbersOf:
        reader, shard_number = access.reader, access.shard_number
        # Views share the reader of their dataset, and so its shards.
        if reader not in self.readers:
            last = self._first_numbers[-1] + len(self.readers[-1].shards) if self.readers else 0
            self._first_numbers.append(last)
            self.readers.append(reader)
        first = self._first_numbers[self.readers.index(reader)]
        if not first:
            return cast("NumbersOf", shard_number)
        return lambda index: first + int(shard_number(index))

    def locate(self, number: int) -> tuple[ShardReader, int]:
        """Return the reader of a shard, and the number that it has there."""
        at = bisect_right(self._first_numbers, number) - 1
        return self.readers[at], number - self._first_numbers[at]


def as_tuple(numbers: Numbers) -> tuple[int, ...]:
    """Return the numbers of the shards of an index one by one."""
    return numbers if isinstance(numbers, tuple) else (numbers,)


def _one_after_another(ends: list[int], parts: list[NumbersOf]) -> NumbersOf:
    def numbers(index: int) -> Numbers:
        at = bisect_right(ends, index)
        return parts[at](index - (ends[at - 1] if at else 0))

    return numbers


def _together(parts: list[NumbersOf]) -> NumbersOf:
    return lambda index: tuple(number for part in parts for number in as_tuple(part(index)))


def _selected(indices: Sequence[int], numbers: NumbersOf) -> NumbersOf:
    return lambda index: numbers(indices[index])
