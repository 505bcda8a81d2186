"""Compare the headers of one member with an index that has no checksums of them."""

from __future__ import annotations

from wids.errors import ShardFormatError
from wids.shards.tars.archive import Archive
from wids.shards.tars.headers import show
from wids.shards.tars.strict_lane import read_next

_SHORT_NBYTES = 100  # a header without its extended headers has so much of the name


class _Part:
    """A part of a tar, as `TarData`."""

    def __init__(self, data: bytes, start: int, nbytes: int) -> None:
        self._data, self._start, self._nbytes = data, start, nbytes

    def __len__(self) -> int:
        return self._nbytes

    def __getitem__(self, span: slice, /) -> bytes:
        start = span.start - self._start
        if start >= len(self._data):  # a search for the end of zeros would not end
            raise ShardFormatError("tar: no header")
        return self._data[start : start + span.stop - span.start]


def header_problem(
    head: bytes, start: int, tar_nbytes: int, name: bytes, nbytes: int
) -> str | None:
    """Return what is at the end of some headers instead of a member; None if it is that member.

    Args:
        head: The bytes before those of the member, from the start of a header.
        start: Where they begin in the tar.
        tar_nbytes: Length of the tar.
        name: The name that the index states.
        nbytes: The length that the index states.
    """
    archive = Archive(_Part(head, start, tar_nbytes), "tar")
    position, body = start, start + len(head)
    try:
        while position < body:
            position = read_next(archive, position)
    except ShardFormatError as error:
        return str(error).removeprefix("tar: ")
    names = archive.members.names
    offset, size, _ = archive.members.last() if names else (0, 0, 0)
    if offset != body:
        return "no header of a file"
    is_same = names[-1] == name or (len(names[-1]) == _SHORT_NBYTES and name.startswith(names[-1]))
    return None if is_same and size == nbytes else f'"{show(names[-1])}" of {size} bytes'
