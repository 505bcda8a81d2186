"""Compute what is left of an epoch after parts of it were read on other numbers of ranks.

An epoch is read in *parts*: a new one begins when a job resumes on another number of ranks. What a
part has left, in order, is cut into the runs of the next part. So what is left after any parts is a
few ranges of positions in the order with which the epoch began, whatever its length. ORDER-50 to
ORDER-52 in specs/sampler-order.md specify it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wids.order.arguments import at_least
from wids.storage.array_types import IntArray


@dataclass(frozen=True)
class Part:
    """What a job has read of an epoch on one number of ranks.

    Attributes:
        num_replicas: Number of ranks.
        num_runs: Number of runs that the part was cut into, a multiple of the ranks.
        steps: Number of items that each rank has read.
    """

    num_replicas: int
    num_runs: int
    steps: int

    @classmethod
    def from_json(cls, entry: Any) -> Part:
        """Return a part from its entry in a state.

        Raises:
            ValueError: It is no such entry.
        """
        if not isinstance(entry, list | tuple) or not 2 <= len(entry) <= 3:
            raise ValueError(f"history: expected [ranks, steps] of each part, found {entry!r:.80}")
        num_replicas = at_least(1, entry[0], "number of ranks in the history")
        num_runs = at_least(1, (*entry, num_replicas)[2], "number of runs in the history")
        if num_runs % num_replicas:
            raise ValueError(f"history: expected a multiple of {num_replicas} runs in {entry!r}")
        return cls(num_replicas, num_runs, at_least(0, entry[1], "steps in the history"))

    @property
    def json(self) -> list[int]:
        """Its entry in a state; the number of runs is stated where it is not that of the ranks."""
        same = self.num_runs == self.num_replicas
        return [self.num_replicas, self.steps, *([] if same else [self.num_runs])]

    @property
    def position(self) -> int:
        """Number of items that all ranks together have read."""
        return self.steps * self.num_replicas

    def num_read(self, lengths: IntArray | None = None) -> IntArray:
        """Return how many items of each run were read; a rank reads its runs in turn.

        Args:
            lengths: Length of each run, where a run that is shorter has no turn in the last round;
                None if all runs have the same number of turns.
        """
        width = self.num_runs // self.num_replicas
        turns = np.arange(self.num_runs) % width
        num_read = self.steps // width + (turns < self.steps % width)
        if lengths is None or not len(lengths):
            return num_read
        rounds = int(lengths.min())
        if self.steps > width * rounds:
            is_long = (lengths > rounds).reshape(self.num_replicas, width)
            has_had_turn = is_long & (np.cumsum(is_long, axis=1) <= self.steps - width * rounds)
            num_read = rounds + has_had_turn.ravel()
        return num_read


History = tuple[Part, ...]
"""The parts of an epoch that were read before, on other numbers of ranks."""


@dataclass(frozen=True)
class Place:
    """A place in an epoch, from which a rank reads on.

    Attributes:
        epoch: The epoch.
        position: Number of items that the rank has read of its latest part.
        history: The parts before it.
    """

    epoch: int
    position: int = 0
    history: History = ()

    def __add__(self, num_items: int) -> Place:
        """Return the place after some more items."""
        return replace(self, position=self.position + num_items)

    @property
    def num_earlier(self) -> int:
        """Number of items that a rank has read in the parts before."""
        return sum(part.steps for part in self.history)


def resumed(epoch: int, parts: Iterable[Part], num_replicas: int, num_runs: int) -> Place:
    """Return the place from which a rank continues an epoch.

    Args:
        epoch: The epoch.
        parts: What was read of it; the last part may continue.
        num_replicas: Number of ranks that there are now.
        num_runs: Number of runs that they cut a part into.
    """
    read = [part for part in parts if part.steps]
    if not read:
        return Place(epoch)
    last = read[-1]
    # Runs that all were read equally far are the same runs on any number of ranks that divides
    # them.
    is_same = last.num_replicas == num_replicas or last.position % num_runs == 0
    if last.num_runs == num_runs and is_same:
        return Place(epoch, last.position // num_replicas, tuple(read[:-1]))
    return Place(epoch, 0, tuple(read))


def run_edges(length: int, num_runs: int) -> IntArray:
    """Return where each run of a sequence begins, and where the last one ends (ORDER-1)."""
    # Python's integers, since the products may exceed 64 bits.
    return np.array([length * run // num_runs for run in range(num_runs + 1)], np.int64)


@dataclass(frozen=True, eq=False)
class Ranges:
    """A sequence of positions: ascending ranges, one after another.

    Attributes:
        starts: First position of each range.
        stops: Position after its last; ranges are not empty, and do not overlap.
    """

    starts: IntArray
    stops: IntArray

    @classmethod
    def whole(cls, length: int) -> Ranges:
        """Return all positions below ``length``."""
        return cls(np.zeros(min(length, 1), np.int64), np.full(min(length, 1), length, np.int64))

    def __len__(self) -> int:
        return int((self.stops - self.starts).sum())

    def between(self, starts: IntArray, stops: IntArray) -> Ranges:
        """Return what lies in some slices of the sequence, which ascend and do not overlap."""
        filled = starts < stops
        starts, stops = starts[filled], stops[filled]
        ends = np.cumsum(self.stops - self.starts)
        # Cut at each boundary of both, so that each piece is in one range, and in one slice or
        # none.
        edges = np.unique(np.concatenate(([0], ends, starts, stops)))
        pieces = edges[:-1]
        at = np.searchsorted(starts, pieces, side="right") - 1
        inside = at >= 0
        inside[inside] = pieces[inside] < stops[at[inside]]
        pieces, lengths = pieces[inside], np.diff(edges)[inside]
        number = np.searchsorted(ends, pieces, side="right")
        first = self.stops[number] - (ends[number] - pieces)
        return _joined(first, first + lengths)

    def after(self, edges: IntArray, num_read: IntArray) -> Ranges:
        """Return the tails of runs, one after another.

        Args:
            edges: Where each run begins in the sequence, and where the last one ends.
            num_read: Number of items that were read of each run.
        """
        return self.between(np.minimum(edges[:-1] + num_read, edges[1:]), edges[1:])


def _joined(starts: IntArray, stops: IntArray) -> Ranges:
    """Return ascending ranges, with neighbours joined."""
    begins = np.ones(len(starts), np.bool_)
    begins[1:] = starts[1:] != stops[:-1]
    return Ranges(starts[begins], stops[np.roll(begins, -1)])
