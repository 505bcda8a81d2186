"""Name the types of arrays, and define sequences whose items are made on demand.

Columns of frames are recognized by their methods, without importing pandas.
"""

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


def check_labels(values: Any, name: str) -> None:
    """Refuse a Series with a value for each sample whose rows may be in another order.

    Args:
        values: A Series, or anything else, which has no labels.
        name: The argument, in messages.

    Raises:
        TypeError: After sorting or filtering a frame, row 3 of a Series is not sample 3.
    """
    if has_other_labels(values):
        raise TypeError(
            f"{name}: expected a Series with the index 0, 1, 2, …, found one with another index, "
            "whose rows may be in another order; call its sort_index() if its frame was sorted or "
            "shuffled, or its to_numpy() if its rows are in order"
        )


def has_other_labels(values: Any) -> bool:
    """Whether values are a Series whose labels are not 0, 1, 2, …."""
    if not hasattr(values, "iloc") or not len(values):
        return False
    labels = values.index
    # Integers that ascend from 0 to len - 1, without a list of pandas' usual index.
    is_ascending = labels.is_monotonic_increasing and labels.is_unique
    is_ascending = is_ascending and labels.dtype.kind in "iu"
    return not is_ascending or labels[0] != 0 or bool(labels[-1] != len(labels) - 1)
