"""An index, a slice, indices or a mask → positions in the whole dataset.

A view of a dataset is its positions: a range, or an array. Nothing here knows shards or samples.
"""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
Positions: TypeAlias = "range | IntArray"


def from_start(index: int, length: int) -> int:
    """Return an index counted from the start; a negative one counts from the end.

    Raises:
        IndexError: The index is out of range.
    """
    if -length <= index < 0:
        return index + length
    if 0 <= index < length:
        return index
    raise IndexError(f"index {index} is out of range for a dataset of {length} samples")


def select(positions: Positions, indices: Any) -> Positions:
    """Return the positions that a slice, a mask or indices select.

    Args:
        positions: The positions to select from.
        indices: A slice, a boolean mask of the same length, or integers in any one-dimensional
            form.

    Raises:
        IndexError: An index is out of range.
        TypeError: ``indices`` is none of these.
    """
    # A slice of a range is a range: a contiguous view of any size takes no memory, and stays one.
    if isinstance(indices, slice):
        return positions[indices]
    array = as_array(indices)
    length = len(positions)
    # A mask of another length is an error below, and not a list of zeros and ones.
    if array.dtype == bool and array.shape == (length,):
        array = np.flatnonzero(array)
    # An empty list has no integers in it: its array has floats.
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size) or array.dtype == bool:
        raise TypeError(
            f"expected an index, a slice, a list of indices or a mask of {length} booleans, "
            f"found {type(indices).__name__} {indices!r:.80}"
        )
    outside = (array < -length) | (array >= length)
    if outside.any():
        from_start(int(array[outside.argmax()]), length)  # raises
    # Before the length is added: it may not fit into an int8, and unsigned types have no negative
    # numbers. The indices fit, since their range was checked above.
    array = array.astype(np.int64)
    array = np.where(array < 0, array + length, array)
    if isinstance(positions, range):
        return array * positions.step + positions.start
    selected: IntArray = positions[array]
    return selected


def as_array(indices: Any) -> npt.NDArray[Any]:
    """Return indices as an array; without dimensions, which `select` refuses, if they are none."""
    try:
        array = np.asarray(indices)
        if array.dtype == object and array.ndim == 1:  # integers too large for numpy, or no numbers
            # All of them are out of range; clamped, numpy can compare them.
            largest = (1 << 63) - 1
            return np.array([max(-largest, min(largest, operator.index(i))) for i in array])
    except (ValueError, TypeError, RuntimeError):
        return np.empty((), object)
    return array


def index_of(positions: Positions, position: int) -> int:
    """Return the first index of a position, or -1 where the view does not have it."""
    if isinstance(positions, range):
        return positions.index(position) if position in positions else -1
    indices = np.flatnonzero(positions == position)
    return int(indices[0]) if len(indices) else -1


def counts_per_shard(positions: Positions, edges: IntArray) -> list[int]:
    """Return how many of the positions lie in each shard.

    Args:
        positions: The positions of a view.
        edges: Where shards begin, and the end of the last one; shape ``(num_shards + 1,)``.

    Returns:
        One number for each shard; a single number, of all positions, where they are not
        consecutive.
    """
    # Samplers use these counts to follow shards, which is of use only where a shard's samples stand
    # together.
    if not isinstance(positions, range) or positions.step != 1:
        return [len(positions)]
    start = positions.start
    inside = np.clip(edges[1:], start, start + len(positions))
    return np.diff(inside, prepend=start).tolist()  # type: ignore[no-any-return]
