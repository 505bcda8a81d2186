"""Deal out the remaining batches of an epoch again after the number of ranks has changed.

The batches stay what they are; only their runs differ (ORDER-53 in specs/sampler-order.md).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain

import numpy as np

from wids.order.elastic import History, Piece, between, cut, length_of, remaining
from wids.order.rounds import DealtRounds, PieceRounds, nearest


class RemainingRounds(PieceRounds):
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
        self._runs = cut(remaining(whole.sequences(), history), num_runs)
        lengths = np.array([length_of(run) for run in self._runs])
        # They differ by at most one.
        self.num_rounds = int(lengths.min() if drop_last else lengths.max())
        self._short = np.flatnonzero(lengths < self.num_rounds).tolist()
        self._filled = np.flatnonzero(lengths == self.num_rounds)

    def own_batches(self, run: int, start: int) -> Iterator[list[list[int]]]:  # noqa: D102 - inherited
        return self.whole.own_batches(run, start)

    def _pieces(self, run: int) -> list[Piece]:
        return self._runs[run] + ([self._of_nearest(run)] if run in self._short else [])

    def _of_nearest(self, run: int) -> Piece:
        """Return the last batch of the nearest run that has one there."""
        source, _, stop = self._runs[nearest(run, self._filled)][-1]
        return Piece(source, stop - 1, stop)

    @property
    def _repeated(self) -> Iterator[Piece]:
        return map(self._of_nearest, self._short)

    @property
    def _left_out(self) -> Iterator[Piece]:
        return chain.from_iterable(between(run, self.num_rounds, sys.maxsize) for run in self._runs)
