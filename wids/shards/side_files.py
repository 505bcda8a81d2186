"""Find the files beside shards: packs, saved tables and joined fields.

Only the server knows their versions: a remote file is stored in the cache, and fetched again when
another version was published.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from wids.errors import local_error
from wids.shards.copy_records import open_copy
from wids.storage.cache.cache_names import RemoteFile
from wids.storage.cache.space import StorageError
from wids.storage.cache.store import Cache
from wids.storage.fetch import Fetcher, downloaded
from wids.storage.transport import urls
from wids.storage.transport.url_rewrite import rewritten


def versioned_file(fetcher: Fetcher, url: str) -> tuple[RemoteFile, int | None]:
    """Return a remote file in its current version, and its length if the server states it.

    Raises:
        FetchError: The server cannot be reached.
    """
    nbytes, tag = fetcher.head(url)
    version = "" if (nbytes, tag) == (None, None) else repr((nbytes, tag))
    return RemoteFile(url, version=version), nbytes


@contextmanager
def local_file(store: Cache, url: str) -> Iterator[str]:
    """Provide the path of a file; fetch it into the cache if it is remote.

    Raises:
        NotFoundError: There is no such remote file.
        FetchError: It cannot be fetched.
    """
    place = rewritten(url)
    if urls.is_local(place):
        yield urls.local_path(place)
        return
    try:
        copy = open_copy(store, versioned_file(store.fetcher, url)[0])
    except StorageError:  # a read-only cache folder: use it without storing it
        with downloaded(store.fetcher, url) as path:
            yield path
        return
    with copy.file:  # after it, the copy may be evicted
        yield copy.path


def discard(store: Cache, url: str) -> bool:
    """Delete the copy of a file, so that it is fetched again; return whether the file is remote.

    Raises:
        FetchError: Its server cannot be reached.
    """
    if urls.is_local(rewritten(url)):
        return False
    store.discard(versioned_file(store.fetcher, url)[0])
    return True


@contextmanager
def open_file(store: Cache, url: str) -> Iterator[BinaryIO]:
    """Open a file to read it.

    Raises:
        NotFoundError: There is no such file.
        FetchError: It cannot be opened.
    """
    with local_file(store, url) as path:
        try:
            file = open(path, "rb")  # noqa: SIM115 - errors of the caller's block are its own
        except OSError as error:
            raise local_error(path, error) from error
        with file:
            yield file
