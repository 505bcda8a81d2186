"""Look up what is known of one shard: where it is, whether it has a copy, and its index.

The policy decides by these facts (`wids.shards.policy`), and what opens the shard needs them too.
"""

from __future__ import annotations

import sys
from typing import Final

from wids.shards.indexes import index_file
from wids.shards.range_budget import RangeBudget
from wids.shards.read_options import ReadOptions
from wids.shards.sidecars import DatasetIndexes
from wids.shards.specs.model import ShardSpec
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.index import ShardIndex
from wids.storage.cache.cache_names import RemoteFile
from wids.storage.cache.store import Cache


class ShardFacts:
    """What is known of one shard; each fact is looked up when it is asked for.

    Args:
        number: Its number in the dataset.
        spec: What the spec states of it.
        path: Its path, if it is a file of this machine.
        num_samples: How many samples it must have; None where that is not known yet.
        options: How it is opened.
        store: Copies of remote files.
        dataset_indexes: Dataset indexes that may have its index.
        budget: How many bytes of shards are read by range; None if the options alone decide.

    Attributes:
        number, spec, path, num_samples, options, store, dataset_indexes, budget: As passed.
        access: What the caller of the dataset allows.
        key_split: The rule for its names: the caller's, or the spec's, or else the first dot.
        remote_file: What the cache has to know about it.
    """

    __slots__ = (
        *("_has_looked", "_range_index", "access", "budget", "dataset_indexes", "key_split"),
        *("num_samples", "number", "options", "path", "remote_file", "spec", "store"),
    )

    def __init__(
        self,
        number: int,
        spec: ShardSpec,
        path: str | None,
        num_samples: int | None,
        options: ReadOptions,
        store: Cache,
        dataset_indexes: DatasetIndexes,
        budget: RangeBudget | None,
    ) -> None:
        self.number, self.spec, self.path, self.num_samples = number, spec, path, num_samples
        self.options, self.store, self.budget = options, store, budget
        self.dataset_indexes = dataset_indexes
        self.access: Final = options.access
        self.key_split: Final[KeySplit] = options.key_split or spec.key_split or "first"
        self.remote_file: Final = remote_file(spec)
        self._range_index: tuple[ShardIndex, int] | None = None
        self._has_looked = False

    @property
    def has_copy(self) -> bool:
        """Whether the cache has a copy of it by now."""
        return self.store.find(self.remote_file) is not None

    @property
    def sends_ranges(self) -> bool:
        """Whether its server may send ranges; False once it has sent a whole file instead."""
        return self.store.fetcher.sends_parts(self.spec.url)

    @property
    def is_spent(self) -> bool:
        """Whether enough of it was read by range; False where the options alone decide."""
        if self.budget is None:
            return False
        nbytes = self.spec.nbytes
        if nbytes is None:
            nbytes = sys.maxsize if self._range_index is None else self._range_index[1]
        return self.budget.is_spent(self.number, nbytes)

    @property
    def has_index(self) -> bool:
        """Whether its index is known without the shard."""
        return self.range_index is not None

    @property
    def range_index(self) -> tuple[ShardIndex, int] | None:
        """Its index and the length of its tar, found without the tar, or None.

        From a dataset index, or from the cache, where an earlier copy left it.
        """
        if not self._has_looked:
            self._range_index, self._has_looked = self._found_index(), True
        return self._range_index

    def _found_index(self) -> tuple[ShardIndex, int] | None:
        nbytes = self.spec.nbytes
        indexed = self.dataset_indexes.index(self.number, nbytes, self.key_split)
        if indexed is not None:
            return indexed
        left = index_file.load_recorded(self.store.index_path(self.remote_file))
        if left is None or left[0].key_split != self.key_split:
            return None
        return (left[0], left[1].nbytes) if nbytes in (None, left[1].nbytes) else None


def remote_file(shard_spec: ShardSpec) -> RemoteFile:
    """Return what the cache has to know about a remote shard."""
    return RemoteFile(shard_spec.url, shard_spec.nbytes, shard_spec.md5sum, shard_spec.sha256)
