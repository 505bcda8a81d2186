"""Connections to HTTP servers, and the messages by them: heads, and bodies in chunks.

A client of its own costs a fifth of the processor time of a general one for each sample that is
read by range (decision 0087). `http.client` connects and asks proxies for tunnels.

Only what reading needs is here: GET, without a body.
"""

from __future__ import annotations

import re
import select
import socket
import weakref
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from wids.storage.transport import urls

if TYPE_CHECKING:
    import ssl

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


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Return headers as they are sent.

    Raises:
        ValueError: One of them would be more than one line, or is not of Latin-1 text. The message
            does not show its value, which may be a secret.
    """
    lines = ""
    for name, value in headers.items():
        is_text = isinstance(name, str) and isinstance(value, str)
        if not is_text or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError("not a header")
        lines += f"{name}: {value}\r\n"
    return lines.encode("latin-1")


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
    # The length is then that of another message, or wrong.
    if headers.get("transfer-encoding", "").lower() not in ("", "identity"):
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


MAX_OVERHEAD_NBYTES: Final = 1 << 20
"""Most bytes of headers, interim responses, chunk sizes and trailers between two pieces of a file.
A hundred headers of 65,536 bytes do not occur."""

_CHUNK_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")
_MOST_OVERHEAD: Final = 16
"""Most bytes of sizes and extensions of chunks for each byte in them; a chunk of one byte has 5."""
_LINE_NBYTES: Final = 4 << 10
"""Where the end of a line is looked for at a time."""


class CutError(ConnectionError):
    """A response that ended before all of its bytes had arrived."""


class ConnectTimeoutError(TimeoutError):
    """A server that does not accept a connection."""


class SilenceError(TimeoutError):
    """A server that has accepted a connection and sends nothing."""


class Chunks:
    """Takes a chunked body apart as it arrives.

    Attributes:
        is_over: Whether its end has arrived.
        has_rest: Whether something came after it.
    """

    def __init__(self) -> None:
        self.is_over = self.has_rest = False
        self._left_nbytes = 0  # of the chunk that is arriving
        self._line = b""
        self._reads = Chunks._size
        self._overhead_nbytes = self._payload_nbytes = 0

    def payload(self, data: memoryview) -> int:
        """Move the bytes of the file to the beginning of what has arrived; return their number.

        Raises:
            ConnectionError: The body is malformed.
        """
        at = nbytes = 0
        while at < len(data) and not self.is_over:
            if self._left_nbytes:
                piece = data[at : at + self._left_nbytes]
                data[nbytes : nbytes + len(piece)] = piece
                nbytes += len(piece)
                self._left_nbytes -= len(piece)
                self._payload_nbytes += len(piece)
                at += len(piece)
                continue
            text, newline, _ = bytes(data[at : at + _LINE_NBYTES]).partition(b"\n")
            at += len(text + newline)
            self._overhead_nbytes += len(text + newline)
            most_nbytes = MAX_OVERHEAD_NBYTES + _MOST_OVERHEAD * self._payload_nbytes
            if self._overhead_nbytes > most_nbytes:
                raise ConnectionError(f"more than {MAX_OVERHEAD_NBYTES} bytes of headers")
            self._line += text
            if newline:
                line, self._line = self._line.rstrip(b"\r"), b""
                self._reads(self, line)
        self.has_rest = at < len(data)
        return nbytes

    def _size(self, line: bytes) -> None:
        size = line.partition(b";")[0].strip()
        if not _CHUNK_SIZE.fullmatch(size):
            raise ConnectionError("the size of a chunk is not a number")
        self._left_nbytes = int(size, 16)
        self._reads = Chunks._end if self._left_nbytes else Chunks._trailer

    def _end(self, line: bytes) -> None:
        if line:
            raise ConnectionError("a chunk has another length than it states")
        self._reads = Chunks._size

    def _trailer(self, line: bytes) -> None:
        self.is_over = not line


_QUICK_ACK: Final = getattr(socket, "TCP_QUICKACK", None)
"""An option of Linux, which it forgets after some packets.

A server that sends a head and then a body, as `http.server` does, waits until the head has been
acknowledged (Nagle's algorithm); without this option that takes 40 ms from the second request on.
"""


class Connection:
    """A connection to a server or its proxy, for one request after another.

    Args:
        sock: The socket, or TLS inside one.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # Connections that nobody closes are dropped with the dataset that they were for.
        self._close = weakref.finalize(self, sock.close)
        self._close.atexit = False
        self._poll: select.poll | None = None

    def begin(self, request: bytes) -> socket.socket:
        """Send a request; return the socket by which its response comes, without waiting for it.

        Raises:
            OSError: The connection failed.
        """
        if self._sock.gettimeout() != 0:
            self._sock.settimeout(0)
        if self._sock.send(request) < len(request):  # though nothing else is on its way
            raise ConnectionError("the request could not be sent at once")
        if _QUICK_ACK is not None:
            self._sock.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)
        return self._sock

    def is_idle(self) -> bool:
        """Return whether the server has neither closed the connection nor sent anything."""
        if getattr(self._sock, "pending", int)():  # what TLS has read the system does not see
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


def connected(
    address: Address,
    proxy: Address | None,
    connect_s: float,
    certificates: bytes | None = None,
) -> Connection:
    """Connect to a server, through a proxy unless it is None.

    Args:
        address: The server.
        proxy: Its proxy.
        connect_s: Longest wait for the connection.
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
        raise ConnectTimeoutError(f"no connection within {connect_s:g} s") from None
    except (HTTPException, UnicodeError) as error:  # of a proxy, or of a name
        new.close()
        raise ConnectionError(type(error).__name__) from None
    except BaseException:
        new.close()
        raise
    return Connection(new.sock)


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
