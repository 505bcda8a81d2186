"""Serve a dataset on this machine, as pages for a browser, over a limited number of connections.

The server listens on loopback only. Its address contains a random token, so that other users of the
machine cannot read along, and it answers only to its own names, so that no page from elsewhere can
reach it by rebinding a name. `pages` makes the answers; their headers forbid the browser to run
anything that comes from the dataset.
"""

from __future__ import annotations

import io
import logging
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import starmap
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote

from wids.look.page.answers import Answer, FieldBytes, Site, error_answer, requested_span

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_logger = logging.getLogger(__name__)


MAX_CONNECTIONS: Final = 320
"""Each takes a thread, and about 0.1 MB. A browser opens six at a time. 256 may wait for large
pictures, so that there is room for others."""


class RequestBytes(io.RawIOBase):
    """The request of a client, with a deadline for all of it.

    Args:
        connection: The connection.
        seconds: How long the client may take.
    """

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._deadline_s = time.monotonic() + seconds

    def readable(self) -> bool:
        """Return True: bytes can be read."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read what has arrived.

        Raises:
            TimeoutError: The deadline has passed.
        """
        rest_s = self._deadline_s - time.monotonic()
        if rest_s <= 0:
            raise TimeoutError("expected a whole request before the deadline, found less")
        self._connection.settimeout(rest_s)
        return self._connection.recv_into(buffer)


_REQUEST_TIMEOUT_S: Final = 30
_SEND_TIMEOUT_S: Final = 300
"""Longer than for a request: a player that is paused stops reading, and then requests the rest."""

_REFUSAL: Final = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: application/json\r\n\r\n"
    b'{"error": "too many requests are being answered; close other tabs, or try again later"}'
)
_UNKNOWN_ADDRESS: Final = (
    b'<!doctype html><html lang="en"><title>wids</title><p>This is not the address of a page of '
    b"<code>wids browse</code>, which prints a new one each time it is started: open the address "
    b"that it printed last, as a whole.</p></html>\n"
)
_UNKNOWN_HOST: Final = (
    '<!doctype html><html lang="en"><title>wids</title><p>Expected a request to {expected}, found '
    "one to {found}: a forwarded port needs the same number on both machines, and a proxy has to "
    "send this Host. <code>wids browse --port</code> chooses the port; docs/looking.md has more."
    "</p></html>\n"
)
_REFUSAL_S: Final = 0.5
"""How long to wait for the request that is refused."""

# Browsers leave it out of the Host header (RFC 9110, section 4.2.3).
_DEFAULT_PORT: Final = 80

_PIECE_NBYTES: Final = 1 << 20
"""How much of a field is in memory while it is sent."""

# No other page may frame or read this one, and it loads nothing from elsewhere.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; media-src 'self' data:; "
    "style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Browser(ThreadingHTTPServer):
    """Pages behind a loopback address: the listening socket, and its open connections.

    Args:
        site: The pages. Their dataset must stay open.
        port: The port to listen on; 0 for a free one.

    Attributes:
        site: As passed.
        url: The address of the page, with the token.

    Raises:
        OSError: The port is in use, or may not be used.
    """

    # Or Ctrl-C would wait for each player that is still connected.
    daemon_threads = True
    # With the default of five, more that arrive at the same time would be delayed by a second.
    request_queue_size = 128

    def __init__(self, site: Site, port: int = 0) -> None:
        self.site = site
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            site.close()
            raise OSError(
                f"port {port}: expected one that is free, found {error.strerror}; choose another "
                "(--port), or none, for a free one"
            ) from error
        # SEC-13: loopback alone is no protection, since every user of the machine can connect to
        # it.
        token = secrets.token_urlsafe(16)
        self.url = f"http://127.0.0.1:{self.server_port}/{token}/"
        self._token = token.encode()
        self._hosts = allowed_hosts(self.server_port)
        self._is_serving = False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        # Those whose request has not arrived; the oldest first.
        self._waiting: dict[socket.socket, None] = {}

    def serve(self) -> None:
        """Answer requests until another thread calls `close`, or until Ctrl-C."""
        self._is_serving = True
        try:
            self.serve_forever(poll_interval=0.1)
        finally:
            self._is_serving = False

    def close(self) -> None:
        """Stop answering and release the port."""
        # `shutdown` waits for the loop of `serve_forever` to end, forever where it never began.
        if self._is_serving:
            self.shutdown()
        self.server_close()
        self.site.close()

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - as in the base
        """Return whether there is room for a connection; refuse it otherwise (SEC-53)."""
        if self._admit(request):
            return True
        with suppress(OSError):
            request.settimeout(_REFUSAL_S)
            request.recv(1 << 16)  # or the client would find a reset before the answer
            request.sendall(_REFUSAL)
        return False

    def _admit(self, connection: socket.socket) -> bool:
        """Add a connection; return whether there is room for it.

        If there is none, the oldest connection without a whole request is closed, so that clients
        that only connect do not keep others out.
        """
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS and self._waiting:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                self._open.discard(oldest)
                with suppress(OSError):  # the client is already gone
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread finds the end, and closes it
            has_room = len(self._open) < MAX_CONNECTIONS
            if has_room:
                self._open.add(connection)
                self._waiting[connection] = None
            return has_room

    def has_request(self, connection: socket.socket) -> None:
        """Note that the whole request of a connection has arrived."""
        with self._lock:
            self._waiting.pop(connection, None)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.discard(request)
            self._waiting.pop(request, None)
        super().shutdown_request(request)

    def has_token(self, token: str) -> bool:
        """Return whether a request has the token."""
        # In constant time, so that the time of an answer reveals nothing of the token.
        return secrets.compare_digest(token.encode(), self._token)

    def is_host(self, host: str | None) -> bool:
        """Return whether a request names this machine.

        A page from elsewhere can point a name of its own at 127.0.0.1, but its requests state that
        name as host.
        """
        return host in self._hosts

    def is_own_origin(self, origin: str) -> bool:
        """Return whether a request comes from a page of this server."""
        return origin.removeprefix("http://") in self._hosts

    def handle_error(self, *_: Any) -> None:
        """Log the error of a request; most often the page was closed meanwhile."""
        _logger.info("a request ended early", exc_info=True)  # noqa: LOG014 - called in a handler


def allowed_hosts(port: int) -> set[str]:
    """Return what a browser may name as the host of a server at a port of this machine."""
    names = {"127.0.0.1", "localhost"}
    hosts = {f"{name}:{port}" for name in names}
    return hosts | names if port == _DEFAULT_PORT else hosts


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Browser
    server_version, sys_version = "wids", ""
    timeout = _REQUEST_TIMEOUT_S

    def setup(self) -> None:
        """Read the request until a deadline, or a slow client would hold the thread forever."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(RequestBytes(self.connection, self.timeout))

    def do_POST(self) -> None:
        # A request body has no meaning here and is not read: it ends with the connection.
        self.close_connection = True
        self.do_GET()

    def do_GET(self) -> None:
        self.server.has_request(self.connection)
        self.connection.settimeout(_SEND_TIMEOUT_S)
        status, kind, body = self._answer()
        if isinstance(body, FieldBytes):
            self._send_field(kind, body)
        else:
            self._send(status, kind, body)

    def _send_field(self, kind: str, body: FieldBytes) -> None:
        """Send a field, or the part of it that a player requests, piece by piece."""
        span = requested_span(self.headers.get("Range", ""), body.nbytes)
        if span is not None and not span:
            headers = {"Content-Range": f"bytes */{body.nbytes}"}
            self._send(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, kind, b"", headers)
            return
        headers, status = {"Accept-Ranges": "bytes"}, HTTPStatus.OK
        if span is not None:
            status = HTTPStatus.PARTIAL_CONTENT
            headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{body.nbytes}"
        span = range(body.nbytes) if span is None else span
        ends = ((at, min(at + _PIECE_NBYTES, span.stop)) for at in span[::_PIECE_NBYTES])
        pieces = starmap(body.read, ends)
        try:
            # Read before the status is sent, because after it an error can only break the
            # connection.
            first = next(pieces, b"")
        except Exception as error:  # noqa: BLE001 - nothing is sent yet, so it becomes an answer
            self._send(*error_answer(error, "a field"))
            return
        self._send(status, kind, first, {**headers, "Content-Length": str(len(span))})
        for piece in pieces:
            self.wfile.write(piece)

    def _send(
        self, status: int, kind: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        length = {"Content-Type": kind, "Content-Length": str(len(body))}
        for name, value in {**_HEADERS, **length, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _answer(self) -> Answer:
        path, _, query = self.path.partition("?")
        token, _, rest = path.removeprefix("/").partition("/")
        kind, host = "text/html; charset=utf-8", self.headers.get("Host")
        if not self.server.has_token(token):
            return HTTPStatus.NOT_FOUND, kind, _UNKNOWN_ADDRESS
        if not self.server.is_host(host):  # only who has the token learns that
            expected = f"127.0.0.1:{self.server.server_port}"
            text = _UNKNOWN_HOST.format(expected=expected, found=escape(f"{host:.200}"))
            return HTTPStatus.NOT_FOUND, kind, text.encode("utf-8", "replace")
        values = {name: parts[0] for name, parts in parse_qs(query).items()}
        # Names of fields may have bytes that are not UTF-8.
        path = unquote(rest, errors="surrogateescape")
        if self.command == "GET":
            return self.server.site.answer(path, values)
        # SEC-56: a page from elsewhere can send such a request, but its browser states the origin.
        origin = self.headers.get("Origin")
        if origin is not None and not self.server.is_own_origin(origin):
            return HTTPStatus.NOT_FOUND, "text/plain", b"not found\n"
        return self.server.site.act(path, values)

    def log_message(self, *_: Any) -> None:
        """Log nothing, because the path contains the token."""
