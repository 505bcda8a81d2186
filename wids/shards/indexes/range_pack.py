"""Read parts of a remote pack of indexes by byte range.

A pack has about sixty bytes for each sample, a gigabyte for some datasets. Of a large one, only the
directory is read, then the index of each shard that is opened, and for a key a part of the tables.
A callable reads the ranges.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Final, TypeAlias

import numpy as np

from wids.shards.indexes import index_file
from wids.shards.indexes.pack import (
    HEADER_NBYTES,
    MAX_OWN_NBYTES,
    Pack,
    check_directory,
    equal_range,
    key_hash,
    parse_header,
)
from wids.shards.tars.index import Column, ShardIndex, TarIdentity
from wids.shards.tars.member_names import KeySplit, to_bytes

Keep: TypeAlias = Callable[
    [Callable[[], bytes], Callable[["bytes | memoryview"], None]], "bytes | memoryview"
]

_MAX_STORED: Final = 64
"""Number of indexes to keep, so that reopening a shard costs no request."""


class RangePack(Pack):
    """A pack that is read by range; see `wids.shards.indexes.pack.Pack`.

    The tables of keys are never read in full, so they are not compared with their checksum; the
    hashes that are read have to ascend. The index of a shard has its own checksum, and the key is
    compared with it. Safe to use from any thread.

    Args:
        read_range: Returns the bytes from a start to a stop.
        nbytes: Length of the pack.
        num_shards: As for `parse_header`.
        keep: Called with a callable that reads the directory, if it is long, and with one that
            raises `ValueError` for a damaged one; returns the directory, from where it was kept.

    Raises:
        ValueError: It is damaged, of another version, or not a pack.
        FetchError: It cannot be read.
    """

    def __init__(
        self,
        read_range: Callable[[int, int], bytes],
        nbytes: int,
        num_shards: int = 0,
        keep: Keep = lambda read, _: read(),
    ) -> None:
        self._read_range = read_range
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
        """Return the samples that may have a key, as in `Pack`; None if the tables are damaged."""
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
        """Whether a sample has a key, as in `Pack`; reads the index of its shard."""
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
        data = self._read_range(offset + width * start, offset + width * stop)
        return np.frombuffer(data, f"<u{width}")
