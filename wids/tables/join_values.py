"""Convert values that belong to keys into fields, bytes to show, or items of a column."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from io import BytesIO
from typing import Any, Final

import numpy as np

from wids.tables.column_values import DecodeMany
from wids.tables.join_names import Fields, Names, columns_by_field, dotted

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
    found = copy(value)
    if isinstance(found, np.ndarray) and found.dtype == object:
        for place in np.ndindex(found.shape):
            found[place] = own_value(found[place])
    if isinstance(found, list | dict):
        for place, item in found.items() if isinstance(found, dict) else enumerate(found):
            if type(item) not in PLAIN:  # a fifth of the time that `isinstance` needs
                found[place] = own_value(item)  # no other key, so that the dict can be iterated
    return found


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
    found = [value if type(value) in PLAIN else _plain(value) for value in values]
    places = [place for place, value in enumerate(found) if type(value) is bytes]
    for place, value in zip(places, decode([found[place] for place in places]), strict=True):
        found[place] = value
    return found


def _plain(value: Any) -> Any:
    """Return a value in the types of JSON and bytes; values of other types become text."""
    if type(value) in PLAIN:
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
