"""Name the types of arrays, and define sequences whose items are made on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
WordArray = npt.NDArray[np.uint64]


T = TypeVar("T")


class LazySequence(Sequence[T]):
    """A sequence that keeps no item.

    Args:
        make: Takes an item of the source; returns the item of the sequence.
        source: What the items are made from, such as a range.
    """

    def __init__(self, make: Callable[[Any], T], source: Sequence[Any] | IntArray) -> None:
        self._make, self._source = make, source

    def __len__(self) -> int:
        return len(self._source)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> LazySequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | LazySequence[T]:
        if isinstance(index, slice):
            return LazySequence(self._make, self._source[index])
        return self._make(self._source[index])

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._source)


def chosen(items: Sequence[T], numbers: IntArray) -> LazySequence[T]:
    """Return some items of a sequence."""
    return LazySequence(items.__getitem__, numbers)
