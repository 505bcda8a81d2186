"""Look up what comes where in an epoch: the order of a rank as a sequence, and its inverse.

A look-up computes the permutation of one chunk. Nothing here needs torch, so that a sequence goes
to programs and processes without it. specs/sampler-order.md specifies both (ORDER-67, ORDER-68).
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator, Sequence
from itertools import chain, count, islice
from threading import Lock
from typing import Any, Final, overload

from wids.order.epoch_order import Runs, rank_blocks
from wids.order.rounds import Rounds, in_turn

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
        self._made = runs.of_epoch(seed, epoch)

    def __reduce__(self) -> Any:
        return type(self), (self.runs, self.seed, self.epoch, self.num_replicas)

    def index(self, rank: int, position: int) -> int:
        """Return the index at a position of a rank."""
        round_, turn = divmod(position, self._width)
        run = rank * self._width + turn
        if round_ >= self._num_rounds:  # of uneven runs only the longer ones have another turn
            run = next(islice(filter(self._is_long, count(rank * self._width)), turn, None))
        return int(next(self._made.run(run).blocks(round_))[0])

    def steps(self, index: int) -> list[tuple[int, int]]:
        """Return the ranks and positions at which an index comes, ascending."""
        return sorted(self._step(*position) for position in self._made.positions(index))

    def _step(self, run: int, position: int) -> tuple[int, int]:
        rank, turn = divmod(run, self._width)
        if position >= self._num_rounds:
            turn = sum(map(self._is_long, range(run - turn, run)))
        return rank, position * self._width + turn

    def _is_long(self, run: int) -> bool:
        return self.runs.run_length(run) > self._num_rounds


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
