"""Open the copies of remote shards, which are fetched into the cache first."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from wids.cache.names import copy_path
from wids.cache.store import BackgroundFetch, Prepare
from wids.errors import MismatchError, ShardFormatError, WidsError
from wids.opening.copy_index import dumped_index, has_name, index_of_copy
from wids.opening.shard_facts import ShardFacts, remote_file
from wids.tars.shard import Shard
from wids.transport import urls

_logger = logging.getLogger("wids")


@dataclass(frozen=True)
class CopiedShards:
    """The shards that are fetched whole.

    Attributes:
        facts: The shards.
    """

    facts: ShardFacts

    def open(self, number: int, make_room: Callable[[], None]) -> Shard:
        """Map the copy of a shard; fetch a damaged copy again."""
        facts, file = self.facts, remote_file(self.facts.shards[number])
        was_local = facts.store.find(file) is not None
        stored = facts.store.open(file, self._prepare(number), make_room)
        key_split = facts.key_split(number)
        find_index = partial(index_of_copy, facts.store, file, stored, key_split)
        try:
            return facts.checked(number, facts.open_file(stored.path, find_index, stored.handle))
        except (ShardFormatError, MismatchError) as error:
            if not was_local or not self.discard(number, stored.path, stored.inode, error):
                raise
        return self.open(number, make_room)

    def fetch(self, number: int, background: BackgroundFetch) -> None:
        """Fetch a shard before it is opened; see `Cache.fetch`."""
        file = remote_file(self.facts.shards[number])
        self.facts.store.fetch(file, self._prepare(number), background)

    def discard(self, number: int, path: str, inode: int, error: WidsError) -> bool:
        """Discard a copy that could not be read; return whether to open the shard again."""
        file = remote_file(self.facts.shards[number])
        if path != copy_path(self.facts.store.folder, file):
            return False  # it is a file of the user's
        is_current = has_name(path, inode)
        if is_current and number in self.facts.refetched:
            return False
        self.facts.refetched.add(number)
        if is_current:
            _logger.warning("%s; fetching the shard again", str(error))
            self.facts.store.discard(file)
        return True

    def _prepare(self, number: int) -> Prepare:
        """Return the callable that makes the index of a shard that was just fetched."""
        name = urls.redact(self.facts.shards[number].url)
        return partial(dumped_index, name, self.facts.key_split(number))
