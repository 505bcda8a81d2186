"""Open shards by number: as a local file, as a cached copy, or by range.

A shard gets its index from a dataset index, from the cache folder, or by a scan of its tar; reading
by range requires one that exists. Every index is checked against its tar. `wids.shards.shard_facts`
compares an open shard with its spec.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from wids.errors import FetchError, MismatchError, NotFoundError, WidsError, local_error
from wids.shards.indexes import index_file
from wids.shards.indexes.index_file import index_paths, load_index, store_index
from wids.shards.read_options import ReadOptions
from wids.shards.shard_facts import BrokenShards, ShardFacts, remote_file
from wids.shards.sidecars import DatasetIndexes
from wids.shards.specs.model import DatasetSpec, ShardSpec
from wids.shards.specs.shard_columns import Numbers, columns_of
from wids.shards.tars.index import ShardIndex, TarIdentity, index_tar
from wids.shards.tars.raw_samples import PooledShard
from wids.shards.tars.shard import Shard
from wids.storage import locks, stages
from wids.storage.arrays import IntArray
from wids.storage.cache.cache_names import is_settled
from wids.storage.cache.store import BackgroundFetch, Cache
from wids.storage.transport import urls

if TYPE_CHECKING:
    from wids.shards.copied_shards import CopiedShards
    from wids.shards.remote_shard import RemoteShard


class LocalShards:
    """The shards that are files on this machine.

    Args:
        facts: The shards.
    """

    def __init__(self, facts: ShardFacts) -> None:
        self._facts = facts
        self._paths: dict[int, str | None] = {}

    def path(self, number: int) -> str | None:
        """Return the path of a shard whose URL is local, possibly after rewriting, or None."""
        try:
            return self._paths[number]
        except KeyError:
            path = urls.local_place(self._facts.shards[number].url)
            if path is not None:
                # `localname` may return a cache path, as for remote shards; no local one is there.
                named = self._facts.store.named_path(self._facts.shards[number].url)
                path = named if named is not None and os.path.exists(named) else path
            self._paths[number] = path  # shards are opened often
            return path

    def open(self, number: int, path: str) -> Shard:
        """Map the file of a shard."""
        facts = self._facts
        try:
            shard = facts.open_file(path, partial(self._index, number))
        except NotFoundError as error:
            named = facts.store.named_path(facts.shards[number].url)
            if named is not None:
                error.args = (f"{error}; localname returned {named}, where no file is either",)
            raise
        stated = facts.shards[number].nbytes
        if stated is not None and shard.nbytes < stated:
            shard.close()
            raise MismatchError(
                f"{path}: expected {stated} bytes (filesize), found {shard.nbytes}; the file is "
                "incomplete, or the spec is of another version: fetch or write the shard again, or "
                "make the spec again with `wids create`"
            )
        return facts.checked(number, shard)

    def _index(self, number: int, path: str, data: mmap.mmap, identity: TarIdentity) -> ShardIndex:
        """Return the index of a file: from a dataset index, the cache folder, or a scan."""
        known = self.stored_index(number, path, identity)
        if known is not None:
            return known
        key_split = self._facts.key_split(number)
        built = index_tar(data, key_split, path, repeated=self._facts.options.repeated)
        # If a younger file changes again, its modification time may stay the same.
        if not is_settled(identity.mtime_ns):
            return built
        folder = self._facts.store.folder
        return store_index(folder, index_paths(folder, path, key_split), built, identity)

    def stored_index(self, number: int, path: str, identity: TarIdentity) -> ShardIndex | None:
        """Return the index of a file from a dataset index or the cache folder, or None."""
        facts = self._facts
        key_split = facts.key_split(number)
        indexed = facts.dataset_indexes.index(number, identity.nbytes, key_split)
        if indexed is not None:
            return indexed[0]
        return load_index(index_paths(facts.store.folder, path, key_split), identity, key_split)


class ShardOpener:
    """Opens the shards of a spec by number.

    Can be pickled, and used by any number of threads and after a fork.

    Args:
        spec: The dataset.
        store: Copies of remote files.
        options: How to open shards.

    Attributes:
        counts: Number of samples in each shard: those of the spec, if it states all; else a list,
            None where it is not known yet. An opened shard must have this number.
        broken: The shards that cannot be opened.
        facts: These, and how the shards are opened.
        local: Those that are files on this machine.
    """

    def __init__(self, spec: DatasetSpec, store: Cache, options: ReadOptions) -> None:
        self.shards = columns_of(spec.shards)
        self.counts: list[int | None] | Numbers = self.shards.counts
        if self.shards.edges is None:
            self.counts = [shard.num_samples for shard in self.shards]
        self.broken = BrokenShards(self.shards)
        self.dataset_indexes = DatasetIndexes(spec, store)
        # Also those that may be remote after rewriting.
        are_remote = bool(os.environ.get("WDS_REWRITE")) or self.shards.has_remote
        if are_remote:
            locks.prepare()  # 10 ms, before a thread of this process may do it
        budget = None
        if options.access == "auto" and are_remote:
            from wids.shards.remote_shard import RangeBudget  # only for remote shards

            budget = RangeBudget(len(self.shards))
        self.facts = ShardFacts(
            self.shards, self.counts, self.dataset_indexes, store, options, self.broken, budget
        )
        self.local = LocalShards(self.facts)

    def __call__(
        self, number: int, *, local: bool = True, make_room: Callable[[], None] = lambda: None
    ) -> PooledShard:
        """Open a shard and compare it with its spec; see `shard_pool.OpenShard`.

        Raises:
            FetchError: The shard cannot be opened or fetched.
            ShardFormatError: The file is not a complete, plain tar.
            MismatchError: The shard is not what the spec says.
        """
        with self.broken.watch(number), stages.nested(stages.OPEN):
            return self._opened(number, local, make_room)

    def _opened(self, number: int, local: bool, make_room: Callable[[], None]) -> PooledShard:
        path = self.local.path(number)
        if path is not None:
            return self.local.open(number, path)
        if not local:
            shard = self._open_range(number)
            if shard is not None:
                return shard
        copy = self._copies().open(number, make_room)
        if self.facts.budget is not None:
            self.facts.budget.note_fetched(number)
        return copy

    def _range_index(self, number: int) -> tuple[ShardIndex, int] | None:
        """Return the index of a shard and the length of its tar, without fetching the tar.

        From a dataset index, or from the cache, where an earlier copy left it. None if neither has
        it.
        """
        facts = self.facts
        shard_spec, key_split = facts.shards[number], facts.key_split(number)
        indexed = facts.dataset_indexes.index(number, shard_spec.nbytes, key_split)
        if indexed is not None:
            return indexed
        left = index_file.load_recorded(facts.store.index_path(remote_file(shard_spec)))
        is_same_rule = left is not None and left[0].key_split == key_split
        if left is not None and is_same_rule and shard_spec.nbytes in (None, left[1].nbytes):
            return left[0], left[1].nbytes
        return None

    def _open_range(self, number: int) -> RemoteShard | None:
        """Return a shard to be read by range; None if it has a copy, or has to be fetched.

        Raises:
            FetchError: No index is known, and the shard must not be fetched.
        """
        facts, options = self.facts, self.facts.options
        url = facts.shards[number].url
        if not self.may_read_ranges(number):
            return None
        index_and_nbytes = self._range_index(number)
        if index_and_nbytes is None:
            if options.access == "range":
                raise FetchError(
                    f"{urls.redact(url)}: expected an index to read it by range, found none; make "
                    'one for the dataset with `wids create`, or use access="download"'
                )
            return None
        index, nbytes = index_and_nbytes
        if not facts.takes(number, nbytes, 0):  # the spec may not state its length
            return None
        from wids.shards.remote_shard import RemoteShard  # often only the index is needed

        if options.verify == "never":
            index = index.without_payload_crcs()
        range_reader = facts.store.fetcher.range_reader
        read_part = range_reader(url, nbytes)
        # Mirrors state other versions of equal bytes, so checksums decide where they exist.
        is_compared = len(index.payload_crcs) > 0
        shard = RemoteShard(
            urls.redact(url),
            index,
            nbytes,
            range_reader(url, nbytes, is_compared=True) if is_compared else read_part,
            read_part=read_part,
            fields=options.fields,
            raw=options.raw,
            takes=partial(facts.takes, number, nbytes),
            has_copy=partial(self.is_local, number),
            version=lambda: read_part.version,
            watch=partial(facts.broken.watch, number),
        )
        return facts.checked(number, shard)

    def _copies(self) -> CopiedShards:
        # Imported only for remote shards: with its own imports it takes 2 ms.
        from wids.shards.copied_shards import CopiedShards

        return CopiedShards(self.facts)

    def is_local(self, number: int) -> bool:
        """Whether a shard can be opened without fetching it."""
        if self.local.path(number) is not None:
            return True
        return self.facts.store.find(remote_file(self.shards[number])) is not None

    def may_read_ranges(self, number: int) -> bool:
        """Whether a shard has no copy and may be read by range, as far as is known without asking.

        False for a shard that was announced, unless batches may read it while it is fetched, and
        for one of which enough was read.
        """
        if self.is_local(number):
            return False
        facts, shard_spec = self.facts, self.shards[number]
        if facts.options.access == "range":
            return True
        # Without ranges, each attempt would start the transfer of the whole file.
        if not facts.store.fetcher.sends_parts(shard_spec.url):
            return False
        return facts.takes(number, shard_spec.nbytes or sys.maxsize, 0)

    def has_index(self, number: int) -> bool:
        """Whether the index of a shard is available without fetching the shard."""
        return self.is_local(number) or self._range_index(number) is not None

    def is_in_dataset_index(self, number: int) -> bool:
        """Whether the dataset index has the keys of this shard, and states its length.

        False if names are split by another rule than the spec's, with which the dataset index was
        made.
        """
        wanted = self.facts.options.key_split
        if wanted not in (None, self.shards[number].key_split or "first"):
            return False
        return self.dataset_indexes.has_keys_of(number) and self.has_indexed_length(number)

    def has_indexed_length(self, number: int) -> bool:
        """Whether a shard still has the length that the dataset index states."""
        path = self.local.path(number)
        try:
            nbytes = self.shards[number].nbytes if path is None else os.path.getsize(path)
        except OSError:
            return False
        return self.dataset_indexes.has_length(number, nbytes)

    def identity(self, number: int) -> tuple[Any, ...] | None:
        """Return facts that change when a shard changes, without reading its index, or None.

        Raises:
            FetchError: A local shard cannot be found.
        """
        shard_spec, path = self.shards[number], self.local.path(number)
        rule = self.facts.key_split(number)
        if path is not None:
            try:
                return path, rule, *TarIdentity.of_file(os.stat(path))
            except OSError as error:
                raise local_error(path, error) from error
        if shard_spec.md5sum or shard_spec.sha256:
            return rule, shard_spec.nbytes, shard_spec.md5sum, shard_spec.sha256
        if self.is_in_dataset_index(number):
            return rule, shard_spec.url, shard_spec.nbytes, self.dataset_indexes.digest(number)
        return None

    @property
    def edges(self) -> IntArray:
        """Where shards begin, and the end of the last one; only after all have been counted.

        A broken one, which was not counted, has no samples.
        """
        edges = self.shards.edges
        if edges is None or isinstance(self.counts, list):
            counts = [count or 0 for count in self.counts]
            edges = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        return edges

    def take_stated(self, shards: Iterable[ShardSpec]) -> None:
        """Take the indexes of the same shards that lie beside them."""
        self.shards = columns_of(shards)
        self.facts = replace(self.facts, shards=self.shards)
        self.local = LocalShards(self.facts)

    def known_index(self, number: int) -> ShardIndex | None:
        """Return the index of a shard without opening the shard; None if it has to be opened."""
        path, found = self.local.path(number), None
        if path is not None:
            with suppress(OSError):
                return self.local.stored_index(number, path, TarIdentity.of_file(os.stat(path)))
        elif not self.is_local(number):
            found = self._range_index(number)
        return None if found is None else found[0]

    def fetch(self, number: int, background: BackgroundFetch) -> None:
        """Fetch a remote shard before it is opened; see `Cache.fetch`."""
        if self.local.path(number) is None:
            with self.broken.watch(number):
                self._copies().fetch(number, background)

    def discard_copy(self, number: int, shard: Shard, error: WidsError) -> bool:
        """Discard the copy that a shard was opened from, if it can be fetched again.

        Returns:
            Whether to open the shard again: only once for each opener, since the spec may be wrong
            instead of the copy; or if another thread or process has discarded the copy.
        """
        return self.local.path(number) is None and self._copies().discard(
            number, shard.path, shard.identity.inode, error
        )

    def with_options(self, options: ReadOptions) -> ShardOpener:
        """Return an opener of the same shards with other options; indexes and counts are shared."""
        opener = copy(self)  # shares the list of counts, so that new counts reach both
        # Such an opener never fetches, so it has no budget.
        opener.facts = replace(opener.facts, options=options, budget=None)
        opener.local = LocalShards(opener.facts)
        return opener

    def __getstate__(self) -> dict[str, Any]:
        # Another process may have another cache folder, with damaged copies of its own.
        facts = replace(self.facts, refetched=set())
        return {**self.__dict__, "facts": facts, "local": LocalShards(facts)}
