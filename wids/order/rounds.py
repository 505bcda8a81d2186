"""Arrange the batches that runs make in rounds that end together, and cut batches of one bucket.

`DealtRounds` deals out what some runs have more than others (ORDER-41); `SeparateRounds` cuts the
order of each run into batches of its own. In `wids.order.aligned` all runs of a round have the same
bucket.

Pure functions of arrays, a window of the order at a time. specs/sampler-order.md specifies them
(ORDER-40).
"""

from __future__ import annotations

import hashlib
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, cycle
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wids.order.arguments import at_least
from wids.order.elastic import Piece, between, digest_of
from wids.storage.arrays import IntArray, check_labels

_WINDOW: Final = 1 << 15
"""Indices that are sorted by bucket at a time: enough for numpy, little for the first batch."""

_PIECE: Final = 1 << 20
"""Buckets that are numbered at a time."""

_MOST_SHOWN: Final = 32
"""Maximum number of batch sizes that a state lists one by one; of more it has a digest."""


@dataclass(frozen=True, eq=False)
class Buckets:
    """The bucket of each index, and the batch size of each bucket.

    Buckets are numbered in ascending order of their names, which are the integers of the caller.

    Attributes:
        numbers: Number of the bucket of each index, shape ``(len(dataset),)``, unsigned.
        names: Names of the buckets, shape ``(num_buckets,)``, ascending.
        sizes: Samples in a batch of each bucket, same shape.
    """

    numbers: npt.NDArray[Any]
    names: IntArray
    sizes: IntArray

    def fingerprint(self) -> dict[str, Any]:
        """Return what batches depend on besides the order; JSON-able."""
        digest = hashlib.sha256(self.names.astype("<i8").tobytes())
        little_endian = self.numbers.dtype.newbyteorder("<")
        digest.update(self.numbers.astype(little_endian, copy=False).data)
        sizes: Any = {str(k): v for k, v in zip(self.names.tolist(), self.sizes.tolist())}  # noqa: B905 - equal
        if len(set(self.sizes.tolist())) == 1:
            sizes = int(self.sizes[0])
        elif len(sizes) > _MOST_SHOWN:
            sizes = digest_of(self.sizes)
        return {"buckets": digest.hexdigest()[:16], "batch_size": sizes}


def checked_buckets(
    buckets: Any, batch_size: int | Callable[[int], int], dataset_length: int
) -> Buckets:
    """Return the buckets of a dataset.

    Args:
        buckets: One integer for each sample: an array, a list, an Arrow array or a pandas Series.
        batch_size: Samples in a batch, or a callable that returns it for a bucket.
        dataset_length: Number of samples.

    Raises:
        ValueError: There is not one integer for each sample, or a batch size is less than 1.
        TypeError: A Series may be in another order.
    """
    advice = ", and number others, for example with numpy.unique(values, return_inverse=True)[1]"
    values = integers(buckets, dataset_length, "buckets", advice)
    names, numbers = _numbered(values)
    if callable(batch_size):
        sizes = [at_least(1, batch_size(name), f"batch_size({name})") for name in names.tolist()]
    else:
        sizes = [at_least(1, batch_size, "batch_size")] * len(names)
    return Buckets(numbers, names, np.array(sizes, np.int64))


def integers(stated: Any, dataset_length: int, name: str, advice: str) -> npt.NDArray[Any]:
    """Return an integer for each sample, of any supported type, as an array.

    Args:
        stated: An array, a list, an Arrow array or a pandas Series.
        dataset_length: Number of samples.
        name: The argument, in messages.
        advice: What to do with other values.

    Raises:
        ValueError: There is not one integer for each sample.
        TypeError: A Series may be in another order.
    """
    values = np.asarray(stated)
    # Of integers beyond 64 bits in a list, numpy makes floats or objects.
    listed = stated if isinstance(stated, list | tuple) else values
    is_large = values.dtype.kind == "u" and values.max(initial=0) >= 1 << 63
    if values.ndim == 1 and (is_large or values.dtype.kind in "Of"):
        with suppress(TypeError):  # real floats, or missing values of pandas
            numbers = [operator.index(value) for value in listed]
            if numbers and not -(1 << 63) <= min(numbers) <= max(numbers) < 1 << 63:
                raise ValueError(
                    f"{name}: expected integers from -2**63 to 2**63 - 1, found "
                    f"{max(numbers, key=abs)}"
                )
            values = np.array(numbers, np.int64)
    if values.ndim != 1 or (values.dtype.kind not in "iub" and len(values)):
        raise ValueError(
            f"{name}: expected one integer for each sample, found {type(stated).__name__} of "
            f"{values.dtype}, shape {values.shape}; fill in missing values{advice}"
        )
    if len(values) != dataset_length:
        raise ValueError(
            f"{name}: expected one integer for each of the dataset's {dataset_length} samples, "
            f"found {len(values)}"
        )
    check_labels(stated, name)
    return values


def _numbered(values: npt.NDArray[Any]) -> tuple[IntArray, npt.NDArray[Any]]:
    """Return the names of the buckets, and the number of each index's bucket."""
    if not len(values):
        return np.empty(0, np.int64), np.empty(0, np.uint8)
    low = int(values.min())
    span = int(values.max()) - low + 1
    # A table is ten times faster than sorting; it must not be larger than the values. In pieces,
    # because the indices of a table take eight times the memory of small buckets.
    if span <= max(1 << 16, len(values)):
        pieces = [slice(at, at + _PIECE) for at in range(0, len(values), _PIECE)]
        present = np.zeros(span, bool)
        for piece in pieces:
            present[values[piece].astype(np.int64) - low] = True
        names = np.flatnonzero(present) + low
        table = (np.cumsum(present) - 1).astype(_smallest(len(names)))
        numbers = np.empty(len(values), table.dtype)
        for piece in pieces:
            numbers[piece] = table[values[piece].astype(np.int64) - low]
        return names.astype(np.int64), numbers
    found, inverse = np.unique(values, return_inverse=True)
    return found.astype(np.int64), inverse.astype(_smallest(len(found)))


def _smallest(count: int) -> npt.DTypeLike:
    # numpy sorts 8 and 16 bits by radix, which is what batches of 10 million samples wait for.
    return np.min_scalar_type(max(count - 1, 0))


class Batches(NamedTuple):
    """Batches of a window, as slices of its indices.

    Attributes:
        indices: The indices, bucket by bucket.
        numbers: Number of the bucket of each batch.
        starts: Where each batch starts among the indices.
        stops: Where it stops.
    """

    indices: IntArray
    numbers: IntArray
    starts: IntArray
    stops: IntArray


def batches(
    blocks: Iterable[IntArray], buckets: Buckets, num_runs: int = 1, *, partial: bool = True
) -> Iterator[Batches]:
    """Yield the batches of a run, in the order of their last indices; then the partial ones.

    Args:
        blocks: The indices of the run, or of several together.
        buckets: Their buckets.
        num_runs: Number of runs; what all of them have in a round counts as one batch.
        partial: Whether to yield partial batches.
    """
    sizes = buckets.sizes * num_runs
    carried = np.empty(0, np.int64)
    # Not shorter than what is carried over, which would be sorted repeatedly.
    for window in windows(blocks, int(sizes.sum())):
        indices = np.concatenate((carried, window))
        groups = Groups.of(buckets.numbers[indices], len(sizes))
        number, starts = groups.complete(sizes)
        stops = starts + sizes[number]
        in_time = np.argsort(groups.positions[stops - 1])
        values = indices[groups.positions]
        yield Batches(values, number[in_time], starts[in_time], stops[in_time])
        carried = indices[np.sort(groups.rest(sizes))]
    if partial and len(carried):
        groups = Groups.of(buckets.numbers[carried], len(sizes))
        filled = np.flatnonzero(groups.counts)
        starts = groups.firsts[filled]
        yield Batches(carried[groups.positions], filled, starts, starts + groups.counts[filled])


def lists(batches_of_windows: Iterable[Batches], start: int) -> Iterator[list[list[int]]]:
    """Yield batches from a number on as lists, many at a time."""
    for indices, _, starts, stops in batches_of_windows:
        # All at once, because a numpy slice takes longer than a slice of a list.
        values = indices.tolist() if start < len(starts) else []
        pairs = zip(starts[start:].tolist(), stops[start:].tolist(), strict=True)
        yield [values[a:b] for a, b in pairs]
        start = max(start - len(starts), 0)


def windows(blocks: Iterable[IntArray], least: int = 0) -> Iterator[IntArray]:
    """Join blocks into arrays of at least 32,768 indices, and of at least ``least``."""
    least = max(least, _WINDOW)
    waiting: list[IntArray] = []
    length = 0
    for block in blocks:
        waiting.append(block)
        length += len(block)
        if length >= least:
            length = 0
            yield _emptied(waiting)
    if length:
        yield _emptied(waiting)


def _emptied(blocks: list[IntArray]) -> IntArray:
    """Return blocks as one array, and keep none: the runs of an epoch wait with theirs at once."""
    window = np.concatenate(blocks)
    blocks.clear()
    return window


@dataclass(frozen=True, eq=False)
class Groups:
    """The positions of a window, grouped by bucket.

    Attributes:
        positions: All positions, in ascending order of buckets, and in each bucket ascending.
        firsts: Where the group of each bucket starts among them, shape ``(num_buckets,)``.
        counts: Length of each group, same shape.
    """

    positions: IntArray
    firsts: IntArray
    counts: IntArray

    @classmethod
    def of(cls, numbers: npt.NDArray[Any], num_buckets: int) -> Groups:
        """Return the groups of a window of numbers of buckets."""
        counts = np.bincount(numbers, minlength=num_buckets)
        return cls(np.argsort(numbers, kind="stable"), np.cumsum(counts) - counts, counts)

    def complete(self, sizes: IntArray) -> tuple[IntArray, IntArray]:
        """Return the bucket and the start of each full batch, bucket by bucket."""
        num_full = self.counts // sizes
        number = np.repeat(np.arange(len(sizes)), num_full)
        turn = np.arange(len(number)) - np.repeat(np.cumsum(num_full) - num_full, num_full)
        return number, self.firsts[number] + turn * sizes[number]

    def rest(self, sizes: IntArray) -> IntArray:
        """Return the positions that are in no full batch."""
        num_left = self.counts % sizes
        stops = self.firsts + self.counts
        offsets = np.repeat(stops - np.cumsum(num_left), num_left)
        positions: IntArray = self.positions[offsets + np.arange(len(offsets))]
        return positions


RunBlocks = Callable[[int], Iterator[IntArray]]
"""The indices of a run, by its number."""


class Rounds:
    """The batches of an epoch: each run has one in each round."""

    @cached_property
    def num_rounds(self) -> int:
        """Number of batches of each run."""
        raise NotImplementedError

    def has_round(self, number: int) -> bool:
        """Return whether each run has a batch of this number."""
        return number < self.num_rounds

    @cached_property
    def _surplus(self) -> int:
        """Number of indices in batches that repeat others; minus that of those in no batch."""
        raise NotImplementedError

    @property
    def num_repeated(self) -> int:
        """Number of indices in batches that repeat others (ORDER-45)."""
        return max(self._surplus, 0)

    @property
    def num_left_out(self) -> int:
        """Number of indices that are in no batch (ORDER-45)."""
        return max(-self._surplus, 0)

    def batches(self, run: int, start: int) -> Iterator[list[list[int]]]:
        """Yield the batches of a run from a round on, many at a time."""
        raise NotImplementedError


class PieceRounds(Rounds):
    """An epoch in which runs have pieces of what they, or other runs, made."""

    def own_batches(self, run: int, start: int) -> Iterator[list[list[int]]]:
        """Yield the batches that a run makes, from a number on, many at a time."""
        raise NotImplementedError

    def _pieces(self, run: int) -> Iterable[Piece]:
        """Return what a run has in its rounds; there may be more."""
        raise NotImplementedError

    @property
    def _repeated(self) -> Iterable[Piece]:
        """The batches that are repeated."""
        raise NotImplementedError

    @property
    def _left_out(self) -> Iterable[Piece]:
        """The batches that are left out."""
        raise NotImplementedError

    @cached_property
    def _surplus(self) -> int:
        repeated, left_out = (
            sum(len(batch) for block in self._read(pieces) for batch in block)
            for pieces in (self._repeated, self._left_out)
        )
        return repeated - left_out

    def batches(self, run: int, start: int) -> Iterator[list[list[int]]]:  # noqa: D102 - inherited
        return self._read(between(self._pieces(run), start, self.num_rounds))

    def _read(self, pieces: Iterable[Piece]) -> Iterator[list[list[int]]]:
        for run, start, stop in pieces:
            position = start
            for block in self.own_batches(run, start):
                yield block[: stop - position]
                position += len(block)
                if position >= stop:
                    break


class DealtRounds(PieceRounds):
    """An epoch in which each run makes batches of its own, and ``B`` are made in all (ORDER-41).

    There are ``B / num_runs`` rounds. A run keeps the first of its own batches. What it has beyond
    fills the places of runs that made fewer. `RemainingRounds` deals them out again when the number
    of ranks has changed.

    Args:
        num_runs: Number of runs.
        drop_last: Whether to leave out the last batches, which are no whole round, instead of
            repeating the first ones.
        least: A number of batches that the epoch has at least, known without counting them.
    """

    def __init__(self, num_runs: int, *, drop_last: bool, least: int) -> None:
        self._num_runs = num_runs
        self._drop_last = drop_last
        self._least = least

    @property
    def _num_batches(self) -> IntArray:
        """Number of batches that each run makes."""
        raise NotImplementedError

    def _has_batches(self, count: int) -> bool:
        """Return whether all runs together make so many batches."""
        return count <= self._least or count <= int(self._num_batches.sum())

    @cached_property
    def num_rounds(self) -> int:  # noqa: D102 - inherited
        rounded_up = 0 if self._drop_last else self._num_runs - 1
        return (int(self._num_batches.sum()) + rounded_up) // self._num_runs

    def has_round(self, number: int) -> bool:  # noqa: D102 - inherited
        others = self._num_runs if self._drop_last else 1
        return self._has_batches(number * self._num_runs + others)

    @property
    def _beyond(self) -> Iterator[Piece]:
        """The batches that runs have beyond the rounds, run by run."""
        for run, number in enumerate(self._num_batches.tolist()):
            if number > self.num_rounds:
                yield Piece(run, self.num_rounds, number)

    @cached_property
    def _edges(self) -> list[int]:
        """Where the places that a run does not fill itself begin among those of all runs."""
        num_missing = np.maximum(self.num_rounds - self._num_batches, 0)
        edges: list[int] = np.append(0, np.cumsum(num_missing)).tolist()
        return edges

    @property
    def _repeated(self) -> Iterator[Piece]:
        # All again, run by run, as far as places are left.
        every = [Piece(run, 0, number) for run, number in enumerate(self._num_batches.tolist())]
        num_beyond = sum(stop - start for _, start, stop in self._beyond)
        return between(cycle(every), 0, self._edges[-1] - num_beyond)

    @property
    def _left_out(self) -> Iterator[Piece]:
        return between(self._beyond, self._edges[-1], sys.maxsize)

    def _pieces(self, run: int) -> Iterator[Piece]:
        return self._arranged(run, chain(self._beyond, self._repeated))

    def _arranged(self, run: int, others: Iterable[Piece]) -> Iterator[Piece]:
        """Yield what a run keeps of its own batches, and others in its other places."""
        yield Piece(run, 0, min(int(self._num_batches[run]), self.num_rounds))
        yield from between(others, *self._edges[run : run + 2])

    def sequences(self) -> list[list[Piece]]:
        """Return what each run has, without what repeats others.

        With `drop_last`, the batches that are left out follow those of the last run.
        """
        runs = [list(self._arranged(run, self._beyond)) for run in range(self._num_runs)]
        runs[-1] += self._left_out
        return runs

    def batches(self, run: int, start: int) -> Iterator[list[list[int]]]:  # noqa: D102 - inherited
        at = start
        for block in self.own_batches(run, start):
            # A run keeps its own batches as long as there are rounds. So the first batch does not
            # wait until those of the other runs are counted.
            stop = at + len(block)
            if not self.has_round(stop - 1):
                stop = max(self.num_rounds, at)
            if stop > at:
                yield block[: stop - at]
            if stop < at + len(block):
                return
            at = stop
        yield from super().batches(run, at)


class SeparateRounds(DealtRounds):
    """An epoch in which each run cuts its own order into batches of one bucket each.

    Args:
        run_blocks: Returns the indices of a run.
        run_lengths: Number of indices of each run.
        buckets: The bucket of each index.
        drop_last: Whether to leave out partial batches, and rounds that are not whole.
    """

    def __init__(
        self,
        run_blocks: RunBlocks,
        run_lengths: Sequence[int],
        buckets: Buckets,
        *,
        drop_last: bool,
    ) -> None:
        self._run_blocks = run_blocks
        self._buckets = buckets
        # A run makes the fewest batches if all its indices are in the largest ones.
        num_partial = int((buckets.sizes - 1).sum()) if drop_last else 0
        largest = int(buckets.sizes.max(initial=1))
        least = sum(max(-((num_partial - length) // largest), 0) for length in run_lengths)
        super().__init__(len(run_lengths), drop_last=drop_last, least=least)

    @cached_property
    def _counts(self) -> IntArray:
        """Number of indices of each run in each bucket."""
        num_buckets = len(self._buckets.names)
        counts = np.zeros((self._num_runs, num_buckets), np.int64)
        for run in range(self._num_runs):
            for window in windows(self._run_blocks(run)):
                counts[run] += np.bincount(self._buckets.numbers[window], minlength=num_buckets)
        return counts

    @cached_property
    def _num_batches(self) -> IntArray:
        """Number of batches that each run makes."""
        rounded_up = 0 if self._drop_last else self._buckets.sizes - 1
        number: IntArray = ((self._counts + rounded_up) // self._buckets.sizes).sum(1)
        return number

    @cached_property
    def _surplus(self) -> int:
        num_partial = (self._counts % self._buckets.sizes).sum() if self._drop_last else 0
        return super()._surplus - int(num_partial)

    def own_batches(self, run: int, start: int) -> Iterator[list[list[int]]]:  # noqa: D102 - inherited
        made = batches(self._run_blocks(run), self._buckets, partial=not self._drop_last)
        return lists(made, start)


def nearest(run: int, others: IntArray) -> int:
    """Return the nearest of other runs, ascending; of two equally near the later."""
    distances = np.abs(others - run)
    return int(others[len(others) - 1 - np.argmin(distances[::-1])])


def in_turn(rounds: Rounds, runs: range, start: int) -> Iterator[list[list[int]]]:
    """Yield one batch of each run in turn, from a position on, many at a time (ORDER-42)."""
    round_, turn = divmod(start, len(runs))
    if len(runs) == 1:
        yield from rounds.batches(runs[0], round_)
        return
    each = [(batch for block in rounds.batches(run, round_) for batch in block) for run in runs]
    for batches_of_round in zip(*each, strict=True):
        yield list(batches_of_round[turn:])
        turn = 0
