"""Say when a request may be sent by HTTP, so that no server gets more than it can take.

A process has one `Admission`, and makes a new one after a fork. For each server, `request_limit`
decides how many requests are in flight; the others wait by their places: what is read first comes
first. The bytes that responses may occupy in memory are limited too, for the process and for the
node.

A refusal lowers the limit. If the only request in flight is refused, other processes occupy the
server, and this one pauses for a moment. After such a refusal, and one of a request that a reader
waits for, all processes of the program request half as many parts of files for a moment: a worker
reads while its parent fetches ahead.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from bisect import insort
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from wids.errors import printable
from wids.storage import stages
from wids.storage.descriptors import num_descriptors
from wids.storage.transport import request_log
from wids.storage.transport.request_limit import MOST, AwaitedLimit, RequestLimit
from wids.storage.transport.retry import check_waits, left_s, server_at
from wids.storage.transport.stream import CHUNK_NBYTES, REFUSAL_STATUSES, TransientError

_logger = logging.getLogger(__name__)


_POLL_S: Final = 0.25
_PART_S: Final = 0.5
"""How long a part of a file is to take. A part that is read earlier, and requested later, waits for
the others at most so long."""
_FIRST_PART_NBYTES: Final = CHUNK_NBYTES
_PART_GROWTH: Final = 4
"""Times the bytes of an earlier part that one may have at most."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
"""Pause after a server has refused the only request in flight; it doubles with each. The next one
would be refused too, and a thousand may wait."""
_HELD_S: Final = 0.3
"""How long processes leave half of their places to one that was refused: many of the requests in
flight end, and it asks once more, after 0.25 seconds at most."""

PROCESS_NBYTES: Final = 256 << 20
"""Bytes of responses that one process keeps in memory at a time."""
NODE_NBYTES: Final = 1 << 30
"""The same for all processes of a node."""

_STREAM_NBYTES: Final = 2 * CHUNK_NBYTES
"""What a response occupies whose reader takes it in pieces: one here, and one in the system."""

_MOST_STREAMS: Final = 8
"""Files to receive at a time as streams, of which each is read by a thread."""

_SILENT_S: Final = 2.0
"""Silence of a server after which one more request may pass: those in flight may belong to readers
that wait for something else, perhaps for the very request that waits here."""


Place: TypeAlias = tuple[bool, float]
"""The place of a request among others: whether it is fetched ahead, and when its file began."""
FIRST_PLACE: Final = (False, 0.0)
"""That of what is no part of a file."""


@dataclass
class _Server:
    """What a process knows about one server, for one of two kinds of requests.

    Those that a reader waits for have a limit of their own: it is of no use to send one part of
    what it needs after another.

    Attributes:
        name: Scheme and host.
        limit: How many may be in flight.
        num_in_flight: How many are in flight.
        full_s: When the limit was last reached.
        event_s: When something last arrived, or a request was sent.
        num_rejected: How often in a row the only request in flight was refused.
        pause_until_s: Until when none is sent after that.
        waiting: Those that wait for their permit, the first one first.
        speed: Bytes a second that a request has brought lately; 0 if that is not known.
    """

    name: str
    limit: RequestLimit | AwaitedLimit
    num_in_flight: int = 0
    full_s: float = 0.0
    event_s: float = 0.0
    num_rejected: int = 0
    pause_until_s: float = 0.0
    waiting: list[Permit] = field(default_factory=list)
    speed: float = 0.0

    def __post_init__(self) -> None:
        self.is_awaited = isinstance(self.limit, AwaitedLimit)
        self._shared_at = server_at(self.name, stages.REFUSALS)

    def note_refusal(self) -> None:
        """Send fewer requests; if this was the only one in flight, pause."""
        if self.is_awaited or self.num_in_flight == 1:
            stages.here.common[self._shared_at] = time.monotonic() + _HELD_S
        self.limit.refuse(self.num_in_flight - 1)
        if self.num_in_flight > 1:
            return
        pause_s = min(_LONGEST_PAUSE_S, math.ldexp(_FIRST_PAUSE_S, min(self.num_rejected, 20)))
        self.num_rejected += 1
        self.pause_until_s = time.monotonic() + pause_s

    def note_speed(self, nbytes: int, since_s: float) -> None:
        """Note the bytes of a request, and when they began to arrive."""
        seconds = time.monotonic() - since_s
        if nbytes >= CHUNK_NBYTES and seconds > 0:
            # The first request has the network for itself: parts become longer step by step.
            speed = min(nbytes / seconds, _PART_GROWTH * nbytes / _PART_S)
            self.speed += (speed - self.speed) / 4 if self.speed else speed

    def takes_another(self) -> bool:
        """Return whether one more request may be sent now."""
        # After a refusal of the only request, one at a time is sent until one is answered.
        most, now_s = 1 if self.num_rejected else self.limit.value, time.monotonic()
        # Half of the places are left to requests that were refused.
        if not self.is_awaited and now_s < stages.here.common[self._shared_at]:
            most = max(1, most // 2)
        return self.num_in_flight < most and now_s >= self.pause_until_s

    def poll_s(self) -> float:
        """Return when to look again: also at the end of a pause, which wakes nobody."""
        pause_s = self.pause_until_s - time.monotonic()
        return min(_POLL_S, pause_s) if pause_s > 0 else _POLL_S


class Permit:
    """The right to have one request in flight, until `leave`.

    Args:
        admission: Admission control.
        server: The server of the request.
        nbytes: Bytes of memory that the response may occupy.
        request: What the log says of the request: its method, and its URL.
        place: Its place among those that wait.
    """

    is_counted = False  # also of one that Ctrl-C interrupted while it was made
    status: int | None = None
    sent_s = since_s = 0.0
    generation = _received_nbytes = 0
    _latency_s = _answered_s = 0.0
    _has_answered = False

    def __init__(
        self,
        admission: Admission,
        server: _Server,
        nbytes: int,
        request: tuple[str, str],
        place: Place,
    ) -> None:
        self.place = place
        self._admission = admission
        self._server = server
        self._request = request
        self.nbytes = nbytes
        self._asked_s = time.monotonic()
        self.passed = threading.Lock()

    def answered(self) -> None:
        """Note the beginning of the response."""
        server = self._server
        is_refusal = self.status in REFUSAL_STATUSES  # of which `leave` is told
        if is_refusal or (server.is_awaited and not server.num_rejected):  # no limit depends on it
            server.event_s = time.monotonic()
        else:
            self.note(0)
        self._has_answered = True

    def leave(
        self, error: BaseException | None = None, nbytes: int = 0, *, is_whole: bool = False
    ) -> None:
        """End the permit; it may be called again.

        Args:
            error: Why the request has failed, if it has.
            nbytes: Bytes of the response that were not noted.
            is_whole: Whether all of it has arrived.
        """
        admission, server = self._admission, self._server
        # A child does not have the requests of its parent, nor the thread that holds this lock.
        if admission.pid != os.getpid():
            return
        with admission.lock:
            if not self.is_counted:
                return
            limit, limit_before = server.limit, server.limit.value
            is_refusal = isinstance(error, TransientError) and error.is_refusal
            if is_refusal:
                server.note_refusal()
            # Not if the reader wanted no more of it: all of it would have taken longer.
            elif error is None and is_whole:
                self._measure(nbytes, has_ended=False)
                limit.note_request(time.monotonic() - self.sent_s)
                if not server.is_awaited:
                    server.note_speed(self._received_nbytes, self._answered_s)
                    self._measure(0, has_ended=True)
            stages.count(stages.REQUESTS)
            admission.give_back(self)
        if request_log.is_on(logging.DEBUG):
            request_log.log_request(
                *self._request,
                self.sent_s,
                status=self.status,
                nbytes=self._received_nbytes,
                waited_s=self.sent_s - self._asked_s,
                error=error,
            )
        if is_refusal and limit.value < limit_before:
            _logger.info(
                "%s: it refused a request; at most %d at a time now",
                printable(server.name),
                limit.value,
            )

    def __del__(self) -> None:
        # Ctrl-C may come between the beginning of a permit and the block that ends it. No lock
        # here: this thread may hold it.
        if self.is_counted:
            self._admission.abandoned.append((self._server, self.nbytes))

    def note(self, nbytes: int) -> None:
        """Note bytes of the response."""
        admission, server = self._admission, self._server
        if admission.pid != os.getpid():
            return
        with admission.lock:
            if not self.is_counted:
                return
            was_full = not server.takes_another()
            self._measure(nbytes, has_ended=False)
            if was_full and server.takes_another():
                admission.admit()

    def _measure(self, nbytes: int, *, has_ended: bool) -> None:
        """Report what arrived since the last report; call it with the lock."""
        server, now_s = self._server, time.monotonic()
        server.event_s = now_s
        if nbytes:
            stages.count(stages.NBYTES, nbytes)
            self._received_nbytes += nbytes
        if not self._has_answered:
            server.num_rejected = 0
        limit, seconds = server.limit, now_s - self.since_s
        if isinstance(limit, AwaitedLimit):
            return
        if server.num_in_flight >= limit.value:
            server.full_s = now_s
        if not self._has_answered:
            limit.note_response(seconds)
            self._latency_s, self._answered_s = seconds, now_s
        elif server.full_s >= self.since_s:
            # Connecting belongs to no round: only a request that mostly waits is measured whole.
            if has_ended and 2 * self._latency_s > now_s - self.sent_s:
                seconds += self._latency_s
            limit.note_part(
                self.generation, nbytes, seconds, server.num_in_flight, has_ended=has_ended
            )
        self.since_s, self.generation = now_s, limit.generation


class Admission:
    """Admission control of one process.

    Attributes:
        pid: The process.
        lock: Held while anything here is changed.
        abandoned: Permits that ended without `Permit.leave`.
        most_nbytes: Largest number of bytes that responses may have occupied so far.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()  # a download that is collected while it is held takes it too
        self.abandoned: deque[tuple[_Server, int]] = deque()
        self.most_nbytes = 0
        self.servers: dict[tuple[str, bool], _Server] = {}
        self._nbytes = 0
        self._limit_nbytes = 0

    def ask(
        self,
        name: str,
        nbytes: int,
        request: tuple[str, str],
        *,
        is_awaited: bool = False,
        place: Place = FIRST_PLACE,
    ) -> Permit:
        """Return a permit that has come, or one that `wait_a_moment` waits for.

        Args:
            name: The server.
            nbytes: Bytes that the response may occupy in memory.
            request: Method and URL, for the log.
            is_awaited: Whether a reader waits for it, and not for a file of which it is a part.
            place: Its place among those that wait.
        """
        server = self.server(name, is_awaited=is_awaited)
        permit = Permit(self, server, nbytes, request, place)
        with self.lock:
            if self.abandoned:
                self.admit()
            if not server.waiting and self._has_room(permit, server):
                self._let_pass(permit, server)
            else:
                permit.passed.acquire()
                insort(server.waiting, permit, key=lambda each: each.place)
        return permit

    def withdraw(self, permit: Permit) -> None:
        """End a permit for which nothing was sent."""
        with self.lock, suppress(ValueError):
            if permit.is_counted:
                self.give_back(permit)
            else:
                permit._server.waiting.remove(permit)  # noqa: SLF001 - of this module

    def server(self, name: str, *, is_awaited: bool = False) -> _Server:
        """Return what is known about a server."""
        found = self.servers.get((name, is_awaited))
        if found is None:
            # Each has a connection of its own, other servers have some too, and shards are open.
            most = num_descriptors(4, MOST)
            made = _Server(name, AwaitedLimit(most) if is_awaited else RequestLimit(most))
            found = self.servers.setdefault((name, is_awaited), made)
        return found

    def give_back(self, permit: Permit) -> None:
        """End a permit, and let those pass that waited for it; call it with the lock."""
        permit.is_counted = False
        self._subtract(permit._server, permit.nbytes)  # noqa: SLF001 - of this module
        self.admit()

    def admit(self) -> None:
        """Let those pass for which there is room; call it with the lock."""
        while self.abandoned:
            self._subtract(*self.abandoned.popleft())
        for server in list(self.servers.values()):  # another thread may add one
            while server.waiting and self._has_room(server.waiting[0], server):
                self._pass_first(server)

    def wait_a_moment(self, permit: Permit, most_s: float = _POLL_S) -> bool:
        """Return whether a permit has come, after some seconds at most."""
        server = permit._server  # noqa: SLF001 - of this module
        if permit.passed.acquire(timeout=min(most_s, server.poll_s(), left_s())):
            return True
        check_waits()
        with self.lock:
            self.admit()
            if server.waiting and time.monotonic() - server.event_s > _SILENT_S:
                self._pass_first(server)
        return False

    def _has_room(self, permit: Permit, server: _Server) -> bool:
        if not server.takes_another():
            return False
        # When it is first needed: a worker does not know about the others when it is forked.
        self._limit_nbytes = self._limit_nbytes or _share_nbytes()
        return self._nbytes + permit.nbytes <= self._limit_nbytes or not self._nbytes

    def _pass_first(self, server: _Server) -> None:
        permit = server.waiting.pop(0)
        self._let_pass(permit, server)
        permit.passed.release()

    def _let_pass(self, permit: Permit, server: _Server) -> None:
        permit.is_counted = True
        server.num_in_flight += 1
        self._nbytes += permit.nbytes
        self.most_nbytes = max(self.most_nbytes, self._nbytes)
        permit.sent_s = permit.since_s = server.event_s = time.monotonic()
        permit.generation = server.limit.generation
        if server.num_in_flight >= server.limit.value:
            server.full_s = permit.since_s

    def _subtract(self, server: _Server, nbytes: int) -> None:
        server.num_in_flight = max(0, server.num_in_flight - 1)
        self._nbytes = max(0, self._nbytes - nbytes)


def part_nbytes(server: str) -> int:
    """Return how many bytes of a file to request at a time: what arrives in a moment."""
    wanted = int(_PART_S * admission().server(server).speed) or _FIRST_PART_NBYTES
    return max(CHUNK_NBYTES, wanted - wanted % CHUNK_NBYTES)


def has_room(server: str, num_files: int) -> bool:
    """Return whether one more file may begin: no request for another one waits for its permit.

    Args:
        server: Scheme and host, as `urls.origin` returns them.
        num_files: How many files of it are arriving; those without a request here are streams.
    """
    known = admission().server(server)
    num_streams = num_files - known.num_in_flight
    is_free = not known.waiting and known.num_in_flight < known.limit.value
    return is_free and num_streams < _MOST_STREAMS


def admission() -> Admission:
    """Return admission control of this process."""
    return _admissions[0]


def response_nbytes(start: int, stop: int | None, *, is_collected: bool) -> int:
    """Return the bytes of memory that a response occupies.

    Args:
        start: Position of its first byte.
        stop: Where it ends, or None.
        is_collected: Whether its reader keeps all of it in memory.
    """
    nbytes = _STREAM_NBYTES if stop is None else stop - start
    return nbytes if is_collected else min(nbytes, _STREAM_NBYTES)


def _share_nbytes() -> int:
    """Return how many bytes of responses this process may have in memory.

    Processes that do not know each other share a node. Their number follows from what the
    launcher and the DataLoader state, which needs no file and no lock that a kill could leave.
    """
    stated = os.environ.get("LOCAL_WORLD_SIZE", "")
    num_processes = max(1, int(stated)) if stated.isascii() and stated.isdecimal() else 1
    loader = sys.modules.get("torch.utils.data")  # a worker has imported it
    worker = None if loader is None else loader.get_worker_info()
    if worker is not None:
        num_processes *= worker.num_workers
    return min(PROCESS_NBYTES, NODE_NBYTES // num_processes)


_admissions: Final = [Admission()]


def _make_again() -> None:
    # The locks of the parent may be held by threads that a child does not have.
    _admissions[0] = Admission()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_make_again)
