"""Decode the bytes of a field in many samples, and extract the parts that a path leads to.

A value that cannot be decoded is replaced by its error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from wids.errors import DecodeError
from wids.shards.fields.decode import Decoder
from wids.shards.fields.values import decode_json, decode_text
from wids.tables.column_paths import codec_of, position_of

_MAX_NAMES: Final = 100
"""Names of existing parts to keep for a message."""

_MISSING: Final = object()

DecodeMany = Callable[[Sequence[bytes]], list[Any]]


def decoder_of(field: str, max_nbytes: int | None = None) -> DecodeMany:
    """Return a function that decodes a field of many samples at once, as `Decoder` does."""
    codec = codec_of(field)
    decoder = Decoder(max_nbytes=max_nbytes)

    def decode_one(data: bytes) -> Any:
        try:
            return _plain(decoder({field: data})[field])
        except DecodeError as error:
            return error

    if codec is None or is_compressed(field):
        return lambda datas: list(map(decode_one, datas))
    is_simple = codec.decode in (int, decode_text, decode_json)  # whose values are plain
    decode_plain = codec.decode if is_simple else _plainly(codec.decode)

    def decode(datas: Sequence[bytes]) -> list[Any]:
        try:
            return list(map(decode_plain, datas))
        except Exception:  # noqa: BLE001 - one by one, to find the one that is to blame
            return list(map(decode_one, datas))

    return decode


def is_compressed(field: str) -> bool:
    """Return whether the bytes of a field may be few, and its value large."""
    codec = codec_of(field)
    return field.lower().endswith(".gz") or (codec is not None and codec.is_archive)


def _plainly(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    return lambda data: _plain(decode(data))


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
    if isinstance(value, DecodeError):
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
