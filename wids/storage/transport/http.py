"""Open ``http:`` and ``https:`` URLs over connections that are reused."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin

from wids.errors import FetchError, NotFoundError
from wids.storage.transport import retry, urls
from wids.storage.transport.request_limit import MOST
from wids.storage.transport.stream import (
    CHUNK_NBYTES,
    REFUSAL_STATUSES,
    TRANSIENT_STATUSES,
    PastEndError,
    Stream,
    TransientError,
    Transport,
    error_text,
)

if TYPE_CHECKING:
    import urllib3

TIMEOUT_S: Final = 15.0
"""Longest silence of a server that is believed to answer; `connections` has the lowest speed."""

MAX_CONNECTIONS: Final = MOST
"""To one server; as many as a gate lets pass."""

_MIN_AGE_S: Final = 60.0
"""Age from which a date of modification identifies a version, even if two clocks differ."""

_FIRST_CONNECT_S: Final = 4.0
"""Longest wait for a connection to a server that has never answered."""

_MAX_REDIRECTS: Final = 10
_MAX_RETRY_AFTER_S: Final = 60.0
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


def transport_for(options: Mapping[str, Any], scratch: str | None) -> Transport:  # noqa: ARG001
    """Return the transport with the caller's ``headers`` and ``timeout`` in seconds."""
    return Http(options.get("headers"), options.get("timeout") or TIMEOUT_S)


class Http:
    """Sends GET and HEAD requests over persistent connections.

    Threads can share it, and it survives a fork and pickling: each process opens its own
    connections.

    Args:
        headers: Sent to the URL's own server, but not to other servers after a redirect.
        timeout_s: Longest wait for a connection, and for the next bytes of a response.
    """

    def __init__(
        self, headers: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.headers = dict(headers or {})
        self.timeout_s = timeout_s
        self._pools: dict[tuple[int, str | None], urllib3.PoolManager] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Sockets and locks of a pool cannot be pickled.
        return {**self.__dict__, "_pools": {}}

    def __call__(self, url: str, start: int, stop: int | None, tag: str | None) -> Stream:
        """Request a file from a position on; with ``tag``, only if it is still that version.

        The empty range from 0 to 0 is requested with HEAD. A server that refuses HEAD, as for URLs
        that are signed for GET, or does not state the length, is asked for the first byte.

        Raises:
            NotFoundError: The server has no such file.
            PastEndError: The file ends before ``start``.
            TransientError: The connection failed, or the server is busy.
            FetchError: The server refuses, or its response cannot be used.
        """
        # A compressed transfer would have another length and no ranges.
        headers = {"Accept-Encoding": "identity", "User-Agent": "wids", **self.headers}
        if stop == 0:
            stream = self._head(url, headers)
            if stream is not None:
                return stream
            stop = 1
        if start or stop is not None:
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
            if tag is not None:
                # RFC 9110, 13.1.5: the server sends the whole file, not a part, if it has changed.
                headers["If-Range"] = tag
        response = self._final_response(url, headers)
        try:
            return _stream(url, start, response)
        except BaseException:
            response.close()
            raise

    def _head(self, url: str, headers: Mapping[str, str]) -> Stream | None:
        """Return an empty stream with the length of a file, or None if HEAD does not state it."""
        response = self._final_response(url, headers, "HEAD")
        response.drain_conn()  # it has no body, and the connection is free again
        if response.status not in (200, 404, 410):
            return None
        _check_status(url, response)
        nbytes = _number(response.headers.get("Content-Length"))
        is_stored = response.headers.get("Content-Encoding", "identity").lower() == "identity"
        if nbytes is None or not is_stored:
            return None
        return Stream(iter(()), 0, nbytes, _tag(response.headers))

    def _final_response(
        self, url: str, headers: Mapping[str, str], method: str = "GET"
    ) -> urllib3.BaseHTTPResponse:
        """Send a request and follow redirects.

        urllib3 could follow them, but logs their URLs with the signatures, and reads their bodies.
        """
        location = url
        for _ in range(_MAX_REDIRECTS + 1):
            response = self._response(url, location, headers, method)
            target = response.get_redirect_location()
            if not target:
                return response
            response.close()
            target = _joined(url, location, target)
            # A server could lead to a file on this machine (SEC-4).
            if urls.scheme(target) not in ("http", "https"):
                raise FetchError(
                    f"{urls.redact(url)}: expected a response, found a redirect to "
                    f"{urls.redact(target)}"
                )
            # The caller's tokens are for the first server only (SEC-9).
            if urls.origin(target) != urls.origin(location):
                ours = {name.lower() for name in self.headers}
                headers = {n: value for n, value in headers.items() if n.lower() not in ours}
            location = target
        raise FetchError(
            f"{urls.redact(url)}: expected a response, found more than {_MAX_REDIRECTS} "
            "redirects; they may form a loop"
        )

    def _response(
        self, url: str, location: str, headers: Mapping[str, str], method: str
    ) -> urllib3.BaseHTTPResponse:
        """Send one request to ``location``, to which redirects from ``url`` have led."""
        import urllib3

        urls.check_server(location)
        connect_s = self.timeout_s
        if not retry.has_answered(urls.origin(url)):
            connect_s = min(connect_s, _FIRST_CONNECT_S)
        try:
            address = urllib3.util.parse_url(location)
            if address.auth is not None:
                location = address._replace(auth=None).url
                if "authorization" not in {name.lower() for name in headers}:
                    user = urllib3.util.make_headers(basic_auth=urls.unquoted(address.auth))
                    headers = {**headers, **user}
            return self._pool(location, address.host).request(
                method,
                location,
                headers=headers,
                redirect=False,
                retries=False,
                preload_content=False,
                decode_content=False,
                timeout=urllib3.Timeout(connect=connect_s, read=self.timeout_s),
            )
        except urllib3.exceptions.LocationValueError:  # its message quotes the address
            raise FetchError(
                f"{urls.redact(url)}: expected an address, found {urls.redact(location)}"
            ) from None
        except urllib3.exceptions.HTTPError as error:
            raise _connection_error(url, error) from None
        except ValueError:  # its message quotes the header, which may be a token
            raise FetchError(
                f"{urls.redact(url)}: expected headers of one line of Latin-1 text each, found "
                "others; correct the headers in storage_options"
            ) from None

    def _pool(self, url: str, host: str | None) -> urllib3.PoolManager:
        """Return this process's connections, through the proxy that the environment names."""
        from urllib.request import getproxies, proxy_bypass

        import urllib3

        from wids.storage.transport import connections

        proxy = getproxies().get(urls.scheme(url))
        if proxy is not None and proxy_bypass(host or ""):
            proxy = None
        # By process: a forked child that shared a socket would read its parent's responses.
        key = (os.getpid(), proxy)
        if key not in self._pools:
            options: dict[str, Any] = {"num_pools": 20, "maxsize": MAX_CONNECTIONS}
            if proxy:
                address = urllib3.util.parse_url(proxy if "://" in proxy else f"http://{proxy}")
                if address.auth is not None:
                    auth = urls.unquoted(address.auth)
                    options["proxy_headers"] = urllib3.util.make_headers(proxy_basic_auth=auth)
                proxy = address._replace(auth=None).url
            self._pools[key] = connections.new_pool(proxy or None, **options)
        return self._pools[key]


def _joined(url: str, location: str, target: str) -> str:
    """Return where a redirect from ``location`` leads."""
    try:
        return urljoin(location, target)
    except ValueError:  # `urljoin` refuses some addresses
        raise FetchError(
            f"{urls.redact(url)}: expected a response, found a redirect to {urls.redact(target)}"
        ) from None


def _stream(url: str, start: int, response: urllib3.BaseHTTPResponse) -> Stream:
    """Return the stream of a response, or raise the error that it stands for."""
    _check_status(url, response)
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.lower() not in ("", "identity"):
        raise FetchError(
            f"{urls.redact(url)}: expected the bytes as they are stored, found them with "
            f"Content-Encoding {encoding}; configure the server to send the file unencoded"
        )
    if response.status == 206:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        # A part from elsewhere would be written at the wrong place, with the right length.
        if match is None or int(match[1]) != start:
            raise FetchError(
                f"{urls.redact(url)}: expected the bytes from {start} on, found "
                f"Content-Range {response.headers.get('Content-Range')!r}"
            )
        total_nbytes = None if match[3] == "*" else int(match[3])
    else:
        start = 0
        total_nbytes = _number(response.headers.get("Content-Length"))
    return Stream(
        _chunks(url, response), start, total_nbytes, _tag(response.headers), response.close
    )


def _tag(headers: Mapping[str, str]) -> str | None:
    """Return text that is different for each version of a file, or None (RFC 9110, 8.8)."""
    from email.utils import parsedate_to_datetime

    tag = headers.get("ETag")
    if tag is not None and not tag.startswith("W/"):  # a weak tag may stay when the bytes change
        return tag
    modified = headers.get("Last-Modified")
    try:
        age = parsedate_to_datetime(headers["Date"]) - parsedate_to_datetime(modified or "")
    except (KeyError, ValueError, TypeError):  # no date, not a date, without a time zone
        return None
    # A file that has just been modified may be modified again in the same second.
    return modified if age.total_seconds() >= _MIN_AGE_S else None


def _chunks(url: str, response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    import urllib3

    try:
        # `read1` returns what has arrived: a slow server does not time out, and after a cut no
        # received byte is lost.
        yield from iter(lambda: response.read1(CHUNK_NBYTES, decode_content=False), b"")
    except urllib3.exceptions.HTTPError as error:
        raise _connection_error(url, error, has_begun=True) from None
    # Only after the last byte: the next response on the connection would begin in the rest of this.
    response.release_conn()


def _check_status(url: str, response: urllib3.BaseHTTPResponse) -> None:
    status = response.status
    if status in (200, 206):
        return
    if status in (404, 410):
        raise NotFoundError(f"{urls.redact(url)}: not found (HTTP status {status})")
    message = f"{urls.redact(url)}: expected HTTP status 200, found {status}"
    if status in TRANSIENT_STATUSES:
        asked_s = _number(response.headers.get("Retry-After"))
        wait_s = None if asked_s is None else min(asked_s, _MAX_RETRY_AFTER_S)
        raise TransientError(message, wait_s, is_answer=True, is_refusal=status in REFUSAL_STATUSES)
    if status in (401, 403):
        message += "; pass headers or tokens as storage_options, or renew the signature of the URL"
    if status == 416:
        raise PastEndError(f"{message}; the file is shorter than expected")
    raise FetchError(message)


def _connection_error(url: str, error: Exception, *, has_begun: bool = False) -> FetchError:
    """Return the error for a request without a response, or for a response that broke off.

    It has the innermost reason only, and no cause: urllib3 quotes the URL with its secrets.
    """
    import ssl
    from http.client import IncompleteRead

    import urllib3

    if isinstance(error, urllib3.exceptions.MaxRetryError):
        error = error.reason or error
    reason = error_text(error, url)
    causes = (error.__cause__, *error.args)
    # Another attempt cannot help a wrong certificate.
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return FetchError(f"{urls.redact(url)}: expected a response, found: {reason}")
    # A server that accepts a connection and stays silent may be overloaded.
    is_answer = isinstance(error, urllib3.exceptions.ReadTimeoutError)
    # If the server is away after a cut, the next attempt is refused, and that is an outage.
    # One that becomes slow or silent may be overloaded.
    cuts = (IncompleteRead, ConnectionResetError)
    is_outage = not (has_begun and any(isinstance(cause, cuts) for cause in causes))
    message = f"{urls.redact(url)}: the connection failed: {reason}"
    return TransientError(message, is_answer=is_answer, is_outage=is_outage)


def _number(text: str | None) -> int | None:
    # Python refuses to parse thousands of digits, which a hostile server may send.
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text) else None
