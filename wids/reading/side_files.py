"""The URL of a small file beside the shards → its bytes, stored in the cache if it is remote.

A remote file is fetched again when another version was published. Nothing here knows what is in it.
"""

from __future__ import annotations

import os
from typing import Final

from wids.cache.names import RemoteFile
from wids.cache.space import StorageError
from wids.cache.store import Cache
from wids.errors import local_error
from wids.transport import urls
from wids.transport.rewrite import rewritten

_MAX_NBYTES: Final = 1 << 30


def read_file(store: Cache, url: str) -> bytes:
    """Return the bytes of a file.

    Raises:
        NotFoundError: There is no such file.
        FetchError: It cannot be read.
    """
    place = rewritten(url)
    if urls.is_local(place):
        path = urls.local_path(place)
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            raise local_error(path, error) from error
    nbytes, tag = store.fetcher.head(url)
    version = "" if (nbytes, tag) == (None, None) else repr((nbytes, tag))
    try:
        copy = store.open(RemoteFile(url, version=version))
    except StorageError:  # it is small, and need not be stored
        return store.fetcher.read(url, _MAX_NBYTES)
    with os.fdopen(copy.handle, "rb") as file:
        return file.read()
