"""Members of a tar, noted while it is written → its index, without reading the tar again.

The counterpart of a scan, which finds the same members in a finished tar. Nothing here writes.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np

from wids.files.checksums import fastest_crc32
from wids.tars.archive import TarMembers
from wids.tars.index import ShardIndex, build_index


class MemberLog:
    """The members that were written so far."""

    def __init__(self) -> None:
        self._names: list[bytes] = []
        self._places = array("q")
        self._crc32 = fastest_crc32()

    def add(self, name: bytes, start: int, header: bytes, nbytes: int, crc: int) -> None:
        """Note a member.

        Args:
            name: Its name.
            start: Where its header begins in the tar.
            header: Its header, which has to say nothing but name, size and what fits one block.
            nbytes: Length of its bytes, which follow the header.
            crc: Their checksum.
        """
        self._names.append(name)
        self._places.extend((start, start + len(header), nbytes, self._crc32(header), crc))

    def index(self) -> ShardIndex:
        """Return the index of all members, with checksums."""
        places = np.frombuffer(self._places, np.int64).reshape(-1, 5).T
        heads, offsets, sizes, head_crcs, payload_crcs = np.ascontiguousarray(places)
        return replace(
            build_index(TarMembers(self._names, offsets, sizes, heads), "first"),
            head_crcs=head_crcs.astype(np.uint32),
            payload_crcs=payload_crcs.astype(np.uint32),
        )
