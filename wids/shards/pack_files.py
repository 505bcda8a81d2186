"""Open the pack at a URL: as a local file, as a copy in the cache, or by range."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import FileIO
from typing import IO, Final

from wids.errors import WidsError
from wids.shards.copy_records import open_copy
from wids.shards.indexes.pack import MAGIC, Pack, load_pack
from wids.shards.indexes.range_pack import RangePack
from wids.shards.side_files import versioned_file
from wids.shards.tars.mapped_file import read_or_map
from wids.storage.cache import cache_names
from wids.storage.cache.cache_names import RemoteFile
from wids.storage.cache.small_files import save_quietly
from wids.storage.cache.space import Space, StorageError
from wids.storage.cache.store import Cache
from wids.storage.cache.turns import turn
from wids.storage.fetch import Fetcher, downloaded
from wids.storage.range_reader import RangeError
from wids.storage.transport import urls
from wids.storage.transport.url_rewrite import rewritten

_LARGE_PACK_NBYTES: Final = 16_000_000
"""Packs longer than this are read by range instead of being fetched whole."""

_logger = logging.getLogger(__name__)


def open_pack(store: Cache, url: str, num_shards: int) -> Pack | None:
    """Return the pack at a URL; log the reason and return None if it cannot be used.

    Args:
        store: Fetches and keeps remote packs.
        url: Where the pack is.
        num_shards: Number of shards that the pack should have.
    """
    place = rewritten(url)
    if urls.is_local(place):
        return load_pack(urls.local_path(place), None, num_shards)
    fetcher = store.fetcher
    try:
        remote_file, nbytes = versioned_file(fetcher, url)
        is_large = nbytes is not None and nbytes > _LARGE_PACK_NBYTES
        if nbytes is not None and is_large and not store.find(remote_file):
            with suppress(RangeError):  # a server without ranges: fetch the whole pack
                read_range = fetcher.range_reader(url, nbytes)
                return RangePack(read_range, nbytes, num_shards, partial(_kept, store, remote_file))
        try:
            return _load_stored(store, remote_file, num_shards)
        except StorageError as error:
            _logger.warning("%s; using it without storing it", str(error))
            return _load_unstored(fetcher, url, num_shards)
    except (WidsError, OSError) as error:
        _logger.warning("%s: %s; going on without it", urls.redact(url), str(error))
        return None
    except ValueError as error:  # readable, but damaged or of another version
        _logger.info("%s: %s", urls.redact(url), str(error))
        return None


def _kept(
    store: Cache,
    remote_file: RemoteFile,
    read: Callable[[], bytes],
    check: Callable[[bytes | memoryview], None],
) -> bytes | memoryview:
    """Return the directory of a pack, which one process of a machine reads, and all map."""
    path = cache_names.directory_path(store.folder, remote_file)

    def stored() -> memoryview | None:
        with suppress(ValueError):  # damaged: it is read again
            found = read_or_map(path, is_own=True)
            if found is not None:
                check(memoryview(found))
                return memoryview(found)
        return None

    directory: bytes | memoryview | None = stored()
    if directory is None:
        with turn(cache_names.lock_path(store.folder, path), path, waits=True):
            directory = stored()
            if directory is None:
                directory = read()
                save_quietly(path, directory)
    return directory


def _load_stored(store: Cache, remote_file: RemoteFile, num_shards: int) -> Pack | None:
    """Load the copy of a pack, and fetch it again if the copy was damaged in the cache.

    Raises:
        OSError: The copy cannot be read.
        WidsError: The pack cannot be fetched or stored.
        ValueError: It is not a pack.
    """
    copy = open_copy(store, remote_file, _check_kind)
    # The map made from the file keeps the copy from being evicted.
    pack = load_pack(copy.path, copy.file, num_shards)
    if pack is not None or copy.was_fetched:
        return pack
    copy = open_copy(store, remote_file, _check_kind, is_suspect=True)
    return load_pack(copy.path, copy.file, num_shards)


def _check_kind(file: IO[bytes]) -> None:
    """Raise `ValueError` for a file of another kind, such as a page that a server sent instead."""
    file.seek(0)
    if file.read(len(MAGIC)) != MAGIC:
        raise ValueError("expected a pack of indexes, found something else; it is not stored")


def _load_unstored(fetcher: Fetcher, url: str, num_shards: int) -> Pack | None:
    """Fetch a pack into a temporary file that lives only as long as its memory map.

    Raises:
        OSError: There is no space for the file.
        WidsError: The pack cannot be fetched.
    """
    space = Space(tempfile.gettempdir(), None, None, lambda _: None)
    with downloaded(fetcher, url, space.cover) as path:
        return load_pack(urls.redact(url), FileIO(path), num_shards)
