"""Encode the values of fields as bytes, which `decode` turns back into the values.

The field's extension chooses the encoder, as it does the decoder, from the table of
`wids.shards.fields.codecs`. The value is the same after a round trip, or it is refused, except
that JSON has only lists and text keys; WebP has neither grey, which becomes RGB, nor a fully
opaque alpha channel, which is dropped; ``jpg``, ``jpeg`` and ``gif`` are lossy, and so are ``ogg``,
``opus`` and ``mp3``. Bytes are stored unchanged under any extension (compressed for ``.gz``, unless
they already are), and text under an unknown extension as UTF-8.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import Any, Final

from wids.errors import printable
from wids.shards.fields.codecs import BY_EXTENSION, Encode, find, how_to_install

_ENCODERS: Final = {
    extension: codec.encode for extension, codec in BY_EXTENSION.items() if codec.encode is not None
}


def encode(field: str, value: Any, encoders: Mapping[str, Encode] | None = None) -> bytes:
    """Return the bytes of a field.

    Args:
        field: Name of the field, with or without its leading dot.
        value: What to encode. If the name ends in ``.gz`` the bytes are compressed, unless they are
            gzip data already.
        encoders: Encoders by extension, which take precedence over the table. A key with dots,
            ``"seg.png"``, matches fields that end in it; the longest match wins.

    Raises:
        TypeError: The value has the wrong type for this field.
        ValueError: The type is right, but the value cannot be stored.
        ModuleNotFoundError: The encoder needs a package that is not installed.
    """
    name = "." + field.lower().removeprefix(".")
    is_zipped = name.endswith(".gz")
    # Before any encoder: bytes are the content of the field, so that copying a dataset does not
    # encode an image again.
    if isinstance(value, bytes | bytearray | memoryview):
        return _zipped(bytes(value)) if is_zipped else bytes(value)
    table = {**_ENCODERS, **encoders} if encoders else _ENCODERS
    encoder = find(name.removesuffix(".gz"), table)
    if encoder is None and isinstance(value, str):
        encoder = str.encode
    if encoder is None:
        raise TypeError(
            f'field "{printable(field)}": expected bytes or text, found {type(value).__name__}; '
            f"there are encoders for {' '.join(_ENCODERS)}"
        )
    try:
        data = encoder(value)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise ModuleNotFoundError(
            f'field "{printable(field)}": its encoder needs a package that is not installed '
            f"({error.name}); {how_to_install(package)}",
            name=error.name,
        ) from error
    except Exception as error:
        # Encoders raise the exceptions of their packages; callers are promised two types.
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f'field "{printable(field)}": {type(value).__name__} could not be encoded: '
            f"{printable(str(error))}"
        ) from error
    # `len` of an array is not its number of bytes, so an array would break the tar.
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(
            f'field "{printable(field)}": expected bytes from its encoder, found '
            f"{type(data).__name__}"
        )
    return _zipped(bytes(data)) if is_zipped else bytes(data)


def _zipped(data: bytes) -> bytes:
    # Without a time, so that the same value becomes the same bytes.
    return data if data.startswith(b"\x1f\x8b") else gzip.compress(data, mtime=0)
