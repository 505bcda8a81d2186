"""Name the fields of the other side of a join as joined samples have them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, TypeAlias

from wids.errors import JoinError

Fields: TypeAlias = dict[str, Any]
"""Fields of a sample by name."""


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


def dotted(name: str) -> str:
    """Return the field that a column, or an entry of a mapping, becomes."""
    return name if name.startswith(".") else f".{name}"


def columns_by_field(what: str, columns: Iterable[Any]) -> dict[str, str]:
    """Return the column of each field; columns with the names of labels have none.

    Raises:
        JoinError: A column has no text as its name, or two become one field.
    """
    found: dict[str, str] = {}
    for name in columns:
        if not isinstance(name, str):
            raise JoinError(
                f"{what}: expected columns with names, which become fields, found the column "
                f"{name!r:.80} of type {type(name).__name__}; rename it first"
            )
        if name.startswith("__"):
            continue
        field = dotted(name)
        if field in found:
            raise JoinError(
                f"{what}: expected one column for the field {field}, found {found[field]!r} and "
                f"{name!r}; rename one of them"
            )
        found[field] = name
    return found
