"""Requests that were sent for ranges, and what has arrived of their responses."""

from __future__ import annotations

import socket
from collections import deque
from dataclasses import dataclass, field
from typing import Final, TypeVar

from wids.errors import WidsError
from wids.storage.transport.admission import Permit
from wids.storage.transport.connections import (
    MAX_OVERHEAD_NBYTES,
    Chunks,
    Connection,
    CutError,
    Head,
    SilenceError,
    head_end,
    parsed_head,
)
from wids.storage.transport.hedging import Pace
from wids.storage.transport.range_reads import Read
from wids.storage.transport.retry import check_waits
from wids.storage.transport.stream import Content

_MIN_NBYTES_PER_S: Final = 1000
"""A server that sends less has stalled; even mobile networks of the year 2000 were faster."""
_WINDOW_TIMEOUTS: Final = 2
"""The speed is measured over twice the time-out: a server may be silent almost as long as that."""
_TEXT_NBYTES: Final = 4096
"""Bytes of the text of a refusal that are read."""

Error = TypeVar("Error", bound=Exception)


@dataclass(eq=False)
class Server:
    """A server, as connections of one kind reach it.

    Attributes:
        name: Scheme and host, for admission control.
        idle: The connections without a request.
        pace: What is known of its requests.
        ready: The reads to request, the first one first.
        asked: A read whose permit has not come, and the permit.
        passed: Reads whose permit has come, and which have no connection yet.
        num_connecting: Connections that are being made; each of these reads has one, or more.
    """

    name: str
    idle: list[Connection]
    pace: Pace
    ready: deque[Read] = field(default_factory=deque)
    asked: tuple[Read, Permit] | None = None
    passed: deque[tuple[Read, Permit]] = field(default_factory=deque)
    num_connecting: int = 0


class Exchange:
    """A request that was sent, and what has arrived of its response.

    Attributes:
        sock: The socket of its connection.
        number: Its number, as long as it is open.
        sent_s: When it was sent.
        is_first: Whether the connection is new.
        heard_s: How long the loop had waited in all when something arrived last: the time in which
            a caller uses other bytes does not count.
        window: The same when its speed was measured last, and the bytes that had arrived then.
        head: The bytes of the head, until it is complete; then those that came with it.
        refusal: The head of a refusal, whose text follows.
        head_nbytes: Bytes that arrived as heads, also interim ones.
        content: What the response has, when its head was read.
        is_kept: Whether the connection can be used again.
        is_open: Whether the length of its body is unknown.
        is_over: Whether the end of such a body has arrived.
        chunks: What takes it apart; None if it ends with the connection.
        grown: What has arrived of it, or of the text of a refusal, if it is kept in memory.
        location: Where it was sent.
        arrived: What had arrived when it was prepared, and it did not ask for.
        memory: Where the bytes are received.
        size: The length of the range, or as much of it as the server has.
        nbytes: How many of its bytes have arrived, by this request and those before it.
        noted_nbytes: How many of them admission control knows, or an earlier request has told it.
    """

    content: Content | None = None
    head = b""
    refusal: Head | None = None
    is_kept = is_open = is_over = False
    chunks: Chunks | None = None
    memory = memoryview(b"")
    head_nbytes = size = nbytes = noted_nbytes = 0

    def __init__(
        self,
        server: Server,
        read: Read,
        permit: Permit,
        connection: Connection,
        sock: socket.socket,
        sent_s: float,
        waited_s: float,
        *,
        is_first: bool,
    ) -> None:
        self.server, self.read, self.permit = server, read, permit
        self.connection, self.sock, self.number = connection, sock, sock.fileno()
        self.is_first = is_first
        self.tag, self.arrived, self.location = read.tag, read.arrived, read.location
        self.sent_s, self.heard_s = sent_s, waited_s
        self.window = waited_s, 0
        self.grown = bytearray()
        wanted = read.wanted
        self.like = server.pace.like(0 if wanted.write else wanted.stop - wanted.start)

    @property
    def may_hedge(self) -> bool:
        """Whether a second request may be sent beside this one."""
        read, content = self.read, self.content
        # What a file has of an answer without a version cannot be replaced by another answer.
        is_safe = read.wanted.write is None or content is None or read.keeps(content)
        return read.wanted.may_hedge and not read.was_hedged and is_safe

    def too_slow(self, waited_s: float, timeout_s: float) -> OSError | None:
        """Return the error of a response that is silent for too long, or too slow; or None."""
        if waited_s - self.heard_s >= timeout_s:
            return SilenceError(f"no bytes for {timeout_s:g} s")
        since_s, nbytes = self.window
        seconds, arrived = waited_s - since_s, self.nbytes - nbytes
        if seconds < _WINDOW_TIMEOUTS * timeout_s:
            return None
        self.window = waited_s, self.nbytes
        if arrived >= seconds * _MIN_NBYTES_PER_S:
            return None
        return ConnectionError(f"{arrived} bytes in {seconds:.1f} s, which is too slow")


def received_head(exchange: Exchange, scratch: memoryview) -> Head:
    """Receive the head of a response, after the interim ones.

    Raises:
        OSError: It is none, or more bytes must arrive.
    """
    while True:
        nbytes = exchange.sock.recv_into(scratch)
        if not nbytes:
            message = "the server closed the connection without a response"
            raise ConnectionError(message)
        exchange.head += scratch[:nbytes]
        exchange.head_nbytes += nbytes
        if exchange.head_nbytes > MAX_OVERHEAD_NBYTES:
            raise ConnectionError(f"more than {MAX_OVERHEAD_NBYTES} bytes of headers")
        while (end := head_end(exchange.head)) >= 0:
            head, exchange.head = parsed_head(exchange.head[:end]), exchange.head[end:]
            if head.status >= 200:
                return head


def received(exchange: Exchange, into: memoryview) -> tuple[int, OSError | None]:
    """Receive what has arrived, until memory is full; return its bytes, and what ended it."""
    if exchange.is_open:
        return _received_open(exchange, into)
    nbytes = min(len(exchange.head), len(into))
    into[:nbytes], exchange.head = exchange.head[:nbytes], exchange.head[nbytes:]
    try:
        while nbytes < len(into):
            more_nbytes = exchange.sock.recv_into(into[nbytes:])
            if not more_nbytes:
                raise CutError(f"{exchange.nbytes + nbytes} of {exchange.size} bytes arrived")
            nbytes += more_nbytes
            if not hasattr(exchange.sock, "pending"):
                break  # the poller says when there is more, except of what TLS has read
    except OSError as error:
        return nbytes, None if is_wait(error) else freed(error)
    return nbytes, None


def _received_open(exchange: Exchange, into: memoryview) -> tuple[int, OSError | None]:
    """Do the same with a body of unknown length; note its end."""
    nbytes, chunks = 0, exchange.chunks
    try:
        while nbytes < len(into) and not exchange.is_over:
            rest = into[nbytes:]
            more_nbytes = min(len(exchange.head), len(rest))
            rest[:more_nbytes] = exchange.head[:more_nbytes]
            exchange.head = exchange.head[more_nbytes:]
            more_nbytes = more_nbytes or exchange.sock.recv_into(rest)
            if not more_nbytes and chunks is not None:
                raise CutError("it ended before its last chunk")
            if chunks is None:
                exchange.is_over = not more_nbytes
            else:
                more_nbytes = chunks.payload(rest[:more_nbytes])
                exchange.is_over = chunks.is_over
                exchange.is_kept &= not chunks.has_rest and not exchange.head
            nbytes += more_nbytes
    except OSError as error:
        return nbytes, None if is_wait(error) else freed(error)
    return nbytes, None


def grow(exchange: Exchange, window: memoryview) -> OSError | None:
    """Receive what has arrived of a body of unknown length, through a window; return what ended it.

    It is kept in memory.
    """
    wanted = exchange.read.wanted
    wanted_nbytes = wanted.stop - wanted.start
    error, nbytes = None, len(window)
    while nbytes == len(window) and not exchange.is_over and error is None:
        nbytes, error = received(exchange, window)
        exchange.grown += window[:nbytes]
        exchange.nbytes += nbytes
        if exchange.nbytes > wanted_nbytes and not exchange.is_over:  # no more is wanted
            exchange.is_over, exchange.is_kept = True, False
    if exchange.is_over:
        exchange.memory = memoryview(exchange.grown)
        exchange.size = min(exchange.nbytes, wanted_nbytes)
    return error


def write(exchange: Exchange, window: memoryview) -> OSError | None:
    """Receive what has arrived of a body, and write it to its file; return what ended it before.

    It receives a window at most, so that the loop receives other responses too.
    """
    wanted, most_nbytes = exchange.read.wanted, len(window)
    error: OSError | None = None
    while exchange.nbytes < exchange.size and most_nbytes and wanted.write is not None:
        piece = window[: min(most_nbytes, exchange.size - exchange.nbytes)]
        nbytes, error = received(exchange, piece)
        # The poller does not see what TLS has read.
        is_over = error is not None or nbytes < len(piece)
        most_nbytes = 0 if is_over else getattr(exchange.sock, "pending", int)()
        if nbytes:
            wanted.write(wanted.start + exchange.nbytes, piece[:nbytes])
            exchange.nbytes += nbytes
            exchange.noted_nbytes += nbytes
            exchange.permit.note(nbytes)
            check_waits()
    return error


def is_wait(error: Exception) -> bool:
    """Whether nothing more has arrived; by name, since TLS is imported where it is used."""
    return isinstance(error, BlockingIOError) or type(error).__name__.startswith("SSLWant")


def freed(error: Error) -> Error:
    """Return an error without its traceback, which has the frames of callers, and so the error.

    Until garbage is collected, they would keep open shards, whose files the cache cannot evict.
    """
    return error.with_traceback(None)


def receive_text(exchange: Exchange, head: Head, scratch: memoryview) -> None:
    """Receive the beginning of the text of a refusal, as far as it comes.

    Raises:
        OSError: More bytes must arrive.
    """
    most_nbytes = min(int(head.headers.get("content-length", _TEXT_NBYTES)), _TEXT_NBYTES)
    error: OSError | None = None
    while len(exchange.grown) < most_nbytes and not exchange.is_over and error is None:
        nbytes, error = _received_open(exchange, scratch)
        exchange.grown += scratch[:nbytes]
        if not (nbytes or exchange.is_over or error):
            raise BlockingIOError


def refusal_of(exchange: Exchange, head: Head) -> WidsError | None:
    """Return the error that a refusal stands for, by what has arrived of its text.

    Return None if the next request has an answer.
    """
    text = exchange.grown[:_TEXT_NBYTES].decode(errors="replace")
    error = exchange.read.refused(head, text)
    return None if error is None else freed(error)
