"""The bytes of HTTP/1.1 requests, and of the heads of responses; no input or output.

Only what reading needs: GET and HEAD, without a body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote

from wids.storage.transport import urls

_PORTS: Final = {"http": 80, "https": 443}
_AUTHORITY: Final = re.compile(
    r"(?:(?P<user>.*)@)?(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\[\]:/@\s\x00-\x1f\x7f]+)(?::(?P<port>\d{0,5}))?"
)
_STATUS_LINE: Final = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?\r?\Z")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[^\r\n\0]*")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")


class Address(NamedTuple):
    """The server that a URL names.

    Attributes:
        scheme: ``"http"`` or ``"https"``.
        host: Its name in ASCII, or its address; without brackets.
        port: Its port.
        user: User and password as they are in the URL, or None.
    """

    scheme: str
    host: str
    port: int
    user: str | None

    @property
    def bracketed_host(self) -> str:
        """The host as it is in a URL."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def host_header(self) -> str:
        """The value of the header ``Host``."""
        host = self.bracketed_host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


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
    return Address(scheme, host.lower(), port, match["user"]), target


def _encoded(text: str, more: str) -> str:
    """Return text with escapes for what a URL may not have; escapes in it stay as they are."""
    if re.search(r"%(?![0-9A-Fa-f]{2})", text) is None:
        more += "%"
    return quote(text, safe="!$&'()*+,;=:@~" + more)


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse headers that would be more than one line, or are not of Latin-1 text.

    Raises:
        ValueError: One of them is no header. The message has no value, which may be a secret.
    """
    for name, value in headers.items():
        is_text = isinstance(name, str) and isinstance(value, str)
        if not is_text or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError("not a header")
        value.encode("latin-1")


def request_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """Return the bytes of a request without a body; `check_headers` has checked the headers."""
    lines = [f"{method} {target} HTTP/1.1", *[f"{name}: {headers[name]}" for name in headers]]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def head_end(data: bytes) -> int:
    """Return where the head of a response ends, or -1 if more bytes are needed."""
    match = _HEAD_END.search(data)
    return -1 if match is None else match.end()


def parsed_head(data: bytes) -> Head:
    """Parse the head of a response.

    Raises:
        ConnectionError: It is not one of HTTP/1.
    """
    first, *lines = data.decode("latin-1").rstrip("\r\n").split("\n")
    match = _STATUS_LINE.match(first)
    if match is None:
        raise ConnectionError("the response is not HTTP")
    headers: dict[str, str] = {}
    is_malformed, name = False, ""
    for line in lines:
        if line[:1] in " \t" and name:  # a value on several lines
            headers[name] += " " + line.strip()
            continue
        raw, colon, value = line.partition(":")
        name = raw.strip().lower()
        if not colon or not name:
            is_malformed = True
            break
        text = value.strip()
        if name == "content-length":
            text = _length(text, headers.get(name))
        headers.setdefault(name, text)
    if "transfer-encoding" in headers:  # the length is then that of another message, or wrong
        headers.pop("content-length", None)
    connection = headers.get("connection", "").lower()
    is_kept = "close" not in connection and (match[1] == "1" or "keep-alive" in connection)
    return Head(int(match[2]), headers, is_kept, is_malformed)


def _length(text: str, other: str | None) -> str:
    """Return the length of a body, which may be stated several times."""
    lengths = {length.strip() for length in text.split(",")} | ({other} if other else set())
    length = lengths.pop()
    # Another length than the server meant would cut the file.
    if lengths or not _LENGTH.fullmatch(length):
        raise ConnectionError("the length of the response is not one number")
    return length
