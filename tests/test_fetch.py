"""URL → bytes, over a real server on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Server, raises

from wids import fetch
from wids.errors import FetchError, NotFoundError


def test_paths_and_urls_are_read(tmp_path: Path, server: Server) -> None:
    """A path, a ``file:`` URL with escapes, and an ``http:`` URL give their bytes."""
    path = tmp_path / "a b#.txt"
    path.write_bytes(b"here")

    assert fetch.read(str(path), 10) == b"here"
    assert fetch.read(f"file://{tmp_path}/a%20b%23.txt", 10) == b"here"
    assert fetch.read(server.page("/x", b"there"), 10) == b"there"


def test_http_errors_are_errors(server: Server) -> None:
    """The page of a 404 or 500 is never taken for the document (SEC-4)."""
    with raises(NotFoundError, f"{server.url}/gone: nothing there (HTTP status 404)"):
        fetch.read(f"{server.url}/gone", 1000)
    with raises(FetchError, "/bad: expected HTTP status 200, found 403"):
        fetch.read(server.page("/bad", b"no", status=403), 1000)


def test_secrets_stay_out_of_messages(server: Server) -> None:
    """Neither query nor password is in an error, for an answer or for none (SEC-4)."""
    port = server.http.server_port
    for url in (f"http://me:pw@127.0.0.1:{port}/x?sig=abc", "http://127.0.0.1:1/x?sig=abc"):
        with pytest.raises(FetchError) as caught:
            fetch.read(url, 10)
        text = str(caught.value)
        assert "/x?…" in text
        assert "abc" not in text
        assert "pw" not in text


def test_too_long_and_unknown_are_refused(tmp_path: Path, server: Server) -> None:
    """A limit holds for files and servers; a scheme that is not known is named."""
    (tmp_path / "a").write_bytes(b"12345")

    for url in (str(tmp_path / "a"), server.page("/a", b"12345")):
        assert fetch.read(url, 5) == b"12345"
        with raises(FetchError, "expected at most 4 bytes, found more"):
            fetch.read(url, 4)
    with raises(FetchError, 'scheme "gopher"'):
        fetch.read("gopher://x/y", 4)
