"""Hash keys to 64 bits, and sort the hashes of a dataset index into its tables of keys.

Equal keys have equal hashes. A match has to be compared with the key itself, since other keys with
the same hash can be constructed. The hash functions here are for the memory of a process; dataset
indexes have others (specs/shard-index.md), which take ten times as long to compute.

Hashes that do not fit in memory are sorted in runs, in temporary files without names. The runs are
merged a few thousand entries at a time: 100 million samples need as much memory as two million.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import IO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wids.shards.tars.index import Column, ShardIndex
from wids.storage.arrays import IntArray, WordArray

# The hash of a key is the sum of its bytes times ascending powers of an odd number, modulo 2**64.
# One running sum yields the sums over all stretches of a text, and an odd number has an inverse.
_BASE: Final = 0x9E3779B97F4A7C15
_INVERSE: Final = pow(_BASE, -1, 1 << 64)
_MASK: Final = (1 << 64) - 1

_BLOCK_NBYTES: Final = 1 << 17
"""Bytes of text to hash at a time, as numbers that take eight times as much memory."""


def key_hash(key: bytes) -> int:
    """Return the hash of one key."""
    value = 0
    for byte in reversed(key):
        value = (value * _BASE + byte) & _MASK
    return value


def key_hashes(shard_index: ShardIndex) -> WordArray:
    """Return the hash of each key of a shard, shape ``(num_samples,)``."""
    nbytes = shard_index.text_stop - shard_index.text_start
    text = np.frombuffer(shard_index.text, np.uint8, nbytes, shard_index.text_start)
    return text_hashes(text, shard_index.key_starts)


def text_hashes(text: npt.NDArray[np.uint8], starts: npt.NDArray[np.integer]) -> WordArray:
    """Return the hashes of consecutive stretches of a text, one byte apart.

    Args:
        text: Bytes, shape ``(num_bytes,)``.
        starts: Where each stretch begins, ascending, and where the next one would begin; shape
            ``(num_stretches + 1,)``.
    """
    starts = starts.astype(np.int64)
    hashes = np.zeros(len(starts) - 1, np.uint64)
    first = 0
    while first < len(hashes):
        # As many as fit into a block, but at least one, however long.
        limit = starts[first] + _BLOCK_NBYTES
        stop = max(int(np.searchsorted(starts, limit, "right")) - 1, first + 1)
        edges = starts[first : stop + 1]
        _hash_block(text[edges[0] : edges[-1] - 1], edges - edges[0], hashes[first:stop])
        first = stop
    return hashes


def _hash_block(text: npt.NDArray[np.uint8], starts: IntArray, out: WordArray) -> None:
    size = 1 << len(text).bit_length()
    sums = np.zeros(len(text) + 1, np.uint64)
    np.multiply(text, _powers(_BASE, size)[: len(text)], out=sums[1:])
    np.cumsum(sums, out=sums)
    begins, ends = starts[:-1], starts[1:] - 1
    np.subtract(sums[ends], sums[begins], out=out)
    out *= _powers(_INVERSE, size)[begins]


@lru_cache(maxsize=4)  # for two sizes: shards of a dataset have similar lengths
def _powers(base: int, size: int) -> WordArray:
    """Return the powers of a number from 0 on, modulo 2**64."""
    powers = np.full(size, base, np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


_RUN_LENGTH: Final = 1 << 20
"""Entries of a run; sorting one takes about 100 MB."""
_MERGED_LENGTH: Final = 1 << 19
"""Entries of all runs in memory while they are merged."""
_MIN_CHUNK: Final = 1 << 10


class Entries(NamedTuple):
    """A part of the tables: ascending hashes, and the samples that have them.

    Attributes:
        hashes: Shape ``(num_entries,)``.
        positions: Indices of samples in the dataset; ascending where hashes are equal.
    """

    hashes: WordArray
    positions: IntArray


class _Stored:
    """Unsigned integers of a file, which are read when they are sliced."""

    def __init__(self, file: IO[bytes], width: int, places: range) -> None:
        self._file, self._width, self._places = file, width, places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, wanted: slice) -> Column:
        places = self._places[wanted]
        self._file.seek(self._width * places.start)
        return np.frombuffer(self._file.read(self._width * len(places)), f"u{self._width}")


class Run(NamedTuple):
    """Ascending entries, in memory, mapped, or in a file.

    Attributes:
        hashes: Shape ``(num_entries,)``.
        positions: Indices of samples, counted from ``first``; those from ``limit`` on are left out.
        limit: Number of samples.
        first: Index of the first of them in the dataset.
    """

    hashes: WordArray | _Stored
    positions: Column | _Stored
    limit: int
    first: int

    def part(self, start: int, stop: int) -> Entries:
        """Return the entries from ``start`` to ``stop``."""
        positions = self.positions[start:stop].astype(np.int64)
        is_in = positions < self.limit
        return Entries(self.hashes[start:stop][is_in], positions[is_in] + self.first)

    def end(self, start: int, length: int, bound: np.uint64) -> int:
        """Return where the hashes up to a bound end, which probably are at most ``length``."""
        # Looking further would read much of the run.
        near = self.hashes[start : start + length]
        if len(near) and near[-1] > bound:
            return start + int(near.searchsorted(bound, "right"))
        return start + int(self.hashes[start:].searchsorted(bound, "right"))


class KeyTable:
    """The tables of keys of a dataset while it is read in order; use it as a context manager.

    Args:
        folder: Where to put the temporary files, which have 12 bytes for each sample; None for the
            system's temporary folder. Below a million samples there are none.

    Attributes:
        total: Number of samples so far.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.total = 0
        self._folder = folder
        self._unsorted: list[WordArray] = []
        self._starts = [0]  # of the runs in the files, and of what is unsorted
        self._files: list[IO[bytes]] = []
        self._stack = ExitStack()

    def add(self, hashes: WordArray) -> None:
        """Add the hashes of the keys of the next samples."""
        self._unsorted.append(hashes)
        self.total += len(hashes)
        if self.total - self._starts[-1] >= _RUN_LENGTH:
            self._spill()

    def entries(self) -> Iterator[Entries]:
        """Yield all entries in parts, ascending by hash."""
        if len(self._starts) == 1:
            yield self._sorted()
            return
        if self.total > self._starts[-1]:
            self._spill()
        # Not mapped: the system may map megabytes around each place that is read.
        hashes, positions = self._files
        runs = [
            Run(_Stored(hashes, 8, span), _Stored(positions, 4, span), len(span), span[0])
            for span in map(range, self._starts, self._starts[1:])
        ]
        yield from merged(runs)

    def _sorted(self) -> Entries:
        """Sort the hashes in memory, and release them."""
        hashes = np.concatenate([np.empty(0, np.uint64), *self._unsorted])
        self._unsorted = []
        order = np.argsort(hashes, kind="stable")
        return Entries(hashes[order], order)

    def _spill(self) -> None:
        """Write the hashes in memory to the files as a sorted run."""
        if len(self._starts) == 1:
            for _ in _TYPES:
                new = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
                self._files.append(self._stack.enter_context(new))
        for file, column, dtype in zip(self._files, self._sorted(), _TYPES, strict=True):
            file.write(column.astype(dtype).data)
            file.flush()
        self._starts.append(self.total)

    def __enter__(self) -> KeyTable:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


_TYPES: Final = (np.uint64, np.uint32)
"""Types of hashes, and of positions in a run, in the files."""


def merged(runs: Sequence[Run], releases: Iterable[Callable[[], None]] = ()) -> Iterator[Entries]:
    """Merge runs, a few entries of each at a time.

    Args:
        runs: The runs; where hashes are equal, positions ascend from run to run.
        releases: Called after each step, to release mapped memory that was read.
    """
    starts, stops = [0] * len(runs), [len(run.hashes) for run in runs]
    length = max(_MERGED_LENGTH // max(len(runs), 1), _MIN_CHUNK)
    while starts != stops:
        begun = list(zip(runs, starts, strict=True))
        # Up to the least of these hashes, no run has many more entries than `length`.
        nexts = [h for run, at in begun for h in run.hashes[at + length : at + length + 1]]
        ends = [run.end(at, length, min(nexts)) for run, at in begun] if nexts else stops
        if ends == starts:
            raise ValueError("expected tables of keys in ascending order, found another one")
        parts = [run.part(at, end) for (run, at), end in zip(begun, ends, strict=True)]
        hashes, positions = map(np.concatenate, zip(*parts, strict=True))
        order = np.argsort(hashes, kind="stable")
        for release in releases:
            release()
        yield Entries(hashes[order], positions[order])
        starts = ends
