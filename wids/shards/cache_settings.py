"""Check the cache folder and the cache limits that a dataset was given.

Limits that cannot work are reported here, before anything is fetched.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Container, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from wids.errors import warn
from wids.shards.specs.model import ShardSpec
from wids.shards.specs.shard_sequences import has_remote, remote_nbytes_of
from wids.storage.cache.cache_names import default_folder
from wids.storage.sizes import parse_nbytes
from wids.storage.transport import urls

_LEAST_NBYTES: Final = 10_240
"""Length of the shortest tar that GNU tar writes; a smaller limit is a count of shards."""


def cache_folder(cache_dir: str | os.PathLike[str] | None) -> str:
    """Return the absolute path of the cache folder; None for the default one."""
    if cache_dir is None:
        return default_folder()
    # Absolute now: workers and later calls of `chdir` must find the same folder.
    return os.path.abspath(os.path.expanduser(os.fspath(cache_dir)))


def cache_limit(
    cache_size: int | str | None, *, keep: bool, shards: Sequence[ShardSpec]
) -> int | None:
    """Return the most bytes that may stay in the cache; None for no limit.

    Args:
        cache_size: Most bytes, or a text such as ``"200GB"``; None for ``$WIDS_CACHE_SIZE``.
        keep: Whether to keep every copy, whatever the limit.
        shards: The shards of the dataset.

    Raises:
        ValueError: The two largest shards do not fit.
    """
    if keep and cache_size is not None:
        warn(f"keep=True never deletes a copy, so cache_size={cache_size!r} has no effect")
    nbytes = parse_nbytes(os.environ.get("WIDS_CACHE_SIZE") if cache_size is None else cache_size)
    if nbytes is None or keep:
        return None
    stated = np.nan_to_num(remote_nbytes_of(shards) if has_remote(shards) else np.zeros(0))
    remote_nbytes = np.sort(stated)[-2:].astype(np.int64).tolist()
    hint = ""
    if nbytes < _LEAST_NBYTES:
        hint = (
            f"; cache_size counts bytes, and {nbytes} looks like a number of shards: pass such as "
            '"200GB", or leave it out for no limit'
        )
    # One shard is read while the next is fetched, and neither can be evicted.
    if sum(remote_nbytes[-2:]) > nbytes:
        raise ValueError(
            f"cache_size: expected room for the two largest shards, {sum(remote_nbytes[-2:])} "
            f"bytes (one is read while the next one is fetched), found {nbytes}{hint}"
        )
    if remote_nbytes and hint:  # the spec does not say how long they are
        warn(f"cache_size: no shard fits into {nbytes} bytes{hint}")
    # A dataset that stores no copies has no reason to delete those of others.
    return nbytes if remote_nbytes else None


class PlacedNames(Container[str]):
    """The base names under which users have placed copies in the cache folder themselves.

    A name that two remote shards share is ambiguous, and left out. All names are compared only when
    a file of some name is there.

    Args:
        folder: The cache folder.
        shards: The shards.
    """

    def __init__(self, folder: str, shards: Sequence[ShardSpec]) -> None:
        self._folder, self._shards = folder, shards

    def __contains__(self, name: object) -> bool:
        path = os.path.join(self._folder, str(name))
        return os.path.exists(path) and name in self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        remote = (urls.path_of(shard.url) for shard in self._shards if not urls.is_local(shard.url))
        counts = Counter(os.path.basename(path) for path in remote)
        return frozenset(name for name, count in counts.items() if count == 1 and name)

    def __reduce__(self) -> tuple[Any, ...]:
        return PlacedNames, (self._folder, self._shards)
