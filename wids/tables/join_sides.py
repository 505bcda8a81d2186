"""Define the other side of a join, and use a second dataset as one.

An *entry* is a row, a position in a second dataset (`DatasetSide`), or a position in the first
dataset, for which the file beside its shard has fields. `join_rows` has rows and files.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from wids.errors import JoinError
from wids.shards.policy import Wanted
from wids.shards.reader import ShardReader
from wids.shards.sample_access import IndexedDataset, SampleAccess, required_access
from wids.storage.arrays import IntArray
from wids.storage.download import Report
from wids.tables.column_values import KEY
from wids.tables.join_fields import Fields, Names, as_bytes


@dataclass(frozen=True, eq=False)
class KeyedSamples:
    """The samples of a dataset, each with its key as it is stored.

    Attributes:
        dataset: All samples of the shards, which raises where a sample cannot be produced.
        is_compared: Whether samples are compared with checksums although they are not decoded here.
    """

    dataset: IndexedDataset
    is_compared: bool = False

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

    @cached_property
    def _stored(self) -> SampleAccess:
        is_verified = self.is_compared or bool(self.access.transformations)
        return self.access.before_steps(is_verified=is_verified)

    def read(self, positions: IntArray, wanted: Wanted) -> tuple[list[str], list[Any]]:
        """Return the keys of samples as they are stored, and the samples.

        Those of a plain dataset are new dicts. Others have been transformed, and may be anything.

        Args:
            positions: The samples.
            wanted: What is wanted of the shard of a single sample.
        """
        access, reader = self.access, self.reader
        if access.is_overridden:
            places = map(reader.locate, positions.tolist())
            keys = [reader.key_index(number).key(local_index) for number, local_index in places]
            return keys, self.dataset.__getitems__(positions.tolist())
        if len(positions) == 1:
            position = int(positions[0])
            number = reader.locate(position)[0]
            samples = [self._stored.read(position, number, wanted)]
        else:
            samples = self._stored.batch(positions)
        keys = [sample["__key__"] for sample in samples]
        if access.transformations:
            samples = access.transformed_together(samples)
        return keys, samples

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
        return *access.steps, *own

    def undecoded(self) -> KeyedSamples:
        """Return the samples as they are stored, compared with their checksums."""
        return KeyedSamples(self.dataset.undecoded(), is_compared=True)

    def only(self, fields: Collection[str] | None) -> KeyedSamples:
        """Return the samples, fetching no shards; see `ShardReader.only`."""
        return KeyedSamples(self.dataset.only(fields))

    def __str__(self) -> str:
        return self.access.dataset_name or "the dataset"


class OtherSide(ABC):
    """The other side of a join. Names of fields are those in joined samples.

    A side has to implement `read` and `fields`. The rest is what holds for values that are in
    memory, untransformed; a dataset, which does most of it without reading samples, overrides it.

    Attributes:
        edges: Where its shards begin. Values are one shard.
        dataset: The dataset; None for values.
    """

    edges: IntArray = np.zeros(1, np.int64)
    dataset: KeyedSamples | None = None
    _chosen: frozenset[str] | None = None

    @abstractmethod
    def read(self, entries: IntArray, wanted: Wanted) -> list[Fields | None]:
        """Return the fields of entries, in new dicts with the key as ``__key__`` if they have one.

        None stands for an entry that turns out not to exist. ``wanted`` is what is wanted of the
        shard of a single sample, for a dataset.
        """

    @abstractmethod
    def fields(self, number: int | None) -> Sequence[str]:
        """Return the fields that entries can have, as far as known without reading samples.

        Args:
            number: The shard of the first dataset that the entries belong to; None for all.
        """

    def missing(self, number: int) -> Fields:
        """Return the fields, all None, of a sample of a shard that has no entry."""
        (found,) = self._selected([dict.fromkeys(self.fields(number))])
        return found or {}

    def only(self, fields: Collection[str] | None) -> OtherSide:
        """Return the side that has only these fields, undecoded, and fetches no shards."""
        if fields is None:
            return self
        found = copy(self)
        found._chosen = frozenset(fields)  # noqa: SLF001 - another of this class
        return found

    def _selected(self, found: list[Fields | None]) -> list[Fields | None]:
        """Return what was read without the fields that were not chosen."""
        chosen = self._chosen
        if chosen is None:
            return found
        return [
            fields and {name: v for name, v in fields.items() if name == KEY or name in chosen}
            for fields in found
        ]

    def content(self, entries: IntArray) -> tuple[Any, ...]:
        """Return values that change when the fields of entries do; -1 stands for no entry."""
        found = iter(self.read(entries[entries >= 0], Wanted.SAMPLES))
        checksum = 0
        for entry in entries.tolist():
            for name, value in ((next(found) if entry >= 0 else None) or {}).items():
                # An array shows only a few of its values as text.
                data = value.tobytes() if hasattr(value, "tobytes") else as_bytes(value)
                head = f"{name}\0{type(value).__name__}\0{len(data)}\0".encode()
                checksum = zlib.crc32(data, zlib.crc32(head, checksum))
            checksum = zlib.crc32(b"\n", checksum)
        return (checksum,)

    # Its shards, by number.

    def is_local(self, number: int) -> bool:  # noqa: ARG002 - values are one shard
        """Whether the entries of a shard can be read without fetching."""
        return True

    def nbytes(self, number: int) -> int | None:  # noqa: ARG002 - only shards are counted
        """Return how many bytes have to be fetched for the entries of a shard, if known."""
        return 0

    def fetch(self, number: int, report: Report) -> None:  # noqa: B027 - nothing
        """Fetch a shard."""

    def undecoded(self) -> OtherSide:
        """Return the side whose samples are as they are stored."""
        return self


def shards_of(entries: IntArray, edges: IntArray) -> IntArray:
    """Return the shards that have entries, by where shards begin; -1 stands for no entry."""
    # Sorted, they are found in a fifth of the time that `np.unique` takes in random order.
    ascending = np.sort(entries[entries >= 0])
    numbers = np.searchsorted(edges, ascending, side="right") - 1
    return numbers[np.diff(numbers, prepend=-1) > 0]


class DatasetSide(OtherSide):
    """A second dataset as the other side of a join; see `OtherSide`. An entry is a position in it.

    It fetches as its own settings say: where it must not fetch, it reads by range.

    Args:
        dataset: The dataset.
        names: The names of the fields.
        stored: All fields that the shards of the entries store.
    """

    dataset: KeyedSamples

    def __init__(self, dataset: KeyedSamples, names: Names, stored: Sequence[str]) -> None:
        self.dataset = dataset
        self._names = names
        self._stored = stored
        self._reader = dataset.reader
        self.edges = dataset.reader.edges

    def read(self, entries: IntArray, wanted: Wanted) -> list[Fields | None]:
        """Return the fields of samples, without labels except for the stored key."""
        # Not a part: its shard was not opened to find the sample.
        wanted = wanted if wanted is Wanted.MOST else Wanted.SAMPLES
        keys, samples = self.dataset.read(entries, wanted)
        if not self.dataset.is_plain:
            self.dataset.check(samples)
        last_names: tuple[Any, ...] = ()
        pairs: list[tuple[Any, Any]] = []
        results: list[Fields | None] = []
        for key, sample in zip(keys, samples, strict=True):
            # Nearly all samples have the names of the previous one, and looking at each name again
            # would take longer than joining the sample.
            names = tuple(sample)
            if names != last_names:
                last_names, pairs = names, self._names.pairs(names)
            fields = {new: sample[name] for name, new in pairs}
            fields["__key__"] = key
            results.append(fields)
        return results

    def content(self, entries: IntArray) -> tuple[Any, ...]:
        """Return the contents of the shards that are used, and which samples of them are."""
        numbers = shards_of(entries, self.edges).tolist()
        names = (self._names.prefix, *sorted(self._reader.fields or ()))
        return zlib.crc32(entries.tobytes()), tuple(map(self._reader.content, numbers)), names

    def fields(self, number: int | None) -> Sequence[str]:  # noqa: ARG002 - the same for all
        """Return the fields that the dataset reads of its shards, as they are stored."""
        read = self._reader.field_names(self._stored) if self._stored else ()
        return [self._names[name] for name in read]

    def only(self, fields: Collection[str] | None) -> DatasetSide:
        """Return the side that reads undecoded fields, or fetches nothing."""
        own = None if fields is None else self._names.own(fields)
        return DatasetSide(self.dataset.only(own), self._names, self._stored)

    def is_local(self, number: int) -> bool:
        """Whether a shard is local."""
        return self._reader.is_local(number)

    def nbytes(self, number: int) -> int | None:
        """Return the length of a shard that is not local."""
        return 0 if self._reader.is_local(number) else self._reader.nbytes(number)

    def fetch(self, number: int, report: Report) -> None:
        """Fetch a shard."""
        self._reader.fetch(number, report)

    def undecoded(self) -> DatasetSide:
        """Return the side whose samples are as they are stored."""
        return DatasetSide(self.dataset.undecoded(), self._names, self._stored)
