"""Cut the order of a run into batches that have one bucket each.

Pure functions of arrays, a window of the order at a time. specs/sampler-order.md specifies them
(ORDER-40).
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wids.order.arguments import at_least
from wids.storage.array_types import IntArray

_WINDOW: Final = 1 << 15
"""Indices that are sorted by bucket at a time: enough for numpy, little for the first batch."""

_PART: Final = 1 << 20
"""Buckets that are numbered at a time."""

_MOST_SHOWN: Final = 32
"""Maximum number of batch sizes that a state lists one by one; of more it has a digest."""


@dataclass(frozen=True, eq=False)
class Buckets:
    """The bucket of each index, and the batch size of each bucket.

    Buckets are numbered in ascending order of their names, which are the integers of the caller.

    Attributes:
        numbers: Number of the bucket of each index, shape ``(len(dataset),)``, unsigned.
        names: Names of the buckets, shape ``(num_buckets,)``, ascending.
        sizes: Samples in a batch of each bucket, same shape.
    """

    numbers: npt.NDArray[Any]
    names: IntArray
    sizes: IntArray

    def fingerprint(self) -> dict[str, Any]:
        """Return what batches depend on besides the order; JSON-able."""
        digest = hashlib.sha256(self.names.astype("<i8").tobytes())
        little_endian = self.numbers.dtype.newbyteorder("<")
        digest.update(self.numbers.astype(little_endian, copy=False).data)
        sizes: Any = {str(k): v for k, v in zip(self.names.tolist(), self.sizes.tolist())}  # noqa: B905 - equal
        if len(set(self.sizes.tolist())) == 1:
            sizes = int(self.sizes[0])
        elif len(sizes) > _MOST_SHOWN:
            sizes = hashlib.sha256(self.sizes.astype("<i8").tobytes()).hexdigest()[:16]
        return {"buckets": digest.hexdigest()[:16], "batch_size": sizes}


def checked_buckets(
    buckets: Any, batch_size: int | Callable[[int], int], dataset_length: int
) -> Buckets:
    """Return the buckets of a dataset.

    Args:
        buckets: One integer for each sample: an array, a list, an Arrow array or a pandas Series.
        batch_size: Samples in a batch, or a callable that returns it for a bucket.
        dataset_length: Number of samples.

    Raises:
        ValueError: There is not one integer for each sample, or a batch size is less than 1.
    """
    values = _integers(buckets)
    if len(values) != dataset_length:
        raise ValueError(
            f"buckets: expected one integer for each of the dataset's {dataset_length} samples, "
            f"found {len(values)}"
        )
    names, numbers = _numbered(values)
    if callable(batch_size):
        sizes = [at_least(1, batch_size(name), f"batch_size({name})") for name in names.tolist()]
    else:
        sizes = [at_least(1, batch_size, "batch_size")] * len(names)
    return Buckets(numbers, names, np.array(sizes, np.int64))


def _integers(buckets: Any) -> npt.NDArray[Any]:
    """Return buckets of any supported type as an array of integers."""
    values = np.asarray(buckets)
    if values.ndim == 1 and values.dtype == object:  # pandas' integers that may be missing
        try:
            values = np.array([operator.index(value) for value in values], np.int64)
        except TypeError:
            values = np.asarray(buckets)
    if values.ndim != 1 or (values.dtype.kind not in "iub" and len(values)):
        raise ValueError(
            f"buckets: expected one integer for each sample, found {type(buckets).__name__} of "
            f"{values.dtype}, shape {values.shape}; fill in missing values, and number others, "
            "for example with numpy.unique(values, return_inverse=True)[1]"
        )
    return values


def _numbered(values: npt.NDArray[Any]) -> tuple[IntArray, npt.NDArray[Any]]:
    """Return the names of the buckets, and the number of each index's bucket."""
    if not len(values):
        return np.empty(0, np.int64), np.empty(0, np.uint8)
    low = int(values.min())
    span = int(values.max()) - low + 1
    # A table is ten times faster than sorting; it must not be larger than the values. In parts,
    # because the indices of a table take eight times the memory of small buckets.
    if span <= max(1 << 16, len(values)):
        parts = [slice(at, at + _PART) for at in range(0, len(values), _PART)]
        present = np.zeros(span, bool)
        for part in parts:
            present[_offsets(values[part], low)] = True
        names = np.flatnonzero(present) + low
        table = (np.cumsum(present) - 1).astype(_smallest(len(names)))
        numbers = np.empty(len(values), table.dtype)
        for part in parts:
            numbers[part] = table[_offsets(values[part], low)]
        return names.astype(np.int64), numbers
    found, inverse = np.unique(values, return_inverse=True)
    return found.astype(np.int64), inverse.astype(_smallest(len(found)))


def _offsets(values: npt.NDArray[Any], low: int) -> IntArray:
    # uint64 does not fit into int64 before the difference is taken, other types not after.
    offsets = values - low if values.dtype == np.uint64 else values.astype(np.int64) - low
    return offsets.astype(np.int64, copy=False)


def _smallest(count: int) -> npt.DTypeLike:
    # numpy sorts 8 and 16 bits by radix, which is what batches of 10 million samples wait for.
    return np.min_scalar_type(max(count - 1, 0))


@dataclass(frozen=True, eq=False)
class Batches:
    """Neighbouring batches of a run.

    Attributes:
        indices: Indices, of which each batch is a slice.
        starts: Place of the first index of each batch, shape ``(num_batches,)``.
        stops: Place after the last one, same shape.
    """

    indices: IntArray
    starts: IntArray
    stops: IntArray

    def __len__(self) -> int:
        return len(self.starts)

    def between(self, start: int, stop: int) -> list[list[int]]:
        """Return some of the batches as lists."""
        # All at once, because a numpy slice takes longer than a slice of a list.
        indices = self.indices.tolist()
        starts, stops = self.starts[start:stop].tolist(), self.stops[start:stop].tolist()
        return [indices[a:b] for a, b in zip(starts, stops, strict=True)]


def batches(
    blocks: Iterable[IntArray], buckets: Buckets, *, partial: bool = True
) -> Iterator[Batches]:
    """Yield the batches of a run, in the order of their last indices; then the partial ones.

    Args:
        blocks: The indices of the run.
        buckets: Their buckets.
        partial: Whether to yield partial batches.
    """
    carried = np.empty(0, np.int64)
    # Not shorter than what is carried over, which would be sorted repeatedly.
    for window in windows(blocks, int(buckets.sizes.sum())):
        indices = np.concatenate((carried, window))
        groups = Groups.of(buckets.numbers[indices], len(buckets.names))
        number, starts = groups.complete(buckets.sizes)
        stops = starts + buckets.sizes[number]
        in_time = np.argsort(groups.places[stops - 1])
        yield Batches(indices[groups.places], starts[in_time], stops[in_time])
        carried = indices[np.sort(groups.rest(buckets.sizes))]
    if partial and len(carried):
        groups = Groups.of(buckets.numbers[carried], len(buckets.names))
        filled = np.flatnonzero(groups.counts)
        starts = groups.firsts[filled]
        yield Batches(carried[groups.places], starts, starts + groups.counts[filled])


def full_batches(
    blocks: Iterable[npt.NDArray[Any]], sizes: IntArray
) -> tuple[npt.NDArray[Any], IntArray]:
    """Return the buckets of the full batches, in the order of their last indices.

    Args:
        blocks: Numbers of buckets, in order.
        sizes: Samples in a batch of each bucket.

    Returns:
        The numbers of the buckets, and how many indices each bucket has.
    """
    seen = np.zeros(len(sizes), np.int64)
    found = [np.empty(0, _smallest(len(sizes)))]
    for numbers in blocks:
        groups = Groups.of(numbers, len(sizes))
        number, starts = groups.complete(sizes, seen % sizes)
        places = groups.places[starts + sizes[number] - 1]
        found.append(number[np.argsort(places)].astype(found[0].dtype))
        seen += groups.counts
    return np.concatenate(found), seen


def windows(blocks: Iterable[IntArray], least: int = 0) -> Iterator[IntArray]:
    """Join blocks into arrays of at least 32,768 indices, and of at least ``least``."""
    least = max(least, _WINDOW)
    waiting: list[IntArray] = []
    length = 0
    for block in blocks:
        waiting.append(block)
        length += len(block)
        if length >= least:
            length = 0
            yield _emptied(waiting)
    if length:
        yield _emptied(waiting)


def _emptied(blocks: list[IntArray]) -> IntArray:
    """Return blocks as one array, and keep none: the runs of an epoch wait with theirs at once."""
    window = np.concatenate(blocks)
    blocks.clear()
    return window


@dataclass(frozen=True, eq=False)
class Groups:
    """The places of a window, grouped by bucket.

    Attributes:
        places: All places, in ascending order of buckets, and in each bucket ascending.
        firsts: Where the group of each bucket starts among them, shape ``(num_buckets,)``.
        counts: Length of each group, same shape.
    """

    places: IntArray
    firsts: IntArray
    counts: IntArray

    @classmethod
    def of(cls, numbers: npt.NDArray[Any], num_buckets: int) -> Groups:
        """Return the groups of a window of numbers of buckets."""
        counts = np.bincount(numbers, minlength=num_buckets)
        return cls(np.argsort(numbers, kind="stable"), np.cumsum(counts) - counts, counts)

    def complete(self, sizes: IntArray, begun: IntArray | int = 0) -> tuple[IntArray, IntArray]:
        """Return the bucket and the start of each full batch, bucket by bucket.

        Args:
            sizes: Samples in a batch of each bucket.
            begun: Number of indices that the current batch of each bucket already has; the batch
                then starts in front of its group.
        """
        num_full = (self.counts + begun) // sizes
        number = np.repeat(np.arange(len(sizes)), num_full)
        turn = np.arange(len(number)) - np.repeat(np.cumsum(num_full) - num_full, num_full)
        return number, (self.firsts - begun)[number] + turn * sizes[number]

    def rest(self, sizes: IntArray) -> IntArray:
        """Return the places that are in no full batch."""
        num_left = self.counts % sizes
        stops = self.firsts + self.counts
        offsets = np.repeat(stops - np.cumsum(num_left), num_left)
        places: IntArray = self.places[offsets + np.arange(len(offsets))]
        return places
