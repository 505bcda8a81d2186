"""Arrange the batches of all runs in rounds, one batch of each run, so that they end together.

`SeparateRounds` lets each run have its own buckets (ORDER-41); in `wids.order.aligned` all runs of
a round have the same one. Both compute the orders of all runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from wids.order.buckets import Buckets, batches, full_batches, windows
from wids.storage.array_types import IntArray

RunBlocks = Callable[[int], Iterator[IntArray]]
"""The indices of a run, by its number."""


class Rounds:
    """The batches of an epoch.

    Args:
        run_blocks: Returns the indices of a run.
        num_runs: Number of runs.
        buckets: The bucket of each index.
        drop_last: Whether to leave out what some runs have and others do not, instead of repeating.
    """

    def __init__(
        self, run_blocks: RunBlocks, num_runs: int, buckets: Buckets, *, drop_last: bool
    ) -> None:
        self._run_blocks = run_blocks
        self._num_runs = num_runs
        self._buckets = buckets
        self._drop_last = drop_last

    @property
    def num_rounds(self) -> int:
        """Number of batches of each run."""
        raise NotImplementedError

    @property
    def _surplus(self) -> int:
        """Number of indices in batches that repeat others; minus that of those in no batch."""
        raise NotImplementedError

    @property
    def num_repeated(self) -> int:
        """Number of indices in batches that repeat others (ORDER-45)."""
        return max(self._surplus, 0)

    @property
    def num_left_out(self) -> int:
        """Number of indices that are in no batch (ORDER-45)."""
        return max(-self._surplus, 0)

    def batches(self, run: int, start: int) -> Iterator[list[list[int]]]:
        """Yield the batches of a run from a round on, many at a time."""
        raise NotImplementedError

    def own(self, run: int) -> tuple[IntArray, IntArray, IntArray]:
        """Return the numbers of the batches of a run that repeat no other.

        With `drop_last`, those that are left out since other runs have fewer are among them.

        Returns:
            The numbers, and the bucket and length of each batch.
        """
        raise NotImplementedError

    def own_batches(self, run: int, start: int) -> Iterator[list[list[int]]]:
        """Yield these batches from a number on, many at a time."""
        raise NotImplementedError

    def _numbers(self, run: int) -> Iterator[npt.NDArray[Any]]:
        """Return the numbers of the buckets of the indices of a run."""
        # Unlike a generator, it keeps no window while others are read.
        return map(self._buckets.numbers.__getitem__, windows(self._run_blocks(run)))


class SeparateRounds(Rounds):
    """An epoch in which each run cuts its own order into batches."""

    @cached_property
    def _counts(self) -> IntArray:
        """Number of indices of each run in each bucket."""
        num_buckets = len(self._buckets.names)
        counts = np.zeros((self._num_runs, num_buckets), np.int64)
        for run in range(self._num_runs):
            for numbers in self._numbers(run):
                counts[run] += np.bincount(numbers, minlength=num_buckets)
        return counts

    @cached_property
    def _num_batches(self) -> IntArray:
        """Number of batches that each run has by itself."""
        rounded_up = 0 if self._drop_last else self._buckets.sizes - 1
        number: IntArray = ((self._counts + rounded_up) // self._buckets.sizes).sum(1)
        return number

    @cached_property
    def num_rounds(self) -> int:  # noqa: D102 - inherited
        return int(self._num_batches.min() if self._drop_last else self._num_batches.max())

    @cached_property
    def _surplus(self) -> int:
        total = -int(self._counts.sum())
        for run in range(self._num_runs) if self.num_rounds else ():
            _, _, lengths = self.own(self._source(run))
            again, first = divmod(self.num_rounds, len(lengths))
            # With `drop_last` a run may have more batches than rounds, and `again` is 0.
            total += again * int(lengths.sum()) + int(lengths[:first].sum())
        return total

    def own(self, run: int) -> tuple[IntArray, IntArray, IntArray]:  # noqa: D102 - inherited
        sizes = self._buckets.sizes
        full, counts = full_batches(self._numbers(run), sizes)
        partial = np.zeros_like(counts) if self._drop_last else counts % sizes
        buckets = np.concatenate((full.astype(np.int64), np.flatnonzero(partial)))
        lengths = np.concatenate((sizes[full], partial[partial > 0]))
        return np.arange(len(buckets)), buckets, lengths

    def own_batches(self, run: int, start: int) -> Iterator[list[list[int]]]:  # noqa: D102 - inherited
        at = 0
        for part in batches(self._run_blocks(run), self._buckets, partial=not self._drop_last):
            if start < at + len(part):
                yield part.between(max(start - at, 0), len(part))
            at += len(part)

    def batches(self, run: int, start: int) -> Iterator[list[list[int]]]:  # noqa: D102 - inherited
        # A run has all its own batches, unless others have fewer and `drop_last`. So the first
        # batch does not wait until those of the other runs are counted.
        stop = self.num_rounds if self._drop_last and self._num_runs > 1 else sys.maxsize
        at = 0
        while at < stop:
            for part in batches(self._run_blocks(run), self._buckets, partial=not self._drop_last):
                if start - at < (end := min(len(part), stop - at)):
                    yield part.between(max(start - at, 0), end)
                at += len(part)
                if at >= stop:
                    return
            # The run is read to its end; what follows repeats it, if another run has more.
            stop = self.num_rounds
            run = self._source(run) if stop else run

    def _source(self, run: int) -> int:
        """Return the run whose batches a run yields: itself, or the nearest that has any."""
        return nearest(run, np.flatnonzero(self._num_batches))


def nearest(run: int, others: IntArray) -> int:
    """Return the nearest of other runs, ascending; of two equally near the later."""
    distances = np.abs(others - run)
    return int(others[len(others) - 1 - np.argmin(distances[::-1])])


def in_turn(rounds: Rounds, runs: range, start: int) -> Iterator[list[list[int]]]:
    """Yield one batch of each run in turn, from a position on, many at a time (ORDER-42)."""
    round_, turn = divmod(start, len(runs))
    if len(runs) == 1:
        yield from rounds.batches(runs[0], round_)
        return
    each = [(batch for part in rounds.batches(run, round_) for batch in part) for run in runs]
    for batches_of_round in zip(*each, strict=True):
        yield list(batches_of_round[turn:])
        turn = 0
