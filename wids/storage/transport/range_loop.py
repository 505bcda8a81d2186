"""Read ranges of files by HTTP, many at a time, in the thread that waits for them.

The thread sends requests, waits for all of their connections at once, and receives into the memory
in which the bytes are needed; those of a download it writes to their file. `admission` says how
many requests may be in flight. One that fails is queued again, later. One that is late is sent once
more, and the first answer is used (`hedging`). Where the version of an answer is known, the next
request is for the bytes that are missing of it. Only connecting is left to other threads: looking
up a name cannot be interrupted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from selectors import EVENT_READ
from typing import Final, TypeAlias

from wids.errors import FetchError, WidsError, printable
from wids.storage import stages
from wids.storage.transport import hedging, machine, retry
from wids.storage.transport.admission import Permit, admission, response_nbytes
from wids.storage.transport.connecting import Connecting
from wids.storage.transport.connections import (
    Chunks,
    Connection,
    Head,
)
from wids.storage.transport.exchanges import (
    Exchange,
    Server,
    freed,
    grow,
    is_wait,
    receive_text,
    received,
    received_head,
    refusal_of,
    write,
)
from wids.storage.transport.http import (
    REDIRECTS,
    Route,
    connection_error,
)
from wids.storage.transport.machine import Machine, Memory
from wids.storage.transport.range_reads import END, Range, Read
from wids.storage.transport.retry import check_waits
from wids.storage.transport.stream import Content, TransientError
from wids.storage.transport.urls import origin, redact

_logger = logging.getLogger(__name__)

_HEAD_NBYTES: Final = 4 << 10
"""For a head, and little of the body after it, which is copied once more."""
_WINDOW_NBYTES: Final = 256 << 10
"""Bytes to write to a file at a time."""
_TICK_S: Final = 0.25
"""How long Ctrl-C and a cancelled read may wait."""
_TEXT_S: Final = 1.0
"""How long the text of a refusal may take; the refusal matters more."""
_LEAST_TICK_S: Final = 0.005
_ASKED_S: Final = 0.02
"""How long a permit may stay unnoticed that comes while this thread waits for bytes."""

Taker: TypeAlias = "Callable[[int, memoryview | WidsError], None]"
"""Called with the number of a range, and its bytes or why there are none. A view of them keeps the
memory that the range has, which may be several times as long (`machine.Memory`)."""


def read_ranges(
    ranges: Sequence[Range], take: Taker, more: Callable[[], Range | None] | None = None
) -> None:
    """Read ranges.

    Args:
        ranges: The ranges.
        take: Called for each when its bytes have arrived. An error of it ends all.
        more: Called when all have been requested; returns one more, or None for none until another
            one has arrived.

    Raises:
        CancelledError: The event of `cancelled_by` was set meanwhile.
        DeadlineError: The deadline of a read has passed of which these are a part.
    """
    with stages.nested(stages.FETCH):
        loop = _Loop(take, more, machine.HERE)
        try:
            loop.run(ranges)
        finally:
            loop.close()


def raise_error(_: int, arrived: memoryview | WidsError) -> None:
    """Take a range; raise why there is none."""
    if isinstance(arrived, WidsError):
        raise arrived


class _Loop:
    """The requests of one call of `read_ranges`, whose thread drives them."""

    def __init__(self, take: Taker, more: Callable[[], Range | None] | None, here: Machine) -> None:
        self._take, self._more = take, more
        self._now_s, self._sleep, self._new_memory = here.now_s, here.sleep, here.memory
        self._memory = Memory(here.memory)
        self._num_left = 0
        self._numbers = count()
        self._limited: list[Read] = []  # those with a deadline
        self._servers: dict[int, Server] = {}
        self._busy: dict[int, Exchange] = {}  # by the numbers of their sockets
        self._later: list[tuple[float, int, Read]] = []
        self._order = count()
        self._poller = here.poller()
        self._connecting: Connecting | None = None
        self._scratch = here.memory(_HEAD_NBYTES)
        self._window = memoryview(b"")
        self._asked: list[Permit] = []  # that have not come
        self._looked_s = here.now_s()  # what had arrived then was used, or is known to be ready
        self._tick_s = self._looked_s + _TICK_S
        self._waited_s = 0.0

    def run(self, ranges: Sequence[Range]) -> None:
        """Do what `read_ranges` does."""
        self._num_left = len(ranges)
        for wanted in ranges:
            self._add(wanted)
        while self._num_left:
            self._fill_all()
            for number, _ in self._wait() if self._num_left else ():
                exchange = self._busy.get(number)  # None if it has lost a race meanwhile
                if exchange is None:
                    self._use_made()
                else:
                    self._receive(exchange)
            while self._later and self._later[0][0] <= self._looked_s:
                self._queue(heappop(self._later)[2])
            # Not by the clock: time in which this thread did something else is no silence.
            if self._looked_s >= self._tick_s:
                self._tick(self._looked_s)

    def close(self) -> None:
        """Drop what is in flight."""
        for read in self._limited:
            if not read.is_done:
                read.waits("")  # for the error of a deadline that has passed
        for exchange in list(self._busy.values()):
            self._end(exchange)
        for server in self._servers.values():
            for _, permit in [*server.passed, *([server.asked] if server.asked else [])]:
                admission().withdraw(permit)
        if self._connecting is not None:
            self._connecting.end()
        self._poller.close()

    def _add(self, wanted: Range) -> None:
        read = Read(next(self._numbers), wanted)
        if not math.isinf(wanted.timeouts.deadline_s):
            self._limited.append(read)
            self._tick_s = self._looked_s  # it may have passed
        self._queue(read)

    def _fill_all(self) -> None:
        """Send as many requests as admission control lets pass."""
        while True:
            asked = self._asked = []
            for server in list(self._servers.values()):
                if server.asked is not None or server.ready:
                    self._fill(server)
                if server.asked is not None:
                    asked.append(server.asked[1])
            # Where requests fail, more of them would fail too, and nobody would look at the time.
            are_failing = len(self._later) > len(self._busy)
            wanted = None if asked or are_failing or self._more is None else self._more()
            if wanted is None:
                return
            self._num_left += 1
            self._add(wanted)

    def _queue(self, read: Read, *, is_first: bool = False) -> None:
        """Have a read requested after the others, or before them."""
        read.num_racing += 1
        try:
            read.prepare()
        except FetchError as error:
            self._failed(read, error, 0.0)
            return
        idle = read.route.idle
        server = self._servers.get(id(idle))
        if server is None:
            name = origin(read.wanted.url)
            server = self._servers[id(idle)] = Server(name, idle, hedging.pace_of(name))
        (server.ready.appendleft if is_first else server.ready.append)(read)

    def _fill(self, server: Server) -> None:
        control = admission()
        while server.asked is not None or server.ready:
            if server.asked is None:
                read = server.ready.popleft()
                if read.is_done:
                    continue
                wanted, is_awaited = read.wanted, read.wanted.write is None
                stop = None if wanted.stop == END else wanted.stop
                permit = control.ask(
                    server.name,
                    response_nbytes(wanted.start, stop, is_collected=is_awaited),
                    ("GET", wanted.url),
                    is_awaited=is_awaited,
                    place=wanted.place,
                )
                server.asked = read, permit
            read, permit = server.asked
            if read.is_done:  # by its first request, while the second waited for its permit
                control.withdraw(permit)
                server.asked = None
                continue
            if not permit.is_counted:
                return
            server.asked = None
            if self._limited:  # else nobody asks
                read.waits("a connection or a response")
            connection = read.route.idle_connection()
            if connection is not None:
                self._send(server, read, permit, connection, is_first=False)
            else:
                server.passed.append((read, permit))
                if server.num_connecting < len(server.passed):
                    self._connect(server, read.route)

    def _connect(self, server: Server, route: Route) -> None:
        if self._connecting is None:
            self._connecting = Connecting()
            self._poller.register(self._connecting.waker.fileno(), EVENT_READ)
        server.num_connecting += 1
        self._connecting.start(server.idle, route.connect)

    def _use(self, server: Server, made: Connection | BaseException, *, is_first: bool) -> bool:
        """Use a connection for the first read that has none; return False if there is none."""
        while server.passed:
            read, permit = server.passed.popleft()
            if read.is_done:
                admission().withdraw(permit)
            elif isinstance(made, Connection):
                self._send(server, read, permit, made, is_first=is_first)
                return True
            else:
                permit.leave(made)
                if not isinstance(made, OSError):
                    raise made
                error = connection_error(read.wanted.url, made)
                self._failed(read, error, self._now_s() - permit.sent_s)
                return True
        return False

    def _send(
        self,
        server: Server,
        read: Read,
        permit: Permit,
        connection: Connection,
        *,
        is_first: bool,
    ) -> None:
        try:
            sock = connection.begin(read.request)
        except OSError as error:
            connection.close()
            permit.leave(error)
            self._broke(read, error, is_first=is_first, spent_s=0.0)
            return
        times_s = self._now_s(), self._waited_s
        exchange = Exchange(server, read, permit, connection, sock, *times_s, is_first=is_first)
        server.pace.num_requests += not read.was_hedged
        self._busy[exchange.number] = exchange
        self._poller.register(exchange.number, EVENT_READ)
        late_s = exchange.like.late_s or hedging.SILENT_S
        self._tick_s = min(self._tick_s, exchange.sent_s + late_s)

    def _wait(self) -> list[tuple[int, int]]:
        """Wait for bytes, a connection, a permit or a time; return what `Poller.poll` does."""
        check_waits()
        until_s = min(self._tick_s, self._later[0][0] if self._later else math.inf)
        now_s = self._now_s()
        wait_s = min(_TICK_S, max(0.0, until_s - now_s))
        asked = self._asked
        ready: list[tuple[int, int]] = []
        if self._busy or any(server.passed for server in self._servers.values()):
            ready = self._poller.poll(min(wait_s, _ASKED_S) if asked else wait_s)
        elif asked:
            admission().wait_a_moment(asked[0], _ASKED_S if len(asked) > 1 else _TICK_S)
        else:
            self._sleep(wait_s)
        self._looked_s = self._now_s()
        self._waited_s += self._looked_s - now_s
        return ready

    def _use_made(self) -> None:
        for idle, made in () if self._connecting is None else self._connecting.made():
            server = self._servers[id(idle)]
            server.num_connecting -= 1
            if not self._use(server, made, is_first=True) and isinstance(made, Connection):
                server.idle.append(made)

    def _receive(self, exchange: Exchange) -> None:
        """Receive what has arrived of a response."""
        exchange.heard_s = self._waited_s
        error: OSError | WidsError | None = None
        is_new, is_file = exchange.content is None, exchange.read.wanted.write is not None
        is_again = False
        try:
            is_again = is_new and not self._has_head(exchange)
        except (OSError, WidsError) as found:
            if is_wait(found):
                return
            error = freed(found)
        if is_again:
            self._request_again(exchange)
            return
        if error is None and is_file and is_new:
            self._fill_all()  # before it writes: another request may pass now
        if error is None and (is_file or exchange.is_open):
            self._window = self._window or self._new_memory(_WINDOW_NBYTES)
            error = (write if is_file else grow)(exchange, self._window)
        elif error is None:
            nbytes, error = received(exchange, exchange.memory[exchange.nbytes : exchange.size])
            exchange.nbytes += nbytes
        if error is not None:
            self._fail(exchange, error)
        elif exchange.is_over or exchange.nbytes == exchange.size:
            self._finish(exchange)

    def _has_head(self, exchange: Exchange) -> bool:
        """Receive the head of a response; return False if another request must follow it."""
        if exchange.refusal is None:
            head, read = received_head(exchange, self._scratch), exchange.read
            exchange.permit.status = head.status
            exchange.permit.answered()
            retry.note_answer(exchange.server.name)
            target = head.headers.get("location")
            if head.status in REDIRECTS and target is not None:
                if exchange.location == read.location:  # or another request was led there too
                    read.follow(target)
                return False
            if head.status == 401 and read.renew():
                return False
            if head.is_malformed:
                _logger.warning(
                    "%s: a line of the response's headers has no colon; the lines after it are "
                    "ignored",
                    printable(exchange.server.name),
                )
            if head.headers.get("transfer-encoding", "").lower() == "chunked":
                exchange.chunks = Chunks()
            if head.status < 300 or head.status == 304:
                self._begin(exchange, head)
                return True
            exchange.refusal = head
        receive_text(exchange, exchange.refusal, self._scratch)
        error = refusal_of(exchange, exchange.refusal)
        if error is not None:
            raise error
        return False

    def _begin(self, exchange: Exchange, head: Head) -> None:
        """Begin to receive the body of a response."""
        read, wanted = exchange.read, exchange.read.wanted
        length = int(head.headers.get("content-length", -1))
        exchange.is_open = length < 0
        start = self._accept(exchange, head, length)
        wanted.http.is_proven = True
        exchange.nbytes = exchange.noted_nbytes = start - wanted.start
        if exchange.is_open:
            exchange.size = END
            exchange.is_kept = head.is_kept and exchange.chunks is not None
            if exchange.chunks is None and hasattr(exchange.sock, "suppress_ragged_eofs"):
                exchange.sock.suppress_ragged_eofs = False  # or a cut by TLS would be its end
            exchange.grown += exchange.memory[: exchange.nbytes]
            exchange.memory = memoryview(b"")
        else:
            exchange.size = min(start + length, wanted.stop) - wanted.start
            missing_nbytes = exchange.size - exchange.nbytes
            exchange.is_kept = head.is_kept and length == missing_nbytes >= len(exchange.head)
        if wanted.write is not None:
            exchange.like.note(self._looked_s - exchange.sent_s)
        elif not (exchange.is_open or exchange.memory):
            exchange.memory = self._memory.get(exchange.size)
        if self._limited:
            read.waits("bytes")

    def _accept(self, exchange: Exchange, head: Head, length: int) -> int:
        """Compare a response with what was requested; return where it begins."""
        read, wanted, arrived = exchange.read, exchange.read.wanted, exchange.arrived
        is_file = wanted.write is not None  # which has room for one answer
        others = [] if read.num_racing == 1 else self._others(exchange)
        start = wanted.start + (0 if arrived is None else arrived.nbytes)
        content = wanted.http.content_of(wanted.url, start, head)
        if arrived is not None:
            is_same = wanted.is_same(content, arrived.content)
            stop = (content.stop or END) if exchange.is_open else start + length
            is_enough = stop >= min(wanted.stop, content.total_nbytes or END)
            if is_same and content.start == start and is_enough:
                exchange.content, exchange.memory = arrived.content, arrived.memory
                if is_file:
                    if arrived.content.total_nbytes is None and content.total_nbytes is not None:
                        wanted.check(content, exchange.tag)
                    self._drop(others)
                return start
            read.arrived = None
            if not is_same:  # so that all of it is requested again
                self._drop(others)
                others = []
        is_answered = is_file and any(other.content for other in others)
        if is_answered or (arrived is not None and content.start != wanted.start):
            message = f"{redact(wanted.url)}: expected the rest of a response, found another one"
            raise TransientError(message, is_outage=False)
        wanted.check(content, exchange.tag)
        exchange.content = content
        if is_file:
            self._drop(others)
        return wanted.start

    def _drop(self, exchanges: list[Exchange]) -> None:
        """End requests of which another one is used."""
        for exchange in exchanges:
            self._end(exchange)
            exchange.read.num_racing -= 1

    def _others(self, exchange: Exchange) -> list[Exchange]:
        """Return the other requests of a read that are in flight."""
        of_read = [other for other in self._busy.values() if other.read is exchange.read]
        return [other for other in of_read if other is not exchange]

    def _request_again(self, exchange: Exchange) -> None:
        self._end(exchange)
        exchange.read.num_racing -= 1
        self._queue(exchange.read, is_first=True)

    def _finish(self, exchange: Exchange) -> None:
        """Hand out a range, all of which has arrived."""
        read, content = exchange.read, exchange.content
        if content is None:
            return
        self._forget(exchange)
        exchange.permit.leave(nbytes=exchange.nbytes - exchange.noted_nbytes, is_whole=True)
        if read.wanted.write is None:
            exchange.like.note(self._looked_s - exchange.sent_s)
        buffer = exchange.memory[: exchange.size]
        try:
            data = None if read.is_done else self._checked(exchange, content, buffer)
        finally:  # an error may be handed out, and end all
            self._release(exchange)
        self._fill_all()  # before this thread does anything else
        if data is not None:
            # Once: two requests for a range receive into one memory, and one of them has the data.
            if not (exchange.is_open or read.wanted.write):
                self._memory.put(exchange.memory)
            self._take(read.number, data)

    def _release(self, exchange: Exchange) -> None:
        """Use the connection of a response that has arrived for the next request, or keep it."""
        connection, server = exchange.connection, exchange.server
        if not exchange.is_kept:
            connection.close()
        elif not (
            server.passed and connection.is_idle() and self._use(server, connection, is_first=False)
        ):
            server.idle.append(connection)

    def _checked(
        self, exchange: Exchange, content: Content, buffer: memoryview
    ) -> memoryview | None:
        """End a read all of whose bytes have arrived; return them, or None if they are wrong."""
        read = exchange.read
        try:
            data = read.wanted.finish(content, buffer)
        except WidsError as error:
            self._failed(read, error, self._now_s() - exchange.sent_s)
            return None
        read.num_racing -= 1
        read.attempts.succeeded()
        self._end_read(read)
        return data

    def _end_read(self, read: Read) -> None:
        """Count a read as done, and drop its other requests."""
        read.is_done = True
        self._num_left -= 1
        for other in list(self._busy.values()) if read.num_racing else ():
            if other.read is read:
                self._end(other)

    def _hand_out(self, read: Read, error: WidsError) -> None:
        self._end_read(read)
        self._take(read.number, error)

    def _forget(self, exchange: Exchange) -> None:
        """Wait no longer for a response."""
        if self._busy.get(exchange.number) is exchange:  # its number may be another's now
            del self._busy[exchange.number]
            self._poller.unregister(exchange.number)  # before it is closed: a child may share it

    def _end(self, exchange: Exchange, error: BaseException | None = None) -> None:
        """Drop a request and its connection."""
        self._forget(exchange)
        exchange.connection.close()
        if exchange.nbytes > exchange.noted_nbytes:
            exchange.permit.note(exchange.nbytes - exchange.noted_nbytes)
        exchange.permit.leave(error)

    def _fail(self, exchange: Exchange, error: OSError | WidsError) -> None:
        """Drop a request that failed, and queue its read again or hand out the error."""
        read, spent_s = exchange.read, self._now_s() - exchange.sent_s
        if exchange.refusal is not None and not isinstance(error, WidsError):
            refusal = refusal_of(exchange, exchange.refusal)  # without the rest of its text
            if refusal is None:
                self._request_again(exchange)
                return
            error = refusal
        if isinstance(error, WidsError):
            self._end(exchange, error)
            self._failed(read, error, spent_s)
            return
        has_begun = exchange.content is not None
        read.keep(exchange.content, exchange.memory, exchange.nbytes)
        found = connection_error(read.wanted.url, error, has_begun=has_begun)
        is_first = exchange.is_first or bool(exchange.head) or has_begun
        self._end(exchange, found)
        self._broke(read, error, is_first=is_first, spent_s=spent_s, found=found)

    def _broke(
        self,
        read: Read,
        error: OSError,
        *,
        is_first: bool,
        spent_s: float,
        found: WidsError | None = None,
    ) -> None:
        if isinstance(error, ConnectionError) and not is_first and not read.is_done:
            # A server may close an idle connection at any time, so another one is used.
            read.num_racing -= 1
            self._queue(read, is_first=True)
            return
        self._failed(read, found or connection_error(read.wanted.url, error), spent_s)

    def _failed(self, read: Read, error: WidsError, spent_s: float) -> None:
        """Queue a read again, later, or hand out its error; unless it has another request."""
        read.num_racing -= 1
        # That the file is another one is an answer, also to the second request.
        if read.is_done or (read.num_racing and isinstance(error, FetchError)):
            return
        if isinstance(error, TransientError):
            try:
                reached = 0 if read.arrived is None else read.arrived.nbytes
                wait_s = read.attempts.failed(error, spent_s, reached)
            except FetchError as final:
                error = final
            else:
                read.begin()
                read.waits("the next attempt")
                heappush(self._later, (self._now_s() + wait_s, next(self._order), read))
                return
        self._hand_out(read, error)

    def _tick(self, now_s: float) -> None:
        """End what has taken too long, and send once more what is late."""
        check_waits()
        self._tick_s = now_s + _TICK_S
        for read in self._limited:
            if not read.is_done and read.wanted.timeouts.left_s <= 0:
                read.waits("")
                self._hand_out(read, read.wanted.timeouts.deadline_error())
        for exchange in list(self._busy.values()):
            if self._busy.get(exchange.number) is not exchange:
                continue
            timeout_s = exchange.read.wanted.http.timeout_s
            if exchange.refusal is not None:
                timeout_s = min(timeout_s, _TEXT_S)
            error = exchange.too_slow(self._waited_s, timeout_s)
            if error is not None:
                self._fail(exchange, error)
            elif exchange.may_hedge:
                self._hedge_if_late(exchange, now_s)

    def _hedge_if_late(self, exchange: Exchange, now_s: float) -> None:
        read, late_s, took_s = exchange.read, exchange.like.late_s, now_s - exchange.sent_s
        left_s = late_s - took_s if late_s and read.wanted.write is None else math.inf
        silence_s = max(hedging.SILENT_S, late_s) - (self._waited_s - exchange.heard_s)
        is_late = min(left_s, silence_s) <= 0
        pace = exchange.server.pace
        if is_late and pace.lets_hedge(is_stalled=silence_s <= 0):
            pace.note_hedge(read.wanted.url, took_s)
            read.was_hedged = True
            read.keep(exchange.content, exchange.memory, exchange.nbytes)
            self._queue(read, is_first=True)
            return
        for wait_s in (left_s, silence_s):
            if wait_s > 0:
                self._tick_s = min(self._tick_s, now_s + max(_LEAST_TICK_S, wait_s))
