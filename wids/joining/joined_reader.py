"""The readers of two sides → the reader of the joined dataset.

Positions, shards and keys are those of the first side; each question about a shard is asked of both
sides. A joined dataset differs from others in its reader alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from wids.cache.store import BackgroundFetch
from wids.errors import WidsError
from wids.joining.join_parts import Part
from wids.joining.join_sides import Fields, Side
from wids.joining.joined_index import joined_index
from wids.joining.joined_shard import JoinedShard
from wids.reading.position_array import IntArray
from wids.reading.reader import ShardReader
from wids.tars.index import ShardIndex

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
        # Shards, edges, options and cache are those of the dataset, without opening it again.
        vars(self).update(vars(side.reader))
        self._side = side
        self._part = part
        self._fills = fills
        self._indexes: dict[int, tuple[ShardIndex, ShardIndex]] = {}
        self._bind()

    def _bind(self) -> None:
        super()._bind()
        self.open = self._joined_shard

    def _joined_shard(self, number: int, local: bool = True) -> JoinedShard:
        side, part = self._side, self._part
        return JoinedShard(self, side, side.reader, part, number, local=local, fills=self._fills)

    def of_batch(self, positions: IntArray) -> ShardReader:
        """Return a reader for one batch, which reads the other side for all its shards at once."""
        try:
            found = self._part.read_batch(positions)
            left = self._side.reader.of_batch(positions)
        except WidsError:  # raised again where only the sample that failed is replaced
            return self
        return self if found is None else _BatchReader(self, left, found)

    def find(self, key: str, number: int | None = None) -> Iterator[int]:
        """Yield the positions of a key of the dataset; see `ShardReader.find`."""
        return self._side.reader.find(key, number)

    def is_local(self, number: int) -> bool:
        """Whether a shard, and what is joined to its samples, can be read without fetching."""
        return self._side.reader.is_local(number) and self._part.is_local(number)

    def nbytes(self, number: int) -> int | None:
        """Return the length of a shard, and of what has to be fetched for its samples."""
        own, others = self._side.reader.nbytes(number), self._part.nbytes(number)
        return None if own is None or others is None else own + others

    def index(self, number: int) -> ShardIndex | None:
        """Return an index with the fields of both sides; None if one would have to be fetched."""
        own = self._side.reader.index(number)
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
        return self._side.reader.known_index(number)

    def key_index(self, number: int) -> ShardIndex:
        """Return an index of a shard of the dataset for its keys."""
        return self._side.reader.key_index(number)

    def field_names(self, stored: Sequence[str]) -> Sequence[str]:
        """Return the fields of shards, and those joined to them as far as they are known."""
        names = (*self._side.reader.field_names(stored), *self._part.fields())
        return list(dict.fromkeys(names))  # `stored` may have those that are joined

    def identity(self, number: int) -> tuple[Any, ...]:
        """Return what changes when the keys of a shard do."""
        return self._side.reader.identity(number)

    def content(self, number: int) -> tuple[Any, ...]:
        """Return what changes when the samples of a shard, or what is joined to them, do."""
        reader = self._side.reader
        return reader.content(number), self._part.content(number, reader.key_index(number))

    def fetch(self, number: int, background: BackgroundFetch | None = None) -> None:
        """Fetch a shard, and what is joined to its samples; see `ShardReader.fetch`."""
        self._side.reader.fetch(number, background)
        self._part.fetch(number, background)

    def only(self, fields: Collection[str] | None) -> JoinedReader:
        """Return a reader that fetches no shard; see `ShardReader.only`."""
        side, part = self._side.only(fields), self._part.only(fields)
        return JoinedReader(side, part, fills=self._fills)

    @property
    def transformations(self) -> Sequence[Any]:
        """What the samples of both sides pass through before they are joined."""
        return *self._side.transformations, *self._part.transformations

    def undecoded(self) -> JoinedReader:
        """Return a reader that joins the samples of both sides as they are stored."""
        return JoinedReader(self._side.undecoded(), self._part.undecoded(), fills=self._fills)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the transformations of both sides."""
        self._side.dataset.set_epoch(epoch)
        self._part.set_epoch(epoch)

    def __getstate__(self) -> dict[str, Any]:
        # Another process makes the indexes that it shows.
        return {**super().__getstate__(), "_indexes": {}}

    def close(self) -> None:
        """Release the open shards of both sides; the next read opens them again."""
        self._side.reader.close()
        self._part.close()
        self._indexes.clear()


class _BatchReader(JoinedReader):
    """A joined reader for one batch, and one thread.

    Args:
        reader: The joined reader.
        left: The reader of the first side for the batch.
        found: The fields of the other side, in the order of the batch.
    """

    def __init__(
        self,
        reader: JoinedReader,
        left: ShardReader,
        found: list[Fields | None],
    ) -> None:
        vars(self).update(vars(reader))
        self._left = left
        self._found = found
        self._places: dict[int, list[int]] = {}
        self.open = self._joined_shard

    def groups(self, positions: IntArray) -> Iterator[tuple[int, list[int], list[int]]]:
        """Yield the samples of the batch shard by shard; see `ShardReader.groups`."""
        # Through the other reader, which has to know them too.
        for number, places, group in self._left.groups(positions):
            self._places[number] = places
            yield number, places, group

    def _joined_shard(self, number: int, local: bool = True) -> JoinedShard:
        batch = [self._found[place] for place in self._places[number]]
        side, part = self._side, self._part
        return JoinedShard(
            self, side, self._left, part, number, local=local, fills=self._fills, batch=batch
        )
