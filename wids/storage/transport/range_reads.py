"""A range of a file to read by HTTP, and what became of the requests for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from wids.errors import FetchError
from wids.storage.transport.admission import FIRST_PLACE, Place
from wids.storage.transport.connections import Head
from wids.storage.transport.http import NO_HEADERS, Http, Route, lines
from wids.storage.transport.retry import Attempts, Timeouts
from wids.storage.transport.stream import Content
from wids.storage.transport.urls import redact

_MAX_REDIRECTS: Final = 10

END: Final = sys.maxsize
"""The end of a file of unknown length."""


@dataclass(eq=False)
class Range:
    """A range to read.

    Attributes:
        http: How its server is reached.
        url: The file, as messages and admission control name it.
        start: Position of the first byte.
        stop: Position after the last byte; or `END`, which ``check`` then sets.
        tag: Returns the version that it must be of; None for any.
        check: Called with the head of a response that is not the rest of an earlier one, or is the
            first to state the length, and with that version; raises `WidsError` if it is of another
            file.
        finish: Called with the head and the bytes, which may be fewer; returns what is handed out,
            or raises `WidsError`.
        timeouts: How long to wait.
        may_hedge: Whether it is requested twice if it is late.
        write: Called with the position in the file of bytes that have arrived, and with these,
            which ``finish`` does not get then; None to keep them in memory. Its errors end all.
        place: The place among requests to the server that nobody waits for.
        is_whole: Whether the server sends the file, and not a part: if it starts over, its length
            may be another.
        is_verified: Whether the version does not matter, since a digest of the file decides.
    """

    http: Http
    url: str
    start: int
    stop: int
    tag: Callable[[], str | None]
    check: Callable[[Content, str | None], None]
    finish: Callable[[Content, memoryview], memoryview]
    timeouts: Timeouts
    may_hedge: bool
    write: Callable[[int, memoryview], None] | None = None
    place: Place = FIRST_PLACE
    is_whole: bool = False
    is_verified: bool = False

    def is_same(self, content: Content, other: Content) -> bool:
        """Whether the answer to the request for the rest of another one is of its version."""
        # After If-Range, a part needs no tag. A response in chunks need not state the length.
        is_part = content.stop is not None
        is_tagged = (
            self.is_verified or content.tag == other.tag or (is_part and content.tag is None)
        )
        lengths = {content.total_nbytes, other.total_nbytes} - {None}
        return is_tagged and len(lengths) < 2


class Kept(NamedTuple):
    """What has arrived of an answer whose version is known.

    Attributes:
        content: What the answer has.
        memory: Where it is received, by several requests if need be: their bytes are the same.
        nbytes: How many bytes there are of it.
    """

    content: Content
    memory: memoryview
    nbytes: int


class Read:
    """A range on its way, by one request after another, or by two at a time.

    Attributes:
        number: The place of the range among all.
        wanted: The range.
        attempts: What became of its requests.
        address: What is requested, before redirects; it may be signed.
        location: Where redirects have led; None to ask for the address.
        ours: The caller's headers that are sent there; None to ask for them.
        callers: The same, before redirects.
        route: How its next request reaches the server.
        request: The bytes of that request.
        tag: The version that it must be of.
        arrived: What that request need not ask for; None for nothing.
        num_redirects: How many redirects there were.
        num_racing: Its requests that are queued or in flight.
        is_done: Whether it was handed out.
        was_hedged: Whether it was requested twice.
        was_renewed: Whether it was requested with newer headers of the caller.
        was_corrected: Whether it was requested by another address after a refusal.
        is_replaced: Whether the file has another version than it must: its response says which.
    """

    route: Route
    request: bytes
    address: str
    tag: str | None
    callers: Mapping[str, str]

    def __init__(self, number: int, wanted: Range) -> None:
        self.number = number
        self.wanted = wanted
        self.attempts = Attempts(wanted.timeouts)
        self.num_racing = 0
        self.is_done = self.was_hedged = self.was_renewed = False
        self.was_corrected = self.is_replaced = False
        self.arrived: Kept | None = None
        self._waits_for, self._since_s = "its turn at the server", time.monotonic()
        self.begin()

    def begin(self) -> None:
        """Forget where redirects have led."""
        self.location: str | None = None
        self.ours: Mapping[str, str] | None = None
        self.num_redirects = 0

    def follow(self, target: str) -> None:
        """Have the next request be for what a redirect leads to.

        Raises:
            FetchError: It leads to no address of HTTP, or there were too many.
        """
        wanted = self.wanted
        if self.num_redirects == _MAX_REDIRECTS:
            raise FetchError(
                f"{redact(wanted.url)}: expected a response, found more than {_MAX_REDIRECTS} "
                "redirects; they may form a loop"
            )
        self.location, self.ours = wanted.http.led_to(
            wanted.url, self.location or self.address, target, self.ours or NO_HEADERS
        )
        self.num_redirects += 1

    def refused(self, head: Head, text: str) -> FetchError | None:
        """Return the error that a response without a file stands for.

        Return None if the next request, which may be another one, has an answer.
        """
        wanted = self.wanted
        if head.status == 412 and self.arrived is not None and self.tag is None:
            self.arrived = None  # of the rest of an earlier version: all of the range is read again
            return None
        if head.status == 412 and not self.is_replaced:
            # As a server does for If-Range: the whole file, whose tag says that it is another.
            self.arrived, self.is_replaced = None, True
            return None
        error = wanted.http.refusal(
            wanted.url, self.address, head, text, is_last=self.was_corrected
        )
        if error is None:
            self.was_corrected = True
            self.begin()
        return error

    def renew(self) -> bool:
        """Have the next request send newer headers; return False if the caller has none."""
        headers = self.wanted.http.headers
        newer = None if self.was_renewed else headers.after_refusal(self.callers)
        if newer is None:
            return False
        self.begin()
        self.ours, self.was_renewed = newer, True
        return True

    def prepare(self) -> None:
        """Prepare the next request.

        Raises:
            FetchError: The address or the headers cannot be used.
        """
        wanted = self.wanted
        if self.location is None:
            self.location = self.address = wanted.http.address(wanted.url)
        if self.ours is None:
            self.ours = self.callers = wanted.http.headers.current()
        start, stop, tag = wanted.start, wanted.stop, wanted.tag()
        self.tag = tag
        if self.arrived is not None:
            start += self.arrived.nbytes
            tag = None if wanted.is_verified else self.arrived.content.tag
        elif self.is_replaced:
            start, stop = 0, END
        elif wanted.is_whole:
            stop = END
        self.route = wanted.http.route(wanted.url, self.location, self.ours)
        own = b""
        if start or stop != END:
            own = b"Range: bytes=%d-%b\r\n" % (start, b"" if stop == END else b"%d" % (stop - 1))
            if tag is not None:
                own += lines(wanted.url, wanted.http.if_version(tag))
        self.request = self.route.start + own + b"\r\n"

    def keeps(self, content: Content) -> bool:
        """Return whether the rest of an answer can be requested."""
        return content.tag is not None or self.wanted.is_verified

    def keep(self, content: Content | None, memory: memoryview, nbytes: int) -> None:
        """Have the next request ask only for what is missing of an answer, if it has a version.

        What is collected of one of unknown length has no place yet, and is requested again.
        """
        is_later = nbytes > (0 if self.arrived is None else self.arrived.nbytes)
        has_place = self.wanted.write is not None or len(memory) >= nbytes
        if content is not None and is_later and has_place and self.keeps(content):
            self.arrived = Kept(content, memory, nbytes)

    def waits(self, what: str) -> None:
        """Note what it waits for from now on, for the error of its deadline."""
        waited_s, now_s = self.wanted.timeouts.waited_s, time.monotonic()
        spent_s = waited_s.get(self._waits_for, 0.0) + now_s - self._since_s
        waited_s[self._waits_for] = spent_s
        self._waits_for, self._since_s = what, now_s
