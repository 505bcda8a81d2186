"""Download one URL to one file in parts, resume after a cut, and verify the result.

`Download` is the file: it writes what arrives, in any order, and neither opens URLs nor waits for
servers. A thread beside it computes the digests over the beginning of the file, as far as it is
complete. `PartRequests` makes the requests, in one thread: by HTTP for many parts at a time
(`range_loop`), by other transports for one stream.

The first request is for the first part: its response states the length and the tag of the file at
no extra round trip, and the other parts are requested while it arrives. If the server sends whole
files, or states no tag, the file is one part.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeAlias, cast

from wids.errors import MismatchError
from wids.storage.files import repeated
from wids.storage.transport import urls
from wids.storage.transport.admission import part_nbytes
from wids.storage.transport.retry import check_waits, with_retries
from wids.storage.transport.schemes import Transports
from wids.storage.transport.stream import (
    Content,
    Data,
    NotByHttpError,
    PastEndError,
    TransientError,
    check_complete,
)

if TYPE_CHECKING:
    from wids.storage.transport.http import Http
    from wids.storage.transport.range_reads import Range

Report: TypeAlias = Callable[[int, "int | None"], None]
"""``report(received_nbytes, total_nbytes)``; the total is None while it is unknown."""

_PIECE_NBYTES: Final = 1 << 20
"""Bytes to hash at a time."""
_BEHIND_NBYTES: Final = 2 << 20
"""Length of a file that is worth a thread that hashes it."""
_HASH_S: Final = 0.02
"""How often it looks whether more is complete."""


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


class ReplacedError(Exception):
    """A response that does not match the parts that have arrived, so the download starts over.

    As one part: the next response may come from the same two mirrors.
    """


@dataclass(eq=False)
class DownloadPart:
    """A part of the file, of which the first bytes may have arrived.

    Attributes:
        start: Where it begins in the file.
        stop: Where it ends; None if it is the only one, and ends with the file.
        position: Where its next byte belongs.
    """

    start: int = 0
    stop: int | None = None
    position: int = 0


class Download:
    """One file that is arriving, over any number of attempts.

    One thread writes it, and another one reads it behind, to hash it.

    Attributes:
        tag: The version of the file that is arriving; None if the server does not say, or if a
            digest decides: mirrors state other versions of equal bytes.
        received_nbytes: Bytes written to the file.
        total_nbytes: Length of the whole file, or None if the server does not say.
        is_single: Whether the file arrives as one part.
        part_nbytes: Most bytes of a part of a long file. A request costs a tenth of the processor's
            time for it, and stores limit the requests a second.
    """

    part_nbytes: ClassVar[int] = 8 << 20

    def __init__(self, url: str, file: IO[bytes], expected: Expected, report: Report) -> None:
        self.url = url
        self.file = file
        self.expected = expected
        self.report = report
        self.tag: str | None = None
        self.total_nbytes: int | None = None
        self.received_nbytes = 0
        self.is_single = True
        stated = (("md5", expected.md5sum), ("sha256", expected.sha256))
        self._stated = {name: digest.lower() for name, digest in stated if digest is not None}
        # Held while the file is written, too: the file has one position, and one end.
        self._lock = threading.Lock()
        self.end()

    def end(self) -> None:
        """Forget what has arrived."""
        with self._lock:
            # Those that were handed out and have not arrived, in the order of the file.
            self._parts: list[DownloadPart] = []
            self._next_start: int | None = None  # of the part to hand out next
            # Of so many bytes, the first ones of the file.
            self._digests = {
                name: hashlib.new(name, usedforsecurity=False) for name in self._stated
            }
            self._hashed_nbytes = 0

    def begin(self, content: Content, part: DownloadPart) -> None:
        """Start over with a response that has the first part of the file, or all of it.

        Args:
            content: What the response has.
            part: The part that it has, from now on the only one.

        Raises:
            MismatchError: The file is not as long as expected.
        """
        self.end()
        with self._lock:
            self.tag, self.total_nbytes = self._tag_of(content), content.total_nbytes
            self.received_nbytes = 0
            self.is_single = content.is_whole
            self._next_start = content.stop
            part.stop, part.position = content.stop, 0
            self._parts = [part]
            # Before the first byte: a file of the wrong length need not be transferred to be
            # refused. It is not truncated: the space that was reserved stays reserved.
            self._check_length(self.total_nbytes)
            self.report(0, self.total_nbytes)

    @property
    def is_arriving(self) -> bool:
        """Whether some part has been handed out, and has not arrived."""
        return bool(self._parts)

    def next_part(self, nbytes: int) -> DownloadPart | None:
        """Hand out the next bytes that nobody takes; None if there are none."""
        with self._lock:
            start, total_nbytes = self._next_start, self.total_nbytes or 0
            if start is None or start >= total_nbytes:
                return None
            self._next_start = min(start + nbytes, total_nbytes)
            part = DownloadPart(start, self._next_start, start)
            self._parts.append(part)
            return part

    @property
    def is_verified(self) -> bool:
        """Whether a stated digest decides which version is right."""
        return bool(self._stated)

    def finish(self, part: DownloadPart) -> None:
        """End a part, all of whose bytes should have arrived.

        Raises:
            TransientError: Some are missing.
        """
        stop = self.total_nbytes if part.stop is None else part.stop
        check_complete(
            self.url, part.position - part.start, None if stop is None else stop - part.start
        )
        with self._lock:
            if part.stop is not None and part in self._parts:
                self._parts.remove(part)

    def compare(self, part: DownloadPart, content: Content, start: int) -> None:
        """Compare what a response has with what was requested of a part, and with what has arrived.

        Args:
            part: The part; it starts over if it is the only one, and all of the file has come.
            content: What it has.
            start: Where it was to begin.

        Raises:
            ReplacedError: It belongs to another version of the file, or is not what was requested.
            MismatchError: It is of another length.
        """
        tag = self._tag_of(content)
        pairs = ((self.tag, tag), (self.total_nbytes, content.total_nbytes))
        # A missing value does not contradict: a chunked response has no length.
        is_same = all(None in pair or pair[0] == pair[1] for pair in pairs)
        is_part = part.stop is None or content.stop is not None
        if content.start == start and is_same and is_part:
            with self._lock:
                # The response to a range may say less or more about the file than the first one.
                self.tag = self.tag or tag
                if self.total_nbytes is None:
                    self.total_nbytes = content.total_nbytes
                    self._check_length(self.total_nbytes)
        elif content.is_whole and self.is_single and part in self._parts:
            self.begin(content, part)  # all of the file in place of the rest
        elif is_same:
            raise ReplacedError(
                f"{urls.redact(self.url)}: expected the bytes from {start} on, found a response "
                "with other bytes"
            )
        else:
            raise ReplacedError(f"{urls.redact(self.url)}: it changed while it was being fetched")

    def _tag_of(self, content: Content) -> str | None:
        return None if self._stated else content.tag

    def write(self, part: DownloadPart, position: int, data: Data) -> None:
        """Write bytes of a part, which may have been written before, to their place in the file.

        Raises:
            ReplacedError: They are beyond the part.
            MismatchError: They are beyond the expected length.
        """
        stop = position + len(data)
        with self._lock:
            if stop > (part.stop or math.inf):
                raise ReplacedError(
                    f"{urls.redact(self.url)}: expected the bytes from {part.start} to "
                    f"{part.stop}, found more"
                )
            if self.is_verified and position < part.position:  # these are hashed as they are
                data, position = memoryview(data)[part.position - position :], part.position
            self.file.seek(position)
            self.file.write(data)
            self.received_nbytes += max(0, stop - part.position)
            part.position = max(part.position, stop)
            # At once, so that an endless response does not fill the disk.
            if self.received_nbytes > (self.expected.nbytes or math.inf):
                self._check_length(self.received_nbytes)
            self.report(self.received_nbytes, self.total_nbytes)

    def hashed_behind(self) -> AbstractContextManager[None]:
        """Have a thread hash what is complete, while the block receives the rest."""
        nbytes = self.expected.nbytes
        is_worth_it = self.is_verified and (nbytes is None or nbytes > _BEHIND_NBYTES)
        return repeated(self._hash, _HASH_S, "wids-hash") if is_worth_it else nullcontext()

    def _hash(self) -> None:
        """Hash the complete beginning of the file, as far as it is not hashed."""
        while True:
            with self._lock:
                digests, start = self._digests, self._hashed_nbytes
                complete_nbytes = self._parts[0].position if self._parts else self._next_start or 0
                nbytes = min(complete_nbytes - start, _PIECE_NBYTES)
                if nbytes <= 0:
                    return
                self.file.seek(start)
                data = self.file.read(nbytes)
                self._hashed_nbytes += len(data)
            if not data:  # the digest reveals that the file was truncated meanwhile
                return
            for digest in digests.values():
                digest.update(data)

    def verify(self) -> None:
        """Compare the file with what was expected.

        Raises:
            MismatchError: Its length or a digest differs.
        """
        if self.is_verified:
            self._hash()  # what the thread has left
        self.file.truncate(self.received_nbytes)  # an earlier version may have been longer
        self._check_length(self.received_nbytes)
        for name, stated in self._stated.items():
            if (found := self._digests[name].hexdigest()) != stated:
                raise MismatchError(
                    f"{urls.redact(self.url)}: expected the {name} {stated}, found {found}; file "
                    "and spec are from different versions"
                )

    def _check_length(self, nbytes: int | None) -> None:
        stated = self.expected.nbytes
        if nbytes is not None and stated is not None and nbytes != stated:
            raise MismatchError(
                f"{urls.redact(self.url)}: expected {stated} bytes (filesize), found {nbytes}; "
                "file and spec are from different versions"
            )


class PartRequests:
    """The requests of one download.

    Args:
        transports: Open the URL.
        download: The file.
        is_ahead: Whether nobody waits for it: it comes after what a reader waits for.
    """

    def __init__(self, transports: Transports, download: Download, *, is_ahead: bool) -> None:
        self._transports = transports
        self._download = download
        self._plan = transports.plan(download.url)
        nbytes = download.expected.nbytes
        self._in_parts = nbytes is None or nbytes > download.part_nbytes
        self._whole = DownloadPart()
        self._place = is_ahead, time.monotonic()

    def run(self) -> None:
        """Receive the whole file; what was received before is received again if it was replaced.

        Raises:
            MismatchError: It is longer than expected, or of another length.
            FetchError: It cannot be read.
        """
        download = self._download
        try:
            with_retries(self._receive, self._plan.timeouts, lambda: download.received_nbytes)
        except BaseException:
            download.end()
            raise

    def _receive(self) -> None:
        """Receive the file by HTTP from its beginning; or what is missing of it by a stream."""
        download = self._download
        try:
            if not self._receive_by_http():
                self._receive_by_stream()
            check_complete(download.url, download.received_nbytes, download.total_nbytes)
        except ReplacedError as error:
            download.end()
            self._in_parts, self._whole = False, DownloadPart()
            raise TransientError(str(error), is_outage=False) from error

    def _receive_by_http(self) -> bool:
        """Receive the file by ranges; return False if it arrives otherwise."""
        plan = self._plan
        if plan.transport.by_http(plan.url) is None:
            return False
        from wids.storage.transport.range_loop import raise_error, read_ranges

        download = self._download
        download.end()  # the previous attempt may have ended between two parts
        is_long = download.expected.nbytes is not None
        nbytes = self._part_nbytes() if is_long else download.part_nbytes
        first = DownloadPart(0, nbytes if self._in_parts else None)

        def more() -> Range | None:
            part = download.next_part(self._part_nbytes())
            return None if part is None else self._range(part)

        try:
            read_ranges([self._range(first)], raise_error, more)
        except NotByHttpError:
            return False
        # An empty file has no first byte, and some responses not the first part as requested.
        except (PastEndError, ReplacedError) as error:
            if download.is_arriving or not self._in_parts:
                raise ReplacedError(str(error)) from None
            self._in_parts = False
            return self._receive_by_http()
        return True

    def _range(self, part: DownloadPart) -> Range:
        """Return how `range_loop` receives a part."""
        from wids.storage.transport.range_reads import END, Range

        download, plan, asked_stop = self._download, self._plan, part.stop

        def check(content: Content, _: str | None) -> None:
            # Of two answers without a length, the later one may be of a shorter version.
            has_length = content.total_nbytes is not None or download.total_nbytes is not None
            is_rest = content.start == part.position  # of a response that did not state its length
            if download.is_arriving and has_length:
                download.compare(part, content, part.position if is_rest else part.start)
            elif asked_stop is None or self._is_usable(content, asked_stop):
                download.begin(content, part)
            else:
                raise ReplacedError(
                    f"{urls.redact(download.url)}: expected a part of the file, found a response "
                    "that has none"
                )
            wanted.is_whole = download.is_single
            stop = part.stop or content.total_nbytes
            wanted.stop = END if stop is None else stop

        def finish(_: Content, data: memoryview) -> memoryview:
            download.finish(part)
            return data

        wanted = Range(
            cast("Http", plan.transport.by_http(plan.url)),
            plan.url,
            part.start,
            END if part.stop is None else part.stop,
            lambda: download.tag,
            check,
            finish,
            plan.timeouts,
            plan.may_hedge,
            partial(download.write, part),
            self._place,
            is_verified=download.is_verified,
        )
        return wanted

    def _is_usable(self, content: Content, asked_stop: int) -> bool:
        """Whether a response has all of the file, or its first part as requested, with a tag."""
        is_as_asked = content.stop == min(asked_stop, content.total_nbytes or 0)
        # Without a tag nothing would reveal that another part is of another version.
        is_enough = content.tag is not None or content.is_whole
        return content.stop is None or (is_as_asked and is_enough)

    def _receive_by_stream(self) -> None:
        """Receive what is missing of the file by one stream."""
        download, part = self._download, self._whole
        # Without a tag or a digest nothing would reveal that the rest is of another version.
        start = part.position if download.tag is not None or download.is_verified else 0
        try:
            tag = download.tag if start else None
            stream = self._transports.open(download.url, start, None, tag)
        except PastEndError as error:
            # All bytes had arrived, but not the end of the response; or the file is shorter.
            raise ReplacedError(str(error)) from error
        with stream:
            if not download.is_arriving:
                download.begin(stream.content, part)
            download.compare(part, stream.content, part.position)
            for chunk in stream.chunks:
                check_waits()
                download.write(part, part.position, chunk)
            download.finish(part)

    def _part_nbytes(self) -> int:
        return min(self._download.part_nbytes, part_nbytes(self._plan.timeouts.server))
