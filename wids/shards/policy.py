"""Decide how a shard is read.

A file of this machine is mapped, and so is a copy in the cache. For the others it depends on what
is wanted, on ``access``, and on what is known of the shard:

| ``access``               | `PART` | `SAMPLES` | `MOST` | `FILE` |
|--------------------------|--------|-----------|--------|--------|
| ``"range"``              | range  | range     | range  | fetch  |
| ``"download"``           | range* | fetch     | fetch  | fetch  |
| ``"auto"``               | range* | range*    | fetch  | fetch  |

(*) Fetched instead if it has no index, if its server sends whole files only, or, with ``"auto"``,
if enough of it was read by range (`wids.shards.range_budget`). With ``access="range"`` it is never
fetched for samples: without an index, opening it is an error.

One sample and a batch differ only in the bytes that are counted, and a pass is `MOST` where it
reads a quarter of a shard or more. What a read costs is known only where it is made: there
`wids.shards.range_budget` and `wids.tables.table` may have the shard fetched instead.
"""

from __future__ import annotations

import os
import sys
from enum import Enum, auto
from typing import Final

from wids.shards.dataset_indexes import DatasetIndexes
from wids.shards.indexes import index_file
from wids.shards.range_budget import RangeBudget
from wids.shards.read_options import AccessMode, ReadOptions
from wids.shards.specs.model import ShardSpec
from wids.shards.tars.index import ShardIndex
from wids.storage.cache.cache_names import RemoteFile
from wids.storage.cache.store import Cache


class Wanted(Enum):
    """What a caller wants of a shard."""

    PART = auto()
    """Its index, its keys, or part of a field."""
    SAMPLES = auto()
    """Some samples: one, or those of a batch."""
    MOST = auto()
    """A quarter of its samples or more, as in a pass, or all bytes; or what ranges cannot give."""
    FILE = auto()
    """A file of this machine."""


class Way(Enum):
    """How a shard is read."""

    MAP = auto()
    """It is a file of this machine, which is mapped."""
    COPY = auto()
    """It has a copy in the cache, which is mapped."""
    RANGE = auto()
    """The bytes of members are requested from its server."""
    FETCH = auto()
    """It is downloaded into the cache, and the copy is mapped."""


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
        *("_copy_paths", "_has_looked", "_range_index", "access", "budget", "dataset_indexes"),
        *("key_split", "num_samples", "number", "options", "path", "remote_file", "spec", "store"),
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
        self.key_split: Final = options.key_split or spec.key_split or "first"
        self.remote_file: Final = remote_file(spec)
        self._copy_paths: list[str] | None = None
        self._range_index: tuple[ShardIndex, int] | None = None
        self._has_looked = False

    @property
    def has_copy(self) -> bool:
        """Whether the cache has a copy of it by now."""
        if self._copy_paths is None:
            self._copy_paths = self.store.copy_paths(self.remote_file)
        # Each sample that is read by range looks, and finds no file: `find` would cost more.
        is_there = any(map(os.path.lexists, self._copy_paths))
        return is_there and self.store.find(self.remote_file) is not None

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
        record = index_file.load_recorded(self.store.index_path(self.remote_file))
        if record is None or record[0].key_split != self.key_split:
            return None
        return (record[0], record[1].nbytes) if nbytes in (None, record[1].nbytes) else None


def remote_file(shard_spec: ShardSpec) -> RemoteFile:
    """Return what the cache has to know about a remote shard."""
    return RemoteFile(shard_spec.url, shard_spec.nbytes, shard_spec.md5sum, shard_spec.sha256)


def way_to_read(wanted: Wanted, shard: ShardFacts, *, supposes_index: bool = False) -> Way:
    """Return how to read a shard.

    Args:
        wanted: What is wanted of it.
        shard: What is known of it.
        supposes_index: Whether to answer, without a request, as if its index were known.
    """
    if shard.path is not None:
        return Way.MAP
    if shard.has_copy:
        return Way.COPY
    access = shard.access
    if access == "range":
        return Way.FETCH if wanted is Wanted.FILE else Way.RANGE
    may_range = wanted is Wanted.PART or (wanted is Wanted.SAMPLES and access == "auto")
    # Without ranges, each attempt would start the transfer of the whole file.
    if not may_range or not shard.sends_ranges or shard.is_spent:
        return Way.FETCH
    return Way.RANGE if supposes_index or shard.has_index else Way.FETCH


def wanted_instead(wanted: Wanted, access: AccessMode) -> Wanted | None:
    """Return what to want of a shard that cannot be read by range after all.

    None if the error stands: it was not read by range, or must not be fetched.
    """
    return Wanted.MOST if wanted in _BY_RANGE and access != "range" else None


_BY_RANGE: Final = Wanted.PART, Wanted.SAMPLES
