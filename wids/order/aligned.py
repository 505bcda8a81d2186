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
from wids.order.epoch_order import interleaved, run_edges
from wids.order.rounds import (
    Buckets,
    Groups,
    Rounds,
    RunBlocks,
    batches,
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
        counts = np.zeros((self._num_runs, len(self._buckets.names)), np.int64)
        runs = [self._counted(run, counts[run]) for run in range(self._num_runs)]
        # What runs have of a bucket in a round is a batch of all of them together.
        made = batches(
            interleaved(runs), self._buckets, self._num_runs, partial=not self._drop_last
        )
        kind = self._buckets.numbers.dtype
        numbers = [each.numbers.astype(kind) for each in made]
        return np.concatenate([np.empty(0, kind), *numbers]), counts

    def _counted(self, run: int, counts: IntArray) -> Iterator[IntArray]:
        for window in windows(self._run_blocks(run)):
            counts += np.bincount(self._buckets.numbers[window], minlength=len(counts))
            yield window

    @cached_property
    def _pieces(self) -> list[list[list[Piece]]]:
        """What each run has of each bucket, in the order of its batches; by bucket and run.

        A piece has numbers of the indices of the bucket that a run has, in its order.
        """
        by_bucket = []
        for counts, size in zip(self._plan[1].T, self._buckets.sizes.tolist(), strict=True):
            num_groups, num_left = divmod(int(counts.sum()), size * self._num_runs)
            # The last round, if it is not full, has what is left in equal shares.
            shares = np.diff(run_edges(0 if self._drop_last else num_left, self._num_runs))
            pieces = _lent(counts, num_groups * size + shares)
            filled = np.flatnonzero(shares)
            for run in np.flatnonzero(shares == 0).tolist() if len(filled) else ():
                of_nearest = pieces[nearest(run, filled)]
                pieces[run] += between(of_nearest, num_groups * size, sys.maxsize)
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
