"""Hashes of keys, in the order of their samples or in sorted runs → the tables of keys of a pack.

What is too much for memory is sorted in runs, in a temporary file without a name, and the runs are
merged a few thousand entries at a time: 100 million samples need as much memory as two million.
Nothing here knows where tables are in a file, or computes a hash.
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
"""Entries of a run; to sort one takes about 100 MB."""
_MERGED_LENGTH: Final = 1 << 19
"""Entries of all runs that are in memory while they are merged."""
_MIN_CHUNK: Final = 1 << 10


class Entries(NamedTuple):
    """A part of the tables: hashes, ascending, and the samples that have them.

    Attributes:
        hashes: Shape ``(num_entries,)``.
        positions: Indices of samples in the dataset; ascending where hashes are equal.
    """

    hashes: WordArray
    positions: IntArray

    def part(self, start: int, stop: int | None = None) -> Entries:
        """Return the entries from a place on."""
        return Entries(self.hashes[start:stop], self.positions[start:stop])


class KeyTable:
    """The tables of keys of a dataset while it is read in order; use it as a context manager.

    Args:
        folder: Where to put the temporary file, which has 12 bytes for each sample; None for the
            system's folder of temporary files. There is none below a million samples.

    Attributes:
        total: Samples so far.
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
        """Yield all entries, ascending by hash, in parts."""
        if not self._runs:
            yield self._sorted()
            return
        if self._num_unsorted:
            self._spill()
        length = chunk_length(len(self._runs))
        yield from merged([self._read(run, length) for run in range(len(self._runs))])

    def _sorted(self) -> Entries:
        """Sort what is in memory, and forget it."""
        first = self.total - self._num_unsorted
        hashes = np.concatenate([np.empty(0, np.uint64), *self._unsorted])
        self._unsorted, self._num_unsorted = [], 0
        order = np.argsort(hashes, kind="stable")
        return Entries(hashes[order], order + first)

    def _spill(self) -> None:
        """Write what is in memory to the file as a sorted run."""
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
    """Return how many entries of each run to read at a time, to merge so many of them."""
    return max(_MERGED_LENGTH // max(num_runs, 1), _MIN_CHUNK)


def merged(runs: Sequence[Iterable[Entries]]) -> Iterator[Entries]:
    """Merge runs, each ascending by hash and read a chunk at a time.

    Args:
        runs: The runs; where hashes are equal, positions ascend from run to run.
    """
    buffers = [_Buffer(iter(run)) for run in runs]
    while True:
        # What is still unread of a run comes after the last entry that was read of it, so entries
        # below the first of these are complete. Equal ones wait: the rest may have more of them.
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
    """What was read of a run and is not merged yet: at least one entry until the run has ended."""

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
        """Remove and return the entries below a hash, or all of them; read more of the run."""
        entries = self._entries
        if bound is None:
            return entries
        stop = int(np.searchsorted(entries.hashes, np.uint64(bound), "left"))
        self._entries = entries.part(stop)
        # The run that has the bound has to continue, or its last entry would stay the bound.
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
