"""Reading documents, with one fetcher in many places."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from conftest import in_child, raises
from loopback import Server
from transfers import DATA, saved

from wids.errors import FetchError, NotFoundError
from wids.storage import fetch
from wids.storage.fetch import Fetcher

pytestmark = pytest.mark.usefixtures("quick_retries")


def test_reads_paths_file_urls_and_http(tmp_path: Path, server: Server) -> None:
    """A path, a ``file:`` URL and an HTTP URL of the same document return the same bytes."""
    (tmp_path / "a b.json").write_bytes(b"{}")
    url = server.page("/a.json", b"{}")

    for name in (str(tmp_path / "a b.json"), f"file://{tmp_path}/a%20b.json", url):
        assert fetch.Fetcher().read(name, 10) == b"{}"
        assert saved(name) == b"{}"


def test_missing_is_not_found(tmp_path: Path, server: Server) -> None:
    """A missing file is a FileNotFoundError that names it, and is not requested again."""
    with raises(NotFoundError, "no such file", "check the path"):
        fetch.Fetcher().read(str(tmp_path / "nope"), 10)
    with raises(NotFoundError, "/nope", "404"):
        fetch.Fetcher().read(server.url + "/nope", 10)
    assert len(server.log) == 1


def test_messages_have_no_secrets(server: Server) -> None:
    """Queries and passwords do not appear, whatever the failure (SEC-4)."""
    url = server.page("/x", b"", 403) + "?token=SECRET"
    for bad in (
        *(url, url.replace("http://", "http://me:SECRET@"), "http://127.0.0.1:9/x?SECRET"),
        *("pipe:TOKEN=SECRET false", "pipe:false\t-u\tme:SECRET"),
    ):
        with pytest.raises(FetchError) as caught:
            fetch.Fetcher().read(bad, 10)
        assert "SECRET" not in str(caught.value)
        assert caught.value.__cause__ is None or "SECRET" not in str(caught.value.__cause__)


def test_too_long_is_refused(tmp_path: Path, server: Server) -> None:
    """A document longer than the limit is refused."""
    (tmp_path / "a").write_bytes(b"12345")
    for url in (str(tmp_path / "a"), server.page("/a", b"12345")):
        assert fetch.Fetcher().read(url, 5) == b"12345"
        with raises(FetchError, "expected at most 4 bytes, found more"):
            fetch.Fetcher().read(url, 4)


def test_a_folder_is_not_a_document(tmp_path: Path) -> None:
    """The error for something that exists but cannot be read says what it is."""
    with raises(FetchError, "found: a folder"):
        fetch.Fetcher().read(str(tmp_path), 5)


def test_a_local_file_is_not_copied(tmp_path: Path) -> None:
    """`downloaded` provides the local file itself."""
    with fetch.downloaded(Fetcher(), f"file://{tmp_path}/a%20b") as path:
        assert path == f"{tmp_path}/a b"


def test_a_download_lasts_as_long_as_its_block(server: Server) -> None:
    """`downloaded` deletes its temporary file at the end."""
    with fetch.downloaded(Fetcher(), server.page("/a", DATA)) as path:
        assert Path(path).read_bytes() == DATA
    assert not os.path.exists(path)


# One fetcher in many places


def test_connections_are_reused(server: Server) -> None:
    """Many ranges need only one connection."""
    url = server.page("/a", DATA)
    fetcher = Fetcher()
    accepted = []
    finish = server.http.finish_request
    server.http.finish_request = lambda *a: (accepted.append(1), finish(*a))  # type: ignore[method-assign]

    for start in range(0, 20_000, 1000):
        fetcher.range_reader(url, len(DATA))(start, start + 100)

    assert len(accepted) == 1


def test_fetchers_can_be_pickled_and_forked(server: Server) -> None:
    """Another process opens its own connections."""
    url = server.page("/a", DATA)
    fetcher = Fetcher()
    fetcher.read(url, 1 << 30)

    assert pickle.loads(pickle.dumps(fetcher)).read(url, 1 << 30) == DATA  # noqa: S301 - made here
    assert in_child(lambda: fetcher.read(url, 1 << 30) == DATA)
    assert fetcher.read(url, 1 << 30) == DATA
