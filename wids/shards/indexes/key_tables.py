"""Sort hashes of keys into the tables of keys of a pack.

Hashes that do not fit in memory are sorted in runs, in mapped temporary files without names, and
the runs are merged a few thousand entries at a time: 100 million samples need as much memory as two
million.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from typing import IO, Final, NamedTuple

import numpy as np

from wids.shards.tars.index import Column
from wids.shards.tars.mapped_file import advise
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


class Run(NamedTuple):
    """Ascending entries, in memory or mapped.

    Attributes:
        hashes: Shape ``(num_entries,)``.
        positions: Indices of samples, counted from ``first``; those from ``limit`` on are left out.
        limit: Number of samples.
        first: Index of the first of them in the dataset.
    """

    hashes: WordArray
    positions: Column
    limit: int
    first: int

    def part(self, start: int, stop: int) -> Entries:
        """Return the entries from ``start`` to ``stop``."""
        positions = self.positions[start:stop].astype(np.int64)
        is_in = positions < self.limit
        return Entries(self.hashes[start:stop][is_in], positions[is_in] + self.first)


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
        maps = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in self._files]
        hashes, positions = (np.frombuffer(*pair) for pair in zip(maps, _TYPES, strict=True))
        runs = [
            Run(hashes[start:stop], positions[start:stop], stop - start, start)
            for start, stop in pairwise(self._starts)
        ]
        yield from merged(runs, [partial(advise, data, "DONTNEED") for data in maps])

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


def merged(runs: Sequence[Run], releases: Iterable[Callable[[], None]]) -> Iterator[Entries]:
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
        nexts = [run.hashes[at + length] for run, at in begun if at + length < len(run.hashes)]
        if nexts:
            ends = [
                at + int(run.hashes[at:].searchsorted(min(nexts), "right")) for run, at in begun
            ]
        else:
            ends = stops
        parts = [run.part(at, end) for (run, at), end in zip(begun, ends, strict=True)]
        hashes, positions = map(np.concatenate, zip(*parts, strict=True))
        order = np.argsort(hashes, kind="stable")
        yield Entries(hashes[order], positions[order])
        starts = ends
        for release in releases:
            release()
