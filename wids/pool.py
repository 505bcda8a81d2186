"""At most *n* open shards, the least recently used out first; and how a shard is opened.

A number becomes an open shard here: local path, index, comparison with the spec. Nothing here knows
what a sample is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator
from mmap import mmap
from typing import Any, Final

from wids import cache, index, tar, urls
from wids.errors import MismatchError
from wids.index import Pack, ShardIndex, TarIdentity
from wids.keys import KeySplit
from wids.shard import Raw, Shard
from wids.spec import DatasetSpec, ShardSpec

_logger = logging.getLogger("wids")

MAX_OPEN_SHARDS: Final = 256
"""Default limit, where the process may open four times as many files."""


def default_size() -> int:
    """Give how many shards to keep open: a quarter of the process's file descriptors at most."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit for files opened this way
        return MAX_OPEN_SHARDS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_OPEN_SHARDS if soft < 0 else max(1, min(MAX_OPEN_SHARDS, soft // 4))


class ShardOpener:
    """Opens the shards of a spec by number, with an index that was made before where there is one.

    An index comes from the dataset's pack, else from the cache folder, else from a scan, which
    leaves it in the cache folder. Each is checked, and none is needed. Can be pickled.

    Args:
        spec: The dataset.
        folder: The cache folder.
        key_split: Where member names are split; None for what the spec says.
        fields, raw: As for `Shard`.

    Attributes:
        pack: The dataset's pack, or None where there is none that can be used.
        counts: Number of samples in each shard, or None where it is not known. What is known, from
            the spec or because a shard was opened to count it, is what each opened shard must have.
    """

    def __init__(
        self,
        spec: DatasetSpec,
        folder: str,
        key_split: KeySplit | None = None,
        fields: Collection[str] | None = None,
        raw: Raw = "bytes",
    ) -> None:
        self.shards = spec.shards
        self.folder = folder
        self.key_split = key_split
        self.fields = fields
        self.raw = raw
        self.pack: Pack | None = None
        self.counts = [shard.num_samples for shard in spec.shards]
        if spec.index is not None and urls.is_local(spec.index):
            self.pack = index.load_pack(urls.local_path(spec.index))
            if self.pack is None:
                _logger.info("%s: no index that can be used; shards are scanned", spec.index)

    def __call__(self, number: int) -> Shard:
        """Open a shard and hold it against its spec.

        Raises:
            FetchError: It cannot be opened.
            ShardFormatError: It is not a complete, plain tar.
            MismatchError: It has another number of samples than the spec says.
        """
        about = self.shards[number]
        key_split = self.key_split_of(number)

        def find_index(path: str, data: mmap, identity: TarIdentity) -> ShardIndex:
            found = None if self.pack is None else self.packed_index(number, identity.nbytes)
            if found is None:
                found = self.kept_index(path, data, identity, key_split)
            return found

        shard = Shard(about.local_path(), fields=self.fields, raw=self.raw, find_index=find_index)
        expected = self.counts[number]
        if expected is not None and len(shard) != expected:
            with shard:
                raise MismatchError(_count_message(about, shard, expected, key_split))
        return shard

    def key_split_of(self, number: int) -> KeySplit:
        """Give the rule for a shard: the caller's, else the spec's, else the first dot."""
        return self.key_split or self.shards[number].key_split or "first"

    def is_packed(self, number: int) -> bool:
        """Tell whether the pack has a shard of this number and name."""
        name = os.path.basename(urls.path_of(self.shards[number].url))
        return self.pack is not None and self.pack.is_named(number, name)

    def packed_index(self, number: int, tar_nbytes: int) -> ShardIndex | None:
        """Give a shard's index from the pack; None where it is not that of this tar."""
        if self.pack is None or not self.is_packed(number):
            return None
        return self.pack.index(number, tar_nbytes, self.key_split_of(number))

    def is_fresh(self, number: int) -> bool:
        """Tell whether the pack has the index of a tar as long as the shard's is now."""
        if self.pack is None or not self.is_packed(number):
            return False
        try:
            nbytes = os.path.getsize(urls.local_path(self.shards[number].url))
        except OSError:
            return False
        return self.pack.tar_nbytes(number) == nbytes

    def count_from_pack(self) -> None:
        """Fill in the counts that the spec does not state and the pack knows."""
        for number, count in enumerate(self.counts):
            if count is None and self.pack is not None and self.is_fresh(number):
                packed = self.packed_index(number, self.pack.tar_nbytes(number))
                self.counts[number] = None if packed is None else len(packed)

    def shards_that_may_have(self, key: str) -> Iterator[int]:
        """Give the numbers of shards that may have a key: by the pack, and those it knows not."""
        packed = None if self.pack is None else self.pack.shards_with(key)
        if packed is None:
            yield from range(len(self.shards))
            return
        for number in range(len(self.shards)):
            if number in packed or not self.is_fresh(number):
                yield number

    def kept_index(
        self, path: str, data: mmap, identity: TarIdentity, key_split: KeySplit
    ) -> ShardIndex:
        """Give a local shard's index from the cache folder, or make it and keep it there."""
        kept_path = cache.index_path(self.folder, path, key_split)
        found = index.load(kept_path, identity, key_split)
        if found is not None:
            return found
        made = index.build(tar.scan(data, path), key_split, path)
        if cache.is_settled(identity) and cache.keep(kept_path, index.dump(made, identity)):
            # Mapped, its memory is shared by all processes; the one that was made would not be.
            found = index.load(kept_path, identity, key_split)
        return made if found is None else found


def _count_message(about: ShardSpec, shard: Shard, expected: int, key_split: KeySplit) -> str:
    if about.num_samples is None:
        return (
            f"{about.url}: expected {expected} samples as when the dataset was opened, found "
            f"{len(shard)}; it was written anew: open the dataset again"
        )
    other: KeySplit = "last" if key_split == "first" else "first"
    message = f"{about.url}: the spec says {about.num_samples} samples, the shard has {len(shard)}"
    with Shard(shard.path, key_split=other) as split_otherwise:
        if len(split_otherwise) == about.num_samples:
            return (
                f"{message}, but {about.num_samples} when names are split at their {other} dot; "
                f'pass key_split="{other}"'
            )
    if about.num_samples == shard.index.num_files:
        return (
            f"{message}, and {about.num_samples} is its number of members: the spec counts files; "
            "count samples, or leave nsamples out to have them counted here"
        )
    return f"{message}; correct the spec, or fetch or write the shard again"


class ShardPool:
    """Open shards by number.

    There is no lock, so none can be held across a fork: each step is one operation on a plain dict,
    which is atomic, and a hit changes no more than a number. Two threads that miss a shard at
    once both open it, and the later one stays. A shard that falls out while a thread reads it is
    closed when that thread lets go of it, so each thread can hold one shard beyond ``size``.

    Args:
        open_shard: Opens the shard of a number.
        size: Most shards to keep open.
    """

    def __init__(self, open_shard: Callable[[int], Shard], size: int) -> None:
        self.open_shard = open_shard
        self.size = size
        self.num_accesses = 0
        self.num_misses = 0
        self._entries: dict[int, _Entry] = {}

    def get(self, number: int) -> Shard:
        """Give the shard of a number, opened if need be."""
        self.num_accesses += 1
        entry = self._entries.get(number)
        if entry is not None:
            entry.last_used = self.num_accesses
            return entry.shard
        self.num_misses += 1
        shard = self.open_shard(number)
        self._entries[number] = _Entry(shard, self.num_accesses)
        while len(self._entries) > self.size:
            # list() is one atomic step; an iterator would trip over other threads' changes.
            oldest = min(list(self._entries.items()), key=_last_used, default=None)
            if oldest is not None:
                self._entries.pop(oldest[0], None)
        return shard

    def close(self) -> None:
        """Let go of all shards; the next `get` opens them again."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)

    def __getstate__(self) -> dict[str, Any]:
        # Another process maps the files again; only the settings travel.
        return {**self.__dict__, "_entries": {}}


class _Entry:
    """An open shard, and the number of the access that last used it."""

    __slots__ = ("last_used", "shard")

    def __init__(self, shard: Shard, last_used: int) -> None:
        self.shard = shard
        self.last_used = last_used


def _last_used(item: tuple[int, _Entry]) -> int:
    return item[1].last_used
