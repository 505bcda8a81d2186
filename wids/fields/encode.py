"""Value → bytes of a field: the mirror image of `wids.fields.decode`.

An encoder is chosen by the field's extension, as a decoder is, and what it writes the decoder reads
back: the same value, as far as the format has it (JSON has lists and text keys only; WebP neither
grey, which comes back as RGB, nor an alpha that is all opaque), save for pictures in ``jpg``,
``jpeg`` and ``gif``, which lose some of it.
Bytes are stored as they are, under any extension (compressed for ``.gz``, if they are not), and
text under an extension that is not in the table as UTF-8.
"""

from __future__ import annotations

import gzip
import io
import json
import operator
import zipfile
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wids.fields import tenbin
from wids.fields.decode import PICKLE_EXTENSIONS

Encode = Callable[[Any], bytes]

_DEEP: Final = ("I;16", "I;16B", "I", "F")
_ALPHA: Final = ("RGBA", "LA", "PA")
_LOSSY_MODES: Final = {
    "WEBP": _DEEP,
    "GIF": _DEEP,
    "BMP": (*_DEEP, *_ALPHA),
    "PPM": ("F", *_ALPHA),
}
"""What a format would store less of, without saying so."""

_JPEG_QUALITY: Final = 95  # Pillow advises against more


def encode(field: str, value: Any, encoders: Mapping[str, Encode] | None = None) -> bytes:
    """Give the bytes of a field.

    Args:
        field: Name of the field, with or without its leading dot.
        value: What to encode. With ``.gz`` at the end of the name the bytes are compressed, unless
            they are gzip data already.
        encoders: Encoders by extension, in front of the table. A key with dots, ``"seg.png"``, is
            for fields that end so; the longest wins.

    Raises:
        TypeError: The value is not one for this field.
        ValueError: The same, where its type is right.
    """
    name = "." + field.lower().removeprefix(".")
    is_zipped = name.endswith(".gz")
    if isinstance(value, bytes | bytearray | memoryview):
        return _zip(bytes(value)) if is_zipped else bytes(value)
    encoder = _find(name.removesuffix(".gz"), encoders or {})
    if encoder is None and isinstance(value, str):
        encoder = str.encode
    if encoder is None:
        raise TypeError(
            f'field "{field}": expected bytes or text, found {type(value).__name__}; there are '
            f"encoders for {' '.join(ENCODERS)}"
        )
    try:
        data = encoder(value)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f'field "{field}": {type(value).__name__} could not be encoded: {error}'
        ) from error
    return _zip(data) if is_zipped else data


def _zip(data: bytes) -> bytes:
    # Without a time, so that the same value gives the same bytes.
    return data if data.startswith(b"\x1f\x8b") else gzip.compress(data, mtime=0)


def _find(name: str, encoders: Mapping[str, Encode]) -> Encode | None:
    while name:
        name = name.partition(".")[2]
        found = encoders.get(name) or ENCODERS.get(name)
        if found:
            return found
    return None


# Plain values


def _text(value: str) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r:.80}")
    return value.encode("utf-8")


def _integer(value: Any) -> bytes:
    if isinstance(value, bool):
        raise TypeError(f"expected an integer, found {value}")
    if isinstance(value, str):
        value = int(value)
    return b"%d" % operator.index(value)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8")


def _json_lines(values: Any) -> bytes:
    return b"".join(_json(value) + b"\n" for value in values)


def _npy(value: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.asarray(value), allow_pickle=False)
    return stream.getvalue()


def _npz(arrays: Mapping[str, Any]) -> bytes:
    values = {str(name): np.asarray(array) for name, array in arrays.items()}
    if any(array.dtype.hasobject for array in values.values()):
        raise ValueError("expected arrays of numbers or text, found one of objects")
    stream = io.BytesIO()
    # As numpy's own `savez`, which has no place for arrays of the name "file".
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in values.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), _npy(array))
    return stream.getvalue()


def _tenbin(value: Any) -> bytes:
    return tenbin.dumps(value if isinstance(value, list | tuple) else [value])


def _msgpack(value: Any) -> bytes:
    data: bytes = import_module("msgpack").packb(value)
    return data


def _cbor(value: Any) -> bytes:
    data: bytes = import_module("cbor2").dumps(value)
    return data


def _torch_weights(value: Any) -> bytes:
    import torch

    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _safetensors(tensors: Mapping[str, Any]) -> bytes:
    import torch

    values = {name: torch.as_tensor(tensor).contiguous() for name, tensor in tensors.items()}
    data: bytes = import_module("safetensors.torch").save(values)
    return data


def _refuse_pickle(_: Any) -> bytes:
    raise TypeError(
        "a pickle executes code when it is read, so readers refuse it; store json, npz, msgpack or "
        "pt, or pass an encoder of your own"
    )


# Pictures


def _image(format_name: str, **options: Any) -> Encode:
    def encode_image(value: Any) -> bytes:
        stream = io.BytesIO()
        image = _picture(value)
        if image.mode in _LOSSY_MODES.get(format_name, ()):
            raise ValueError(f"{format_name} would lose some of a picture of mode {image.mode}")
        image.save(stream, format=format_name, **options)
        return stream.getvalue()

    return encode_image


def _picture(value: Any) -> Any:
    """Give a PIL image of an image, array or tensor."""
    from PIL import Image

    if isinstance(value, Image.Image):
        return value
    array = np.asarray(value)
    if type(value).__module__.partition(".")[0] == "torch" and array.ndim == 3:
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype.kind == "f":
        array = _bytes_of(array)
    is_grey16 = array.dtype == np.uint16 and array.ndim == 2
    if not is_grey16 and (array.dtype != np.uint8 or array.shape[2:] not in ((), (3,), (4,))):
        raise ValueError(
            "expected a picture of shape (height, width), or with 3 or 4 channels behind it (in "
            "front for a tensor), of uint8 or of floats from 0 to 1, or grey of uint16; found "
            f"{array.shape} of {array.dtype}"
        )
    if array.ndim not in (2, 3):
        raise ValueError(f"expected a picture of 2 or 3 dimensions, found {array.ndim}")
    return Image.fromarray(np.ascontiguousarray(array))


def _bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    low, high = (array.min(), array.max()) if array.size else (0, 1)
    if not (low >= 0 and high <= 1):  # NaN is neither
        raise ValueError(f"expected floats from 0 to 1, found {low} to {high}")
    scaled: npt.NDArray[np.uint8] = np.rint(array * 255).astype(np.uint8)
    return scaled


ENCODERS: Final[Mapping[str, Encode]] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), _integer),
    **dict.fromkeys(("json", "jsn"), _json),
    "jsonl": _json_lines,
    "npy": _npy,
    "npz": _npz,
    **dict.fromkeys(("ten", "tenbin", "tb"), _tenbin),
    **dict.fromkeys(("mp", "msg", "msgpack"), _msgpack),
    "cbor": _cbor,
    **dict.fromkeys(("pt", "pth"), _torch_weights),
    "safetensors": _safetensors,
    **dict.fromkeys(PICKLE_EXTENSIONS, _refuse_pickle),
    **dict.fromkeys(("jpg", "jpeg"), _image("JPEG", quality=_JPEG_QUALITY)),
    "png": _image("PNG"),
    **dict.fromkeys(("ppm", "pgm", "pbm", "pnm"), _image("PPM")),
    "webp": _image("WEBP", lossless=True, exact=True),
    "gif": _image("GIF"),
    "bmp": _image("BMP"),
    **dict.fromkeys(("tif", "tiff"), _image("TIFF")),
}
"""The table, by extension."""
