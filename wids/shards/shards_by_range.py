"""Open remote shards to read parts of them, by an index from a pack or from an earlier copy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from wids.errors import FetchError
from wids.shards.indexes import index_file
from wids.shards.shard_facts import ShardFacts, remote_file
from wids.shards.tars.index import ShardIndex
from wids.storage.transport import urls

if TYPE_CHECKING:
    from wids.shards.range_shard import RemoteShard


@dataclass(frozen=True)
class ShardsByRange:
    """The shards that are read by range.

    Attributes:
        facts: The shards.
    """

    facts: ShardFacts

    def index(self, number: int) -> tuple[ShardIndex, int] | None:
        """Return the index of a shard and the length of its tar, without fetching the tar.

        From a pack, or from the cache, where an earlier copy left it. None if neither has it.
        """
        facts = self.facts
        shard_spec, key_split = facts.shards[number], facts.key_split(number)
        packed = facts.packs.index(number, shard_spec.nbytes, key_split)
        if packed is not None:
            return packed
        left = index_file.load_recorded(facts.store.index_path(remote_file(shard_spec)))
        is_same_rule = left is not None and left[0].key_split == key_split
        if left is not None and is_same_rule and shard_spec.nbytes in (None, left[1].nbytes):
            return left[0], left[1].nbytes
        return None

    def may_open(self, number: int) -> bool:
        """Whether a shard without a copy may be read by range, as far as is known without asking.

        False for a shard that was announced, unless batches may read it while it is fetched, and
        for one of which enough was read.
        """
        facts, shard_spec = self.facts, self.facts.shards[number]
        if facts.options.access == "range":
            return True
        # Without ranges, each attempt would start the transfer of the whole file.
        if not facts.store.fetcher.sends_parts(shard_spec.url):
            return False
        return facts.takes(number, shard_spec.nbytes or sys.maxsize, 0)

    def open(self, number: int, has_copy: Callable[[], bool]) -> RemoteShard | None:
        """Return a shard to be read by range; None if it has a copy, or has to be fetched.

        Args:
            number: Its number.
            has_copy: Whether the shard has a copy by now.

        Raises:
            FetchError: No index is known, and the shard must not be fetched.
        """
        facts, options = self.facts, self.facts.options
        url = facts.shards[number].url
        if has_copy() or not self.may_open(number):
            return None
        index_and_nbytes = self.index(number)
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
        from wids.shards.range_shard import RemoteShard  # often only the index is needed

        reader = facts.store.fetcher.range_reader(url, nbytes)
        shard = RemoteShard(
            urls.redact(url),
            index.without_payload_crcs() if options.verify == "never" else index,
            nbytes,
            facts.broken.watched(number, reader.view),
            fields=options.fields,
            raw=options.raw,
            takes=partial(facts.takes, number, nbytes),
            has_copy=has_copy,
            version=lambda: reader.version,
        )
        return facts.checked(number, shard)
