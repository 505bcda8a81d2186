"""A pack of indexes on a server, read by byte range: the part of it that is wanted.

A pack has some sixty bytes for each sample, a gigabyte for some datasets. Of a large one the
directory is read, then the index of each shard that is opened, and for a key a stretch of its
table. The same protocol as an `index.Pack`; this room is given a callable that reads a range.
"""

from __future__ import annotations

import zlib
from math import isqrt
from typing import Any, Final

import numpy as np

from wids.tars.index import (
    PACK_HEADER_NBYTES,
    ShardIndex,
    TarIdentity,
    key_hash,
    pack_directory,
    pack_header,
    parse,
)
from wids.tars.names import KeySplit, to_bytes
from wids.tars.samples import ReadRange

_MAX_KEPT: Final = 64
"""Indexes of shards that are kept, with which they need not be asked for again."""


class RangePack:
    """A pack that is read by range; see `index.Pack`.

    The tables of keys are not compared as a whole with their checksum: what is read of them has to
    be in order. What they lead to is compared: a shard's index has a checksum of its own, and the
    key is looked for in it. Safe to use from any thread.

    Args:
        read_range: Gives the bytes from a start to a stop.
        nbytes: Length of the pack.

    Raises:
        ValueError: It is damaged, or no pack.
        FetchError: It cannot be read.
    """

    is_mapped: Final = False

    def __init__(self, read_range: ReadRange, nbytes: int) -> None:
        self._read_range = read_range
        start = read_range(0, min(PACK_HEADER_NBYTES, nbytes))
        header = pack_header(start)
        if header is None or header.nbytes != nbytes:
            raise ValueError("expected a pack of indexes, found something else")
        stop = header.names + header.names_nbytes
        if (
            not header.directory <= stop <= nbytes
            or stop - header.directory < 32 * header.num_shards
        ):
            raise ValueError("expected the directory of a pack, found something else")
        directory = read_range(header.directory, stop)
        if zlib.crc32(directory, zlib.crc32(start[16:])) != header.crc:
            raise ValueError("expected the directory of a pack, found it damaged")
        self._header = header
        (self._starts, self._lengths, self._tar_nbytes, self.num_samples), self._names = (
            pack_directory(directory, header)
        )
        is_sound = len(self._names) >= len(self) and int(self.num_samples.sum()) == header.total
        tables = ((header.hashes, 8), (header.positions, header.width))
        if not is_sound or any(at + width * header.total > nbytes for at, width in tables):
            raise ValueError("expected a pack of indexes, found one that does not fit together")
        self._kept: dict[tuple[int, int, KeySplit], ShardIndex | None] = {}

    def __len__(self) -> int:
        return len(self.num_samples)

    def is_named(self, number: int, name: str) -> bool:
        """Tell whether a shard of this base name was packed under this number."""
        return number < len(self) and self._names[number] == to_bytes(name)

    def tar_nbytes(self, number: int) -> int:
        """Give the length of the tar that was packed under a number."""
        return int(self._tar_nbytes[number])

    def index(self, number: int, tar_nbytes: int, key_split: KeySplit) -> ShardIndex | None:
        """Give the index of a shard; None where the tar, or the rule, is another one."""
        asked = (number, tar_nbytes, key_split)
        try:
            return self._kept[asked]
        except KeyError:
            pass
        start, nbytes = int(self._starts[number]), int(self._lengths[number])
        if tar_nbytes != self.tar_nbytes(number) or start + nbytes > self._header.nbytes:
            return None
        blob = self._read_range(start, start + nbytes)
        found = parse(blob, 0, len(blob), TarIdentity(tar_nbytes), key_split)
        # Each step is one operation on the dict, as other threads may take part.
        for old in list(self._kept)[: len(self._kept) - _MAX_KEPT + 1]:
            self._kept.pop(old, None)
        self._kept[asked] = found
        return found

    def shards_with(self, key: str) -> set[int] | None:
        """Give the numbers of the shards that may have a key; None where the tables are damaged."""
        wanted, total = key_hash(to_bytes(key)), self._header.total
        # Hashes are spread evenly, so that the place of one is known to a few square roots.
        middle, half = total * wanted >> 64, 8 * isqrt(total) + 512
        while True:
            low, high = max(middle - half, 0), min(middle + half, total)
            hashes = self._table(self._header.hashes, 8, low, high)
            if (hashes[1:] < hashes[:-1]).any():
                return None
            first, last = (int(np.searchsorted(hashes, np.uint64(wanted), s)) for s in _SIDES)
            if (first > 0 or low == 0) and (last < high - low or high == total):
                break
            half *= 8
        width = self._header.width
        positions = self._table(self._header.positions, width, low + first, low + last)
        if (positions >= total).any():
            return None
        ends = np.cumsum(self.num_samples)
        return set(np.searchsorted(ends, positions, side="right").tolist())

    def _table(self, offset: int, width: int, start: int, stop: int) -> np.ndarray[Any, Any]:
        if start == stop:
            return np.empty(0, f"<u{width}")
        data = self._read_range(offset + width * start, offset + width * stop)
        return np.frombuffer(data, f"<u{width}")


_SIDES: Final = ("left", "right")
