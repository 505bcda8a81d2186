"""A dataset → a server on this machine, with pages for a browser.

The server listens on loopback only. Its address contains a random token, so that other users of the
machine cannot read along, and it answers only to its own names, so that no page from elsewhere can
reach it by rebinding a name. What the answers are is the business of `pages`; their headers forbid
the browser to run anything that comes from the dataset.
"""

from __future__ import annotations

import logging
import re
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from wids.looking.pages import Answer, Pages
from wids.looking.preview import Browsable

_logger = logging.getLogger("wids")

# Up to 18 digits, so that a hostile header cannot make the conversion to int slow.
_RANGE: Final = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")

# No other page may frame or read this one, and it loads nothing from elsewhere.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; media-src 'self' data:; "
    "style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Browser:
    """A dataset behind a loopback address.

    Args:
        dataset: The dataset, which is not a view. It has to stay open.
        port: The port to listen on; 0 for a free one.

    Attributes:
        url: The address of the page, with the token.

    Raises:
        ValueError: The dataset is a view.
    """

    def __init__(self, dataset: Browsable, port: int = 0) -> None:
        if dataset.is_view:
            raise ValueError(
                "dataset: expected a complete dataset, found a view; use the view's show()"
            )
        self._token = secrets.token_urlsafe(16)
        self._server = _Server(("127.0.0.1", port), Pages(dataset), self._token)
        self._is_serving = False
        self.url = f"http://127.0.0.1:{self._server.server_port}/{self._token}/"

    def serve(self) -> None:
        """Answer requests until another thread calls `close`, or until Ctrl-C."""
        self._is_serving = True
        try:
            self._server.serve_forever(poll_interval=0.1)
        finally:
            self._is_serving = False

    def close(self) -> None:
        """Stop answering and release the port."""
        if self._is_serving:
            self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """The listening socket, with what its handlers share."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], pages: Pages, token: str) -> None:
        super().__init__(address, _Handler)
        self.pages = pages
        self._token = token.encode()
        self._hosts = [f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")]

    def is_allowed(self, token: str, host: str | None) -> bool:
        """Return whether a request has the token and names this machine."""
        return secrets.compare_digest(token.encode(), self._token) and host in self._hosts

    def handle_error(self, *_: Any) -> None:
        """Log the error of a request; most often somebody has closed the page meanwhile."""
        _logger.info("a request ended early", exc_info=True)  # noqa: LOG014 - called in a handler


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: _Server
    server_version, sys_version = "wids", ""

    def do_GET(self) -> None:
        status, kind, body = self._answer()
        part = _part(self.headers.get("Range", ""), body) if status == HTTPStatus.OK else None
        if part is not None:  # a player that jumps to another time
            status, (content_range, body) = HTTPStatus.PARTIAL_CONTENT, part
        self.send_response(status)
        if part is not None:
            self.send_header("Content-Range", content_range)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self) -> Answer:
        path, _, query = self.path.partition("?")
        token, _, rest = path.removeprefix("/").partition("/")
        if not self.server.is_allowed(token, self.headers.get("Host")):
            return HTTPStatus.NOT_FOUND, "text/plain", b"not found\n"
        values = {name: parts[0] for name, parts in parse_qs(query).items()}
        # Names of fields may have bytes that are not UTF-8.
        return self.server.pages.answer(unquote(rest, errors="surrogateescape"), values)

    def log_message(self, *_: Any) -> None:
        """Log nothing, because the path contains the token."""


def _part(requested: str, body: bytes) -> tuple[str, bytes] | None:
    """Return the Content-Range and the bytes that a Range header requests; None for all."""
    span = _RANGE.fullmatch(requested)
    if span is None or int(span[1]) >= len(body):
        return None
    start, stop = int(span[1]), min(int(span[2] or len(body)) + 1, len(body))
    return f"bytes {start}-{stop - 1}/{len(body)}", body[start:stop]
