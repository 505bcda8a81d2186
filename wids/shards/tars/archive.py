"""Hold the state of a scan: the bytes of one tar, and the members found so far.

Both lanes of the scan read and extend this state.
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from dataclasses import dataclass
from mmap import mmap
from posixpath import normpath
from typing import Final, Protocol, TypeAlias, overload

import numpy as np

from wids.errors import ShardFormatError, printable
from wids.storage.array_types import IntArray

TarBytes: TypeAlias = bytes | mmap


class TarData(Protocol):
    """The bytes of a tar by position: all in memory, or read when a slice is taken."""

    def __len__(self) -> int:
        """Return the length of the tar in bytes."""

    def __getitem__(self, span: slice, /) -> bytes:
        """Return the bytes from a start to a stop."""


BLOCK_NBYTES: Final = 512

_MAX_REMARKS: Final = 100  # of each level; a hostile tar can cause millions
_ZERO_BLOCK = bytes(BLOCK_NBYTES)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TarMembers:
    """The regular files of one tar, in archive order.

    Attributes:
        names: Member names as stored, one for each member.
        offsets: Where the members' bytes begin, shape ``(num_members,)``, in bytes from the start.
        sizes: Lengths of the members, shape ``(num_members,)``, in bytes.
        heads: Where the headers that end at ``offsets`` begin, including the extended ones that
            name the member, shape ``(num_members,)``; for a hard link the headers of its target.
        remarks: Oddities of the archive that are not errors, one sentence each.
    """

    names: list[bytes]
    offsets: IntArray
    sizes: IntArray
    heads: IntArray
    remarks: tuple[str, ...] = ()


class MemberColumns:
    """The members found so far, as columns that grow by single members and by batches."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self._columns = array("q"), array("q"), array("q")  # offsets, sizes and heads
        self._by_name: dict[bytes, tuple[int, int, int]] = {}
        self._num_by_name = 0  # members that _by_name covers

    def append(self, name: bytes, offset: int, size: int, head: int) -> None:
        """Add one member."""
        self.names.append(name)
        for column, value in zip(self._columns, (offset, size, head), strict=True):
            column.append(value)

    def extend(
        self, names: list[bytes], offsets: IntArray, sizes: IntArray, heads: IntArray
    ) -> None:
        """Add a batch of members."""
        self.names += names
        for column, values in zip(self._columns, (offsets, sizes, heads), strict=True):
            column.frombytes(values.tobytes())

    def columns(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return offsets, sizes and heads, one array each."""
        offsets, sizes, heads = (np.array(column, np.int64) for column in self._columns)
        return offsets, sizes, heads

    def last(self) -> tuple[int, int, int]:
        """Return the offset, size and head of the last member added."""
        offsets, sizes, heads = self._columns
        return offsets[-1], sizes[-1], heads[-1]

    def find(self, name: bytes) -> tuple[int, int, int] | None:
        """Return the offset, size and head of the last member with a name, or None.

        ``./a`` and ``a`` are one name, as for readers that unpack the archive into a folder.
        """
        # Built here, not in `extend`: most tars have no hard links, and a dict of all names costs
        # more than the scan.
        if self._num_by_name < len(self.names):
            new = slice(self._num_by_name, None)
            places = zip(*(column[new] for column in self._columns), strict=True)
            self._by_name.update(zip(map(normpath, self.names[new]), places, strict=True))
            self._num_by_name = len(self.names)
        return self._by_name.get(normpath(name))


class Archive:
    """One tar while it is scanned.

    Attributes:
        data: Its bytes.
        path: Its name in messages.
        nbytes: Its length in bytes.
        members: The members found so far.
        global_records: The PAX records of global headers that apply from here on.
        start: Where the last archive in the file begins.
        has_end: Whether that archive has an end marker.
        remarks: The oddities found so far.
    """

    def __init__(self, data: TarData, path: str) -> None:
        self.data = data
        self.path = path
        self.nbytes = len(data)
        if not self.nbytes:
            raise self.error(0, "a tar", "an empty file", "write it or fetch it again")
        self.members = MemberColumns()
        self.global_records: dict[bytes, bytes] = {}
        self.start = 0
        self.has_end = False
        self.remarks: list[str] = []
        self._num_remarks: Counter[int] = Counter()  # by level

    def block(self, position: int) -> bytes:
        """Return the block at a position; it is shorter at the end of the file."""
        return self.data[position : position + BLOCK_NBYTES]

    def is_end_at(self, position: int) -> bool:
        """Whether a zero block or less than one block begins at a position."""
        return self.nbytes - position < BLOCK_NBYTES or self.block(position) == _ZERO_BLOCK

    def remark(self, level: int, text: str) -> None:
        """Log something odd and add it to the remarks, up to a limit for each level."""
        # The limit covers the log too: an archive with many ends would flood it. Each level has its
        # own limit, or a hundred archives in one file would hide that the last end is missing.
        self._num_remarks[level] += 1
        if self._num_remarks[level] <= _MAX_REMARKS:
            self.remarks.append(text)
            _logger.log(level, "%s: %s", printable(self.path), text)

    def error(self, position: int, expected: str, found: str, remedy: str) -> ShardFormatError:
        """Return the error for what was found at a position."""
        return ShardFormatError(
            f"{self.path}: at byte {position}: expected {expected}, found {found}; {remedy}"
        )

    def remark_end(self) -> None:
        """Remark on a missing end marker, after the whole tar was scanned."""
        if not self.has_end:
            self.remark(logging.WARNING, "no end marker; it may have been cut between two members")

    def result(self) -> TarMembers:
        """Return the members found so far."""
        return TarMembers(self.members.names, *self.members.columns(), tuple(self.remarks))


@overload
def padded(size: int) -> int: ...
@overload
def padded(size: IntArray) -> IntArray: ...
def padded(size: int | IntArray) -> int | IntArray:
    """Round up to whole blocks."""
    return (size + (BLOCK_NBYTES - 1)) & -BLOCK_NBYTES
