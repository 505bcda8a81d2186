"""Send a request once more if it comes late, and use the answer that is there first.

Late is what takes longer than almost all recent requests of about its size to its server, if all
its bytes are waited for; and what stops for most of a second. The second request is for the bytes
that are missing, and waits for its turn like any other. At most one request in twenty is sent twice
(decision 0205).

A transport that waits for bytes calls `wait_s`: the reading thread itself sends the second request,
by a thread that exists for that, and leaves the first when the second has bytes.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from itertools import chain
from typing import Any, Final, TypeAlias

from wids.errors import FetchError
from wids.storage.transport import urls
from wids.storage.transport.retry import cancelled_by
from wids.storage.transport.stream import Data, Stream, TransientError

_logger = logging.getLogger(__name__)

Opened: TypeAlias = "Callable[[int, str | None, AbstractContextManager[Any]], Stream]"
"""Opens a stream from a position on, of a version; the block is where it waits for the server."""

_NUM_LIKE: Final = 128
_LEAST_LIKE: Final = 16
_QUANTILE: Final = 0.95
_TIMES_LONGER: Final = 2.0
"""A request is late when it takes longer than this part of the others, and so many times as long as
half of them."""
_LEAST_LATE_S: Final = 0.05
_SILENT_S: Final = 0.75
"""A request is late after so long a silence, also if nothing is known of others."""
_REQUESTS_A_HEDGE: Final = 20
_POLL_S: Final = 0.005


class OvertakenError(FetchError):
    """A request that is given up, since the same one that was sent later was answered."""


class _Like:
    """How long the recent requests of about one size to one server took."""

    def __init__(self) -> None:
        self.late_s = math.inf
        self._num_noted = 0
        self._took_s: deque[float] = deque(maxlen=_NUM_LIKE)

    def note(self, seconds: float) -> None:
        self._took_s.append(seconds)
        self._num_noted += 1
        if self._num_noted >= _LEAST_LIKE and self._num_noted % 8 == 0:
            took_s = sorted(self._took_s)
            long_s, usual_s = took_s[int(_QUANTILE * len(took_s))], took_s[len(took_s) // 2]
            self.late_s = max(_LEAST_LATE_S, _TIMES_LONGER * usual_s, long_s)


class _Pace:
    """The requests to one server by their size, and how many were sent twice."""

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_hedges = 0
        self.likes: dict[int, _Like] = {}

    def lets_hedge(self, *, is_stalled: bool) -> bool:
        """Return whether one more request may be sent twice: the last one, if it has stalled."""
        return (self.num_hedges + (not is_stalled)) * _REQUESTS_A_HEDGE <= self.num_requests


_paces: Final[dict[str, _Pace]] = {}
"""By server. No locks: what two threads change at once is one request more or less."""


def hedged(
    opened: Opened, server: str, url: str, start: int, tag: str | None, nbytes: int | None
) -> Stream:
    """Open a stream whose bytes are requested once more if they come late.

    Args:
        opened: Opens the stream.
        server: Its server.
        url: What is read.
        start: Position of the first byte.
        tag: The version that is read, or None.
        nbytes: How many bytes the reader waits for; None if it takes them as they come.
    """
    pace = _paces.get(server) or _paces.setdefault(server, _Pace())
    pace.num_requests += 1
    return _Race(opened, url, pace, start, tag, nbytes).open()


def wait_s(most_s: float, silent_s: float) -> float:
    """Return how long a transport may wait for the next bytes before it calls this again.

    Args:
        most_s: The longest time.
        silent_s: How long it has been waiting for them.

    Raises:
        OvertakenError: The request was sent again, and was answered.
    """
    race = _race.get()
    return most_s if race is None else race.wait_s(most_s, silent_s)


class _Race:
    """One request, and perhaps a second one for its missing bytes.

    It is the context manager of all waits for the first.
    """

    def __init__(
        self,
        opened: Opened,
        url: str,
        pace: _Pace,
        start: int,
        tag: str | None,
        nbytes: int | None,
    ) -> None:
        self._opened = opened
        self._url = url
        self._pace = pace
        self._at = self._start = start
        self._tag = tag
        self._is_awaited = nbytes is not None
        size = (nbytes or 0).bit_length() // 2
        self._like = pace.likes.get(size) or pace.likes.setdefault(size, _Like())
        late_s = self._like.late_s
        self._late_s = late_s if self._is_awaited else math.inf
        self._silent_s = _SILENT_S if math.isinf(late_s) else max(_SILENT_S, late_s)
        self._since_s = 0.0
        self._is_noted = False
        # Tag and length, once the reader has a stream. Not the stream itself: one that is dropped
        # ends at once, without a search for cycles.
        self._version: tuple[str | None, int | None] | None = None
        self._close_first: Callable[[], None] | None = None
        self._cancel: threading.Event | None = None  # of the second request
        # At most one: the position, the stream, its first bytes. Who takes it out has to close it.
        self._second: list[tuple[int, Stream, Data]] = []

    def open(self) -> Stream:
        """Return the stream, which may turn into the second one at any time."""
        try:
            try:
                stream = self._opened(self._at, self._tag, self)
            except OvertakenError:
                stream = self._taken_over()
        except BaseException:
            self._end()
            raise
        if not self._is_awaited:
            self._note()
        # A whole file may have come instead of its rest.
        self._at, self._tag, self._close_first = stream.start, stream.tag, stream.close
        self._version = (stream.tag, stream.total_nbytes)
        stream.chunks, stream.close = self._pieces(stream.chunks), self._close
        return stream

    def __enter__(self) -> None:
        self._since_s = self._since_s or time.monotonic()
        self._token = _race.set(self)

    def __exit__(self, *_: object) -> None:
        _race.reset(self._token)

    def wait_s(self, most_s: float, silent_s: float) -> float:
        if self._second:
            raise OvertakenError("the second request was answered first")
        if self._cancel is not None:
            return min(most_s, _POLL_S)
        took_s = time.monotonic() - self._since_s
        late_s, stalled_s = self._late_s - took_s, self._silent_s - silent_s
        if late_s > 0 and stalled_s > 0:
            return min(most_s, late_s, stalled_s)
        # Without a version, nothing would reveal that the rest is of another one.
        is_safe = self._at == self._start or self._tag is not None
        if is_safe and self._pace.lets_hedge(is_stalled=stalled_s <= 0):
            self._send_again(took_s)
            return min(most_s, _POLL_S)
        return min(most_s, stalled_s) if stalled_s > 0 else most_s

    def _send_again(self, took_s: float) -> None:
        _logger.info("%s: requested again after %.2f s", urls.redact(self._url), took_s)
        self._pace.num_hedges += 1
        self._cancel = threading.Event()
        second = threading.Thread(
            target=self._read_again,
            args=(self._cancel, self._at, self._tag),  # as they are now: the first may go on
            name="wids-hedge",
            daemon=True,
        )
        with suppress(RuntimeError):  # there can be no more threads
            second.start()

    def _read_again(self, cancel: threading.Event, at: int, tag: str | None) -> None:
        stream = None
        try:
            with cancelled_by(cancel):
                stream = self._opened(at, tag, nullcontext())
                if stream.start == at or stream.tag != tag:
                    self._second.append((at, stream, next(stream.chunks, b"")))
                else:  # a whole file instead of its rest
                    stream.close()
        except FetchError:  # the first one may still be answered
            if stream is not None:
                stream.close()
        if cancel.is_set():
            self._end()

    def _pieces(self, chunks: Iterator[Data]) -> Iterator[Data]:
        while True:
            try:
                with self:
                    piece = next(chunks, None)
            except OvertakenError:
                self._close_one()
                second = self._taken_over()
                chunks, self._close_first = second.chunks, second.close
                continue
            if piece is None:
                break
            self._at += len(piece)
            yield piece
        self._note()
        self._end()

    def _taken_over(self) -> Stream:
        """Return the second stream, from where the first one is."""
        self._note()
        at, stream, piece = self._second.pop()
        if self._version is not None and (
            (stream.tag, stream.total_nbytes, stream.start) != (*self._version, at) or at > self._at
        ):
            stream.close()
            message = f"{urls.redact(self._url)}: it changed while it was being read"
            raise TransientError(message, is_outage=False)
        stream.chunks = _without(chain([piece], stream.chunks), self._at - at)
        return stream

    def _note(self) -> None:
        """Note how long the request took, once."""
        if not self._is_noted:
            self._like.note(time.monotonic() - self._since_s)
            self._is_noted, self._late_s = True, math.inf

    def _close(self) -> None:
        self._end()
        self._close_one()

    def _close_one(self) -> None:
        close, self._close_first = self._close_first, None
        if close is not None:
            close()

    def _end(self) -> None:
        """Drop the second request."""
        if self._cancel is not None:
            self._cancel.set()
            while self._second:
                with suppress(IndexError):
                    self._second.pop()[1].close()


def _without(chunks: Iterator[Data], nbytes: int) -> Iterator[Data]:
    """Yield the pieces after so many bytes."""
    for chunk in chunks:
        if nbytes < len(chunk):
            yield memoryview(chunk)[nbytes:] if nbytes else chunk
        nbytes = max(0, nbytes - len(chunk))


_race: ContextVar[_Race | None] = ContextVar("wids_race", default=None)
"""The request that this thread waits for."""
