"""Batch the indices of a sampler by bucket, as a torch batch sampler for any rank.

`RoundsSampler` is what all samplers of batches have in common. Each batch has one bucket, and all
ranks have equally many, without communication. `wids.order.rounds`, `wids.order.aligned` and, after
the number of ranks has changed, `wids.order.remaining_rounds` make them.
`wids.order.packed_sampler` bounds the sum of lengths, and the number of samples, instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from wids.order.aligned import AlignedRounds
from wids.order.elastic import EpochPlace, History, State
from wids.order.epoch_order import Order, runs_of
from wids.order.passes import EpochSampler
from wids.order.remaining_rounds import RemainingRounds
from wids.order.rounds import DealtRounds, Rounds, SeparateRounds, checked_buckets, in_turn
from wids.order.samplers import ChunkedSampler
from wids.order.sequences import BatchSequence


class RoundsSampler(EpochSampler[list[int]]):
    """Yield the batches that `Rounds` make of the order of a sampler, which shares the epoch.

    A subclass defines `_fingerprint` and `_whole`.

    Args:
        sampler: The sampler inside.
        drop_last: How ranks are made equal at the end of an epoch.
    """

    yields_indices = False
    _num_noticed = 50
    _most_counted = 1_000_000
    """Samples for which ``repr`` counts batches: a tenth of a second."""

    def __init__(self, sampler: ChunkedSampler, drop_last: bool) -> None:
        if not isinstance(sampler, ChunkedSampler):
            raise TypeError(
                "sampler: expected one of wids' samplers, whose order is known for all ranks, "
                f"found {type(sampler).__name__}; wids.ChunkedSampler(dataset) is one, and a "
                "Prefetcher goes around the batches"
            )
        self.sampler = sampler
        self.drop_last = bool(drop_last)
        self.shuffle = sampler.shuffle
        self._tell_epoch = sampler._tell_epoch
        self.dataset_length = sampler.dataset_length
        self.num_canonical = sampler.num_canonical
        self._is_elastic = sampler._is_elastic
        self._epochs_made: dict[tuple[int, int, History], Rounds] = {}
        self._set_up_passes(sampler._epochs)

    @property
    def rank(self) -> int:
        """Rank of this process, as the sampler inside knows it."""
        return self._replica()[0]

    @property
    def num_replicas(self) -> int:
        """Number of ranks."""
        return self._replica()[1]

    @property
    def num_repeated(self) -> int:
        """Number of samples of the current epoch, on all ranks, in batches that repeat others."""
        return self._rounds(self._place_of(self.epoch)).num_repeated

    @property
    def num_left_out(self) -> int:
        """Number of samples of the current epoch that are in no batch of any rank."""
        return self._rounds(self._place_of(self.epoch)).num_left_out

    @property
    def _num_runs(self) -> int:
        return self.sampler._num_runs

    def _replica(self) -> tuple[int, int]:
        return self.sampler._replica()

    def _blocks(self, start: EpochPlace) -> Iterator[list[list[int]]]:
        return in_turn(self._rounds(start), self._my_runs(), start.position)

    def _sequence(self, place: EpochPlace) -> BatchSequence:
        return BatchSequence(self._rounds(place), self._my_runs())

    def _steps_at(self, index: int, place: EpochPlace) -> list[tuple[int, int]]:
        _, num_replicas = self._replica()
        rounds, num_runs = self._rounds(place), self._num_runs
        return [
            (rank, position)
            for rank in range(num_replicas)
            for position, batch in enumerate(
                chain.from_iterable(in_turn(rounds, runs_of(num_runs, rank, num_replicas), 0))
            )
            if index in batch
        ]

    def _num_items(self, place: EpochPlace) -> int:
        return self._rounds(place).num_rounds * len(self._my_runs())

    def _is_at_end(self, place: EpochPlace) -> bool:
        return not self._rounds(place).has_round(place.position // len(self._my_runs()))

    def _most_items(self, num_runs: int) -> int:
        # No run has more batches than all runs have indices; the exact number takes a second.
        return self.sampler._most_items(num_runs) * num_runs

    def _expected_by(self, state: State, *, whole: bool = True) -> dict[str, Any]:
        # Each batch depends on the order of the whole epoch.
        return self._fingerprint() | self.sampler._expected_by(state, whole=whole)

    def _my_runs(self) -> range:
        return runs_of(self._num_runs, *self._replica())

    def _rounds(self, place: EpochPlace) -> Rounds:
        """Return the batches of an epoch, or of its rest; the latest two are cached."""
        key = (place.epoch, self._num_runs, place.history)
        if key not in self._epochs_made:
            for old in list(self._epochs_made)[:-1]:
                del self._epochs_made[old]
            self._epochs_made[key] = self._made(place)
        return self._epochs_made[key]

    def _made(self, place: EpochPlace) -> Rounds:
        if not place.history:
            return self._whole(place.epoch, self._num_runs)
        whole = self._whole(place.epoch, place.history[0].num_runs)
        return RemainingRounds(whole, place.history, self._num_runs, drop_last=self.drop_last)

    @property
    def settings(self) -> Order:
        """What the order of samples depends on, besides seed, epoch and rank."""
        return self._settings_of(self._num_runs)

    def _settings_of(self, num_runs: int) -> Order:
        """Return the settings of an epoch whose batches are made of so many runs."""
        return self.sampler._settings_of(num_runs)

    def _whole(self, epoch: int, num_runs: int) -> DealtRounds:
        """Return the batches of an epoch that is cut into so many runs."""
        raise NotImplementedError

    def __repr__(self) -> str:
        if self.sampler.dataset_length > self._most_counted:
            return self._about
        return (
            f"<{self._about}, epoch {self.epoch}: {len(self)} batches on each rank, "
            f"{self.num_repeated} samples repeated, {self.num_left_out} left out>"
        )

    @property
    def _about(self) -> str:
        """The settings, as text."""
        raise NotImplementedError


class BucketBatchSampler(RoundsSampler):
    """Yield batches that have one bucket each: one aspect ratio, one range of lengths.

    Pass it to a DataLoader as ``batch_sampler=``. Batches follow the order of the sampler that it
    wraps: a batch comes when its last sample does, and only the end of an epoch has incomplete
    ones. All ranks yield equally many batches. Each rank computes them by itself: it goes through
    the orders of all ranks once per epoch, about a second for ten million samples. ``len()`` is the
    number of batches of the current epoch, which may differ from epoch to epoch.
    specs/sampler-order.md specifies the batches (ORDER-40 to ORDER-46, and ORDER-53).

    Epochs, ``set_epoch``, ``state_dict`` and ``load_state_dict`` are those of `ChunkedSampler`,
    counted in batches; ``state_dict(num_consumed=...)`` takes a number of batches. The epoch is
    shared with the sampler inside. On another number of ranks, the batches that are left of an
    epoch are dealt out again, unless they are aligned.

    Args:
        sampler: Any sampler of this package, for example a `DistributedChunkedSampler`, which
            with ``even=False`` itself repeats and leaves out nothing.
        buckets: One integer for each sample of the dataset: array, list, Arrow array, or Series.
        batch_size: Samples in a batch; or a callable that returns it for a bucket, for example for
            a budget of tokens or pixels.
        aligned: True to have the same bucket on all ranks in each step. A rank that has too few
            samples of a bucket borrows from the nearest rank that has more than its share. An epoch
            continues only with the runs with which it began: ``num_canonical``, or one per rank.
        drop_last: How ranks are made equal at the end of an epoch, after ranks with fewer batches
            were given those of others. False keeps incomplete batches, and repeats fewer than there
            are ranks; True leaves out incomplete batches, and fewer than there are ranks.

    Attributes:
        sampler: The sampler inside.
        batch_size: As passed.
        aligned: As passed.
        drop_last: As passed.

    Raises:
        TypeError: ``sampler`` is not one of wids' samplers, or a Series may be in another order.
        ValueError: ``buckets`` are not one integer for each sample, or a batch size is less than 1.

    Example:
        >>> import wids
        >>> buckets = [0, 0, 1, 0, 1, 0, 0, 1]  # for example 0 for portrait, 1 for landscape
        >>> sampler = wids.ChunkedSampler(range(8))
        >>> batches = wids.BucketBatchSampler(sampler, buckets, 2)
        >>> list(batches)
        [[7, 4], [0, 6], [1, 5], [3], [2]]
        >>> len(batches), batches.num_repeated, batches.num_left_out
        (5, 0, 0)
    """

    def __init__(
        self,
        sampler: ChunkedSampler,
        buckets: Any,
        batch_size: int | Callable[[int], int],
        *,
        aligned: bool = False,
        drop_last: bool = False,
    ) -> None:
        super().__init__(sampler, drop_last)
        self.batch_size = batch_size
        self.aligned = bool(aligned)
        # Other runs would have other buckets in a round.
        self._is_elastic = self._is_elastic and not self.aligned
        self._buckets = checked_buckets(buckets, batch_size, sampler.dataset_length)
        self._bucket_fingerprint = self._buckets.fingerprint()

    def _fingerprint(self) -> dict[str, Any]:
        return {
            **self.sampler._fingerprint(),
            **self._bucket_fingerprint,
            "aligned": self.aligned,
            "drop_last": self.drop_last,
        }

    def _made(self, place: EpochPlace) -> Rounds:
        num_runs = self._num_runs
        if not self.aligned or num_runs == 1:
            return super()._made(place)
        run_blocks = self.sampler.run_blocks(self.settings, place.epoch)
        return AlignedRounds(run_blocks, num_runs, self._buckets, drop_last=self.drop_last)

    def _whole(self, epoch: int, num_runs: int) -> DealtRounds:
        settings = self._settings_of(num_runs)
        run_blocks = self.sampler.run_blocks(settings, epoch)
        run_lengths = [settings.run_length(run) for run in range(num_runs)]
        return SeparateRounds(run_blocks, run_lengths, self._buckets, drop_last=self.drop_last)

    @property
    def _about(self) -> str:
        sizes = sorted(set(self._buckets.sizes.tolist()))
        shown = " to ".join(str(size) for size in sizes[:1] + sizes[1:][-1:])
        return (
            f"{type(self).__name__}({type(self.sampler).__name__}, {len(self._buckets.names)} "
            f"buckets of {self.sampler.dataset_length} samples, batch_size={shown or None}, "
            f"aligned={self.aligned}, drop_last={self.drop_last})"
        )
