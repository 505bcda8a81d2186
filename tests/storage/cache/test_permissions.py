"""Modes of copies: read-only, still evicted and swept, and fetched again if they cannot be read."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cache_parts import DATA, file_names, make_cache, own_path, read_copy
from conftest import in_child, need, raises
from loopback import Server

from wids.errors import FetchError
from wids.storage import locks
from wids.storage.cache import leases
from wids.storage.cache.cache_names import RemoteFile

NOBODY = 65534


@pytest.fixture
def as_nobody() -> Iterator[Callable[[Callable[[], bool]], bool]]:
    """Runs a function in a process of a user for whom modes count, in a folder of that user."""
    need(hasattr(os, "geteuid") and os.geteuid() == 0, "root, to become another user")
    home = tempfile.mkdtemp()  # the folders above tmp_path are closed to others
    os.chown(home, NOBODY, NOBODY)

    def run(work: Callable[[], bool]) -> bool:
        def work_there() -> bool:
            os.chdir(home)
            os.environ["WIDS_CACHE"] = home
            os.setuid(NOBODY)
            return work()

        return in_child(work_there)

    yield run
    shutil.rmtree(home)


def test_a_file_of_the_users_keeps_its_mode(tmp_path: Path, server: Server) -> None:
    """What is fetched to a path of the user's is the user's to change (CACHE-21)."""
    cache = make_cache(tmp_path / "c", localname=lambda _: tmp_path / "mine.tar")
    read_copy(cache, RemoteFile(server.page("/0.tar", DATA)))
    assert (tmp_path / "mine.tar").stat().st_mode & 0o200


def test_read_only_copies_are_evicted(
    server: Server, as_nobody: Callable[[Callable[[], bool]], bool]
) -> None:
    """A lock and a deletion need no right to write to the file (CACHE-21)."""
    bodies = [DATA[n : n + 100_000] for n in range(4)]
    files = [RemoteFile(server.page(f"/{n}.tar", body), 100_000) for n, body in enumerate(bodies)]

    def evict() -> bool:
        cache = make_cache(Path("c"), limit=250_000)
        held = cache.open(files[0])
        assert stat.S_IMODE(os.stat(held.path).st_mode) == 0o400
        for file, body in zip(files[1:], bodies[1:], strict=True):
            assert read_copy(cache, file) == body
            time.sleep(0.002)  # so that times of use differ
        return [cache.find(file) is not None for file in files] == [True, False, False, True]

    assert as_nobody(evict)


def test_a_read_only_temporary_file_is_swept(
    as_nobody: Callable[[Callable[[], bool]], bool],
) -> None:
    """As is one that was killed between its last byte and its name (CACHE-10)."""

    def sweep() -> bool:
        path = Path("c/shards") / f".{'0' * 32}-0.tar.{'a' * 16}.tmp"
        path.parent.mkdir(parents=True)
        path.touch(0o400)
        os.utime(path, (time.time() - 100,) * 2)
        leases.sweep("c")
        return not path.exists()

    assert as_nobody(sweep)


def test_where_a_read_only_file_cannot_be_locked(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS an exclusive lock needs a file that is open for writing, so copies stay writable."""
    flock = locks.fcntl.flock

    def flock_of_nfs(handle: int, operation: int) -> None:
        flags = locks.fcntl.fcntl(handle, locks.fcntl.F_GETFL)
        if operation & locks.fcntl.LOCK_EX and flags & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(handle, operation)

    monkeypatch.setattr(locks.fcntl, "flock", flock_of_nfs)
    path = read_own(tmp_path / "c", RemoteFile(server.page("/0.tar", DATA)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_unreadable_copy_is_fetched_again(
    server: Server, as_nobody: Callable[[Callable[[], bool]], bool]
) -> None:
    """A copy of mode 000 is replaced, not an error for ever."""
    remote_file = RemoteFile(server.page("/0.tar", DATA), len(DATA))

    def read_twice() -> bool:
        path = read_own(Path("c"), remote_file)
        path.chmod(0)
        assert read_copy(make_cache(Path("c")), remote_file) == DATA
        assert file_names(Path("c")) == [path.name]
        path.chmod(0)
        path.parent.chmod(0o500)  # then it cannot be deleted
        with raises(FetchError, path.name, "cannot be read", "Permission denied"):
            make_cache(Path("c")).open(remote_file)
        path.parent.chmod(0o700)
        return True

    assert as_nobody(read_twice)
    assert len(server.log) == 2


def test_an_unreadable_file_of_the_users_is_an_error(
    server: Server, as_nobody: Callable[[Callable[[], bool]], bool]
) -> None:
    """Only the cache's own copies are ever deleted (CACHE-9)."""
    remote_file = RemoteFile(server.page("/0.tar", DATA), len(DATA))

    def read_placed() -> bool:
        Path("0.tar").write_bytes(DATA)
        Path("0.tar").chmod(0)
        with raises(FetchError, "0.tar: cannot be read"):
            make_cache(Path(), offered=frozenset(["0.tar"])).open(remote_file)
        return Path("0.tar").exists()

    assert as_nobody(read_placed)


def read_own(folder: Path, remote_file: RemoteFile) -> Path:
    """Fetch a file, and return the path of its copy."""
    cache = make_cache(folder)
    assert read_copy(cache, remote_file) == DATA
    return Path(own_path(cache, remote_file))
