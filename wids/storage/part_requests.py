"""Request the parts of one download, several at a time.

The first request is for the first part: its response states the length and the tag of the file at
no extra round trip, and the other parts are requested while it arrives. Where the server sends
whole files, or states no tag, the file is one part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Final

from wids.storage.download import Download, DownloadPart, ReplacedError, check_complete
from wids.storage.reading_threads import in_threads
from wids.storage.transport.gate import has_room
from wids.storage.transport.retry import CancelledError, cancellation, with_retries
from wids.storage.transport.schemes import Transports
from wids.storage.transport.stream import PastEndError, Stream, TransientError

_LOOK_S: Final = 0.01
"""How often a thread that could take a part looks whether the gate has room; there is one."""


class PartRequests:
    """The requests of one download.

    Args:
        transports: Open the URL.
        download: The file.
    """

    def __init__(self, transports: Transports, download: Download) -> None:
        self._transports = transports
        self._download = download
        self._patience = transports.patience(download.url)
        nbytes = download.expected.nbytes
        is_large = nbytes is None or nbytes > download.part_nbytes
        self._in_parts = is_large and transports.streams_parts(download.url)

    def run(self) -> None:
        """Receive the whole file; what was received before is received again if it was replaced.

        Raises:
            MismatchError: It is longer than expected, or of another length.
            FetchError: It cannot be read.
        """
        self._with_retries(self._receive)

    def _receive(self) -> None:
        """Receive the file from its beginning."""
        download = self._download
        opened = [self._opened()]
        try:
            first = download.begin(opened[0])
            if download.is_single:
                self._take(first, opened)
            else:
                self._take_all(first, opened)
            check_complete(download.url, download.received_nbytes, download.total_nbytes)
        except BaseException as error:
            download.end(error)
            if not isinstance(error, ReplacedError):
                raise
            self._in_parts &= error.in_parts
            raise TransientError(str(error), is_outage=False) from error
        finally:
            # Not a stream that a thread has taken: to close it would wait for the next bytes.
            for stream in opened:
                stream.close()

    def _opened(self) -> Stream:
        """Request the first part of the file, or all of it if others cannot be requested."""
        url, part_nbytes = self._download.url, self._download.request_nbytes
        if self._in_parts:
            with suppress(PastEndError):  # an empty file has no first byte
                stream = self._transports.open(url, 0, part_nbytes)
                total_nbytes = stream.total_nbytes
                is_as_asked = stream.stop == min(part_nbytes, total_nbytes or 0)
                # Without a tag nothing would reveal that another part is of another version.
                is_enough = stream.tag is not None or stream.is_whole
                if stream.stop is None or (is_as_asked and is_enough):
                    return stream
                stream.close()
        return self._transports.open(url)

    def _take_all(self, first: DownloadPart, opened: list[Stream]) -> None:
        """Receive all parts, as many at a time as the gate of the server lets pass."""

        def take(part: DownloadPart) -> None:
            try:
                self._take(part, opened if part is first else [])
            except BaseException as error:
                self._download.end(error)  # so that the other threads end too
                raise

        parts = chain([first], iter(self._next_part, None))
        in_threads((partial(take, part) for part in parts), "wids-part")

    def _next_part(self) -> DownloadPart | None:
        """Return the next part once the gate has room for one more request, or none is arriving.

        Otherwise all parts of one file would be ahead of other files at the gate, and the digest of
        one file at a time would follow.
        """
        download, dropped = self._download, cancellation() or threading.Event()
        while download.has_next and download.is_arriving and not has_room(self._patience.server):
            if dropped.wait(_LOOK_S):
                raise CancelledError("the fetch was cancelled")
        return download.next_part()

    def _take(self, part: DownloadPart, opened: list[Stream]) -> None:
        """Receive one part, over as many streams as it takes; the first may be open already."""

        def attempt() -> None:
            with opened.pop() if opened else self._rest(part) as stream:
                self._download.take(part, stream)

        self._with_retries(attempt)

    def _rest(self, part: DownloadPart) -> Stream:
        """Request what is missing of a part."""
        download = self._download
        at = download.resume_at(part)
        # A file that starts over is requested whole: its former length may have been a lie.
        stop = part.stop if at or not download.is_single else None
        try:
            return self._transports.open(download.url, at, stop, download.tag)
        except PastEndError as error:
            # All bytes had arrived, but not the end of the response; or the file is shorter.
            raise ReplacedError(str(error)) from error

    def _with_retries(self, attempt: Callable[[], None]) -> None:
        download = self._download
        with_retries(attempt, self._patience, lambda: download.received_nbytes)
