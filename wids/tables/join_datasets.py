"""Use a second dataset as the other side of a join, by the shards of the first one.

`join_store.PositionMap` maps the samples of the first dataset to those of the second.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wids.shards.tars.index import ShardIndex
from wids.storage.array_types import FloatArray, IntArray
from wids.storage.cache.store import BackgroundFetch
from wids.tables.column_values import DecodeMany
from wids.tables.join_parts import Members
from wids.tables.join_sides import Fields, Names, Side
from wids.tables.join_store import PositionMap
from wids.tables.joined_index import payload_crcs


@dataclass(frozen=True, eq=False)
class DatasetPart:
    """A second dataset as the other side of a join; see `Part`.

    Attributes:
        side: The dataset.
        edges: Where the shards of the first dataset begin, and the end of the last one.
        positions: The samples of the second dataset that belong to those of the first.
        names: The names of the fields.
    """

    side: Side
    edges: IntArray
    positions: PositionMap
    names: Names
    _shards: dict[int, list[int]] = field(default_factory=dict)

    def read(
        self,
        number: int,  # noqa: ARG002 - the positions say all
        positions: Sequence[int],
        keys: Sequence[str],  # noqa: ARG002 - the same
        *,
        local: bool,  # noqa: ARG002 - each side fetches as its own settings say
    ) -> list[Fields | None]:
        """Return the fields of samples, grouped by the shards of the second dataset."""
        return self.read_batch(positions)

    def read_batch(self, positions: Sequence[int] | IntArray) -> list[Fields | None]:
        """Return the fields of samples of any shards; see `Part.read_batch`."""
        targets = self.positions.at(np.asarray(positions, np.int64))
        places = np.flatnonzero(targets >= 0).tolist() if (targets < 0).any() else None
        targets = targets if places is None else targets[places]
        found: list[Fields | None] = [None] * len(positions)
        groups, open_shard = self.side.reader.of_batch(targets)
        local = self.side.reader.fetches_for_many
        is_raw = self.side.is_plain and not self.names.prefix
        for other, group, local_indices in groups:
            keys, samples = self.side.read(open_shard, other, local_indices, local=local)
            fields = samples if is_raw else self._renamed(keys, samples)
            indices = group if places is None else [places[index] for index in group]
            for index, item in zip(indices, fields, strict=True):
                found[index] = item
        return found

    def read_one(
        self,
        number: int,  # noqa: ARG002 - the position says all
        position: int,
        key: str,  # noqa: ARG002 - the same
        *,
        local: bool,
    ) -> Fields | None:
        """Return the fields of one sample."""
        target = self.positions.one(position)
        if target < 0:
            return None
        reader = self.side.reader
        # Its own settings apply: where it must not fetch, it reads by range.
        local = reader.fetches_for_one or (local and reader.fetches_for_many)
        other, local_index = reader.locate(target)
        stored, sample = self.side.read_one(reader.open, other, local_index, local=local)
        if self.side.is_plain and not self.names.prefix:
            fields: Fields = sample
            return fields
        return next(self._renamed([stored], [sample]))

    def _renamed(self, keys: list[str], samples: list[Fields]) -> Iterator[Fields]:
        """Yield samples with other names, and without labels except for the stored key."""
        if not self.side.is_plain:
            self.side.check(samples)
        latest: tuple[Any, ...] = ()
        pairs: list[tuple[Any, Any]] = []
        for key, sample in zip(keys, samples, strict=True):
            # Nearly all samples have the names of the previous one, and looking at each name again
            # would take longer than joining the sample.
            names = tuple(sample)
            if names != latest:
                latest, pairs = names, self.names.pairs(names)
            fields = {new: sample[name] for name, new in pairs}
            fields["__key__"] = key
            yield fields

    def values(
        self,
        number: int,  # noqa: ARG002 - the positions say all
        positions: Sequence[int],
        keys: Sequence[str],
        field: str,
        decode: DecodeMany,
        *,
        local: bool,
    ) -> tuple[list[str], list[Any]]:
        """Return the keys and the values of one field, by the shards of the second dataset."""
        stored, values = list(keys), [None] * len(positions)
        targets = self.positions.at(np.asarray(positions, np.int64))
        present = np.flatnonzero(targets >= 0)
        reader, own = self.side.reader, self.names.own([field])
        local = reader.fetches_for_one or (local and reader.fetches_for_many)
        for other, group, local_indices in reader.groups(targets[present]):
            rows = np.array(local_indices)
            found, having, items = self.side.values(other, rows, own[0], decode, local=local)
            places = present[group]
            for place, key in zip(places.tolist(), found, strict=True):
                stored[place] = key
            for place, item in zip(places[having].tolist(), items, strict=True):
                values[place] = item
        return stored, values

    def fields(self, number: int | None = None) -> Sequence[str]:  # noqa: ARG002 - the same for all shards
        """Return the fields that the second dataset reads of its shards, as they are stored."""
        stored = self.positions.fields
        read = self.side.reader.field_names(stored) if stored else ()
        return [self.names[name] for name in read]

    def members(self, number: int, index: ShardIndex) -> Members | None:
        """Return the fields of the samples of one shard, from the indexes of the other shards."""
        start = int(self.edges[number])
        targets = self.positions.at(np.arange(start, start + len(index)))
        parts, names = [], dict[str, int]()
        present = np.flatnonzero(targets >= 0)
        for other, group, local_indices in self.side.reader.groups(targets[present]):
            other_index = self.side.reader.index(other)
            if other_index is None:
                return None
            ids = [names.setdefault(self.names[f], len(names)) for f in other_index.fields]
            samples = present[group]
            parts.append(_gathered(other_index, samples, np.array(local_indices), np.array(ids)))
        columns = np.concatenate([np.empty((4, 0), np.int64), *parts], axis=1)
        return Members(columns[0], columns[1], columns[2], columns[3], tuple(names))

    def content(self, number: int, index: ShardIndex) -> tuple[Any, ...]:
        """Return the shards of the second dataset that are used, and which samples of them."""
        start, reader = int(self.edges[number]), self.side.reader
        targets = np.ascontiguousarray(self.positions.at(np.arange(start, start + len(index))))
        used = tuple(reader.content(other) for other in self._others(number))
        names = (self.names.prefix, *sorted(reader.fields or ()))
        return zlib.crc32(targets.tobytes()), used, names

    def read_part(
        self,
        number: int,  # noqa: ARG002 - the position says all
        position: int,
        key: str,
        field: str,
    ) -> tuple[str, Callable[..., bytes]]:
        """Return the key of a sample, and the callable that reads one of its fields in parts."""
        target = int(self.positions.at(np.array([position]))[0])
        if target < 0 or not (own := self.names.own([field])):
            raise KeyError(f"sample {key!r} has no field {field}")
        other, local_index = self.side.reader.locate(target)
        shard = self.side.reader.open(other, local=False)
        stored = shard.index.key(local_index)
        return stored, lambda start, stop: shard.read_part(local_index, own[0], start, stop)

    def _others(self, number: int) -> list[int]:
        """Return the shards of the second dataset that the samples of one shard need."""
        if number not in self._shards:
            self._shards[number] = self._found_others(number).tolist()
        return self._shards[number]

    def _found_others(self, number: int) -> IntArray:
        """Return what `_others` does, without storing it."""
        targets = self.positions.at(np.arange(self.edges[number], self.edges[number + 1]))
        # Sorted, they are found in a fifth of the time that `np.unique` takes in random order.
        targets = np.sort(targets[targets >= 0])
        others = np.searchsorted(self.side.reader.edges[1:], targets, side="right")
        is_first = np.ones(len(others), bool)
        np.not_equal(others[1:], others[:-1], out=is_first[1:])
        return others[is_first]

    def is_local(self, number: int) -> bool:
        """Whether all shards that the samples of one shard need are local."""
        return all(map(self.side.reader.is_local, self._others(number)))

    def nbytes(self, number: int) -> int | None:
        """Return the length of those shards that are not local."""
        reader = self.side.reader
        sizes = [
            reader.nbytes(other) for other in self._others(number) if not reader.is_local(other)
        ]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def cache_nbytes(self, folder: str) -> int | None:
        """Return the limit of the second dataset's cache, if it is the one in a folder."""
        reader = self.side.reader
        return reader.cache_nbytes if reader.cache_folder == folder else None

    def stored_nbytes(
        self, folder: str, numbers: IntArray, counted: set[str]
    ) -> FloatArray | float:
        """Return the bytes of the second dataset's shards; see `Part.stored_nbytes`."""
        reader = self.side.reader
        shares = np.zeros(len(reader.shards))
        if reader.cache_folder != folder:
            return 0.0
        if not reader.stored_nbytes(np.arange(len(shares)), set(counted)).any():
            return 0.0  # nothing is looked up
        # Twice, since the pairs of shards, in random order nearly all, may not fit into memory.
        users = np.zeros(len(shares), np.int64)
        for number in numbers.tolist():
            users[self._found_others(number)] += 1
        needed = np.flatnonzero(users)
        shares[needed] = reader.stored_nbytes(needed, counted) / users[needed]
        return np.array([shares[self._found_others(number)].sum() for number in numbers.tolist()])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_shards": {}}  # another process finds those that it needs

    def fetch(self, number: int, background: BackgroundFetch | None) -> None:
        """Fetch all shards that the samples of one shard need."""
        for other in self._others(number):
            self.side.reader.fetch(other, background)

    def only(self, fields: Collection[str] | None) -> DatasetPart:
        """Return the part that reads undecoded fields, or fetches nothing."""
        own = None if fields is None else self.names.own(fields)
        return DatasetPart(self.side.only(own), self.edges, self.positions, self.names)

    @property
    def transformations(self) -> Sequence[Any]:
        """The transformations of the second dataset."""
        return self.side.transformations

    def undecoded(self) -> DatasetPart:
        """Return the part whose samples are as they are stored."""
        return DatasetPart(self.side.undecoded(), self.edges, self.positions, self.names)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the transformations of the second dataset."""
        self.side.dataset.set_epoch(epoch)

    def close(self) -> None:
        """Release the open shards of the second dataset."""
        self.side.reader.close()


def _gathered(index: ShardIndex, samples: IntArray, local: IntArray, ids: IntArray) -> IntArray:
    """Return samples, sizes, field numbers and checksums of members of some samples."""
    starts = index.member_starts.astype(np.int64)
    counts = starts[local + 1] - starts[local]
    # The members of each sample are consecutive: where they start, less how many precede.
    firsts = np.repeat(starts[local] - np.cumsum(counts) + counts, counts)
    members = firsts + np.arange(len(firsts))
    sizes = index.sizes[members].astype(np.int64)
    crcs = payload_crcs(index)[members]
    return np.stack([np.repeat(samples, counts), sizes, ids[index.field_ids[members]], crcs])
