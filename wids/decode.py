"""Field name → value: one table.

A decoder is a callable from the bytes of a field to its value. It is chosen by what follows the
field's last dot, in any case: ``.jpg``, ``.JPG`` and ``.seg.jpg`` are the same to this room. A
field whose extension is not in the table stays as it is. Nothing here executes what it decodes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, get_args

import numpy as np

from wids.errors import DecodeError

Images = Literal["PIL", "numpy", "torch"]
Decode = Callable[[bytes], Any]

IMAGE_EXTENSIONS: Final = ("jpg", "jpeg", "png", "webp")
_KEPT_MODES = ("L", "RGB", "RGBA", "I;16")


def extension(field: str) -> str:
    """Give what decides about a field: the part after its last dot, in lower case."""
    return field.rpartition(".")[2].lower()


class Decoder:
    """The fields of a sample, decoded by extension.

    A callable on the sample, so that it stands in a list of transformations like any other. It
    changes the sample it is given and returns it. Safe to call from any thread.

    Args:
        images: What pictures become: ``"PIL"``, a loaded ``PIL.Image.Image``; ``"numpy"``, an array
            of shape ``(height, width)`` for grey pictures and ``(height, width, channels)``
            otherwise, uint8 (uint16 for 16-bit grey); ``"torch"``, a tensor of shape
            ``(channels, height, width)`` of the same types. Arrays and tensors keep grey, RGB and
            RGBA; palettes, CMYK and the rest become RGB, or RGBA where they are transparent.
    """

    def __init__(self, images: Images = "PIL") -> None:
        if images not in get_args(Images):
            raise ValueError(f'images: expected "PIL", "numpy" or "torch", found {images!r}')
        self.images = images
        self.table: Mapping[str, Decode] = {
            "txt": _text,
            "cls": int,
            "json": json.loads,
            "npy": _npy,
            **dict.fromkeys(IMAGE_EXTENSIONS, _IMAGE_DECODERS[images]),
        }

    def __repr__(self) -> str:
        return f"Decoder(images={self.images!r})"

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Decode the fields of a sample in place and return it."""
        for field, value in sample.items():
            if field[:1] == ".":
                decode = self.table.get(extension(field))
                if decode is not None:
                    sample[field] = self._decode(decode, field, value)
        return sample

    @staticmethod
    def _decode(decode: Decode, field: str, value: Any) -> Any:
        try:
            return decode(value.getvalue() if isinstance(value, io.BytesIO) else bytes(value))
        except Exception as error:
            raise DecodeError(
                f'field "{field}": expected {extension(field)} data, found {_size(value)} that the '
                f"decoder refuses: {type(error).__name__}: {error}",
                field=field,
            ) from error


def _size(value: Any) -> str:
    size = value.getbuffer().nbytes if isinstance(value, io.BytesIO) else len(value)
    return f"{size} bytes"


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _npy(data: bytes) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False)


def _pil(data: bytes) -> Any:
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    image.load()  # now, so that a corrupt picture is an error here, where its sample is known
    return image


def _numpy(data: bytes) -> Any:
    image = _pil(data)
    if image.mode not in _KEPT_MODES:
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    return np.array(image)


def _torch(data: bytes) -> Any:
    import torch

    array = _numpy(data)
    channels_last = array if array.ndim == 3 else array[:, :, None]
    return torch.from_numpy(np.ascontiguousarray(channels_last.transpose(2, 0, 1)))


_IMAGE_DECODERS: Mapping[Images, Decode] = {"PIL": _pil, "numpy": _numpy, "torch": _torch}
