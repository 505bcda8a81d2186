"""Taking turns: locks that work, locks that do not, and downloads that stall."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cache_parts import (
    DATA,
    SHA,
    file_names,
    fill,
    make_cache,
    own_path,
    read_copy,
    read_in_threads,
)
from loopback import Server

from wids.storage import locks
from wids.storage.cache import cache_names, leases
from wids.storage.cache.cache_names import RemoteFile


def test_threads_fetch_once(tmp_path: Path, server: Server) -> None:
    """Sixteen threads that want one file make one request (CACHE-5)."""
    remote_file = RemoteFile(server.page("/0.tar", DATA))

    assert read_in_threads(16, make_cache(tmp_path), remote_file) == [DATA] * 16
    assert len(server.log) == 1


def test_broken_locks(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks that fail, or succeed for everyone, cost work and nothing else (CACHE-6)."""

    def refuse(number: int) -> Callable[..., None]:
        def flock(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        return flock

    for name, flock in (
        ("ENOLCK", refuse(errno.ENOLCK)),
        ("ENOSYS", refuse(errno.ENOSYS)),
        ("for everyone", lambda *_: None),
    ):
        monkeypatch.setattr(locks.fcntl, "flock", flock)
        folder = tmp_path / name
        remote_file = RemoteFile(server.page("/0.tar", DATA), len(DATA), sha256=SHA)
        assert read_in_threads(8, make_cache(folder), remote_file) == [DATA] * 8
        assert len(file_names(folder)) == 1
        cache = make_cache(folder, limit=250_000)
        files = fill(cache, server, 6)
        assert read_copy(cache, files[0]) == DATA[:100_000]


def test_lock_files_are_empty_and_stay(tmp_path: Path, server: Server) -> None:
    """A deleted lock file would split those who wait for it; a marker would outlive a kill."""
    cache = make_cache(tmp_path, limit=1 << 20)
    remote_file = RemoteFile(server.page("/0.tar", DATA))
    name = os.path.basename(own_path(cache, remote_file))

    read_copy(cache, remote_file)

    lock_files = [path for path in (tmp_path / "locks").iterdir() if path.suffix == ".lock"]
    assert {path.name for path in lock_files} == {f"{name}.lock", "evict.lock"}
    assert all(path.read_bytes() == b"" for path in lock_files)


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path, server: Server) -> None:
    """A user of a shared cache folder cannot have another file created or locked (SEC-40)."""
    cache = make_cache(tmp_path / "c")
    remote_file = RemoteFile(server.page("/0.tar", DATA))
    lock_path = cache_names.lock_path(cache.folder, own_path(cache, remote_file))
    os.makedirs(os.path.dirname(lock_path))
    os.symlink(tmp_path / "elsewhere", lock_path)

    assert read_copy(cache, remote_file) == DATA
    assert not (tmp_path / "elsewhere").exists()


def test_a_background_fetch_does_not_wait(tmp_path: Path, server: Server) -> None:
    """It leaves a file to the process that fetches it, and does not fetch one that is there."""
    remote_file = RemoteFile(server.page("/0.tar", DATA))
    cache = make_cache(tmp_path)
    path = own_path(cache, remote_file)
    with leases.turn(cache_names.lock_path(cache.folder, path), path, waits=True):
        make_cache(tmp_path).fetch(remote_file, None, lambda *_: pytest.fail("it was fetched"))
    assert server.log == []
    for _ in range(2):
        cache.fetch(remote_file, None, lambda *_: None)
    assert len(server.log) == 1
    assert read_copy(cache, remote_file) == DATA


def test_a_stalled_download_is_passed_by(
    tmp_path: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A process that holds the lock and makes no progress is passed by (CACHE-6)."""
    monkeypatch.setattr(leases, "_PATIENCE_S", 0.5)
    remote_file = RemoteFile(server.page("/0.tar", DATA))
    cache = make_cache(tmp_path)
    lock_path = cache_names.lock_path(cache.folder, own_path(cache, remote_file))
    os.makedirs(os.path.dirname(lock_path))
    handle = os.open(lock_path, os.O_RDWR | os.O_CREAT)
    locks.acquire(handle)

    assert read_copy(cache, remote_file) == DATA
    assert "makes no progress" in caplog.text
    os.close(handle)
