"""Compute the indices that each run of a mixed epoch reads from several weighted sources.

Each run follows the pattern of `wids.order.pattern`, which says whose turn it is, and goes through
its share of each source in passes, in the order of `wids.order.epoch_order`. Any position is
computed without those in front of it. All functions are pure functions of numbers. ORDER-20 to
ORDER-26 in specs/sampler-order.md specify them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from wids.order import epoch_order
from wids.order.chunks import Chunks, chunk_edges, touched
from wids.order.pattern import Pattern, pattern
from wids.storage.array_types import IntArray

_BLOCK_LENGTH: Final = 1 << 13
"""Draws in a block: enough for numpy, few enough for the first index to come at once."""


@dataclass(frozen=True, eq=False)
class Source:
    """The indices of one dataset among several.

    Attributes:
        name: Its name.
        ranges: Start and stop of the ranges that have its indices, ascending; shape ``(m, 2)``.
    """

    name: str
    ranges: IntArray

    @cached_property
    def lengths(self) -> IntArray:
        """Number of indices in each range."""
        return self.ranges[:, 1] - self.ranges[:, 0]

    @cached_property
    def num_samples(self) -> int:
        """Number of indices."""
        return int(self.lengths.sum())

    @cached_property
    def _pieces(self) -> tuple[IntArray, IntArray]:
        """Where pieces without a gap end in the source, and what to add to their places."""
        lengths = self.lengths
        filled = lengths > 0
        ends = np.cumsum(lengths)
        shifts = (self.ranges[:, 1] - ends)[filled]
        is_last = np.diff(shifts, append=-1) != 0
        is_last[-1:] = True
        return ends[filled][is_last], shifts[is_last]

    def shards(self, lengths: IntArray) -> IntArray:
        """Return the shard that each range lies in, by the lengths of all shards."""
        shards: IntArray = np.searchsorted(np.cumsum(lengths), self.ranges[:, 0], side="right")
        # An empty range may stand at the very end.
        return np.minimum(shards, len(lengths) - 1)

    def indices(self, places: IntArray) -> IntArray:
        """Return the indices at some places of the source."""
        ends, shifts = self._pieces
        low, high = np.searchsorted(ends, (places.min(), places.max()), side="right")
        if low == high:  # nearly always: a chunk that no gap cuts
            shifted: IntArray = places + shifts[low]
            return shifted
        return places + shifts[np.searchsorted(ends, places, side="right")]


@dataclass(frozen=True, eq=False)
class Mix:
    """What a mixed order depends on besides seed, epoch, rank and position.

    Attributes:
        lengths: Number of samples in each shard of the dataset.
        sources: The sources; none is empty.
        draws: How many draws of the period each has.
        length: Number of indices that each run yields in an epoch.
        chunksize: Largest number of indices in a chunk.
        shuffle: Whether anything is shuffled.
        num_runs: Number of runs that the epoch is cut into, ``C`` in the specification.
    """

    lengths: IntArray
    sources: tuple[Source, ...]
    draws: tuple[int, ...]
    length: int
    chunksize: int | None
    shuffle: bool = True
    num_runs: int = 1

    @property
    def num_indices(self) -> int:
        """Number of indices in the epoch."""
        return self.length * self.num_runs

    @property
    def num_mixed(self) -> int:
        """Number of samples from which the next index of each run is drawn, on average."""
        return sum(
            self.settings(number, self.num_runs).num_mixed for number in range(len(self.sources))
        )

    @property
    def pattern(self) -> Pattern:
        """Whose turn it is at each draw."""
        return pattern(self.draws)

    def chunk_shards(
        self, chunksize: int | None, lengths: IntArray
    ) -> list[tuple[IntArray, IntArray, IntArray]]:
        """Return what the chunks of each source touch, as in `epoch_order.Order`."""
        found = []
        for source in self.sources:
            filled = source.lengths > 0
            edges = chunk_edges(source.lengths, 0, source.num_samples, chunksize)
            shards = source.shards(lengths)[filled]
            found.append((shards, *touched(edges, source.lengths[filled])))
        return found

    def run_length(self, run: int) -> int:  # noqa: ARG002 - all are equally long
        """Return the number of indices that a run yields."""
        return self.length

    def runs(self, seed: int, epoch: int, numbers: range) -> Iterator[MixedRun]:
        """Yield some of the runs of an epoch."""
        return (MixedRun(self, seed, epoch, number) for number in numbers)

    def settings(self, number: int, num_runs: int = 1) -> epoch_order.Settings:
        """Return the settings of the passes over a source."""
        source = self.sources[number]
        return epoch_order.Settings(
            source.lengths, 0, source.num_samples, self.chunksize, self.shuffle, num_runs=num_runs
        )


@dataclass(frozen=True, eq=False)
class MixedRun:
    """One run of an epoch.

    Attributes:
        mix: What is mixed.
        seed: Seed of the order.
        epoch: The epoch.
        number: The number of the run.
    """

    mix: Mix
    seed: int
    epoch: int
    number: int

    def blocks(self, position: int) -> Iterator[IntArray]:
        """Yield the indices from a position in the run on, in arrays."""
        mix, start = self.mix, self._start
        first = start + self.epoch * mix.length + position
        stop = start + (self.epoch + 1) * mix.length
        streams = [
            _Stream(self._passes(source, draw)) for source, draw in enumerate(self._drawn(first))
        ]
        while first < stop:
            last = min(first + _BLOCK_LENGTH, stop)
            sources = mix.pattern.draws(first, last)
            block = np.empty(last - first, np.int64)
            for source, stream in enumerate(streams):
                places = np.flatnonzero(sources == source)
                block[places] = stream.take(len(places))
            yield block
            first = last

    def visits(self, lengths: IntArray) -> IntArray:
        """Return the shards that are read, source by source (see `epoch_order.visits`)."""
        mix, first = self.mix, self._start + self.epoch * self.mix.length
        found = [np.empty(0, np.int64)]
        draws = zip(self._drawn(first), self._drawn(first + mix.length), strict=True)
        for number, (start, stop) in enumerate(draws):
            source = mix.sources[number]
            read = [
                epoch_order.SlicedRun(chunks, offset, min(offset + stop - draw, size), None).visits(
                    source.lengths
                )
                for chunks, size, offset, draw in self._shares(number, start, stop)
            ]
            ranges = np.concatenate([np.empty(0, np.int64), *read])
            ranges = ranges[np.diff(ranges, prepend=-1) != 0]
            found.append(source.shards(lengths)[ranges])
        return np.concatenate(found)

    @property
    def _start(self) -> int:
        return self.mix.pattern.start(self.number, self.mix.num_runs)

    def _drawn(self, draw: int) -> list[int]:
        """Return how often the run has drawn each source before a draw of the pattern."""
        counts = self.mix.pattern.counts
        pairs = zip(counts(self._start), counts(draw), strict=True)
        return [after - before for before, after in pairs]

    def _passes(self, source: int, draw: int) -> Iterator[IntArray]:
        """Yield the indices of a source from a draw on; never ends."""
        indices = self.mix.sources[source].indices
        for chunks, size, offset, _ in self._shares(source, draw, None):
            for block in chunks.blocks(offset, size):
                yield indices(block)

    def _shares(
        self, source: int, draw: int, stop: int | None
    ) -> Iterator[tuple[Chunks, int, int, int]]:
        """Yield what the run has of each pass of a source (ORDER-24), from a draw to another.

        Yields:
            The chunks, their number of samples, how many of these were already drawn, and the
            number of the first draw that is left.
        """
        settings = self.mix.settings(source)
        n, num_runs, run = settings.num_indices, self.mix.num_runs, self.number
        number = ((draw + 1) * num_runs - run - 1) // n
        while stop is None or draw < stop:
            before, after = (((number + more) * n + run) // num_runs for more in (0, 1))
            if (
                draw < after
            ):  # a run may have nothing of a pass, if there are more runs than samples
                start, end = (
                    _in_earlier_runs((number + 1) * n, num_runs, other)
                    - _in_earlier_runs(number * n, num_runs, other)
                    for other in (run, run + 1)
                )
                key = source * num_runs + run
                chunks = epoch_order.shuffled_chunks(settings, self.seed, number, key, start, end)
                yield chunks, end - start, draw - before, draw
                draw = after
            number += 1


def _in_earlier_runs(num_samples: int, num_runs: int, run: int) -> int:
    """Return how many samples of a source all earlier runs have together.

    It is the sum of ``(num_samples + r) // num_runs`` for each ``r`` below ``run``, in closed form.
    """
    each, rest = divmod(num_samples, num_runs)
    return run * each + max(0, rest + run - num_runs)


class _Stream:
    """A stream of arrays, from which any number of values can be taken at a time."""

    def __init__(self, blocks: Iterator[IntArray]) -> None:
        self._blocks = blocks
        self._rest: IntArray = np.empty(0, np.int64)

    def take(self, count: int) -> IntArray:
        """Return the next values."""
        parts = [self._rest]
        missing = count - len(self._rest)
        while missing > 0:
            parts.append(next(self._blocks))
            missing -= len(parts[-1])
        joined = np.concatenate(parts) if len(parts) > 1 else parts[0]
        self._rest = joined[count:]
        return joined[:count]
