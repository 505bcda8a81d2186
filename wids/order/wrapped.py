"""Find the shard lengths of datasets inside torch's wrappers, and pass the epoch on to them.

``ConcatDataset``, ``Subset`` and ``StackDataset`` have no ``lengths``, so a sampler over one would
not follow shards. They are recognised by their attributes; torch is not imported here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import numpy as np


def lengths_of(dataset: Sized) -> Any:
    """Return the number of samples in each shard, for a sampler.

    They are ``dataset.lengths``, or those of the datasets that torch's wrappers hold; if nothing is
    known, the dataset is a single shard.
    """
    lengths = getattr(dataset, "lengths", None)
    if lengths is not None:
        return lengths
    # By attributes, since the classes are torch's and subclasses of them common. `random_split`
    # returns `Subset`.
    parts = getattr(dataset, "datasets", None)
    if hasattr(dataset, "cumulative_sizes") and isinstance(parts, list):
        return _of_concatenation(dataset, parts)
    if isinstance(parts, tuple | dict) and parts:
        # All parts of a `StackDataset` have the same indices: it follows the first.
        return lengths_of(next(iter(parts.values() if isinstance(parts, dict) else parts)))
    inner, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if isinstance(inner, Sized) and isinstance(indices, Iterable):
        return _of_subset(dataset, inner, indices)
    return [len(dataset)]


class EpochTeller:
    """Sets the epoch of the datasets that have ``set_epoch``, inside torch's wrappers too.

    Args:
        dataset: The dataset of a sampler.
    """

    def __init__(self, dataset: Any) -> None:
        self._datasets = list(_with_epochs(dataset))

    def __call__(self, epoch: int) -> None:
        """Set the epoch."""
        for dataset in self._datasets:
            dataset.set_epoch(epoch)


def _with_epochs(dataset: Any) -> Iterator[Any]:
    """Yield the datasets with a ``set_epoch`` among those that a dataset consists of."""
    if callable(getattr(dataset, "set_epoch", None)):
        yield dataset
        return
    parts = getattr(dataset, "datasets", None)
    if isinstance(parts, list | tuple | dict):
        for part in parts.values() if isinstance(parts, dict) else parts:
            yield from _with_epochs(part)
    elif hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
        yield from _with_epochs(dataset.dataset)


def _of_concatenation(dataset: Sized, parts: list[Any]) -> Any:
    if any(hasattr(part, "lengths") for part in parts) and not hasattr(dataset, "__getitems__"):
        warnings.warn(
            f"{type(dataset).__name__}: it reads the samples of a batch one by one, so that remote "
            "shards cost a request for each; ShardListDataset([spec, other_spec]) reads batches",
            stacklevel=2,
        )
    return np.concatenate([np.asarray(lengths_of(part)) for part in parts])


def _of_subset(dataset: Sized, inner: Sized, indices: Iterable[int]) -> Any:
    inner_lengths = lengths_of(inner)
    if len(inner_lengths) < 2:  # one shard, so there is nothing to follow
        return [len(dataset)]
    positions = np.asarray(indices)
    if (np.diff(positions) < 0).any():
        warnings.warn(
            f"{type(dataset).__name__}: its indices are in no order, so that nearly every sample "
            "opens another shard; use dataset.split([0.9, 0.1]), or sort the indices",
            stacklevel=2,
        )
        return [len(dataset)]
    inside = np.searchsorted(positions, np.cumsum(inner_lengths))
    return np.diff(inside, prepend=0)
