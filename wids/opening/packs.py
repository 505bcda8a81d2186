"""The packs that a spec names → the index of a shard, before the shard is opened.

A pack holds the indexes of many shards. A spec can name a pack for the whole dataset, and one for
a single shard. This module finds packs in a spec and keeps them open. A pack that is missing,
damaged or outdated is ignored: an index can always be built from its tar. No shard is opened here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from wids.cache.store import Cache
from wids.specs.model import DatasetSpec
from wids.tars.index import ShardIndex
from wids.tars.names import KeySplit
from wids.transport import urls
from wids.transport.rewrite import rewritten

if TYPE_CHECKING:
    from wids.indexes.pack import Pack

_logger = logging.getLogger("wids")


class Packs:
    """The packs of a dataset, opened when they are first needed.

    Safe to use from any number of threads and after a fork. A pickle has the names of the packs;
    another process opens them again.

    Args:
        spec: The dataset.
        store: Fetches remote packs.
    """

    def __init__(self, spec: DatasetSpec, store: Cache) -> None:
        self.shards = spec.shards
        self._store = store
        self._dataset_url = spec.index
        self._packs: dict[str, Pack | None] = {}
        if spec.index is not None and urls.is_local(rewritten(spec.index)):
            self._pack(spec.index)  # now, so that processes forked later share the mapped memory

    def index(self, number: int, tar_nbytes: int, key_split: KeySplit) -> ShardIndex | None:
        """Return the index of a shard; None where no pack has the index of a tar of this length."""
        for pack, position in self._packs_of(number):
            shard_index = pack.index(position, tar_nbytes, key_split)
            if shard_index is not None:
                return shard_index
        return None

    def index_and_nbytes(self, number: int, key_split: KeySplit) -> tuple[ShardIndex, int] | None:
        """Return the index of a shard and the length of its tar, both as a pack has them.

        None where no pack has them, or where the spec states another length.
        """
        stated_nbytes = self.shards[number].nbytes
        for pack, position in self._packs_of(number):
            nbytes = pack.tar_nbytes(position)
            if stated_nbytes in (None, nbytes):
                shard_index = pack.index(position, nbytes, key_split)
                if shard_index is not None:
                    return shard_index, nbytes
        return None

    def has_keys_of(self, number: int) -> bool:
        """Whether the dataset's pack has a shard of this number and name."""
        pack = self._dataset_pack()
        return pack is not None and any(pack.is_named(number, n) for n in self._names(number))

    def digest(self) -> tuple[int, int] | None:
        """Return what other keys in the dataset's pack would change; None without a pack."""
        pack = self._dataset_pack()
        return None if pack is None else pack.digest

    def has_length(self, number: int, tar_nbytes: int | None) -> bool:
        """Whether the dataset's pack states this length for a shard that it has; None fits any."""
        pack = self._dataset_pack()
        return pack is not None and tar_nbytes in (None, pack.tar_nbytes(number))

    def samples_with(self, key: str) -> list[tuple[int, int]] | None:
        """Return number of shard and index in the shard of the samples that may have a key.

        Only the dataset's pack is asked: of what it packed, which the spec may list a part of or
        replace. None where it cannot tell.
        """
        pack = self._dataset_pack()
        return None if pack is None else pack.samples_with(key)

    def has_key(
        self, number: int, local_index: int, key: str, num_samples: int, key_split: KeySplit
    ) -> bool:
        """Whether a sample of a shard with so many samples has a key, as the dataset's pack says.

        The shard is one that `has_keys_of` said the pack knows.
        """
        pack = self._dataset_pack()
        return (
            pack is not None
            and number < len(pack)
            and int(pack.num_samples[number]) == num_samples
            and pack.has_key(number, local_index, key, key_split)
        )

    def release(self) -> None:
        """Return the memory of what was read of mapped packs; see `LocalPack.release`."""
        from wids.indexes.pack import LocalPack

        for pack in list(self._packs.values()):
            if isinstance(pack, LocalPack):
                pack.release()

    def _dataset_pack(self) -> Pack | None:
        return None if self._dataset_url is None else self._pack(self._dataset_url)

    def _packs_of(self, number: int) -> Iterator[tuple[Pack, int]]:
        """Yield the packs that have a shard of this number and name, with its position there."""
        shard_spec = self.shards[number]
        if self._dataset_url is None and shard_spec.index is None:
            return  # the common case, and shards are opened often
        names = self._names(number)
        for url, position in ((self._dataset_url, number), (shard_spec.index, 0)):
            pack = None if url is None else self._pack(url)
            if pack is not None and any(pack.is_named(position, name) for name in names):
                yield pack, position

    def _names(self, number: int) -> tuple[str, str]:
        """Return the names that a shard may have in a pack."""
        name = os.path.basename(urls.path_of(self.shards[number].url))
        # A tar that was packed by its path has %20 in its URL where the pack has a blank.
        return name, urls.unquoted(name)

    def _pack(self, url: str) -> Pack | None:
        """Return a pack, opened or fetched at its first use; None if it cannot be used."""
        if url in self._packs:
            return self._packs[url]
        from wids.opening.pack_files import open_pack  # packs and their look-ups: 2 ms

        num_shards = len(self.shards) if url == self._dataset_url else 1
        pack = open_pack(self._store, url, num_shards)
        if pack is None:
            _logger.info("%s: no index that can be used", urls.redact(url))
        # A mapped pack holds a descriptor: affordable for the dataset's pack, not for each shard's.
        if pack is None or url == self._dataset_url or not pack.is_mapped:
            self._packs[url] = pack
        return pack

    def __getstate__(self) -> dict[str, Any]:
        # The copy of a remote pack may be evicted before this is unpickled.
        local = {url: pack for url, pack in self._packs.items() if urls.is_local(url)}
        return {**self.__dict__, "_packs": local}
