"""Retry attempts that may fail: when to try again, how long to wait, and when to stop.

Outages are waited for: connections that fail, stall or break off, and the statuses of a busy or
broken server, for `retry_s` seconds (300) from the first failure since the latest megabyte. A
server that never answered may have a wrong name, and is tried for eight seconds. Other failures,
such as a response that is always too short or a command that fails, end a read after five attempts;
other statuses at once. All threads and processes of a program log one warning for a server that is
away.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Final, TypeVar

from wids.errors import FetchError, printable
from wids.storage import shared_numbers, stages
from wids.storage.sizes import count_text
from wids.storage.transport import urls
from wids.storage.transport.stream import TransientError

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)

MAX_FAILURES: Final = 5
"""Failures in a row that are not outages, without `_PROGRESS_NBYTES` received in between."""

_FIRST_CONTACT_S: Final = 8.0
"""How long to try to reach a server that has never answered: its name may be wrong."""

_FIRST_WAIT_S: Final = 0.2
_MAX_WAIT_S: Final = 10.0
_MAX_REFUSED_S: Final = 1.0
"""The same after a refusal: who waits longest must not wait for longer and longer."""
_SILENT_S: Final = 1.0
"""If a read waits longer, one line says so, and another one that the server is back."""
_QUIET_S: Final = 30.0
"""How long after a server was back nothing is said: it may answer some requests and not others."""

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
class Timeouts:
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

    def again(self) -> Timeouts:
        """Return the same for a read that begins now."""
        if math.isinf(self.deadline_s):
            return self
        return Timeouts(self.server, self.retry_s, self.deadline_s, self.url)

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


_limited: ContextVar[Timeouts | None] = ContextVar("wids_limited", default=None)
"""The timeouts of the read of this thread."""


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


def check_waits() -> None:
    """End the waits of this thread where they must end.

    Raises:
        CancelledError: The event of `cancelled_by` is set.
        DeadlineError: The deadline of the read has passed.
    """
    event, timeouts = _cancel.get(), _limited.get()
    if event is not None and event.is_set():
        raise CancelledError("the fetch was cancelled")
    if timeouts is not None and timeouts.left_s <= 0:
        raise _PassedError("the deadline has passed")  # `with_retries` says more


def left_s() -> float:
    """Return the seconds until the deadline of the read, or infinity."""
    timeouts = _limited.get()
    return math.inf if timeouts is None else max(0.0, timeouts.left_s)


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Have the error of a deadline say how long the block took, for what."""
    timeouts, started_s = _limited.get(), time.monotonic()
    try:
        yield
    finally:
        if timeouts is not None:
            spent_s = time.monotonic() - started_s
            timeouts.waited_s[what] = timeouts.waited_s.get(what, 0.0) + spent_s


def with_retries(
    attempt: Callable[[], _T], timeouts: Timeouts, position: Callable[[], int] = lambda: 0
) -> _T:
    """Call ``attempt`` until it returns, fails permanently, or fails too long without progress.

    Args:
        attempt: Raises `TransientError` if another attempt may succeed.
        timeouts: Which server it reads from, and how long to wait.
        position: Returns the number of bytes received so far. Failures before the latest megabyte
            are forgotten.

    Raises:
        CancelledError: The event of `cancelled_by` was set during a wait.
        DeadlineError: The deadline of ``timeouts`` has passed.
        FetchError: It failed too long.
    """
    attempts, token = Attempts(timeouts), _limited.set(timeouts)
    try:
        with stages.fetching():
            while True:
                started_s = time.monotonic()
                try:
                    result = attempt()
                except TransientError as error:
                    wait_s = attempts.failed(error, time.monotonic() - started_s, position())
                else:
                    attempts.succeeded()
                    return result
                with waiting_for("the next attempt"):
                    _pause(min(wait_s, left_s()), _cancel.get())
                check_waits()
    except _PassedError:
        raise timeouts.deadline_error() from None
    finally:
        _limited.reset(token)


@dataclass
class Attempts:
    """The attempts of one read: how long to wait after each that failed, and when to stop.

    Attributes:
        timeouts: Which server it reads from, and how long to wait.
        num_failed: Failures in a row.
        num_refused: How many of them were not outages.
        waited_s: Seconds since the first.
        reached: Number of bytes received before it.
    """

    timeouts: Timeouts
    num_failed: int = 0
    num_refused: int = 0
    waited_s: float = 0.0
    reached: int = 0

    def failed(self, error: TransientError, spent_s: float, position: int = 0) -> float:
        """Return the seconds to wait after an attempt that failed.

        Args:
            error: Its error.
            spent_s: How long it took.
            position: Number of bytes received so far.

        Raises:
            FetchError: It failed too long.
        """
        # An attempt that starts over makes progress only beyond what earlier ones reached:
        # otherwise a server could send the same megabytes repeatedly.
        if position - self.reached >= _PROGRESS_NBYTES:
            self.num_failed, self.num_refused, self.waited_s = 0, 0, 0.0
            self.reached = position
        server = self.timeouts.server
        if error.is_answer:
            note_answer(server)
        # The first attempt may have received part of a long response before it failed.
        if self.num_failed or not has_answered(server):
            self.waited_s += spent_s
        self.num_failed += 1
        longest_s = _MAX_REFUSED_S if error.is_refusal else _MAX_WAIT_S
        wait_s = (error.wait_s or 0.0) + _backoff_s(self.num_failed, longest_s)
        if server and error.is_outage:
            limit_s = self._limit_s(error, spent_s)
            wait_s = min(wait_s, limit_s - self.waited_s)
            if self.waited_s + wait_s >= _SILENT_S and _turned_s(server, is_away=True):
                _logger.warning(
                    "%s; waiting up to %s for %s", str(error), _text(limit_s), printable(server)
                )
            self.waited_s += wait_s
        else:
            self.num_refused += 1
            if self.num_refused >= MAX_FAILURES:
                raise FetchError(f"{error}; tried {self.num_failed} times") from error
        stages.count(stages.RETRIES, bool(server))
        return wait_s

    def succeeded(self) -> None:
        """Remember that the server has answered; say so if it was away."""
        server = self.timeouts.server
        _answered.add(server)
        if server and (away_s := _turned_s(server, is_away=False)):
            _logger.warning("%s answers again, after %s", printable(server), _text(away_s))

    def _limit_s(self, error: TransientError, spent_s: float) -> float:
        """Return how long to wait in all, or raise the error if that time has passed."""
        server, retry_s = self.timeouts.server, self.timeouts.retry_s
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
            f"{count_text(self.num_failed, 'attempt')}; {advice}"
        ) from error


def _turned_s(server: str, *, is_away: bool) -> float | None:
    """Note that a server is away, or back; return for how many seconds it was the other.

    Return None if a thread or a process has noted it before, or it was back a moment ago.
    """
    at, times_s = _outage_at(server), stages.here.common
    if not is_away and times_s[at] <= 0:  # without the lock, since each read asks
        return None
    # Between processes there is no lock: at worst, two of them say the same.
    with shared_numbers.writing:
        # Since then it is away; or less than 0, since when it is back.
        since_s, now_s = times_s[at], time.monotonic()
        is_new = (since_s > 0) is not is_away
        if not is_new or (is_away and since_s and now_s + since_s < _QUIET_S):
            return None
        times_s[at] = now_s if is_away else -now_s
        return now_s - abs(since_s)


@cache
def _outage_at(server: str) -> int:
    """Return where the time is since which a server is away."""
    return server_at(server, stages.OUTAGES)


def server_at(server: str, of: slice) -> int:
    """Return where the number of a server is, among those that all processes share."""
    return int(of.start + zlib.crc32(server.encode()) % (of.stop - of.start))


def _pause(wait_s: float, cancel: threading.Event | None) -> None:
    """Wait, until the wait is cancelled. Tests replace this function to save time."""
    if cancel is None:
        time.sleep(wait_s)
    else:
        cancel.wait(wait_s)


def _backoff_s(num_failures: int, longest_s: float) -> float:
    """Return a random part of a limit that doubles, so that processes retry at different times."""
    longest_s = min(longest_s, math.ldexp(_FIRST_WAIT_S, min(num_failures, 20) - 1))
    return random.uniform(0.0, longest_s)  # noqa: S311 - no secret


def _text(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:,.0f} s"
