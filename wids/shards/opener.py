"""Open shards by number: as a local file, as a cached copy, or by range.

Each way of opening is a module, and gets the index from a pack, from the cache folder, or by
scanning the tar. Every index is checked against its tar; only reading by range requires an existing
one. An open shard is compared with its spec.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from wids.errors import WidsError, local_error
from wids.shards.broken_shards import BrokenShards
from wids.shards.local_shards import LocalShards
from wids.shards.packs import Packs
from wids.shards.range_budget import RangeBudget
from wids.shards.read_options import ReadOptions
from wids.shards.shard_facts import ShardFacts, remote_file
from wids.shards.specs.model import DatasetSpec, is_foreign
from wids.shards.specs.shard_sequences import Shards, counts_of, has_remote
from wids.shards.tars.index import ShardIndex, TarIdentity
from wids.shards.tars.member_names import KeySplit
from wids.shards.tars.readable_shard import PooledShard
from wids.shards.tars.shard import Shard
from wids.storage import stages
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
        decides = options.access == "auto" and are_remote
        budget = RangeBudget(len(self.shards)) if decides else None
        self._facts = ShardFacts(
            self.shards, self.counts, self.packs, store, options, self.broken, budget
        )
        self._local = LocalShards(self._facts)

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
        path = self._local.path(number)
        if path is not None:
            return self._local.open(number, path)
        if not local:
            shard = self._by_range().open(number, partial(self.is_local, number))
            if shard is not None:
                return shard
        copy = self._copies().open(number, make_room)
        if self._facts.budget is not None:
            self._facts.budget.note_fetched(number)
        return copy

    # Imported only for remote shards: these modules and their imports take 2 ms.

    def _copies(self) -> CopiedShards:
        from wids.shards.copied_shards import CopiedShards

        return CopiedShards(self._facts)

    def _by_range(self) -> ShardsByRange:
        from wids.shards.shards_by_range import ShardsByRange

        return ShardsByRange(self._facts)

    def local_path(self, number: int) -> str | None:
        """Return the path of a shard whose URL is local, possibly after rewriting, or None."""
        return self._local.path(number)

    def is_local(self, number: int) -> bool:
        """Whether a shard can be opened without fetching it."""
        if self._local.path(number) is not None:
            return True
        return self._facts.store.find(remote_file(self.shards[number])) is not None

    @property
    def must_read_ranges(self) -> bool:
        """Whether shards are never fetched."""
        return self._facts.options.access == "range"

    def may_read_ranges(self, number: int) -> bool:
        """Whether a shard has no copy and may be read by range, as far as is known here."""
        return not self.is_local(number) and self._by_range().may_open(number)

    def announce(self, numbers: Iterable[int]) -> None:
        """Note shards that a pass will read; see `ShardReader.announce`."""
        if self._facts.budget is not None:
            self._facts.budget.announce(numbers)

    def forget_announced(self) -> None:
        """End what was announced."""
        if self._facts.budget is not None:
            self._facts.budget.forget_announced()

    def let_ahead(self, nbytes: int) -> None:
        """Let batches read shards that are being fetched; see `RangeBudget.let_ahead`."""
        if self._facts.budget is not None:
            self._facts.budget.let_ahead(nbytes)

    def has_index(self, number: int) -> bool:
        """Whether the index of a shard is available without fetching the shard."""
        # That of another program is not read to learn this: it may have to be fetched.
        is_known = self.is_local(number) or is_foreign(self.shards[number].index)
        return is_known or self._by_range().index(number) is not None

    def is_packed(self, number: int) -> bool:
        """Whether the dataset's pack has the keys of this shard, and states its length.

        False if names are split by another rule than the spec's, with which the pack was made.
        """
        wanted = self._facts.options.key_split
        if wanted not in (None, self.shards[number].key_split or "first"):
            return False
        return self.packs.has_keys_of(number) and self.is_as_packed(number)

    def is_as_packed(self, number: int) -> bool:
        """Whether a shard still has the length that the dataset's pack states."""
        path = self._local.path(number)
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
        shard_spec, path = self.shards[number], self._local.path(number)
        rule = self._facts.key_split(number)
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

    def packs_key(self, number: int, local_index: int, key: str, num_samples: int) -> bool:
        """Whether a sample has a key, by a pack that states the same number of samples."""
        rule = self._facts.key_split(number)
        return self.packs.has_key(number, local_index, key, num_samples, rule)

    def known_count(self, number: int) -> int | None:
        """Return the number of samples of a shard from its index; None if it has to be opened."""
        path = self._local.path(number)
        known: ShardIndex | None = None
        if path is None:
            known = self.known_index(number)
        else:
            with suppress(OSError):
                identity = TarIdentity.of_file(os.stat(path))
                known = self._local.stored_index(number, path, identity)
        return None if known is None else len(known)

    def key_split(self, number: int) -> KeySplit:
        """Return the rule for a shard; see `ShardFacts.key_split`."""
        return self._facts.key_split(number)

    def take_stated(self, shards: Shards) -> None:
        """Take the indexes of the same shards that lie beside them."""
        self.shards = shards
        self._facts = replace(self._facts, shards=shards)
        self._local = LocalShards(self._facts)

    def known_index(self, number: int) -> ShardIndex | None:
        """Return the index of a shard without opening the shard; None if it has to be opened."""
        path = self._local.path(number)
        if path is not None:
            rule = self._facts.key_split(number)
            with suppress(OSError):
                return self.packs.index(number, os.path.getsize(path), rule)
        elif not self.is_local(number):
            index_and_nbytes = self._by_range().index(number)
            return None if index_and_nbytes is None else index_and_nbytes[0]
        return None

    def fetch(self, number: int, background: BackgroundFetch) -> None:
        """Fetch a remote shard before it is opened; see `Cache.fetch`."""
        if self._local.path(number) is None:
            with self.broken.watch(number):
                self._copies().fetch(number, background)

    def discard_copy(self, number: int, shard: Shard, error: WidsError) -> bool:
        """Discard the copy that a shard was opened from, if it can be fetched again.

        Returns:
            Whether to open the shard again: only once for each opener, since the spec may be wrong
            instead of the copy; or if another thread or process has discarded the copy.
        """
        return self._local.path(number) is None and self._copies().discard(
            number, shard.path, shard.identity.inode, error
        )

    def with_options(self, options: ReadOptions) -> ShardOpener:
        """Return an opener of the same shards with other options; packs and counts are shared."""
        opener = copy(self)  # shares the list of counts, so that new counts reach both
        # Such an opener never fetches, so it has no budget.
        opener._facts = replace(opener._facts, options=options, budget=None)  # noqa: SLF001
        opener._local = LocalShards(opener._facts)  # noqa: SLF001
        return opener

    def __getstate__(self) -> dict[str, Any]:
        # Another process may have another cache folder, with damaged copies of its own.
        facts = replace(self._facts, refetched=set())
        return {**self.__dict__, "_facts": facts, "_local": LocalShards(facts)}
