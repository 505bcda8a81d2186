"""Convert an index, a slice, indices or a mask to positions in the whole dataset.

A view of a dataset is its positions: a range if they are evenly spaced; a set in bits or runs if
they ascend and are many; otherwise an array that is compressed when it is pickled.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from wids.shards.indices import as_array, as_index, as_selection
from wids.shards.position_array import PositionArray
from wids.shards.position_sets import (
    BLOCK_LENGTH,
    BitPositions,
    PositionSet,
    in_bits,
    is_sparse,
    of_mask,
)
from wids.storage.array_types import IntArray

_HINT: Final = "; a dataset is not a mapping: read a sample by its key with get_by_key(key)"

Positions: TypeAlias = "range | PositionArray | PositionSet"


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


def position_at(positions: Positions, index: Any) -> int:
    """Return the position at one index, which may be negative.

    Raises:
        IndexError: The index is out of range.
        TypeError: It is not an integer.
    """
    try:
        index = as_index(index)
    except TypeError:
        raise TypeError(
            f"expected the index of a sample, found {type(index).__name__} {index!r:.80}"
            f"{_HINT if isinstance(index, str) else ''}"
        ) from None
    return int(positions[from_start(index, len(positions))])


def select(positions: Positions, indices: Any) -> Positions:
    """Return the positions of the view that a slice, a mask or indices select.

    Args:
        positions: The positions to select from.
        indices: A slice, a boolean mask of the same length, or integers, in any one-dimensional
            form; see `indices.as_selection`. Or a `PositionSet` of indices.

    Returns:
        A range if the positions are evenly spaced. Otherwise a `PositionSet` if they ascend, each
        once, and there are so many that it is smaller, or else a `PositionArray`.

    Raises:
        IndexError: An index is out of range, or a mask has another length.
        TypeError: ``indices`` is none of these.
    """
    if isinstance(indices, slice):
        chosen: IntArray | range | PositionSet = positions[indices]
    elif isinstance(indices, PositionSet):
        chosen = _at_all(positions, indices)
    elif isinstance(indices, PositionArray) and _selects_itself(positions, indices):
        return indices
    else:
        array = as_selection(indices, len(positions))
        is_mask = array.dtype == bool and array.ndim == 1
        if is_mask and len(array) > BLOCK_LENGTH:
            return select(positions, of_mask(array))
        chosen = positions_at(positions, np.flatnonzero(array) if is_mask else array, indices)
    # A slice of a range is a range: a contiguous view of any size takes no memory, and stays one.
    return chosen if isinstance(chosen, range) else _compact(chosen)


def select_batch(positions: Positions, indices: Any) -> IntArray:
    """Return the positions of a batch, in which True and False are the indices 1 and 0.

    Raises:
        IndexError: An index is out of range.
        TypeError: ``indices`` are not integers.
    """
    array = as_array(indices)
    array = array.astype(np.int64) if array.dtype == bool else array
    try:
        return positions_at(positions, array, indices)
    except IndexError as error:
        raise IndexError(f"{error}; was the sampler made for another dataset?") from None


def positions_at(positions: Positions, array: npt.NDArray[Any], given: Any) -> IntArray:
    """Return the positions at indices, which may be negative.

    Args:
        positions: The positions to select from.
        array: The indices.
        given: What the caller passed, for messages.

    Raises:
        IndexError: An index is out of range.
        TypeError: The array does not hold indices.
    """
    length = len(positions)
    # An empty list has no integers in it: its array has floats.
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise TypeError(
            f"expected an index, a slice, a list of indices or a mask of {length} booleans, "
            f"found {type(given).__name__} {given!r:.80}{_HINT if isinstance(given, str) else ''}"
        )
    first = 0 if not array.size else int(array.min())
    if first < -length or (array.size and int(array.max()) >= length):
        outside = (array < -length) | (array >= length)
        from_start(int(array[outside.argmax()]), length)  # raises
    # Convert before the length is added: it may not fit into an int8, and unsigned types have no
    # negative numbers. The indices fit, since their range was checked above.
    array = array.astype(np.int64)
    if first < 0:
        array = np.where(array < 0, array + length, array)
    if isinstance(positions, range):
        return array if positions == range(length) else array * positions.step + positions.start
    if isinstance(positions, PositionSet):
        return positions.at(array)
    chosen: IntArray = np.asarray(positions)[array]
    return chosen


def _at_all(positions: Positions, indices: PositionSet) -> IntArray | PositionSet:
    """Return the positions at all indices of a set."""
    if len(indices):
        from_start(int(indices[-1]), len(positions))  # the largest: an error if it is beyond
    if isinstance(positions, range) and positions.step == 1:
        return indices.shifted(positions.start)
    if isinstance(positions, PositionArray) or not is_ascending(positions) or not len(indices):
        return positions_at(positions, np.asarray(indices), indices)
    blocks = (positions_at(positions, block, indices) for block in indices.blocks())
    return in_bits(blocks, int(positions[indices[0]]), int(positions[indices[-1]]))


def _selects_itself(positions: Positions, indices: PositionArray) -> bool:
    """Whether the positions at indices are these, which are then shared."""
    # Only what nobody can write is shared.
    is_whole = isinstance(positions, range) and positions == range(len(positions))
    is_own = indices.dtype == np.int64 and indices.ndim == 1 and not indices.flags.writeable
    if not (is_whole and is_own and len(indices)):
        return False
    return int(indices.min()) >= 0 and int(indices.max()) < len(positions)


def _compact(positions: IntArray | PositionSet) -> Positions:
    """Return positions as a range, if they are evenly spaced, or else in the smallest form."""
    num_samples = len(positions)
    if num_samples < 2:
        start = int(positions[0]) if num_samples else 0
        return range(start, start + num_samples)
    first, last, step = int(positions[0]), int(positions[-1]), int(positions[1] - positions[0])
    # The ends first: that is cheap, and nearly always decides.
    if step and last - first == step * (num_samples - 1) and _has_step(positions, step):
        return range(first, last + (1 if step > 0 else -1), step)
    is_small = is_sparse(num_samples, last + 1 - first)
    is_short = num_samples <= BLOCK_LENGTH
    if isinstance(positions, PositionSet) and (
        is_short or (isinstance(positions, BitPositions) and is_small)
    ):
        positions = np.asarray(positions)
        is_small = True
    if isinstance(positions, PositionSet):
        return positions
    if is_small or not (positions[1:] > positions[:-1]).all():
        return positions.view(PositionArray)
    return in_bits([positions], first, last)


def _has_step(positions: IntArray | PositionSet, step: int) -> bool:
    if isinstance(positions, PositionSet):
        blocks = (
            positions[at : at + BLOCK_LENGTH + 1] for at in range(0, len(positions), BLOCK_LENGTH)
        )
        return all((np.diff(np.asarray(block)) == step).all() for block in blocks)
    return bool((np.diff(positions) == step).all())


def as_int_array(positions: Positions) -> IntArray:
    """Return positions as a plain array."""
    if isinstance(positions, range):  # twenty times as fast as `np.asarray` of a range
        return np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
    return np.asarray(positions)


def in_turn(positions: Positions) -> Iterable[int]:
    """Return the positions as Python's integers, without a list of all."""
    if isinstance(positions, range):
        return positions
    cuts = range(0, len(positions), BLOCK_LENGTH)
    return chain.from_iterable(positions[cut : cut + BLOCK_LENGTH].tolist() for cut in cuts)


def is_ascending(positions: Positions) -> bool:
    """Whether no position is less than the previous one."""
    if isinstance(positions, range):
        return positions.step > 0 or len(positions) < 2
    return positions.is_ascending


def index_of(positions: Positions, position: int) -> int:
    """Return the first index of a position, or -1 if the view does not have it."""
    if isinstance(positions, range):
        return positions.index(position) if position in positions else -1
    if isinstance(positions, PositionSet):
        index = int(positions.count_below(position)[0])
        return index if index < len(positions) and positions[index] == position else -1
    order = None if positions.is_ascending else positions.order
    at = int(np.searchsorted(positions, position, sorter=order))
    index = at if order is None or at == len(positions) else int(order[at])
    return index if at < len(positions) and positions[index] == position else -1


def first_index_of(positions: Positions, found: Iterable[int]) -> int:
    """Return the first index of any of some ascending positions, or -1 if the view has none."""
    indices = (index for index in (index_of(positions, p) for p in found) if index >= 0)
    # If positions ascend, so do their indices, and the first one is the least.
    return next(indices, -1) if is_ascending(positions) else min(indices, default=-1)


def counts_per_shard(positions: Positions, edges: IntArray) -> list[int]:
    """Return how many of the positions lie in each shard.

    Args:
        positions: The positions of a view.
        edges: Where shards begin, and the end of the last one; shape ``(num_shards + 1,)``.

    Returns:
        One number for each shard, zeros included; a single number, of all positions, if they do
        not ascend.
    """
    # Samplers use these counts to follow shards, which helps only if the samples of a shard are
    # together.
    if not is_ascending(positions):
        return [len(positions)]
    if isinstance(positions, range):
        # Position k is start + k * step; a shard begins at the first k that reaches its edge.
        step = positions.step if len(positions) > 1 else 1  # it may be negative
        inside = np.clip(-((positions.start - edges) // step), 0, len(positions))
    elif isinstance(positions, PositionSet):
        inside = positions.count_below(edges)
    else:
        inside = np.searchsorted(positions, edges)
    return np.diff(inside).tolist()  # type: ignore[no-any-return]
