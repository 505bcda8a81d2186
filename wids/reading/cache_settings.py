"""A dataset's arguments about its cache + its shards → the `Cache` that it uses.

Limits that cannot work are reported here, before anything is fetched.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from wids.cache.names import default_folder
from wids.cache.store import Limits
from wids.files.sizes import parse_nbytes
from wids.specs.model import ShardSpec
from wids.transport import urls


def cache_folder(cache_dir: str | os.PathLike[str] | None) -> str:
    """Return the absolute path of the cache folder; None for the default one."""
    if cache_dir is None:
        return default_folder()
    return os.path.abspath(os.path.expanduser(os.fspath(cache_dir)))


def cache_limits(
    cache_size: int | str | None, *, keep: bool, shards: Sequence[ShardSpec]
) -> Limits:
    """Return what may stay in the cache.

    Args:
        cache_size: Most bytes, or a text such as ``"200GB"``; None for ``$WIDS_CACHE_SIZE``.
        keep: Whether to keep every copy.
        shards: The shards of the dataset.

    Raises:
        ValueError: The arguments contradict each other, or two shards do not fit.
    """
    if keep and cache_size is not None:
        raise ValueError(
            f"keep=True never deletes a copy, and cache_size={cache_size!r} asks for it; choose one"
        )
    nbytes = parse_nbytes(os.environ.get("WIDS_CACHE_SIZE") if cache_size is None else cache_size)
    if nbytes is None or keep:
        return Limits(None, keep)
    remote_nbytes = sorted(shard.nbytes or 0 for shard in shards if not urls.is_local(shard.url))
    # One shard is read while the next is fetched, and neither can be evicted.
    if sum(remote_nbytes[-2:]) > nbytes:
        raise ValueError(
            f"cache_size: expected room for the two largest shards, {sum(remote_nbytes[-2:])} "
            f"bytes (one is read while the next one is fetched), found {nbytes}"
        )
    return Limits(nbytes if remote_nbytes else None)


def placed_names(shards: Sequence[ShardSpec]) -> frozenset[str]:
    """Return the base names under which users can place copies in the cache folder themselves.

    A name that two remote shards have in common says nothing about which of them a file is.
    """
    remote = (urls.path_of(shard.url) for shard in shards if not urls.is_local(shard.url))
    counts = Counter(os.path.basename(path) for path in remote)
    return frozenset(name for name, count in counts.items() if count == 1 and name)
