"""Arrange batches in rounds in which every run has the same bucket, on any number of ranks.

The order of all runs together determines the bucket of each round. A run that has too few indices
of a bucket borrows from others at the end (ORDER-43 and ORDER-44 in specs/sampler-order.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True)
class _Piece:
    """Indices of a bucket: numbers ``start`` to ``stop`` of those that a run has, in its order."""

    run: int
    bucket: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class AlignedRounds(Rounds):
    """An epoch in which the batches of a round have the same bucket in all runs.

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
    def _pieces(self) -> list[list[list[_Piece]]]:
        """What each run has of each bucket, in the order of its batches; by bucket and run."""
        counts = self._plan[1]
        num_full = counts.sum(0) // (self._buckets.sizes * self._num_runs) * self._buckets.sizes
        quotas = num_full + self._shares
        by_bucket = []
        for bucket in range(len(self._buckets.names)):
            pieces = _lent(bucket, counts[:, bucket], quotas[:, bucket])
            shares = self._shares[:, bucket]
            filled = np.flatnonzero(shares)
            for run in np.flatnonzero(shares == 0) if len(filled) else ():
                repeated = _from(int(num_full[bucket]), pieces[nearest(int(run), filled)])
                pieces[run] = [*pieces[run], *repeated]
            by_bucket.append(pieces)
        return by_bucket

    @cached_property
    def num_rounds(self) -> int:  # noqa: D102 - inherited
        return len(self._plan[0])

    @cached_property
    def _surplus(self) -> int:
        pieces = (piece for of_bucket in self._pieces for of_run in of_bucket for piece in of_run)
        return sum(map(len, pieces)) - int(self._plan[1].sum())

    # The batches.

    def batches(self, run: int, start: int) -> Iterator[list[list[int]]]:  # noqa: D102 - inherited
        rounds, sizes = self._plan[0], self._buckets.sizes
        num_taken = np.bincount(rounds[:start], minlength=len(sizes)) * sizes
        pieces = [of_bucket[run] for of_bucket in self._pieces]
        stock = _Stock(pieces, self._buckets, num_taken.tolist(), self._read)
        waiting = iter(rounds[start:].tolist())
        bucket = next(waiting, None)
        for window in chain(windows(self._run_blocks(run)), [np.empty(0, np.int64)]):
            stock.add(window)
            made = []
            while bucket is not None and stock.is_ready(bucket):
                made.append(stock.take(bucket))
                bucket = next(waiting, None)
            if made:
                yield made

    def _read(self, pieces: list[_Piece]) -> list[IntArray]:
        """Return the indices of pieces, from the orders of their runs."""
        parts_by_piece: list[list[IntArray]] = [[] for _ in pieces]
        for run in sorted({piece.run for piece in pieces}):
            wanted = [(at, piece) for at, piece in enumerate(pieces) if piece.run == run]
            seen = dict.fromkeys((piece.bucket for _, piece in wanted), 0)
            for window in windows(self._run_blocks(run)):
                numbers = self._buckets.numbers[window]
                here = {bucket: window[numbers == bucket] for bucket in seen}
                for at, piece in wanted:
                    offset = seen[piece.bucket]
                    a, b = max(piece.start - offset, 0), max(piece.stop - offset, 0)
                    parts_by_piece[at].append(here[piece.bucket][a:b])
                for bucket, indices in here.items():
                    seen[bucket] += len(indices)
        return [np.concatenate(parts) for parts in parts_by_piece]


class _Stock:
    """The indices of each bucket that a run has read, but not yet put into a batch.

    Args:
        pieces: What the run has of each bucket; the first piece is its own.
        buckets: The bucket of each index.
        num_taken: Indices of each bucket that are in earlier batches.
        read: Returns the indices of pieces.
    """

    def __init__(
        self,
        pieces: list[list[_Piece]],
        buckets: Buckets,
        num_taken: list[int],
        read: Callable[[list[_Piece]], list[IntArray]],
    ) -> None:
        self._others = [piece for of_bucket in pieces for piece in of_bucket[1:]]
        self._buckets = buckets
        self._sizes: list[int] = buckets.sizes.tolist()
        self._num_dropped = num_taken
        self._read = read
        self._num_coming = np.array([len(of_bucket[0]) for of_bucket in pieces], np.int64)
        self._held = [np.empty(0, np.int64)] * len(pieces)

    @cached_property
    def _borrowed(self) -> dict[int, IntArray]:
        """The indices of other runs, by bucket; read when the first of them is needed."""
        found: dict[int, list[IntArray]] = {}
        for piece, indices in zip(self._others, self._read(self._others), strict=True):
            found.setdefault(piece.bucket, []).append(indices)
        return {bucket: np.concatenate(parts) for bucket, parts in found.items()}

    def add(self, window: IntArray) -> None:
        """Put the next indices of the run into stock, except those that it lends."""
        groups = Groups.of(self._buckets.numbers[window], len(self._held))
        counts = np.minimum(groups.counts, self._num_coming)
        self._num_coming -= counts
        for bucket in np.flatnonzero(counts).tolist():
            first = groups.firsts[bucket]
            self._hold(bucket, window[groups.positions[first : first + counts[bucket]]])

    def _hold(self, bucket: int, indices: IntArray) -> None:
        # A resumed pass leaves out what earlier batches had.
        drop = min(self._num_dropped[bucket], len(indices))
        self._num_dropped[bucket] -= drop
        self._held[bucket] = np.concatenate((self._held[bucket], indices[drop:]))

    def is_ready(self, bucket: int) -> bool:
        """Return whether the next batch of a bucket needs no more of the run's own indices."""
        return len(self._held[bucket]) >= self._sizes[bucket] or not self._num_coming[bucket]

    def take(self, bucket: int) -> list[int]:
        """Return the next batch of a bucket, which is ready."""
        size = self._sizes[bucket]
        if len(self._held[bucket]) < size and bucket in self._borrowed:
            self._hold(bucket, self._borrowed.pop(bucket))
        batch: list[int] = self._held[bucket][:size].tolist()
        self._held[bucket] = self._held[bucket][size:]
        return batch


def _lent(bucket: int, counts: IntArray, quotas: IntArray) -> list[list[_Piece]]:
    """Return what each run has of a bucket: its own indices up to its quota, then borrowed ones."""
    pieces = [
        [_Piece(run, bucket, 0, min(count, quota))]
        for run, (count, quota) in enumerate(zip(counts.tolist(), quotas.tolist(), strict=True))
    ]
    lent = np.minimum(counts, quotas)  # the number of the next index that a run lends
    for run in np.flatnonzero(counts < quotas).tolist():
        lacking = int(quotas[run] - counts[run])
        while lacking:
            lender = nearest(run, np.flatnonzero(lent < counts))
            start = int(lent[lender])
            stop = min(start + lacking, int(counts[lender]))
            pieces[run].append(_Piece(lender, bucket, start, stop))
            lent[lender] = stop
            lacking -= stop - start
    return pieces


def _from(start: int, pieces: list[_Piece]) -> list[_Piece]:
    """Return pieces without their first indices."""
    kept = []
    for piece in pieces:
        first = min(start, len(piece))
        start -= first
        if first < len(piece):
            kept.append(_Piece(piece.run, piece.bucket, piece.start + first, piece.stop))
    return kept
