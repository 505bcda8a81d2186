"""Open the shards whose URLs are local files."""

from __future__ import annotations

import mmap
import os
from functools import partial

from wids.errors import MismatchError
from wids.shards.indexes.index_file import load_count
from wids.shards.shard_facts import ShardFacts
from wids.shards.stored_indexes import index_paths, load_index, store_index
from wids.shards.tars.index import ShardIndex, TarIdentity, index_tar
from wids.shards.tars.shard import Shard
from wids.storage.cache.small_files import is_settled
from wids.storage.transport import urls
from wids.storage.transport.url_rewrite import rewritten


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
            place = rewritten(self._facts.shards[number].url)
            path = urls.local_path(place) if urls.is_local(place) else None
            if path is not None:
                path = self._named_path(self._facts.shards[number].url) or path
            self._paths[number] = path  # shards are opened often
            return path

    def _named_path(self, url: str) -> str | None:
        """Return the path that ``localname`` maps a local shard to; None if no file is there."""
        path = self._facts.store.named_path(url)
        # `localname` may return a cache path, as for remote shards, where a local one has no file.
        return path if path is not None and os.path.exists(path) else None

    def open(self, number: int, path: str) -> Shard:
        """Map the file of a shard."""
        facts = self._facts
        shard = facts.open_file(path, partial(self._index, number))
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
        """Return the index of a file: from a pack, the cache folder, or a scan."""
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
        """Return the index of a file from a pack or the cache folder, or None."""
        facts = self._facts
        key_split = facts.key_split(number)
        packed = facts.packs.index(number, identity.nbytes, key_split)
        if packed is not None:
            return packed[0]
        return load_index(index_paths(facts.store.folder, path, key_split), identity, key_split)

    def stored_count(self, number: int, path: str) -> int | None:
        """Return the number of samples of `stored_index`, or None."""
        facts, identity = self._facts, TarIdentity.of_file(os.stat(path))
        key_split = facts.key_split(number)
        packed = facts.packs.index(number, identity.nbytes, key_split)
        if packed is not None:
            return len(packed[0])
        paths = index_paths(facts.store.folder, path, key_split)
        counts = (load_count(index_path, identity, key_split) for index_path in paths)
        return next((count for count in counts if count is not None), None)
