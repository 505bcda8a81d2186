"""Define the other side of a join: entries by number, each with fields for a joined sample.

An *entry* is a row (`join_rows`), a position in a second dataset (`join_datasets`), or a position
in the first dataset, for which the file beside its shard has fields (`join_files`).
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from copy import copy
from typing import Any

import numpy as np

from wids.storage.array_types import IntArray
from wids.storage.cache.store import BackgroundFetch
from wids.tables.column_paths import KEY
from wids.tables.column_values import DecodeMany
from wids.tables.join_names import Fields
from wids.tables.join_samples import KeyedSamples
from wids.tables.join_values import as_bytes, plain_values
from wids.tables.joined_index import UNKNOWN


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
    def read(self, entries: IntArray) -> list[Fields | None]:
        """Return the fields of entries, in new dicts with the key as ``__key__`` if they have one.

        None stands for an entry that turns out not to exist.
        """

    def read_one(self, entry: int, *, local: bool) -> Fields | None:  # noqa: ARG002 - of a dataset
        """Return what `read` returns for one entry; ``local`` is as for `ShardPool.get`."""
        return self.read(np.array([entry]))[0]

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

    def column(
        self,
        entries: IntArray,
        field: str,
        decode: DecodeMany,
        *,
        local: bool,  # noqa: ARG002 - of a dataset
    ) -> tuple[Sequence[str | None], list[Any]]:
        """Return the keys of entries, and one field as items of a column; None where it is missing.

        Args:
            entries: The entries.
            field: The field.
            decode: Returns the values of bytes.
            local: As for `ShardPool.get`.
        """
        found = [fields or {} for fields in self.read(entries)]
        values = plain_values([fields.get(field) for fields in found], decode)
        return [fields.get(KEY) for fields in found], values

    def read_part(
        self, entry: int, field: str, start: int, stop: int
    ) -> tuple[str | None, bytes] | None:
        """Return the key of an entry and bytes of one of its fields; None if it lacks the field."""
        fields = self.read_one(entry, local=False)
        if fields is None or field not in fields:
            return None
        return fields.get(KEY), as_bytes(fields[field])[start:stop]

    def members(
        self, entries: IntArray, samples: IntArray, number_of: Callable[[str], int]
    ) -> IntArray | None:
        """Return what the index of joined samples says of entries; see `joined_index`.

        Args:
            entries: The entries.
            samples: The samples that they belong to.
            number_of: Returns the number of a field in that index.

        Returns:
            The members, or None if an index is not available.
        """
        members = [
            (sample, len(as_bytes(value)), number_of(name), UNKNOWN)
            for sample, fields in zip(samples.tolist(), self.read(entries), strict=True)
            for name, value in (fields or {}).items()
            if name != KEY
        ]
        found: IntArray = np.array(members, np.int64).reshape(-1, 4).T
        return found

    def content(self, entries: IntArray) -> tuple[Any, ...]:
        """Return values that change when the fields of entries do; -1 stands for no entry."""
        found = iter(self.read(entries[entries >= 0]))
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

    def fetch(self, number: int, background: BackgroundFetch | None) -> None:  # noqa: B027 - nothing
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
