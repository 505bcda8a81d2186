"""Retry attempts that may fail: when to try again, how long to wait, and when to stop.

A request that takes much longer than others is sent once more before it fails: a hedge.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, TypeAlias, TypeVar

from wids.errors import FetchError, printable
from wids.storage import stages
from wids.storage.sizes import count_text
from wids.storage.transport import shared_refusals, urls
from wids.storage.transport.stream import Data, Stream, TransientError

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)

MAX_FAILURES: Final = 5
"""Failures in a row that are not outages, without `_PROGRESS_NBYTES` received in between."""

_FIRST_CONTACT_S: Final = 8.0
"""How long to try to reach a server that has never answered: its name may be wrong."""

_FIRST_WAIT_S: Final = 0.2
_MAX_WAIT_S: Final = 10.0
_SILENT_S: Final = 1.0
"""If a read waits longer, one line says so, and another one that the server is back."""

_PROGRESS_NBYTES: Final = 1 << 20
"""Bytes after which a server counts as working."""

_answered: Final[set[str]] = set()
"""The servers that have answered this process, or the one that it was forked from."""

_cancel: ContextVar[threading.Event | None] = ContextVar("wids_cancel", default=None)


class CancelledError(FetchError):
    """A fetch that the caller has cancelled."""


class DeadlineError(FetchError, TimeoutError):
    """A read that took longer than the caller allows."""


class _PassedError(DeadlineError):
    """The same, before `with_retries` says what the time was spent on; parts have their own."""


@dataclass
class Patience:
    """How long a read waits for a server.

    Attributes:
        server: Scheme and host, as in messages; ``""`` for a file or a command of this machine,
            which has no outages.
        retry_s: Seconds to wait, once the server has answered this process.
        deadline_s: Seconds after which the read is an error, whatever it waits for.
        url: What is read, for messages.
        started_s: When the read began, from which the deadline counts: also for its parts.
        waited_s: Seconds that a read with a deadline has waited, by what it waited for.
    """

    server: str
    retry_s: float
    deadline_s: float = math.inf
    url: str = ""
    started_s: float = field(default_factory=time.monotonic)
    waited_s: dict[str, float] = field(default_factory=dict)

    def again(self) -> Patience:
        """Return the same for a read that begins now."""
        return Patience(self.server, self.retry_s, self.deadline_s, self.url)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; less than 0 after it."""
        return self.started_s + self.deadline_s - time.monotonic()

    def deadline_error(self) -> DeadlineError:
        """Return the error that says what the time was spent on."""
        parts = [f"{_text(spent_s)} for {what}" for what, spent_s in self.waited_s.items()]
        return DeadlineError(
            f"{urls.redact(self.url)}: expected all bytes within {_text(self.deadline_s)} "
            f"(deadline_s), found that it waited {_text(time.monotonic() - self.started_s)}: "
            f"{', '.join(parts)}; allow more time, or find what is slow"
        )


_limited: ContextVar[Patience | None] = ContextVar("wids_limited", default=None)
"""The patience of the read of this thread, if it has a deadline."""


def has_answered(server: str) -> bool:
    """Return whether a server has ever answered this process."""
    return server in _answered


def answered() -> list[str]:
    """Return the servers that have answered this process."""
    return sorted(_answered)


def note_answer(server: str) -> None:
    """Remember that a server has answered."""
    _answered.add(server)


@contextmanager
def cancelled_by(event: threading.Event) -> Iterator[None]:
    """End every wait of this thread inside the block when an event is set."""
    token = _cancel.set(event)
    try:
        yield
    finally:
        _cancel.reset(token)


def cancellation() -> threading.Event | None:
    """Return the event that ends the waits of this thread, or None."""
    return _cancel.get()


def check_waits(silent_s: float = 0.0) -> None:
    """End the waits of this thread where they must end.

    Args:
        silent_s: How long the thread has been waiting for the next bytes.

    Raises:
        CancelledError: The event of `cancelled_by` is set.
        DeadlineError: The deadline of the read has passed.
        OvertakenError: The second request of `hedged` was answered before the first.
    """
    event, patience = _cancel.get(), _limited.get()
    if event is not None and event.is_set():
        raise CancelledError("the fetch was cancelled")
    if patience is not None and patience.left_s <= 0:
        raise _PassedError("the deadline has passed")  # `with_retries` says more
    if (race := _race.get()) is not None:
        race.check(silent_s)


def poll_s(most_s: float, silent_s: float) -> float:
    """Return after how many seconds of waiting for bytes to call `check_waits`.

    Args:
        most_s: If there is nothing special.
        silent_s: As for `check_waits`.
    """
    race = _race.get()
    return most_s if race is None else race.poll_s(most_s, silent_s)


def left_s() -> float:
    """Return the seconds until the deadline of the read, or infinity."""
    patience = _limited.get()
    return math.inf if patience is None else max(0.0, patience.left_s)


@contextmanager
def _timed(patience: Patience, what: str) -> Iterator[None]:
    started_s = time.monotonic()
    try:
        yield
    finally:
        spent_s = time.monotonic() - started_s
        patience.waited_s[what] = patience.waited_s.get(what, 0.0) + spent_s


_untimed: Final = nullcontext()


def waiting_for(what: str) -> AbstractContextManager[None]:
    """Have the error of a deadline say how long the block took, for what."""
    patience = _limited.get()
    return _untimed if patience is None else _timed(patience, what)


def with_retries(
    attempt: Callable[[], _T], patience: Patience, position: Callable[[], int] = lambda: 0
) -> _T:
    """Call ``attempt`` until it returns, fails permanently, or fails too long without progress.

    Args:
        attempt: Raises `TransientError` if another attempt may succeed.
        patience: Which server it reads from, and how long to wait.
        position: Returns the number of bytes received so far. Failures before the latest megabyte
            are forgotten.

    Raises:
        CancelledError: The event of `cancelled_by` was set during a wait.
        DeadlineError: The deadline of ``patience`` has passed.
        FetchError: It failed too long.
    """
    is_limited = not math.isinf(patience.deadline_s)
    with stages.fetching(), _within_deadline(patience) if is_limited else _untimed:
        failures, reached = _Failures(patience), 0
        while True:
            started_s = time.monotonic()
            try:
                result = attempt()
            except TransientError as error:
                # An attempt that starts over makes progress only beyond what earlier ones reached:
                # otherwise a server could send the same megabytes repeatedly.
                if position() - reached >= _PROGRESS_NBYTES:
                    failures, reached = _Failures(patience), position()
                wait_s = failures.wait_s(error, time.monotonic() - started_s)
            else:
                note_answer(patience.server)
                if patience.server and (away_s := shared_refusals.outage_ends(patience.server)):
                    back = printable(patience.server)
                    _logger.warning("%s answers again, after %s", back, _text(away_s))
                return result
            stages.count(stages.RETRIES, bool(patience.server))
            with waiting_for("the next attempt"):
                is_cancelled = _pause(min(wait_s, left_s()), cancellation())
            if is_cancelled:
                raise CancelledError("the fetch was cancelled")
            check_waits()


@contextmanager
def _within_deadline(patience: Patience) -> Iterator[None]:
    """End the waits of the block at the deadline, with an error that says what they were for."""
    if _limited.get() is patience:
        yield
        return
    token = _limited.set(patience)
    try:
        yield
    except _PassedError:
        raise patience.deadline_error() from None
    finally:
        _limited.reset(token)


@dataclass
class _Failures:
    """The failures in a row of one read.

    Attributes:
        patience: As for `with_retries`.
        count: Number of failures.
        num_refusals: How many of them were not outages.
        waited_s: Seconds since the first.
    """

    patience: Patience
    count: int = 0
    num_refusals: int = 0
    waited_s: float = 0.0

    def wait_s(self, error: TransientError, spent_s: float) -> float:
        """Return the seconds to wait after another failed attempt, which took ``spent_s``.

        Raises:
            FetchError: Waiting longer is useless.
        """
        server = self.patience.server
        if error.is_answer:
            note_answer(server)
        # The first attempt may have received part of a long response before it failed.
        if self.count or not has_answered(server):
            self.waited_s += spent_s
        self.count += 1
        wait_s = (error.wait_s or 0.0) + _backoff_s(self.count)
        if not (server and error.is_outage):
            self.num_refusals += 1
            if self.num_refusals >= MAX_FAILURES:
                raise FetchError(f"{error}; tried {self.count} times") from error
            return wait_s
        limit_s = self._limit_s(error, spent_s)
        wait_s = min(wait_s, limit_s - self.waited_s)
        if self.waited_s + wait_s >= _SILENT_S and shared_refusals.outage_begins(server):
            _logger.warning(
                "%s; waiting up to %s for %s", str(error), _text(limit_s), printable(server)
            )
        self.waited_s += wait_s
        return wait_s

    def _limit_s(self, error: TransientError, spent_s: float) -> float:
        """Return how long to wait in all, or raise the error if that time has passed."""
        server, retry_s = self.patience.server, self.patience.retry_s
        if has_answered(server):
            limit_s, next_s = retry_s, 0.0
            advice = "to wait longer, set retry_s in storage_options, or $WIDS_RETRY_S"
        else:
            # Another attempt would take as long as this one: drivers try several times themselves.
            limit_s, next_s = min(retry_s, _FIRST_CONTACT_S), spent_s
            advice = "it has not answered this program before: check the address"
        if self.waited_s + next_s < limit_s:
            return limit_s
        raise FetchError(
            f"{error}; waited {_text(self.waited_s)} for {printable(server)}, in "
            f"{count_text(self.count, 'attempt')}; {advice}"
        ) from error


Opened: TypeAlias = "Callable[[int, str | None, AbstractContextManager[Any]], Stream]"
"""Opens a stream: from a position on, of a version, and inside the block the server is waited for.
"""

_NUM_LIKE: Final = 128
_LEAST_LIKE: Final = 16
_QUANTILE: Final = 0.95
_TIMES_LONGER: Final = 1.25
"""A request is late after so many times what this part of its like took."""
_LEAST_LATE_S: Final = 0.05
_STALLED_S: Final = 0.75
"""A request is late after so long a silence too, of which nothing is known at first."""
_MOST_HEDGED: Final = 0.05
_RACE_POLL_S: Final = 0.005


class OvertakenError(FetchError):
    """A request that is given up, since the same one that was sent later was answered."""


class _Pace:
    """How long requests to one server take, and how many were sent twice."""

    def __init__(self) -> None:
        self.num_requests = 0
        self._num_hedged = 0
        self._took_s: dict[int | None, deque[float]] = {}
        self._late_s: dict[int | None, float] = {}
        self._lock = threading.Lock()

    def late_s(self, size: int | None) -> float:
        """Return after how long a request is late; infinity if too little is known."""
        return self._late_s.get(size, math.inf)

    def note(self, size: int | None, seconds: float) -> None:
        """Note how long a request took; requests of one size are alike."""
        took_s = self._took_s.setdefault(size, deque(maxlen=_NUM_LIKE))
        took_s.append(seconds)
        if len(took_s) >= _LEAST_LIKE and self.num_requests % 8 == 0:
            ordered = sorted(took_s)
            usual_s = ordered[int(_QUANTILE * len(ordered))]
            self._late_s[size] = max(_LEAST_LATE_S, _TIMES_LONGER * usual_s)

    def lets_hedge(self) -> bool:
        """Return whether one more request may be sent twice, and count it."""
        with self._lock:
            may = self._num_hedged <= _MOST_HEDGED * self.num_requests
            self._num_hedged += may
            return may


_paces: Final[dict[str, _Pace]] = {}
"""By server."""


class _Race:
    """A request; and a second one for the rest of its bytes, if it is late.

    It is the context manager of each wait for the first request.
    """

    def __init__(
        self, opened: Opened, url: str, pace: _Pace, start: int, tag: str | None, size: int | None
    ) -> None:
        self._opened = opened
        self._url = url
        self._pace = pace
        self._start = self._at = start
        self._tag = tag
        self._size = size
        self._late_s = pace.late_s(size)
        self._stalled_s = max(_STALLED_S, self._late_s if self._late_s < math.inf else 0.0)
        self._since_s = 0.0
        self._stream: Stream | None = None
        self._cancel: threading.Event | None = None  # of the second request
        self._second: deque[tuple[int, Stream, Data]] = deque()  # taken by who uses or closes it

    def open(self) -> Stream:
        """Open the stream that is answered first."""
        try:
            try:
                stream = self._opened(self._at, self._tag, self)
            except OvertakenError:
                stream = self._switched()
        except BaseException:
            self._end()
            raise
        if self._size is None:  # its length would say more of the network than of this request
            self._note()
        self._tag = stream.tag
        self._stream = replace(stream)
        stream.chunks, stream.close = self._pieces(self._stream), self._close
        return stream

    def __enter__(self) -> None:
        self._since_s = self._since_s or time.monotonic()
        self._token = _race.set(self)

    def __exit__(self, *_: object) -> None:
        _race.reset(self._token)

    def check(self, silent_s: float) -> None:
        """Send the second request when it is time; end the wait when it was answered."""
        if self._second:
            raise OvertakenError("a second request was answered first")
        # Without a version, nothing would reveal that the rest is of another one.
        is_known = self._at == self._start or self._tag is not None
        if self._cancel or not is_known or self._left_s(silent_s) > 0:
            return
        if self._pace.lets_hedge():
            after_s = time.monotonic() - self._since_s
            _logger.info("%s: requested again, after %.2f s", urls.redact(self._url), after_s)
            self._cancel = threading.Event()
            again = threading.Thread(
                target=self._send_again, args=(self._cancel,), name="wids-hedge", daemon=True
            )
            with suppress(RuntimeError):  # no more threads
                again.start()

    def poll_s(self, most_s: float, silent_s: float) -> float:
        """Return after how long `check` may have something to do."""
        left_s = _RACE_POLL_S if self._cancel else self._left_s(silent_s)
        return min(most_s, max(0.001, left_s)) if left_s > 0 else most_s

    def _left_s(self, silent_s: float) -> float:
        taken_s = time.monotonic() - self._since_s
        return min(self._late_s - taken_s, self._stalled_s - silent_s)

    def _note(self) -> None:
        self._pace.note(self._size, time.monotonic() - self._since_s)
        self._late_s = math.inf

    def _send_again(self, cancel: threading.Event) -> None:
        at, stream = self._at, None
        try:
            with cancelled_by(cancel):
                stream = self._opened(at, self._tag, nullcontext())
                self._second.append((at, stream, next(stream.chunks, b"")))
        except FetchError:  # the first one may still be answered
            if stream is not None:
                stream.close()
        if cancel.is_set():
            self._end()

    def _pieces(self, stream: Stream) -> Iterator[Data]:
        while True:
            try:
                with self:
                    piece = next(stream.chunks, None)
            except OvertakenError:
                stream.close()
                self._stream = stream = self._switched()
                continue
            if piece is None:
                break
            self._at += len(piece)
            yield piece
        if self._size is not None:
            self._note()
        self._end()

    def _switched(self) -> Stream:
        """Return the second stream, from the position on that the first one has reached."""
        (at, stream, piece), first = self._second.pop(), self._stream
        if first is not None and (
            (stream.tag, stream.total_nbytes, stream.start) != (first.tag, first.total_nbytes, at)
        ):
            stream.close()
            message = f"{urls.redact(self._url)}: it changed while it was being read"
            raise TransientError(message, is_outage=False)
        chunks = chain([piece] if piece else [], stream.chunks)
        stream.chunks = chunks if at == self._at else _without(chunks, self._at - at)
        return stream

    def _close(self) -> None:
        self._end()
        if self._stream is not None:
            self._stream.close()

    def _end(self) -> None:
        """Drop the second request."""
        if self._cancel is not None:
            self._cancel.set()
            while self._second:
                with suppress(IndexError):
                    self._second.pop()[1].close()


_race: ContextVar[_Race | None] = ContextVar("wids_race", default=None)
"""The request of this thread that may be sent twice."""


def _without(chunks: Iterator[Data], nbytes: int) -> Iterator[Data]:
    """Yield the pieces after the first bytes."""
    for chunk in chunks:
        if nbytes < len(chunk):
            yield memoryview(chunk)[nbytes:]
        nbytes = max(0, nbytes - len(chunk))


def hedged(opened: Opened, url: str, start: int, tag: str | None, nbytes: int | None) -> Stream:
    """Open a stream, and request its bytes once more if they come late; the first answer counts.

    Late is what takes longer than almost all requests of about this size to this server, or stops
    for most of a second. At most one request in twenty is sent twice.

    Args:
        opened: Opens the stream.
        url: What is read.
        start: Position of the first byte.
        tag: The version, or None.
        nbytes: Number of bytes that the reader waits for; None if it reads them in pieces.
    """
    pace = _paces.setdefault(urls.origin(url), _Pace())
    pace.num_requests += 1
    size = None if nbytes is None else nbytes.bit_length() // 2
    return _Race(opened, url, pace, start, tag, size).open()


def _pause(wait_s: float, cancel: threading.Event | None) -> bool:
    """Wait; return whether the wait was cancelled. Tests replace this function to save time."""
    if cancel is not None:
        return cancel.wait(wait_s)
    time.sleep(wait_s)
    return False


def _backoff_s(num_failures: int) -> float:
    """Return a random part of a limit that doubles, so that processes retry at different times."""
    longest_s = min(_MAX_WAIT_S, math.ldexp(_FIRST_WAIT_S, min(num_failures, 20) - 1))
    return random.uniform(0.0, longest_s)  # noqa: S311 - no secret


def _text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:,.0f} s"
