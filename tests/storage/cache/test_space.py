"""Space for files of unknown length: reserved as they grow, and refused beyond the limits."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cache_parts import DATA, file_names, fill, make_cache, read_copy
from conftest import need, raises
from loopback import Fault, Server

from wids.errors import FetchError, MismatchError
from wids.storage import fetch
from wids.storage.cache.cache_names import RemoteFile

ENDLESS = RemoteFile("endless://host/0.tar")


class Endless(io.RawIOBase):
    """A file without an end and without a length."""

    num_sent = 0

    def read(self, size: int = -1) -> bytes:
        self.num_sent += size
        if self.num_sent > 1 << 30:
            pytest.fail("nothing stops the download")
        return bytes(size)


@pytest.fixture
def endless() -> Endless:
    return Endless()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, check=False
    )
    need(mounted.returncode == 0, "the right to mount a small tmpfs")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fetcher(endless: Endless) -> Any:
    return fetch.Fetcher(handlers={"endless": lambda _: endless})


def test_an_endless_body_ends_at_the_limit(tmp_path: Path, endless: Endless) -> None:
    """What a server sends without stating a length is bounded by cache_size."""
    cache = make_cache(tmp_path, limit=2_000_000, fetcher=fetcher(endless))

    with raises(FetchError, "endless://host/0.tar", "2.0 MB (cache_size)", "filesize"):
        cache.open(ENDLESS)
    assert endless.num_sent < 2_000_000 + (2 << 20)
    assert file_names(tmp_path) == []


def test_an_endless_body_ends_before_the_disk_does(small_disk: Path, endless: Endless) -> None:
    """Without a limit a reserve of the disk stays free, and the error says so."""
    before = os.statvfs(small_disk)
    free = []
    read = endless.read

    def watched_read(size: int = -1) -> bytes:
        now = os.statvfs(small_disk)
        free.append(now.f_bavail * now.f_frsize)
        return read(size)

    endless.read = watched_read  # type: ignore[method-assign]
    for options in ({}, {"localname": lambda _: small_disk / "mine.tar"}):
        cache = make_cache(small_disk, fetcher=fetcher(endless), **options)
        with raises(FetchError, "endless://host/0.tar", "No space left", "cache_size", "are free"):
            cache.open(ENDLESS)
    assert 0 < min(free) < before.f_blocks * before.f_frsize // 2
    assert not [name for name in os.listdir(small_disk) if "tar" in name]
    assert file_names(small_disk) == []


def test_a_file_of_unknown_length_fits_on_a_small_disk(small_disk: Path, server: Server) -> None:
    """The reserve is a hundredth of the disk, not a fixed number of bytes."""
    url = server.page("/0.tar", DATA * 10, is_chunked=True)
    assert read_copy(make_cache(small_disk), RemoteFile(url)) == DATA * 10


def test_a_growing_file_evicts_as_it_grows(tmp_path: Path, server: Server) -> None:
    """A file of unknown length evicts what it needs, and not all that the limit allows."""
    cache = make_cache(tmp_path, limit=1_000_000)
    files = fill(cache, server, 9)
    url = server.page("/long.tar", DATA, is_chunked=True)

    assert read_copy(cache, RemoteFile(url)) == DATA

    kept = [cache.find(file) is not None for file in files]
    assert kept == [False] * (9 - sum(kept)) + [True] * sum(kept)
    assert 6 <= sum(kept) <= 7
    nbytes = sum(path.stat().st_size for path in (tmp_path / "shards").iterdir())
    assert nbytes == 100_000 * sum(kept) + len(DATA) <= 1_000_000


def test_a_server_that_sends_more_than_stated(tmp_path: Path, endless: Endless) -> None:
    """The length that the spec states ends the download."""
    cache = make_cache(tmp_path, fetcher=fetcher(endless))
    with raises(MismatchError, "expected 5000 bytes (filesize)"):
        cache.open(ENDLESS._replace(nbytes=5000))
    assert endless.num_sent <= 4 << 20


def test_a_body_that_is_cut_reserves_nothing_twice(tmp_path: Path, server: Server) -> None:
    """A second attempt uses the space that the first one has reserved."""
    cache = make_cache(tmp_path, limit=1_000_000)
    files = fill(cache, server, 6)
    cut = Fault(after_nbytes=200_000)
    url = server.page("/long.tar", DATA, is_chunked=True, faults=[cut, cut])
    assert read_copy(cache, RemoteFile(url)) == DATA
    assert all(map(cache.find, files))


def test_a_length_beyond_the_limit_that_becomes_known_late(tmp_path: Path, server: Server) -> None:
    """What has arrived stays, and the file may exceed the limit as any of known length."""
    cache = make_cache(tmp_path, limit=250_000)
    cut = Fault(after_nbytes=100_000)
    url = server.page("/long.tar", DATA, is_chunked=True, faults=[Fault(416), cut])
    assert read_copy(cache, RemoteFile(url)) == DATA
    assert [request.range for request in server.log][1:] == [None, "bytes=100000-"]
