"""Requests and heads of responses as bytes."""

from __future__ import annotations

import pytest

from wids.storage.transport.connections import (
    head_end,
    header_lines,
    parsed_head,
    split_url,
)


@pytest.mark.parametrize(
    ("url", "host", "target"),
    [
        ("http://h", "h", "/"),
        ("HTTPS://me:a%20b@H:8443/a", "h:8443", "/a"),
        ("http://[::1]:80/a/../b?x=/../y", "[::1]", "/b?x=/../y"),
        ("http://h/50%.tar", "h", "/50%25.tar"),
        ("http://h/50%25.tar#part", "h", "/50%25.tar"),
        ("http://h/a b/ü.tar?q=ü", "h", "/a%20b/%C3%BC.tar?q=%C3%BC"),
        ("http://bücher.example/a", "xn--bcher-kva.example", "/a"),
        ("http://h?a=%2Fb%3D&x=$(id)", "h", "/?a=%2Fb%3D&x=$(id)"),
    ],
)
def test_urls_are_split(url: str, host: str, target: str) -> None:
    """Server and target are as other clients send them; escapes stay."""
    address, found = split_url(url)
    assert (address.host_header, found) == (host, target)


@pytest.mark.parametrize(
    "url", ["http://", "http://h:99999999/", "http://[/", "http://a b/", "ftp://h/", "http://:1/"]
)
def test_malformed_servers_are_refused(url: str) -> None:
    """There is nothing to connect to."""
    with pytest.raises(ValueError, match="not an address"):
        split_url(url)


@pytest.mark.parametrize(
    "headers", [{"a": "b\r\nc: d"}, {"a\n": "b"}, {"": "b"}, {"a": "€"}, {"a": 1}, {"a b": "c"}]
)
def test_headers_are_one_line_each(headers: dict[str, str]) -> None:
    """A value cannot add a header or end the request, and messages do not show it."""
    with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
        header_lines(headers)


def test_a_header_is_a_line() -> None:
    """In Latin-1."""
    assert header_lines({"Host": "h", "X": "ü"}) == b"Host: h\r\nX: \xfc\r\n"


def test_a_head_is_parsed() -> None:
    """Names have no case, the first of equal names counts, and lines may be folded."""
    data = b'HTTP/1.1 206 Partial\r\nETag: "a"\r\nETAG: "b"\r\nX: 1\r\n  2\r\n\r\nbody'
    assert head_end(data[:20]) == -1
    assert data[head_end(data) :] == b"body"
    head = parsed_head(data[: head_end(data)])
    assert (head.status, head.is_kept, head.is_malformed) == (206, True, False)
    assert head.headers == {"etag": '"a"', "x": "1 2"}


@pytest.mark.parametrize(
    ("data", "end"),
    [(b"a\n\n\r\nb", 3), (b"a\r\n\nb", 4), (b"a\n\r\nb\n\n", 4), (b"a\r\n\r", -1), (b"a\n", -1)],
)
def test_a_head_ends_at_its_first_empty_line(data: bytes, end: int) -> None:
    """Lines end with a line feed, with or without a carriage return."""
    assert head_end(data) == end


def test_a_response_has_one_length() -> None:
    """The same length may be stated again; chunks have their own; a contradiction is an error."""
    head = parsed_head(b"HTTP/1.1 200\r\nContent-Length: 5, 5\r\nContent-Length: 5\r\n\r\n")
    assert head.headers == {"content-length": "5"}
    chunked = b"HTTP/1.1 200\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert parsed_head(chunked).headers == {"transfer-encoding": "chunked"}
    for lengths in (b"3\r\nContent-Length: 5", b"3, 5", b"3\r\n 5", b"-1", b"", b"9" * 19):
        with pytest.raises(ConnectionError, match="not one number"):
            parsed_head(b"HTTP/1.1 200\r\nContent-Length: " + lengths + b"\r\n\r\n")


@pytest.mark.parametrize(
    ("data", "is_kept"),
    [
        (b"HTTP/1.1 200 OK", True),
        (b"HTTP/1.1 200", True),
        (b"HTTP/1.0 200 OK", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive", True),
        (b"HTTP/1.1 200 OK\nConnection: Close", False),
    ],
)
def test_when_a_connection_is_used_again(data: bytes, is_kept: bool) -> None:
    """HTTP/1.1 keeps it unless the server says otherwise, and HTTP/1.0 the other way round."""
    assert parsed_head(data + b"\r\n\r\n").is_kept == is_kept


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n", b"HTTP/2 200\r\n", b"HTTP/1.1 20\r\n", b"\r\n"])
def test_other_protocols_are_errors(data: bytes) -> None:
    """What is not HTTP/1 is a failed connection."""
    with pytest.raises(ConnectionError, match="not HTTP"):
        parsed_head(data + b"\r\n")
