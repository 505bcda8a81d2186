"""A disk that is full, a folder that is read-only or deleted, and files that a kill left."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import IO

from cache_parts import DATA, file_names, make_cache, read_copy
from conftest import in_child, need, raises
from loopback import Server

from wids.errors import FetchError
from wids.storage import locks
from wids.storage.cache import leases
from wids.storage.cache.cache_names import RemoteFile


def test_a_full_disk(tmp_path: Path, server: Server) -> None:
    """The error names cache_dir and cache_size, and no partial file stays."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    )
    need(mounted.returncode == 0, "the right to mount a small tmpfs")
    try:
        cache = make_cache(folder)
        small = RemoteFile(server.page("/small.tar", DATA))
        assert read_copy(cache, small) == DATA
        large = server.page("/large.tar", DATA * 5)
        with raises(FetchError, "/large.tar", "No space left", "cache_size", str(folder)):
            cache.open(RemoteFile(large))
        assert len(file_names(folder)) == 1
        assert read_copy(cache, small) == DATA
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_read_only_cache(tmp_path: Path, server: Server) -> None:
    """Copies are read; a file that cannot be stored is an error that says so."""
    there = RemoteFile(server.page("/there.tar", DATA), len(DATA))
    absent = RemoteFile(server.page("/absent.tar", DATA))
    read_copy(make_cache(tmp_path / "c"), there)
    need(hasattr(os, "geteuid") and os.geteuid() == 0, "root, to become another user")
    tmp_path.chmod(0o755)
    for path in [tmp_path / "c", *(tmp_path / "c").rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)

    def read_as_nobody() -> bool:
        os.chdir(tmp_path)  # the folders above are closed to others
        os.setuid(65534)
        cache = make_cache(Path("c"))
        assert read_copy(cache, there) == DATA
        with raises(FetchError, "cannot be stored", "cache_dir"):
            cache.open(absent)
        return True

    assert in_child(read_as_nobody)


def test_a_folder_that_is_deleted_meanwhile(tmp_path: Path, server: Server) -> None:
    """It is made again, even if it is deleted in the middle of a download."""
    cache = make_cache(tmp_path / "c")
    remote_file = RemoteFile(server.page("/0.tar", DATA))
    read_copy(cache, remote_file)
    shutil.rmtree(tmp_path / "c")
    assert read_copy(cache, remote_file) == DATA
    shutil.rmtree(tmp_path / "c")
    times = []

    def prepare(_: IO[bytes]) -> bytes:
        if not times:
            shutil.rmtree(tmp_path / "c")
        times.append(1)
        return b"index"

    assert read_copy(cache, remote_file, prepare) == DATA
    assert len(times) == 2


def test_abandoned_temporary_files_are_deleted(tmp_path: Path, server: Server) -> None:
    """Temporary files of killed processes go after a minute; others stay (CACHE-10)."""
    folder = tmp_path / "shards"
    folder.mkdir()
    old, young, alive = (folder / f".{'0' * 32}-0.tar.{n * 16}.tmp" for n in "abc")
    for path in (old, young, alive):
        path.write_bytes(b"part")
    mine = folder / ".notes.tmp"  # (CACHE-9)
    mine.touch()
    pipe = folder / ".pipe-abc.tmp"
    pipe.mkdir()
    for path in (old, alive, mine):
        os.utime(path, (time.time() - 100, time.time() - 100))
    os.utime(pipe, (0, 0))
    handle = os.open(alive, os.O_RDWR)
    locks.acquire(handle)

    read_copy(make_cache(tmp_path), RemoteFile(server.page("/0.tar", DATA)))

    assert [p.exists() for p in (old, young, alive, mine, pipe)] == [False, True, True, True, False]
    os.close(handle)


def test_temporary_files_of_a_clock_in_the_future(tmp_path: Path) -> None:
    """They are not young for ever; the file of a live process stays (CACHE-10)."""
    folder = tmp_path / "shards"
    folder.mkdir()
    soon, later, alive = (folder / f".{'0' * 32}-0.tar.{n * 16}.tmp" for n in "abc")
    for path, age_s in ((soon, -30), (later, -1000), (alive, -1000)):
        path.write_bytes(b"part")
        os.utime(path, (time.time() - age_s,) * 2)
    handle = os.open(alive, os.O_RDWR)
    locks.acquire(handle)

    leases.sweep(str(tmp_path))

    assert [path.exists() for path in (soon, later, alive)] == [True, False, True]
    os.close(handle)
