"""What the tests of the cache share: bytes to serve, and short ways to make and read a cache."""

from __future__ import annotations

import hashlib
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from loopback import Server

from wids.storage import fetch
from wids.storage.cache import cache_names
from wids.storage.cache.cache_names import RemoteFile
from wids.storage.cache.store import Cache

DATA = random.Random(1).randbytes(300_000)
SHA = hashlib.sha256(DATA).hexdigest()
MD5 = hashlib.md5(DATA).hexdigest()  # noqa: S324 - a checksum


def make_cache(folder: Path, limit: int | None = None, **options: Any) -> Cache:
    """Return a cache in a folder."""
    fetcher = options.pop("fetcher", None) or fetch.Fetcher()
    return Cache(str(folder), fetcher, limit_nbytes=limit, **options)


def read_copy(cache: Cache, remote_file: RemoteFile, prepare: Any = None) -> bytes:
    """Open a copy, close it, and return its bytes."""
    copy = cache.open(remote_file, prepare)
    with copy.file as file:
        return file.read()


def read_in_threads(count: int, cache: Cache, remote_file: RemoteFile) -> list[bytes]:
    """Open a copy in many threads at once."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(lambda _: read_copy(cache, remote_file), range(count)))


def file_names(folder: Path) -> list[str]:
    """Return the names of the files in the folder of copies."""
    return sorted(path.name for path in (folder / "shards").iterdir())


def own_path(cache: Cache, remote_file: RemoteFile) -> str:
    """Return the path of the cache's own copy of a file."""
    return cache_names.copy_path(cache.folder, remote_file)


def fill(cache: Cache, server: Server, count: int) -> list[RemoteFile]:
    """Fetch files of 100 kB, one after the other."""
    files = []
    for number in range(count):
        body = DATA[number : number + 100_000]
        files.append(RemoteFile(server.page(f"/{number}.tar", body), 100_000))
        read_copy(cache, files[-1])
        time.sleep(0.002)  # so that times of use differ
    return files
