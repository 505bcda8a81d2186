"""Connections to HTTP servers, which end a transfer that is too slow or endless.

A client of its own costs a fifth of the processor time of a general one for each sample that is
read by range (decision 0087). `http.client` connects and asks proxies for tunnels.

Only what reading needs is here: GET and HEAD, without a body.
"""

from __future__ import annotations

import logging
import re
import select
import socket
import sys
import time
import weakref
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from wids.errors import printable
from wids.storage.transport import urls
from wids.storage.transport.retry import check_waits
from wids.storage.transport.stream import CHUNK_NBYTES, Data

if TYPE_CHECKING:
    import ssl

_logger = logging.getLogger(__name__)


_PORTS: Final = {"http": 80, "https": 443}
_AUTHORITY: Final = re.compile(
    r"(?:(?P<user>.*)@)?(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:/@\s\x00-\x1f\x7f]+)(?::(?P<port>\d{0,5}))?"
)
_STATUS_LINE: Final = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?\r?\Z")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[^\r\n\0]*")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")


class Address(NamedTuple):
    """The server that a URL names.

    Attributes:
        scheme: ``"http"`` or ``"https"``.
        host: Its name in ASCII, or its address; without brackets.
        port: Its port.
        user: User and password as they are in the URL, or None.
        bracketed_host: The host as it is in a URL.
        host_header: The value of the header ``Host``.
    """

    scheme: str
    host: str
    port: int
    user: str | None
    bracketed_host: str
    host_header: str


class Head(NamedTuple):
    """The beginning of a response.

    Attributes:
        status: Its status.
        headers: Its headers by lower-case name; the first one of each name.
        is_kept: Whether the connection can be used again after the body.
        is_malformed: Whether a line had no colon; it and the lines after it are left out.
    """

    status: int
    headers: dict[str, str]
    is_kept: bool
    is_malformed: bool


@lru_cache(maxsize=4096)
def split_url(url: str) -> tuple[Address, str]:
    """Return the server of a URL, and what to ask it for: path and query, percent-encoded.

    Raises:
        ValueError: The URL has no server, or one that is malformed.
    """
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    cut = re.search(r"[/?#]", rest)
    authority, rest = (rest, "") if cut is None else (rest[: cut.start()], rest[cut.start() :])
    match = _AUTHORITY.fullmatch(authority)
    if match is None or scheme not in _PORTS:
        raise ValueError("not an address")
    host = match["host"].strip("[]")
    if not host.isascii():
        host = host.encode("idna").decode("ascii")
    port = int(match["port"] or _PORTS[scheme])
    if port > 65535:
        raise ValueError("not an address")
    path, mark, query = rest.partition("#")[0].partition("?")
    path = urls.without_dots(path)  # as other clients do
    target = (_encoded(path, "/") or "/") + mark + _encoded(query, "/?")
    host = host.lower()
    bracketed = f"[{host}]" if ":" in host else host
    header = bracketed if port == _PORTS[scheme] else f"{bracketed}:{port}"
    return Address(scheme, host, port, match["user"], bracketed, header), target


def _encoded(text: str, more: str) -> str:
    """Return text with escapes for what a URL may not have; escapes in it stay as they are."""
    if re.search(r"%(?![0-9A-Fa-f]{2})", text) is None:
        more += "%"
    return quote(text, safe="!$&'()*+,;=:@~" + more)


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse headers that would be more than one line, or are not of Latin-1 text.

    Raises:
        ValueError: One of them is not a valid header. The message does not show its value, which
            may be a secret.
    """
    for name, value in headers.items():
        is_text = isinstance(name, str) and isinstance(value, str)
        if not is_text or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError("not a header")
        value.encode("latin-1")


def request_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """Return the bytes of a request without a body; `check_headers` has checked the headers."""
    head = f"{method} {target} HTTP/1.1\r\n"
    for name, value in headers.items():
        head += f"{name}: {value}\r\n"
    return f"{head}\r\n".encode("latin-1")


def head_end(data: bytes) -> int:
    """Return where the head of a response ends, or -1 if more bytes are needed."""
    end = data.find(b"\n\r\n")
    bare = data.find(b"\n\n", 0, len(data) if end < 0 else end + 1)
    return bare + 2 if bare >= 0 else end + 3 if end >= 0 else -1


def parsed_head(data: bytes) -> Head:
    """Parse the head of a response.

    Raises:
        ConnectionError: It is not one of HTTP/1.
    """
    text = data.decode("latin-1").rstrip("\r\n")
    is_folded = "\n " in text or "\n\t" in text
    first, *lines = text.split("\n")
    match = _STATUS_LINE.match(first)
    if match is None:
        raise ConnectionError("the response is not HTTP")
    headers: dict[str, str] = {}
    is_malformed, name = False, ""
    for line in lines:
        if is_folded and line[:1] in " \t" and name:  # a value on several lines
            headers[name] += " " + line.strip()
            continue
        raw, colon, value = line.partition(":")
        name = raw.strip().lower()
        if not colon or not name:
            is_malformed = True
            break
        if name not in headers:
            headers[name] = value.strip()
        elif name == "content-length":
            headers[name] += "," + value.strip()
    if "content-length" in headers:
        headers["content-length"] = _length(headers["content-length"])
    if "transfer-encoding" in headers:  # the length is then that of another message, or wrong
        headers.pop("content-length", None)
    connection = headers.get("connection", "").lower()
    is_kept = "close" not in connection and (match[1] == "1" or "keep-alive" in connection)
    return Head(int(match[2]), headers, is_kept, is_malformed)


def _length(text: str) -> str:
    """Return the length of a body, which may be stated several times."""
    if _LENGTH.fullmatch(text):
        return text
    length, *others = set(map(str.strip, text.split(",")))
    # Another length than the server meant would cut the file.
    if others or not _LENGTH.fullmatch(length):
        raise ConnectionError("the length of the response is not one number")
    return length


MIN_NBYTES_PER_S: Final = 1000
"""A server that sends less has stalled; even mobile networks of the year 2000 were faster."""

WINDOW_TIMEOUTS: Final = 2
"""The speed is measured over twice the time-out: a server may be silent almost as long as that."""

MAX_OVERHEAD_NBYTES: Final = 1 << 20
"""Most bytes of headers, interim responses, chunk sizes and trailers between two pieces of a file.
A hundred headers of 65,536 bytes do not occur."""

_CHUNK_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")

_POLL_S: Final = 0.5
"""How long a wait for bytes cannot be cancelled."""
_PIECE_S: Final = 0.5
"""A piece ends after this time: admission, and processes that wait, must see that bytes arrive."""
_BUFFER_NBYTES: Final = 8 << 10
"""For a head, and little of the body after it, which is copied once more."""


class CutError(ConnectionError):
    """A response that ended before all of its bytes had arrived."""


class ConnectTimeoutError(TimeoutError):
    """A server that does not accept a connection."""


class SilenceError(TimeoutError):
    """A server that has accepted a connection and sends nothing."""


class NoResponseError(ConnectionError):
    """A connection that ended before a response began."""


class Response:
    """A response of which the head has arrived.

    Attributes:
        status: Its status.
        headers: Its headers, by lower-case name.
        pieces: Its body.

    Args:
        status: As the attribute.
        headers: As the attribute.
        body: The body.
        connection: The connection that it arrives by, if there is one.
        on_end: Called with the connection after the last piece; None to close it.
    """

    def __init__(
        self,
        status: int,
        headers: Mapping[str, str],
        body: Iterator[Data],
        connection: Connection | None = None,
        on_end: Callable[[Connection], None] | None = None,
    ) -> None:
        self.status = status
        self.headers = headers
        # A generator of this object, kept in it, is a cycle: only where there is something to end.
        self.pieces = body if connection is None else self._pieces(body, on_end)
        self._connection = connection

    def close(self) -> None:
        """End the connection, unless the last piece was read and it may have another request."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _pieces(
        self, body: Iterator[Data], on_end: Callable[[Connection], None] | None
    ) -> Iterator[Data]:
        yield from body
        # Only after the last byte: the next response would begin in the rest of this one.
        connection, self._connection = self._connection, None
        if connection is not None:
            (on_end or Connection.close)(connection)


class Connection:
    """A connection to a server or its proxy, for one request after another.

    Args:
        sock: The socket, or TLS inside one.
        host: The server, for the log.
        timeout_s: Longest wait for the next bytes.
    """

    def __init__(self, sock: socket.socket, host: str, timeout_s: float) -> None:
        self._sock = sock
        self._host = host
        self._timeout_s = timeout_s
        self._buffer = b""
        # Only the time spent waiting for the server counts, not that of a slow reader.
        self._waited_s = 0.0
        self._received_nbytes = 0
        self._overhead_nbytes = 0
        # Connections that nobody closes are dropped with the dataset that they were for.
        self._close = weakref.finalize(self, sock.close)
        self._close.atexit = False
        self._poll_s = min(timeout_s, _POLL_S)
        self._poll: select.poll | None = None

    def exchange(
        self,
        method: str,
        request: bytes,
        on_end: Callable[[Connection], None],
    ) -> Response:
        """Send a request and read the head of its response.

        Args:
            method: GET or HEAD.
            request: Its bytes, as of `request_head`.
            on_end: Called after the last byte of the body if the connection can be used again.

        Raises:
            NoResponseError: The server had closed the connection.
            OSError: The connection failed, or the response is not HTTP.
        """
        self._waited_s, self._received_nbytes, self._overhead_nbytes = 0.0, 0, 0
        self._sock.settimeout(self._poll_s)  # `begin` may have changed it
        try:
            try:
                self._sock.sendall(request)
            except ConnectionError as error:
                raise NoResponseError(str(error)) from None
            head = self._final_head()
        except BaseException:
            self.close()
            raise
        if method == "HEAD":
            return Response(
                head.status, head.headers, iter(()), self, on_end if head.is_kept else None
            )
        return self._response(head, on_end)

    def resumed(self, head: Head, arrived: bytes, on_end: Callable[[Connection], None]) -> Response:
        """Return a response whose head arrived by the socket of `begin`.

        Args:
            head: The head.
            arrived: What has arrived after it.
            on_end: As for `exchange`.
        """
        self._waited_s, self._received_nbytes, self._overhead_nbytes = 0.0, 0, 0
        self._buffer = arrived
        return self._response(head, on_end)

    def _response(self, head: Head, on_end: Callable[[Connection], None]) -> Response:
        is_kept, length = head.is_kept, head.headers.get("content-length")
        if head.status in (204, 304):
            body: Iterator[Data] = iter(())
        elif "chunked" in head.headers.get("transfer-encoding", "").lower():
            body = self._chunked()
        elif length is not None:
            body = self._sized(int(length))
        else:
            body, is_kept = self._body(sys.maxsize), False
        return Response(head.status, head.headers, body, self, on_end if is_kept else None)

    def begin(self, request: bytes) -> socket.socket:
        """Send a request; return the socket by which its response comes, without waiting for it.

        Raises:
            OSError: The connection failed.
        """
        if self._sock.gettimeout() != 0:
            self._sock.settimeout(0)
        if self._sock.send(request) < len(request):  # though nothing else is on its way
            raise NoResponseError("the request could not be sent at once")
        return self._sock

    def is_idle(self) -> bool:
        """Return whether the server has neither closed the connection nor sent anything."""
        if self._buffer:
            return False
        if not hasattr(select, "poll"):  # Windows
            return not select.select([self._sock], [], [], 0)[0]
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._sock, select.POLLIN)
        return not self._poll.poll(0)

    def close(self) -> None:
        """End the connection."""
        self._close()

    def _sized(self, nbytes: int) -> Iterator[Data]:
        left = nbytes
        for piece in self._body(nbytes):
            left -= len(piece)
            self._overhead_nbytes = 0
            yield piece
        if left:
            raise CutError(f"{nbytes - left} of {nbytes} bytes arrived")

    def _chunked(self) -> Iterator[Data]:
        while True:
            size = self._line().partition(b";")[0].strip()
            if not _CHUNK_SIZE.fullmatch(size):
                raise ConnectionError("the size of a chunk is not a number")
            left = int(size, 16)
            if not left:
                break
            yield from self._sized(left)
            if self._line():
                raise ConnectionError("a chunk has another length than it states")
        while self._line():
            pass

    def _body(self, nbytes: int) -> Iterator[Data]:
        """Yield the next bytes, or those until the connection ends, in pieces that are full."""
        while nbytes:
            piece = memoryview(bytearray(min(nbytes, CHUNK_NBYTES)))
            known = self._buffer[: len(piece)]
            self._buffer = self._buffer[len(known) :]
            piece[: len(known)] = known
            at, received, error = len(known), 1, None
            until_s = time.monotonic() + _PIECE_S
            try:
                while at < len(piece) and received and time.monotonic() < until_s:
                    received = self._receive_into(piece[at:])
                    at += received
            except OSError as found:
                error = found
            # What arrived before an error need not be requested again.
            if at:
                yield piece[:at]
            if error is not None:
                raise error
            if not received:
                return
            nbytes -= at

    def _line(self) -> bytes:
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                return line.rstrip(b"\r")
            if not self._fill():
                raise CutError("it ended between two chunks")

    def _final_head(self) -> Head:
        """Return the head of a response, after the interim ones."""
        while True:
            head = parsed_head(self._read_head())
            if head.is_malformed:
                _logger.warning(
                    "%s: a line of the response's headers has no colon; the lines after it are "
                    "ignored",
                    printable(self._host),
                )
            if head.status >= 200:
                return head

    def _read_head(self) -> bytes:
        while (end := head_end(self._buffer)) < 0:
            if not self._fill():
                message = "the server closed the connection without a response"
                raise ConnectionError(message) if self._buffer else NoResponseError(message)
        head, self._buffer = self._buffer[:end], self._buffer[end:]
        return head

    def _fill(self) -> bool:
        """Receive some bytes into the buffer; return False at the end of the connection."""
        data = bytearray(_BUFFER_NBYTES)
        del data[self._receive_into(data) :]
        self._overhead_nbytes += len(data)
        if self._overhead_nbytes > MAX_OVERHEAD_NBYTES:
            raise ConnectionError(f"more than {MAX_OVERHEAD_NBYTES} bytes of headers or trailers")
        self._buffer += data
        return bool(data)

    def _receive_into(self, buffer: bytearray | memoryview) -> int:
        """Return the number of bytes that arrive; 0 at the end of the connection."""
        check_waits()
        started_s, silent_s = time.monotonic(), 0.0
        while True:
            self._sock.settimeout(self._poll_s)
            try:
                nbytes: int = self._sock.recv_into(buffer)
                break
            except TimeoutError:
                silent_s = time.monotonic() - started_s
                check_waits()
                if silent_s >= self._timeout_s:
                    raise SilenceError(f"no bytes for {self._timeout_s:g} s") from None
        self._waited_s += time.monotonic() - started_s
        self._received_nbytes += nbytes
        if self._waited_s >= self._timeout_s * WINDOW_TIMEOUTS:
            if self._received_nbytes < self._waited_s * MIN_NBYTES_PER_S:
                raise ConnectionError(
                    f"{self._received_nbytes} bytes in {self._waited_s:.1f} s, which is too slow"
                )
            # A new window: a fast beginning must not excuse a stall later on.
            self._waited_s, self._received_nbytes = 0.0, 0
        return nbytes


def connected(
    address: Address,
    proxy: Address | None,
    connect_s: float,
    timeout_s: float,
    certificates: bytes | None = None,
) -> Connection:
    """Connect to a server, through a proxy unless it is None.

    Args:
        address: The server.
        proxy: Its proxy.
        connect_s: Longest wait for the connection.
        timeout_s: As for `Connection`.
        certificates: Those to trust besides the system's, as PEM; or None.

    Raises:
        OSError: The connection failed.
    """
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    first, is_tunnel = proxy or address, proxy is not None and address.scheme == "https"
    headers = {} if proxy is None else proxy_headers(proxy)
    if "https" in (address.scheme, first.scheme):
        new: HTTPConnection = HTTPSConnection(
            first.host, first.port, timeout=connect_s, context=_tls_context(certificates)
        )
    else:
        new = HTTPConnection(first.host, first.port, timeout=connect_s)
    if is_tunnel:
        new.set_tunnel(address.host, address.port, headers)
    try:
        new.connect()
    except TimeoutError:
        new.close()
        check_waits()  # it may be the deadline that has ended the wait
        raise ConnectTimeoutError(f"no connection within {connect_s:g} s") from None
    except (HTTPException, UnicodeError) as error:  # of a proxy, or of a name
        new.close()
        raise ConnectionError(type(error).__name__) from None
    except BaseException:
        new.close()
        raise
    return Connection(new.sock, address.host, timeout_s)


def proxy_headers(proxy: Address) -> dict[str, str]:
    """Return the headers that a proxy wants."""
    return {} if proxy.user is None else {"Proxy-Authorization": basic(proxy.user)}


def basic(user: str) -> str:
    """Return the value of the header ``Authorization`` for user and password from a URL."""
    return "Basic " + b64encode(urls.unquoted(user).encode()).decode("ascii")


@cache
def _tls_context(certificates: bytes | None = None) -> ssl.SSLContext:
    import ssl

    context = ssl.create_default_context()  # reads the system's certificates, which takes 10 ms
    if certificates is not None:
        context.load_verify_locations(cadata=certificates.decode("latin-1"))
    context.set_alpn_protocols(["http/1.1"])
    return context
