"""Guard against hostile fields: limits on decompressed size, archives and time.

Decoding never fills the memory and never runs code unasked. The limits are compared with the
directory that Python's zipfile reads. torch reads archives with miniz, which looks in another
place: zipfile takes the directory right before the records at the end, miniz the one at the offset
that these records state. So an archive must be unambiguous, as are those of `np.savez`,
`torch.save` and other programs. Others are rejected.

Native decoders run in a thread for a limited time (`within_s`).
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Final, TypeVar

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


MAX_UNZIPPED_NBYTES: Final = 1 << 30
"""Largest decompressed size of a ``.gz`` field, and of all members of an archive together."""

MAX_UNZIPPED_STRUCTURE_NBYTES: Final = 64_000_000
"""The same for a ``.gz`` field of nested values: ``[],`` has 3 bytes, but its list takes 64."""


T = TypeVar("T")


class RefusedError(Exception):
    """The error for a field that wids refuses to decode, regardless of its content."""


def unzip(data: bytes, max_nbytes: int) -> bytes:
    """Decompress gzip data.

    Args:
        data: One or more gzip streams.
        max_nbytes: Largest decompressed size.

    Raises:
        ValueError: The data is empty, or longer than the limit when decompressed.
        OSError: The data is not gzip.
        EOFError: The data ends early.
    """
    if not data:  # GzipFile would read this as a valid empty stream
        raise ValueError("expected gzip data, found none: the field is empty")
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        # One byte more than allowed shows that there is more, and hardly anything beyond it is
        # decompressed. The size at the end of gzip data does not help: it is a claim, modulo 2**32.
        unzipped = stream.read(max_nbytes + 1)
    if len(unzipped) > max_nbytes:
        raise ValueError(f"it is longer than {max_nbytes} bytes when decompressed (`max_nbytes`)")
    return unzipped


def check_archive(data: bytes, max_nbytes: int | None) -> None:
    """Raise ValueError for data that is not a zip archive, or would fill the memory.

    Args:
        data: The archive.
        max_nbytes: Largest total length of its decompressed members; None for
            `MAX_UNZIPPED_NBYTES`. Members may always be as long as the archive, which is already
            in memory.
    """
    limit = MAX_UNZIPPED_NBYTES if max_nbytes is None else max_nbytes
    # SEC-12. The directory states this sum; SEC-50 ensures that no reader finds another one.
    if archive_nbytes(data) > max(limit, len(data)):
        raise ValueError(f"it is longer than {limit} bytes when decompressed (`max_nbytes`)")


_MAX_GIVEN_UP: Final = 2
"""Most decoders that may run on after they were given up: what they occupy is still occupied."""
_given_up: Final[set[threading.Thread]] = set()
_limits: Final = threading.local()
"""When nobody waits for a thread of `within_s` any more."""


def check_time() -> None:
    """Raise ValueError if nobody waits for this thread any more: called for each frame."""
    if time.monotonic() > getattr(_limits, "until_s", math.inf):
        raise ValueError("decoding took too long, and was given up")


def within_s(seconds: float, decode: Callable[[], T]) -> T:
    """Return what a function returns, which runs in a thread of its own for a limited time.

    A thread that takes longer is left behind, and does not keep the process from ending: native
    code cannot be interrupted. While two such threads run, no other is started.

    Args:
        seconds: Longest time to wait.
        decode: The function. What it reads must not be used after a time-out.

    Raises:
        ValueError: It takes longer, or two that took longer have not ended in this time either.
        Exception: The function raised it.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            _limits.until_s = time.monotonic() + seconds
            result.set_result(decode())
        except BaseException as error:  # noqa: BLE001 - raised by `result` below
            result.set_exception(error)

    for left in tuple(_given_up):
        if len(_given_up) >= _MAX_GIVEN_UP:
            left.join(seconds)
        if not left.is_alive():
            _given_up.discard(left)
    if len(_given_up) >= _MAX_GIVEN_UP:
        raise ValueError(f"{len(_given_up)} decoders that were given up still run; not decoded")
    thread = threading.Thread(target=run, name="wids-decode", daemon=True)
    thread.start()
    thread.join(seconds)
    if not result.done():
        _given_up.add(thread)
        raise ValueError(f"decoding took longer than {seconds:g} s, and was given up")
    return result.result()
