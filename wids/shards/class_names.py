"""Classes by number and by name: which columns have their numbers, and the name of a number.

A spec states the names under ``"classes"``, in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_COLUMNS: Final = frozenset(("cls", "class", "label", "category"))
_MAX_DIGITS: Final = 9


def is_of_classes(column: str) -> bool:
    """Return whether a field, or a column of a table, has numbers of classes, by its name."""
    return column.rpartition(".")[2].lower().lstrip("_") in _COLUMNS


def class_name(column: str, number: str, names: Sequence[str]) -> str:
    """Return the name of a class if a column is of classes and its number has a name; else ``""``.

    Args:
        column: The name of the field or column.
        number: The value, as text.
        names: Names of classes, by their numbers.
    """
    is_known = number.isdecimal() and len(number) <= _MAX_DIGITS and is_of_classes(column)
    return names[int(number)] if is_known and int(number) < len(names) else ""
