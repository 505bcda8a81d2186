"""Store which entries belong together in the cache folder, under a name made of both sides.

The file is complete or absent, and checked when it is loaded: a file that is damaged, of another
version or of other keys counts as missing. specs/joins.md describes it byte by byte.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wids.shards.tars.mapped_file import read_or_map
from wids.storage.array_types import IntArray
from wids.storage.cache.cache_names import indexes_folder
from wids.storage.cache.small_files import save_quietly

_MAGIC: Final = b"wids-joi"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sIIQQQII32s")
_CRC_START: Final = 16  # the CRC covers all bytes from here on


@dataclass(frozen=True, eq=False)
class PositionMap:
    """For each position of a dataset, the entry of the other side that has its key.

    Attributes:
        start: The first position that `targets` has.
        targets: The entries; -1 where the other side does not have the key.
        fields: All fields that the shards of the entries store. Which of them are read is not part
            of the digest; the reader decides.
    """

    start: int
    targets: npt.NDArray[np.signedinteger]
    fields: tuple[str, ...]

    def one(self, position: int) -> int:
        """Return the entry of a position, -1 where there is none."""
        local = position - self.start
        # A hundred times as fast as asking for an array of one.
        return int(self.targets[local]) if 0 <= local < len(self.targets) else -1

    def at(self, positions: npt.NDArray[np.integer]) -> IntArray:
        """Return the entries of positions, -1 where there is none."""
        local = positions - self.start
        if len(local) and (local.min() < 0 or local.max() >= len(self.targets)):
            is_outside = (local < 0) | (local >= len(self.targets))
            inside = self.targets[np.where(is_outside, 0, local)] if len(self.targets) else -1
            return np.where(is_outside, -1, inside).astype(np.int64)
        found: IntArray = self.targets[local].astype(np.int64)
        return found


class EveryPosition(PositionMap):
    """Maps each position to itself."""

    def __init__(self) -> None:
        super().__init__(0, np.empty(0, np.int64), ())

    def one(self, position: int) -> int:
        """Return the position."""
        return position

    def at(self, positions: npt.NDArray[np.integer]) -> IntArray:
        """Return the positions."""
        return positions.astype(np.int64, copy=False)


def map_path(cache_folder: str, digest: bytes) -> str:
    """Return the path of the file for two sides with a digest."""
    return os.path.join(indexes_folder(cache_folder), f"{digest.hex()[:32]}-keys.join")


def save(path: str, digest: bytes, positions: PositionMap) -> None:
    """Store a map if possible."""
    fields = b"\0".join(name.encode("utf-8", "surrogateescape") for name in positions.fields)
    targets = positions.targets
    body = targets.astype(targets.dtype.newbyteorder("<")).tobytes() + fields
    header = (len(body) + _HEADER.size, positions.start, len(targets), targets.itemsize, 0, digest)
    rest = _HEADER.pack(_MAGIC, _VERSION, 0, *header)[_CRC_START:] + body
    start = struct.pack("<8sII", _MAGIC, _VERSION, zlib.crc32(rest))
    save_quietly(path, start + rest)


def load(path: str, digest: bytes) -> PositionMap | None:
    """Return the map that this user stored for two sides; None if there is no valid one."""
    data = read_or_map(path, is_own=True)
    if data is None or len(data) < _HEADER.size:
        return None
    # Copied, since a mapped file that is truncated later would kill the process.
    blob = data[:]
    magic, version, crc, nbytes, start, count, width, _, found = _HEADER.unpack_from(blob, 0)
    if (magic, version, nbytes, found) != (_MAGIC, _VERSION, len(blob), digest):
        return None
    stop = _HEADER.size + count * width
    if zlib.crc32(memoryview(blob)[_CRC_START:]) != crc or width not in (4, 8) or stop > nbytes:
        return None
    dtype: np.dtype[Any] = np.dtype(f"<i{width}")
    targets = np.frombuffer(blob, dtype, count, _HEADER.size)
    fields = blob[stop:].decode("utf-8", "surrogateescape").split("\0") if stop < nbytes else []
    return PositionMap(start, targets, tuple(fields))
