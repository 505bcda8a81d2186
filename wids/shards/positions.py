"""Convert an index, a slice, indices or a mask to positions in the whole dataset, and pickle them.

The positions of a view are a range if they are evenly spaced, and otherwise an array of int64 that
is compressed when it is pickled.

Lists, arrays, tensors, and columns of pandas, Arrow and polars are recognized by their methods,
without importing those packages.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from wids.storage.arrays import IntArray, check_labels

_BLOCK_LENGTH: Final = 1 << 17
"""Positions that are converted to Python's integers at a time."""

_LARGEST: Final = (1 << 63) - 1
_NULLS: Final = frozenset(("NoneType", "NAType"))
"""The names of the types of Python's null and of pandas'."""


def as_index(index: Any) -> int:
    """Return the index of one sample as a Python integer.

    Raises:
        TypeError: It is not an index. A tensor with dimensions selects a view, even if it has one
            element, and a boolean is no index, although Python and torch convert it to an integer.
    """
    if isinstance(index, bool) or not isinstance(index, int | np.integer):
        num_dimensions, dtype = getattr(index, "ndim", 0), str(getattr(index, "dtype", ""))
        if num_dimensions or "bool" in dtype or isinstance(index, bool):
            raise TypeError(f"expected the index of a sample, found {index!r:.80}")
    return operator.index(index)


def as_array(indices: Any) -> npt.NDArray[Any]:
    """Return indices as an array; anything else becomes a scalar array, which `select` rejects."""
    try:
        array = np.asarray(indices)
        if array.dtype == object and array.ndim == 1:  # integers too large for numpy, or no numbers
            # Those too large are out of range; clamped, numpy can compare them.
            return np.array([max(-_LARGEST, min(_LARGEST, operator.index(i))) for i in array])
    except (ValueError, TypeError, RuntimeError):
        return np.empty((), object)
    return array


def as_selection(indices: Any, length: int) -> npt.NDArray[Any]:
    """Return a selection as an array of integers or booleans, or else what `as_array` returns.

    A null in a mask is false, as in SQL and in the filters of pandas, Arrow and polars.

    Args:
        indices: Integers or booleans in any one-dimensional form.
        length: Number of samples to select from.

    Raises:
        IndexError: A mask has another length.
        TypeError: There are nulls or booleans among integers; the integers are those of a mask, 0
            and 1 for all samples; or the index of a pandas mask is not 0, 1, 2, …, so that its rows
            may not be in the order of the samples.
    """
    values = _without_nulls(indices)
    array = _as_mask(values)
    if array is None:
        array = as_array(values)
        num_nulls = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
        if num_nulls:
            raise TypeError(
                f"expected integers as indices, found {type(indices).__name__} with {num_nulls:,} "
                f"of {len(array):,} missing; drop these rows first"
            )
        if _is_mask_of_integers(array, length):
            raise TypeError(
                f"expected indices, or a mask of {length:,} booleans, found as many integers, 0 "
                "and 1; pass mask.astype(bool), or mask.bool() of torch; if they are indices, "
                "dataset[:2][indices]"
            )
    elif array.ndim == 1:
        if len(array) != length:
            raise IndexError(
                f"expected a mask of {length:,} booleans, one for each sample, found "
                f"{len(array):,}; make it from a table of this dataset or view"
            )
        check_labels(indices, "mask")
    return array


def _without_nulls(indices: Any) -> Any:
    """Return a column with nulls replaced: by false in a mask, by NaN in masked numpy integers."""
    if isinstance(indices, np.ma.MaskedArray):  # as DuckDB returns columns that have nulls
        if indices.dtype == bool:
            return indices.filled(False)  # noqa: FBT003 - the parameter has no name in common
        return np.ma.filled(indices.astype(np.float64), np.nan) if indices.mask.any() else indices
    package = type(indices).__module__.partition(".")[0]
    if package == "pandas" and str(getattr(indices, "dtype", "")) in ("boolean", "bool[pyarrow]"):
        return indices.to_numpy(dtype=bool, na_value=False)
    kind = str(getattr(indices, "type", getattr(indices, "dtype", "")))
    is_column = package in ("pyarrow", "polars") and hasattr(indices, "fill_null")  # no scalar
    if is_column and kind in ("bool", "Boolean"):
        return indices.fill_null(False)  # noqa: FBT003 - the parameter has no name in common
    return indices


def _as_mask(indices: Any) -> npt.NDArray[np.bool_] | None:
    """Return a mask as an array of booleans; None if it is not a mask."""
    try:
        array = np.asarray(indices)
    except (ValueError, TypeError, RuntimeError):
        return None
    is_list = isinstance(indices, list | tuple)
    if array.ndim == 1 and array.dtype != bool and (is_list or array.dtype == object):
        items = list(indices) if is_list else array.tolist()
        if not {bool, np.bool_}.isdisjoint(map(type, items)):
            return np.array([_is_true(item) for item in items])
    return array if array.dtype == bool else None


def _is_true(item: Any) -> bool:
    """Return whether an item of a mask is true; nulls are not, also NaN, as pandas has them."""
    if isinstance(item, bool | np.bool_):
        return bool(item)
    if type(item).__name__ in _NULLS or (isinstance(item, float) and math.isnan(item)):
        return False
    raise TypeError(
        f"expected a mask of booleans, or indices, found booleans beside {item!r:.80}; a mask has "
        "True, False and nulls only"
    )


def _is_mask_of_integers(array: npt.NDArray[Any], length: int) -> bool:
    """Whether integers are more likely a mask than indices: both 0 and 1, for each sample."""
    if not (array.ndim == 1 and array.dtype.kind in "iu" and len(array) == length > 2):
        return False
    return bool(array.min() == 0 and array.max() == 1)


# Not `npt.NDArray[np.int64]`: with numpy 2.5 that is a typing alias, not a class.
class PositionArray(np.ndarray[Any, np.dtype[np.int64]]):
    """The positions of a view that are not evenly spaced, shape ``(num_samples,)``.

    An int64 array with a small pickle: each spawned DataLoader worker receives the view by pickle.
    """

    @cached_property
    def is_ascending(self) -> bool:
        """Whether no position is less than the previous one."""
        return bool((self[1:] >= self[:-1]).all())

    @cached_property
    def order(self) -> IntArray:
        """The indices by ascending position; of equal positions the first index first."""
        return np.argsort(np.asarray(self), kind="stable")

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, _packed(np.asarray(self), is_ascending=self.is_ascending)


def _packed(positions: IntArray, *, is_ascending: bool) -> tuple[int, int, str, bytes]:
    """Return the arguments of `_unpacked`: a bitmap, steps, or numbers of the narrowest type."""
    if not len(positions):
        return 0, 0, "bits", b""
    least, greatest = int(positions.min()), int(positions.max())
    form, count, span = "numbers", len(positions), greatest + 1 - least
    if is_ascending:
        # Steps take a byte each, or more.
        if span <= count * 8 and (positions[1:] > positions[:-1]).all():
            bits = np.zeros(span, bool)
            bits[positions if not least else positions - least] = True
            return least, span, "bits", np.packbits(bits).tobytes()
        form, numbers = "steps", np.diff(positions, prepend=least)
    else:
        numbers = positions - least
    narrow = numbers.astype(np.min_scalar_type(int(numbers.max())))
    return least, count, f"{form} {narrow.dtype.str}", narrow.tobytes()


def _unpacked(least: int, count: int, form: str, data: bytes) -> PositionArray:
    if form == "bits":
        positions = np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8), count=count))
    else:
        kind, dtype = form.split(" ")
        positions = np.frombuffer(data, dtype).astype(np.int64)
        if kind == "steps":
            np.cumsum(positions, out=positions)
    positions += least
    return positions.view(PositionArray)


_HINT: Final = "; a dataset is not a mapping: read a sample by its key with get_by_key(key)"

Positions: TypeAlias = "range | PositionArray"


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
            form; see `indices.as_selection`.

    Returns:
        A range if the positions are evenly spaced, or else a `PositionArray`.

    Raises:
        IndexError: An index is out of range, or a mask has another length.
        TypeError: ``indices`` is none of these.
    """
    if isinstance(indices, slice):
        chosen: IntArray | range = positions[indices]
    elif isinstance(indices, PositionArray) and _selects_itself(positions, indices):
        return indices
    else:
        array = as_selection(indices, len(positions))
        is_mask = array.dtype == bool and array.ndim == 1
        chosen = positions_at(positions, np.flatnonzero(array) if is_mask else array, indices)
        if chosen is array:  # which may be the caller's
            chosen = chosen.copy()
    # A slice of a range is a range: a contiguous view of any size takes no memory, and stays one.
    return chosen if isinstance(chosen, range) else _compact(chosen)


def select_batch(positions: Positions, indices: Any) -> IntArray:
    """Return the positions of a batch.

    Raises:
        IndexError: An index is out of range.
        TypeError: ``indices`` are not integers.
    """
    try:
        return positions_at(positions, as_array(indices), indices)
    except IndexError as error:
        raise IndexError(f"{error}; was the sampler made for another dataset?") from None


def positions_at(positions: Positions, array: npt.NDArray[Any], given: Any) -> IntArray:
    """Return the positions at indices, which may be negative.

    Args:
        positions: The positions to select from.
        array: The indices.
        given: What the caller passed, for messages.

    Returns:
        The positions; the array itself, if they are the same.

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
    array = array.astype(np.int64, copy=False)
    if first < 0:
        array = np.where(array < 0, array + length, array)
    if isinstance(positions, range):
        return array if positions == range(length) else array * positions.step + positions.start
    chosen: IntArray = np.asarray(positions)[array]
    return chosen


def _selects_itself(positions: Positions, indices: PositionArray) -> bool:
    """Whether the positions at indices are these, which are then shared."""
    # Only what nobody can write is shared.
    is_whole = isinstance(positions, range) and positions == range(len(positions))
    is_own = indices.dtype == np.int64 and indices.ndim == 1 and not indices.flags.writeable
    if not (is_whole and is_own and len(indices)):
        return False
    return int(indices.min()) >= 0 and int(indices.max()) < len(positions)


def _compact(positions: IntArray) -> Positions:
    """Return positions as a range, if they are evenly spaced."""
    num_samples = len(positions)
    if num_samples < 2:
        start = int(positions[0]) if num_samples else 0
        return range(start, start + num_samples)
    first, last, step = int(positions[0]), int(positions[-1]), int(positions[1] - positions[0])
    # The ends first: that is cheap, and nearly always decides.
    if (
        step
        and last - first == step * (num_samples - 1)
        and (positions[1:] - positions[:-1] == step).all()
    ):
        return range(first, last + (1 if step > 0 else -1), step)
    return positions.view(PositionArray)


def as_int_array(positions: Positions) -> IntArray:
    """Return positions as a plain array."""
    if isinstance(positions, range):  # twenty times as fast as `np.asarray` of a range
        return np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
    return np.asarray(positions)


def in_turn(positions: Positions) -> Iterable[int]:
    """Return the positions as Python's integers, without a list of all."""
    if isinstance(positions, range):
        return positions
    cuts = range(0, len(positions), _BLOCK_LENGTH)
    return chain.from_iterable(positions[cut : cut + _BLOCK_LENGTH].tolist() for cut in cuts)


def is_ascending(positions: Positions) -> bool:
    """Whether no position is less than the previous one."""
    if isinstance(positions, range):
        return positions.step > 0 or len(positions) < 2
    return positions.is_ascending


def index_of(positions: Positions, position: int) -> int:
    """Return the first index of a position, or -1 if the view does not have it."""
    if isinstance(positions, range):
        return positions.index(position) if position in positions else -1
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
    else:
        inside = np.searchsorted(positions, edges)
    return np.diff(inside).tolist()  # type: ignore[no-any-return]


def ranges_by_name(
    positions: Positions, edges: IntArray, names: Sequence[str], name_of: IntArray
) -> dict[str, IntArray]:
    """Return the ranges of indices whose samples are in the shards of each name.

    Args:
        positions: The positions of a view.
        edges: Where shards begin, and the end of the last one; shape ``(num_shards + 1,)``.
        names: The names.
        name_of: The number of the name of each shard.

    Returns:
        Start and stop of ranges, ascending, shape ``(num_ranges, 2)``, by name in the order of the
        shards. If positions ascend, there is a range for each shard, empty ones included; otherwise
        one for each time that the view enters another shard.
    """
    if is_ascending(positions):
        numbers = np.arange(len(name_of))
        stops = np.cumsum(counts_per_shard(positions, edges), dtype=np.int64)
        starts = np.append(0, stops[:-1])
    else:
        shards = np.searchsorted(edges[1:], np.asarray(positions), side="right")
        starts = np.flatnonzero(np.diff(shards, prepend=-1))
        numbers, stops = shards[starts], np.append(starts[1:], len(shards))
    id_of_range = name_of[numbers]
    ranges = np.stack([starts, stops], axis=1).astype(np.int64)
    return {name: ranges[id_of_range == place] for place, name in enumerate(names)}
