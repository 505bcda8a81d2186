"""Load and store indexes in the cache folder, or in the default one if that is not writable.

`indexes.index_file` decides which tar an index belongs to, and whether it is valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wids.shards.indexes import index_file
from wids.shards.tars.index import ShardIndex, TarIdentity
from wids.shards.tars.member_names import KeySplit
from wids.storage.cache.cache_names import default_folder, local_index_path
from wids.storage.cache.small_files import save_or_warn


def index_paths(folder: str, path: str, key_split: KeySplit) -> Iterator[str]:
    """Yield the possible paths of a file's index: in the cache folder, then in the default one."""
    yield local_index_path(folder, path, key_split)
    own = default_folder()  # slower than all else here, and rarely needed
    if own != folder:
        yield local_index_path(own, path, key_split)


def load_index(
    paths: Iterable[str], identity: TarIdentity, key_split: KeySplit
) -> ShardIndex | None:
    """Return the first index at these paths that belongs to this tar, or None."""
    for path in paths:
        known = index_file.load(path, identity, key_split)
        if known is not None:
            return known
    return None


def store_index(
    folder: str, paths: Iterable[str], shard_index: ShardIndex, identity: TarIdentity
) -> ShardIndex:
    """Store an index at the first of these paths that can be written.

    Returns:
        The stored index, whose memory all processes share; the argument if storing fails.
    """
    path = save_or_warn(folder, paths, index_file.dump(shard_index, identity))
    known = None if path is None else index_file.load(path, identity, shard_index.key_split)
    return shard_index if known is None else known
