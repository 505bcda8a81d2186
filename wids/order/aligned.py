"""Arrange batches in rounds in which every run has the same bucket, on any number of ranks.

The order of all runs together determines the bucket of each round. A run that has too few indices
of a bucket borrows from others at the end (ORDER-43 and ORDER-44 in specs/sampler-order.md).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wids.order.elastic import Piece, between, length_of
from wids.order.epoch_order import interleaved
from wids.order.rounds import (
    Buckets,
    Groups,
    Rounds,
    RunBlocks,
    full_batches,
    nearest,
    windows,
)
from wids.storage.arrays import IntArray

_BLOCK_LENGTH: Final = 64
"""Batches that are returned at a time."""


class AlignedRounds(Rounds):
    """An epoch in which the batches of a round have the same bucket in all runs.

    While a run is read, its indices are in memory, bucket by bucket.

    Args:
        run_blocks: Returns the indices of a run.
        num_runs: Number of runs.
        buckets: The bucket of each index.
        drop_last: Whether to leave out rounds that are not full.
    """

    def __init__(
        self, run_blocks: RunBlocks, num_runs: int, buckets: Buckets, *, drop_last: bool
    ) -> None:
        self._run_blocks = run_blocks
        self._num_runs = num_runs
        self._buckets = buckets
        self._drop_last = drop_last

    # The plan.

    @cached_property
    def _plan(self) -> tuple[npt.NDArray[Any], IntArray]:
        """The bucket of each round, and the number of indices of each run in each bucket."""
        sizes = self._buckets.sizes
        counts = np.zeros((self._num_runs, len(sizes)), np.int64)
        runs = [self._counted(run, counts[run]) for run in range(self._num_runs)]
        rounds, seen = full_batches(interleaved(runs), sizes * self._num_runs)
        if not self._drop_last:
            incomplete = np.flatnonzero(seen % (sizes * self._num_runs))
            rounds = np.concatenate((rounds, incomplete.astype(rounds.dtype)))
        return rounds, counts

    def _counted(self, run: int, counts: IntArray) -> Iterator[npt.NDArray[Any]]:
        for window in windows(self._run_blocks(run)):
            numbers = self._buckets.numbers[window]
            counts += np.bincount(numbers, minlength=len(counts))
            yield numbers

    @cached_property
    def _num_remaining(self) -> IntArray:
        """Number of indices of each bucket that are in no full round."""
        num_remaining: IntArray = self._plan[1].sum(0) % (self._buckets.sizes * self._num_runs)
        return num_remaining

    @cached_property
    def _shares(self) -> IntArray:
        """Number of indices of each run and bucket in the last round, if it is not full."""
        if self._drop_last:
            return np.zeros_like(self._plan[1])
        runs = np.arange(self._num_runs)[:, None]
        shares: IntArray = (
            self._num_remaining * (runs + 1) // self._num_runs
            - self._num_remaining * runs // self._num_runs
        )
        return shares

    @cached_property
    def _pieces(self) -> list[list[list[Piece]]]:
        """What each run has of each bucket, in the order of its batches; by bucket and run.

        A piece has numbers of the indices of the bucket that a run has, in its order.
        """
        counts = self._plan[1]
        num_full = counts.sum(0) // (self._buckets.sizes * self._num_runs) * self._buckets.sizes
        quotas = num_full + self._shares
        by_bucket = []
        for bucket, num_before in enumerate(num_full.tolist()):
            pieces = _lent(counts[:, bucket], quotas[:, bucket])
            shares = self._shares[:, bucket]
            filled = np.flatnonzero(shares)
            for run in np.flatnonzero(shares == 0) if len(filled) else ():
                pieces[run] += between(pieces[nearest(int(run), filled)], num_before, sys.maxsize)
            by_bucket.append(pieces)
        return by_bucket

    @cached_property
    def num_rounds(self) -> int:  # noqa: D102 - inherited
        return len(self._plan[0])

    @cached_property
    def _surplus(self) -> int:
        num_read = sum(length_of(of_run) for of_bucket in self._pieces for of_run in of_bucket)
        return num_read - int(self._plan[1].sum())

    # The batches.

    def batches(self, run: int, start: int) -> Iterator[list[list[int]]]:  # noqa: D102 - inherited
        rounds, sizes = self._plan[0], self._buckets.sizes
        indices = self._read([of_bucket[run] for of_bucket in self._pieces])
        taken = (np.bincount(rounds[:start], minlength=len(sizes)) * sizes).tolist()
        for at in range(start, len(rounds), _BLOCK_LENGTH):
            block = []
            for bucket in rounds[at : at + _BLOCK_LENGTH].tolist():
                first, taken[bucket] = taken[bucket], taken[bucket] + int(sizes[bucket])
                block.append(indices[bucket][first : taken[bucket]].tolist())
            yield block

    def _read(self, pieces: list[list[Piece]]) -> list[IntArray]:
        """Return the indices of the pieces of each bucket, from the orders of their runs."""
        parts: list[list[list[IntArray]]] = [[[] for _ in of_bucket] for of_bucket in pieces]
        for run in sorted({piece.sequence for of_bucket in pieces for piece in of_bucket}):
            wanted = [
                (bucket, piece, part)
                for bucket, of_bucket in enumerate(pieces)
                for piece, part in zip(of_bucket, parts[bucket], strict=True)
                if piece.sequence == run
            ]
            seen = np.zeros(len(pieces), np.int64)
            for window in windows(self._run_blocks(run)):
                groups = Groups.of(self._buckets.numbers[window], len(pieces))
                for bucket, (_, start, stop), part in wanted:
                    first = groups.firsts[bucket]
                    positions = groups.positions[first : first + groups.counts[bucket]]
                    a, b = max(start - seen[bucket], 0), max(stop - seen[bucket], 0)
                    if len(positions[a:b]):
                        part.append(window[positions[a:b]])
                seen += groups.counts
        nothing = np.empty(0, np.int64)
        return [np.concatenate([nothing, *chain.from_iterable(each)]) for each in parts]


def _lent(counts: IntArray, quotas: IntArray) -> list[list[Piece]]:
    """Return what each run has of a bucket: its own indices up to its quota, then borrowed ones."""
    lent = np.minimum(counts, quotas)  # the number of the next index that a run lends
    pieces = [[Piece(run, 0, own)] for run, own in enumerate(lent.tolist())]
    for run in np.flatnonzero(counts < quotas).tolist():
        lacking = int(quotas[run] - counts[run])
        while lacking:
            lender = nearest(run, np.flatnonzero(lent < counts))
            start = int(lent[lender])
            stop = min(start + lacking, int(counts[lender]))
            pieces[run].append(Piece(lender, start, stop))
            lent[lender] = stop
            lacking -= stop - start
    return pieces
