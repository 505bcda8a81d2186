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
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import chain
from threading import Event, Thread
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
SILENT_S: Final = 0.75
"""A request is late after so long a silence, also if nothing is known of others."""
_REQUESTS_A_HEDGE: Final = 20
_POLL_S: Final = 0.005


class OvertakenError(FetchError):
    """A request that is given up, since the same one that was sent later was answered."""


class Like:
    """How long the recent requests of about one size to one server took.

    Attributes:
        late_s: After how many seconds the next one is late; 0 if too few are known.
    """

    late_s = 0.0

    def __init__(self) -> None:
        self._num_noted = 0
        self._took_s: deque[float] = deque(maxlen=_NUM_LIKE)

    def note(self, since_s: float) -> None:
        """Note one that was sent then, and has just been answered."""
        self._took_s.append(time.monotonic() - since_s)
        self._num_noted += 1
        if self._num_noted >= _LEAST_LIKE and self._num_noted % 8 == 0:
            took_s = sorted(self._took_s)
            long_s, usual_s = took_s[int(_QUANTILE * len(took_s))], took_s[len(took_s) // 2]
            self.late_s = max(_LEAST_LATE_S, _TIMES_LONGER * usual_s, long_s)


class Pace:
    """The requests to one server by their size, and how many were sent twice."""

    def __init__(self) -> None:
        self.num_requests = 0
        self._num_hedges = 0
        self._likes: defaultdict[int, Like] = defaultdict(Like)

    def like(self, nbytes: int) -> Like:
        """Return what is known of requests of about so many bytes."""
        return self._likes[nbytes.bit_length() // 2]

    def note_hedge(self, url: str, took_s: float) -> None:
        """Note that one was sent twice, after so many seconds."""
        _logger.info("%s: requested again after %.2f s", urls.redact(url), took_s)
        self._num_hedges += 1

    def lets_hedge(self, *, is_stalled: bool) -> bool:
        """Return whether one more request may be sent twice: the last one, if it has stalled."""
        return (self._num_hedges + (not is_stalled)) * _REQUESTS_A_HEDGE <= self.num_requests


_paces: Final[dict[str, Pace]] = {}
"""By server. No locks: what two threads change at once is one request more or less."""


def pace_of(server: str) -> Pace:
    """Return what this process knows of the requests to a server."""
    return _paces.get(server) or _paces.setdefault(server, Pace())


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
    pace = pace_of(server)
    pace.num_requests += 1
    return _Race(opened, url, pace, pace.like(nbytes or 0), nbytes is not None, start, tag).open()


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


@dataclass(eq=False)
class _Race:
    """One request, and perhaps a second one for its missing bytes.

    It is the context manager of all waits for the first, and has the arguments of `hedged`.

    Attributes:
        is_awaited: Whether the reader waits for all bytes.
        at: Position of the next byte.
        tag: The version, as far as it is known.
        is_safe: Whether the second answer cannot be of another version unnoticed.
        since_s: When the first was sent; 0 before that.
        close_one: Closes the one that is read. The stream itself is not here: one that is dropped
            ends at once, without a search for cycles.
        cancel: Ends the second request, if there is one.
        second: At most one, once it has bytes: the position, the stream, its first bytes.
    """

    opened: Opened
    url: str
    pace: Pace
    like: Like
    is_awaited: bool
    at: int
    tag: str | None
    is_safe: bool = True
    since_s: float = 0.0
    close_one: Callable[[], None] = field(default=lambda: None)
    cancel: Event | None = None
    second: list[tuple[int, Stream, Data]] = field(default_factory=list)

    def open(self) -> Stream:
        """Return the stream, which may turn into the second one at any time."""
        try:
            stream = self.opened(self.at, self.tag, self)
        except OvertakenError:
            self.like.note(self.since_s)
            _, stream, piece = self.second.pop()
            stream.chunks = chain([piece], stream.chunks)
            return stream
        except BaseException:
            self._end()
            raise
        if not self.is_awaited:
            self.like.note(self.since_s)
        # A whole file may have come instead of its rest.
        self.at, self.tag, self.close_one = stream.start, stream.tag, stream.close
        stream.chunks, stream.close = self._pieces(stream.chunks, stream.total_nbytes), self._close
        return stream

    def __enter__(self) -> None:
        self.since_s = self.since_s or time.monotonic()
        self._token = _race.set(self)

    def __exit__(self, *_: object) -> None:
        _race.reset(self._token)

    def wait_s(self, most_s: float, silent_s: float) -> float:
        """Return what the function returns while this one is read."""
        if self.second:
            raise OvertakenError("the second request was answered first")
        took_s, late_s = time.monotonic() - self.since_s, self.like.late_s
        left_s = late_s - took_s if self.is_awaited and late_s else math.inf
        silence_s = max(SILENT_S, late_s) - silent_s
        is_late = min(left_s, silence_s) <= 0 and self.is_safe and self.cancel is None
        if is_late and self.pace.lets_hedge(is_stalled=silence_s <= 0):
            self._send_again(took_s)
        if self.cancel is not None:
            return min(most_s, _POLL_S)
        return min(seconds for seconds in (most_s, left_s, silence_s) if seconds > 0)

    def _send_again(self, took_s: float) -> None:
        self.pace.note_hedge(self.url, took_s)
        self.cancel = Event()
        args = self.cancel, self.at, self.tag  # as they are now: the first may go on
        with suppress(RuntimeError):  # there can be no more threads
            Thread(target=self._read_again, args=args, name="wids-hedge", daemon=True).start()

    def _read_again(self, cancel: Event, at: int, tag: str | None) -> None:
        stream = None
        with suppress(FetchError), cancelled_by(cancel):  # the first one may still be answered
            stream = self.opened(at, tag, nullcontext())
            # Not a whole file instead of its rest.
            if stream.start == at or stream.tag != tag:
                self.second.append((at, stream, next(stream.chunks, b"")))
                stream = None
        if stream is not None:
            stream.close()
        if cancel.is_set():
            self._end()

    def _pieces(self, chunks: Iterator[Data], nbytes: int | None) -> Iterator[Data]:
        while True:
            try:
                with self:
                    piece = next(chunks, None)
            except OvertakenError:
                yield from self._rest(nbytes)
                break
            if piece is None:
                break
            # Without a version, nothing would reveal that the rest is of another one.
            self.is_safe = self.tag is not None
            self.at += len(piece)
            yield piece
        if self.is_awaited:
            self.like.note(self.since_s)
        self._end()

    def _rest(self, nbytes: int | None) -> Iterator[Data]:
        """Yield what is missing of the first answer, from the second one."""
        at, other, first = self.second.pop()
        self._close()
        self.close_one = other.close
        if at > self.at or (other.tag, other.total_nbytes, other.start) != (self.tag, nbytes, at):
            message = f"{urls.redact(self.url)}: it changed while it was being read"
            raise TransientError(message, is_outage=False)
        for piece in chain([first], other.chunks):
            known_nbytes, at = max(0, self.at - at), at + len(piece)
            if known_nbytes < len(piece):
                yield memoryview(piece)[known_nbytes:]

    def _close(self) -> None:
        self._end()
        self.close_one()

    def _end(self) -> None:
        """Drop the second request."""
        if self.cancel is not None:
            self.cancel.set()
        for _, stream, _ in self.second:
            stream.close()


_race: ContextVar[_Race | None] = ContextVar("wids_race", default=None)
"""The request that this thread waits for."""
