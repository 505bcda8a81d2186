"""Open shards by number: as a local file, as a cached copy, or by range.

Each way of opening is a module, and gets the index from a pack, from the cache folder, or by
scanning the tar. Every index is checked against its tar; only reading by range requires an existing
one. An open shard is compared with its spec.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from wids.errors import WidsError, local_error
from wids.shards.broken_shards import BrokenShards
from wids.shards.local_shards import LocalShards
from wids.shards.packs import Packs
from wids.shards.read_options import ReadOptions
from wids.shards.shard_facts import ShardFacts, remote_file
from wids.shards.specs.model import DatasetSpec
from wids.shards.specs.shard_sequences import Shards, counts_of, has_remote
from wids.shards.tars.index import ShardIndex, TarIdentity
from wids.shards.tars.readable_shard import PooledShard
from wids.shards.tars.shard import Shard
from wids.storage import locks, stages
from wids.storage.cache.store import BackgroundFetch, Cache
from wids.storage.transport import shared_refusals

if TYPE_CHECKING:
    from wids.shards.copied_shards import CopiedShards
    from wids.shards.shards_by_range import ShardsByRange


class ShardOpener:
    """Opens the shards of a spec by number.

    Can be pickled, and used by any number of threads and after a fork.

    Args:
        spec: The dataset.
        store: Copies of remote files.
        options: How to open shards.

    Attributes:
        counts: Number of samples in each shard, None where it is not known yet. An opened shard
            must have this number, whether it comes from the spec or from counting.
        broken: The shards that cannot be opened.
        facts: These, and how the shards are opened.
        local: Those that are files on this machine.
    """

    def __init__(self, spec: DatasetSpec, store: Cache, options: ReadOptions) -> None:
        self.shards = spec.shards
        self.counts = counts_of(spec.shards)
        self.broken = BrokenShards(spec.shards)
        self.packs = Packs(spec, store)
        # Before workers are started, so that they share both.
        # Also those that may be remote after rewriting.
        are_remote = bool(os.environ.get("WDS_REWRITE")) or has_remote(self.shards)
        if are_remote:
            shared_refusals.share()
            locks.prepare()  # 10 ms, before a thread of this process may do it
        budget = None
        if options.access == "auto" and are_remote:
            from wids.shards.range_budget import RangeBudget  # only for remote shards

            budget = RangeBudget(len(self.shards))
        self.facts = ShardFacts(
            self.shards, self.counts, self.packs, store, options, self.broken, budget
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
            shard = self._by_range().open(number, partial(self.is_local, number))
            if shard is not None:
                return shard
        copy = self._copies().open(number, make_room)
        if self.facts.budget is not None:
            self.facts.budget.note_fetched(number)
        return copy

    # Imported only for remote shards: these modules and their imports take 2 ms.

    def _copies(self) -> CopiedShards:
        from wids.shards.copied_shards import CopiedShards

        return CopiedShards(self.facts)

    def _by_range(self) -> ShardsByRange:
        from wids.shards.shards_by_range import ShardsByRange

        return ShardsByRange(self.facts)

    def is_local(self, number: int) -> bool:
        """Whether a shard can be opened without fetching it."""
        if self.local.path(number) is not None:
            return True
        return self.facts.store.find(remote_file(self.shards[number])) is not None

    def may_read_ranges(self, number: int) -> bool:
        """Whether a shard has no copy and may be read by range, as far as is known here."""
        return not self.is_local(number) and self._by_range().may_open(number)

    def has_index(self, number: int) -> bool:
        """Whether the index of a shard is available without fetching the shard."""
        return self.is_local(number) or self._by_range().index(number) is not None

    def is_packed(self, number: int) -> bool:
        """Whether the dataset's pack has the keys of this shard, and states its length.

        False if names are split by another rule than the spec's, with which the pack was made.
        """
        wanted = self.facts.options.key_split
        if wanted not in (None, self.shards[number].key_split or "first"):
            return False
        return self.packs.has_keys_of(number) and self.is_as_packed(number)

    def is_as_packed(self, number: int) -> bool:
        """Whether a shard still has the length that the dataset's pack states."""
        path = self.local.path(number)
        try:
            nbytes = self.shards[number].nbytes if path is None else os.path.getsize(path)
        except OSError:
            return False
        return self.packs.has_length(number, nbytes)

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
        if self.is_packed(number):
            return rule, shard_spec.url, shard_spec.nbytes, self.packs.digest(number)
        return None

    def take_stated(self, shards: Shards) -> None:
        """Take the indexes of the same shards that lie beside them."""
        self.shards = shards
        self.facts = replace(self.facts, shards=shards)
        self.local = LocalShards(self.facts)

    def known_index(self, number: int) -> ShardIndex | None:
        """Return the index of a shard without opening the shard; None if it has to be opened."""
        path, found = self.local.path(number), None
        if path is not None:
            with suppress(OSError):
                return self.local.stored_index(number, path, TarIdentity.of_file(os.stat(path)))
        elif not self.is_local(number):
            found = self._by_range().index(number)
        return None if found is None else found[0]

    def known_count(self, number: int) -> int | None:
        """Return the number of samples in `known_index`."""
        path = self.local.path(number)
        if path is None:
            index = self.known_index(number)
            return None if index is None else len(index)
        with suppress(OSError):
            return self.local.stored_count(number, path)
        return None

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
        """Return an opener of the same shards with other options; packs and counts are shared."""
        opener = copy(self)  # shares the list of counts, so that new counts reach both
        # Such an opener never fetches, so it has no budget.
        opener.facts = replace(opener.facts, options=options, budget=None)
        opener.local = LocalShards(opener.facts)
        return opener

    def __getstate__(self) -> dict[str, Any]:
        # Another process may have another cache folder, with damaged copies of its own.
        facts = replace(self.facts, refetched=set())
        return {**self.__dict__, "facts": facts, "local": LocalShards(facts)}
