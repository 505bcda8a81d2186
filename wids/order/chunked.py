"""Yield shuffled chunks of shuffled indices on one rank, as torch samplers.

They make passes over the pure functions of `wids.order.epoch_order`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence, Sized
from typing import Any, Final, Literal

from wids.errors import warn
from wids.order import epoch_order, fit
from wids.order.arguments import (
    at_least,
    index_range,
    shard_lengths,
    warn_of_unsorted_view,
)
from wids.order.history import History, Place
from wids.order.passes import EpochSampler
from wids.order.rest_of_epoch import rest_of_epoch
from wids.order.state import fingerprint, lengths_digest
from wids.order.wrapped import EpochTeller
from wids.storage.array_types import IntArray

_PART_LENGTH: Final = 1 << 14
"""Number of indices that become Python ints at once; a large chunk would delay its first index."""


class ChunkedSampler(EpochSampler[int]):
    """Yield shuffled chunks of shuffled indices: random enough to train, local enough to read.

    Chunks follow the shards of a dataset that has ``lengths``; otherwise they are plain ranges.
    ``len()`` is the length of a full pass, even after a restore. A pass takes its epoch when
    ``iter()`` is called. ``set_epoch`` fixes the epoch, so call it before each pass; a second full
    pass without such a call repeats the order, and warns. Until ``set_epoch`` is called for the
    first time, each pass that is read to its end advances the epoch by one, and after a pass that
    is left early the next one starts where it started. specs/sampler-order.md specifies the order.
    Samplers are not safe to share between threads.

    Args:
        dataset: The dataset, or anything with ``len()``.
        num_samples: A count (indices 0 to n-1) or a ``(start, stop)`` pair; None for all.
        chunksize: Largest number of samples in a chunk. Larger chunks shuffle more and keep more
            shards open. ``"auto"`` for 2000, or what fits into the dataset's ``cache_size`` and
            ``lru_size``, which must then be the same on all ranks; a state has the chosen number.
        seed: Different seeds give unrelated orders.
        shuffle: False for ascending indices.
        shufflefirst: False to keep the order of the chunks in epoch 0.
        dslength_per_replica: What ``len()`` returns, as in the old library, where programs cut the
            dataset for the ranks themselves; -1 for the true length. `DistributedChunkedSampler`
            makes ranks equal.

    Raises:
        ValueError: ``num_samples`` exceeds the dataset, a number is too small or not an integer, or
            ``dataset.lengths`` do not add up to its length.

    Example:
        >>> import wids
        >>> sampler = wids.ChunkedSampler(range(6), chunksize=3)
        >>> list(sampler), list(sampler)
        ([5, 4, 3, 0, 2, 1], [2, 0, 1, 4, 3, 5])
    """

    _stated_length: int | None = None
    _shown: tuple[str, ...] = ("seed", "shuffle")

    def __init__(
        self,
        dataset: Sized,
        *,
        num_samples: int | tuple[int, int] | None = None,
        chunksize: int | Literal["auto"] = 2000,
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = True,
        dslength_per_replica: int = -1,
    ) -> None:
        if chunksize != "auto":
            chunksize = at_least(1, chunksize, "chunksize")
        if dslength_per_replica > 0:
            self._stated_length = operator.index(dslength_per_replica)
        self._set_up(dataset, None, num_samples, chunksize, seed, shuffle, shufflefirst)

    def _set_up(
        self,
        dataset: Sized,
        lengths: Sequence[int] | None,
        num_samples: int | tuple[int, int] | None,
        chunksize: int | Literal["auto"] | None,
        seed: int,
        shuffle: bool,
        shufflefirst: bool,
    ) -> None:
        self._dataset = dataset
        self._is_fit_checked = False
        self._lengths = shard_lengths(dataset, lengths)
        if shuffle and lengths is None:  # unshuffled, the order is the view's, as it was chosen
            warn_of_unsorted_view(dataset, len(self._lengths), type(self).__name__)
        self.tell_epoch = EpochTeller(dataset)
        self._range = index_range(num_samples, int(self._lengths.sum()))
        self.seed = at_least(0, seed, "seed")
        self.shuffle = bool(shuffle)
        self.shufflefirst = bool(shufflefirst)
        self.chunksize: int | None = None
        if chunksize == "auto":
            self.chunksize = self._fitting_chunksize(ChunkedSampler.settings_of(self, 1))
        elif chunksize is not None:
            self.chunksize = min(chunksize, 1 << 62)  # numpy's integers end at 1 << 63
        self.dataset_length = len(dataset)
        self._set_up_passes()

    def __repr__(self) -> str:
        """Return the number of samples, the settings, the epoch and the rank."""
        rank, num_replicas = self.replica()
        start, stop = self._range
        parts = [
            f"{self.dataset_length:,} samples",
            f"indices {start:,} to {stop:,}" if stop - start != self.dataset_length else "",
            "" if self.chunksize is None else f"chunksize={self.chunksize}",
            *(f"{name}={getattr(self, name)!r}" for name in self._shown),
            f"epoch {self.epoch}",
            f"rank {rank} of {num_replicas}" if num_replicas > 1 else "",
        ]
        return f"<{type(self).__name__}: {', '.join(filter(None, parts))}>"

    def _fitting_chunksize(self, settings: epoch_order.Order) -> int:
        limits = getattr(self._dataset, "limits", None)
        return fit.fitting_chunksize(settings, limits) if limits else fit.DEFAULT_CHUNKSIZE

    @property
    def settings(self) -> epoch_order.Settings:
        """What the order depends on, besides seed, epoch and rank."""
        return self.settings_of(self.num_runs)

    def settings_of(self, num_runs: int) -> epoch_order.Settings:
        """Return the settings of an epoch that is cut into so many runs."""
        return epoch_order.Settings(
            self._lengths,
            *self._range,
            self.chunksize,
            self.shuffle,
            self.shufflefirst,
            num_runs,
        )

    @property
    def num_runs(self) -> int:  # noqa: D102 - inherited
        return 1

    def replica(self) -> tuple[int, int]:  # noqa: D102 - inherited
        return 0, 1

    def __len__(self) -> int:
        return super().__len__() if self._stated_length is None else self._stated_length

    def order_of(self, history: History) -> epoch_order.Runs:
        """Return what this job reads of an epoch after the parts of a history."""
        return rest_of_epoch(self.settings, history) if history else self.settings

    def num_items(self, place: Place) -> int:  # noqa: D102 - inherited
        return epoch_order.rank_length(self.order_of(place.history), *self.replica())

    def is_over(self, place: Place) -> bool:  # noqa: D102 - inherited
        # The last run is as long as any.
        return not self.order_of(place.history).run_length(self.num_runs - 1)

    def most_items(self, num_runs: int) -> int:  # noqa: D102 - inherited
        # One round more than the indices, because padding adds at most one index to each run.
        return self.settings_of(num_runs).num_indices + num_runs

    def blocks(self, start: Place) -> Iterator[list[int]]:  # noqa: D102 - inherited
        self.check_fit(self._dataset)
        rank, num_replicas = self.replica()
        for block in epoch_order.rank_blocks(
            self.order_of(start.history),
            self.seed,
            start.epoch,
            rank,
            num_replicas,
            start.position,
        ):
            for at in range(0, len(block), _PART_LENGTH):
                yield block[at : at + _PART_LENGTH].tolist()

    def run_blocks(self, epoch: int, run: int, num_runs: int) -> Iterator[IntArray]:
        """Yield the indices of a run of an epoch that is cut into so many, in arrays."""
        self.check_fit(self._dataset)
        settings = self.settings_of(num_runs)
        return epoch_order.rank_blocks(settings, self.seed, epoch, run, num_runs)

    def check_fit(self, dataset: Any, ahead_nbytes: int = 0) -> None:
        """Warn once if the order does not fit the dataset, such as its cache (ORDER-28).

        Args:
            dataset: The dataset; one that is not from wids states no limits.
            ahead_nbytes: Bytes of shards that are fetched ahead.
        """
        if not self._is_fit_checked:
            self._is_fit_checked = True
            _, num_replicas = self.replica()
            for remark in fit.remarks(dataset, self.settings, num_replicas, ahead_nbytes):
                warn(f"{type(self).__name__}: {remark}")

    def fingerprint(self) -> dict[str, Any]:  # noqa: D102 - inherited
        # Hashed once: a loader takes a state at every step, and there may be 100,000 shards.
        if not hasattr(self, "_lengths_digest"):
            self._lengths_digest = lengths_digest(self._lengths)
        return fingerprint(self.settings, self.seed, self._lengths_digest)


class ShardListSampler(ChunkedSampler):
    """Yield shard after shard in shuffled order, with the indices inside each shard shuffled.

    Each shard is one chunk. Otherwise it behaves like `ChunkedSampler`.

    Args:
        dataset: The dataset.
        lengths: Number of samples in each shard; None for ``dataset.lengths``.
        seed: Different seeds give unrelated orders.
        shuffle: False for ascending indices.
        shufflefirst: False to keep the order of the shards in epoch 0.

    Raises:
        ValueError: ``lengths`` are not counts of the dataset's samples, or ``seed`` is negative.

    Example:
        >>> import wids
        >>> list(wids.ShardListSampler(range(6), lengths=[2, 4]))
        [5, 4, 3, 2, 0, 1]
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        lengths: Sequence[int] | None = None,
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = True,
    ) -> None:
        self._set_up(dataset, lengths, None, None, seed, shuffle, shufflefirst)


ShardedSampler = ShardListSampler
