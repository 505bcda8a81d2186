"""Sort hashes of keys into the tables of keys of a pack.

Hashes that do not fit in memory are sorted in runs, in a temporary file without a name, and the
runs are merged a few thousand entries at a time: 100 million samples need as much memory as two
million.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import IO, Final, NamedTuple

import numpy as np

from wids.storage.array_types import IntArray, WordArray

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

    def part(self, start: int, stop: int | None = None) -> Entries:
        """Return the entries from ``start`` to ``stop``, or to the end."""
        return Entries(self.hashes[start:stop], self.positions[start:stop])


class KeyTable:
    """The tables of keys of a dataset while it is read in order; use it as a context manager.

    Args:
        folder: Where to put the temporary file, which has 12 bytes for each sample; None for the
            system's temporary folder. Below a million samples there is no file.

    Attributes:
        total: Number of samples so far.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.total = 0
        self._folder = folder
        self._unsorted: list[WordArray] = []
        self._num_unsorted = 0
        self._runs: list[tuple[int, int]] = []  # first position and length; in the file in order
        self._stack = ExitStack()

    def add(self, hashes: WordArray) -> None:
        """Add the hashes of the keys of the next samples."""
        self._unsorted.append(hashes)
        self._num_unsorted += len(hashes)
        self.total += len(hashes)
        if self._num_unsorted >= _RUN_LENGTH:
            self._spill()

    def entries(self) -> Iterator[Entries]:
        """Yield all entries in parts, ascending by hash."""
        if not self._runs:
            yield self._sorted()
            return
        if self._num_unsorted:
            self._spill()
        length = chunk_length(len(self._runs))
        yield from merged([self._read(run, length) for run in range(len(self._runs))])

    def _sorted(self) -> Entries:
        """Sort the hashes in memory, and release them."""
        first = self.total - self._num_unsorted
        hashes = np.concatenate([np.empty(0, np.uint64), *self._unsorted])
        self._unsorted, self._num_unsorted = [], 0
        order = np.argsort(hashes, kind="stable")
        return Entries(hashes[order], order + first)

    def _spill(self) -> None:
        """Write the hashes in memory to the file as a sorted run."""
        first = self.total - self._num_unsorted
        entries = self._sorted()
        if not self._runs:
            self._file = self._stack.enter_context(_new_file(self._folder))
        self._file.write(entries.hashes.data)
        self._file.write((entries.positions - first).astype(np.uint32).data)
        self._runs.append((first, len(entries.hashes)))

    def _read(self, run: int, length: int) -> Iterator[Entries]:
        """Yield the entries of a run, a chunk at a time."""
        first, total = self._runs[run]
        at = 12 * sum(count for _, count in self._runs[:run])
        for start in range(0, total, length):
            count = min(length, total - start)
            self._file.seek(at + 8 * start)
            hashes = np.frombuffer(self._file.read(8 * count), np.uint64)
            self._file.seek(at + 8 * total + 4 * start)
            offsets = np.frombuffer(self._file.read(4 * count), np.uint32)
            yield Entries(hashes, offsets.astype(np.int64) + first)

    def __enter__(self) -> KeyTable:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _new_file(folder: str | None) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)


def chunk_length(num_runs: int) -> int:
    """Return how many entries of each run to read at a time when merging this many runs."""
    return max(_MERGED_LENGTH // max(num_runs, 1), _MIN_CHUNK)


def merged(runs: Sequence[Iterable[Entries]]) -> Iterator[Entries]:
    """Merge runs, each ascending by hash and read a chunk at a time.

    Args:
        runs: The runs; where hashes are equal, positions ascend from run to run.
    """
    buffers = [_Buffer(iter(run)) for run in runs]
    while True:
        # The unread part of a run comes after the last entry read of it, so entries below the least
        # of these last ones are complete. Equal ones wait, since more of them may follow.
        limits = [buffer.last for buffer in buffers if not buffer.is_ended]
        bound = min(limits, default=None)
        parts = [part for part in (buffer.take(bound) for buffer in buffers) if len(part.hashes)]
        if parts:
            hashes = np.concatenate([part.hashes for part in parts])
            order = np.argsort(hashes, kind="stable")
            yield Entries(hashes[order], np.concatenate([part.positions for part in parts])[order])
        if bound is None:
            return


class _Buffer:
    """Entries of a run that are read but not merged yet: at least one until the run has ended."""

    def __init__(self, chunks: Iterator[Entries]) -> None:
        self._next = partial(next, chunks, None)
        self._entries = Entries(np.empty(0, np.uint64), np.empty(0, np.int64))
        self._enough = 0
        self.is_ended = False
        self._fill()

    @property
    def last(self) -> int:
        """The last hash that was read."""
        return int(self._entries.hashes[-1])

    def take(self, bound: int | None) -> Entries:
        """Remove and return the entries below a hash, or all entries; read more of the run."""
        entries = self._entries
        if bound is None:
            return entries
        stop = int(np.searchsorted(entries.hashes, np.uint64(bound), "left"))
        self._entries = entries.part(stop)
        # The run with the bound has to continue, or its last entry would stay the bound.
        if not self.is_ended and (len(self._entries.hashes) <= self._enough or self.last == bound):
            self._fill()
        return entries.part(0, stop)

    def _fill(self) -> None:
        chunk = self._next()
        while chunk is not None and not len(chunk.hashes):
            chunk = self._next()
        if chunk is None:
            self.is_ended = True
            return
        self._enough = len(chunk.hashes) // 2
        self._entries = Entries(*map(np.concatenate, zip(self._entries, chunk, strict=True)))
