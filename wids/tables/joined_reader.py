"""The reader of a joined dataset, around the reader of the dataset that `join` was called on.

Positions, shards and keys are those of that reader; each query about a shard goes to both sides. A
joined dataset differs from others in its reader alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from wids.errors import WidsError
from wids.shards.key_lookup import KeyLookup
from wids.shards.reader import Group, OpenByNumber, ShardReader
from wids.shards.tars.index import ShardIndex
from wids.storage.array_types import FloatArray, IntArray
from wids.storage.cache.store import BackgroundFetch
from wids.tables.join_sides import shards_of
from wids.tables.joined_shard import JoinedShard
from wids.tables.joint import Joint


class JoinedReader(ShardReader):
    """The shards of a dataset, with fields of another side; see `ShardReader`.

    Args:
        joint: What is joined.
    """

    has_all_fields = False

    def __init__(self, joint: Joint) -> None:
        self._inner = joint.own.reader
        super().__init__(self._inner.opener, self._inner.pool, self._inner.edges)
        self._joint = joint
        self._other = joint.other
        self._needed: dict[int, list[int]] = {}
        self.open = self._joined_shard

    def _joined_shard(self, number: int, local: bool = True) -> JoinedShard:
        return JoinedShard(self, self._joint, number, local)

    def of_batch(self, positions: IntArray) -> tuple[Iterable[Group], OpenByNumber]:
        """Return the samples of a batch by shards, after reading all of them."""
        try:
            own, open_own = self._inner.of_batch(positions)
            groups = list(own)
            found = self._joint.read(positions, (groups, open_own))
        except WidsError:  # raised again where only the sample that failed is replaced
            return self.groups(positions), self.open
        batches = {number: [found[place] for place in places] for number, places, _ in groups}

        def open_shard(number: int, local: bool = True) -> JoinedShard:
            return JoinedShard(self, self._joint, number, local, batches[number])

        return groups, open_shard

    def _key_lookup(self) -> KeyLookup:
        """Return the look-up of keys of the dataset, which is made once for all joins of it."""
        return self._inner._key_lookup()  # noqa: SLF001 - a reader too

    def _shards_needed(self, number: int) -> list[int]:
        """Return the shards of the other side that the samples of a shard need."""
        if number not in self._needed:
            self._needed[number] = self._found_needed(number).tolist()
        return self._needed[number]

    def _found_needed(self, number: int) -> IntArray:
        """Return what `_shards_needed` does, without storing it."""
        return shards_of(self._joint.entries_of(number), self._other.edges)

    def is_local(self, number: int) -> bool:
        """Whether a shard, and what is joined to its samples, can be read without fetching."""
        needed = self._shards_needed(number)
        return self._inner.is_local(number) and all(map(self._other.is_local, needed))

    def nbytes(self, number: int) -> int | None:
        """Return the length of a shard, and of what has to be fetched for its samples."""
        sizes = [self._inner.nbytes(number), *map(self._other.nbytes, self._shards_needed(number))]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def index(self, number: int) -> ShardIndex | None:
        """Return the index of the samples as the first side stores them."""
        return self._inner.index(number)

    def field_names(self, stored: Sequence[str]) -> Sequence[str]:
        """Return the fields of shards, and those joined to them, where these are known."""
        names = (*self._inner.field_names(stored), *self._other.fields(None))
        return list(dict.fromkeys(names))  # `stored` may have those that are joined

    def content(self, number: int) -> tuple[Any, ...]:
        """Return values that change when the samples of a shard, or what is joined to them, do."""
        entries = self._joint.entries_of(number)
        return self._inner.content(number), self._other.content(entries)

    def announce_shards(self, numbers: Sequence[int]) -> None:
        """Note that a pass will read shards, and what is joined to them."""
        self._inner.announce_shards(numbers)
        for each in self._joint.datasets[1:]:
            needed: Sequence[int] = range(len(each.reader.shards))
            if 2 * len(numbers) < len(self.shards):  # otherwise nearly all, without a look-up
                needed = sorted({other for n in numbers for other in self._shards_needed(n)})
            each.reader.announce_shards(needed)

    def let_ahead(self, part: float) -> None:
        """Let batches read shards of both sides by range; see `ShardReader.let_ahead`."""
        for each in self._joint.datasets:
            each.reader.let_ahead(part)

    def fetch(self, number: int, background: BackgroundFetch | None = None) -> None:
        """Fetch a shard, and what is joined to its samples; see `ShardReader.fetch`."""
        self._inner.fetch(number, background)
        for other in self._shards_needed(number):
            self._other.fetch(other, background)

    def only(self, fields: Collection[str] | None) -> JoinedReader:
        """Return a reader that fetches no shard; see `ShardReader.only`."""
        return JoinedReader(self._joint.only(fields))

    @property
    def transformations(self) -> Sequence[Any]:
        """The transformations of both sides, which run before the join."""
        return [step for each in self._joint.datasets for step in each.transformations]

    def undecoded(self) -> JoinedReader:
        """Return a reader that joins the samples of both sides as they are stored."""
        return JoinedReader(self._joint.undecoded())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the transformations of both sides."""
        for each in self._joint.datasets:
            each.dataset.set_epoch(epoch)

    def pass_over_broken(self) -> None:
        """Note broken shards of both sides; see `ShardReader.pass_over_broken`."""
        for each in self._joint.datasets:
            each.reader.pass_over_broken()

    @property
    def num_broken(self) -> int:
        """Number of shards of both sides that were noted as broken."""
        return sum(each.reader.num_broken for each in self._joint.datasets)

    def _cached_together(self) -> list[ShardReader]:
        """Return the readers of both sides that store shards in the cache folder of the first."""
        readers = [each.reader for each in self._joint.datasets]
        return [reader for reader in readers if reader.cache_folder == self.cache_folder]

    @property
    def cache_nbytes(self) -> int | None:
        """The lower of the cache limits of both sides; see `ShardReader.cache_nbytes`."""
        limits = [reader.cache_nbytes for reader in self._cached_together()]
        return min((limit for limit in limits if limit is not None), default=None)

    @cached_property
    def _all_stored_nbytes(self) -> FloatArray:
        return self.stored_nbytes(np.arange(len(self.shards)), set())

    def stored_nbytes(self, numbers: IntArray, counted: set[str]) -> FloatArray:
        """Return the bytes that the cache stores for the samples of shards, of both sides.

        Bytes of the other side that several shards need are divided among them.
        """
        own, others = self._inner.stored_nbytes(numbers, counted), self._cached_together()[1:]
        if not others:
            return own
        (other,) = others
        shares = np.zeros(len(other.shards))
        if not other.stored_nbytes(np.arange(len(shares)), set(counted)).any():
            return own  # nothing is looked up
        # Twice, since the pairs of shards, in random order nearly all, may not fit into memory.
        users = np.zeros(len(shares), np.int64)
        for number in numbers.tolist():
            users[self._found_needed(number)] += 1
        needed = np.flatnonzero(users)
        shares[needed] = other.stored_nbytes(needed, counted) / users[needed]
        sums = [shares[self._found_needed(number)].sum() for number in numbers.tolist()]
        found: FloatArray = own + sums
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process finds the shards that it needs.
        return type(self), (self._joint,)

    def close(self) -> None:
        """Release the open shards of both sides; the next read opens them again."""
        for each in self._joint.datasets:
            each.reader.close()
