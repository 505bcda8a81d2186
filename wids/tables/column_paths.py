"""Parse the columns that a caller names into checked paths: a field, and steps into its value.

``.json/size/0`` is the field ``.json``, its entry ``size`` and the first item of that. In a step,
``~1`` stands for ``/`` and ``~0`` for ``~``, as in JSON pointers. Nothing is read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from wids.shards.fields.codecs import BY_EXTENSION, Codec, find
from wids.shards.fields.values import decode_text

Columns: TypeAlias = "Mapping[str, str] | Iterable[str]"
"""Paths by the names of their columns, or paths that are the names too."""

INDEX: Final = "__index__"
KEY: Final = "__key__"

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class ColumnPath:
    """Where the values of a column are in each sample.

    Attributes:
        name: Name of the column.
        text: The path.
        field: The field, with its leading dot.
        steps: Keys of objects and positions in lists, from the value of the field on.
    """

    name: str
    text: str
    field: str
    steps: tuple[str, ...]


def parse_columns(columns: Columns) -> tuple[ColumnPath, ...]:
    """Return the paths of columns, in order.

    Raises:
        TypeError: ``columns`` is a single text or not iterable, or has an item that is no text.
        ValueError: A name is taken, or repeated; or a path leads to values that no column can have.
    """
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        kind = "the text" if isinstance(columns, str) else type(columns).__name__
        raise TypeError(f"columns: expected a dict or a list of paths, found {kind} {columns!r}")
    named = columns.items() if isinstance(columns, Mapping) else [(p, p) for p in columns]
    paths = tuple(_parsed(name, text) for name, text in named)
    seen: set[str] = {INDEX, KEY}
    for path in paths:
        if path.name in seen:
            raise ValueError(
                f"columns: expected names that differ, also from {INDEX} and {KEY}, found "
                f"{path.name!r} twice"
            )
        seen.add(path.name)
    return paths


def _parsed(name: str, text: str) -> ColumnPath:
    if not isinstance(name, str) or not isinstance(text, str):
        raise TypeError(f"columns: expected texts, found {name!r:.80}: {text!r:.80}")
    field, *steps = text.split("/")
    if field.strip(".") == "" or "" in steps:
        raise ValueError(
            f"columns: {name!r}: expected a path such as .cls or .json/height, found {text!r}; "
            "in a key, ~1 stands for /"
        )
    if not name:
        raise ValueError(f"columns: expected a name for the path {text!r}, found none")
    field = field if field.startswith(".") else f".{field}"
    _check_has_values(name, field, bool(steps))
    return ColumnPath(name, text, field, tuple(map(_unescaped, steps)))


def path_text(field: str, steps: Iterable[str]) -> str:
    """Return a field and the keys that lead into it as a path."""
    return "/".join((field, *(step.replace("~", "~0").replace("/", "~1") for step in steps)))


def _unescaped(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")


def codec_of(field: str) -> Codec | None:
    """Return the codec of a field, compressed or not; None for one that is left as bytes."""
    return find(field.lower().removesuffix(".gz"), BY_EXTENSION)


def _check_has_values(name: str, field: str, has_steps: bool) -> None:
    """Refuse fields whose values cannot be those of a column, before anything is read."""
    codec = codec_of(field)
    if codec is not None and codec.kind != "plain":
        what = "pictures" if codec.kind == "image" else "pickles, which execute code when read"
        raise ValueError(
            f"columns: {name!r}: expected a field of numbers, texts or structures, found {field}, "
            f"whose values are {what}"
        )
    if has_steps and (codec is None or codec.decode in (int, decode_text)):
        raise ValueError(
            f"columns: {name!r}: expected a path into a structure such as JSON, found one into "
            f"{field}, whose values have no parts"
        )


def position_of(step: str) -> int | None:
    """Return the position in a list that a step names, or None."""
    return int(step) if _INTEGER.fullmatch(step) else None
