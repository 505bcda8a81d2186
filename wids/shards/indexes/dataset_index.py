"""Read a dataset index, the indexes of all shards of a dataset in one file, local or by byte range.

The class `DatasetIndex` says what a dataset index offers. A `LocalDatasetIndex` is a file that is
mapped, or read if it is small. A `RangeDatasetIndex` is remote; a callable reads its ranges. A
dataset index has about sixty bytes for each sample, a gigabyte for some datasets: of a large one
only the directory is read, then the index of each shard that is opened, and for a key a part of the
tables. This part must be in order, but only whole tables can be compared with their CRC.

`wids.shards.indexes.dataset_index_writer` writes dataset indexes; specs/shard-index.md describes
them byte by byte.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from io import FileIO
from math import isqrt
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wids.errors import MismatchError
from wids.shards.indexes import index_file
from wids.shards.indexes.index_file import VERSION
from wids.shards.tars.headers import KeySplit, to_bytes
from wids.shards.tars.index import Column, ShardIndex, TarIdentity
from wids.storage.arrays import IntArray
from wids.storage.files import FileBytes, advise, read_or_map

if TYPE_CHECKING:
    from wids.shards.indexes.key_tables import Entries, Run

_logger = logging.getLogger(__name__)


_STEP = 256
_PART_NBYTES = 1 << 20


class DatasetIndexNames:
    """Names that are separated by NULs.

    Args:
        data: The bytes.
    """

    def __init__(self, data: FileBytes | memoryview) -> None:
        self._data = memoryview(data)
        starts, length = [np.zeros(1, np.int64)], 1
        for at in range(0, len(self._data), _PART_NBYTES):
            part: npt.NDArray[np.uint8] = np.frombuffer(self._data[at : at + _PART_NBYTES], "u1")
            ends = np.flatnonzero(part == 0)
            # Where each name of a number that the step divides begins.
            starts.append(ends[-length % _STEP :: _STEP] + at + 1)
            length += len(ends)
        self._length = length
        self._starts: IntArray = np.concatenate(starts)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> bytes:
        block, place = divmod(number, _STEP)
        start = int(self._starts[block])
        stop = len(self._data)
        if block + 1 < len(self._starts):
            stop = int(self._starts[block + 1]) - 1
        return bytes(self._data[start:stop]).split(b"\0", place + 1)[place]


MAGIC: Final = b"wids-pak"
HEADER: Final = struct.Struct("<8sIIQQQQQQQQII")
CRC_START: Final = 16  # the CRC covers the header from here on, then the directory
_ENTRY_NBYTES: Final = 4 * 8
HEADER_NBYTES: Final = HEADER.size

_MAX_DIRECTORY_NBYTES: Final = 16_000_000
"""Largest directory for a spec without shards: a spec may list only some of the indexed shards."""
_MAX_ENTRY_NBYTES: Final = 1 << 10
"""What each shard of the spec adds to that limit: an entry, and a name of several hundred bytes."""
_INDEX_OVERHEAD_NBYTES: Final = 4 << 10
"""How much longer than its tar an index can be: a member has a header of 512 bytes in the tar, and
takes less in the index."""

MAX_OWN_NBYTES: Final = 1 << 20
"""Longest directory that each process has in its own memory; a longer one is mapped."""

_PART_LENGTH: Final = 1 << 20
"""Entries of the tables of keys to read at a time: 12 MB."""


class DatasetIndexHeader(NamedTuple):
    """The start of a dataset index; all positions are in bytes from there.

    Attributes:
        magic, version: What the file is.
        crc: CRC-32 of the rest of the header and the directory.
        nbytes: Length of the dataset index.
        num_shards: Number of shards.
        total: Number of samples in all shards.
        directory: Where the directory is.
        names, names_nbytes: Where the names are, which end the directory, and their length.
        hashes: Where the hashes of the keys are, ascending.
        positions: Where the samples' positions in the dataset are, in the order of the hashes.
        keys_crc: CRC-32 of hashes and positions.
        width: Bytes of a position: 4 or 8.
    """

    magic: bytes
    version: int
    crc: int
    nbytes: int
    num_shards: int
    total: int
    directory: int
    names: int
    names_nbytes: int
    hashes: int
    positions: int
    keys_crc: int
    width: int

    @property
    def directory_stop(self) -> int:
        """Where the directory ends, names included."""
        return self.names + self.names_nbytes

    def is_consistent(self, nbytes: int) -> bool:
        """Whether this is the header of a file of this length, with all sections inside."""
        return (
            self.nbytes == nbytes
            and self.width in (4, 8)
            and self.directory + _ENTRY_NBYTES * self.num_shards <= self.names
            and self.directory_stop <= nbytes
            and self.hashes + 8 * self.total <= nbytes
            and self.positions + self.width * self.total <= nbytes
        )


class DatasetIndex:
    """The indexes of all shards of a dataset; safe to use from any number of threads.

    The base of both kinds of dataset index, with what a dataset index says about its shards.

    Attributes:
        num_samples: Number of samples in each shard, shape ``(num_shards,)``.
        digest: Checksums that change with the keys and with the lengths of the tars.
        is_mapped: Whether the dataset index holds a file descriptor.
    """

    is_mapped = False

    def __init__(self, header: DatasetIndexHeader, data: bytes | memoryview) -> None:
        columns = np.frombuffer(data, "<u8", 4 * header.num_shards).reshape(4, -1)
        self._starts, self._lengths, self._tar_nbytes, self.num_samples = columns
        self._nbytes = header.nbytes
        self.digest = (header.crc, header.keys_crc)
        self._names = DatasetIndexNames(data[header.names - header.directory :])
        is_consistent = len(self._names) == max(len(self), 1)
        # Also as floats, since a sum of integers can wrap around.
        is_consistent &= int(self.num_samples.sum()) == header.total
        if not is_consistent or float(self.num_samples.sum(dtype=np.float64)) >= 1 << 63:
            raise ValueError("expected a dataset index, found one that contradicts itself")

    def __len__(self) -> int:
        return len(self.num_samples)

    def is_named(self, number: int, name: str) -> bool:
        """Whether the shard of this number has this base name."""
        return number < len(self) and self._names[number] == to_bytes(name)

    def stored_name(self, number: int) -> bytes:
        """Return the base name of a shard."""
        return self._names[number]

    def tar_nbytes(self, number: int) -> int:
        """Return the length of the tar of a shard."""
        return int(self._tar_nbytes[number])

    def index(self, number: int, tar_nbytes: int, key_split: KeySplit) -> ShardIndex | None:
        """Return the index of a shard; None if the tar, or the rule, is another one."""
        raise NotImplementedError

    def samples_with(self, key: str) -> list[tuple[int, int]] | None:
        """Return the samples that may have a key, each as shard number and index in the shard.

        None if the tables of keys are damaged.
        """
        raise NotImplementedError

    def has_key(self, number: int, local_index: int, key: str, key_split: KeySplit) -> bool:
        """Whether a sample has a key by a rule, according to the index of its shard."""
        raise NotImplementedError

    def _span(self, number: int, tar_nbytes: int) -> tuple[int, int] | None:
        """Return the span of a shard's index; None if the index cannot belong to this tar."""
        start, length = int(self._starts[number]), int(self._lengths[number])
        if tar_nbytes != self.tar_nbytes(number) or start + length > self._nbytes:
            return None
        return (start, start + length) if length <= tar_nbytes + _INDEX_OVERHEAD_NBYTES else None

    def _places(self, positions: Column) -> list[tuple[int, int]]:
        """Return the shard number and the index in the shard for each position."""
        ends = self._ends
        numbers = ends.searchsorted(positions.astype(np.uint64), side="right").tolist()
        return [
            (number, position - int(ends[number - 1]) if number else position)
            for number, position in zip(numbers, positions.tolist(), strict=True)
        ]

    @cached_property
    def _ends(self) -> npt.NDArray[np.uint64]:
        """Where the samples of each shard end, shape ``(num_shards,)``."""
        return np.cumsum(self.num_samples, dtype=np.uint64)


def parse_header(data: bytes, nbytes: int, num_shards: int = 0) -> DatasetIndexHeader:
    """Return the header of a dataset index.

    Args:
        data: Its first bytes.
        nbytes: Its length.
        num_shards: Number of shards of the spec that names it. This limits the length of its
            directory, since the author of the dataset index, or its server, can claim any.

    Raises:
        ValueError: It is not a dataset index of this version and length, and for that spec.
    """
    if len(data) < HEADER_NBYTES or data[: len(MAGIC)] != MAGIC:
        raise ValueError("expected a dataset index, found something else")
    header = DatasetIndexHeader(*HEADER.unpack_from(data, 0))
    if header.version != VERSION:
        raise ValueError(
            f"expected a dataset index of version {VERSION}, found version {header.version}; "
            "make it again with `wids create`"
        )
    if not header.is_consistent(nbytes):
        raise ValueError("expected a dataset index, found a damaged one")
    limit_nbytes = _MAX_DIRECTORY_NBYTES + _MAX_ENTRY_NBYTES * num_shards
    if header.directory_stop - header.directory > limit_nbytes:
        raise ValueError(
            f"expected a dataset index for {num_shards} shards, found one that claims "
            f"{header.num_shards}"
        )
    return header


def check_directory(header: bytes, directory: bytes | memoryview, crc: int) -> None:
    """Raise `ValueError` if the header or the directory of a dataset index is damaged."""
    if zlib.crc32(directory, zlib.crc32(header[CRC_START:HEADER_NBYTES])) != crc:
        raise ValueError("expected the directory of a dataset index, found it damaged")


def key_hash(key: bytes) -> int:
    """Return the 64-bit hash of a key in dataset indexes."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def equal_range(hashes: Column, wanted: int) -> tuple[int, int]:
    """Return the start and stop of the wanted hash in ascending hashes."""
    value = np.uint64(wanted)  # with a Python int, numpy would convert the whole table
    return int(np.searchsorted(hashes, value, "left")), int(np.searchsorted(hashes, value, "right"))


class LocalDatasetIndex(DatasetIndex):
    """A dataset index in a local file, which is mapped unless it is small; see `DatasetIndex`.

    Safe to share between threads and forked processes; unpickling maps the file again.

    Args:
        path: The file.
        data: Its bytes.
        num_shards: As for `parse_header`.

    Raises:
        ValueError: It is damaged, of another version, or not a dataset index.
    """

    def __init__(self, path: str, data: FileBytes, num_shards: int = 0) -> None:
        self.path = path
        self._data = data
        self.is_mapped = isinstance(data, mmap.mmap)
        self._num_shards = num_shards
        start = data[:HEADER_NBYTES]
        header = parse_header(start, len(data), num_shards)
        directory: bytes | memoryview = memoryview(data)[header.directory : header.directory_stop]
        if len(directory) <= MAX_OWN_NBYTES:
            # Mapped bytes must not be touched without checking the file's length.
            directory = bytes(directory)
        check_directory(start, directory, header.crc)
        super().__init__(header, directory)
        self._hashes = np.frombuffer(data, "<u8", header.total, header.hashes)
        self._positions = np.frombuffer(data, f"<u{header.width}", header.total, header.positions)
        self._keys_crc = header.keys_crc

    def __reduce__(self) -> Any:
        return load_dataset_index, (self.path, None, self._num_shards)

    def is_named(self, number: int, name: str) -> bool:
        """Whether the shard of this number has this base name."""
        return self.is_intact() and super().is_named(number, name)

    def index(self, number: int, tar_nbytes: int, key_split: KeySplit) -> ShardIndex | None:
        """Return the index of a shard; None if the tar, or the rule, is another one."""
        if not self.is_intact():
            return None
        span = self._span(number, tar_nbytes)
        if span is None:
            return None
        return index_file.parse(self._data, *span, TarIdentity(tar_nbytes), key_split)

    def samples_with(self, key: str) -> list[tuple[int, int]] | None:
        """Return the samples that may have a key, as in `DatasetIndex`."""
        if not self.has_sound_keys():
            return None
        first, last = equal_range(self._hashes, key_hash(to_bytes(key)))
        return self._places(self._positions[first:last])

    def has_key(self, number: int, local_index: int, key: str, key_split: KeySplit) -> bool:
        """Whether a sample has a key, as in `DatasetIndex`."""
        span = self._span(number, self.tar_nbytes(number)) if self.is_intact() else None
        return span is not None and index_file.has_key(
            self._data, *span, local_index, to_bytes(key), key_split
        )

    def repeated_keys(self) -> Iterator[Entries]:
        """Yield the hashes that occur more than once, ascending, in parts that split no hash.

        Yields nothing if the tables of keys are damaged.
        """
        from wids.shards.indexes.key_tables import Entries  # only publishing needs it

        start = 0
        total = len(self._hashes) if self.has_sound_keys() else 0
        while start < total:
            stop = min(start + _PART_LENGTH, total)
            stop = equal_range(self._hashes, int(self._hashes[stop - 1]))[1]
            hashes = self._hashes[start:stop]
            is_equal = hashes[1:] == hashes[:-1]
            is_repeated = np.append(is_equal, False)
            is_repeated[1:] |= is_equal
            if is_equal.any():
                positions = self._positions[start:stop][is_repeated].astype(np.int64)
                yield Entries(hashes[is_repeated], positions)
            start = stop
            self.release()

    def blob(self, number: int) -> bytes:
        """Return the index of a shard as stored."""
        start = int(self._starts[number])
        return self._data[start : start + int(self._lengths[number])]

    def keys_of(self, num_shards: int, first: int) -> Run:
        """Return the hashes of the keys of the first shards, with their samples.

        Args:
            num_shards: Number of shards.
            first: The position that the first sample gets.

        Raises:
            ValueError: The tables of keys are damaged.
        """
        from wids.shards.indexes.key_tables import Run  # only publishing needs it

        if not self.has_sound_keys():
            raise ValueError(f"{self.path}: expected tables of keys, found them damaged")
        limit = int(self.num_samples[:num_shards].sum())
        return Run(self._hashes, self._positions, limit, first)

    def release(self) -> None:
        """Release the memory of a mapped file; the bytes are read again on demand.

        The system would do this only when memory is scarce. Called between the steps of work that
        reads a whole dataset index, since dataset indexes can exceed the memory that such work may
        use.
        """
        if isinstance(self._data, mmap.mmap):
            advise(self._data, "DONTNEED")

    def close(self) -> None:
        """Unmap the file now: a file that is mapped has a name that Windows does not change."""
        data = self._data
        vars(self).clear()
        if isinstance(data, mmap.mmap):
            with suppress(BufferError):  # a caller has a part of it
                data.close()

    def is_intact(self) -> bool:
        """Whether the file still has its length: touching mapped bytes beyond its end is fatal."""
        return not isinstance(self._data, mmap.mmap) or self._data.size() == len(self._data)

    def has_sound_keys(self) -> bool:
        """Whether the tables of keys can be used; the first look-up reads them in full."""
        return self.is_intact() and self._is_sound

    @cached_property
    def _is_sound(self) -> bool:
        crc = 0
        for table in (self._hashes, self._positions):
            for start in range(0, len(table), _PART_LENGTH):
                crc = zlib.crc32(table[start : start + _PART_LENGTH].data, crc)
                self.release()
        return crc == self._keys_crc


def load_dataset_index(
    path: str, file: FileIO | None = None, num_shards: int = 0
) -> LocalDatasetIndex | None:
    """Open a local dataset index; None if there is none, or it is damaged or of another version.

    Args:
        path: The file.
        file: The file, if it is already open; always closed here.
        num_shards: As for `parse_header`.
    """
    data = read_or_map(path, file=file)
    try:
        return None if data is None else LocalDatasetIndex(path, data, num_shards)
    except ValueError as error:
        _logger.info("%s: %s", path, str(error))
        return None


Keep: TypeAlias = Callable[
    [Callable[[], bytes], Callable[["bytes | memoryview"], None]], "bytes | memoryview"
]

_MAX_STORED: Final = 64
"""Number of indexes to keep, so that reopening a shard costs no request."""


class RangeDatasetIndex(DatasetIndex):
    """A dataset index that is read by range; see `wids.shards.indexes.dataset_index.DatasetIndex`.

    The tables of keys are never read in full, so they are not compared with their checksum; the
    hashes that are read have to ascend. The index of a shard has its own checksum, and the key is
    compared with it. Safe to use from any thread.

    Args:
        read_range: Returns the bytes from a start to a stop.
        nbytes: Length of the dataset index.
        num_shards: As for `parse_header`.
        keep: Called with a callable that reads the directory, if it is long, and with one that
            raises `ValueError` for a damaged one; returns the directory, from where it was kept.
        read_table: As ``read_range``, but raises `MismatchError` for bytes of another version than
            before, since no checksum is compared; None for ``read_range``.

    Raises:
        ValueError: It is damaged, of another version, or not a dataset index.
        FetchError: It cannot be read.
    """

    def __init__(
        self,
        read_range: Callable[[int, int], bytes],
        nbytes: int,
        num_shards: int = 0,
        keep: Keep = lambda read, _: read(),
        read_table: Callable[[int, int], bytes] | None = None,
    ) -> None:
        self._read_range = read_range
        self._read_table = read_table or read_range
        start = read_range(0, min(HEADER_NBYTES, nbytes)) if nbytes else b""
        self._header = parse_header(start, nbytes, num_shards)
        place = (self._header.directory, self._header.directory_stop)

        def read() -> bytes:
            return read_range(*place) if place[0] < place[1] else b""

        def check(found: bytes | memoryview) -> None:
            check_directory(start, found, self._header.crc)

        directory = keep(read, check) if place[1] - place[0] > MAX_OWN_NBYTES else read()
        check(directory)
        super().__init__(self._header, directory)
        self._stored: dict[tuple[int, int, KeySplit], ShardIndex | None] = {}

    def index(self, number: int, tar_nbytes: int, key_split: KeySplit) -> ShardIndex | None:
        """Return the index of a shard; None if the tar, or the rule, is another one."""
        request = (number, tar_nbytes, key_split)
        try:
            return self._stored[request]
        except KeyError:
            pass
        span = self._span(number, tar_nbytes)
        if span is None or span[0] == span[1]:
            return None
        blob = self._read_range(*span)
        shard_index = index_file.parse(blob, 0, len(blob), TarIdentity(tar_nbytes), key_split)
        # Each step is one atomic operation on the dict, since other threads may use it.
        for old in list(self._stored)[: len(self._stored) - _MAX_STORED + 1]:
            self._stored.pop(old, None)
        self._stored[request] = shard_index
        return shard_index

    def samples_with(self, key: str) -> list[tuple[int, int]] | None:
        """Return the samples that may have a key, as in `DatasetIndex`; None if tables are damaged.

        Also if parts of them may be of different versions.
        """
        try:
            return self._samples_with(key)
        except MismatchError:
            return None

    def _samples_with(self, key: str) -> list[tuple[int, int]] | None:
        wanted, total = key_hash(to_bytes(key)), self._header.total
        # Hashes are uniform, so the position of one is known to within a few square roots.
        middle, half = total * wanted >> 64, 8 * isqrt(total) + 512
        while True:
            low, high = max(middle - half, 0), min(middle + half, total)
            hashes = self._table(self._header.hashes, 8, low, high)
            if (hashes[1:] < hashes[:-1]).any():
                return None
            first, last = equal_range(hashes, wanted)
            if (first > 0 or low == 0) and (last < high - low or high == total):
                break
            half *= 8
        width = self._header.width
        positions = self._table(self._header.positions, width, low + first, low + last)
        return None if (positions >= total).any() else self._places(positions)

    def has_key(self, number: int, local_index: int, key: str, key_split: KeySplit) -> bool:
        """Whether a sample has a key, as in `DatasetIndex`; reads the index of its shard."""
        shard_index = self.index(number, self.tar_nbytes(number), key_split)
        return (
            shard_index is not None
            and local_index < len(shard_index)
            and shard_index.key(local_index) == key
        )

    def _table(self, offset: int, width: int, start: int, stop: int) -> Column:
        """Read a part of a table of integers."""
        if start == stop:
            return np.empty(0, f"<u{width}")
        data = self._read_table(offset + width * start, offset + width * stop)
        return np.frombuffer(data, f"<u{width}")
