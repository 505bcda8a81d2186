"""Use a second dataset as the other side of a join."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from typing import Any

from wids.storage.array_types import IntArray
from wids.storage.cache.store import BackgroundFetch
from wids.tables.join_names import Fields, Names
from wids.tables.join_samples import KeyedSamples
from wids.tables.join_sides import OtherSide, shards_of


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

    def read(self, entries: IntArray) -> list[Fields | None]:
        """Return the fields of samples, each of whose shards is opened once."""
        return self._renamed(*self.dataset.read(entries))

    def read_one(self, entry: int, *, local: bool) -> Fields | None:
        """Return the fields of one sample."""
        key, sample = self.dataset.read_one(entry, local=self._fetches(local))
        return self._renamed([key], [sample])[0]

    def _fetches(self, local: bool) -> bool:
        reader = self._reader
        return reader.fetches_for_one or (local and reader.fetches_for_many)

    def _renamed(self, keys: list[str], samples: list[Any]) -> list[Fields | None]:
        """Return samples with other names, and without labels except for the stored key."""
        if self.dataset.is_plain and not self._names.prefix:
            return samples
        self.dataset.check(samples)
        latest: tuple[Any, ...] = ()
        pairs: list[tuple[Any, Any]] = []
        found: list[Fields | None] = []
        for key, sample in zip(keys, samples, strict=True):
            # Nearly all samples have the names of the previous one, and looking at each name again
            # would take longer than joining the sample.
            names = tuple(sample)
            if names != latest:
                latest, pairs = names, self._names.pairs(names)
            fields = {new: sample[name] for name, new in pairs}
            fields["__key__"] = key
            found.append(fields)
        return found

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

    def fetch(self, number: int, background: BackgroundFetch | None) -> None:
        """Fetch a shard."""
        self._reader.fetch(number, background)

    def undecoded(self) -> DatasetSide:
        """Return the side whose samples are as they are stored."""
        return DatasetSide(self.dataset.undecoded(), self._names, self._stored)
