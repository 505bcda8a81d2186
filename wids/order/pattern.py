"""Compute which source each draw of a run is from, in the exact proportions of their weights.

The pattern repeats after a period, which is tabulated once; draws and counts are looked up in the
table. ORDER-20 to ORDER-22 in specs/sampler-order.md specify it.
"""

from __future__ import annotations

import heapq
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wids.storage.array_types import IntArray

MAX_PERIOD: Final = 1 << 20
"""Longest period. It takes half a second to tabulate, and represents six decimals exactly."""


def checked_weight(weight: Any, name: str) -> Fraction:
    """Return the fraction that a weight stands for.

    Raises:
        ValueError: It is negative, infinite or no number.
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
    draws = [max(1, math.floor(share * MAX_PERIOD + Fraction(1, 2))) for share in shares]
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

    def counts(self, num_draws: int) -> list[int]:
        """Return how many of the first draws each source has."""
        num_periods, rest = divmod(num_draws, len(self.sources))
        whole = self._counted(len(self.sources)) if num_periods else [0] * self.num_sources
        # Python's integers: billions of periods do not overflow.
        parts = zip(whole, self._counted(rest), strict=True)
        return [num_periods * each + more for each, more in parts]

    def _counted(self, length: int) -> list[int]:
        counts: list[int] = np.bincount(self.sources[:length], minlength=self.num_sources).tolist()
        return counts


@lru_cache(maxsize=8)
def pattern(draws: tuple[int, ...]) -> Pattern:
    """Return the pattern of sources with these numbers of draws per period (ORDER-21)."""
    sources = _tabulated(draws)
    return Pattern(sources, _possible_starts(sources, draws), len(draws))


def _tabulated(draws: tuple[int, ...]) -> npt.NDArray[np.unsignedinteger[Any]]:
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
