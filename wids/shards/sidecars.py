"""Open the files beside shards: dataset indexes, tables and joined files.

Only their server knows their versions: a remote file is stored in the cache, and fetched again when
another version was published. No spec states their digests, so a record is stored beside each copy,
as an index is beside the copy of a shard; `open_copy` compares the copy with it.

A dataset index holds the indexes of many shards. A spec can name a dataset index for the whole
dataset, one for each of its parts, and one for a single shard. `DatasetIndexes` opens them before
the shards. A dataset index that is missing, damaged or outdated is ignored: an index can always be
built from its tar.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO
from threading import Lock
from typing import IO, Any, BinaryIO, Final, NamedTuple

from wids.errors import WidsError, local_error
from wids.shards.indexes.dataset_index import (
    MAGIC,
    DatasetIndex,
    LocalDatasetIndex,
    RangeDatasetIndex,
    load_dataset_index,
)
from wids.shards.specs.model import DatasetSpec, IndexedShards
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.index import ShardIndex
from wids.storage.cache import cache_names
from wids.storage.cache.cache_names import RemoteFile, save_quietly
from wids.storage.cache.eviction import Space, StorageError
from wids.storage.cache.leases import turn
from wids.storage.cache.store import Cache, CachedCopy
from wids.storage.fetch import Fetcher, downloaded
from wids.storage.files import file_digest, is_own_file, read_or_map
from wids.storage.ranges import WholeFileError
from wids.storage.transport import urls

_logger = logging.getLogger(__name__)


class CopyRecord(NamedTuple):
    """What is recorded about a copy.

    Attributes:
        url: A digest of the URL, which may contain secrets.
        nbytes: Length of the copy.
        mtime_ns: When it was last changed.
        sha256: Its digest, compared if the time differs.
    """

    url: str
    nbytes: int
    mtime_ns: int
    sha256: str

    @classmethod
    def of_file(cls, url: str, path: str, status: os.stat_result) -> CopyRecord:
        """Return the record of a file."""
        facts = (status.st_size, status.st_mtime_ns, file_digest(path, "sha256"))
        return cls(url_digest(url), *facts)

    @classmethod
    def load(cls, path: str) -> CopyRecord | None:
        """Return the record that this user stored at a path; None if there is none."""
        data = read_or_map(path, is_own=True)
        with suppress(ValueError, TypeError):
            return None if data is None else cls(**json.loads(bytes(data)))
        return None

    def dump(self) -> bytes:
        """Return the bytes to store."""
        return json.dumps(self._asdict()).encode("ascii")


def url_digest(url: str) -> str:
    """Return the digest that identifies a URL in records."""
    return hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest()


def open_copy(
    store: Cache,
    remote_file: RemoteFile,
    check: Callable[[IO[bytes]], None] = lambda _: None,
    *,
    is_suspect: bool = False,
) -> CachedCopy:
    """Open the copy of a file, and fetch it again if it was changed in the cache; see `Cache.open`.

    Args:
        store: The cache.
        remote_file: The file.
        check: Called with the complete file before it has its name; if it raises, nothing is
            stored.
        is_suspect: Whether to compare its bytes even if its time is the recorded one.

    Raises:
        FetchError: The file cannot be fetched or stored.
    """
    prepare = partial(_dumped_record, remote_file.url, check)
    copy = store.open(remote_file, prepare)
    if _is_as_recorded(copy, remote_file.url, is_suspect=is_suspect):
        return copy
    copy.file.close()
    _logger.warning(
        "%s: expected the bytes that were fetched, found others; it was changed in the cache; "
        "fetching it again",
        copy.path,
    )
    store.discard(remote_file)
    return store.open(remote_file, prepare)


def _is_as_recorded(copy: CachedCopy, url: str, *, is_suspect: bool) -> bool:
    """Whether a copy has the recorded bytes; if only its time differs, record the new time.

    Args:
        copy: The copy; it is closed after an error.
        url: Its URL.
        is_suspect: As for `open_copy`.
    """
    try:
        status = os.fstat(copy.file.fileno())
        # Users who share a folder trust only their own records (SEC-41).
        if not (copy.is_own and is_own_file(status)):
            return True
        recorded = CopyRecord.load(copy.index_path)
        if recorded is not None and not is_suspect:
            state = (recorded.nbytes, recorded.mtime_ns)
            if state == (status.st_size, status.st_mtime_ns):
                return True
        found = CopyRecord.of_file(url, copy.path, status)
        if recorded is not None and found.sha256 != recorded.sha256:
            return False
        if found != recorded:
            save_quietly(copy.index_path, found.dump())
    except BaseException:
        copy.file.close()
        raise
    return True


def _dumped_record(url: str, check: Callable[[IO[bytes]], None], file: IO[bytes]) -> bytes:
    check(file)
    return CopyRecord.of_file(url, file.name, os.fstat(file.fileno())).dump()


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
    local_path = urls.local_place(url)
    if local_path is not None:
        yield local_path
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
    if urls.local_place(url) is not None:
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
    copy = open_copy(store, remote_file, _check_kind)
    # The map made from the file keeps the copy from being evicted.
    dataset_index = load_dataset_index(copy.path, copy.file, num_shards)
    if dataset_index is not None or copy.was_fetched:
        return dataset_index
    copy = open_copy(store, remote_file, _check_kind, is_suspect=True)
    return load_dataset_index(copy.path, copy.file, num_shards)


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
    """The dataset indexes that a spec names, opened when they are first needed.

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
        for indexes, position in self._indexes_of(number):
            nbytes = indexes.tar_nbytes(position)
            if tar_nbytes in (None, nbytes):
                shard_index = indexes.index(position, nbytes, key_split)
                if shard_index is not None:
                    return shard_index, nbytes
        return None

    def has_keys_of(self, number: int) -> bool:
        """Whether the dataset index, or that of a part, has a shard of this number and name."""
        indexes, position = self._shared_index(number)
        return indexes is not None and any(
            indexes.is_named(position, n) for n in self._names(number)
        )

    def digest(self, number: int) -> tuple[int, int] | None:
        """Return the digest of the keys in the dataset index of a shard; None without one."""
        indexes, _ = self._shared_index(number)
        return None if indexes is None else indexes.digest

    def has_length(self, number: int, tar_nbytes: int | None) -> bool:
        """Whether the dataset index states this length for a shard; None matches any."""
        indexes, position = self._shared_index(number)
        return indexes is not None and tar_nbytes in (None, indexes.tar_nbytes(position))

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
            numbered = ((shared.start + position, at) for position, at in places)
            all_places += [place for place in numbered if place[0] < shared.stop]
        return all_places

    def has_key(
        self, number: int, local_index: int, key: str, num_samples: int, key_split: KeySplit
    ) -> bool:
        """Whether a sample has a key, by a dataset index that states the same number of samples.

        Only for shards for which `has_keys_of` is true.
        """
        indexes, position = self._shared_index(number)
        return (
            indexes is not None
            and position < len(indexes)
            and int(indexes.num_samples[position]) == num_samples
            and indexes.has_key(position, local_index, key, key_split)
        )

    def release(self) -> None:
        """Release the memory of mapped dataset indexes; see `LocalDatasetIndex.release`."""
        for indexes in list(self._opened.values()):
            if isinstance(indexes, LocalDatasetIndex):
                indexes.release()

    def _shared_index(self, number: int) -> tuple[DatasetIndex | None, int]:
        """Return the dataset index, or that of a part, with a shard, and the position there."""
        at = bisect_right(self._starts, number) - 1
        if at < 0 or number >= self._shared[at].stop:
            return None, 0
        return self._open(self._shared[at]), number - self._starts[at]

    def _open(self, shared: IndexedShards) -> DatasetIndex | None:
        if shared.url in self._opened:
            return self._opened[shared.url]
        # So that its server is asked once, whatever the number of threads; of this process, since a
        # thread of its parent may have held the lock when it was forked.
        with self._opening.setdefault((os.getpid(), shared.url), Lock()):
            return self._indexes(shared.url, shared.stop - shared.start, is_shared=True)

    def _indexes_of(self, number: int) -> Iterator[tuple[DatasetIndex, int]]:
        """Yield the dataset indexes with a shard of this number and name, and where it is."""
        own_url = self.shards[number].index
        if not self._shared and own_url is None:
            return  # the common case, and shards are opened often
        names = self._names(number)
        indexes, position = self._shared_index(number)
        if indexes is not None and any(indexes.is_named(position, name) for name in names):
            yield indexes, position
        own = None if own_url is None else self._indexes(own_url, 1, is_shared=False)
        if own is not None and any(own.is_named(0, name) for name in names):
            yield own, 0

    def _names(self, number: int) -> tuple[str, str]:
        """Return the names that a shard may have in a dataset index."""
        name = os.path.basename(urls.path_of(self.shards[number].url))
        # A URL has %20 where the dataset index, made from a path, has a blank.
        return name, urls.unquoted(name)

    def _indexes(self, url: str, num_shards: int, *, is_shared: bool) -> DatasetIndex | None:
        """Return a dataset index, opened or fetched at its first use; None if it is unusable."""
        if url in self._opened:
            return self._opened[url]

        indexes = open_dataset_index(self._store, url, num_shards)
        if indexes is None:
            _logger.info("%s: no index that can be used", urls.redact(url))
        # A mapped dataset index holds a descriptor: affordable for a few dataset indexes, not for
        # one per shard.
        num_mapped = sum(p is not None and p.is_mapped for p in list(self._opened.values()))
        if indexes is None or not indexes.is_mapped or (is_shared and num_mapped < _MAX_SHARED):
            self._opened[url] = indexes
        return indexes

    def __getstate__(self) -> dict[str, Any]:
        # The copy of a remote dataset index may be evicted before this is unpickled.
        local = {url: indexes for url, indexes in self._opened.items() if urls.is_local(url)}
        return {**self.__dict__, "_opened": local, "_opening": {}}
