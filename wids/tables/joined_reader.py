"""The reader of a joined dataset, around the reader of the dataset that `join` was called on.

Positions, shards and keys are those of that reader; each query about a shard goes to both sides. A
joined dataset differs from others in its reader alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from wids.errors import WidsError
from wids.shards.reader import Group, OpenByNumber, ShardReader
from wids.shards.tars.index import ShardIndex
from wids.storage.array_types import FloatArray, IntArray
from wids.storage.cache.store import BackgroundFetch
from wids.tables.join_parts import Part
from wids.tables.join_sides import Fields, Side
from wids.tables.joined_index import joined_index
from wids.tables.joined_shard import JoinedShard

_MAX_INDEXES: Final = 64
"""Indexes of joined shards that stay in memory, for notebooks and pages."""


class JoinedReader(ShardReader):
    """The shards of a dataset, with fields of another side; see `ShardReader`.

    Args:
        side: The dataset.
        part: What is joined to it.
        fills: As for `JoinedShard`.
    """

    def __init__(self, side: Side, part: Part, *, fills: bool) -> None:
        super().__init__(side.reader.counted)
        self._side = side
        self._inner = side.reader
        self._part = part
        self._fills = fills
        self._indexes: dict[int, tuple[ShardIndex, ShardIndex]] = {}
        self.open = self._joined_shard

    def _joined_shard(self, number: int, local: bool = True) -> JoinedShard:
        return self._shard(number, local, self._inner.open)

    def _shard(
        self,
        number: int,
        local: bool,
        open_own: OpenByNumber,
        batch: list[Fields | None] | None = None,
    ) -> JoinedShard:
        return JoinedShard(
            *(self, self._side, open_own, self._part, number),
            local=local,
            fills=self._fills,
            batch=batch,
        )

    def of_batch(self, positions: IntArray) -> tuple[Iterable[Group], OpenByNumber]:
        """Return the samples of a batch by shards, after reading the other side for all of them."""
        try:
            found = self._part.read_batch(positions)
            own, open_own = self._inner.of_batch(positions)
        except WidsError:  # raised again where only the sample that failed is replaced
            found = None
        if found is None:
            return super().of_batch(positions)
        groups = list(own)
        batches = {number: [found[place] for place in places] for number, places, _ in groups}

        def open_shard(number: int, local: bool = True) -> JoinedShard:
            return self._shard(number, local, open_own, batches[number])

        return groups, open_shard

    def find(self, key: str, number: int | None = None) -> Iterator[int]:
        """Yield the positions of a key of the dataset; see `ShardReader.find`."""
        return self._inner.find(key, number)

    def is_local(self, number: int) -> bool:
        """Whether a shard, and what is joined to its samples, can be read without fetching."""
        return self._inner.is_local(number) and self._part.is_local(number)

    def nbytes(self, number: int) -> int | None:
        """Return the length of a shard, and of what has to be fetched for its samples."""
        own, others = self._inner.nbytes(number), self._part.nbytes(number)
        return None if own is None or others is None else own + others

    def index(self, number: int) -> ShardIndex | None:
        """Return an index with the fields of both sides; None if one would have to be fetched."""
        own = self._inner.index(number)
        if own is None:
            return None
        made_from, joined = self._indexes.get(number, (None, None))
        if made_from is own:
            return joined
        # None yet, or the shard was opened again, and may be another one.
        members = self._part.members(number, own)
        if members is None:
            return None
        # One operation at a time, since other threads may use the dict.
        for old in list(self._indexes)[: len(self._indexes) - _MAX_INDEXES + 1]:
            self._indexes.pop(old, None)
        joined = joined_index(own, members)
        self._indexes[number] = own, joined
        return joined

    def known_index(self, number: int) -> ShardIndex | None:
        """Return the index of a shard of the dataset if it is at hand."""
        return self._inner.known_index(number)

    def key_index(self, number: int) -> ShardIndex:
        """Return an index of a shard of the dataset for its keys."""
        return self._inner.key_index(number)

    def field_names(self, stored: Sequence[str]) -> Sequence[str]:
        """Return the fields of shards, and those joined to them, where these are known."""
        names = (*self._inner.field_names(stored), *self._part.fields())
        return list(dict.fromkeys(names))  # `stored` may have those that are joined

    def identity(self, number: int) -> tuple[Any, ...]:
        """Return values that change when the keys of a shard do."""
        return self._inner.identity(number)

    def content(self, number: int) -> tuple[Any, ...]:
        """Return values that change when the samples of a shard, or what is joined to them, do."""
        reader = self._inner
        return reader.content(number), self._part.content(number, reader.key_index(number))

    def fetch(self, number: int, background: BackgroundFetch | None = None) -> None:
        """Fetch a shard, and what is joined to its samples; see `ShardReader.fetch`."""
        self._inner.fetch(number, background)
        self._part.fetch(number, background)

    def only(self, fields: Collection[str] | None) -> JoinedReader:
        """Return a reader that fetches no shard; see `ShardReader.only`."""
        side, part = self._side.only(fields), self._part.only(fields)
        return JoinedReader(side, part, fills=self._fills)

    @property
    def transformations(self) -> Sequence[Any]:
        """The transformations of both sides, which run before the join."""
        return *self._side.transformations, *self._part.transformations

    def undecoded(self) -> JoinedReader:
        """Return a reader that joins the samples of both sides as they are stored."""
        return JoinedReader(self._side.undecoded(), self._part.undecoded(), fills=self._fills)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the transformations of both sides."""
        self._side.dataset.set_epoch(epoch)
        self._part.set_epoch(epoch)

    @property
    def cache_nbytes(self) -> int | None:
        """The lower of the cache limits of both sides; see `ShardReader.cache_nbytes`."""
        limits = self._inner.cache_nbytes, self._part.cache_nbytes(self.cache_folder)
        return min((limit for limit in limits if limit is not None), default=None)

    def stored_nbytes(self, numbers: IntArray, counted: set[str]) -> FloatArray:
        """Return the bytes that the cache stores for the samples of shards, of both sides."""
        own = self._inner.stored_nbytes(numbers, counted)
        return own + self._part.stored_nbytes(self.cache_folder, numbers, counted)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the indexes: another process makes those that it shows.
        return partial(type(self), fills=self._fills), (self._side, self._part)

    def close(self) -> None:
        """Release the open shards of both sides; the next read opens them again."""
        self._inner.close()
        self._part.close()
        self._indexes.clear()
