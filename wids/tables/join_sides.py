"""Read the samples of a dataset for a join: with their stored keys, labelled and transformed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

from wids.errors import JoinError, ShardFormatError
from wids.shards.reader import OpenByNumber, ShardReader
from wids.shards.sample_access import SampleAccess, required_access
from wids.shards.tars.raw_samples import Labels
from wids.storage.array_types import IntArray
from wids.tables.column_reader import members_in, values_in
from wids.tables.column_values import DecodeMany

Fields: TypeAlias = dict[str, Any]


class Names(dict[Any, Any]):
    """Maps the field names of the other side to those in joined samples, with a prefix.

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

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples."""

    def only(self, fields: Collection[str] | None) -> JoinableDataset:
        """Return the same samples, fetching no shards, and undecoded if fields are named."""

    def undecoded(self) -> JoinableDataset:
        """Return the same samples as they are stored."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the transformations."""


@dataclass(frozen=True, eq=False)
class Side:
    """A dataset as a join reads it.

    Attributes:
        dataset: All samples of the shards, which raises where a sample cannot be produced.
    """

    dataset: JoinableDataset

    @cached_property
    def access(self) -> SampleAccess:
        """How the samples are read."""
        return required_access(self.dataset)

    @property
    def reader(self) -> ShardReader:
        """The shards."""
        return self.access.reader

    @property
    def is_plain(self) -> bool:
        """Whether samples are as they are stored."""
        return not (self.access.transformations or self.access.is_overridden)

    def read(
        self, open_shard: OpenByNumber, number: int, local_indices: Sequence[int], *, local: bool
    ) -> tuple[list[str], list[Any]]:
        """Return the keys of samples of one shard as they are stored, and the samples.

        Those of a plain dataset are new dicts, with the key. Others have been labelled and
        transformed, and may be anything.

        Args:
            open_shard: Opens the shards of the dataset: its reader's, or that of a batch.
            number: The shard.
            local_indices: The samples.
            local: As for `ShardPool.get`.
        """
        access, reader = self.access, self.reader
        if access.is_overridden:
            start, index = reader.starts[number], reader.key_index(number)
            positions = [start + local_index for local_index in local_indices]
            return list(map(index.key, local_indices)), self.dataset.__getitems__(positions)
        verify = reader.verifies_decoded if access.transformations else reader.verifies_raw
        shard = open_shard(number, local=local)
        try:
            samples: list[Any] = shard.read_many(
                local_indices, verify=verify, labels=self._labels(number)
            )
        except ShardFormatError as error:
            if not reader.replaces(number, shard, error):
                raise
            return self.read(open_shard, number, local_indices, local=local)
        keys = [sample["__key__"] for sample in samples]
        if access.transformations:
            samples = list(map(access.transformed, samples))
        return keys, samples

    def read_one(
        self, open_shard: OpenByNumber, number: int, local_index: int, *, local: bool
    ) -> tuple[str, Any]:
        """Return the key of one sample as it is stored, and the sample; see `read`."""
        access, reader = self.access, self.reader
        if not access.is_overridden:
            verify = reader.verifies_decoded if access.transformations else reader.verifies_raw
            shard = open_shard(number, local=local)
            try:
                sample: Any = shard.read(local_index, verify, self._labels(number))
            except ShardFormatError as error:
                if not reader.replaces(number, shard, error):
                    raise
            else:
                key = sample["__key__"]
                if access.transformations:
                    sample = access.transformed(sample)
                return key, sample
        (key,), (sample,) = self.read(open_shard, number, [local_index], local=local)
        return key, sample

    def values(
        self,
        number: int,
        local_indices: IntArray,
        field: str,
        decode: DecodeMany,
        *,
        local: bool,
    ) -> tuple[list[str], IntArray, list[Any]]:
        """Return one stored field of samples of one shard, which ascend.

        Returns:
            The keys of all these samples, which of them have the field, and its values there.
        """
        reader = self.reader
        shard = reader.open(number, local=local)
        index = shard.index
        places, members = members_in(index, field, local_indices)
        try:
            found = values_in(shard, members, decode, verify=reader.verifies_decoded)
        except ShardFormatError as error:
            if not reader.replaces(number, shard, error):
                raise
            return self.values(number, local_indices, field, decode, local=local)
        return list(map(index.key, local_indices.tolist())), places, found

    def _labels(self, number: int) -> Labels | None:
        """Return the labels that transformations see; None if there are none."""
        access = self.access
        return self.reader.labels(number, access.dataset_name) if access.transformations else None

    def check(self, samples: list[Any]) -> None:
        """Raise `JoinError` if transformations returned anything but dicts."""
        for sample in samples:
            # The first check nearly always decides, and takes a tenth of the second.
            if type(sample) is not dict and not isinstance(sample, Mapping):
                raise JoinError(
                    f"{self}: expected samples that are dicts, to join their fields, found "
                    f"{type(sample).__name__} {sample!r:.80}; join the datasets first, and then "
                    "use map or to_tuple on the joined dataset"
                )

    @property
    def transformations(self) -> Sequence[Any]:
        """Its transformations, those of joins, and its class if that overrides samples."""
        access = self.access
        own = [type(self.dataset)] if access.is_overridden else []
        return *access.reader.transformations, *access.transformations, *own

    def undecoded(self) -> Side:
        """Return the side whose samples are as they are stored."""
        return Side(self.dataset.undecoded())

    def only(self, fields: Collection[str] | None) -> Side:
        """Return the side that fetches no shards; see `ShardReader.only`."""
        return Side(self.dataset.only(fields))

    def __str__(self) -> str:
        return self.access.dataset_name or "the dataset"
