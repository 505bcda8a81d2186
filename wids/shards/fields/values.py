"""Decode and encode Python values: text, integers, JSON, msgpack, CBOR and pickles.

msgpack, cbor2 and orjson are optional and imported when first used.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import Any, Final

_DECODE_FIRST: Final = json.JSONDecoder().raw_decode
_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG: Final = b"0" * 19
"""Integers with fewer digits fit in 64 bits."""


def decode_text(data: bytes) -> str:
    """Decode UTF-8 text."""
    return data.decode("utf-8")


def encode_text(value: str) -> bytes:
    """Encode text as UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r:.80}")
    return value.encode("utf-8")


def encode_integer(value: Any) -> bytes:
    """Return an integer, or text that is one, as decimal digits."""
    # A bool is an int in Python. Stored as 1, it would be decoded as an int.
    if isinstance(value, bool):
        raise TypeError(f"expected an integer, found {value}")
    if isinstance(value, str):
        value = int(value)
    # `operator.index` accepts numpy integers, and rejects floats, which `int` would truncate.
    return b"%d" % operator.index(value)


def decode_json(data: bytes) -> Any:
    """Return the value of JSON in any encoding that ``json.loads`` detects."""
    try:
        return _fastest_json()(data)
    except ValueError:  # malformed, in another encoding, or accepted only by `json`, such as NaN
        return json.loads(data)


@cache
def _fastest_json() -> Callable[[bytes], Any]:
    """Return the fastest function that parses most JSON in UTF-8, and raises for the rest."""
    try:
        parse = import_module("orjson").loads
    except (ImportError, AttributeError):  # not installed, or another package with that name
        return _decode_utf8

    def decode(data: bytes) -> Any:
        return _decode_utf8(data) if _may_have_long_integer(data) else parse(data)

    return decode


def _decode_utf8(data: bytes) -> Any:
    # `json.loads` takes 1.5 times as long: it detects the encoding and skips white space.
    text = str(data, "utf-8")
    value, end = _DECODE_FIRST(text)
    if end < len(text) and text[end:].strip(" \t\r\n"):
        raise ValueError("expected one JSON document")
    return value


def _may_have_long_integer(data: bytes) -> bool:
    """Whether there may be an integer of more than 64 bits, which orjson reads as a float.

    Digits right after a decimal point belong to a float.
    """
    digits = data.translate(_ZEROS)
    at = digits.find(_LONG)
    while at > 0 and digits[at - 1] == ord("."):
        at = digits.find(_LONG, at + len(_LONG))
    return at >= 0


def encode_json(value: Any) -> bytes:
    """Encode a value as JSON in UTF-8."""
    # As ASCII escapes, non-Latin text takes six or more bytes for each character.
    return json.dumps(value, ensure_ascii=False).encode("utf-8")


def decode_json_lines(data: bytes) -> list[Any]:
    """Return the values of JSON lines; blank lines are skipped."""
    # Not `splitlines`, which also splits at characters that JSON allows inside a string.
    return [json.loads(line) for line in data.decode("utf-8").split("\n") if line.strip()]


def encode_json_lines(values: Iterable[Any]) -> bytes:
    """Encode values as JSON, one per line."""
    return b"".join(encode_json(value) + b"\n" for value in values)


def decode_msgpack(data: bytes) -> Any:
    """Return the value of msgpack data; maps may have keys of any type."""
    # By default msgpack accepts only text and bytes as keys, as a guard against hash collisions.
    return import_module("msgpack").unpackb(data, strict_map_key=False)


def encode_msgpack(value: Any) -> Any:
    """Encode a value as msgpack."""
    return import_module("msgpack").packb(value)


def decode_cbor(data: bytes) -> Any:
    """Return the value of CBOR data."""
    return import_module("cbor2").loads(data)


def encode_cbor(value: Any) -> Any:
    """Encode a value as CBOR."""
    return import_module("cbor2").dumps(value)


def decode_pickle(data: bytes) -> Any:
    """Return a pickled value, which executes code in the data."""
    import pickle

    return pickle.loads(data)  # noqa: S301 - the caller passed allow_pickle=True


def encode_pickle(_: Any) -> bytes:
    """Raise TypeError: wids does not write what its readers reject."""
    raise TypeError(
        "a pickle executes code when it is read, so readers refuse it; store json, npz, msgpack or "
        "pt, or pass an encoder of your own"
    )
