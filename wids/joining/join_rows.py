"""A table, a frame or a mapping → fields for the samples of a dataset.

Rows are values and not bytes: they are joined as they are, and only what is shown or saved as bytes
is encoded. pyarrow and pandas are used by their methods, and imported only where a caller's object
needs it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import isnan
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wids.cache.store import BackgroundFetch
from wids.columns.column_paths import KEY
from wids.columns.column_values import DecodeMany
from wids.errors import JoinError
from wids.files.array_types import IntArray
from wids.joining.join_keys import RowKeys
from wids.joining.join_parts import UNKNOWN, Members
from wids.joining.join_sides import Fields, Names
from wids.joining.join_store import PositionMap
from wids.joining.join_values import (
    PLAIN,
    as_bytes,
    columns_by_field,
    own_value,
    plain_values,
    value_fields,
)
from wids.tars.index import ShardIndex

if TYPE_CHECKING:
    from typing_extensions import Self


class Rows(Protocol):
    """Rows with keys. Names of fields are the other side's own, with their leading dots."""

    @property
    def fields(self) -> Sequence[str]:
        """The fields that a row can have."""

    def keys(self) -> RowKeys:
        """Return the keys, in order."""

    def take(self, rows: Sequence[int]) -> list[Fields]:
        """Return the fields of rows, in new dicts, each with its key as ``__key__``."""


@dataclass(frozen=True, eq=False)
class TableRows:
    """The rows of a ``pyarrow.Table``, or of anything that becomes one.

    Attributes:
        table: The table.
        columns: The column of each field.
    """

    table: Any
    columns: Mapping[str, str]

    @classmethod
    def of(cls, table: Any) -> TableRows:
        """Return the rows of a table."""
        if table.column_names.count(KEY) != 1:
            raise _no_keys("the table", table.column_names, "table.rename_columns(…)")
        # Arrow cannot take single rows of the text that polars has.
        for number, column in enumerate(table.schema):
            wide = {"string_view": "large_string", "binary_view": "large_binary"}
            if str(column.type) in wide:
                cast = table.column(number).cast(wide[str(column.type)])
                table = table.set_column(number, column.name, cast)
        return cls(table, columns_by_field("the table", table.column_names))

    @property
    def fields(self) -> list[str]:
        """The columns, without those that name labels of samples."""
        return list(self.columns)

    def keys(self) -> RowKeys:
        """Return the column of keys."""
        return RowKeys(self._keys, self.fields, "the table")

    def _keys(self) -> Iterator[Any]:
        for batch in self.table.column(KEY).chunks:
            for start in range(0, len(batch), 1 << 16):
                yield from batch.slice(start, 1 << 16).to_pylist()

    def take(self, rows: Sequence[int]) -> list[Fields]:
        """Return the values of rows as Python's own."""
        names = (*self.columns.values(), KEY)
        if len(rows) == 1:  # in a hundredth of the time that `take` needs
            values = [[self.table.column(name)[rows[0]].as_py()] for name in names]
        else:
            values = [_taken(self.table.column(name), rows) for name in names]
        return _as_rows(self.columns, values)


def _taken(column: Any, rows: Sequence[int]) -> list[Any]:
    """Return the values of rows of a column of Arrow."""
    try:
        found: list[Any] = column.take(rows).to_pylist()
    except NotImplementedError:  # texts of polars inside lists
        found = [column[row].as_py() for row in rows]
    return found


@dataclass(frozen=True, eq=False)
class FrameRows:
    """The rows of a pandas frame, whose keys are a column or the index ``__key__``.

    Attributes:
        frame: The columns that become fields. They are a copy, since frames are sorted in place.
        labels: The keys, as a column or an index.
        columns: The column of each field.
    """

    frame: Any
    labels: Any
    columns: Mapping[str, str]

    @classmethod
    def of(cls, frame: Any) -> FrameRows:
        """Return the rows of a frame as it is now."""
        names = list(frame.columns)
        is_index = frame.index.name == KEY
        if (names.count(KEY) == 1) is is_index:
            raise _no_keys("the frame", names, f'frame.rename_axis("{KEY}") or frame.rename(…)')
        columns = columns_by_field("the frame", names)
        labels = (frame.index if is_index else frame[KEY]).copy()
        return cls(frame[list(columns.values())].copy(), labels, columns)

    @property
    def fields(self) -> list[str]:
        """The columns, without those that name labels of samples."""
        return list(self.columns)

    def keys(self) -> RowKeys:
        """Return the keys of the rows."""
        return RowKeys(lambda: iter(self.labels), self.fields, "the frame")

    def take(self, rows: Sequence[int]) -> list[Fields]:
        """Return the values of rows as Python's own."""
        taken = self.frame.iloc[list(rows)]
        values = [
            [v if type(v) in PLAIN else own_value(v) for v in taken[name].tolist()]
            for name in self.columns.values()
        ]
        for name, found in zip(self.columns.values(), values, strict=True):
            if taken[name].dtype.kind == "O":  # where NaN is the null of texts and objects
                found[:] = [None if type(v) is float and isnan(v) else v for v in found]
        return _as_rows(self.columns, [*values, self.labels.take(list(rows)).tolist()])


@dataclass(frozen=True, eq=False)
class MappingRows:
    """The values of a mapping by their keys: mappings of fields, or single values.

    Attributes:
        mapping: The mapping, which must not change while datasets read it.
        fields: The fields that its values have; those of the first one, where no more are needed.
    """

    mapping: Mapping[str, Any]
    fields: Sequence[str]
    listed: Sequence[str]

    @classmethod
    def of(cls, mapping: Mapping[str, Any], *, with_fields: bool) -> MappingRows:
        """Return the rows of a mapping; `with_fields` finds out all fields that they have."""
        names: dict[str, None] = {}
        for value in islice(mapping.values(), None if with_fields else 1):
            names.update(dict.fromkeys(value_fields(value)))
        return cls(mapping, list(names), list(mapping))

    def keys(self) -> RowKeys:
        """Return the keys of the mapping."""
        return RowKeys(lambda: iter(self.listed), self.fields, "the mapping")

    def take(self, rows: Sequence[int]) -> list[Fields]:
        """Return the values of keys."""
        found = []
        for row in rows:
            fields = value_fields(self.mapping[self.listed[row]])
            fields[KEY] = self.listed[row]
            found.append(fields)
        return found


def _as_rows(fields: Iterable[str], values: list[list[Any]]) -> list[Fields]:
    names = (*fields, KEY)
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _no_keys(what: str, columns: Sequence[Any], remedy: str) -> JoinError:
    names = ", ".join(map(repr, list(columns)[:8]))
    return JoinError(
        f"{what}: expected the keys of samples in one column named {KEY!r}"
        f"{' or as the index of that name' if what == 'the frame' else ''}, found the columns "
        f"{names}; name the one that has them, for example with {remedy}"
    )


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


class ValuePart:
    """What parts have in common whose fields are values; see `Part`.

    Nothing is fetched, and nothing is transformed.

    Attributes:
        edges: Where the shards of the dataset begin, and the end of the last one.
    """

    edges: IntArray

    def is_local(self, number: int) -> bool:  # noqa: ARG002 - for every shard
        """Return True, as values are in memory."""
        return True

    def nbytes(self, number: int) -> int | None:  # noqa: ARG002 - for every shard
        """Return 0, as there is nothing to fetch."""
        return 0

    def fetch(self, number: int, background: BackgroundFetch | None) -> None:
        """Do nothing."""

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

    def read(
        self, number: int, positions: Sequence[int], keys: Sequence[str], *, local: bool
    ) -> list[Fields | None]:
        """Return the fields of samples of one shard; see `Part.read`."""
        raise NotImplementedError

    def read_one(self, number: int, position: int, key: str, *, local: bool) -> Fields | None:
        """Return the fields of one sample."""
        return self.read(number, [position], [key], local=local)[0]

    def read_batch(
        self,
        positions: Sequence[int] | IntArray,  # noqa: ARG002 - not by position
    ) -> list[Fields | None] | None:
        """Return None: fields are looked up by key."""
        return None

    def only(self, fields: Collection[str] | None) -> ValuePart:
        """Return the part with these fields alone; see `Part.only`."""
        raise NotImplementedError

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


@dataclass(frozen=True, eq=False)
class RowsPart(ValuePart):
    """Rows as the other side of a join; see `Part`.

    Attributes:
        rows: The rows.
        edges: Where the shards of the dataset begin, and the end of the last one.
        positions: The rows that belong to the samples of the dataset.
        names: The names of the fields.
        chosen: The only fields to return; None for all.
    """

    rows: Rows
    edges: IntArray
    positions: PositionMap
    names: Names
    chosen: frozenset[str] | None = None

    def read(
        self,
        number: int,  # noqa: ARG002 - the positions say all
        positions: Sequence[int],
        keys: Sequence[str],  # noqa: ARG002 - the same
        *,
        local: bool,  # noqa: ARG002 - rows are in memory
    ) -> list[Fields | None]:
        """Return the values of the rows of samples."""
        return self.read_batch(positions)

    def read_batch(self, positions: Sequence[int] | IntArray) -> list[Fields | None]:
        """Return the values of the rows of samples of any shards."""
        if len(positions) == 1:
            targets = [self.positions.one(int(positions[0]))]
        else:
            targets = self.positions.at(np.asarray(positions, np.int64)).tolist()
        wanted = [target for target in targets if target >= 0]
        taken = iter(self.rows.take(wanted)) if wanted else iter(())
        return [
            named_fields(next(taken), self.names, self.chosen) if target >= 0 else None
            for target in targets
        ]

    def fields(self, number: int | None = None) -> Sequence[str]:  # noqa: ARG002 - the same for all shards
        """Return the fields that the rows have."""
        return [self.names[name] for name in self.rows.fields]

    def only(self, fields: Collection[str] | None) -> RowsPart:
        """Return the part with these fields alone, as values."""
        return self if fields is None else replace(self, chosen=frozenset(fields))


def named_fields(fields: Fields, names: Names, chosen: frozenset[str] | None) -> Fields:
    """Return fields under their names in joined samples, and only those that are chosen."""
    if chosen is None and not names.prefix and "" not in fields:
        return fields
    return {
        KEY if name == KEY else names[name]: value
        for name, value in fields.items()
        if chosen is None or name == KEY or names[name] in chosen
    }
