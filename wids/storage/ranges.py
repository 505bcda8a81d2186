"""Read parts of one remote file, all of one version, and join near ranges into one request.

Each response states the length of the file, and most servers also state its tag. A response with
another length or tag is an error, so an index of one version is never used to read the next. Where
the caller compares the bytes with checksums, these decide, and not the tag: mirrors and the
machines behind a load balancer state other tags for equal files.

A request costs about as much time as some more bytes do, so the bytes between two ranges are
requested along with them where that saves a request. How many bytes these are depends on what a
reader waits for, which the callers decide.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from typing import Final, TypeAlias

from wids.errors import FetchError, MismatchError
from wids.storage.download import check_complete
from wids.storage.transport import urls
from wids.storage.transport.retry import Patience, with_retries
from wids.storage.transport.schemes import Transports
from wids.storage.transport.stream import PastEndError, Stream


class RangeError(FetchError):
    """A server that sends only whole files."""


class RangeReader:
    """Reads parts of one remote file of a known length.

    Threads can share it, and it survives a fork and pickling.

    Args:
        transports: Open URLs.
        tags: The tag of each URL whose version is known. The reader adds that of its URL.
        url: The file.
        nbytes: Its length.
    """

    def __init__(
        self, transports: Transports, tags: MutableMapping[str, str], url: str, nbytes: int
    ) -> None:
        self._transports = transports
        self._tags = tags
        self._url = url
        self._nbytes = nbytes
        self._has_untagged = False
        self._patience: Patience | None = None

    def __call__(self, start: int, stop: int, *, any_version: bool = False) -> bytes:
        """Read the bytes from ``start`` to ``stop``; see `view`."""
        return bytes(self.view(start, stop, any_version=any_version))

    def view(self, start: int, stop: int, *, any_version: bool = False) -> memoryview:
        """Read the bytes from ``start`` to ``stop``, and return them as they arrived, uncopied.

        Args:
            start: Position of the first byte.
            stop: Position after the last byte.
            any_version: Whether the tag is ignored, since the caller compares the bytes.

        Raises:
            RangeError: The server does not support ranges, or does not state the file's length.
            MismatchError: The file has another length, or a tag that differs from that of the first
                part.
            FetchError: It cannot be read.
        """
        # Not a `cached_property`: before Python 3.12 all objects share its lock, and a process that
        # is forked while a thread has that would wait for it forever.
        if self._patience is None:
            self._patience = self._transports.patience(self._url)
        return with_retries(lambda: self._attempt(start, stop, any_version), self._patience.again())

    @property
    def version(self) -> str | None:
        """The tag of all that was read and not compared; None if a response had none."""
        return None if self._has_untagged else self._tags.get(self._url)

    def _attempt(self, start: int, stop: int, any_version: bool) -> memoryview:
        tag = None if any_version else self._tags.get(self._url)
        try:
            opened = self._transports.open(self._url, start, stop, tag, is_collected=True)
        except PastEndError:
            # The first byte says why: the file is encoded on its way, or has another length.
            with self._transports.open(self._url, 0, 1) as stream:
                self._check(stream, 0, None)
            raise
        with opened as stream:
            self._check(stream, start, tag)
            # A server without ranges would send all of it.
            data = memoryview(stream.collected(stop - start))[: stop - start]
        check_complete(self._url, len(data), stop - start)
        if stream.tag is None:
            self._has_untagged |= not any_version
        elif not any_version:
            # Another thread may have read its first part meanwhile: one of the two versions wins.
            self._check_tag(self._tags.setdefault(self._url, stream.tag), stream.tag)
        return data.toreadonly()

    def _check(self, stream: Stream, start: int, tag: str | None) -> None:
        """Raise an error unless a response has the bytes from ``start`` of the same file."""
        is_part = stream.start == start
        if tag is not None and (stream.tag is not None or not is_part):
            # After If-Range, a whole file without a tag is another version too.
            self._check_tag(tag, stream.tag)
        if not is_part:
            self._transports.note_whole_files(self._url, stream.total_nbytes or self._nbytes)
        if not is_part or stream.total_nbytes is None:
            raise RangeError(
                f"{urls.redact(self._url)}: expected a part of the file, found a server that "
                'sends whole files only; use access="download"'
            )
        if stream.total_nbytes != self._nbytes:
            raise MismatchError(
                f"{urls.redact(self._url)}: expected a file of {self._nbytes} bytes, as its "
                f"index says, found {stream.total_nbytes}; a new version was published: "
                "rebuild its index"
            )

    def _check_tag(self, expected: str, found: str | None) -> None:
        if found != expected:
            raise MismatchError(
                f"{urls.redact(self._url)}: expected the version {expected} of the file, which was "
                f"read first, found {found or 'another'}; it was replaced while it was being read: "
                "open the dataset again; or mirrors state other versions of it: use "
                'access="download", or index it with `wids create`'
            )


Span: TypeAlias = tuple[int, int]
"""The start and the stop of a range of bytes."""

GAP_NBYTES: Final = 64 << 10
"""Bytes that cost about as much as one of many requests that are in flight together."""

STEP_NBYTES: Final = 512 << 10
"""Bytes that cost about as much as a request that a reader waits for before the next one.

Measured on loopback with 16 requests at a time over 1 Gbit/s: reading and skipping take as long at
0.4 MB where a request takes 20 ms, at 0.55 MB with 50 ms, at 1 MB with 100 ms."""

REQUEST_NBYTES: Final = 8 << 20
"""Longest range that is joined, so that large reads are spread over several requests."""


def joined(
    spans: Iterable[Span], gap_nbytes: float = GAP_NBYTES, limit_nbytes: int = REQUEST_NBYTES
) -> list[Span]:
    """Return the ranges to request for others, which ascend by their starts.

    Args:
        spans: The ranges that are wanted.
        gap_nbytes: Most bytes between two of them that are requested along with both.
        limit_nbytes: Longest range to make of several. One that is longer by itself stays whole.
    """
    found: list[Span] = []
    for start, stop in spans:
        if found:
            first, last = found[-1]
            if start - last <= gap_nbytes and max(stop, last) - first <= limit_nbytes:
                found[-1] = (first, max(stop, last))
                continue
        found.append((start, stop))
    return found


def frugal_gap_nbytes(spans: Sequence[Span]) -> float:
    """Return the largest gap that may be joined so that at most twice the wanted bytes are read.

    There are fewer gaps than ranges, so none is longer than the mean of the ranges.
    """
    wanted_nbytes = sum(stop - start for start, stop in spans)
    return min(GAP_NBYTES, wanted_nbytes / max(1, len(spans)))
