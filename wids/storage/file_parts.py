"""Read a file in the parts that are needed.

`FileParts` is for readers that walk from header to header and need a few hundred bytes at a time.
If the next bytes are near, the bytes between are requested too; if they are far, they are not.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Final

from wids.storage.fetch import Fetcher
from wids.storage.ranges import STEP_NBYTES, WholeFileError
from wids.storage.transport import urls

JUMP_NBYTES: Final = 32 << 10
"""Bytes to read after a jump: the headers of the next members, where these are small."""

_FIRST_AHEAD_NBYTES: Final = 1 << 20
MAX_AHEAD_NBYTES: Final = 2 << 20
"""Longest request, where each next part is near the previous one."""

ENDLESS_NBYTES: Final = sys.maxsize
"""Length of a file whose server does not state it."""

KEEP_NBYTES: Final = 16 << 20
"""Bytes of a file to keep in memory by default."""

ReadRange = Callable[[int, int], bytes]


class FileParts:
    """The bytes of a file of known length, read where they are needed.

    Safe to use from any number of threads; two that need the same bytes may both read them.

    Args:
        start: The first bytes of the file.
        nbytes: Its length.
        read_range: Returns the bytes from a start to a stop; what it raises passes through.
        has_ranges: Whether ``read_range`` can return any part.
        keep_nbytes: Bytes to keep; beyond them the parts that were read first are dropped.

    Attributes:
        nbytes: Length of the file.
        has_ranges: As passed.
        start_nbytes: Bytes that were known at first.
        num_requests: Requests so far, that for the first bytes included.
        num_read_nbytes: Bytes read so far, the first ones included.
    """

    def __init__(
        self,
        start: bytes,
        nbytes: int,
        read_range: ReadRange,
        *,
        has_ranges: bool = True,
        keep_nbytes: int = KEEP_NBYTES,
    ) -> None:
        self.nbytes = nbytes
        self.has_ranges = has_ranges
        self.start_nbytes = len(start)
        self.num_requests = 1
        self.num_read_nbytes = len(start)
        self._read_range = read_range
        self._keep_nbytes = keep_nbytes
        self._parts: dict[int, bytes] = {0: start}  # by offset, in the order of reading
        self._latest_start, self._latest_stop = 0, len(start)
        self._ahead_nbytes = _FIRST_AHEAD_NBYTES
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.nbytes

    def __getitem__(self, span: slice) -> bytes:
        start, stop, _ = span.indices(self.nbytes)
        with self._lock:
            hop, self._latest_start = start - self._latest_start, start
            data = self._known(start, stop)
            if data is not None:
                return data
            first, last = self._window(start, stop, hop)
        part = self._read_range(first, last)
        with self._lock:
            self._add(first, part)
            data = self._known(start, stop)
        # Another thread may have dropped the previous part, which had the first of these bytes.
        return self.read(start, stop) if data is None else data

    def read(self, start: int, stop: int) -> bytes:
        """Return a part of the file; one that is not in memory is requested alone, and not kept."""
        with self._lock:
            data = self._known(start, stop)
            if data is not None:
                return data
            self.num_requests += 1
            self.num_read_nbytes += stop - start
        return self._read_range(start, stop)

    def has(self, start: int, stop: int) -> bool:
        """Return whether a part of the file is in memory."""
        with self._lock:
            return self._known(start, stop) is not None

    def _known(self, start: int, stop: int) -> bytes | None:
        """Return bytes that were read, from as many adjacent parts as they are in, or None."""
        pieces, at = list[bytes](), start
        while at < stop:
            # The part that was read last comes first: a reader walks from header to header.
            for first, part in reversed(self._parts.items()):
                if first <= at < first + len(part):
                    break
            else:
                return None
            pieces.append(part[at - first : stop - first])
            at += len(pieces[-1])
        return b"".join(pieces)

    def _window(self, start: int, stop: int, hop: int) -> tuple[int, int]:
        """Return what to read for a part that is not known, ``hop`` bytes after the previous."""
        latest_stop = self._latest_stop
        # The first of the bytes may be known, and the rest not.
        is_rest = start < latest_stop < stop and self._known(start, latest_stop) is not None
        is_near = 0 <= hop < STEP_NBYTES and 0 <= start - latest_stop < STEP_NBYTES
        if is_rest or is_near:
            first, last = latest_stop, max(latest_stop + self._ahead_nbytes, start + JUMP_NBYTES)
            # More each time, as long as the next part is near: all of the file may be wanted.
            self._ahead_nbytes = min(2 * self._ahead_nbytes, MAX_AHEAD_NBYTES)
        else:
            first, last = start, start + JUMP_NBYTES
            self._ahead_nbytes = JUMP_NBYTES
        last = min(max(stop, last), self.nbytes)
        self.num_requests += 1
        self.num_read_nbytes += last - first
        return first, last

    def _add(self, first: int, part: bytes) -> None:
        """Keep a part; drop those that were read first, beyond the limit."""
        self._parts.pop(first, None)  # read twice, by two threads
        self._parts[first] = part
        self._latest_stop = first + len(part)
        kept_nbytes = sum(map(len, self._parts.values()))
        while kept_nbytes > self._keep_nbytes and len(self._parts) > 2:
            kept_nbytes -= len(self._parts.pop(next(iter(self._parts))))


def open_parts(
    fetcher: Fetcher,
    url: str,
    first_nbytes: int,
    *,
    nbytes_of_whole: int = 0,
    keep_nbytes: int = KEEP_NBYTES,
) -> FileParts:
    """Open a remote file by reading the first bytes of its current version.

    The arguments are those of `Fetcher.read_start` and `FileParts`. If the server sends only whole
    files, reading other bytes later raises `WholeFileError`. If it does not state the length of
    the file, that is `ENDLESS_NBYTES`.

    Raises:
        NotFoundError: There is no such file.
        FetchError: It cannot be read.
    """
    start = fetcher.read_start(url, first_nbytes, nbytes_of_whole)
    nbytes = ENDLESS_NBYTES if start.total_nbytes is None else start.total_nbytes
    has_ranges = start.has_ranges and start.total_nbytes is not None

    def refuse(first: int, last: int) -> bytes:
        raise WholeFileError(
            f"{urls.redact(url)}: expected the bytes from {first} to {last}, found a server that "
            f"sends whole files only; the first {len(start.data)} bytes were read"
        )

    read_range: ReadRange = fetcher.range_reader(url, nbytes) if has_ranges else refuse
    return FileParts(start.data, nbytes, read_range, has_ranges=has_ranges, keep_nbytes=keep_nbytes)
