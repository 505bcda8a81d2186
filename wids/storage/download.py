"""Write the streams of one URL to one file, resume after a cut, and verify the result.

This module neither opens URLs nor waits: `fetch` makes the attempts, `retry` counts them.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable
from typing import IO, NamedTuple, TypeAlias

from wids.errors import MismatchError
from wids.storage.transport import urls
from wids.storage.transport.retry import CancelledError
from wids.storage.transport.stream import Stream, TransientError

Report: TypeAlias = Callable[[int, "int | None"], None]
"""``report(received_nbytes, total_nbytes)``; the total is None while it is unknown."""


class Expected(NamedTuple):
    """What is known about a file before it is fetched.

    Attributes:
        nbytes: Its length, or None.
        md5sum: Its MD5 digest in hexadecimal digits, or None.
        sha256: Its SHA-256 digest in hexadecimal digits, or None.
    """

    nbytes: int | None = None
    md5sum: str | None = None
    sha256: str | None = None


class Download:
    """The part of one file that has arrived, over any number of attempts.

    Attributes:
        tag: The version of the file that is arriving, or None if the server does not say.
        received_nbytes: Bytes written to the file.
        total_nbytes: Length of the whole file, or None if the server does not say.
    """

    def __init__(
        self,
        url: str,
        file: IO[bytes],
        expected: Expected,
        report: Report,
        cancel: threading.Event | None,
    ) -> None:
        self.url = url
        self.file = file
        self.expected = expected
        self.report = report
        self.cancel = cancel
        self.tag: str | None
        self.total_nbytes: int | None
        self.start_over()

    def start_over(self) -> None:
        """Discard what has arrived."""
        self.tag = None
        self.total_nbytes = None
        self.received_nbytes = 0
        self.digests = {
            name: hashlib.new(name, usedforsecurity=False)
            for name, stated in (("md5", self.expected.md5sum), ("sha256", self.expected.sha256))
            if stated is not None
        }
        # Not truncated: the space that was reserved stays reserved for the next attempt.
        self.file.seek(0)

    @property
    def resume_at(self) -> int:
        """Where the next attempt begins: after the bytes received, or at 0.

        Without a tag or a digest nothing would reveal that the rest is of another version.
        """
        return self.received_nbytes if self.tag is not None or self.digests else 0

    def take(self, stream: Stream) -> None:
        """Append the bytes of a stream; one that begins at 0 replaces what has arrived.

        Raises:
            TransientError: It is cut off, or belongs to another version of the file.
            MismatchError: It is longer than expected, or of another length.
            CancelledError: ``cancel`` was set.
        """
        if self.received_nbytes and stream.start != self.received_nbytes:
            self.start_over()
        self._check_version(stream)
        # The response to a range may say less about the file than the first one did.
        self.tag = stream.tag or self.tag
        if stream.total_nbytes is not None:
            self.total_nbytes = stream.total_nbytes
        # Before the first byte: a file of the wrong length need not be transferred to be refused.
        self._check_length(self.total_nbytes)
        self.report(self.received_nbytes, self.total_nbytes)
        for chunk in stream.chunks:
            if self.cancel is not None and self.cancel.is_set():
                raise CancelledError(f"{urls.redact(self.url)}: the fetch was cancelled")
            self.file.write(chunk)
            self.received_nbytes += len(chunk)
            # At once, so that an endless response does not fill the disk.
            if self.received_nbytes > (self.expected.nbytes or math.inf):
                self._check_length(self.received_nbytes)
            for digest in self.digests.values():
                digest.update(chunk)
            self.report(self.received_nbytes, self.total_nbytes)
        check_complete(self.url, self.received_nbytes, self.total_nbytes)

    def verify(self) -> None:
        """Compare the file with what was expected.

        Raises:
            MismatchError: Its length or a digest differs.
        """
        self.file.truncate(self.received_nbytes)  # an earlier version may have been longer
        self._check_length(self.received_nbytes)
        for name, digest in self.digests.items():
            stated = (self.expected.md5sum if name == "md5" else self.expected.sha256) or ""
            if digest.hexdigest() != stated.lower():
                raise MismatchError(
                    f"{urls.redact(self.url)}: expected the {name} {stated}, "
                    f"found {digest.hexdigest()}; file and spec are from different versions"
                )

    def _check_version(self, stream: Stream) -> None:
        """Refuse to append to what has arrived if the file at the URL has changed."""
        pairs = ((self.tag, stream.tag), (self.total_nbytes, stream.total_nbytes))
        # A missing value is no contradiction: a chunked response has no length.
        if stream.start and any(None not in pair and pair[0] != pair[1] for pair in pairs):
            self.start_over()
            message = f"{urls.redact(self.url)}: it changed while it was being fetched"
            raise TransientError(message, is_outage=False)

    def _check_length(self, nbytes: int | None) -> None:
        stated = self.expected.nbytes
        if nbytes is not None and stated is not None and nbytes != stated:
            raise MismatchError(
                f"{urls.redact(self.url)}: expected {stated} bytes (filesize), found {nbytes}; "
                "file and spec are from different versions"
            )


def check_complete(url: str, nbytes: int, total_nbytes: int | None) -> None:
    """Raise `TransientError` if a stream ended early."""
    if total_nbytes is not None and nbytes != total_nbytes:
        raise TransientError(
            f"{urls.redact(url)}: expected {total_nbytes} bytes, found {nbytes}; the transfer was "
            "cut off",
            is_outage=False,
        )
