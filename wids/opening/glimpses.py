"""The shards of a spec, as far as they can be looked at without downloading one.

A shard whose index is known is opened as for a dataset; of another one there is a `Glimpse`. When
the index of such a shard is made, it is left in the cache folder, where datasets find it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final

from wids.cache.saving import save_quietly
from wids.cache.store import BackgroundFetch, Cache
from wids.errors import FetchError, MismatchError
from wids.fetching.range_reader import RangeError
from wids.indexes import index_file
from wids.opening.glimpse import Glimpse
from wids.opening.opener import ShardOpener, remote_file
from wids.opening.options import ReadOptions
from wids.specs.model import DatasetSpec
from wids.tars.index import ShardIndex, TarIdentity
from wids.tars.readable_shard import ReadableShard

_MAX_KEPT: Final = 8
"""Glimpses and indexes in memory, of the shards that were looked at last."""


class Glimpses:
    """What is known of the shards of a spec. Safe to use from any number of threads.

    Args:
        spec: The dataset.
        store: Copies of remote files, and indexes.
        options: How to read samples; whole shards are never downloaded to read them.

    Attributes:
        spec: As passed.
        cache_folder: The folder of copies and indexes.
    """

    def __init__(self, spec: DatasetSpec, store: Cache, options: ReadOptions) -> None:
        self.spec = spec
        self.cache_folder = store.folder
        self._store = store
        self._options = options
        self._opener = ShardOpener(spec, store, options.only(None))
        self._seen: dict[int, ShardIndex | Glimpse] = {}
        self._lock = threading.Lock()
        self._turns: dict[int, threading.Lock] = {}

    @property
    def has_all_indexes(self) -> bool:
        """Whether every shard can be read without downloading it, so that counts are known."""
        return all(
            self._opener.is_packed(number) or self._opener.has_index(number)
            for number in range(len(self.spec.shards))
        )

    def is_local(self, number: int) -> bool:
        """Whether a shard is on this machine."""
        return self._opener.is_local(number)

    def look(self, number: int) -> ShardIndex | Glimpse:
        """Return the index of a shard, or what was found of a shard that has none.

        Raises:
            FetchError: The shard cannot be read.
            MismatchError: It is not what the spec says.
        """
        # One request for the beginning of a shard, however many threads want it.
        with self._turn(number):
            known = self._seen.get(number)
            if known is None or isinstance(known, Glimpse):
                if self._opener.has_index(number):  # maybe by now
                    with self._opener(number, local=False) as shard:
                        known = shard.index
                elif known is None or known.is_stale:
                    known = self._new_glimpse(number)
            self._keep(number, known)
            return known

    def _new_glimpse(self, number: int) -> Glimpse:
        shard_spec = self.spec.shards[number]
        key_split = self._options.key_split or shard_spec.key_split or "first"
        glimpse = Glimpse(self._store.fetcher, shard_spec.url, key_split)
        stated_nbytes, nbytes = shard_spec.nbytes, glimpse.nbytes
        if stated_nbytes is not None and nbytes is not None and stated_nbytes != nbytes:
            raise MismatchError(
                f"{glimpse.name}: expected {stated_nbytes} bytes (filesize), found {nbytes}; file "
                "and spec are from different versions"
            )
        return glimpse

    def index(self, number: int) -> ShardIndex:
        """Return the index of a shard, of the samples that were found so far if it has none."""
        known = self.look(number)
        return known.index if isinstance(known, Glimpse) else known

    def reach(self, number: int, num_samples: int) -> None:
        """Read on in a shard without an index, until so many samples are known; see `Glimpse`."""
        self._current(number, lambda glimpse: glimpse.reach(num_samples))

    def open(self, number: int, fields: Collection[str] | None = None) -> ReadableShard:
        """Open a shard, to read the samples that are known by now."""
        known = self.look(number)
        if isinstance(known, Glimpse):
            return known.shard(fields=fields, raw=self._options.raw)
        return self._opener.with_options(self._options.only(fields))(number, local=False)

    def make_index(self, number: int) -> None:
        """Make the index of a shard that has none, and leave it in the cache folder.

        The headers are read by range; from a server that sends whole files only, the shard is
        downloaded into the cache.

        Raises:
            FetchError: The shard cannot be read or stored.
            ShardFormatError: It is not a complete, plain tar.
            MismatchError: It was replaced while it was read.
        """
        try:
            self._current(number, Glimpse.complete)
        except RangeError:
            self._opener.fetch(number, BackgroundFetch())
        known = self.look(number)
        if isinstance(known, Glimpse) and known.nbytes is not None and known.is_complete:
            blob = index_file.dump(known.index, TarIdentity(known.nbytes))
            path = self._store.index_path(remote_file(self.spec.shards[number]))
            if not save_quietly(path, blob):
                raise FetchError(
                    f"{self.cache_folder}: expected a cache folder to write the index to, found "
                    "one that cannot be written; pass cache_dir, or set WIDS_CACHE"
                )

    def _current(
        self, number: int, work: Callable[[Glimpse], None], *, is_again: bool = False
    ) -> None:
        """Do something with the glimpse of a shard; once more if the shard was replaced."""
        known = self.look(number)
        if not isinstance(known, Glimpse):
            return
        try:
            work(known)
        except MismatchError:
            if is_again:
                raise
            self._current(number, work, is_again=True)

    def _turn(self, number: int) -> threading.Lock:
        with self._lock:
            return self._turns.setdefault(number, threading.Lock())

    def _keep(self, number: int, known: ShardIndex | Glimpse) -> None:
        with self._lock:
            self._seen.pop(number, None)  # to become the last one
            self._seen[number] = known
            while len(self._seen) > _MAX_KEPT:
                del self._seen[next(iter(self._seen))]
