"""Find the index of a shard, or a key, in the dataset indexes that a spec names.

A dataset index holds the indexes of many shards. A spec can name a dataset index for the whole
dataset, one for each of its parts, and one for a single shard. Those of a dataset and of its parts
are opened before the shards. A dataset index that is missing, damaged or outdated is ignored: an
index can be built from its tar, except where shards are only read by range.
"""

from __future__ import annotations

import logging
import os
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from io import FileIO
from threading import Lock
from typing import IO, Any, Final

from wids.errors import WidsError
from wids.shards.indexes.dataset_index import (
    MAGIC,
    DatasetIndex,
    LocalDatasetIndex,
    RangeDatasetIndex,
    load_dataset_index,
)
from wids.shards.sidecars import open_copy, versioned_file
from wids.shards.specs.model import DatasetSpec, IndexedShards
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.index import ShardIndex
from wids.storage.cache import cache_names
from wids.storage.cache.cache_names import RemoteFile, save_quietly
from wids.storage.cache.eviction import Space, StorageError
from wids.storage.cache.leases import turn
from wids.storage.cache.store import Cache
from wids.storage.fetch import downloaded
from wids.storage.files import read_or_map
from wids.storage.ranges import WholeFileError
from wids.storage.transport import urls

_logger = logging.getLogger(__name__)

_LARGE_INDEX_NBYTES: Final = 16_000_000
"""Dataset indexes longer than this are read by range instead of being fetched whole."""


def open_dataset_index(store: Cache, url: str, num_shards: int) -> DatasetIndex | None:
    """Return the dataset index at a URL; log the reason and return None if it cannot be used.

    Args:
        store: Fetches and keeps remote dataset indexes.
        url: Where the dataset index is.
        num_shards: Number of shards that the dataset index should have.
    """
    local_path = urls.local_place(url)
    if local_path is not None:
        return load_dataset_index(local_path, None, num_shards)
    fetcher = store.fetcher
    try:
        remote_file, nbytes = versioned_file(fetcher, url)
        is_large = nbytes is not None and nbytes > _LARGE_INDEX_NBYTES
        if nbytes is not None and is_large and not store.find(remote_file):
            with suppress(WholeFileError):  # a server without ranges: fetch the whole dataset index
                read = fetcher.range_reader(url, nbytes)
                compared = fetcher.range_reader(url, nbytes, is_compared=True)
                keep = partial(_kept, store, remote_file)
                return RangeDatasetIndex(compared, nbytes, num_shards, keep, read)
        try:
            return _load_stored(store, remote_file, num_shards)
        except StorageError as error:
            _logger.warning("%s; using it without storing it", str(error))
            space = Space(tempfile.gettempdir(), None, None, lambda *_: None)
            with downloaded(fetcher, url, space.cover) as path:  # the map outlives the file's name
                return load_dataset_index(urls.redact(url), FileIO(path), num_shards)
    except (WidsError, OSError) as error:
        _logger.warning("%s: %s; continuing without it", urls.redact(url), str(error))
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
    """Return the directory of an index, which one process of a machine reads, and all map."""
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


def _load_stored(store: Cache, remote_file: RemoteFile, num_shards: int) -> DatasetIndex | None:
    """Load the copy of a dataset index, and fetch it again if the copy was damaged in the cache.

    Raises:
        OSError: The copy cannot be read.
        WidsError: The dataset index cannot be fetched or stored.
        ValueError: It is not a dataset index.
    """
    found = None
    for is_suspect in (False, True):
        copy = open_copy(store, remote_file, _check_kind, is_suspect=is_suspect)
        # The map made from the file keeps the copy from being evicted.
        found = load_dataset_index(copy.path, copy.file, num_shards)
        if found is not None or copy.was_fetched:
            break
    return found


def _check_kind(file: IO[bytes]) -> None:
    """Raise `ValueError` for a file of another kind, such as a page that a server sent instead."""
    file.seek(0)
    if file.read(len(MAGIC)) != MAGIC:
        raise ValueError("expected a dataset index, found something else; it is not stored")


_MAX_SHARED: Final = 64
"""Maximum number of dataset indexes of parts that stay mapped, and that are searched for a key."""

_MAX_OPENED: Final = 100_000
"""Most shards of an index that is opened before it is needed: comparing its directory with its
checksum takes 50 ms for a million, and all of it is mapped, so that processes share it anyway."""


class DatasetIndexes:
    """The dataset indexes that a spec names: local ones are opened at once, others when needed.

    Safe to use from any number of threads and after a fork. A pickle has no contents of dataset
    indexes; another process opens them again.

    Args:
        spec: The dataset.
        store: Fetches remote dataset indexes.
    """

    def __init__(self, spec: DatasetSpec, store: Cache) -> None:
        self.shards = spec.shards
        self._store = store
        self._shared = spec.all_dataset_indexes()
        self._starts = [shared.start for shared in self._shared]
        self._opened: dict[str, DatasetIndex | None] = {}
        self._opening: dict[tuple[int, str], Lock] = {}
        for shared in self._shared[:_MAX_SHARED]:
            is_short = shared.stop - shared.start <= _MAX_OPENED
            if is_short and urls.local_place(shared.url) is not None:
                self._open(shared)  # now, so that processes forked later share the memory

    def index(
        self, number: int, tar_nbytes: int | None, key_split: KeySplit
    ) -> tuple[ShardIndex, int] | None:
        """Return the index of a shard and the length of its tar, both from the same dataset index.

        None if no dataset index has them for a tar of this length, or of any if ``tar_nbytes`` is
        None.
        """
        for indexes, entry in self._indexes_of(number):
            nbytes = indexes.tar_nbytes(entry)
            if tar_nbytes in (None, nbytes):
                shard_index = indexes.index(entry, nbytes, key_split)
                if shard_index is not None:
                    return shard_index, nbytes
        return None

    def has_keys_of(self, number: int) -> bool:
        """Whether the dataset index, or that of a part, has a shard of this number and name."""
        indexes, entry = self._shared_index(number)
        return indexes is not None and any(indexes.is_named(entry, n) for n in self._names(number))

    def digest(self, number: int) -> tuple[int, int] | None:
        """Return the digest of the keys in the dataset index of a shard; None without one."""
        indexes, _ = self._shared_index(number)
        return None if indexes is None else indexes.digest

    def has_length(self, number: int, tar_nbytes: int | None) -> bool:
        """Whether the dataset index states this length for a shard; None matches any."""
        indexes, entry = self._shared_index(number)
        return indexes is not None and tar_nbytes in (None, indexes.tar_nbytes(entry))

    def samples_with(self, key: str) -> list[tuple[int, int]] | None:
        """Return the samples that may have a key, each as shard number and index in the shard.

        Searches dataset indexes as they were made; the spec may list only some of their
        shards, or replace them. None if a dataset index cannot be searched, or there are too many
        dataset indexes.
        """
        if len(self._shared) > _MAX_SHARED:  # each key would be looked up in all of them
            return None
        all_places: list[tuple[int, int]] = []
        for shared in self._shared:
            indexes = self._open(shared)
            places = [] if indexes is None else indexes.samples_with(key)
            if places is None:
                return None
            numbered = ((shared.start + entry, at) for entry, at in places)
            all_places += [place for place in numbered if place[0] < shared.stop]
        return all_places

    def has_key(
        self, number: int, local_index: int, key: str, num_samples: int, key_split: KeySplit
    ) -> bool:
        """Whether a sample has a key, by a dataset index that states the same number of samples.

        Only for shards for which `has_keys_of` is true.
        """
        indexes, entry = self._shared_index(number)
        return (
            indexes is not None
            and entry < len(indexes)
            and int(indexes.num_samples[entry]) == num_samples
            and indexes.has_key(entry, local_index, key, key_split)
        )

    def release(self) -> None:
        """Release the memory of mapped dataset indexes; see `LocalDatasetIndex.release`."""
        for indexes in list(self._opened.values()):
            if isinstance(indexes, LocalDatasetIndex):
                indexes.release()

    def _shared_index(self, number: int) -> tuple[DatasetIndex | None, int]:
        """Return the dataset index, or that of a part, with a shard, and the entry there."""
        at = bisect_right(self._starts, number) - 1
        if at < 0 or number >= self._shared[at].stop:
            return None, 0
        return self._open(self._shared[at]), number - self._starts[at]

    def _open(self, shards: IndexedShards, *, is_single: bool = False) -> DatasetIndex | None:
        """Return a dataset index, opened or fetched at its first use; None if it is unusable.

        Args:
            shards: Where it is, and its shards.
            is_single: Whether the spec names it for a single shard.
        """
        url = shards.url
        if url in self._opened:
            return self._opened[url]
        # So that its server is asked once, whatever the number of threads; of this process, since a
        # thread of its parent may have held the lock when it was forked.
        own_turn = os.getpid(), url
        with self._opening.setdefault(own_turn, Lock()):
            if url in self._opened:
                return self._opened[url]
            indexes = open_dataset_index(self._store, url, shards.stop - shards.start)
            if indexes is None:
                _logger.info("%s: no index that can be used", urls.redact(url))
            # A mapped dataset index holds a descriptor: affordable for a few dataset indexes, not
            # for one per shard.
            num_mapped = sum(p is not None and p.is_mapped for p in list(self._opened.values()))
            is_kept = num_mapped < _MAX_SHARED and not is_single
            if indexes is None or not indexes.is_mapped or is_kept:
                self._opened[url] = indexes
            self._opening.pop(own_turn, None)
            return indexes

    def _indexes_of(self, number: int) -> Iterator[tuple[DatasetIndex, int]]:
        """Yield the dataset indexes with a shard of this number and name, and where it is."""
        own_url = self.shards[number].index
        if not self._shared and own_url is None:
            return  # the common case, and shards are opened often
        names = self._names(number)
        indexes, entry = self._shared_index(number)
        if indexes is not None and any(indexes.is_named(entry, name) for name in names):
            yield indexes, entry
        if own_url is None:
            return
        own = self._open(IndexedShards(own_url, number, number + 1), is_single=True)
        if own is not None and any(own.is_named(0, name) for name in names):
            yield own, 0

    def _names(self, number: int) -> tuple[str, str]:
        """Return the names that a shard may have in a dataset index."""
        name = os.path.basename(urls.path_of(self.shards[number].url))
        # A URL has %20 where the dataset index, made from a path, has a blank.
        return name, urls.unquoted(name)

    def __getstate__(self) -> dict[str, Any]:
        # The copy of a remote dataset index may be evicted before this is unpickled.
        local = {url: indexes for url, indexes in self._opened.items() if urls.is_local(url)}
        return {**self.__dict__, "_opened": local, "_opening": {}}
