"""Deal the remaining batches of an epoch out again, after the number of ranks has changed.

Batches stay what they are, whatever is left of the epoch; only their runs are others (ORDER-53).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from typing import Final

import numpy as np

from wids.order.history import History, run_edges
from wids.order.rounds import Rounds, nearest
from wids.storage.array_types import BoolArray, IntArray

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
        self, whole: Rounds, history: History, num_runs: int, *, aligned: bool, drop_last: bool
    ) -> None:
        self._whole = whole
        self._aligned = aligned
        num_first = history[0].num_runs
        own = [whole.own(run) for run in range(num_first)]
        run = np.repeat(np.arange(num_first), [len(numbers) for numbers, *_ in own])
        number, bucket, length = (np.concatenate(parts) for parts in zip(*own, strict=True))
        # In the order in which they are dealt out: run by run, or round by round.
        order = np.lexsort((run, number)) if aligned else np.arange(len(run))
        self._run, self._number, self._bucket, self._length = (
            values[order] for values in (run, number, bucket, length)
        )
        is_left = self._number >= history[0].num_read()[self._run]
        for part in history[1:]:
            dealt = self._dealt(np.flatnonzero(is_left), part.num_runs)
            read = np.arange(len(dealt))[:, None] < part.num_read()
            is_left[dealt[read & (dealt >= 0)]] = False
        left = np.flatnonzero(is_left)
        dealt = self._dealt(left, num_runs)
        is_complete: BoolArray = np.all(dealt >= 0, axis=1)
        self._num_left = int(self._length[left].sum())
        self._rounds = dealt[is_complete] if drop_last else _with_repeated(dealt, is_complete)

    def _dealt(self, left: IntArray, num_runs: int) -> IntArray:
        """Return rounds of batches, shape ``(num_rounds, num_runs)``; -1 where a run has none."""
        if self._aligned:
            return _by_bucket(left, self._bucket[left], num_runs)
        return _one_after_another(left, num_runs)

    @property
    def num_rounds(self) -> int:  # noqa: D102 - inherited
        return len(self._rounds)

    @cached_property
    def _surplus(self) -> int:
        return int(self._length[self._rounds].sum()) - self._num_left

    def batches(self, run: int, start: int) -> Iterator[list[list[int]]]:  # noqa: D102 - inherited
        dealt = self._rounds[start:, run]
        reader = _Reader(self._whole, self._run[dealt], self._number[dealt])
        wanted = zip(self._run[dealt].tolist(), self._number[dealt].tolist(), strict=True)
        batches = [reader.batch(*place) for place in _first(wanted)]
        while batches:
            yield batches
            batches = [reader.batch(*place) for place in _first(wanted)]


def _first(places: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    return [place for _, place in zip(range(_BLOCK_LENGTH), places)]  # noqa: B905 - the rest stays


class _Reader:
    """Reads batches of an epoch, going through each of its runs once.

    Args:
        whole: The batches.
        runs: The run of each batch that will be asked for.
        numbers: Its number there.
    """

    def __init__(self, whole: Rounds, runs: IntArray, numbers: IntArray) -> None:
        self._wanted = {run: np.unique(numbers[runs == run]) for run in np.unique(runs).tolist()}
        self._coming = {run: self._from(whole, run, wanted) for run, wanted in self._wanted.items()}
        # What was passed on the way to a later one, and what is asked for more than once.
        self._held: dict[tuple[int, int], list[int]] = {}
        places, counts = np.unique(np.stack((runs, numbers)), axis=1, return_counts=True)
        self._repeated = set(map(tuple, places.T[counts > 1].tolist()))

    @staticmethod
    def _from(whole: Rounds, run: int, wanted: IntArray) -> Iterator[tuple[int, list[int]]]:
        first, is_wanted = int(wanted[0]), np.zeros(int(wanted[-1]) + 1, np.bool_)
        is_wanted[wanted] = True
        coming = chain.from_iterable(whole.own_batches(run, first))
        for number, batch in zip(range(first, len(is_wanted)), coming):  # noqa: B905 - one is longer
            if is_wanted[number]:
                yield number, batch

    def batch(self, run: int, number: int) -> list[int]:
        """Return a batch."""
        place = (run, number)
        while place not in self._held:
            at, batch = next(self._coming[run])
            self._held[run, at] = batch
        return self._held[place] if place in self._repeated else self._held.pop(place)


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
