"""Value → bytes of a field: the mirror image of `wids.decode`.

An encoder is chosen by the field's extension, as a decoder is. Bytes are stored as they are, under
any extension.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from wids.decode import IMAGE_EXTENSIONS, extension


def encode(field: str, value: Any) -> bytes:
    """Give the bytes of a field.

    Raises:
        TypeError: The extension has no encoder, and the value is not bytes.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    encoder = ENCODERS.get(extension(field))
    if encoder is None:
        raise TypeError(
            f'field "{field}": expected bytes, found {type(value).__name__}; '
            f"there are encoders for {' '.join(ENCODERS)}"
        )
    return encoder(value)


def _cls(value: int) -> bytes:
    return b"%d" % value


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8")


def _npy(value: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.asarray(value), allow_pickle=False)
    return stream.getvalue()


def _image(format_name: str) -> Callable[[Any], bytes]:
    def encode_image(value: Any) -> bytes:
        from PIL import Image

        stream = io.BytesIO()
        image = value if isinstance(value, Image.Image) else Image.fromarray(np.asarray(value))
        image.save(stream, format=format_name)
        return stream.getvalue()

    return encode_image


ENCODERS: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "txt": str.encode,
    "cls": _cls,
    "json": _json,
    "npy": _npy,
    **{name: _image("JPEG" if name == "jpg" else name.upper()) for name in IMAGE_EXTENSIONS},
}
