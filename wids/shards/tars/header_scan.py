"""Scan a tar that is read in parts, member by member.

Each slice of such a tar may be a request to a server, so only the strict lane is used, and nothing
is read between two headers. Members, order and errors are those of `scan`, as specified in
specs/tar-shards.md.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np

from wids.shards.tars.headers import Archive, KeySplit, TarData, TarMembers
from wids.shards.tars.index import Repeated, ShardIndex, build_index
from wids.shards.tars.scan import read_next


class HeaderScan:
    """The scan of one tar, a member at a time; not safe to use from several threads at once.

    Args:
        data: The tar. An error raised by slicing it ends a step, which can then be repeated.
        path: Its name in messages.

    Attributes:
        position: Where the next header begins.

    Raises:
        ShardFormatError: The tar is empty.
    """

    def __init__(self, data: TarData, path: str = "tar") -> None:
        self.position = 0
        self._archive = Archive(data, path)
        self._crcs: dict[int, int] = {}  # of the headers before the bytes at an offset

    @property
    def is_complete(self) -> bool:
        """Whether all headers were read."""
        return self.position >= self._archive.nbytes

    @property
    def num_members(self) -> int:
        """Members found so far."""
        return len(self._archive.members.names)

    def step(self) -> None:
        """Read the next member, or the end of the archive.

        Raises:
            ShardFormatError: The tar breaks a rule of specs/tar-shards.md.
        """
        archive = self._archive
        known = self.num_members
        self.position = read_next(archive, self.position)
        if self.is_complete:
            archive.remark_end()
        if self.num_members > known:
            offset, _, head = archive.members.last()
            self._header_crc(head, offset)  # now, while the bytes are in memory

    def _header_crc(self, head: int, offset: int) -> int:
        # For a hard link these are the headers of its target, which were already read.
        if offset not in self._crcs:
            self._crcs[offset] = zlib.crc32(self._archive.data[head:offset])
        return self._crcs[offset]

    def members(self) -> TarMembers:
        """Return the members found so far."""
        return self._archive.result()

    def index(
        self, members: TarMembers, key_split: KeySplit = "first", repeated: Repeated = "error"
    ) -> ShardIndex:
        """Return the index of found members, with the checksums of their headers.

        It equals the index that `index_tar` makes with ``checksums=True``, but without the
        checksums of the members' bytes, which are not read.
        """
        shard_index = build_index(members, key_split, self._archive.path, repeated)
        heads, offsets, _ = (edges.tolist() for edges in shard_index.spans())
        crcs = list(map(self._header_crc, heads, offsets))
        return replace(shard_index, head_crcs=np.array(crcs, np.uint32))
