"""Compute the indices that each run of a mixed epoch reads from several weighted sources.

Each run follows a pattern, which says whose turn it is, and goes through its share of each source
in passes, in the order of `wids.order.epoch_order`. The pattern repeats after a period, which is
tabulated once; draws and counts are looked up in the table. So any position is computed without the
preceding ones. Where weights change, another pattern begins, and the passes continue. All of this
is pure functions of numbers. ORDER-20 to ORDER-26 and ORDER-29 in specs/sampler-order.md specify
them.
"""

from __future__ import annotations

import heapq
import math
import numbers
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wids.order import epoch_order
from wids.order.epoch_order import Chunks, chunk_edges, touched
from wids.storage.arrays import IntArray

MAX_PERIOD: Final = 1 << 20
"""Longest period. It takes half a second to tabulate, and represents six decimals exactly."""


def checked_weight(weight: Any, name: str) -> Fraction:
    """Return the fraction that a weight stands for.

    Raises:
        ValueError: It is negative, infinite or not a number.
    """
    is_number = isinstance(weight, numbers.Real) and not isinstance(weight, bool)
    # `not <=` also refuses NaN.
    if not is_number or not 0 <= weight < math.inf:
        raise ValueError(
            f"{name}: expected a number of at least 0, found {weight!r:.80}; 0 draws nothing from "
            "a dataset"
        )
    if isinstance(weight, numbers.Rational):
        return Fraction(int(weight.numerator), int(weight.denominator))
    exact = Fraction(float(weight))
    simple = exact.limit_denominator(MAX_PERIOD)
    # 0.1 means a tenth, not the binary fraction nearest to it.
    return simple if float(simple) == float(weight) else exact


def draws_per_period(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Return how many draws of the period each source has (ORDER-20)."""
    total = sum(weights)
    shares = [weight / total for weight in weights]
    period = math.lcm(*(share.denominator for share in shares))
    if period <= MAX_PERIOD:
        return tuple(int(share * period) for share in shares)
    nearest = (math.floor(share * MAX_PERIOD + Fraction(1, 2)) for share in shares)
    draws = [max(own, int(share > 0)) for own, share in zip(nearest, shares, strict=True)]
    draws[draws.index(max(draws))] += MAX_PERIOD - sum(draws)
    return tuple(draws)


@dataclass(frozen=True, eq=False)
class Pattern:
    """The sources of all draws.

    Attributes:
        sources: The source of each draw of the period.
        starts: The draws of the period at which a run may start, ascending.
        num_sources: Number of sources.
    """

    sources: npt.NDArray[np.unsignedinteger[Any]]
    starts: IntArray
    num_sources: int

    def start(self, run: int, num_runs: int) -> int:
        """Return the draw at which a run starts (ORDER-22)."""
        wanted = len(self.sources) * run // num_runs
        place = int(np.searchsorted(self.starts, wanted))
        return int(self.starts[place]) if place < len(self.starts) else 0

    def draws(self, start: int, stop: int) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Return the sources of draws ``start`` to ``stop``."""
        first = start % len(self.sources)
        last = first + stop - start
        if last <= len(self.sources):
            return self.sources[first:last]
        # Not `take(mode="wrap")`, which subtracts the length repeatedly.
        return self.sources[np.arange(first, last) % len(self.sources)]

    @cached_property
    def _draws_of(self) -> list[IntArray]:
        """The draws of the period that each source has."""
        counts = np.bincount(self.sources, minlength=self.num_sources)
        return np.split(np.argsort(self.sources, kind="stable"), np.cumsum(counts)[:-1])

    def count(self, source: int, num_draws: int) -> int:
        """Return how many of the first draws one source has."""
        own = self._draws_of[source]
        num_periods, rest = divmod(num_draws, len(self.sources))
        return num_periods * len(own) + int(np.searchsorted(own, rest))

    def draw(self, source: int, number: int) -> int:
        """Return the draw that is number 0, 1, … of a source."""
        own = self._draws_of[source]
        num_periods, rest = divmod(number, len(own))
        return num_periods * len(self.sources) + int(own[rest])


@lru_cache(maxsize=32)
def pattern(draws: tuple[int, ...]) -> Pattern:
    """Return the pattern of sources with these numbers of draws per period (ORDER-21)."""
    there = [source for source, count in enumerate(draws) if count]
    sources = np.array(there, np.min_scalar_type(len(draws)))[
        _tabulated([draws[source] for source in there])
    ]
    return Pattern(sources, _possible_starts(sources, draws), len(draws))


def _tabulated(draws: Sequence[int]) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Return the source of each draw of the period: of those allowed, the one that is due first."""
    num_sources, period = len(draws), sum(draws)
    twice = max(1, 2 * num_sources - 2)
    allowed, ranked = [], []
    for source, count in enumerate(draws):
        j = np.arange(count, dtype=np.int64)
        allowed.append(-(-period * (twice * j + 1) // (twice * count)) - 1)
        due = period * (twice * (j + 1) - 1) // (twice * count)
        ranked.append(due * num_sources + source)  # one number, so that the heap compares numbers
    starts = np.concatenate(allowed)
    order = np.argsort(starts, kind="stable")
    waiting = np.concatenate(ranked)[order].tolist()
    num_allowed = np.searchsorted(starts[order], np.arange(period), side="right").tolist()
    heap: list[int] = []
    drawn, pushed = [], 0
    for stop in num_allowed:
        for job in waiting[pushed:stop]:
            heapq.heappush(heap, job)
        pushed = stop
        drawn.append(heapq.heappop(heap))
    sources = np.array(drawn, np.int64) % num_sources
    return sources.astype(np.min_scalar_type(num_sources))


def _possible_starts(
    sources: npt.NDArray[np.unsignedinteger[Any]], draws: tuple[int, ...]
) -> IntArray:
    """Return the draws from which all counts stay within 1 of their shares (ORDER-22)."""
    period = len(sources)
    is_possible = np.ones(period, bool)
    for source, count in enumerate(draws):
        before = np.append(0, np.cumsum(sources == source)[:-1])
        deviations = before * period - np.arange(period) * count
        lowest, highest = deviations.min(), deviations.max()
        is_possible &= (highest - deviations < period) & (deviations - lowest < period)
    return np.flatnonzero(is_possible)


Schedule = tuple[tuple[int, tuple[int, ...]], ...]
"""How many draws of the period each source has, from a number of samples of the job on."""


class Turns:
    """Whose turn it is at each draw of each run, in the phases of a schedule (ORDER-29).

    Args:
        schedule: The schedule.
        num_runs: Number of runs.
    """

    def __init__(self, schedule: Schedule, num_runs: int) -> None:
        self._num_runs = num_runs
        # Of phases that begin with the same draw, the last.
        phases = {-(-num_samples // num_runs): draws for num_samples, draws in schedule}
        self._firsts, self._draws = list(phases), list(phases.values())
        self._known: dict[int, list[list[int]]] = {}

    def sources(self, run: int, start: int, stop: int) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Return the sources of draws ``start`` to ``stop`` of a run, or to the end of a phase."""
        at, pattern, shift = self._phase(run, bisect_right(self._firsts, start) - 1)
        return pattern.draws(start + shift, min([stop, *self._firsts[at + 1 : at + 2]]) + shift)

    def count(self, run: int, source: int, draw: int) -> int:
        """Return how often a run has drawn a source before a draw."""
        at = bisect_right(self._firsts, draw) - 1
        return self._counts(run)[at][source] + self._count(run, source, at, draw)

    def draw(self, run: int, source: int, number: int) -> int:
        """Return the draw of a run that is number 0, 1, … of a source, which must have it."""
        counts = [each[source] for each in self._counts(run)]
        at, pattern, shift = self._phase(run, bisect_right(counts, number) - 1)
        first = pattern.count(source, self._firsts[at] + shift)
        return pattern.draw(source, first + number - counts[at]) - shift

    def _phase(self, run: int, at: int) -> tuple[int, Pattern, int]:
        """Return a phase, its pattern, and what to add to draws of a run for those of it."""
        found = pattern(self._draws[at])
        return at, found, found.start(run, self._num_runs) - self._firsts[at]

    def _count(self, run: int, source: int, at: int, stop: int) -> int:
        """Return how often a run has drawn a source in a phase before a draw."""
        _, pattern, shift = self._phase(run, at)
        first = pattern.count(source, self._firsts[at] + shift)
        return pattern.count(source, stop + shift) - first

    def _counts(self, run: int) -> list[list[int]]:
        """Return how often a run has drawn each source before each phase."""
        if run not in self._known:
            num_sources = len(self._draws[0])
            counts = [[0] * num_sources]
            for at, (_, stop) in enumerate(pairwise(self._firsts)):
                more = (self._count(run, source, at, stop) for source in range(num_sources))
                counts.append([a + b for a, b in zip(counts[-1], more, strict=True)])
            self._known[run] = counts
        return self._known[run]


turns = lru_cache(maxsize=8)(Turns)
"""The turns of a schedule; the latest are kept."""


_BLOCK_LENGTH: Final = 1 << 13
"""Draws in a block: enough for numpy, few enough for the first index to come at once."""

_NUM_KEPT: Final = 256
"""Runs that are kept of an epoch, for look-ups in many of them."""


@dataclass(frozen=True, eq=False)
class Source:
    """The indices of one dataset among several.

    Attributes:
        name: Its name.
        ranges: Start and stop of the ranges that have its indices, ascending; shape ``(m, 2)``.
    """

    name: str
    ranges: IntArray

    def __reduce__(self) -> Any:
        # By differences, which are mostly alike: they are compressed to a few bytes.
        return _from_steps, (self.name, np.diff(self.ranges.ravel(), prepend=0))

    @cached_property
    def lengths(self) -> IntArray:
        """Number of indices in each range."""
        return self.ranges[:, 1] - self.ranges[:, 0]

    @cached_property
    def num_samples(self) -> int:
        """Number of indices."""
        return int(self.lengths.sum())

    @cached_property
    def _ends(self) -> IntArray:
        """Where each range ends in the source."""
        return np.cumsum(self.lengths)

    def shards(self, lengths: IntArray) -> IntArray:
        """Return the shard that each range lies in, by the lengths of all shards."""
        shards: IntArray = np.searchsorted(np.cumsum(lengths), self.ranges[:, 0], side="right")
        # An empty range may stand at the very end.
        return np.minimum(shards, len(lengths) - 1)

    def place(self, index: int) -> int | None:
        """Return the place of an index in the source; None if another source has it."""
        at = int(np.searchsorted(self.ranges[:, 0], index, side="right")) - 1
        if at < 0 or index >= self.ranges[at, 1]:
            return None
        return int(self._ends[at] - self.ranges[at, 1] + index)

    def indices(self, places: IntArray) -> IntArray:
        """Return the indices at some places of the source."""
        low, high = np.searchsorted(self._ends, (places.min(), places.max()), side="right")
        shifts = self.ranges[low : high + 1, 1] - self._ends[low : high + 1]
        shift: Any = shifts[0]
        if shift != shifts[-1]:  # hardly ever: a gap cuts a chunk
            shift = shifts[np.searchsorted(self._ends, places, side="right") - low]
        indices: IntArray = places + shift
        return indices


def _from_steps(name: str, steps: IntArray) -> Source:
    return Source(name, np.cumsum(steps).reshape(-1, 2))


@dataclass(frozen=True, eq=False)
class Mix:
    """What a mixed order depends on besides seed, epoch, rank and position.

    Attributes:
        lengths: Number of samples in each shard of the dataset.
        sources: The sources; none is empty.
        schedule: How many draws of the period each has, in each phase.
        length: Number of indices that each run yields in an epoch.
        chunksize: Largest number of indices in a chunk.
        shuffle: Whether anything is shuffled.
        num_runs: Number of runs that the epoch is cut into, ``C`` in the specification.
    """

    lengths: IntArray
    sources: tuple[Source, ...]
    schedule: Schedule
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
    def turns(self) -> Turns:
        """Whose turn it is at each draw."""
        return turns(self.schedule, self.num_runs)

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

    def of_epoch(self, seed: int, epoch: int) -> MixedRuns:
        """Return the runs of an epoch."""
        return MixedRuns(self, seed, epoch)

    def edge(self, source: int, number: int, run: int) -> int:
        """Return where the slice of a run starts in a pass of a source (ORDER-24)."""
        n = self.sources[source].num_samples
        before, after = (
            _in_earlier_runs(passes * n, self.num_runs, run) for passes in (number, number + 1)
        )
        return after - before

    def settings(self, number: int, num_runs: int = 1) -> epoch_order.OrderSettings:
        """Return the settings of the passes over a source."""
        source = self.sources[number]
        return epoch_order.OrderSettings(
            source.lengths, 0, source.num_samples, self.chunksize, self.shuffle, num_runs=num_runs
        )

    def chunks(self, seed: int, run: int, source: int, number: int) -> Chunks:
        """Return what a run has of a pass of a source, in the order of its draws (ORDER-25)."""
        bounds = (self.edge(source, number, other) for other in (run, run + 1))
        key = source * self.num_runs + run
        return epoch_order.shuffled_chunks(self.settings(source), seed, number, key, *bounds)


@dataclass(frozen=True, eq=False)
class MixedRuns:
    """The runs of an epoch.

    Attributes:
        mix: What is mixed.
        seed: Seed of the order.
        epoch: The epoch.
    """

    mix: Mix
    seed: int
    epoch: int

    @cached_property
    def run(self) -> Callable[[int], MixedRun]:
        """The runs, by their numbers; the latest are kept."""
        return lru_cache(maxsize=_NUM_KEPT)(partial(MixedRun, self.mix, self.seed, self.epoch))

    def positions(self, index: int) -> Iterator[tuple[int, int]]:
        """Yield the runs that have an index, and its positions there."""
        mix, runs = self.mix, range(self.mix.num_runs)
        first = self.epoch * mix.length
        # In each phase, the counts of two runs differ by at most 1: both are next to their share.
        most = len(mix.schedule)
        for source, own in enumerate(mix.sources):
            offset = own.place(index)
            if offset is None:
                continue
            low, high = (mix.turns.count(0, source, draw) for draw in (first, first + mix.length))
            low, high = max(0, low - most) * len(runs), (high + most) * len(runs)
            for number in range(low // own.num_samples, high // own.num_samples + 1):
                edge = partial(mix.edge, source, number)
                run = self.run(bisect_right(runs, offset, key=edge) - 1)
                position = run.position(source, number, offset)
                if position is not None:
                    yield run.number, position


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
        mix, first = self.mix, self.first + position
        stop = self.first + mix.length
        drawn = self._drawn(first)
        length = 1  # a look-up needs one index
        while first < stop:
            sources = mix.turns.sources(self.number, first, min(first + length, stop))
            block = np.empty(len(sources), np.int64)
            for source, start in enumerate(drawn):
                places = np.flatnonzero(sources == source)
                if len(places):
                    drawn[source] += len(places)
                    block[places] = self._indices(source, start, drawn[source])
            yield block
            first += len(block)
            length = _BLOCK_LENGTH

    def _indices(self, source: int, start: int, stop: int) -> IntArray:
        """Return the indices of a source from a draw to another."""
        found = [
            block
            for chunks, size, offset, draw in self._shares(source, start, stop)
            for block in chunks.blocks(offset, min(offset + stop - draw, size))
        ]
        places = np.concatenate(found) if len(found) > 1 else found[0]
        return self.mix.sources[source].indices(places)

    def visits(self, lengths: IntArray) -> IntArray:
        """Return the shards that are read, source by source (see `epoch_order.visits`)."""
        mix, first = self.mix, self.first
        visited_shards = [np.empty(0, np.int64)]
        draws = zip(self._drawn(first), self._drawn(first + mix.length), strict=True)
        for number, (start, stop) in enumerate(draws):
            source = mix.sources[number]
            pieces = (
                (chunks, offset, min(offset + stop - draw, size))
                for chunks, size, offset, draw in self._shares(number, start, stop)
            )
            ranges = epoch_order.visits_of(pieces, source.lengths)
            visited_shards.append(source.shards(lengths)[ranges])
        return np.concatenate(visited_shards)

    def position(self, source: int, number: int, offset: int) -> int | None:
        """Return where a pass of a source has one of its samples; None if not in this epoch."""
        turns, run = self.mix.turns, self.number
        start, stop = (
            turns.count(run, source, draw) for draw in (self.first, self.first + self.mix.length)
        )
        drawn = self.first_draw(source, number)
        if start >= self.first_draw(source, number + 1) or stop <= drawn:
            return None
        drawn += self.chunks(source, number).position(offset)
        return turns.draw(run, source, drawn) - self.first if start <= drawn < stop else None

    @property
    def first(self) -> int:
        """The draw with which the epoch begins."""
        return self.epoch * self.mix.length

    def _drawn(self, draw: int) -> list[int]:
        """Return how often the run has drawn each source before a draw."""
        sources = range(len(self.mix.sources))
        return [self.mix.turns.count(self.number, source, draw) for source in sources]

    def _shares(self, source: int, draw: int, stop: int) -> Iterator[tuple[Chunks, int, int, int]]:
        """Yield what the run has of each pass of a source (ORDER-24), from a draw to another.

        Yields:
            The chunks, their number of samples, how many of these were already drawn, and the
            number of the first draw that is left.
        """
        number = self.pass_of(source, draw)
        while draw < stop:
            before, after = self.first_draw(source, number), self.first_draw(source, number + 1)
            # A run may have nothing of a pass, if there are more runs than samples.
            if draw < after:
                yield self.chunks(source, number), after - before, draw - before, draw
                draw = after
            number += 1

    def pass_of(self, source: int, draw: int) -> int:
        """Return the pass that a draw of a source belongs to (ORDER-24)."""
        return ((draw + 1) * self.mix.num_runs - self.number - 1) // self.mix.sources[
            source
        ].num_samples

    def first_draw(self, source: int, number: int) -> int:
        """Return the first draw of a source that belongs to a pass, or to a later one."""
        return (number * self.mix.sources[source].num_samples + self.number) // self.mix.num_runs

    @cached_property
    def chunks(self) -> Callable[[int, int], Chunks]:
        """What the run has of a pass of a source, by their numbers; the latest are kept."""
        own = partial(self.mix.chunks, self.seed, self.number)
        return lru_cache(maxsize=2 * len(self.mix.sources))(own)


def _in_earlier_runs(num_samples: int, num_runs: int, run: int) -> int:
    """Return how many samples of a source all earlier runs have together.

    It is the sum of ``(num_samples + r) // num_runs`` for each ``r`` below ``run``, in closed form.
    """
    each, rest = divmod(num_samples, num_runs)
    return run * each + max(0, rest + run - num_runs)
