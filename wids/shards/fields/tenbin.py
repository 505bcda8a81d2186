"""Decode and encode lists of arrays in webdataset's tensor format (``.ten``, ``.tenbin``, ``.tb``).

The data is a sequence of chunks: ``~TenBin~``, a length of 8 bytes, the content, and zeros up to a
multiple of 64 bytes. Each array is two chunks: a header of integers of 8 bytes (type code, a name,
the number of dimensions, the dimensions), then its data in C order. Everything is little-endian.
Every number in the data is checked before it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_MAGIC: Final = b"~TenBin~"
_ALIGNMENT: Final = 64
_MAX_DIMENSIONS: Final = 9
_CODES: Final = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")


def dumps(arrays: Sequence[npt.ArrayLike]) -> bytes:
    """Return arrays as bytes.

    Raises:
        ValueError: An array has more than nine dimensions, or does not hold integers or floats of
            up to 8 bytes.
    """
    parts = []
    for number, given in enumerate(arrays):
        array = np.asarray(given)
        code = f"{array.dtype.kind}{array.dtype.itemsize}"
        if code not in _CODES or array.ndim > _MAX_DIMENSIONS:
            raise ValueError(
                f"array {number}: expected at most {_MAX_DIMENSIONS} dimensions of integers or "
                f"floats of up to 8 bytes, found {array.ndim} of {array.dtype}"
            )
        header = struct.pack(
            f"<8s8sq{array.ndim}q", code.encode("ascii"), b"", array.ndim, *array.shape
        )
        # The type code does not state a byte order, so it is always little-endian.
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        for content in (header, little.tobytes()):
            padding = bytes(-len(content) % _ALIGNMENT)
            parts += [_MAGIC, struct.pack("<q", len(content)), content, padding]
    return b"".join(parts)


def loads(data: bytes) -> list[npt.NDArray[Any]]:
    """Return the arrays in bytes; they share one copy of the bytes and are writable.

    Raises:
        ValueError: The bytes are incomplete, or not in this format.
    """
    chunks = list(_chunks(bytearray(data)))
    if len(chunks) % 2:
        raise ValueError("expected a header and data for each array, found a header without data")
    return [_array(header, content) for header, content in zip(*[iter(chunks)] * 2, strict=True)]


def _chunks(data: bytearray) -> Iterator[memoryview]:
    # A bytearray, because arrays over its memory are writable.
    view, offset = memoryview(data), 0
    while offset < len(view):
        start = offset + 16
        if not data.startswith(_MAGIC, offset) or start > len(view):
            raise ValueError(f"expected a chunk at byte {offset}, found something else")
        (length,) = struct.unpack_from("<q", view, offset + 8)
        # The length is signed: a negative one would move the offset backwards, and the loop might
        # never end.
        if not 0 <= length <= len(view) - start:
            raise ValueError(
                f"expected a chunk at byte {offset} that ends before {len(view)}, found the length "
                f"{length}"
            )
        yield view[start : start + length]
        offset = start + length + -length % _ALIGNMENT


def _array(header: memoryview, content: memoryview) -> npt.NDArray[Any]:
    # The second word of the header is the name that webdataset gives an array; it is ignored.
    if len(header) < 24 or len(header) % 8:
        raise ValueError(f"expected a header of at least 24 bytes, found {len(header)}")
    code = bytes(header[:8]).rstrip(b"\0").decode("ascii", "replace")
    num_dimensions, *shape = struct.unpack_from(f"<{len(header) // 8 - 2}q", header, 16)
    if code not in _CODES:
        raise ValueError(f"expected one of the types {' '.join(_CODES)}, found {code!r}")
    if num_dimensions != len(shape) or len(shape) > _MAX_DIMENSIONS or min(shape, default=0) < 0:
        raise ValueError(f"expected {num_dimensions} dimensions, found {shape}")
    dtype, size = np.dtype(f"<{code}"), 1
    for length in shape:  # as Python integers, which do not overflow
        size *= length
    # Compared before `reshape`, whose error would not name the shape and the bytes.
    if size * dtype.itemsize != len(content):
        raise ValueError(
            f"expected {size * dtype.itemsize} bytes for the shape {tuple(shape)} of {code}, found "
            f"{len(content)}"
        )
    return np.frombuffer(content, dtype).reshape(shape)
