"""Reject zip archives in which different readers could find different members.

The limits of wids are compared with the directory that Python's zipfile reads, but torch reads
archives with miniz, and the two look in different places: zipfile takes the directory right before
the records at the end, miniz the one at the offset that these records state. So an archive must be
unambiguous, as are those of `np.savez`, `torch.save` and other programs. Others are rejected.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator
from typing import Final

_END: Final = struct.Struct("<4s4H2LH")
_END_SIGNATURE: Final = b"PK\x05\x06"
_RECORD64: Final = struct.Struct("<4sQ2H2L4Q")
_RECORD64_SIGNATURE: Final = b"PK\x06\x06"
_LOCATOR64: Final = struct.Struct("<4sLQL")
_LOCATOR64_SIGNATURE: Final = b"PK\x06\x07"
_ZIP64_EXTRA: Final = 1

_Numbers = tuple[int, int, int, int]
"""Members on this disk, members, and the length and offset of the directory."""

# Only for deflate does Python limit the decompressed size to the size in the directory: a chunk of
# lzma or bzip2 is decompressed as a whole, and may expand to a million times its length.
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def archive_nbytes(data: bytes) -> int:
    """Return the length of all members of a zip archive when decompressed.

    Raises:
        ValueError: The data is not a zip archive, readers could find different members in it, or
            it is compressed by a method other than deflate.
    """
    count = _check_end(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
    # If two members have the same name, readers may take the first or the last (SEC-50).
    if len(members) != count or len({member.filename for member in members}) != count:
        raise ValueError(f"expected a zip archive of {count} members, found {len(members)} entries")
    for member in members:
        if member.compress_type not in _METHODS:
            raise ValueError("expected a zip archive compressed by deflate, found another method")
        if sum(kind == _ZIP64_EXTRA for kind in _extras(member.extra)) > 1:
            raise ValueError("expected a zip archive with one length per member, found two")
    # The directory may lie about the lengths, but no more than it states is decompressed; see
    # `_METHODS`.
    return sum(member.file_size for member in members)


def _check_end(data: bytes) -> int:
    """Return the number of members, if the records at the end are unambiguous."""
    # The last signature: readers search backwards from the end, some further than others.
    at = data.rfind(_END_SIGNATURE)
    if at < 0 or at + _END.size > len(data):
        raise ValueError("expected a zip archive, found no directory at its end")
    _, *disks, here, count, nbytes, offset, comment_nbytes = _END.unpack_from(data, at)
    # A comment may itself contain an end record, so the record found has to end the data.
    if at + _END.size + comment_nbytes != len(data):
        raise ValueError("expected a zip archive, found other bytes after its end")
    stop, numbers = at, (here, count, nbytes, offset)
    if data[max(at - _LOCATOR64.size, 0) : at].startswith(_LOCATOR64_SIGNATURE):
        stop = at - _LOCATOR64.size - _RECORD64.size
        numbers = _numbers_of_zip64(data, stop, numbers)
    here, count, nbytes, offset = numbers
    # zipfile tolerates bytes before an archive and shifts all offsets; miniz uses them as stated.
    # Both find the same directory only if it ends where these records begin.
    if any(disks) or here != count or offset + nbytes != stop:
        raise ValueError(
            f"expected a zip archive whose directory ends at byte {stop}, found one that claims "
            f"bytes {offset} to {offset + nbytes}"
        )
    return int(count)


def _numbers_of_zip64(data: bytes, at: int, short: _Numbers) -> _Numbers:
    """Return the numbers of the zip64 record at an offset; reject any that contradict ``short``."""
    error = ValueError("expected a zip archive, found zip64 records that contradict the others")
    if at < 0:
        raise error
    signature, nbytes, _, _, *disks, here, count, size, offset = _RECORD64.unpack_from(data, at)
    _, first_disk, stated_at, num_disks = _LOCATOR64.unpack_from(data, at + _RECORD64.size)
    numbers = (here, count, size, offset)
    # These values mean "see the zip64 record". Readers that ignore zip64 use any other number, so
    # it has to be the same in both records.
    largest = (0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    agree = all(s in (n, most) for s, n, most in zip(short, numbers, largest, strict=True))
    if signature != _RECORD64_SIGNATURE or nbytes != _RECORD64.size - 12 or stated_at != at:
        raise error
    if not agree or any(disks) or first_disk or num_disks != 1:
        raise error
    return numbers


def _extras(extra: bytes) -> Iterator[int]:
    """Yield the kinds of a member's extra fields."""
    at = 0
    # A kind may occur twice, and readers differ in which one they take. Each step is at least 4
    # bytes, so the loop ends.
    while at + 4 <= len(extra):
        kind, nbytes = struct.unpack_from("<2H", extra, at)
        yield kind
        at += 4 + nbytes
