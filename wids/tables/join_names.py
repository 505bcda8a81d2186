"""Name the fields of the other side of a join as joined samples have them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from wids.errors import JoinError
from wids.storage.sizes import first_of
from wids.tables.column_paths import KEY

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


class Wanted(NamedTuple):
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
