"""Record the members of a tar while it is written, and index them without reading the tar.

A scan finds the same members in a finished tar.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np

from wids.shards.tars.archive import TarMembers
from wids.shards.tars.index import ShardIndex, build_index
from wids.storage.array_types import IntArray
from wids.storage.checksums import fastest_crc32


class MemberLog:
    """The members written so far."""

    def __init__(self) -> None:
        self._names: list[bytes] = []
        self._places = array("q")
        self._crc32 = fastest_crc32()

    def add(self, name: bytes, start: int, header: bytes, nbytes: int, crc: int) -> None:
        """Record a member.

        Args:
            name: Its name.
            start: Where its header begins in the tar.
            header: Its header, which must state only the name, the size and what fits one block.
            nbytes: Length of its bytes, which follow the header.
            crc: Their checksum.
        """
        self._names.append(name)
        self._places.extend((start, start + len(header), nbytes, self._crc32(header), crc))

    def extend(
        self,
        names: list[bytes],
        starts: IntArray,
        head_nbytes: int,
        sizes: IntArray,
        head_crcs: list[int],
        crcs: list[int],
    ) -> None:
        """Record several members whose headers have the same length, as `add` does."""
        self._names += names
        places = np.stack((starts, starts + head_nbytes, sizes, head_crcs, crcs), 1)
        self._places.frombytes(places.astype(np.int64).tobytes())

    def index(self) -> ShardIndex:
        """Return the index of all members, with checksums."""
        places = np.frombuffer(self._places, np.int64).reshape(-1, 5).T
        heads, offsets, sizes, head_crcs, payload_crcs = np.ascontiguousarray(places)
        return replace(
            build_index(TarMembers(self._names, offsets, sizes, heads), "first"),
            head_crcs=head_crcs.astype(np.uint32),
            payload_crcs=payload_crcs.astype(np.uint32),
        )
