"""Use the caller's values as the other side of a join: rows in memory, or files beside shards.

Values are joined as they are, and encoded only to be shown or saved as bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wids.shards.tars.index import ShardIndex
from wids.storage.array_types import IntArray
from wids.storage.cache.store import BackgroundFetch
from wids.tables.column_paths import KEY
from wids.tables.column_values import DecodeMany
from wids.tables.join_parts import UNKNOWN, Members
from wids.tables.join_rows import Rows
from wids.tables.join_sides import Fields, Names
from wids.tables.join_store import PositionMap
from wids.tables.join_values import as_bytes, plain_values

if TYPE_CHECKING:
    from typing_extensions import Self


class Source(Protocol):
    """Where the values are. Names of fields are those stored there, with their leading dots."""

    @property
    def spans_shards(self) -> bool:
        """Whether `read` takes samples of several shards, by their positions alone."""

    def read(
        self, number: int, positions: Sequence[int] | IntArray, keys: Sequence[str]
    ) -> list[Fields | None]:
        """Return the fields of samples of one shard, in new dicts; None for a missing sample."""

    def fields(self, number: int | None) -> Sequence[str]:
        """Return the fields of samples of one shard, or those of all with None; see `Part`."""

    def is_local(self, number: int) -> bool:
        """Return whether the values for one shard can be read without fetching."""

    def fetch(self, number: int) -> None:
        """Fetch the values for one shard."""


@dataclass(frozen=True, eq=False)
class MatchedRows:
    """Rows in memory, by the positions of the samples that they belong to; see `Source`.

    Attributes:
        rows: The rows.
        positions: Which of them belong to the samples of the dataset.
    """

    rows: Rows
    positions: PositionMap
    spans_shards = True

    def read(
        self,
        number: int,  # noqa: ARG002 - the positions say all
        positions: Sequence[int] | IntArray,
        keys: Sequence[str],  # noqa: ARG002 - the same
    ) -> list[Fields | None]:
        """Return the values of the rows of samples."""
        if len(positions) == 1:
            targets = [self.positions.one(int(positions[0]))]
        else:
            targets = self.positions.at(np.asarray(positions, np.int64)).tolist()
        wanted = [target for target in targets if target >= 0]
        taken = iter(self.rows.take(wanted)) if wanted else iter(())
        return [next(taken) if target >= 0 else None for target in targets]

    def fields(self, number: int | None) -> Sequence[str]:  # noqa: ARG002 - the same for all shards
        """Return the fields that the rows have."""
        return self.rows.fields

    def is_local(self, number: int) -> bool:  # noqa: ARG002 - for every shard
        """Return True, as rows are in memory."""
        return True

    def fetch(self, number: int) -> None:
        """Do nothing."""


@dataclass(frozen=True, eq=False)
class ValuePart:
    """Values as the other side of a join; see `Part`. They are not transformed.

    Attributes:
        source: Where they are.
        edges: Where the shards of the dataset begin, and the end of the last one.
        names: The names of the fields.
        chosen: The only fields to return; None for all.
    """

    source: Source
    edges: IntArray
    names: Names
    chosen: frozenset[str] | None = None

    def read(
        self,
        number: int,
        positions: Sequence[int] | IntArray,
        keys: Sequence[str],
        *,
        local: bool,  # noqa: ARG002 - values are read as a whole
    ) -> list[Fields | None]:
        """Return the fields of samples of one shard; see `Part.read`."""
        found = self.source.read(number, positions, keys)
        return [None if fields is None else self._named(fields) for fields in found]

    def _named(self, fields: Fields) -> Fields:
        """Return fields under their names in joined samples, and only those that are chosen."""
        names, chosen = self.names, self.chosen
        if chosen is None and not names.prefix and "" not in fields:
            return fields
        return {
            KEY if name == KEY else names[name]: value
            for name, value in fields.items()
            if chosen is None or name == KEY or names[name] in chosen
        }

    def read_one(self, number: int, position: int, key: str, *, local: bool) -> Fields | None:
        """Return the fields of one sample."""
        return self.read(number, [position], [key], local=local)[0]

    def read_batch(self, positions: Sequence[int] | IntArray) -> list[Fields | None] | None:
        """Return the fields of samples of any shards; None where they are looked up by key."""
        return self.read(0, positions, (), local=True) if self.source.spans_shards else None

    def fields(self, number: int | None = None) -> Sequence[str]:
        """Return the fields that samples of one shard can have; see `Part.fields`."""
        return [self.names[name] for name in self.source.fields(number)]

    def only(self, fields: Collection[str] | None) -> ValuePart:
        """Return the part with these fields alone, as values."""
        return self if fields is None else replace(self, chosen=frozenset(fields))

    def is_local(self, number: int) -> bool:
        """Return whether the values for one shard can be read without fetching."""
        return self.source.is_local(number)

    def nbytes(self, number: int) -> int | None:  # noqa: ARG002 - for every shard
        """Return 0, as only shards are counted."""
        return 0

    def cache_nbytes(self, folder: str) -> int | None:  # noqa: ARG002 - of every cache
        """Return None, as no cache limits values."""
        return None

    def stored_nbytes(
        self,
        folder: str,  # noqa: ARG002 - in every cache
        numbers: IntArray,  # noqa: ARG002 - for all shards
        counted: set[str],  # noqa: ARG002 - the same
    ) -> float:
        """Return 0, as values are not shards."""
        return 0.0

    def fetch(self, number: int, background: BackgroundFetch | None) -> None:
        """Fetch the values for one shard."""
        if background is None or not background.cancelled.is_set():
            self.source.fetch(number)

    @property
    def transformations(self) -> Sequence[Any]:
        """Nothing, as values stay as they are."""
        return ()

    def undecoded(self) -> Self:
        """Return this part: its values are not decoded."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def values(
        self,
        number: int,
        positions: Sequence[int],
        keys: Sequence[str],
        field: str,
        decode: DecodeMany,
        *,
        local: bool,
    ) -> tuple[list[str], list[Any]]:
        """Return the keys and the values of one field of samples of one shard."""
        rows = self.only([field]).read(number, positions, keys, local=local)
        found = [fields or {} for fields in rows]
        stored = [fields.get(KEY, key) for fields, key in zip(found, keys, strict=True)]
        return stored, plain_values([fields.get(field) for fields in found], decode)

    def members(self, number: int, index: ShardIndex) -> Members | None:
        """Return what an index says of the samples of one shard."""
        return value_members(self._rows_of(number, index))

    def content(self, number: int, index: ShardIndex) -> tuple[Any, ...]:
        """Return a checksum of the values for the samples of one shard."""
        checksum = 0
        for fields in self._rows_of(number, index):
            for name, value in (fields or {}).items():
                # An array shows only a few of its values as text.
                data = value.tobytes() if hasattr(value, "tobytes") else as_bytes(value)
                head = f"{name}\0{type(value).__name__}\0{len(data)}\0".encode()
                checksum = zlib.crc32(data, zlib.crc32(head, checksum))
            checksum = zlib.crc32(b"\n", checksum)
        return (checksum,)

    def _rows_of(self, number: int, index: ShardIndex) -> list[Fields | None]:
        start = int(self.edges[number])
        keys = [index.key(local_index) for local_index in range(len(index))]
        return self.read(number, range(start, start + len(index)), keys, local=False)

    def read_part(
        self, number: int, position: int, key: str, field: str
    ) -> tuple[str, Callable[..., bytes]]:
        """Return the key of a sample, and the callable that returns bytes of one of its fields."""
        (fields,) = self.read(number, [position], [key], local=False)
        if fields is None or field not in fields:
            raise KeyError(f"sample {key!r} has no field {field}")
        data = as_bytes(fields[field])
        return fields.get(KEY, key), lambda start, stop: data[start:stop]


def value_members(rows: Sequence[Fields | None]) -> Members:
    """Return what an index says of the samples of a shard whose fields are values."""
    names: dict[str, int] = {}
    members = [
        (sample, len(as_bytes(value)), names.setdefault(name, len(names)))
        for sample, fields in enumerate(rows)
        for name, value in (fields or {}).items()
        if name != KEY
    ]
    columns = np.array(members, np.int64).reshape(-1, 3).T
    unknown = np.full(len(members), UNKNOWN)
    return Members(columns[0], columns[1], columns[2], unknown, tuple(names))
