"""Define the other side of a join: entries by number, each with fields for a joined sample.

An *entry* is a row (`join_rows`), a position in a second dataset (`join_datasets`), or a position
in the first dataset, for which the file beside its shard has fields (`join_files`).
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from copy import copy
from typing import Any

import numpy as np

from wids.storage.array_types import IntArray
from wids.storage.cache.store import BackgroundFetch
from wids.tables.column_paths import KEY
from wids.tables.join_names import Fields
from wids.tables.join_samples import KeyedSamples
from wids.tables.join_values import as_bytes


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
