"""Open one field of a sample as a file, of which only the requested parts are read."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any, Final, Protocol

from wids.shards.tars.readable_shard import ReadableShard

_BUFFER_NBYTES: Final = 256 << 10
"""Bytes of a request: films are read in steps of 32 kB, each of which would cost a round trip."""


class OpensShards(Protocol):
    """Opens shards by number, as `ShardReader` does."""

    def open(self, number: int, *, local: bool = True) -> ReadableShard:
        """Open a shard; not by fetching it if ``local`` is False."""


def open_field(
    reader: OpensShards, place: tuple[int, int], field: str, limit_nbytes: float = math.inf
) -> io.BufferedReader:
    """Open a field as a binary file that can seek.

    Args:
        reader: The shards.
        place: The number of the shard that has the sample, and its index there.
        field: The field, with its leading dot.
        limit_nbytes: Most bytes to read in all; reading more is an error.

    Raises:
        KeyError: The sample does not have the field.
        FetchError: The shard cannot be opened.
    """
    number, local_index = place
    shard = reader.open(number, local=False)
    _, nbytes = shard.index.place(local_index, field, f"shard {number}")
    left_nbytes = limit_nbytes

    def read(start: int, stop: int) -> bytes:
        nonlocal left_nbytes
        left_nbytes -= stop - start
        if left_nbytes < 0:
            raise OSError(f"more than {limit_nbytes:,} bytes would have to be read")
        # Opened for each part: a copy that stays open cannot be evicted (CACHE-7).
        return reader.open(number, local=False).read_part(local_index, field, start, stop)

    return io.BufferedReader(_FieldFile(nbytes, read), _BUFFER_NBYTES)


class _FieldFile(io.RawIOBase):
    """The bytes of a field, by a callable that reads from a start to a stop."""

    def __init__(self, nbytes: int, read: Callable[[int, int], bytes]) -> None:
        self._nbytes = nbytes
        self._read = read
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._nbytes}[whence]
        if base + offset < 0:
            raise ValueError(f"expected a position of 0 or more, found {base + offset}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        stop = min(self._at + len(buffer), self._nbytes)
        if stop <= self._at:
            return 0
        data = self._read(self._at, stop)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
