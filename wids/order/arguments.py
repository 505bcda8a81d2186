"""Check the arguments of samplers, and find the shard lengths of their datasets.

``ConcatDataset``, ``Subset`` and ``StackDataset`` have no ``lengths``, so a sampler over one would
not follow shards. They are recognised here, by their attributes; torch is not imported.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from wids.errors import warn
from wids.shards.specs.model import DatasetSpec, digests_of
from wids.storage.arrays import IntArray, check_labels


@dataclass(frozen=True)
class Wrapper:
    """What one of torch's wrappers has inside.

    Attributes:
        datasets: The datasets: one after another, or of the same indices.
        is_stacked: Whether they have the same indices, as in ``StackDataset``.
        indices: The index in the only dataset of each sample, as in ``Subset``; None for all.
    """

    datasets: list[Any]
    is_stacked: bool = False
    indices: Any = None


def unwrapped(dataset: Any) -> Wrapper | None:
    """Return what is inside one of torch's wrappers; None for another dataset."""
    # By attributes, since the classes are torch's and subclasses of them common. `random_split`
    # returns `Subset`.
    parts = getattr(dataset, "datasets", None)
    if isinstance(parts, list) and hasattr(dataset, "cumulative_sizes"):
        return Wrapper(parts)
    if isinstance(parts, tuple | dict) and parts:
        return Wrapper(list(parts.values() if isinstance(parts, dict) else parts), is_stacked=True)
    inner, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if isinstance(inner, Sized) and hasattr(indices, "__getitem__"):
        return Wrapper([inner], indices=indices)
    return None


def lengths_of(dataset: Sized) -> Any:
    """Return the number of samples in each shard, for a sampler.

    They are ``dataset.lengths``, or those of the datasets that torch's wrappers hold; if nothing is
    known, the dataset is a single shard.
    """
    lengths = getattr(dataset, "lengths", None)
    if lengths is not None:
        return lengths
    wrapper = unwrapped(dataset)
    if wrapper is None:
        return [len(dataset)]
    if wrapper.indices is not None:
        return _of_subset(dataset, wrapper.datasets[0], wrapper.indices)
    if wrapper.is_stacked:  # it follows the first
        return lengths_of(wrapper.datasets[0])
    return _of_concatenation(dataset, wrapper.datasets)


def tell_epoch(datasets: Sequence[Any], epoch: int, num_replicas: int) -> None:
    """Set the epoch of some datasets, and warn of one whose ranks may have other numbers of steps.

    A dataset of shards also learns that a pass will read it.

    Args:
        datasets: Those of a sampler, as `with_epochs` finds them.
        epoch: The epoch.
        num_replicas: Number of ranks.
    """
    for dataset in datasets:
        dataset.set_epoch(epoch)
        # By names, as above: the order of an epoch knows no dataset.
        access = getattr(dataset, "sample_access", None)
        announce = getattr(access, "announce", None)
        if announce is not None:
            announce()
        policy = getattr(getattr(access, "failures", None), "policy", None)
        if policy == "skip" and num_replicas > 1:
            warn(
                f'on_error="skip" on {num_replicas} ranks: a batch may lose samples or all of '
                "them, and if one rank leaves out a step, the others wait for it forever; "
                'on_error="next" keeps batches full'
            )


def spec_digests(dataset: Any) -> dict[str, str]:
    """Return what `digests_of` does for the spec of a dataset, or for those of its parts."""
    specs = (getattr(part, "spec", None) for part in with_epochs(dataset))
    digests = [digests_of(spec) for spec in specs if isinstance(spec, DatasetSpec)]
    shared = set.intersection(*map(set, digests)) if digests else ()
    return {fact: "+".join(each[fact] for each in digests) for fact in sorted(shared)}


def may_differ(dataset: Any) -> bool:
    """Whether each rank has counted the samples of its dataset, and may have passed over shards."""
    accesses = (getattr(part, "sample_access", None) for part in with_epochs(dataset))
    return any(getattr(access, "may_differ", False) for access in accesses)


def with_epochs(dataset: Any) -> Iterator[Any]:
    """Yield the datasets with a ``set_epoch`` among those that a dataset consists of."""
    if callable(getattr(dataset, "set_epoch", None)):
        yield dataset
        return
    wrapper = unwrapped(dataset)
    for each in wrapper.datasets if wrapper else ():
        yield from with_epochs(each)


def _of_concatenation(dataset: Sized, parts: list[Any]) -> Any:
    if any(hasattr(part, "lengths") for part in parts) and not hasattr(dataset, "__getitems__"):
        warn(
            f"{type(dataset).__name__}: it reads the samples of a batch one by one, so that remote "
            "shards cost a request for each; ShardListDataset([spec, other_spec]) reads batches"
        )
    return np.concatenate([np.asarray(lengths_of(part)) for part in parts])


def _of_subset(dataset: Sized, inner: Sized, indices: Iterable[int]) -> Any:
    inner_lengths = lengths_of(inner)
    if len(inner_lengths) < 2:  # one shard, so there is nothing to follow
        return [len(dataset)]
    positions = np.asarray(indices)
    if (np.diff(positions) < 0).any():
        warn(
            f"{type(dataset).__name__}: its indices are in no order, so that nearly every sample "
            "opens another shard; use dataset.split([0.9, 0.1]), or sort the indices"
        )
        return [len(dataset)]
    inside = np.searchsorted(positions, np.cumsum(inner_lengths))
    return np.diff(inside, prepend=0)


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
        TypeError: A Series may be in another order.
    """
    total = len(dataset)
    source = "lengths" if lengths is not None else "dataset.lengths"
    shard_counts = lengths_of(dataset) if lengths is None else lengths
    try:
        counts = np.asarray(shard_counts)
    except ValueError:  # lists of different lengths
        counts = np.empty((0, 0))
    is_counts = counts.ndim == 1 and (counts.dtype.kind in "iu" or not len(counts))
    if not is_counts or (counts < 0).any():
        raise ValueError(
            f"{source}: expected the number of samples in each shard, found {shard_counts!r:.80}; "
            "if it means something else, pass range(len(dataset))"
        )
    sum_ = int(counts.sum())
    if sum_ > total or (sum_ < total and lengths is None):
        raise ValueError(
            f"{source}: expected numbers that add up to the dataset's {total} samples, found "
            f"{sum_}; if they mean something else, pass range(len(dataset))"
        )
    check_labels(shard_counts, source)
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
