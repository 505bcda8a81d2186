"""Pack the samples of runs into batches that keep a budget of tokens, window by window.

A window has the next samples of a run that fill a fixed number of batches, so step ``k`` of each
run is in window ``k // window``. Where a window begins follows from those before it; it is computed
once an epoch, kept, and in the state of a sampler.

Runs are cut where tokens are equal, not samples, so that they make about equally many batches.

Pure functions of arrays. specs/sampler-order.md specifies them (ORDER-70 to ORDER-76, ORDER-81).
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wids.order.epoch_order import permutation
from wids.order.rounds import DealtRounds, windows
from wids.storage.arrays import BoolArray, IntArray

_OF_WINDOW: Final = 2
"""The second number of a generator's key, other than those of the orders of chunks (ORDER-7)."""

_SLACK: Final = 1024
"""A window is first tried with this part less than its budget, which mostly fits at once."""

_BLOCK_LENGTH: Final = 1 << 14
"""Indices whose needs are added up at a time: a large chunk would be added up for each window."""

_PIECE: Final = 1 << 14
"""Samples whose tokens are added up at a time, where runs are cut."""

_MOST_BATCHES: Final = 1.25
"""Times the batches that tokens need, above which an epoch has a remark."""

_FULL: Final = 0.8
"""Share of a limit from which it is the reason why others are not used."""

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
    batches: Packed = []
    rooms: list[int] = []
    for position, length in zip(order.tolist(), (tokens[order] << bits).tolist(), strict=True):
        at = bisect_left(free, length)
        if more:
            while at < len(free) and rooms[free[at] & mask] < more[position]:
                at += 1
        if at < len(free):
            left = free.pop(at)
            batch = batches[left & mask]
            batch.append(position)
        else:
            left = whole | len(batches)
            batch = [position]
            batches.append(batch)
            rooms += most
        left -= length
        if more:
            rooms[left & mask] -= more[position]
            if rooms[left & mask] < least:  # no sample fits any more
                continue
        if left > mask and len(batch) != max_items:
            insort(free, left)
    return sorted(map(sorted, batches))


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

    def tokens(self, start: int, stop: int) -> IntArray:
        """Return the tokens that each sample of a range of indices adds to batches."""
        if self.skips:
            needs, left_out = self.of(np.arange(start, stop))
            return np.where(left_out, 0, needs[0])
        tokens = self.needs[0][start:stop].astype(np.int64)
        return np.minimum(tokens, self.limits[0], out=tokens)  # the limit may not fit a narrow type

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
        batches = best_fit(needs[:, :length], self.limits, self.max_items)
        while len(batches) > self.window:
            length = length * self.window // len(batches)
            batches = best_fit(needs[:, :length], self.limits, self.max_items)
        if length < needs.shape[1]:
            while len(batches) < self.window:
                largest = max(batches, key=len)
                half = -(-len(largest) // 2)
                batches.append(largest[half:])
                del largest[half:]
        return length, sorted(batches)

    def by_cost(self, indices: IntArray, batches: Packed) -> Packed:
        """Return the batches of a window in descending order of cost (ORDER-74)."""
        if self.cost is None:
            return batches
        cost_of_sample = self.needs[0] if isinstance(self.cost, str) else self.cost
        costs = cost_of_sample[indices].astype(np.float64)
        if isinstance(self.cost, str) and self.cost == "squares":
            costs = costs**2
        number = np.repeat(np.arange(len(batches)), list(map(len, batches)))
        # bincount adds one after another, so that every machine has the same sums.
        sums = np.bincount(number, costs[list(chain.from_iterable(batches))])
        return [batches[at] for at in np.argsort(-sums, kind="stable")]


@dataclass(frozen=True, eq=False)
class TokenSums:
    """The tokens of a range of indices, added up in pieces, to cut it into runs.

    Attributes:
        budgets: What samples need.
        start: First index of the range.
        stop: Index after the last one.
        sums: Tokens of the samples in front of each piece, and of all.
    """

    budgets: Budgets
    start: int
    stop: int
    sums: IntArray

    @classmethod
    def of(cls, budgets: Budgets, start: int, stop: int) -> TokenSums:
        """Return the sums of a range."""
        pieces = range(start, stop, _PIECE)
        sums = [int(budgets.tokens(at, min(at + _PIECE, stop)).sum()) for at in pieces]
        return cls(budgets, start, stop, np.append(0, np.cumsum(np.array(sums, np.int64))))

    @property
    def total(self) -> int:
        """Tokens of the whole range."""
        return int(self.sums[-1])

    def edges(self, num_runs: int) -> IntArray:
        """Return where each run begins in the range, and where the last one ends (ORDER-81)."""
        # Python's integers, since the products may exceed 64 bits.
        inner = [self._position(-(-self.total * run // num_runs)) for run in range(1, num_runs)]
        return np.array([0, *inner, self.stop - self.start], np.int64)

    def _position(self, num_tokens: int) -> int:
        """Return how many samples have at least so many tokens together."""
        piece = int(np.searchsorted(self.sums, num_tokens)) - 1
        if piece < 0:
            return 0
        at = self.start + piece * _PIECE
        sums = self.sums[piece] + np.cumsum(self.budgets.tokens(at, min(at + _PIECE, self.stop)))
        return piece * _PIECE + int(np.searchsorted(sums, num_tokens)) + 1


@dataclass
class _RunWindows:
    """What was found of the windows of a run.

    Attributes:
        starts: Where windows begin in the run, by their numbers.
        last: The largest of these numbers.
        num_batches: Number of batches of the run, once it is counted.
        uses: Of each window that was packed: its batches, its samples, and what these need of each
            budget together.
    """

    starts: dict[int, int] = field(default_factory=lambda: {0: 0})
    last: int = 0
    num_batches: int | None = None
    uses: dict[int, list[int]] = field(default_factory=dict)

    def least(self, window: int) -> int:
        """Return how many batches the run has at least, with so many in a window."""
        # A window that begins has a batch; whether the first one does is not known.
        known = self.num_batches
        return self.last * window + bool(self.last) if known is None else known


class PackedRounds(DealtRounds):
    """An epoch in which each run packs its own samples.

    Args:
        run_blocks: Returns the indices of a run, from a ``position`` on.
        num_runs: Number of runs.
        budgets: What samples need.
        drop_last: Whether to leave out the last batches, which are no whole round.
        least: A number of batches that the epoch has at least.
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
        least: int,
        seed: int | None,
        epoch: int,
    ) -> None:
        super().__init__(num_runs, drop_last=drop_last, least=least)
        self._run_from = run_blocks
        self._budgets = budgets
        self._seed, self._epoch = seed, epoch
        self._runs = [_RunWindows() for _ in range(num_runs)]

    # The windows of a run.

    def _windows(self, run: int, first: int) -> Iterator[tuple[IntArray, Packed]]:
        """Yield the windows of a run from one on: indices, and batches before they are shuffled."""
        progress, size = self._runs[run], self._budgets.window
        number = max(number for number in progress.starts if number <= first)
        blocks = self._blocks(run, progress.starts[number])
        nothing = np.empty(0, np.int64)
        ahead = self._filled(
            (nothing, nothing, np.empty((len(self._budgets.limits), 0), np.int64)), blocks
        )
        if not len(ahead[0]):
            progress.num_batches = number * size
        while len(ahead[0]):
            _, indices, needs = ahead
            length, batches = self._budgets.packed(needs)
            indices = indices[:length]
            batches = self._budgets.by_cost(indices, batches)
            used = needs[:, :length].sum(1).tolist()
            progress.uses[number] = [len(batches), length, *used]
            ahead = self._filled(tuple(values[..., length:] for values in ahead), blocks)
            number += 1
            if len(ahead[0]):
                progress.starts[number] = int(ahead[0][0])
                progress.last = max(progress.last, number)
            else:
                progress.num_batches = (number - 1) * size + len(batches)
            if number > first:
                yield indices, batches

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

    def located(self, round_: int) -> list[list[int]]:
        """Return what is known of the runs, for a state at a round; JSON-able (ORDER-76).

        Returns:
            Of each run of which something is known: its number, that of the last known window that
            begins no later than the round, where it begins, and how many batches the run makes; 0
            if that is not known.
        """
        latest = round_ // self._budgets.window
        found = []
        for run, progress in enumerate(self._runs):
            number = max(number for number in progress.starts if number <= latest)
            if number or progress.num_batches is not None or progress.uses:
                found.append([run, number, progress.starts[number], progress.num_batches or 0])
        return found

    def restore(self, found: Iterable[list[int]]) -> None:
        """Take over what `located` returned of this epoch."""
        for run, number, start, num_batches in found:
            progress = self._runs[run]
            progress.starts[number], progress.last = start, number
            progress.num_batches = num_batches or None

    # Batches.

    def _reach(self, run: int, number: int) -> int:
        """Return the number of batches that a run makes, or ``number`` if it makes more."""
        progress, size = self._runs[run], self._budgets.window
        if progress.num_batches is None and number > progress.least(size):
            for _ in self._windows(run, progress.last):
                if number <= progress.least(size):
                    break
        return number if progress.num_batches is None else min(number, progress.num_batches)

    @cached_property
    def _num_batches(self) -> IntArray:
        """Number of batches that each run makes."""
        return np.array([self._reach(run, sys.maxsize) for run in range(self._num_runs)])

    def _has_batches(self, count: int) -> bool:
        # Runs are counted equally far, and no further than necessary: tokens say how many batches
        # there are at least, but in a mix nobody knows the tokens of an epoch.
        size = self._budgets.window
        while count > max(self._least, sum(progress.least(size) for progress in self._runs)):
            uncounted = [
                run for run, progress in enumerate(self._runs) if progress.num_batches is None
            ]
            if not uncounted:
                return False
            run = min(uncounted, key=lambda run: self._runs[run].last)
            self._reach(run, 2 * self._runs[run].least(size) + 1)
        return True

    @cached_property
    def num_left_out(self) -> int:  # noqa: D102 - inherited
        if not self._budgets.skips:
            return super().num_left_out
        of_runs = chain.from_iterable(map(self._run_from, range(self._num_runs)))
        num_skipped = sum(int(self._budgets.of(block)[1].sum()) for block in of_runs)
        return super().num_left_out + num_skipped

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
        return self._shares_used()["max_tokens"]

    def _shares_used(self) -> dict[str, float]:
        """Return which share these windows use of each limit of their batches, by its name."""
        runs, budgets = self._runs, self._budgets
        if not any(progress.uses for progress in runs):
            next(self._windows(0, 0), None)
        uses = [used for progress in runs for used in progress.uses.values()]
        num_batches, num_samples, *needs = map(sum, zip(*uses, strict=True)) if uses else (0, 0, 0)
        names = ("max_tokens", "the second budget")
        pairs = dict(zip(names, zip(needs, budgets.limits)))  # noqa: B905 - one or both
        if budgets.max_items is not None:
            pairs["max_items"] = (num_samples, budgets.max_items)
        most = max(num_batches, 1)
        return {name: number / (most * limit) for name, (number, limit) in pairs.items()}

    @cached_property
    def remark(self) -> str | None:
        """Why batches are far from full, if they are; those of an epoch are counted."""
        count = int(self._num_batches.sum())
        if not self._least and not all(
            len(progress.uses) > progress.last for progress in self._runs
        ):
            return None  # in a mix that was resumed, only some windows say how full they are
        fill = self._least / count if self._least else self.fill
        # Each run may end with a batch that is not full.
        if count - self._num_runs <= _MOST_BATCHES * count * fill:
            return None
        why = "few samples fit beside one another: lengths are near max_tokens, or a half or third"
        for name, share in self._shares_used().items():
            if share > _FULL and name != "max_tokens":
                why = f"{name} is reached first"
        return (
            f"the {count:,} batches of the epoch have {fill:.0%} of max_tokens on average, since "
            f"{why}; other limits make fewer batches"
        )
