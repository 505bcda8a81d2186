"""Requests that were sent for ranges, and what has arrived of their responses."""

from __future__ import annotations

import re
import socket
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NoReturn, TypeVar

from wids.errors import WidsError
from wids.storage.transport.admission import Permit
from wids.storage.transport.connections import (
    MAX_OVERHEAD_NBYTES,
    MIN_NBYTES_PER_S,
    WINDOW_TIMEOUTS,
    Connection,
    CutError,
    Head,
    NoResponseError,
    Response,
    SilenceError,
    head_end,
    parsed_head,
)
from wids.storage.transport.hedging import Pace
from wids.storage.transport.http import TEXT_NBYTES, refusal_error
from wids.storage.transport.range_reads import Read
from wids.storage.transport.stream import Stream

_LAST_CHUNK: Final = b"0\r\n\r\n"
_CHUNK_SIZE: Final = re.compile(rb"(?:\A|\r\n)[0-9A-Fa-f]+(?:;[^\r\n]*)?\r\n")

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
        heard_s: When something arrived last.
        window: Since when its speed is measured, and the bytes that had arrived then.
        head: The bytes of the head, until it is complete; then those that came with it.
        refusal: The head of a refusal, whose text follows.
        head_nbytes: Bytes that arrived as heads, also interim ones.
        stream: The response, when its head was read.
        is_kept: Whether the connection can be used again.
        arrived: What had arrived when it was prepared, and it did not ask for.
        memory: Where the bytes are received.
        size: The length of the range, or as much of it as the server has.
        nbytes: How many of its bytes have arrived, by this request and those before it.
        noted_nbytes: How many of them admission control need not be told of.
    """

    stream: Stream | None = None
    head = b""
    refusal: Head | None = None
    is_kept = False
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
        *,
        is_first: bool,
    ) -> None:
        self.server, self.read, self.permit = server, read, permit
        self.connection, self.sock, self.number = connection, sock, sock.fileno()
        self.is_first = is_first
        self.tag, self.arrived = read.tag, read.arrived
        self.sent_s = self.heard_s = sent_s
        self.window = sent_s, 0
        wanted = read.wanted
        self.like = server.pace.like(0 if wanted.write else wanted.stop - wanted.start)

    @property
    def may_hedge(self) -> bool:
        """Whether a second request may be sent beside this one."""
        read, stream = self.read, self.stream
        # What a file has of an answer without a version cannot be replaced by another answer.
        is_safe = read.wanted.write is None or stream is None or read.keeps(stream)
        return read.wanted.may_hedge and not read.was_hedged and is_safe

    def too_slow(self, now_s: float, timeout_s: float) -> OSError | None:
        """Return the error of a response that is silent for too long, or too slow; or None."""
        if now_s - self.heard_s >= timeout_s:
            return SilenceError(f"no bytes for {timeout_s:g} s")
        since_s, nbytes = self.window
        seconds, arrived = now_s - since_s, self.nbytes - nbytes
        if seconds < WINDOW_TIMEOUTS * timeout_s:
            return None
        self.window = now_s, self.nbytes
        if arrived >= seconds * MIN_NBYTES_PER_S:
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
            raise ConnectionError(message) if exchange.head else NoResponseError(message)
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


def is_wait(error: Exception) -> bool:
    """Whether nothing more has arrived; by name, since TLS is imported where it is used."""
    return isinstance(error, BlockingIOError) or type(error).__name__.startswith("SSLWant")


def freed(error: Error) -> Error:
    """Return an error without its traceback, which has the frames of callers, and so the error.

    Until garbage is collected, they would keep open shards, whose files the cache cannot evict.
    """
    return error.with_traceback(None)


def refuse(exchange: Exchange, head: Head, scratch: memoryview) -> NoReturn:
    """Receive the beginning of the text of a refusal; raise the error that it stands for."""
    most_nbytes = min(int(head.headers.get("content-length", TEXT_NBYTES)), TEXT_NBYTES)
    while len(exchange.head) < most_nbytes and not exchange.head.endswith(_LAST_CHUNK):
        nbytes = exchange.sock.recv_into(scratch)
        if not nbytes:
            break
        exchange.head += scratch[:nbytes]
    raise refusal_of(exchange, head)


def refusal_of(exchange: Exchange, head: Head) -> WidsError:
    """Return the error that a refusal stands for, with what has arrived of its text."""
    is_chunked = "transfer-encoding" in head.headers
    text = _CHUNK_SIZE.sub(b"", exchange.head) if is_chunked else exchange.head
    response = Response(head.status, head.headers, iter((text,)))
    return freed(refusal_error(exchange.read.wanted.url, response))
