"""Name the fields of the other side of a join, and convert their values."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from io import BytesIO
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from wids.errors import JoinError
from wids.storage.sizes import first_of
from wids.tables.column_values import KEY, DecodeMany

Fields: TypeAlias = dict[str, Any]
"""Fields of a sample by name."""


_MAX_NAMED: Final = 8


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


class JoinedColumns(NamedTuple):
    """Which columns of a table, a frame or a file are joined.

    Attributes:
        key: The column that has the keys.
        columns: Those that become fields; None for all others.
    """

    key: str = KEY
    columns: tuple[str, ...] | None = None

    def check(self, what: str, named: Sequence[Any]) -> None:
        """Raise unless there are such columns.

        Raises:
            JoinError: One is missing, or several have the keys; the error names those that exist.
        """
        missing = [name for name in self.columns or () if name not in named]
        listed = first_of(list(map(repr, named)), _MAX_NAMED)
        if named.count(self.key) != 1:
            raise JoinError(
                f"{what}: expected the keys of samples in one column named {self.key!r}"
                f"{' or as the index of that name' if what == 'the frame' else ''}, found the "
                f"columns {listed}; pass the name of the one that has them as on="
            )
        repeated = [name for name in self.columns or () if named.count(name) > 1]
        if repeated:
            raise JoinError(
                f"{what}: expected one column of each name, found several named {repeated[0]!r}; "
                "rename the others"
            )
        if missing:
            raise JoinError(
                f"{what}: expected the columns {', '.join(map(repr, missing))}, found the columns "
                f"{listed}"
            )

    def of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a row has of the wanted columns."""
        if self.columns is not None:
            return {name: row[name] for name in self.columns if name in row}
        return {name: row[name] for name in row if name != self.key}

    def fields(self, what: str, named: Sequence[Any], names: Names) -> dict[str, str]:
        """Return the column of each field, by the name of the field in joined samples.

        Raises:
            JoinError: A column is missing, or two become one field.
        """
        self.check(what, named)
        chosen = [name for name in named if name != self.key]
        columns = columns_by_field(what, chosen if self.columns is None else self.columns)
        return {names[field]: column for field, column in columns.items()}


def dotted(name: str) -> str:
    """Return the field that a column, or an entry of a mapping, becomes."""
    return name if name.startswith(".") else f".{name}"


def columns_by_field(what: str, columns: Iterable[Any]) -> dict[str, str]:
    """Return the column of each field; columns with the names of labels have none.

    Raises:
        JoinError: A column has no text as its name, or two become one field.
    """
    column_by_field: dict[str, str] = {}
    for name in columns:
        if not isinstance(name, str):
            raise JoinError(
                f"{what}: expected columns with names, which become fields, found the column "
                f"{name!r:.80} of type {type(name).__name__}; rename it first"
            )
        if name.startswith("__"):
            continue
        field = dotted(name)
        if field in column_by_field:
            raise JoinError(
                f"{what}: expected one column for the field {field}, found "
                f"{column_by_field[field]!r} and {name!r}; rename one of them"
            )
        column_by_field[field] = name
    return column_by_field


PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""Types whose values cannot change, and need no copy."""

_CONTAINERS: Final = (list, dict, set, tuple, bytearray, np.ndarray)
_NULLS: Final = frozenset(("NAType", "NaTType"))
"""The names of the types of pandas' nulls."""


def value_fields(value: Any, names: Names, what: str = "the mapping") -> Fields:
    """Return a value that belongs to a key as fields, with copies of its containers.

    A value that is not a mapping is a field by itself, whose own name is empty.
    """
    if not isinstance(value, Mapping):
        return {names[""]: own_value(value)}
    fields = {
        names[dotted(str(name))]: item if type(item) in PLAIN else own_value(item)
        for name, item in value.items()
        if not str(name).startswith("__")
    }
    if len(fields) < len(value):  # labels, or names that became one field
        columns_by_field(what, map(str, value))
    return fields


def own_value(value: Any) -> Any:
    """Copy a value, so that a transformation can change it without changing the next read.

    Lists, dicts, tuples, sets, bytearrays and arrays are copied, with those inside them.
    Other objects are returned as they are.
    """
    if not isinstance(value, _CONTAINERS):
        return value
    if type(value) is tuple:
        return tuple(map(own_value, value))
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(map(own_value, value))
    clone = copy(value)
    if isinstance(clone, np.ndarray) and clone.dtype == object:
        for place in np.ndindex(clone.shape):
            clone[place] = own_value(clone[place])
    if isinstance(clone, list | dict):
        for place, item in clone.items() if isinstance(clone, dict) else enumerate(clone):
            if type(item) not in PLAIN:  # a fifth of the time that `isinstance` needs
                clone[place] = own_value(item)  # no other key, so that the dict can be iterated
    return clone


def as_bytes(value: Any) -> bytes:
    """Return a value as bytes, to be shown or saved: text and bytes as they are, others as JSON."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, BytesIO):
        return value.getvalue()
    return json.dumps(value, default=str, ensure_ascii=False).encode("utf-8", "backslashreplace")


def plain_values(values: list[Any], decode: DecodeMany) -> list[Any]:
    """Return values as items of a column; bytes are decoded as those of a shard would be."""
    results = [value if type(value) in PLAIN else _plain(value) for value in values]
    places = [place for place, value in enumerate(results) if type(value) is bytes]
    for place, value in zip(places, decode([results[place] for place in places]), strict=True):
        results[place] = value
    return results


def _plain(value: Any) -> Any:
    """Return a value in the types of JSON and bytes; values of other types become text."""
    if type(value) in PLAIN or isinstance(value, Exception):
        return value
    if type(value).__name__ in _NULLS:
        return None
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, bytearray | memoryview | BytesIO):
        return as_bytes(value)
    if hasattr(value, "tolist"):  # arrays, tensors, and numbers of numpy
        value = value.tolist()
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value if type(value) in PLAIN else str(value)
