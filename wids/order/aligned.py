"""Arrange batches in rounds in which every run has the same bucket, on any number of ranks.

The order of all runs together determines the bucket of each round. A run that has too few indices
of a bucket borrows from others at the end (ORDER-43 and ORDER-44 in specs/sampler-order.md).

After the number of ranks has changed, the remaining batches stay what they are; only their runs
differ (ORDER-53).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wids.order.elastic import History, run_edges
from wids.order.epoch_order import interleaved
from wids.order.rounds import (
    Buckets,
    FirstRounds,
    Groups,
    Rounds,
    RunBlocks,
    full_batches,
    nearest,
    windows,
)
from wids.storage.arrays import BoolArray, IntArray


@dataclass(frozen=True)
class _Piece:
    """Indices of a bucket: numbers ``start`` to ``stop`` of those that a run has, in its order."""

    run: int
    bucket: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class AlignedRounds(FirstRounds):
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
    def _left(self) -> IntArray:
        """Number of indices of each bucket that are in no full round."""
        left: IntArray = self._plan[1].sum(0) % (self._buckets.sizes * self._num_runs)
        return left

    @cached_property
    def _shares(self) -> IntArray:
        """Number of indices of each run and bucket in the last round, if it is not full."""
        if self._drop_last:
            return np.zeros_like(self._plan[1])
        runs = np.arange(self._num_runs)[:, None]
        shares: IntArray = (
            self._left * (runs + 1) // self._num_runs - self._left * runs // self._num_runs
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

    def sequence(self, run: int) -> IntArray:  # noqa: D102 - inherited
        (rounds,) = np.nonzero(self.own_lengths(run))
        return np.stack([rounds, np.full_like(rounds, run), rounds])

    def own_buckets(self, run: int) -> IntArray:  # noqa: ARG002, D102 - inherited
        return self._plan[0].astype(np.int64)

    def own_lengths(self, run: int) -> IntArray:
        """Return how many indices of its own a run has in each round."""
        rounds = self._plan[0]
        lengths: IntArray = self._buckets.sizes[rounds]
        # The last rounds, one for each bucket with indices left, are not full.
        if not self._drop_last and (num_last := np.count_nonzero(self._left)):
            lengths[-num_last:] = self._shares[run, rounds[-num_last:]]
        return lengths

    # The batches.

    def own_batches(self, run: int, start: int) -> Iterator[list[list[int]]]:  # noqa: D102 - inherited
        return self.batches(run, start)

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
        found: list[list[IntArray]] = [[] for _ in pieces]
        for run in sorted({piece.run for piece in pieces}):
            wanted = [(at, piece) for at, piece in enumerate(pieces) if piece.run == run]
            seen = dict.fromkeys((piece.bucket for _, piece in wanted), 0)
            for window in windows(self._run_blocks(run)):
                numbers = self._buckets.numbers[window]
                here = {bucket: window[numbers == bucket] for bucket in seen}
                for at, piece in wanted:
                    offset = seen[piece.bucket]
                    a, b = max(piece.start - offset, 0), max(piece.stop - offset, 0)
                    found[at].append(here[piece.bucket][a:b])
                for bucket, indices in here.items():
                    seen[bucket] += len(indices)
        return [np.concatenate(parts) for parts in found]


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


_BLOCK_LENGTH: Final = 64
"""Batches that are returned at a time."""


class RoundsAgain(Rounds):
    """What is left of the batches of an epoch, in rounds of another number of runs.

    Args:
        whole: The batches of the epoch, with the runs with which it began.
        history: The parts that were read; at least one.
        num_runs: Number of runs now.
        aligned: Whether the batches of a round have the same bucket.
        drop_last: Whether to leave out incomplete rounds, instead of repeating batches in them.
    """

    def __init__(
        self,
        whole: FirstRounds,
        history: History,
        num_runs: int,
        *,
        aligned: bool,
        drop_last: bool,
    ) -> None:
        self.whole = whole
        num_first = history[0].num_runs
        sequences = [whole.sequence(run) for run in range(num_first)]
        run = np.repeat(np.arange(num_first), [len(rounds) for rounds, _, _ in sequences])
        round_, made_by, number = np.concatenate(sequences, axis=1)
        # In the order in which they are dealt out: run by run, or round by round.
        order = np.lexsort((run, round_)) if aligned else np.arange(len(run))
        self._run, self._number = made_by[order], number[order]
        self._bucket = self._of_batches(whole.own_buckets) if aligned else None
        is_left = (round_ >= history[0].num_read()[run])[order]
        for part in history[1:]:
            dealt = self._dealt(np.flatnonzero(is_left), part.num_runs)
            read = np.arange(len(dealt))[:, None] < part.num_read()
            is_left[dealt[read & (dealt >= 0)]] = False
        self._left = np.flatnonzero(is_left)
        dealt = self._dealt(self._left, num_runs)
        is_complete: BoolArray = np.all(dealt >= 0, axis=1)
        self._rounds = dealt[is_complete] if drop_last else _with_repeated(dealt, is_complete)

    def _of_batches(self, of_run: Callable[[int], IntArray]) -> IntArray:
        """Return what a function returns for all batches of a run, for each batch."""
        found = np.empty(len(self._run), np.int64)
        for run in np.unique(self._run).tolist():
            here = self._run == run
            found[here] = of_run(run)[self._number[here]]
        return found

    def _dealt(self, left: IntArray, num_runs: int) -> IntArray:
        """Return rounds of batches, shape ``(num_rounds, num_runs)``; -1 where a run has none."""
        if self._bucket is not None:
            return _by_bucket(left, self._bucket[left], num_runs)
        return _one_after_another(left, num_runs)

    @cached_property
    def num_rounds(self) -> int:  # noqa: D102 - inherited
        return len(self._rounds)

    @cached_property
    def _surplus(self) -> int:
        lengths = self._of_batches(self.whole.own_lengths)
        return int(lengths[self._rounds].sum()) - int(lengths[self._left].sum())

    def batches(self, run: int, start: int) -> Iterator[list[list[int]]]:  # noqa: D102 - inherited
        dealt = self._rounds[start:, run]
        reader = _Reader(self.whole, self._run[dealt], self._number[dealt])
        wanted = zip(self._run[dealt].tolist(), self._number[dealt].tolist(), strict=True)
        while batches := [reader.batch(*each) for each in islice(wanted, _BLOCK_LENGTH)]:
            yield batches


class _Reader:
    """Reads batches of an epoch, going through each of its runs once.

    Args:
        whole: The batches.
        runs: The run of each batch that will be asked for.
        numbers: Its number there.
    """

    def __init__(self, whole: FirstRounds, runs: IntArray, numbers: IntArray) -> None:
        self._wanted = {run: np.unique(numbers[runs == run]) for run in np.unique(runs).tolist()}
        self._coming = {run: self._from(whole, run, wanted) for run, wanted in self._wanted.items()}
        # What was passed on the way to a later one, and what is asked for more than once.
        self._held: dict[tuple[int, int], list[int]] = {}
        found, counts = np.unique(np.stack((runs, numbers)), axis=1, return_counts=True)
        self._repeated = set(map(tuple, found.T[counts > 1].tolist()))

    @staticmethod
    def _from(whole: FirstRounds, run: int, wanted: IntArray) -> Iterator[tuple[int, list[int]]]:
        first, is_wanted = int(wanted[0]), np.zeros(int(wanted[-1]) + 1, np.bool_)
        is_wanted[wanted] = True
        coming = chain.from_iterable(whole.own_batches(run, first))
        for number, batch in zip(range(first, len(is_wanted)), coming):  # noqa: B905 - one is longer
            if is_wanted[number]:
                yield number, batch

    def batch(self, run: int, number: int) -> list[int]:
        """Return a batch."""
        wanted = (run, number)
        while wanted not in self._held:
            at, batch = next(self._coming[run])
            self._held[run, at] = batch
        return self._held[wanted] if wanted in self._repeated else self._held.pop(wanted)


def _one_after_another(left: IntArray, num_runs: int) -> IntArray:
    edges = run_edges(len(left), num_runs)
    run = np.repeat(np.arange(num_runs), np.diff(edges))
    dealt = np.full((-(-len(left) // num_runs), num_runs), -1)
    dealt[np.arange(len(left)) - edges[run], run] = left
    return dealt


def _by_bucket(left: IntArray, buckets: IntArray, num_runs: int) -> IntArray:
    """Deal out the batches of each bucket; rounds come in the order of their last batches."""
    order = np.argsort(buckets, kind="stable")
    counts = np.bincount(buckets)
    stops = np.cumsum(counts)
    turn = np.arange(len(left)) - np.repeat(stops - counts, counts)
    last = np.flatnonzero(turn % num_runs == num_runs - 1)
    full = order[last[:, None] + np.arange(1 - num_runs, 1)]
    full = full[np.argsort(full[:, -1])]
    rest = counts % num_runs
    incomplete = np.full((np.count_nonzero(rest), num_runs), -1)
    for row, bucket in enumerate(np.flatnonzero(rest)):
        count, stop = int(rest[bucket]), int(stops[bucket])
        has_one = np.diff(run_edges(count, num_runs)) > 0
        incomplete[row, has_one] = left[order[stop - count : stop]]
    return np.concatenate((left[full], incomplete))


def _with_repeated(dealt: IntArray, is_complete: BoolArray) -> IntArray:
    """Return rounds in which a run without a batch repeats that of the nearest run."""
    for number in np.flatnonzero(~is_complete):
        row = dealt[number]  # a view
        filled = np.flatnonzero(row >= 0)
        for run in np.flatnonzero(row < 0).tolist():
            row[run] = row[nearest(run, filled)]
    return dealt
