"""Look up the positions of a key in a dataset, in constant time.

The dataset index, or those of the parts, answer for the shards that they contain. For all others,
the first look-up builds a table of hashes from their indexes. Whether a dataset index or the table
answers for a shard is decided once; later only the shard that was found is checked again. Each
match is compared with the key itself. No sample is read, and no shard is fetched.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from wids.errors import FetchError, WidsError
from wids.shards.dataset_indexes import DatasetIndexes
from wids.shards.indexes.key_tables import key_hash, key_hashes
from wids.shards.policy import Wanted
from wids.shards.specs.model import ShardSpec
from wids.shards.tars.headers import KeySplit, to_bytes
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import TarShard
from wids.storage.arrays import BoolArray, IntArray, WordArray
from wids.storage.transport import urls


def form_hint(key: str, has: Callable[[str], bool]) -> str:
    """Return the end of an error about a missing key that is there in another Unicode form.

    macOS decomposes names of files: its ``é`` is an ``e`` and an accent.

    Args:
        key: The key.
        has: Whether a key is there.
    """
    for form in () if key.isascii() else ("NFC", "NFD"):
        other = unicodedata.normalize(form, key)
        if other != key and has(other):
            return f'; it is there in another Unicode form: unicodedata.normalize("{form}", key)'
    return ""


class SearchedShards(Protocol):
    """The shards whose keys are looked up; see `wids.shards.reader.ShardReader`."""

    edges: IntArray
    dataset_indexes: DatasetIndexes

    @property
    def shards(self) -> Sequence[ShardSpec]:
        """The specs of the shards."""

    def open(self, number: int, wanted: Wanted) -> TarShard:
        """Return an open shard."""

    def peek(self, number: int) -> TarShard | None:
        """Return a shard if it is open."""

    def key_split(self, number: int) -> KeySplit:
        """Return the rule for the names of a shard."""

    def has_index(self, number: int) -> bool:
        """Whether the index of a shard is available without fetching the shard."""

    def known_index(self, number: int) -> ShardIndex | None:
        """Return the index of a shard if it is known without opening the shard."""

    def stated_identity(self, number: int) -> tuple[Any, ...] | None:
        """Return facts that change when a shard changes, without reading its index, or None."""

    def is_in_dataset_index(self, number: int) -> bool:
        """Whether the dataset index has the keys of a shard, and states its length."""

    def has_indexed_length(self, number: int) -> bool:
        """Whether a shard still has the length that the dataset index states."""


@dataclass(frozen=True, eq=False)
class _Known:
    """What is known about the keys of the shards.

    Attributes:
        is_in_dataset_index: Whether the dataset index answers for a shard, shape ``(num_shards,)``.
        hashes: The hashes of all keys of the other shards, ascending.
        positions: Their positions in the dataset; ascending where hashes are equal.
        unknown: The shards that have no index or cannot be opened.
    """

    is_in_dataset_index: BoolArray
    hashes: WordArray
    positions: npt.NDArray[np.unsignedinteger]
    unknown: list[int]


class KeyLookup:
    """The keys of the shards of a reader.

    Safe to use from any number of threads and after a fork. Takes 12 bytes for each sample of the
    shards that the dataset index does not contain, 16 beyond four billion samples; while the table
    is built, 28 or 40.

    It is passed the shards, which have it: a reference cycle would keep files open.
    """

    def __init__(self) -> None:
        # Replaced as a whole and never changed, so that threads need no lock. Two threads may
        # build it at the same time; the results are equal.
        self._known: _Known | None = None
        self._uses_dataset_index = True
        # Programs ask for one sample of a shard after another, and parsing an index takes 0.1 ms.
        self._latest: tuple[Any, ShardIndex | None] = (None, None)

    def find(self, shards: SearchedShards, key: str) -> Iterator[int]:
        """Yield the positions of a key, one for each shard that has it, in ascending order.

        Raises:
            FetchError: A shard has no index, and would have to be fetched to be searched.
        """
        last = -1
        while True:
            for number, local_index in self._matches(shards, key):
                if local_index is None:  # the shard was replaced since the table was built
                    self._known = None
                    break
                if number > last and local_index >= 0:
                    last = number
                    yield int(shards.edges[number]) + local_index
            else:
                return

    def index(self, shards: SearchedShards, number: int) -> ShardIndex:
        """Return the index of a shard; open the file only if the index is nowhere else.

        Raises:
            FetchError: The shard would have to be fetched.
        """
        shard = shards.peek(number)
        if shard is None:
            identity = shards.stated_identity(number)
            facts = (number, identity)
            latest_facts, latest = self._latest
            if facts == latest_facts and latest is not None and latest.is_intact():
                return latest
            shard_index = shards.known_index(number)
            num_samples = int(shards.edges[number + 1] - shards.edges[number])
            if shard_index is not None and len(shard_index) == num_samples:
                if identity is not None:
                    self._latest = facts, shard_index
                return shard_index
            if not shards.has_index(number):
                raise self._missing_index(shards, number, "have its keys")
            shard = shards.open(number, Wanted.PART)  # compares it with the spec
        shard.check()
        return shard.index

    def _missing_index(self, shards: SearchedShards, number: int, purpose: str) -> FetchError:
        return FetchError(
            f"{urls.redact(shards.shards[number].url)}: expected its index, to {purpose}, "
            "found none; make one for the dataset with `wids create`, or fetch the shard"
        )

    def _matches(self, shards: SearchedShards, key: str) -> Iterator[tuple[int, int | None]]:
        """Yield the shards that may have a key, ascending, with the index of the key in each.

        The index is -1 if the shard does not have the key, and None if the shard has changed.
        """
        wanted = to_bytes(key)
        if b"\0" in wanted:  # no stored key contains a NUL
            return
        candidates = shards.dataset_indexes.samples_with(key) if self._uses_dataset_index else []
        if candidates is None:  # no dataset index, or damaged tables: hash the keys of all shards
            self._known, self._uses_dataset_index, candidates = None, False, []
        table = self._known
        if table is None:
            table = self._known = self._established(shards)
        found = [
            (number, local_index)
            for number, local_index in candidates
            if number < len(table.is_in_dataset_index) and table.is_in_dataset_index[number]
        ]
        found += self._in_table(shards, table, wanted)
        for number, local_index in merge(sorted(found), ((n, -1) for n in table.unknown)):
            if local_index < 0:
                yield number, self._searched(shards, number, key)
            elif table.is_in_dataset_index[number]:
                yield number, self._in_dataset_index(shards, number, local_index, key)
            else:
                yield number, self._in_shard(shards, number, local_index, key)

    def _in_table(
        self, shards: SearchedShards, table: _Known, wanted: bytes
    ) -> list[tuple[int, int]]:
        if not len(table.hashes):
            return []
        value, found = np.uint64(key_hash(wanted)), []
        at = int(table.hashes.searchsorted(value))
        while at < len(table.hashes) and table.hashes[at] == value:
            position = int(table.positions[at])
            number = int(shards.edges.searchsorted(position, "right")) - 1
            found.append((number, position - int(shards.edges[number])))
            at += 1
        return found

    def _in_dataset_index(
        self, shards: SearchedShards, number: int, local_index: int, key: str
    ) -> int | None:
        """Return the index of a key in an indexed shard; None if the shard has changed."""
        if not shards.has_indexed_length(number):
            return None
        num_samples = int(shards.edges[number + 1] - shards.edges[number])
        rule = shards.key_split(number)
        if shards.dataset_indexes.has_key(number, local_index, key, num_samples, rule):
            return local_index
        # Another key with this hash, a damaged index, or other counts: search the shard itself.
        # Opening it compares it with its spec.
        return shards.open(number, Wanted.PART).find(key)

    def _in_shard(self, shards: SearchedShards, number: int, local_index: int, key: str) -> int:
        """Return the index of a key in a shard that is in the table."""
        shard = shards.open(number, Wanted.PART)
        if local_index < len(shard) and shard.index.key(local_index) == key:
            return local_index
        self._known = None  # the shard was replaced and reopened since the table was built
        return shard.find(key)

    def _searched(self, shards: SearchedShards, number: int, key: str) -> int:
        """Return the index of a key in a shard that previously could not be opened."""
        if not shards.has_index(number):
            raise self._missing_index(shards, number, f"search for the key {key!r}")
        local_index = shards.open(number, Wanted.PART).find(key)
        table = self._known
        # Rebuild the table only when half of these shards have become available, so that fetching
        # a dataset shard by shard does not rebuild it for each.
        if table is not None and number == table.unknown[len(table.unknown) // 2]:
            self._known = None
        return local_index

    def _established(self, shards: SearchedShards) -> _Known:
        """Determine for each shard if the dataset index answers for it, or else hash its keys."""
        num_shards = len(shards.edges) - 1
        is_in_dataset_index, unknown = np.zeros(num_shards, bool), []
        hashes: list[WordArray] = []
        for number in range(num_shards):
            hashes_there = np.empty(0, np.uint64)
            if shards.edges[number] == shards.edges[number + 1]:
                pass  # it may be broken, and not counted
            elif self._uses_dataset_index and shards.is_in_dataset_index(number):
                is_in_dataset_index[number] = True
            else:
                try:
                    hashes_there = key_hashes(self.index(shards, number))
                except WidsError:  # raised again when a search reaches the shard
                    unknown.append(number)
            hashes.append(hashes_there)
        return _Known(is_in_dataset_index, *_sorted(hashes, shards.edges), unknown)


def _sorted(
    hashes: list[WordArray], edges: IntArray
) -> tuple[WordArray, npt.NDArray[np.unsignedinteger]]:
    """Return hashes of many shards in ascending order, and the positions of their samples."""
    dtype = np.uint32 if edges[-1] < 1 << 32 else np.uint64
    positions = np.concatenate(
        [
            np.arange(start, start + len(part), dtype=dtype)
            for start, part in zip(edges[:-1].tolist(), hashes, strict=True)
        ]
    )
    joined = np.concatenate(hashes)
    hashes.clear()  # frees as much memory as `joined` takes
    order = np.argsort(joined, kind="stable")
    return joined[order], positions[order]
