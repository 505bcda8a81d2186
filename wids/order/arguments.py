"""Check the arguments of samplers: integers, shard lengths and index ranges."""

from __future__ import annotations

import operator
from collections.abc import Sequence, Sized
from typing import Any

import numpy as np

from wids.errors import warn
from wids.order.wrapped import lengths_of
from wids.storage.array_types import IntArray


def at_least(least: int, value: Any, name: str) -> int:
    """Return an argument of any integer type as an int.

    Raises:
        ValueError: It is not an integer, or below the least allowed value.
    """
    try:
        # `operator.index` accepts numpy's integers and refuses floats, which `int` would cut off.
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise ValueError(f"{name}: expected an integer of at least {least}, found {value!r}")
    return number


def shard_lengths(dataset: Sized, lengths: Sequence[int] | None) -> IntArray:
    """Return the number of samples in each shard, shape ``(num_shards,)``.

    Args:
        dataset: Anything with ``len()``. Without ``dataset.lengths``, or a dataset with them inside
            torch's wrappers, it counts as a single shard.
        lengths: Lengths to use instead of ``dataset.lengths``; they may add up to less.

    Raises:
        ValueError: The lengths are not counts, or do not add up to ``len(dataset)``.
    """
    total = len(dataset)
    source = "lengths" if lengths is not None else "dataset.lengths"
    given = lengths_of(dataset) if lengths is None else lengths
    try:
        counts = np.asarray(given)
    except ValueError:  # lists of different lengths
        counts = np.empty((0, 0))
    is_counts = counts.ndim == 1 and (counts.dtype.kind in "iu" or not len(counts))
    if not is_counts or (counts < 0).any():
        raise ValueError(
            f"{source}: expected the number of samples in each shard, found {given!r:.80}; if it "
            "means something else, pass range(len(dataset))"
        )
    sum_ = int(counts.sum())
    if sum_ > total or (sum_ < total and lengths is None):
        raise ValueError(
            f"{source}: expected numbers that add up to the dataset's {total} samples, found "
            f"{sum_}; if they mean something else, pass range(len(dataset))"
        )
    return counts.astype(np.int64)


def warn_of_unsorted_view(dataset: Sized, num_lengths: int, name: str) -> None:
    """Warn that a sampler cannot follow the shards of a view whose indices do not ascend.

    Args:
        dataset: The dataset. One that is not from wids has no shards to follow.
        num_lengths: Number of its ``lengths``; such a view has one, of all its samples.
        name: The sampler in the message.
    """
    num_shards = len(getattr(getattr(dataset, "spec", None), "shards", ()))
    if num_lengths == 1 < num_shards and getattr(dataset, "is_view", False):
        warn(
            f"{name}: the indices of the view do not ascend, so the order cannot follow its "
            f"{num_shards:,} shards, and nearly every sample may open another shard; sort the "
            "indices first, dataset[sorted(indices)]: a shuffled order does not depend on theirs"
        )


def index_range(num_samples: Any, length: int) -> tuple[int, int]:
    """Return the first index and the index after the last one that ``num_samples`` stands for.

    A pair stands for ``range(start, stop)``. It may be empty where it ends with the dataset: where
    programs cut a dataset for more ranks than it has samples, the last ranges begin past its end.

    Raises:
        ValueError: It is neither a count nor a ``(start, stop)`` pair within the dataset.
    """
    if num_samples is None:
        return 0, length
    pair = num_samples if isinstance(num_samples, tuple | list) else (0, num_samples)
    start, stop = (at_least(0, value, "num_samples") for value in (*pair, None)[:2])
    if len(pair) != 2 or stop > length or (start > stop and stop < length):
        raise ValueError(
            "num_samples: expected a count or (start, stop), with start first, within the "
            f"dataset's {length} samples, found {num_samples!r}"
        )
    return min(start, stop), stop
