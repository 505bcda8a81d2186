"""Look up what comes where in an epoch: the order of a rank as a sequence, and its inverse.

A look-up computes the permutation of one chunk. Nothing here needs torch, so that a sequence goes
to programs and processes without it. specs/sampler-order.md specifies both (ORDER-67, ORDER-68).
"""

from __future__ import annotations

import pickle
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from threading import Lock
from typing import Any, Final, overload

import numpy as np

from wids.order.elastic import Ranges, RestOfEpoch, run_edges
from wids.order.epoch_order import (
    Chunks,
    OrderSettings,
    Runs,
    bounds_of,
    rank_blocks,
    shuffled_chunks,
)
from wids.order.mixing import Mix, MixedRun
from wids.order.rounds import Rounds, in_turn
from wids.storage.arrays import IntArray

_NUM_HELD: Final = 1 << 20
"""Indices of chunks that are kept: neighbouring look-ups are in the same chunks."""

_NUM_BATCHES: Final = 1 << 12
"""Batches that are kept, at least: threads ask for neighbouring ones in any order."""


class EpochOrder:
    """Where each index of an epoch comes, on every rank. Safe to share between threads.

    Args:
        runs: What the epoch is cut into.
        seed: Seed of the order.
        epoch: The epoch.
        num_replicas: Number of ranks.
    """

    def __init__(self, runs: Runs, seed: int, epoch: int, num_replicas: int) -> None:
        self.runs, self.seed, self.epoch, self.num_replicas = runs, seed, epoch, num_replicas
        self._width = runs.num_runs // num_replicas
        self._num_rounds = runs.run_length(0)  # of uneven runs, the first is never longer
        self._lock = Lock()
        self._sequences: OrderedDict[Any, Chunks] = OrderedDict()
        self._held: OrderedDict[Any, IntArray] = OrderedDict()
        self._num_held = 0  # indices; to count them again would take longer than a small chunk

    def __reduce__(self) -> Any:
        return type(self), (self.runs, self.seed, self.epoch, self.num_replicas)

    def index(self, rank: int, position: int) -> int:
        """Return the index at a position of a rank."""
        round_, turn = divmod(position, self._width)
        first = rank * self._width
        if round_ >= self._num_rounds:  # of uneven runs only the longer ones have another turn
            long = filter(self._is_long, range(first, first + self._width))
            return self._index(next(islice(long, turn, None)), round_)
        return self._index(first + turn, round_)

    def steps(self, index: int) -> list[tuple[int, int]]:
        """Return the ranks and positions at which an index comes, ascending."""
        return sorted(self._step(*position) for position in self._found(index))

    def _step(self, run: int, position: int) -> tuple[int, int]:
        rank, turn = divmod(run, self._width)
        if position >= self._num_rounds:
            turn = sum(map(self._is_long, range(run - turn, run)))
        return rank, position * self._width + turn

    def _is_long(self, run: int) -> bool:
        return self.runs.run_length(run) > self._num_rounds

    def _index(self, run: int, position: int) -> int:
        """Return the index at a position of a run."""
        raise NotImplementedError

    def _found(self, index: int) -> Iterator[tuple[int, int]]:
        """Yield the runs, and the positions in them, that have an index."""
        raise NotImplementedError

    def _chunks(self, *key: int) -> Chunks:
        """Return a sequence of chunks that `_made` makes; the latest ones are kept."""
        with self._lock:
            chunks = self._sequences.get(key)
        if chunks is None:
            chunks = self._made(*key)
            with self._lock:
                self._sequences[key] = chunks
                while len(self._sequences) > 1 and self._num_chunks() > _NUM_HELD:
                    self._sequences.popitem(last=False)
        return chunks

    def _num_chunks(self) -> int:
        return sum(len(chunks.ends) for chunks in self._sequences.values())

    def _made(self, *key: int) -> Chunks:
        raise NotImplementedError

    def _chunk(self, at: int, *key: int) -> IntArray:
        """Return the indices of a chunk of such a sequence; the latest ones are kept."""
        name = (at, *key)
        with self._lock:
            indices = self._held.get(name)
        if indices is None:
            indices = self._chunks(*key).chunk(at)
            with self._lock:
                # Unless another thread was first.
                if self._held.setdefault(name, indices) is indices:
                    self._num_held += len(indices)
                while len(self._held) > 1 and self._num_held > _NUM_HELD:
                    self._num_held -= len(self._held.popitem(last=False)[1])
        return indices

    def _at(self, position: int, *key: int) -> int:
        """Return the index at a position of a sequence of chunks."""
        chunks = self._chunks(*key)
        at = chunks.number_at(position)
        return int(self._chunk(at, *key)[position - chunks.start(at)])

    def _position(self, index: int, *key: int) -> int:
        """Return the position of an index in a sequence of chunks that has it."""
        chunks = self._chunks(*key)
        at = chunks.number_of(index)
        return chunks.start(at) + int(np.flatnonzero(self._chunk(at, *key) == index)[0])


class SlicedOrder(EpochOrder):
    """Runs that are slices of an epoch, or of the rest of one."""

    runs: OrderSettings | RestOfEpoch

    def __init__(self, runs: OrderSettings | RestOfEpoch, *others: int) -> None:
        super().__init__(runs, *others)
        # Positions are those of the epoch that was cut first; `_ranges` are those that are left.
        self._whole: OrderSettings = runs.whole if isinstance(runs, RestOfEpoch) else runs
        self._part: OrderSettings = runs.rest if isinstance(runs, RestOfEpoch) else runs
        length = self._whole.num_indices
        self._ranges = runs.ranges if isinstance(runs, RestOfEpoch) else Ranges.whole(length)
        self._ends = np.cumsum(self._ranges.stops - self._ranges.starts)
        self._edges = run_edges(length, 1 if self._whole.redeal else self._whole.num_runs)

    def _index(self, run: int, position: int) -> int:
        start, stop, padding = bounds_of(self._part, run)
        position = padding if padding is not None and position == stop - start else start + position
        at = int(np.searchsorted(self._ends, position, side="right"))
        position += int(self._ranges.stops[at] - self._ends[at])
        number = int(np.searchsorted(self._edges, position, side="right")) - 1
        return self._at(position - int(self._edges[number]), number)

    def _found(self, index: int) -> Iterator[tuple[int, int]]:
        position = self._position_in_epoch(index)
        if position is None:
            return
        length, num_runs = self._part.num_indices, self._part.num_runs
        here = ((position + 1) * num_runs - 1) // length
        # With fewer indices than runs, an empty run repeats that of another (ORDER-3).
        for run in [here] if length >= num_runs else range(num_runs):
            start, stop, padding = bounds_of(self._part, run)
            if start <= position < stop:
                yield run, position - start
            if position == padding:
                yield run, stop - start

    def _position_in_epoch(self, index: int) -> int | None:
        """Return the position of an index in what is cut into runs; None if it is not there."""
        offset = index - self._whole.start
        if not 0 <= offset < self._whole.num_indices:
            return None
        number = 0
        if not self._whole.redeal:  # then a run has a slice of the indices
            number = int(np.searchsorted(self._edges, offset, side="right")) - 1
        position = int(self._edges[number]) + self._position(index, number)
        at = int(np.searchsorted(self._ranges.starts, position, side="right")) - 1
        if at < 0 or position >= self._ranges.stops[at]:
            return None
        return position - int(self._ranges.stops[at] - self._ends[at])

    def _made(self, *key: int) -> Chunks:
        (number,) = key
        first, last = (self._whole.start + int(edge) for edge in self._edges[number : number + 2])
        return shuffled_chunks(self._whole, self.seed, self.epoch, number, first, last)


class MixedOrder(EpochOrder):
    """Runs that draw from several sources."""

    runs: Mix

    def _run(self, number: int) -> MixedRun:
        return MixedRun(self.runs, self.seed, self.epoch, number)

    def _made(self, *key: int) -> Chunks:
        run, source, number = key
        return self._run(run).chunks(source, number)

    def _index(self, run: int, position: int) -> int:
        mixed, turns = self._run(run), self.runs.turns
        draw = mixed.first + position
        source = int(turns.sources(run, draw, draw + 1)[0])
        drawn = turns.count(run, source, draw)
        number = mixed.pass_of(source, drawn)
        offset = self._at(drawn - mixed.first_draw(source, number), run, source, number)
        return int(self.runs.sources[source].indices(np.array([offset]))[0])

    def _found(self, index: int) -> Iterator[tuple[int, int]]:
        mix, num_runs = self.runs, self.runs.num_runs
        first = self._run(0).first
        draws = first, first + mix.length
        # In each phase, the counts of two runs differ by at most 1: both are next to their share.
        most = len(mix.schedule)
        for source, own in enumerate(mix.sources):
            offset = own.place(index)
            if offset is None:
                continue
            low, high = (mix.turns.count(0, source, draw) for draw in draws)
            low, high = max(0, low - most) * num_runs, (high + most) * num_runs
            for number in range(low // own.num_samples, high // own.num_samples + 1):
                run = self._run_of(source, number, offset)
                mixed = self._run(run)
                start, stop = (mix.turns.count(run, source, draw) for draw in draws)
                drawn = mixed.first_draw(source, number)
                if drawn < stop and start < mixed.first_draw(source, number + 1):
                    drawn += self._position(offset, run, source, number)
                    if start <= drawn < stop:
                        yield run, mix.turns.draw(run, source, drawn) - first

    def _run_of(self, source: int, number: int, offset: int) -> int:
        """Return the run whose slice of a pass has a position of its source."""
        low, high = 0, self.runs.num_runs
        while high - low > 1:
            middle = (low + high) // 2
            if self.runs.edge(source, number, middle) <= offset:
                low = middle
            else:
                high = middle
        return low


def epoch_order_of(runs: Any, seed: int, epoch: int, num_replicas: int) -> EpochOrder:
    """Return the look-up of an epoch that is cut into runs."""
    kind = MixedOrder if isinstance(runs, Mix) else SlicedOrder
    return kind(runs, seed, epoch, num_replicas)


class RankSequence(Sequence[int]):
    """The indices of a rank in an epoch: a sequence of which nothing is computed in advance.

    A slice is a sequence too. Safe to share between threads, and pickled in a few kB.

    Args:
        order: The epoch.
        rank: The rank.
        positions: Those of the rank that the sequence has.
    """

    def __init__(self, order: EpochOrder, rank: int, positions: range) -> None:
        self._order, self._rank, self._positions = order, rank, positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> RankSequence: ...
    def __getitem__(self, key: int | slice) -> int | RankSequence:
        if isinstance(key, slice):
            return RankSequence(self._order, self._rank, self._positions[key])
        return self._order.index(self._rank, _chosen(self._positions, key))

    def __iter__(self) -> Iterator[int]:
        positions, order = self._positions, self._order
        if positions.step != 1:
            return (order.index(self._rank, position) for position in positions)
        others = order.seed, order.epoch, self._rank, order.num_replicas, positions.start
        blocks = rank_blocks(order.runs, *others) if positions else iter(())
        indices = chain.from_iterable(block.tolist() for block in blocks)
        return islice(indices, len(positions))

    def __reduce__(self) -> Any:
        # Lengths of shards are mostly alike, so that they take few bytes.
        packed = zlib.compress(pickle.dumps((self._order, self._rank, self._positions)))
        return _unpacked, (packed,)

    def __repr__(self) -> str:
        order = self._order
        return (
            f"<{len(self):,} indices of rank {self._rank} of {order.num_replicas} in epoch "
            f"{order.epoch}>"
        )


def _chosen(positions: range, key: Any) -> Any:
    """Return what a sequence of a rank has at a place, or in a slice."""
    try:
        return positions[key]
    except IndexError:
        raise IndexError(
            f"indices: expected one of the {len(positions):,} places of this rank in the epoch, "
            f"found {key!r}; pass epoch= for those of another epoch"
        ) from None


def _unpacked(packed: bytes) -> RankSequence:
    return RankSequence(*pickle.loads(zlib.decompress(packed)))  # noqa: S301 - inside a pickle


class BatchSequence(Sequence[list[int]]):
    """The batches of a rank in an epoch.

    Batches are found by a walk through the order: from one to the next, it takes as long as a pass;
    to one further back it starts again, about a second for ten million samples. The latest are
    kept. A slice is a list. Safe to share between threads.

    Args:
        rounds: The batches of the epoch.
        runs: The runs of the rank.
    """

    def __init__(self, rounds: Rounds, runs: range) -> None:
        self._rounds, self._runs = rounds, runs
        self._lock = Lock()
        self._held: list[list[int]] = []
        self._start = 0  # of what is held
        self._coming: Iterator[list[list[int]]] | None = None

    def __reduce__(self) -> Any:
        return type(self), (self._rounds, self._runs)

    def __len__(self) -> int:
        return self._rounds.num_rounds * len(self._runs)

    @overload
    def __getitem__(self, key: int) -> list[int]: ...
    @overload
    def __getitem__(self, key: slice) -> list[list[int]]: ...
    def __getitem__(self, key: int | slice) -> list[int] | list[list[int]]:
        numbers = _chosen(range(len(self)), key)
        with self._lock:
            if isinstance(numbers, int):
                return self._batch(numbers)
            return [self._batch(number) for number in numbers]

    def _batch(self, number: int) -> list[int]:
        coming, self._coming = self._coming, None  # a walk that Ctrl-C ends begins again
        if coming is None or number < self._start:
            self._start, self._held = number // _NUM_BATCHES * _NUM_BATCHES, []
            coming = in_turn(self._rounds, self._runs, self._start)
        while number - self._start >= len(self._held):
            if len(self._held) > 2 * _NUM_BATCHES:
                self._start += len(self._held) - _NUM_BATCHES
                del self._held[:-_NUM_BATCHES]
            self._held += next(coming)
        self._coming = coming
        return list(self._held[number - self._start])

    def __iter__(self) -> Iterator[list[int]]:
        return chain.from_iterable(in_turn(self._rounds, self._runs, 0))
