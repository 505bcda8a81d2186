"""Compute the indices that each rank reads, from chunks of shards, seed, epoch and position.

An epoch is cut into *runs*; a rank reads one run, or interleaves several. A run is a sequence of
chunks, and a chunk is a range of indices that follows the shards. The order of the chunks is
shuffled, and so are the indices inside each chunk. Each chunk has its own generator, so any
position can be computed without the preceding ones: memory and the time to reach a position are
O(number of chunks + chunk size). All functions are pure functions of numbers.
specs/sampler-order.md specifies the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from wids.storage.arrays import BoolArray, IntArray, WordArray

_IN_CHUNK: Final = 1
"""The second number of a generator's key, other than that of the order of chunks."""


def chunk_edges(lengths: IntArray, start: int, stop: int, chunksize: int | None) -> IntArray:
    """Cut a range of indices into chunks that follow the shards.

    A shard (or the part of it inside the range) that is longer than a chunk is cut into the fewest
    pieces possible, with lengths that differ by at most one. Neighbouring shards that are shorter
    are joined while they fit into one chunk.

    Returns:
        Ascending edges, shape ``(num_chunks + 1,)``: chunk ``c`` is ``edges[c]:edges[c + 1]``.
    """
    ends = np.cumsum(lengths)
    inside = ends[(ends > start) & (ends < stop)]
    edges = np.unique(np.concatenate(([start], inside, [stop]))).astype(np.int64)
    if chunksize is None or len(edges) < 2:
        return edges
    shard_lengths = np.diff(edges)
    num_pieces = -(-shard_lengths // chunksize)
    # ChunkPiece k of n is length * k // n to length * (k + 1) // n of its shard.
    shard = np.repeat(np.arange(len(shard_lengths)), num_pieces)
    k = np.arange(len(shard)) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)
    # Quotient first: the product length * k may overflow 64 bits.
    each, rest = np.divmod(shard_lengths[shard], num_pieces[shard])
    starts = edges[shard] + each * k + rest * k // num_pieces[shard]
    return _with_short_joined(np.append(starts, stop), num_pieces[shard] == 1, chunksize)


def touched(edges: IntArray, lengths: IntArray) -> tuple[IntArray, IntArray]:
    """Return the first shard that each chunk touches, and the one after its last."""
    ends = np.cumsum(lengths)
    first: IntArray = np.searchsorted(ends, edges[:-1], side="right")
    last: IntArray = np.searchsorted(ends, edges[1:] - 1, side="right")
    return first, last + 1


def permutation(length: int, seed: int, *key: int) -> IntArray:
    """Return a permutation of ``0..length-1`` that depends only on seed and key.

    It sorts random 64-bit words of PCG64 that have the position in their low bits. The words are
    distinct, so every machine and every release of numpy sorts them alike. (numpy guarantees the
    streams of its bit generators, but not the results of ``shuffle``.)
    """
    words = next(sorting_words(length, length, seed, *key))
    # In place and not stable, which is safe for distinct words (decision 0001).
    words.sort()
    order: IntArray = (words & _low_bits(length)).astype(np.int64)
    return order


def sorting_words(length: int, block_length: int, seed: int, *key: int) -> Iterator[WordArray]:
    """Yield the words by which `permutation` sorts, in arrays of a length."""
    # spawn_key, not seed + epoch: no two keys share a stream, whatever their sum.
    generator = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key))
    low = _low_bits(length)
    for start in range(0, max(length, 1), max(block_length, 1)):
        words = generator.random_raw(min(block_length, length - start))
        # ORDER-6: the position in the low bits makes the words distinct.
        yield (words & ~low) | np.arange(start, start + len(words), dtype=np.uint64)


def _low_bits(length: int) -> np.uint64:
    bits: np.uint64 = np.uint64((1 << max(length - 1, 0).bit_length()) - 1)
    return bits


@dataclass(frozen=True, eq=False)
class Chunks:
    """A sequence of chunks in the order in which they are read.

    Attributes:
        starts: First index of each chunk.
        ends: Position in the sequence after each chunk: its cumulative lengths.
        numbers: Number of each chunk in dataset order, which is part of the key of its generator.
        seed: Seed of the order.
        key: Epoch and run, which the keys of all generators share.
        shuffle: Whether indices are shuffled inside their chunk.
    """

    starts: IntArray
    ends: IntArray
    numbers: IntArray
    seed: int
    key: tuple[int, int]
    shuffle: bool

    def blocks(self, start: int, stop: int) -> Iterator[IntArray]:
        """Yield the indices at positions ``start`` to ``stop`` of the sequence, chunk by chunk."""
        at = self.number_at(start)
        while start < stop:
            chunk_start, chunk_stop = self.start(at), int(self.ends[at])
            is_whole = start == chunk_start and chunk_stop <= stop  # nobody asks for it again soon
            order = self._order(at, permutation if is_whole else self._kept_permutation)
            yield self.starts[at] + order[start - chunk_start : stop - chunk_start]
            start, at = chunk_stop, at + 1

    def number_at(self, position: int) -> int:
        """Return which chunk of the sequence has a position."""
        # `right`: a position that equals the end of a chunk belongs to the next one.
        return int(np.searchsorted(self.ends, position, side="right"))

    def start(self, at: int) -> int:
        """Return the position at which a chunk of the sequence starts."""
        return int(self.ends[at - 1]) if at else 0

    def _order(self, at: int, permuted: Callable[..., IntArray]) -> IntArray:
        """Return the order of the indices of a chunk, counted from its first."""
        length = int(self.ends[at]) - self.start(at)
        if not self.shuffle:
            return np.arange(length)
        epoch, run = self.key
        return permuted(length, self.seed, epoch, _IN_CHUNK, run, int(self.numbers[at]))

    @cached_property
    def _kept_permutation(self) -> Callable[..., IntArray]:
        longest = int(np.diff(self.ends, prepend=0).max())
        return _kept_permutations(max(1, _NUM_HELD >> longest.bit_length()))

    def position(self, index: int) -> int:
        """Return the position of an index that the sequence has."""
        is_in = (self.starts <= index) & (index < self.starts + np.diff(self.ends, prepend=0))
        at = int(np.argmax(is_in))
        order = self._order(at, self._kept_permutation)
        return self.start(at) + int(np.flatnonzero(order == index - self.starts[at])[0])


@cache
def _kept_permutations(count: int) -> Callable[..., IntArray]:
    """Return `permutation` with as many of its latest results, of all sequences of chunks."""
    return lru_cache(count)(permutation)


def interleaved(runs: list[Iterator[npt.NDArray[Any]]]) -> Iterator[npt.NDArray[Any]]:
    """Yield the first item of each run, then the second of each that has one, and so on."""
    pending = [(next(run, None), run) for run in runs]
    while left := [(block, run) for block, run in pending if block is not None]:
        # Blocks of runs end at different positions, so the shortest decides how much is complete.
        width = min(len(block) for block, _ in left)
        yield np.stack([block[:width] for block, _ in left]).T.ravel()
        pending = [
            (block[width:] if len(block) > width else next(run, None), run) for block, run in left
        ]


def _with_short_joined(edges: IntArray, is_uncut: BoolArray, chunksize: int) -> IntArray:
    """Join neighbouring uncut shards, from the left, while they fit into one chunk."""
    # Checked by numpy first: most datasets have nothing to join, and the loop is slow for millions.
    if not (is_uncut[1:] & is_uncut[:-1] & (edges[2:] - edges[:-2] <= chunksize)).any():
        return edges
    positions, uncut = edges.tolist(), is_uncut.tolist()
    kept = [0]
    for at in range(1, len(uncut)):
        first = kept[-1]
        if not (uncut[at] and uncut[first] and positions[at + 1] - positions[first] <= chunksize):
            kept.append(at)
    return np.append(edges[kept], edges[-1])


Ending = Literal["pad", "drop", "uneven"]

_CHUNK_ORDER: Final = 0
"""The second number of a generator's key, other than that of the order inside a chunk."""

_NUM_KEPT: Final = 256
"""Sequences of chunks that are kept of an epoch, for look-ups in many runs."""

_NUM_HELD: Final = 1 << 20
"""Indices of the chunks that were looked up last, which are kept for the next look-ups."""


class Run(Protocol):
    """One run of an epoch."""

    def blocks(self, position: int) -> Iterator[IntArray]:
        """Yield the indices from a position in the run on, in arrays; few at first."""

    def visits(self, lengths: IntArray) -> IntArray:
        """Return the shards that are read, as `visits` defines them.

        Args:
            lengths: Number of samples in each shard of the dataset.
        """


class EpochRuns(Protocol):
    """The runs of one epoch."""

    def run(self, number: int) -> Run:
        """Return a run."""

    def positions(self, index: int) -> Iterator[tuple[int, int]]:
        """Yield the runs that have an index, and its positions there."""


class Runs(Protocol):
    """What an epoch, or the rest of one, is cut into."""

    @property
    def num_runs(self) -> int:
        """Number of runs that an epoch is cut into."""

    def run_length(self, run: int) -> int:
        """Return the number of indices that a run yields."""

    def of_epoch(self, seed: int, epoch: int) -> EpochRuns:
        """Return the runs of an epoch."""


class Order(Runs, Protocol):
    """Epochs that are cut into runs: those of one sequence of shards, or of a mix of several."""

    @property
    def lengths(self) -> IntArray:
        """Number of samples in each shard of the dataset."""

    @property
    def chunksize(self) -> int | None:
        """Largest number of indices in a chunk; None for one chunk per shard."""

    @property
    def shuffle(self) -> bool:
        """Whether anything is shuffled."""

    @property
    def num_indices(self) -> int:
        """Number of indices in the epoch, before padding or dropping."""

    @property
    def num_mixed(self) -> int:
        """Number of samples from which the next index of each run is drawn, on average."""

    def chunk_shards(
        self, chunksize: int | None, lengths: IntArray
    ) -> list[tuple[IntArray, IntArray, IntArray]]:
        """Return what the chunks of each sequence of shards would touch with this chunksize.

        Returns:
            For each sequence its shards, and the start and stop in these of each chunk's own.
        """


@dataclass(frozen=True, eq=False)
class OrderSettings:
    """What an order depends on besides seed, epoch, rank and position.

    Attributes:
        lengths: Number of samples in each shard, shape ``(num_shards,)``; a single number for data
            without shards.
        start: First index of the epoch.
        stop: Index after the last one.
        chunksize: Largest number of indices in a chunk; None for one chunk per shard.
        shuffle: Whether anything is shuffled.
        shufflefirst: Whether the order of the chunks is also shuffled in epoch 0.
        num_runs: Number of runs that the epoch is cut into, ``C`` in the specification:
            ``num_canonical`` of the sampler, else the number of ranks.
        redeal: Whether runs are slices of the epoch's shuffled chunks, instead of slices of the
            dataset that are the same in every epoch.
        ending: How runs are made equally long: ``"pad"`` repeats at most one index in each,
            ``"drop"`` leaves out at most one, ``"uneven"`` does neither.
        edges: Where uneven runs begin in the range, and where the last one ends, shape
            ``(num_runs + 1,)``; None to cut the range into equal numbers of indices.
    """

    lengths: IntArray
    start: int
    stop: int
    chunksize: int | None
    shuffle: bool = True
    shufflefirst: bool = True
    num_runs: int = 1
    redeal: bool = False
    ending: Ending = "pad"
    edges: IntArray | None = None

    @property
    def num_indices(self) -> int:
        """Number of indices in the epoch, before padding or dropping."""
        return self.stop - self.start

    @property
    def num_mixed(self) -> int:
        """Number of samples from which the next index of each run is drawn, on average."""
        # Each run reads one chunk at a time, and chunks differ in length.
        mean_chunk = self.num_indices / max(num_chunks(self), 1)
        return min(round(self.num_runs * mean_chunk), self.num_indices)

    def chunk_shards(
        self, chunksize: int | None, lengths: IntArray
    ) -> list[tuple[IntArray, IntArray, IntArray]]:
        """Return what the chunks touch, as in `Order`; runs may cut them once more."""
        edges = chunk_edges(self.lengths, self.start, self.stop, chunksize)
        return [(np.arange(len(lengths)), *touched(edges, lengths))]

    def run_length(self, run: int) -> int:
        """Return the number of indices that a run yields: all its own, or the same for all runs."""
        # ORDER-3: all ranks need equal lengths, or a collective operation hangs at the end.
        if self.ending == "pad":
            return -(-self.num_indices // self.num_runs)
        if self.ending == "drop":
            return self.num_indices // self.num_runs
        start, stop = _run_bounds(self, run)
        return stop - start

    def of_epoch(self, seed: int, epoch: int) -> SlicedRuns:
        """Return the runs of an epoch."""
        return SlicedRuns(self, WholeEpoch(self, seed, epoch))


def rank_length(settings: Runs, rank: int, num_replicas: int) -> int:
    """Return the number of indices that a rank yields in an epoch."""
    return sum(settings.run_length(run) for run in runs_of(settings.num_runs, rank, num_replicas))


def rank_blocks(
    settings: Runs, seed: int, epoch: int, rank: int, num_replicas: int, position: int = 0
) -> Iterator[IntArray]:
    """Yield a rank's indices from a position on, in arrays of about one chunk each.

    A rank reads ``num_runs / num_replicas`` neighbouring runs, one index of each in turn.
    """
    numbers = runs_of(settings.num_runs, rank, num_replicas)
    round_, turn = divmod(position, len(numbers))
    runs = settings.of_epoch(seed, epoch)
    blocks = [runs.run(number).blocks(round_) for number in numbers]
    for block in blocks[0] if len(blocks) == 1 else interleaved(blocks):
        if turn:  # the position is inside a round; the first block has at least this round
            yield block[turn:]
            turn = 0
        else:
            yield block


def visits(settings: Order, seed: int, epoch: int) -> Iterator[IntArray]:
    """Yield for each run the numbers of the shards that it reads, in the order of reading.

    While a chunk is read, all its shards are open. A shard that the previous chunk opened is not
    visited again; a shard that the run returns to later is. The visits follow from the chunks; only
    chunks that belong to the run in part have their indices computed.
    """
    runs = settings.of_epoch(seed, epoch)
    return (runs.run(number).visits(settings.lengths) for number in range(settings.num_runs))


def num_chunks(settings: OrderSettings) -> int:
    """Return the number of chunks in an epoch; a chunk that two runs share counts once."""
    first = settings.start
    bounds = [(0, settings.num_indices)]
    if not settings.redeal:
        bounds = [_run_bounds(settings, run) for run in range(settings.num_runs)]
    return sum(
        len(chunk_edges(settings.lengths, first + start, first + stop, settings.chunksize)) - 1
        for start, stop in bounds
    )


class IndexSequence(Protocol):
    """Indices in order, of which runs are slices."""

    def pieces(self, start: int, stop: int) -> Iterator[ChunkPiece]:
        """Yield what has the positions ``start`` to ``stop``."""

    def position(self, index: int) -> int | None:
        """Return the position of an index; None if it is not there."""


ChunkPiece = tuple[Chunks, int, int]
"""Positions in a sequence of chunks."""


@dataclass(frozen=True, eq=False)
class WholeEpoch:
    """The indices of an epoch: with `redeal` one sequence of chunks, else one for each run.

    Attributes:
        settings: What the order depends on.
        seed: Its seed.
        epoch: The epoch.
    """

    settings: OrderSettings
    seed: int
    epoch: int

    @cached_property
    def _edges(self) -> IntArray:
        """Where each sequence of chunks begins, and where the last one ends."""
        settings = self.settings
        if settings.edges is not None:
            return settings.edges
        return run_edges(settings.num_indices, 1 if settings.redeal else settings.num_runs)

    @cached_property
    def _chunks(self) -> Callable[[int], Chunks]:
        """The sequences of chunks, by their numbers; the latest are kept."""
        first, edges = self.settings.start, self._edges.tolist()
        arguments = self.settings, self.seed, self.epoch

        @lru_cache(maxsize=_NUM_KEPT)
        def chunks(number: int) -> Chunks:
            start, stop = edges[number : number + 2]
            return shuffled_chunks(*arguments, number, first + start, first + stop)

        return chunks

    def _number_at(self, position: int) -> int:
        return int(np.searchsorted(self._edges, position, side="right")) - 1

    def pieces(self, start: int, stop: int) -> Iterator[ChunkPiece]:
        """Yield what has the positions ``start`` to ``stop``."""
        while start < stop:
            number = self._number_at(start)
            first, last = self._edges[number : number + 2].tolist()
            yield self._chunks(number), start - first, min(stop, last) - first
            start = last

    def position(self, index: int) -> int | None:
        """Return the position of an index; None if it is not there."""
        offset = index - self.settings.start
        if not 0 <= offset < self.settings.num_indices:
            return None
        # A sequence has its slice of the indices.
        number = self._number_at(offset)
        return int(self._edges[number]) + self._chunks(number).position(index)


@dataclass(frozen=True, eq=False)
class SlicedRuns:
    """The runs of an epoch, or of the rest of one, which are slices of one sequence.

    Attributes:
        settings: How the sequence is cut.
        indices: The sequence.
    """

    settings: OrderSettings
    indices: IndexSequence

    def run(self, number: int) -> Slice:
        """Return a run."""
        return Slice(self.indices, *bounds_of(self.settings, number))

    def positions(self, index: int) -> Iterator[tuple[int, int]]:
        """Yield the runs that have an index, and its positions there."""
        position = self.indices.position(index)
        if position is None:
            return
        for run in range(self.settings.num_runs):
            start, stop, padding = bounds_of(self.settings, run)
            if start <= position < stop:
                yield run, position - start
            if position == padding:
                yield run, stop - start


@dataclass(frozen=True, eq=False)
class Slice:
    """A slice of a sequence, with one index repeated at the end if it is too short.

    Attributes:
        indices: The sequence.
        start: First position in the sequence.
        stop: Position after the last one.
        padding: Position of the index that is repeated at the end, or None.
    """

    indices: IndexSequence
    start: int
    stop: int
    padding: int | None

    def _pieces(self, position: int) -> Iterator[ChunkPiece]:
        yield from self.indices.pieces(self.start + position, self.stop)
        if self.padding is not None and position <= self.stop - self.start:
            yield from self.indices.pieces(self.padding, self.padding + 1)

    def blocks(self, position: int) -> Iterator[IntArray]:
        """Yield the indices from a position in the run on, chunk by chunk."""
        for chunks, start, stop in self._pieces(position):
            yield from chunks.blocks(start, stop)

    def visits(self, lengths: IntArray) -> IntArray:
        """Return the shards that are read, as `visits` defines them."""
        return visits_of(self._pieces(0), lengths)


def visits_of(pieces: Iterable[ChunkPiece], lengths: IntArray) -> IntArray:
    """Return the shards that pieces read one after another, as `visits` defines them."""
    filled = np.flatnonzero(lengths)  # an empty shard would tie with its neighbour below
    shard_ends = np.cumsum(lengths[filled])

    def shards_of(indices: IntArray) -> IntArray:
        shards: IntArray = np.searchsorted(shard_ends, indices, side="right")
        return shards

    found = [np.empty(0, np.int64)]
    for chunks, start, stop in pieces:
        # Chunks `first` to `last` are entirely in the piece, so all their shards are read. Indices
        # are computed only for the cut chunks at both ends: this makes a billion samples cheap.
        ends = np.append(0, chunks.ends)  # chunk c is at positions ends[c]:ends[c + 1]
        first = int(np.searchsorted(ends[:-1], start))
        last = max(first, int(np.searchsorted(ends, stop, side="right")) - 1)
        head_stop = min(int(ends[first]), stop)
        tail_start = max(head_stop, int(ends[last])) if last > first else head_stop
        starts = chunks.starts[first:last]
        low = shards_of(starts)
        counts = shards_of(starts + np.diff(ends)[first:last] - 1) - low + 1
        inside = np.arange(counts.sum()) + np.repeat(low - np.cumsum(counts) + counts, counts)
        found += (np.unique(shards_of(block)) for block in chunks.blocks(start, head_stop))
        found.append(inside)
        found += (np.unique(shards_of(block)) for block in chunks.blocks(tail_start, stop))
    shards = np.concatenate(found)
    visited: IntArray = filled[shards[np.diff(shards, prepend=-1) != 0]]
    return visited


def bounds_of(settings: OrderSettings, run: int) -> tuple[int, int, int | None]:
    """Return start, stop and padding of a run, as positions in the range (ORDER-1, ORDER-3)."""
    start, stop = _run_bounds(settings, run)
    length = settings.run_length(run)
    if start == stop and length:
        # Fewer indices than runs: repeat the first index of the nearest run that has one.
        start = stop = _run_bounds(settings, _nearest_run(settings, run))[0]
    own = min(stop - start, length)
    return start, start + own, start if own < length else None


def shuffled_chunks(
    settings: OrderSettings, seed: int, epoch: int, run: int, start: int, stop: int
) -> Chunks:
    """Return the chunks of a range of indices in the order in which they are read."""
    edges = chunk_edges(settings.lengths, start, stop, settings.chunksize)
    numbers = np.arange(len(edges) - 1)
    if settings.shuffle and (settings.shufflefirst or epoch > 0):
        # ORDER-7; the numbers stay those of the ascending order, so that each chunk keeps its key.
        numbers = permutation(len(numbers), seed, epoch, _CHUNK_ORDER, run, 0)
    ends = np.cumsum(np.diff(edges)[numbers])
    return Chunks(edges[:-1][numbers], ends, numbers, seed, (epoch, run), settings.shuffle)


@lru_cache(maxsize=8)  # each run of an epoch asks for them
def run_edges(length: int, num_runs: int) -> IntArray:
    """Return where each run of a sequence begins, and where the last one ends (ORDER-1)."""
    # Python's integers, since the products may exceed 64 bits.
    return np.array([length * run // num_runs for run in range(num_runs + 1)], np.int64)


def runs_of(num_runs: int, rank: int, num_replicas: int) -> range:
    """Return the numbers of the runs that a rank reads in turn."""
    per_rank = num_runs // num_replicas
    return range(rank * per_rank, (rank + 1) * per_rank)


def _run_bounds(settings: OrderSettings, run: int) -> tuple[int, int]:
    if settings.edges is not None:
        return int(settings.edges[run]), int(settings.edges[run + 1])
    n, num_runs = settings.num_indices, settings.num_runs
    # Python's integers, since the products may exceed 64 bits; neighbours share their bound.
    return n * run // num_runs, n * (run + 1) // num_runs


def _nearest_run(settings: OrderSettings, run: int) -> int:
    """Return the nearest run to an empty one that has an index; the later one of a tie."""
    n, num_runs = settings.num_indices, settings.num_runs
    here = n * run // num_runs  # an index in 0..n, between the two neighbours
    # Index i is in the run c with n * c // num_runs <= i < n * (c + 1) // num_runs.
    later = -(-(here + 1) * num_runs // n) - 1
    earlier = -(-here * num_runs // n) - 1
    return earlier if here and run - earlier < later - run else later
