"""Python values ↔ bytes: text, integers, JSON, msgpack, CBOR and pickles.

Knows nothing about field names. msgpack and cbor2 are optional and imported when first used.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable
from importlib import import_module
from typing import Any


def decode_text(data: bytes) -> str:
    """Return UTF-8 as text."""
    return data.decode("utf-8")


def encode_text(value: str) -> bytes:
    """Return text as UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r:.80}")
    return value.encode("utf-8")


def encode_integer(value: Any) -> bytes:
    """Return an integer, or text that is one, as decimal digits."""
    # A bool is an int for Python. Stored as 1 it would come back as another type.
    if isinstance(value, bool):
        raise TypeError(f"expected an integer, found {value}")
    if isinstance(value, str):
        value = int(value)
    # `operator.index` takes integers of numpy, and refuses floats, which `int` would cut.
    return b"%d" % operator.index(value)


def encode_json(value: Any) -> bytes:
    """Return a value as JSON in UTF-8."""
    # Text in other scripts takes six bytes or more for each character as ASCII escapes.
    return json.dumps(value, ensure_ascii=False).encode("utf-8")


def decode_json_lines(data: bytes) -> list[Any]:
    """Return the values of JSON lines; blank lines are skipped."""
    # Not `splitlines`, which also splits at characters that JSON allows inside a string.
    return [json.loads(line) for line in data.decode("utf-8").split("\n") if line.strip()]


def encode_json_lines(values: Iterable[Any]) -> bytes:
    """Return some values as JSON, one a line."""
    return b"".join(encode_json(value) + b"\n" for value in values)


def decode_msgpack(data: bytes) -> Any:
    """Return the value of msgpack data; maps may have keys of any type."""
    # msgpack accepts only text and bytes as keys by default, as a guard against hash collisions.
    return import_module("msgpack").unpackb(data, strict_map_key=False)


def encode_msgpack(value: Any) -> bytes:
    """Return a value as msgpack."""
    data: bytes = import_module("msgpack").packb(value)
    return data


def decode_cbor(data: bytes) -> Any:
    """Return the value of CBOR data."""
    return import_module("cbor2").loads(data)


def encode_cbor(value: Any) -> bytes:
    """Return a value as CBOR."""
    data: bytes = import_module("cbor2").dumps(value)
    return data


def decode_pickle(data: bytes) -> Any:
    """Return a pickled value. This executes the code in it."""
    import pickle

    return pickle.loads(data)  # noqa: S301 - the caller passed allow_pickle=True


def encode_pickle(_: Any) -> bytes:
    """Raise TypeError: wids does not write what its readers refuse."""
    raise TypeError(
        "a pickle executes code when it is read, so readers refuse it; store json, npz, msgpack or "
        "pt, or pass an encoder of your own"
    )
