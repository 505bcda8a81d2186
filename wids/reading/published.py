"""A file that is published beside shards → a local file with the version that the server has now.

Packs and saved tables are such files: nothing but their server states their versions. What is in
them is not known here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from wids.cache.names import RemoteFile
from wids.cache.space import StorageError
from wids.cache.store import Cache
from wids.transport import urls
from wids.transport.fetch import Fetcher, downloaded
from wids.transport.rewrite import rewritten


def versioned_file(fetcher: Fetcher, url: str) -> tuple[RemoteFile, int | None]:
    """Return a remote file in its present version, and its length where the server states it.

    Raises:
        FetchError: The server cannot be reached.
    """
    nbytes, tag = fetcher.head(url)
    version = "" if (nbytes, tag) == (None, None) else repr((nbytes, tag))
    return RemoteFile(url, version=version), nbytes


@contextmanager
def local_file(store: Cache, url: str) -> Iterator[str]:
    """Provide the path of a published file, which is fetched into the cache if it is remote.

    Raises:
        FetchError: It cannot be fetched.
    """
    place = rewritten(url)
    if urls.is_local(place):
        yield urls.local_path(place)
        return
    try:
        copy = store.open(versioned_file(store.fetcher, url)[0])
    except StorageError:  # a read-only cache folder: use it without storing it
        with downloaded(store.fetcher, url) as path:
            yield path
        return
    try:
        yield copy.path
    finally:
        os.close(copy.handle)  # until here it is not evicted
