"""One side of a join → its samples, with their keys; and what every kind of other side offers.

A `Side` reads a dataset as a join needs it: raw samples, whose keys are compared, then labelled and
transformed. `DatasetPart` is a second dataset. Nothing here puts two samples together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from wids.cache.store import BackgroundFetch
from wids.columns.join_store import PositionMap
from wids.errors import JoinError, ShardFormatError
from wids.reading.position_array import IntArray
from wids.reading.reader import ShardReader
from wids.tars.index import ShardIndex

Fields: TypeAlias = dict[str, Any]


class Names(dict[Any, Any]):
    """The field names of the other side → those in joined samples, with a prefix.

    With ``"b"``, ``.txt`` becomes ``.b.txt`` and ``txt`` becomes ``b.txt``. The empty name, that of
    a value alone, becomes ``.b``, or ``.value`` without a prefix. Labels, ``__…__``, become None.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix

    def __missing__(self, name: Any) -> Any:
        prefix, joined = self.prefix, name
        if isinstance(name, str):
            if name.startswith("__"):
                joined = None
            elif not name:
                joined = f".{prefix or 'value'}"
            elif prefix:
                joined = f".{prefix}{name}" if name.startswith(".") else f"{prefix}.{name}"
        self[name] = joined
        return joined

    def pairs(self, names: tuple[Any, ...]) -> list[tuple[Any, Any]]:
        """Return the fields among the names of a sample, each with its name in joined samples."""
        return [(name, self[name]) for name in names if self[name] is not None]

    def own(self, names: Collection[str]) -> list[str]:
        """Return which fields of the other side have these names in joined samples."""
        start = f".{self.prefix}." if self.prefix else "."
        return [f".{name[len(start) :]}" for name in names if name.startswith(start)]

    def __reduce__(self) -> tuple[Any, ...]:
        return Names, (self.prefix,)


class JoinableDataset(Protocol):
    """What a join asks of a dataset."""

    reader: ShardReader
    dataset_name: str
    transformations: list[Any]

    @property
    def is_overridden(self) -> bool:
        """Whether a subclass decides what a sample is."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples."""

    def transformed(self, sample: Any) -> Any:
        """Return what the transformations make of a labelled sample."""

    def only(self, fields: Collection[str] | None) -> JoinableDataset:
        """Return the same samples, fetching no shards, and undecoded if fields are named."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the transformations."""


@dataclass(frozen=True, eq=False)
class Side:
    """A dataset as a join reads it.

    Attributes:
        dataset: All samples of the shards, which raises where a sample cannot be produced.
    """

    dataset: JoinableDataset

    @property
    def reader(self) -> ShardReader:
        """The shards."""
        return self.dataset.reader

    @property
    def is_plain(self) -> bool:
        """Whether samples are as they are stored."""
        return not (self.dataset.transformations or self.dataset.is_overridden)

    def read(
        self, reader: ShardReader, number: int, local_indices: Sequence[int], *, local: bool
    ) -> tuple[list[str], list[Any]]:
        """Return the keys of samples of one shard as they are stored, and the samples.

        Those of a plain dataset are dicts of the caller's own, with the key. Others have been
        labelled and transformed, and may be anything.

        Args:
            reader: The dataset's reader, or its reader of a batch.
            number: The shard.
            local_indices: The samples.
            local: As for `ShardPool.get`.
        """
        dataset = self.dataset
        if dataset.is_overridden:
            start, index = reader.starts[number], reader.key_index(number)
            positions = [start + local_index for local_index in local_indices]
            return list(map(index.key, local_indices)), dataset.__getitems__(positions)
        verify = reader.verifies_decoded if dataset.transformations else reader.verifies_raw
        shard = reader.open(number, local=local)
        try:
            samples: list[Any] = shard.read_many(local_indices, verify=verify)
        except ShardFormatError as error:
            if not reader.replaces(number, shard, error):
                raise
            return self.read(reader, number, local_indices, local=local)
        keys = [sample["__key__"] for sample in samples]
        if dataset.transformations:
            self._label(number, local_indices, samples)
            samples = list(map(dataset.transformed, samples))
        return keys, samples

    def read_one(
        self, reader: ShardReader, number: int, local_index: int, *, local: bool
    ) -> tuple[str, Any]:
        """Return the key of one sample as it is stored, and the sample; see `read`."""
        dataset = self.dataset
        if not dataset.is_overridden:
            verify = reader.verifies_decoded if dataset.transformations else reader.verifies_raw
            shard = reader.open(number, local=local)
            try:
                sample: Any = shard.read(local_index, verify)
            except ShardFormatError as error:
                if not reader.replaces(number, shard, error):
                    raise
            else:
                key = sample["__key__"]
                if dataset.transformations:
                    self._label(number, [local_index], [sample])
                    sample = dataset.transformed(sample)
                return key, sample
        (key,), (sample,) = self.read(reader, number, [local_index], local=local)
        return key, sample

    def _label(self, number: int, local_indices: Sequence[int], samples: list[Fields]) -> None:
        shard, start = self.reader.shards[number], self.reader.starts[number]
        name = shard.dataset or self.dataset.dataset_name
        for local_index, sample in zip(local_indices, samples, strict=True):
            sample["__index__"] = start + local_index
            sample["__shard__"] = shard.url
            sample["__shardindex__"] = local_index
            sample["__dataset__"] = name

    def check(self, samples: list[Any]) -> None:
        """Raise `JoinError` if transformations have made something else than dicts of samples."""
        for sample in samples:
            # The first question answers nearly always, and takes a tenth of the second.
            if type(sample) is not dict and not isinstance(sample, Mapping):
                raise JoinError(
                    f"{self}: expected samples that are dicts, to join their fields, found "
                    f"{type(sample).__name__} {sample!r:.80}; join the datasets first, and then "
                    "use map or to_tuple on the joined dataset"
                )

    def only(self, fields: Collection[str] | None) -> Side:
        """Return the side that fetches no shards; see `ShardReader.only`."""
        return Side(self.dataset.only(fields))

    def __str__(self) -> str:
        return self.dataset.dataset_name or "the dataset"


class Members(NamedTuple):
    """Fields of the samples of one shard, for its index.

    Attributes:
        samples: The sample of each field, shape ``(num_members,)``.
        sizes: Its length in bytes.
        field_ids: Its name, as a position in ``names``.
        names: The names in joined samples.
    """

    samples: IntArray
    sizes: IntArray
    field_ids: IntArray
    names: tuple[str, ...]


class Part(Protocol):
    """The other side of a join: fields for the samples of a dataset, shard by shard.

    Names of fields are those in joined samples.
    """

    def read(
        self, number: int, positions: Sequence[int], keys: Sequence[str], *, local: bool
    ) -> list[Fields | None]:
        """Return the fields of samples of one shard, in new dicts; None for a missing sample.

        Fields that came with a key have it under ``__key__``, to be compared.

        Args:
            number: The shard of the dataset.
            positions: Positions of its samples.
            keys: Their keys.
            local: As for `ShardPool.get`.
        """

    def read_one(self, number: int, position: int, key: str, *, local: bool) -> Fields | None:
        """Return what `read` returns for one sample."""

    def read_batch(
        self, positions: Sequence[int] | IntArray, *, local: bool
    ) -> list[Fields | None] | None:
        """Return the fields of samples of any shards, read together; None if it cannot."""

    def fields(self, number: int | None = None) -> Sequence[str]:
        """Return the fields that samples of one shard can have, or those of all with None.

        Only as far as they are known: before transformations, and without reading samples.
        """

    def members(self, number: int, index: ShardIndex) -> Members | None:
        """Return what an index says of the samples of one shard; None if it is not available.

        Args:
            number: The shard of the dataset.
            index: Its own index.
        """

    def read_part(self, number: int, position: int, key: str, field: str) -> Callable[..., bytes]:
        """Return the callable that returns bytes of a field of one sample, from start to stop.

        Raises:
            KeyError: The sample does not have the field.
        """

    def is_local(self, number: int) -> bool:
        """Whether the fields of the samples of one shard can be read without fetching."""

    def nbytes(self, number: int) -> int | None:
        """Return how many bytes have to be fetched for the samples of one shard, if known."""

    def fetch(self, number: int, background: BackgroundFetch | None) -> None:
        """Fetch what the samples of one shard need."""

    def only(self, fields: Collection[str] | None) -> Part:
        """Return the part that has only these fields, undecoded, and fetches no shards."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the transformations."""

    def close(self) -> None:
        """Release what is open."""


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
        local: bool,
    ) -> list[Fields | None]:
        """Return the fields of samples, grouped by the shards of the second dataset."""
        return self.read_batch(positions, local=local)

    def read_batch(
        self, positions: Sequence[int] | IntArray, *, local: bool
    ) -> list[Fields | None]:
        """Return the fields of samples of any shards; see `Part.read_batch`."""
        targets = self.positions.at(np.asarray(positions, np.int64))
        places = np.flatnonzero(targets >= 0).tolist() if (targets < 0).any() else None
        targets = targets if places is None else targets[places]
        found: list[Fields | None] = [None] * len(positions)
        reader = self.side.reader.of_batch(targets)
        is_raw = self.side.is_plain and not self.names.prefix
        for other, group, members in reader.groups(targets):
            start = reader.starts[other]
            local_indices = [position - start for position in members]
            keys, samples = self.side.read(reader, other, local_indices, local=local)
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
        other, local_index = reader.locate(target)
        stored, sample = self.side.read_one(reader, other, local_index, local=local)
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
            # Nearly all samples have the names of the one before, and to look at each name again
            # would take longer than to join the sample.
            names = tuple(sample)
            if names != latest:
                latest, pairs = names, self.names.pairs(names)
            fields = {new: sample[name] for name, new in pairs}
            fields["__key__"] = key
            yield fields

    def fields(self, number: int | None = None) -> Sequence[str]:  # noqa: ARG002 - the same for all shards
        """Return the fields that the shards of the second dataset have, as they are stored."""
        return [self.names[name] for name in self.positions.fields]

    def members(self, number: int, index: ShardIndex) -> Members | None:
        """Return the fields of the samples of one shard, from the indexes of the other shards."""
        start = int(self.edges[number])
        targets = self.positions.at(np.arange(start, start + len(index)))
        parts, names = [], dict[str, int]()
        present = np.flatnonzero(targets >= 0)
        for other, group, members in self.side.reader.groups(targets[present]):
            other_index = self.side.reader.index(other)
            if other_index is None:
                return None
            local_indices = np.array(members) - self.side.reader.starts[other]
            ids = [names.setdefault(self.names[f], len(names)) for f in other_index.fields]
            parts.append(_gathered(other_index, present[group], local_indices, np.array(ids)))
        columns = np.concatenate([np.empty((3, 0), np.int64), *parts], axis=1)
        return Members(columns[0], columns[1], columns[2], tuple(names))

    def read_part(self, number: int, position: int, key: str, field: str) -> Callable[..., bytes]:  # noqa: ARG002 - the position says all
        """Return the callable that reads a field of the second dataset in parts."""
        target = int(self.positions.at(np.array([position]))[0])
        if target < 0 or not (own := self.names.own([field])):
            raise KeyError(f"sample {key!r} has no field {field}")
        other, local_index = self.side.reader.locate(target)
        shard = self.side.reader.open(other, local=False)
        return lambda start, stop: shard.read_part(local_index, own[0], start, stop)

    def _others(self, number: int) -> list[int]:
        """Return the shards of the second dataset that the samples of one shard need."""
        if number not in self._shards:
            start, stop = int(self.edges[number]), int(self.edges[number + 1])
            targets = self.positions.at(np.arange(start, stop))
            ends = self.side.reader.edges[1:]
            others = np.unique(np.searchsorted(ends, targets[targets >= 0], side="right"))
            self._shards[number] = others.tolist()
        return self._shards[number]

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

    def fetch(self, number: int, background: BackgroundFetch | None) -> None:
        """Fetch all shards that the samples of one shard need."""
        for other in self._others(number):
            self.side.reader.fetch(other, background)

    def only(self, fields: Collection[str] | None) -> DatasetPart:
        """Return the part that reads undecoded fields, or fetches nothing."""
        own = None if fields is None else self.names.own(fields)
        return DatasetPart(self.side.only(own), self.edges, self.positions, self.names)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the transformations of the second dataset."""
        self.side.dataset.set_epoch(epoch)

    def close(self) -> None:
        """Release the open shards of the second dataset."""
        self.side.reader.close()


def _gathered(index: ShardIndex, samples: IntArray, local: IntArray, ids: IntArray) -> IntArray:
    """Return samples, sizes and field numbers of the members of some samples of an index."""
    starts = index.member_starts.astype(np.int64)
    counts = starts[local + 1] - starts[local]
    # The members of each sample are consecutive: where they start, less how many came before.
    firsts = np.repeat(starts[local] - np.cumsum(counts) + counts, counts)
    members = firsts + np.arange(len(firsts))
    sizes = index.sizes[members].astype(np.int64)
    return np.stack([np.repeat(samples, counts), sizes, ids[index.field_ids[members]]])
