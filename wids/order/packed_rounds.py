"""Pack the samples of runs into batches that keep a budget of tokens, window by window.

A window has the next samples of a run that fill a fixed number of batches, so step ``k`` of each
run is in window ``k // window``. Where a window begins follows from those before it; it is computed
once an epoch, kept, and in the state of a sampler.

Pure functions of arrays. specs/sampler-order.md specifies them (ORDER-70 to ORDER-76).
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wids.order.epoch_order import permutation
from wids.order.rounds import Rounds, windows
from wids.storage.arrays import BoolArray, IntArray

_OF_WINDOW: Final = 2
"""The second number of a generator's key, other than those of the orders of chunks (ORDER-7)."""

_SLACK: Final = 1024
"""A window is first tried with this part less than its budget, which mostly fits at once."""

_BLOCK_LENGTH: Final = 1 << 14
"""Indices whose needs are added up at a time: a large chunk would be added up for each window."""

Packed = list[list[int]]
"""Batches of positions in a window."""


def best_fit(needs: IntArray, limits: Iterable[int], max_items: int | None = None) -> Packed:
    """Pack samples best-fit decreasing (ORDER-71).

    Args:
        needs: What each sample needs of each budget, shape ``(num_budgets, num_samples)``, at most
            its limit. The first budget is that of tokens; there may be one more.
        limits: What a batch has of each budget, less than 2**31.
        max_items: Largest number of samples in a batch; None for any.

    Returns:
        The batches, in ascending order of their first positions; each has its positions ascending.
    """
    (max_tokens, *most), (tokens, *others) = limits, needs
    sizes = np.maximum(tokens * most[0], others[0] * max_tokens) if most else tokens
    order = np.argsort(-sizes, kind="stable")
    more = others[0].tolist() if most else []
    least = min(more, default=0)
    # What a batch has left, with its number in the low bits: in a sorted list of such integers, the
    # batch with the least space that suffices is found in C.
    bits = len(order).bit_length()
    mask, whole = (1 << bits) - 1, max_tokens << bits
    free: list[int] = []
    found: Packed = []
    rooms: list[int] = []
    for position, length in zip(order.tolist(), (tokens[order] << bits).tolist(), strict=True):
        at = bisect_left(free, length)
        if more:
            while at < len(free) and rooms[free[at] & mask] < more[position]:
                at += 1
        if at < len(free):
            left = free.pop(at)
            batch = found[left & mask]
            batch.append(position)
        else:
            left = whole | len(found)
            batch = [position]
            found.append(batch)
            rooms += most
        left -= length
        if more:
            rooms[left & mask] -= more[position]
            if rooms[left & mask] < least:  # no sample fits any more
                continue
        if left > mask and len(batch) != max_items:
            insort(free, left)
    return sorted(map(sorted, found))


@dataclass(frozen=True, eq=False)
class Budgets:
    """What samples need, what a batch has of it, and how the batches of a window are ordered.

    Attributes:
        needs: What each sample of the dataset needs of each budget; the first has the tokens.
        limits: What a batch has of each.
        max_items: Largest number of samples in a batch; None for any.
        skips: Whether samples that exceed a limit are left out; else each is alone in a batch.
        window: Number of batches in a window.
        cost: The cost of each sample, or ``"sum"`` of the tokens, or of their ``"squares"``; None
            to leave the batches of a window unsorted.
    """

    needs: tuple[npt.NDArray[Any], ...]
    limits: tuple[int, ...]
    max_items: int | None
    skips: bool
    window: int
    cost: npt.NDArray[Any] | str | None

    def of(self, indices: IntArray) -> tuple[IntArray, BoolArray]:
        """Return what samples need, shape ``(num_budgets, n)``, and which are left out."""
        needs = np.stack([need[indices] for need in self.needs]).astype(np.int64, copy=False)
        limits = np.array(self.limits)[:, None]
        exceeds: BoolArray = np.any(needs > limits, axis=0)
        # Alone in its batch, a sample uses up all budgets.
        return np.where(exceeds, limits, needs), exceeds & self.skips

    def fitting(self, needs: IntArray) -> int:
        """Return how many samples a window is first tried with (ORDER-70)."""
        most = [self.window * (_SLACK - 1) * limit // _SLACK for limit in self.limits]
        ends = [
            int(np.searchsorted(np.cumsum(need), limit, side="right"))
            for need, limit in zip(needs, most, strict=True)
        ]
        if self.max_items is not None:
            ends.append(self.window * self.max_items)
        return max(min(ends), self.window)

    def packed(self, needs: IntArray) -> tuple[int, Packed]:
        """Return how many samples the next window of a run has, and its batches (ORDER-70)."""
        length = min(self.fitting(needs), needs.shape[1])
        found = best_fit(needs[:, :length], self.limits, self.max_items)
        while len(found) > self.window:
            length = length * self.window // len(found)
            found = best_fit(needs[:, :length], self.limits, self.max_items)
        if length < needs.shape[1]:
            while len(found) < self.window:
                largest = max(found, key=len)
                half = -(-len(largest) // 2)
                found.append(largest[half:])
                del largest[half:]
        return length, sorted(found)

    def by_cost(self, indices: IntArray, found: Packed) -> Packed:
        """Return the batches of a window in descending order of cost (ORDER-74)."""
        if self.cost is None:
            return found
        given = self.needs[0] if isinstance(self.cost, str) else self.cost
        costs = given[indices].astype(np.float64)
        if isinstance(self.cost, str) and self.cost == "squares":
            costs = costs**2
        number = np.repeat(np.arange(len(found)), list(map(len, found)))
        # bincount adds one after another, so that every machine has the same sums.
        sums = np.bincount(number, costs[list(chain.from_iterable(found))])
        return [found[at] for at in np.argsort(-sums, kind="stable")]


@dataclass
class _Known:
    """What was found of the windows of a run.

    Attributes:
        starts: Where windows begin in the run, by their numbers.
        last: The largest of these numbers.
        num_batches: Number of batches of the run, once it is known.
        lengths: Number of samples in each batch of a window, before it is shuffled.
        num_tokens: Tokens in a window.
    """

    starts: dict[int, int] = field(default_factory=lambda: {0: 0})
    last: int = 0
    num_batches: int | None = None
    lengths: dict[int, IntArray] = field(default_factory=dict)
    num_tokens: dict[int, int] = field(default_factory=dict)


class PackedRounds(Rounds):
    """An epoch in which each run packs its own samples.

    Args:
        run_blocks: Returns the indices of a run, from a ``position`` on.
        num_runs: Number of runs.
        budgets: What samples need.
        drop_last: Whether runs stop with the first, instead of repeating batches of their own.
        seed: Seed of the order of batches in a window; None to leave them in order.
        epoch: The epoch.
    """

    def __init__(
        self,
        run_blocks: Callable[..., Iterator[IntArray]],
        num_runs: int,
        budgets: Budgets,
        *,
        drop_last: bool,
        seed: int | None,
        epoch: int,
    ) -> None:
        self._run_from = run_blocks
        self._num_runs = num_runs
        self._budgets = budgets
        self._drop_last = drop_last
        self._seed, self._epoch = seed, epoch
        self._known: defaultdict[int, _Known] = defaultdict(_Known)

    # The windows of a run.

    def _windows(self, run: int, first: int) -> Iterator[tuple[IntArray, Packed]]:
        """Yield the windows of a run from one on: indices, and batches before they are shuffled."""
        known, size = self._known[run], self._budgets.window
        number = first if first in known.starts else max(n for n in known.starts if n < first)
        blocks = self._blocks(run, known.starts[number])
        nothing = np.empty(0, np.int64)
        ahead = self._filled(
            (nothing, nothing, np.empty((len(self._budgets.limits), 0), np.int64)), blocks
        )
        if not len(ahead[0]):
            known.num_batches = number * size
        while len(ahead[0]):
            _, indices, needs = ahead
            length, found = self._budgets.packed(needs)
            indices = indices[:length]
            found = self._budgets.by_cost(indices, found)
            known.lengths[number] = np.array(list(map(len, found)), np.int32)
            known.num_tokens[number] = int(needs[0, :length].sum())
            ahead = self._filled(tuple(values[..., length:] for values in ahead), blocks)
            number += 1
            if len(ahead[0]):
                known.starts[number] = int(ahead[0][0])
                known.last = max(known.last, number)
            else:
                known.num_batches = (number - 1) * size + len(found)
            if number > first:
                yield indices, found

    def _blocks(self, run: int, position: int) -> Iterator[tuple[IntArray, ...]]:
        """Yield the positions, the indices and the needs of the samples of a run."""
        for found in windows(self._run_from(run, position=position)):
            for at in range(0, len(found), _BLOCK_LENGTH):
                indices = found[at : at + _BLOCK_LENGTH]
                needs, left_out = self._budgets.of(indices)
                (kept,) = np.nonzero(~left_out)
                yield position + kept, indices[kept], needs[:, kept]
                position += len(indices)

    def _filled(
        self, ahead: tuple[IntArray, ...], blocks: Iterator[tuple[IntArray, ...]]
    ) -> tuple[IntArray, ...]:
        """Return what is ahead with more samples than a window has, unless the run ends."""
        while self._budgets.fitting(ahead[-1]) >= len(ahead[0]):
            if (block := next(blocks, None)) is None:
                break
            ahead = tuple(np.concatenate(pair, -1) for pair in zip(ahead, block, strict=True))
        return ahead

    def _order(self, run: int, number: int, count: int) -> IntArray:
        """Return the order of the batches of a window (ORDER-72, ORDER-74)."""
        size = self._budgets.window
        first, common = number * size, 0
        if self._budgets.cost is not None:
            common = count
            # Runs end after different numbers of steps. Far from there nobody needs to know them.
            if self._reach(run, first + 2 * size + 1) <= first + 2 * size:
                reached = (self._reach(other, first + count) for other in range(self._num_runs))
                common = max(min(reached) - first, 0)
        if self._seed is None:
            return np.arange(count)
        key = self._epoch, _OF_WINDOW
        of_all = permutation(common, self._seed, *key, 0, number)
        return np.append(
            of_all, common + permutation(count - common, self._seed, *key, run, number)
        )

    def located(self, step: int) -> list[list[int]]:
        """Return where the window of a step begins in each run, where that is known.

        Returns:
            The run, the number of the window, its start, and the number of batches of the run; 0
            if it is not known.
        """
        number = step // self._budgets.window
        return [
            list(map(int, (run, number, known.starts[number], known.num_batches or 0)))
            for run, known in sorted(self._known.items())
            if number in known.starts
        ]

    def restore(self, found: Iterable[list[int]]) -> None:
        """Take over what `located` returned of this epoch."""
        for run, number, start, num_batches in found:
            known = self._known[run]
            known.starts[number], known.last = start, number
            known.num_batches = num_batches or None

    # Batches.

    def _reach(self, run: int, number: int) -> int:
        known, size = self._known[run], self._budgets.window
        # A window that is known to begin has a batch; whether the first one does is not known.
        if known.num_batches is None and number > known.last * size + bool(known.last):
            for _ in self._windows(run, known.last):
                if number <= known.last * size + 1:
                    break
        return number if known.num_batches is None else min(number, known.num_batches)

    @cached_property
    def _num_batches(self) -> IntArray:
        """Number of batches that each run has by itself."""
        return np.array([self._reach(run, sys.maxsize) for run in range(self._num_runs)])

    def has_round(self, number: int) -> bool:  # noqa: D102 - inherited
        has_one = (self._reach(run, number + 1) > number for run in range(self._num_runs))
        if self._drop_last:
            return all(has_one)
        # Mostly the run that is being read has one, so that no other is packed.
        size, known = self._budgets.window, self._known.values()
        ends = (each.num_batches or each.last * size for each in known)
        return any(end > number for end in ends) or any(has_one)

    @cached_property
    def num_left_out(self) -> int:  # noqa: D102 - inherited
        if not self._budgets.skips:
            return super().num_left_out
        of_runs = chain.from_iterable(map(self._run_from, range(self._num_runs)))
        num_skipped = sum(int(self._budgets.of(block)[1].sum()) for block in of_runs)
        return super().num_left_out + num_skipped

    def own(self, run: int) -> tuple[IntArray, IntArray]:  # noqa: D102 - inherited
        number = np.arange(self._num_batches[run])
        return number, np.zeros_like(number)

    def own_lengths(self, run: int) -> IntArray:  # noqa: D102 - inherited
        known = self._known[run]
        if known.num_batches is None or len(known.lengths) <= known.last:
            deque(self._windows(run, 0), maxlen=0)
        of_windows = [
            lengths[self._order(run, number, len(lengths))]
            for number, lengths in sorted(known.lengths.items())
        ]
        return np.concatenate([np.empty(0, np.int64), *of_windows])

    def own_batches(self, run: int, start: int) -> Iterator[list[list[int]]]:  # noqa: D102 - inherited
        first, skipped = divmod(start, self._budgets.window)
        numbered: Iterator[Any] = enumerate(self._windows(run, first), first)
        if self._budgets.cost is not None:  # the order depends on whether the run ends in the next
            numbered = (one for one, _ in pairwise(chain(numbered, [None])))
        for number, (array, found) in numbered:
            indices, order = array.tolist(), self._order(run, number, len(found))
            if len(order) > skipped:
                yield [[indices[position] for position in found[at]] for at in order[skipped:]]
            skipped = 0

    @property
    def fill(self) -> float:
        """Share of the budget of tokens that is used in the windows that were packed so far."""
        if not any(each.lengths for each in self._known.values()):
            next(self._windows(0, 0), None)
        known = self._known.values()
        num_batches = sum(len(lengths) for each in known for lengths in each.lengths.values())
        num_tokens = sum(sum(each.num_tokens.values()) for each in known)
        return num_tokens / (max(num_batches, 1) * self._budgets.limits[0])
