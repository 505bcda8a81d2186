"""Find and open the packs that a spec names, before the shards are opened.

A pack holds the indexes of many shards. A spec can name a pack for the whole dataset, one for each
of its parts, and one for a single shard. A pack that is missing, damaged or outdated is ignored: an
index can always be built from its tar.
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
from typing import IO, Any, Final

from wids.errors import WidsError
from wids.shards.indexes.pack import MAGIC, Pack, RangePack, load_pack
from wids.shards.records import open_copy, versioned_file
from wids.shards.specs.model import DatasetSpec, PackedShards
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.samples import read_or_map
from wids.storage.cache import cache_names
from wids.storage.cache.cache_names import RemoteFile, save_quietly
from wids.storage.cache.eviction import Space, StorageError
from wids.storage.cache.leases import turn
from wids.storage.cache.store import Cache
from wids.storage.fetch import Fetcher, downloaded
from wids.storage.ranges import RangeError
from wids.storage.transport import urls
from wids.storage.transport.urls import rewritten

_logger = logging.getLogger(__name__)


_LARGE_PACK_NBYTES: Final = 16_000_000
"""Packs longer than this are read by range instead of being fetched whole."""


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


_MAX_SHARED: Final = 64
"""Maximum number of packs of parts that stay mapped, and that are searched for a key."""

_MAX_OPENED: Final = 100_000
"""Most shards of a pack that is opened before it is needed: comparing its directory with its
checksum takes 50 ms for a million, and all of it is mapped, so that processes share it anyway."""


class Packs:
    """The packs of a dataset, opened when they are first needed.

    Safe to use from any number of threads and after a fork. A pickle has no contents of packs;
    another process opens them again.

    Args:
        spec: The dataset.
        store: Fetches remote packs.
    """

    def __init__(self, spec: DatasetSpec, store: Cache) -> None:
        self.shards = spec.shards
        self._store = store
        self._shared = spec.all_packs()
        self._starts = [shared.start for shared in self._shared]
        self._packs: dict[str, Pack | None] = {}
        for shared in self._shared[:_MAX_SHARED]:
            is_short = shared.stop - shared.start <= _MAX_OPENED
            if is_short and urls.is_local(rewritten(shared.url)):
                self._open(shared)  # now, so that processes forked later share the memory

    def index(
        self, number: int, tar_nbytes: int | None, key_split: KeySplit
    ) -> tuple[ShardIndex, int] | None:
        """Return the index of a shard and the length of its tar, both from the same pack.

        None if no pack has them for a tar of this length, or of any if ``tar_nbytes`` is None.
        """
        for pack, position in self._packs_of(number):
            nbytes = pack.tar_nbytes(position)
            if tar_nbytes in (None, nbytes):
                shard_index = pack.index(position, nbytes, key_split)
                if shard_index is not None:
                    return shard_index, nbytes
        return None

    def has_keys_of(self, number: int) -> bool:
        """Whether the pack of the dataset, or of its part, has a shard of this number and name."""
        pack, position = self._shared_pack(number)
        return pack is not None and any(pack.is_named(position, n) for n in self._names(number))

    def digest(self, number: int) -> tuple[int, int] | None:
        """Return the digest of the keys in the pack of a shard; None without a pack."""
        pack, _ = self._shared_pack(number)
        return None if pack is None else pack.digest

    def has_length(self, number: int, tar_nbytes: int | None) -> bool:
        """Whether the pack of a dataset states this length for a shard; None matches any."""
        pack, position = self._shared_pack(number)
        return pack is not None and tar_nbytes in (None, pack.tar_nbytes(position))

    def samples_with(self, key: str) -> list[tuple[int, int]] | None:
        """Return the samples that may have a key, each as shard number and index in the shard.

        Searches the packs of datasets as they were made; the spec may list only some of their
        shards, or replace them. None if a pack cannot be searched, or there are too many packs.
        """
        if len(self._shared) > _MAX_SHARED:  # each key would be looked up in all of them
            return None
        found: list[tuple[int, int]] = []
        for shared in self._shared:
            pack = self._open(shared)
            places = [] if pack is None else pack.samples_with(key)
            if places is None:
                return None
            numbered = ((shared.start + position, at) for position, at in places)
            found += [place for place in numbered if place[0] < shared.stop]
        return found

    def has_key(
        self, number: int, local_index: int, key: str, num_samples: int, key_split: KeySplit
    ) -> bool:
        """Whether a sample has a key, by a pack that states the same number of samples.

        Only for shards for which `has_keys_of` is true.
        """
        pack, position = self._shared_pack(number)
        return (
            pack is not None
            and position < len(pack)
            and int(pack.num_samples[position]) == num_samples
            and pack.has_key(position, local_index, key, key_split)
        )

    def release(self) -> None:
        """Release the memory of mapped packs that were read; see `LocalPack.release`."""
        from wids.shards.indexes.pack import LocalPack

        for pack in list(self._packs.values()):
            if isinstance(pack, LocalPack):
                pack.release()

    def _shared_pack(self, number: int) -> tuple[Pack | None, int]:
        """Return the pack of the dataset, or of its part, with a shard, and the position there."""
        at = bisect_right(self._starts, number) - 1
        if at < 0 or number >= self._shared[at].stop:
            return None, 0
        return self._open(self._shared[at]), number - self._starts[at]

    def _open(self, shared: PackedShards) -> Pack | None:
        return self._pack(shared.url, shared.stop - shared.start, is_shared=True)

    def _packs_of(self, number: int) -> Iterator[tuple[Pack, int]]:
        """Yield the packs that have a shard of this number and name, with its position there."""
        own_url = self.shards[number].index
        if not self._shared and own_url is None:
            return  # the common case, and shards are opened often
        names = self._names(number)
        pack, position = self._shared_pack(number)
        if pack is not None and any(pack.is_named(position, name) for name in names):
            yield pack, position
        own = None if own_url is None else self._pack(own_url, 1, is_shared=False)
        if own is not None and any(own.is_named(0, name) for name in names):
            yield own, 0

    def _names(self, number: int) -> tuple[str, str]:
        """Return the names that a shard may have in a pack."""
        name = os.path.basename(urls.path_of(self.shards[number].url))
        # A URL has %20 where the pack, made from a path, has a blank.
        return name, urls.unquoted(name)

    def _pack(self, url: str, num_shards: int, *, is_shared: bool) -> Pack | None:
        """Return a pack, which is opened or fetched at its first use; None if it is unusable."""
        if url in self._packs:
            return self._packs[url]

        pack = open_pack(self._store, url, num_shards)
        if pack is None:
            _logger.info("%s: no index that can be used", urls.redact(url))
        # A mapped pack holds a descriptor: affordable for a few packs, not for one per shard.
        if pack is None or not pack.is_mapped or (is_shared and self._num_mapped < _MAX_SHARED):
            self._packs[url] = pack
        return pack

    @property
    def _num_mapped(self) -> int:
        return sum(pack is not None and pack.is_mapped for pack in list(self._packs.values()))

    def __getstate__(self) -> dict[str, Any]:
        # The copy of a remote pack may be evicted before this is unpickled.
        local = {url: pack for url, pack in self._packs.items() if urls.is_local(url)}
        return {**self.__dict__, "_packs": local}
