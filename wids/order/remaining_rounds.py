"""Deal out the remaining batches of an epoch again after the number of ranks has changed.

The batches stay what they are; only their runs differ (ORDER-53 in specs/sampler-order.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import chain, islice
from typing import Final

import numpy as np

from wids.order.elastic import History, run_edges
from wids.order.rounds import DealtRounds, Rounds, nearest
from wids.storage.arrays import BoolArray, IntArray

_BLOCK_LENGTH: Final = 64
"""Batches that are returned at a time."""


class RemainingRounds(Rounds):
    """What is left of the batches of an epoch, in rounds of another number of runs.

    Args:
        whole: The batches of the epoch, with the runs with which it began.
        history: The parts that were read; at least one.
        num_runs: Number of runs now.
        drop_last: Whether to leave out incomplete rounds, instead of repeating batches in them.
    """

    def __init__(
        self, whole: DealtRounds, history: History, num_runs: int, *, drop_last: bool
    ) -> None:
        self.whole = whole
        num_first = history[0].num_runs
        sequences = [whole.sequence(run) for run in range(num_first)]
        run = np.repeat(np.arange(num_first), [len(rounds) for rounds, _, _ in sequences])
        # The run that made each batch, and its number there; run by run, as they are dealt out.
        round_, self._run, self._number = np.concatenate(sequences, axis=1)
        remaining = np.flatnonzero(round_ >= history[0].num_read()[run])
        for part in history[1:]:
            dealt = _dealt(remaining, part.num_runs)
            is_read = np.arange(len(dealt))[:, None] < part.num_read()
            remaining = np.setdiff1d(remaining, dealt[is_read], assume_unique=True)
        self._remaining = remaining
        dealt = _dealt(remaining, num_runs)
        is_complete: BoolArray = np.all(dealt >= 0, axis=1)
        self._rounds = dealt[is_complete] if drop_last else _with_repeated(dealt, is_complete)

    @cached_property
    def num_rounds(self) -> int:  # noqa: D102 - inherited
        return len(self._rounds)

    @cached_property
    def _surplus(self) -> int:
        lengths = np.empty(len(self._run), np.int64)
        for run in np.unique(self._run).tolist():
            is_of_run = self._run == run
            lengths[is_of_run] = self.whole.own_lengths(run)[self._number[is_of_run]]
        return int(lengths[self._rounds].sum()) - int(lengths[self._remaining].sum())

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

    def __init__(self, whole: DealtRounds, runs: IntArray, numbers: IntArray) -> None:
        self._wanted = {run: np.unique(numbers[runs == run]) for run in np.unique(runs).tolist()}
        self._coming = {run: self._from(whole, run, wanted) for run, wanted in self._wanted.items()}
        # What was passed on the way to a later one, and what is asked for more than once.
        self._held: dict[tuple[int, int], list[int]] = {}
        found, counts = np.unique(np.stack((runs, numbers)), axis=1, return_counts=True)
        self._repeated = set(map(tuple, found.T[counts > 1].tolist()))

    @staticmethod
    def _from(whole: DealtRounds, run: int, wanted: IntArray) -> Iterator[tuple[int, list[int]]]:
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


def _dealt(batches: IntArray, num_runs: int) -> IntArray:
    """Return rounds of batches, shape ``(num_rounds, num_runs)``; -1 where a run has none."""
    edges = run_edges(len(batches), num_runs)
    run = np.repeat(np.arange(num_runs), np.diff(edges))
    dealt = np.full((-(-len(batches) // num_runs), num_runs), -1)
    dealt[np.arange(len(batches)) - edges[run], run] = batches
    return dealt


def _with_repeated(dealt: IntArray, is_complete: BoolArray) -> IntArray:
    """Return rounds in which a run without a batch repeats that of the nearest run."""
    for number in np.flatnonzero(~is_complete):
        row = dealt[number]  # a view
        filled = np.flatnonzero(row >= 0)
        for run in np.flatnonzero(row < 0).tolist():
            row[run] = row[nearest(run, filled)]
    return dealt
