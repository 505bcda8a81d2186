"""Open a field as a file that can seek, of which only what is read leaves the shard."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from wids.shards.policy import Wanted
from wids.shards.tars.raw_samples import ReadableShard
from wids.storage.cache import cache_names

_BUFFER_NBYTES: Final = 256 << 10
"""Bytes of a request: video is read in steps of 32 kB, each of which would cost a round trip."""


def open_field(
    open_shard: Callable[..., ReadableShard],
    place: tuple[int, int],
    field: str,
    limit_nbytes: float = math.inf,
    cache_folder: str | None = None,
) -> io.BufferedReader:
    """Open a field as a binary file that can seek.

    Args:
        open_shard: Opens a shard by its number, as `ShardReader.open` does.
        place: The number of the shard that has the sample, and its index there.
        field: The field, with its leading dot.
        limit_nbytes: Most bytes to read in all; reading more is an error.
        cache_folder: Where what a decoder finds out about the field is kept; None for nowhere.

    Raises:
        KeyError: The sample does not have the field.
        FetchError: The shard cannot be opened.
    """
    number, local_index = place
    shard = open_shard(number, Wanted.PART)
    index, saver = shard.index, None
    member = index.member(local_index, field, f"shard {number}")
    nbytes = int(index.sizes[member])
    if cache_folder is not None and len(index.payload_crcs):
        facts = index.member_name(member), int(index.payload_crcs[member]), nbytes
        path = cache_names.frames_path(cache_folder, shard.name, *facts)
        saver = partial(cache_names.saved_or_made, path)
    left_nbytes = limit_nbytes

    def read(start: int, stop: int) -> bytes:
        nonlocal left_nbytes
        left_nbytes -= stop - start
        if left_nbytes < 0:
            raise OSError(f"more than {limit_nbytes:,} bytes would have to be read")
        # Opened for each part: a copy that stays open cannot be evicted (CACHE-7).
        return open_shard(number, Wanted.PART).read_part(local_index, field, start, stop)

    return io.BufferedReader(_FieldFile(nbytes, read, saver), _BUFFER_NBYTES)


class _FieldFile(io.RawIOBase):
    """The bytes of a field, by a callable that reads from a start to a stop.

    Attributes:
        kept: Returns what a decoder has found out about the field in an earlier process, or calls
            a callable that finds it out; None if that is not kept.
    """

    def __init__(
        self,
        nbytes: int,
        read: Callable[[int, int], bytes],
        kept: Callable[[Callable[[], bytes]], bytes] | None,
    ) -> None:
        self.kept = kept
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
