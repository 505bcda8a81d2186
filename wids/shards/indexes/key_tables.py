"""Sort hashes of keys into the tables of keys of a pack.

Hashes that do not fit in memory are sorted in runs, in temporary files without names, and the runs
are merged a few thousand entries at a time: 100 million samples need as much memory as two million.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Final, NamedTuple

import numpy as np

from wids.shards.tars.index import Column
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
