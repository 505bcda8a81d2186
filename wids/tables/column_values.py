"""Parse the columns that a caller names, and extract their values from the bytes of many samples.

``.json/size/0`` is the field ``.json``, its entry ``size`` and the first item of that. In a step,
``~1`` stands for ``/`` and ``~0`` for ``~``, as in JSON pointers. A value that cannot be decoded is
replaced by its error. Nothing is read here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeAlias

from wids.errors import DecodeError
from wids.shards.fields.codecs import BY_EXTENSION, Codec, find
from wids.shards.fields.decode import Decoder
from wids.shards.fields.picture_headers import PARTS, picture_facts
from wids.shards.fields.values import decode_integer, decode_json, decode_text

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
    _check_has_values(name, field, steps)
    unescaped = (step.replace("~1", "/").replace("~0", "~") for step in steps)
    return ColumnPath(name, text, field, tuple(unescaped))


def path_text(field: str, steps: Iterable[str]) -> str:
    """Return a field and the keys that lead into it as a path."""
    return "/".join((field, *(step.replace("~", "~0").replace("/", "~1") for step in steps)))


def codec_of(field: str) -> Codec | None:
    """Return the codec of a field, compressed or not; None for one that is left as bytes."""
    codec = find(field.lower().removesuffix(".gz"), BY_EXTENSION)
    return None if codec is None or codec.media_type else codec


def is_picture(field: str) -> bool:
    """Whether a field is a picture, of which columns have what its header states."""
    codec = codec_of(field)
    return codec is not None and codec.kind == "image" and not is_compressed(field)


def _check_has_values(name: str, field: str, steps: Sequence[str]) -> None:
    """Refuse fields whose values cannot be those of a column, before anything is read."""
    codec = codec_of(field)
    if is_picture(field) and len(steps) == 1 and steps[0] in PARTS:
        return
    if codec is not None and codec.kind != "plain":
        what = "pictures" if codec.kind == "image" else "pickles, which execute code when read"
        parts = f" or one of {field}/{{{','.join(PARTS)}}}" if is_picture(field) else ""
        raise ValueError(
            f"columns: {name!r}: expected a field of numbers, texts or structures,{parts} found "
            f"{path_text(field, steps)}, whose values are {what}"
        )
    if steps and (codec is None or codec.decode in (decode_integer, decode_text)):
        raise ValueError(
            f"columns: {name!r}: expected a path into a structure such as JSON, found one into "
            f"{field}, whose values have no parts"
        )


def position_of(step: str) -> int | None:
    """Return the position in a list that a step names, or None."""
    return int(step) if _INTEGER.fullmatch(step) else None


_MAX_NAMES: Final = 100
"""Names of existing parts to keep for a message."""

_MISSING: Final = object()

DecodeMany = Callable[[Sequence[Any]], list[Any]]


def decoder_of(field: str, max_nbytes: int | None = None) -> DecodeMany:
    """Return a function that decodes a field of many samples at once, as `Decoder` does.

    Of what cannot be decoded it returns the error; an error in place of bytes stays.
    """
    codec = codec_of(field)
    decoders = {field: picture_facts} if is_picture(field) else None
    decoder = Decoder(decoders=decoders, max_nbytes=max_nbytes)

    def decode_one(data: Any) -> Any:
        if isinstance(data, Exception):
            return data
        try:
            return _plain(decoder({field: data})[field])
        except DecodeError as error:
            return error

    if codec is None or is_compressed(field) or is_picture(field):
        return lambda datas: list(map(decode_one, datas))
    is_simple = codec.decode in (decode_integer, decode_text, decode_json)  # whose values are plain
    decode_any: Callable[[bytes], Any] = codec.decode
    decode_plain = decode_any if is_simple else (lambda data: _plain(decode_any(data)))

    def decode(datas: Sequence[Any]) -> list[Any]:
        try:
            return list(map(decode_plain, datas))
        except Exception:  # noqa: BLE001 - one by one, to find the one that is to blame
            return list(map(decode_one, datas))

    return decode


def is_compressed(field: str) -> bool:
    """Return whether the bytes of a field may be few, and its value large."""
    codec = codec_of(field)
    return field.lower().endswith(".gz") or (codec is not None and codec.is_archive)


def _plain(value: Any) -> Any:
    """Return arrays and tensors as lists, also those in a dict or a list."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping) and any(hasattr(item, "tolist") for item in value.values()):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list) and value and hasattr(value[0], "tolist"):
        return [_plain(item) for item in value]
    return value


@dataclass(frozen=True)
class Parts:
    """What a path leads to in many samples.

    Attributes:
        values: A value for each sample; None where it has no such part, or the part is null.
        exists: Whether any sample has the part.
        names: If none has it, names that some have in its place, as the steps of paths.
    """

    values: list[Any]
    exists: bool
    names: tuple[tuple[str, ...], ...] = ()


def parts_of(values: list[Any], steps: Sequence[str]) -> Parts:
    """Follow a path into values; None and errors have no parts."""
    for depth, step in enumerate(steps):
        parts = _step_into(values, step)
        if parts.count(None) == len(parts):
            is_last = depth == len(steps) - 1
            if is_last and any(_part(value, step, _MISSING) is not _MISSING for value in values):
                return Parts(parts, exists=True)
            prefix = tuple(steps[:depth])
            names = tuple((*prefix, name) for name in _names(values))
            return Parts(parts, exists=False, names=names)
        values = parts
    return Parts(values, exists=bool(values))


def _step_into(values: list[Any], step: str) -> list[Any]:
    if position_of(step) is None and set(map(type, values)) == {dict}:  # nearly always
        return [value.get(step) for value in values]
    return [_part(value, step) for value in values]


def _part(value: Any, step: str, default: Any = None) -> Any:
    """Return the part of a value that a step leads to, or the default."""
    if isinstance(value, Exception):
        return value
    at = position_of(step)
    if isinstance(value, dict):
        # MessagePack and CBOR have numbers as keys too.
        return value[step] if step in value else default if at is None else value.get(at, default)
    if isinstance(value, list) and at is not None and -len(value) <= at < len(value):
        return value[at]
    return default


def _names(values: list[Any]) -> list[str]:
    """Return the keys that objects have, and the position of the last item of lists."""
    names: dict[str, None] = {}
    for value in islice((v for v in values if isinstance(v, dict | list)), _MAX_NAMES):
        keys = value if isinstance(value, dict) else [len(value) - 1] if value else ()
        names |= dict.fromkeys(islice(map(str, keys), _MAX_NAMES))
    return list(names)[:_MAX_NAMES]
