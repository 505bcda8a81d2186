"""Say how URLs are requested by HTTP, with the caller's headers, and what the responses mean.

Headers can be a callable, for tokens that expire. It is called when a header is first needed, again
shortly before the time that it stated, and again after a response with status 401.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import urljoin

from wids.errors import FetchError, printable
from wids.storage.transport import connections, retry, urls
from wids.storage.transport.connections import (
    Address,
    Connection,
    CutError,
    Head,
    SilenceError,
    split_url,
)
from wids.storage.transport.stream import (
    REFUSAL_STATUSES,
    TRANSIENT_STATUSES,
    Content,
    PastEndError,
    TransientError,
    Transport,
    error_text,
    not_found,
)

Returned: TypeAlias = "Mapping[str, str] | tuple[Mapping[str, str], float]"
"""Headers, or headers and the Unix time at which they expire."""

_MARGIN_S: Final = 60.0
"""How long before they expire headers are renewed; a tenth of the time that they last, at most."""


class CallerHeaders:
    """The headers of a caller, for one prefix of URLs.

    Threads can share it. It survives a fork, and pickling if the callable does.

    Args:
        given: The headers, a callable that returns them, or None.
    """

    def __init__(self, given: Mapping[str, str] | Callable[[], Returned] | None) -> None:
        self._given = given
        self._known = {} if callable(given) else dict(given or {})
        self._renew_s = float("-inf") if callable(given) else float("inf")
        self._lock, self._pid = threading.Lock(), os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self._given if callable(self._given) else self._known}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["given"])  # type: ignore[misc]

    def current(self) -> dict[str, str]:
        """Return the headers to send now.

        Raises:
            FetchError: They cannot be sent, or the callable failed.
        """
        if time.time() < self._renew_s:
            return self._known
        return self._renewed(self._known)

    def after_refusal(self, refused: Mapping[str, str]) -> dict[str, str] | None:
        """Return newer headers than those that a server refused; None if there are none.

        Raises:
            FetchError: As `current`.
        """
        return self._renewed(refused) if callable(self._given) else None

    def _renewed(self, old: Mapping[str, str]) -> dict[str, str]:
        """Call the callable, unless another thread has replaced these headers meanwhile."""
        if self._pid != os.getpid():  # a thread of the parent may hold the lock
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            if self._known is old or time.time() >= self._renew_s:
                self._known, self._renew_s = _called(self._given)
            return self._known


def _called(call: Any) -> tuple[dict[str, str], float]:
    """Return the headers of a callable, and the Unix time at which to call it again."""
    try:
        found: Returned = call()
    except FetchError:
        raise
    except OSError as error:  # perhaps its own server is away
        raise TransientError(_failure(error), is_outage=False) from error
    except Exception as error:
        raise FetchError(_failure(error)) from error
    headers, expires_s = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    is_time = expires_s is None or isinstance(expires_s, (int, float))
    if not isinstance(headers, Mapping) or not is_time:
        raise FetchError(
            "storage_options: the headers callable must return a dict, or a dict and the time at "
            f"which it expires; found a {type(found).__name__}"
        )
    try:
        connections.header_lines(headers)
    except ValueError:
        raise FetchError(
            "storage_options: the headers callable must return names and values of one line of "
            "Latin-1 text each; found others"
        ) from None
    now_s = time.time()
    if expires_s is None:
        return dict(headers), float("inf")
    return dict(headers), expires_s - min(_MARGIN_S, max(0.0, expires_s - now_s) / 10)


def _failure(error: BaseException) -> str:
    # Without its text, which may quote the token.
    return (
        "storage_options: the headers callable must return the headers of a request; found an "
        f"error: {type(error).__name__}; its traceback says where"
    )


TIMEOUT_S: Final = 15.0
"""Longest silence of a server that is believed to answer; `exchanges` has the lowest speed."""

_MIN_AGE_S: Final = 60.0
"""Age from which a date of modification identifies a version, even if two clocks differ."""

_FIRST_CONNECT_S: Final = 4.0
"""Longest wait for a connection to a server that has never answered."""

_USUAL: Final = {"Accept-Encoding": "identity", "User-Agent": "wids"}
"""A compressed transfer would have another length and no ranges."""

NO_HEADERS: Final[Mapping[str, str]] = {}
_OWN_NAMES: Final = frozenset(("range", "if-range", "if-match"))
"""Headers that each request states for itself."""
_MOST_ROUTES: Final = 4096

REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_MAX_RETRY_AFTER_S: Final = 60.0
_CODE: Final = re.compile(r"<Code>([A-Za-z]{3,60})</Code>")
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


def transport_for(options: Mapping[str, Any], scratch: str | None) -> Transport:  # noqa: ARG001
    """Return the transport with the caller's ``headers`` and ``timeout`` in seconds."""
    return Http(options.get("headers"), options.get("timeout") or TIMEOUT_S)


@dataclass(eq=False, repr=False)
class Route:
    """How requests for one address reach its server.

    Attributes:
        start: Their bytes up to the headers that are their own.
        ours: The caller's headers in it.
        pid: The process that opens the connections.
        idle: The connections of this process to the server that have no request.
        connect: Returns a new connection, or raises `OSError`.
    """

    start: bytes
    ours: Mapping[str, str]
    pid: int
    idle: list[Connection]
    connect: Callable[[], Connection]

    def idle_connection(self) -> Connection | None:
        """Return a connection that the server has not closed, as far as is known; None for none."""
        while self.idle:
            try:
                connection = self.idle.pop()
            except IndexError:  # another thread has taken the last one
                return None
            if connection.is_idle():
                return connection
            connection.close()
        return None


class Http(Transport):
    """How requests are made, and what their responses say; `range_loop` sends them.

    Threads can share it, and it survives a fork and pickling: each process opens its own
    connections.

    Args:
        headers: Sent to the URL's own server, but not to other servers after a redirect, nor to
            URLs that are not below ``prefix``; or a callable that returns them, as for
            `CallerHeaders`.
        timeout_s: Longest wait for a connection, and for the next bytes of a response.
        certificates: Those to trust besides the system's, as PEM; or None.

    Attributes:
        is_proven: Whether a server has sent a file.
    """

    is_proven = False

    def __init__(
        self,
        headers: Mapping[str, str] | Callable[[], Returned] | None = None,
        timeout_s: float = TIMEOUT_S,
        certificates: bytes | None = None,
    ) -> None:
        self.headers = CallerHeaders(headers)
        self.timeout_s = timeout_s
        self._certificates = certificates
        self._idle: dict[tuple[int, str, str, int], list[Connection]] = {}
        self._proxies: dict[tuple[str, str, int], Address | None] = {}
        self._routes: dict[tuple[str, str], Route] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Sockets cannot be pickled, and another machine may have other proxies.
        return {**self.__dict__, "_idle": {}, "_proxies": {}, "_routes": {}}

    def by_http(self, url: str) -> Http:  # noqa: ARG002
        """Return this one."""
        return self

    def address(self, url: str) -> str:
        """Return what to request for a file, which errors name by its URL."""
        return url

    def if_version(self, tag: str) -> dict[str, str]:
        """Return the header that asks for a part of a version, or for all of another one."""
        return {"If-Range": tag}  # RFC 9110, 13.1.5

    def content_of(self, url: str, start: int, head: Head) -> Content:
        """Return what a response says of a file, or raise the error that it stands for."""
        headers = head.headers
        if head.status not in (200, 206):
            raise refusal_error(url, head, "")
        for name, usual in (("Content-Encoding", ""), ("Transfer-Encoding", "chunked")):
            encoding = headers.get(name.lower(), "identity")
            if encoding.lower() not in ("", "identity", usual):
                raise FetchError(
                    f"{urls.redact(url)}: expected the bytes as they are stored, found them with "
                    f"{name} {encoding}; configure the server to send the file unencoded"
                )
        if head.status == 206:
            match = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
            # A part from elsewhere would be written at the wrong place, with the right length.
            if match is None or int(match[1]) != start:
                raise FetchError(
                    f"{urls.redact(url)}: expected the bytes from {start} on, found "
                    f"Content-Range {headers.get('content-range')!r}"
                )
            total_nbytes, stop = None if match[3] == "*" else int(match[3]), int(match[2]) + 1
        else:
            start, stop = 0, None
            total_nbytes = _number(headers.get("content-length"))
        return Content(start, total_nbytes, _tag(headers), stop)

    def refusal(
        self,
        url: str,
        address: str,  # noqa: ARG002
        head: Head,
        text: str,
        *,
        is_last: bool,  # noqa: ARG002
    ) -> FetchError | None:
        """Return the error that a response without a file stands for.

        Args:
            url: The file.
            address: What was requested for it.
            head: The response, after redirects.
            text: The beginning of its text.
            is_last: Whether another request was made after an earlier one.

        Returns:
            The error; None if another request may be answered, by the address that it has now.
        """
        return refusal_error(url, head, text)

    def led_to(
        self, url: str, location: str, target: str, ours: Mapping[str, str]
    ) -> tuple[str, Mapping[str, str]]:
        """Return where a redirect leads, and those of the caller's headers that are sent there.

        Raises:
            FetchError: It leads to no address of HTTP.
        """
        target = _joined(url, location, target)
        # A server could lead to a file on this machine (SEC-4).
        if urls.scheme(target) not in ("http", "https"):
            raise FetchError(
                f"{urls.redact(url)}: expected a response, found a redirect to "
                f"{urls.redact(target)}"
            )
        # The caller's tokens are for the first server, and below their prefix (SEC-9).
        is_outside = bool(self.prefix) and not urls.is_below(target, self.prefix)
        is_elsewhere = is_outside or urls.origin(target) != urls.origin(location)
        return (urls.unsigned(target, location), NO_HEADERS) if is_elsewhere else (target, ours)

    def route(self, url: str, location: str, ours: Mapping[str, str]) -> Route:
        """Return how to request ``location``, to which redirects from ``url`` led.

        Args:
            url: The file.
            location: The address.
            ours: The caller's headers that are sent there.

        Raises:
            FetchError: The address or the headers cannot be used.
        """
        urls.keep_secrets(location, None if location == url else url)
        route = self._routes.get((url, location))
        # By process: a forked child that shared a socket would read its parent's responses.
        if route is None or route.ours is not ours or route.pid != os.getpid():
            if len(self._routes) >= _MOST_ROUTES:
                self._routes.clear()
            route = self._routes[url, location] = self._new_route(url, location, ours)
        return route

    def _new_route(self, url: str, location: str, ours: Mapping[str, str]) -> Route:
        urls.check_server(location)
        try:
            address, target = split_url(location)
        except ValueError:  # its message may quote the address
            raise FetchError(
                f"{urls.redact(url)}: expected an address, found {urls.redact(location)}"
            ) from None
        usual = {"Host": address.host_header, **_USUAL}
        if address.user is not None:
            usual["Authorization"] = connections.basic(address.user)
        lines(url, ours)  # names are text
        names = {name.lower() for name in ours}
        sent = {name: value for name, value in usual.items() if name.lower() not in names}
        sent |= {name: value for name, value in ours.items() if name.lower() not in _OWN_NAMES}
        proxy = self._proxy(address)
        if proxy is not None and address.scheme == "http":
            target = f"http://{address.host_header}{target}"
            sent.update(connections.proxy_headers(proxy))
        pid = os.getpid()
        idle = self._idle.setdefault((pid, *address[:3]), [])
        connect = partial(self._connected, url, address, proxy)
        start = f"GET {target} HTTP/1.1\r\n".encode("latin-1") + lines(url, sent)
        return Route(start, ours, pid, idle, connect)

    def _connected(self, url: str, address: Address, proxy: Address | None) -> Connection:
        is_known = retry.has_answered(urls.origin(url))
        connect_s = self.timeout_s if is_known else min(self.timeout_s, _FIRST_CONNECT_S)
        return connections.connected(address, proxy, connect_s, self._certificates)

    def _proxy(self, address: Address) -> Address | None:
        """Return the proxy that the environment names for a server, when it is first asked."""
        key = address[:3]
        if key not in self._proxies:
            self._proxies[key] = _stated_proxy(address)
        return self._proxies[key]


def _stated_proxy(address: Address) -> Address | None:
    from urllib.request import getproxies, proxy_bypass

    stated = getproxies().get(address.scheme, "")
    # ``no_proxy`` may name the port too, and an address of IPv6 in brackets.
    names = (address.host, f"{address.bracketed_host}:{address.port}")
    if not stated or any(map(proxy_bypass, names)):
        return None
    named = stated if "://" in stated else f"http://{stated}"
    try:
        proxy = split_url(named)[0]
    except ValueError:
        raise FetchError(
            f"expected the URL of a proxy in ${address.scheme}_proxy, found {urls.redact(named)}"
        ) from None
    if proxy.scheme == address.scheme == "https":  # `ssl` has no TLS inside TLS
        raise FetchError(
            f"{printable(address.host)}: expected a proxy for https: that is reached by http:, "
            f"found {urls.redact(named)}; set $https_proxy to its http: address, or name the "
            "server in $no_proxy"
        )
    return proxy


def _joined(url: str, location: str, target: str) -> str:
    """Return where a redirect from ``location`` leads."""
    # Headers are Latin-1, but a URL in one is UTF-8, if it has more than ASCII.
    with suppress(UnicodeDecodeError):
        target = target.encode("latin-1").decode()
    try:
        return urljoin(location, target)
    except ValueError:  # `urljoin` refuses some addresses
        raise FetchError(
            f"{urls.redact(url)}: expected a response, found a redirect to {urls.redact(target)}"
        ) from None


def _tag(headers: Mapping[str, str]) -> str | None:
    """Return text that is different for each version of a file, or None (RFC 9110, 8.8)."""
    tag = headers.get("etag")
    if tag is not None and not tag.startswith("W/"):  # a weak tag may stay when the bytes change
        return tag
    from email.utils import parsedate_to_datetime

    modified = headers.get("last-modified")
    try:
        age = parsedate_to_datetime(headers["date"]) - parsedate_to_datetime(modified or "")
    except (KeyError, ValueError, TypeError):  # no date, not a date, without a time zone
        return None
    # A file that has just been modified may be modified again in the same second.
    return modified if age.total_seconds() >= _MIN_AGE_S else None


def lines(url: str, headers: Mapping[str, str]) -> bytes:
    """Return headers as they are sent to request a file.

    Raises:
        FetchError: They cannot be sent.
    """
    try:
        return connections.header_lines(headers)
    except ValueError:
        raise FetchError(
            f"{urls.redact(url)}: expected headers of one line of Latin-1 text each, found others; "
            "correct the headers in storage_options"
        ) from None


def refusal_error(url: str, head: Head, text: str) -> FetchError:
    """Return the error that a response without a file stands for."""
    status = head.status
    if status in (404, 410):
        return not_found(url, f" (HTTP status {status})")
    # The code of a store alone: other text may repeat what was sent in headers (SEC-54).
    code = _CODE.search(text)
    found = f"{status} {code[1]}" if code else str(status)
    message = f"{urls.redact(url)}: expected HTTP status 200, found {found}"
    if status in TRANSIENT_STATUSES:
        asked_s = _number(head.headers.get("retry-after"))
        wait_s = None if asked_s is None else min(asked_s, _MAX_RETRY_AFTER_S)
        is_refusal = status in REFUSAL_STATUSES
        return TransientError(message, wait_s, is_answer=True, is_refusal=is_refusal)
    if status in (401, 403):
        message += "; pass headers or tokens as storage_options, or renew the signature of the URL"
    if status == 416:
        return PastEndError(f"{message}; the file is shorter than expected")
    return FetchError(message)


def connection_error(url: str, error: OSError, *, has_begun: bool = False) -> FetchError:
    """Return the error for a request without a response, or for a response that broke off."""
    import ssl

    if isinstance(error, FetchError):
        return error
    reason = error_text(error, url)
    # Another attempt cannot help a wrong certificate.
    if isinstance(error, ssl.SSLCertVerificationError):
        return FetchError(
            f"{urls.redact(url)}: expected a certificate that is trusted, found: {reason}; set "
            "$SSL_CERT_FILE, or for S3 $AWS_CA_BUNDLE, to the file of your certificates"
        )
    # A server that accepts a connection and stays silent may be overloaded.
    is_answer = isinstance(error, SilenceError)
    # If the server is away after a cut, the next attempt is refused, and that is an outage.
    # One that becomes slow or silent may be overloaded.
    is_outage = not (has_begun and isinstance(error, (CutError, ConnectionResetError)))
    message = f"{urls.redact(url)}: the connection failed: {reason}"
    return TransientError(message, is_answer=is_answer, is_outage=is_outage)


def _number(text: str | None) -> int | None:
    # Python refuses to parse thousands of digits, which a hostile server may send.
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text) else None
