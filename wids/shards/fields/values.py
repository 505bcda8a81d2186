"""Decode and encode Python values, arrays and tensors.

torch and all optional packages are imported when first used. Every number in the data is checked
before it is used.

A tenbin file is a sequence of chunks: ``~TenBin~``, a length of 8 bytes, the content, and zeros up
to a multiple of 64 bytes. Each array is two chunks: a header of integers of 8 bytes (type code, a
name, the number of dimensions, the dimensions), then its data in C order, all little-endian.
"""

from __future__ import annotations

import codecs
import io
import json
import operator
import re
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wids.shards.fields.safety import RefusedError, check_archive

_DECODE_FIRST: Final = json.JSONDecoder().raw_decode
_BOM: Final = "\ufeff"
_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG: Final = b"0" * 19
"""Integers with fewer digits fit in 64 bits."""


def decode_text(data: bytes) -> str:
    """Return text in UTF-8, or in UTF-16 with a byte order mark, which is left out."""
    try:
        return data.decode("utf-8").removeprefix(_BOM)
    except UnicodeDecodeError:
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return data.decode("utf-16")
        raise


def encode_text(value: str) -> bytes:
    """Encode text as UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r:.80}")
    # A mark that is a part of the text needs another one, which is left out.
    return value.encode("utf-8-sig" if value.startswith(_BOM) else "utf-8")


def decode_integer(data: bytes) -> int:
    """Return the integer in text, which may end with a newline from an editor or `echo`."""
    try:
        return int(data)
    except ValueError:
        if data.startswith(codecs.BOM_UTF8):
            return int(data.removeprefix(codecs.BOM_UTF8))
        raise


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
    """Encode a value as JSON in UTF-8.

    Raises:
        ValueError: JSON cannot hold it: NaN, infinities, or keys that become one.
    """
    try:
        # As ASCII escapes, non-Latin text takes six or more bytes for each character.
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        if "Out of range" not in str(error):
            raise
        raise ValueError(
            "expected finite numbers, found NaN or infinity, which JSON lacks; store None, a "
            "text, or the field as .npy, .msgpack or .cbor"
        ) from error
    _check_keys(value)
    return text.encode("utf-8")


def _check_keys(value: Any) -> None:
    """Raise ValueError for a dict whose keys become one as text, such as 1 and "1"."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            texts = {json.dumps({key: 0}): key for key in value}
            if len(texts) < len(value):
                lost = next(key for key in value if texts[json.dumps({key: 0})] is not key)
                raise ValueError(
                    f"expected keys that differ as text, found {lost!r} and another one that "
                    "becomes the same; JSON has text keys only"
                )
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for each in value:
        if isinstance(each, dict | list | tuple):
            _check_keys(each)


def decode_json_lines(data: bytes) -> list[Any]:
    """Return the values of JSON lines; blank lines are skipped."""
    # Not `splitlines`, which also splits at characters that JSON allows inside a string.
    return [json.loads(line) for line in decode_text(data).split("\n") if line.strip()]


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


def as_array(value: Any) -> npt.NDArray[Any]:
    """Return a value as an array.

    Raises:
        ValueError: Values of it are masked, which no format of arrays can store.
    """
    arrays = value if isinstance(value, list | tuple) else (value,)
    if any(isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array) for array in arrays):
        raise ValueError(
            "expected an array without masked values; store array.filled(…), and array.mask in a "
            "field of its own"
        )
    return np.asarray(value)


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
        array = as_array(given)
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


_ZIP_SIGNATURE: Final = b"PK\x03\x04"


def decode_npy(data: bytes) -> Any:
    """Return the array of an ``.npy`` file; reject arrays of objects."""
    # Not `np.load`, which would also open archives, whose members have no limit.
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


def encode_npy(value: Any) -> bytes:
    """Return an array as an ``.npy`` file; reject arrays of objects."""
    stream = io.BytesIO()
    np.save(stream, as_array(value), allow_pickle=False)
    return stream.getvalue()


def decode_npz(data: bytes, max_nbytes: int | None = None) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an ``.npz`` file by name; see `check_archive` for the limit."""
    check_archive(data, max_nbytes)
    with np.load(io.BytesIO(data), allow_pickle=False) as members:
        # Read all now: an NpzFile reads each array at its first use, where an error would no longer
        # name the sample.
        return dict(members)


def encode_npz(arrays: Mapping[str, Any]) -> bytes:
    """Return arrays by name as an ``.npz`` file."""
    values = {str(name): as_array(array) for name, array in arrays.items()}
    if len(values) < len(arrays):
        raise ValueError("expected names that differ as text, such as not both 1 and '1'")
    # Check before writing: an array of objects would need a pickle, which readers reject (SEC-5).
    if any(array.dtype.hasobject for array in values.values()):
        raise ValueError("expected arrays of numbers or text, found one of objects")
    stream = io.BytesIO()
    # Not numpy's `savez`, which takes the arrays as keyword arguments and so cannot store one named
    # "file". A ZipInfo has a fixed time, so the same arrays become the same bytes.
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in values.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), encode_npy(array))
    return stream.getvalue()


def encode_tenbin(value: Any) -> bytes:
    """Return an array, or a list or tuple of arrays, in webdataset's tensor format."""
    return dumps(value if isinstance(value, list | tuple) else [value])


def decode_torch_weights(data: bytes, max_nbytes: int | None = None) -> Any:
    """Return what ``torch.save`` stored, on the CPU; reject anything but weights.

    See `check_archive` for the limit.
    """
    import torch

    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        raise RefusedError(
            f"expected torch 2.6 or later to read weights, found {torch.__version__}, which can be "
            "made to execute code (CVE-2025-32434)"
        )
    if data.startswith(_ZIP_SIGNATURE):  # as torch distinguishes archives from its pre-1.6 format
        check_archive(data, max_nbytes)
    # On the CPU, since workers of a DataLoader must not touch a GPU.
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def encode_torch_weights(value: Any) -> bytes:
    """Return a value as ``torch.save`` stores it.

    Raises:
        TypeError: Readers, which execute no code, could not load it.
    """
    import pickle

    import torch

    stream = io.BytesIO()
    torch.save(value, stream)
    data = stream.getvalue()
    try:
        torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        raise TypeError(
            "expected tensors, numbers, texts, and lists and dicts of these, which load without "
            f"executing code, found {found[1] if found else 'other objects'}; convert numpy arrays "
            "by torch.from_numpy, or store npz"
        ) from error
    return data


def decode_safetensors(data: bytes) -> Any:
    """Return the tensors of a safetensors file by name."""
    return import_module("safetensors.torch").load(data)


def encode_safetensors(tensors: Mapping[str, Any]) -> Any:
    """Return tensors or arrays by name as a safetensors file."""
    import torch

    # safetensors rejects tensors whose memory is not contiguous.
    values = {
        name: torch.as_tensor(
            as_array(tensor) if isinstance(tensor, np.ndarray) else tensor
        ).contiguous()
        for name, tensor in tensors.items()
    }
    return import_module("safetensors.torch").save(values)
