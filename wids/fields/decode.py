"""Field name → value: one table.

A decoder is a callable from the bytes of a field to its value. It is chosen by what follows the
field's last dot, in any case: ``.jpg``, ``.JPG`` and ``.seg.jpg`` are the same to this room; with
``.gz`` after it the bytes are decompressed first. A field whose extension is not in the table stays
as it is. Nothing here executes what it decodes, unless the caller allows pickle.
"""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wids.errors import DecodeError
from wids.fields import tenbin

Decode = Callable[[bytes], Any]

IMAGE_EXTENSIONS: Final = (
    *("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"),
    *("ppm", "pgm", "pbm", "pnm"),
)
PICKLE_EXTENSIONS: Final = ("pkl", "pickle", "pyd")
MAX_UNZIPPED_NBYTES: Final = 1 << 30
"""Most bytes that a ``.gz`` field may have when decompressed."""

# What is opened, whatever the extension says. Pillow knows more formats, of which some start other
# programs.
_PIL_FORMATS: Final = ("JPEG", "PNG", "PPM", "WEBP", "GIF", "BMP", "TIFF")
_KEPT_MODES: Final = ("L", "RGB", "RGBA")
_MODES: Final = ("l", "rgb", "rgba")


def extension(field: str) -> str:
    """Give what decides about a field: the part after its last dot, in lower case."""
    return field.rpartition(".")[2].lower()


class Decoder:
    """The fields of a sample, decoded by extension.

    A callable on the sample, so that it stands in a list of transformations like any other. It
    changes the sample it is given and returns it. Safe to call from any thread.

    ``txt text transcript`` become text; ``cls cls2 class count index inx id`` an integer; ``json
    jsn`` what they say, and ``jsonl`` a list of it; ``npy`` an array, ``npz`` a dict of arrays,
    ``ten tenbin tb`` a list of arrays; ``mp msg msgpack`` and ``cbor`` what they say; ``pt pth``
    and ``safetensors`` tensors. Pictures (``jpg jpeg png ppm pgm pbm pnm webp gif bmp tif tiff``)
    become what ``images`` says:

    ================================= ================ =============== ===========================
    ``images``                        type             values          shape
    ================================= ================ =============== ===========================
    ``"PIL"``                         PIL.Image.Image  as stored
    ``"pill" "pilrgb" "pilrgba"``     PIL.Image.Image  uint8
    ``"pil"``                         as ``"pilrgb"``
    ``"numpy"``                       numpy.ndarray    uint8, uint16   (h, w) or (h, w, channels)
    ``"l8"``                          numpy.ndarray    uint8           (h, w)
    ``"rgb8" "rgba8"``                numpy.ndarray    uint8           (h, w, 3 or 4)
    ``"l" "rgb" "rgba"``              numpy.ndarray    float32, 0..1   (h, w) or (h, w, 3 or 4)
    ``"torch"``                       torch.Tensor     uint8, uint16   (channels, h, w)
    ``"torchl8"``                     torch.Tensor     uint8           (h, w)
    ``"torchrgb8" "torchrgba8"``      torch.Tensor     uint8           (3 or 4, h, w)
    ``"torchl" "torchrgb"`` …         torch.Tensor     float32, 0..1   (h, w) or (3 or 4, h, w)
    ================================= ================ =============== ===========================

    ``"numpy"`` and ``"torch"`` keep grey, RGB and RGBA, and grey of 16 bits (of 32 bits as int32 or
    float32); palettes, CMYK and the rest become RGB, or RGBA where they are transparent. The other
    names are webdataset's and mean the same, except that its ``"torch"`` is ``"torchrgb"`` here,
    and that grey of 16 bits is scaled to 8 and not cut off at 255.

    Args:
        images: What pictures become.
        decoders: Decoders of your own by extension, such as ``{"flac": decode_flac}``, in front of
            the table. A key with dots, ``"seg.png"``, is for fields that end so; the longest wins.
            None in place of a callable leaves fields as they are.
        allow_pickle: Whether to decode ``pkl pickle pyd``, and with that execute whatever code
            they contain.
        max_nbytes: Most bytes of a ``.gz`` field when decompressed; None for 1 GiB.
    """

    def __init__(
        self,
        images: str = "PIL",
        *,
        decoders: Mapping[str, Decode | None] | None = None,
        allow_pickle: bool = False,
        max_nbytes: int | None = None,
    ) -> None:
        decode_image = _image_decoder(images)
        if decode_image is None:
            raise ValueError(
                f'images: expected "PIL", "numpy", "torch" or one of webdataset\'s '
                f"specifications, {' '.join(_SPECIFICATIONS)}, found {images!r}"
            )
        self.images = images
        self.allow_pickle = allow_pickle
        self.max_nbytes = max_nbytes
        self.table: Mapping[str, Decode | None] = {
            **_TABLE,
            **dict.fromkeys(IMAGE_EXTENSIONS, decode_image),
            **dict.fromkeys(PICKLE_EXTENSIONS, _unpickle if allow_pickle else _refuse_pickle),
            **{name.lower().removeprefix("."): f for name, f in (decoders or {}).items()},
        }

    def __repr__(self) -> str:
        return f"Decoder(images={self.images!r})"

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Decode the fields of a sample in place and return it."""
        for field, value in sample.items():
            if field[:1] == ".":
                name = field.lower()
                is_zipped = name.endswith(".gz")
                decode = self._find(name[:-3] if is_zipped else name)
                if decode is not None:
                    if is_zipped:
                        decode = partial(_decoded_zip, decode, self.max_nbytes)
                    sample[field] = _decoded(decode, field, value)
        return sample

    def _find(self, name: str) -> Decode | None:
        while name:
            name = name.partition(".")[2]
            if name in self.table:
                return self.table[name]
        return None


def _decoded_zip(decode: Decode, max_nbytes: int | None, data: bytes) -> Any:
    return decode(_unzip(data, MAX_UNZIPPED_NBYTES if max_nbytes is None else max_nbytes))


def _decoded(decode: Decode, field: str, value: Any) -> Any:
    data = value.getvalue() if isinstance(value, io.BytesIO) else bytes(value)
    try:
        return decode(data)
    except _RefusedError as error:
        raise DecodeError(f'field "{field}": {error}', field=field) from None
    except ModuleNotFoundError as error:
        raise DecodeError(
            f'field "{field}": its decoder needs a package that is not installed ({error.name}); '
            f"{_how_to_install(error.name)}",
            field=field,
        ) from error
    except Exception as error:
        raise DecodeError(
            f'field "{field}": expected {extension(field)} data, found {len(data)} bytes that the '
            f"decoder refuses: {type(error).__name__}: {error}",
            field=field,
        ) from error


def _how_to_install(package: str | None) -> str:
    package = (package or "").partition(".")[0]
    extra = {"msgpack": "msgpack", "cbor2": "cbor", "safetensors": "safetensors"}.get(package)
    return f"pip install 'wids[{extra}]'" if extra else f"pip install {package}"


class _RefusedError(Exception):
    """A decoder that will not, whatever the bytes are."""


def _refuse_pickle(_: bytes) -> Any:
    raise _RefusedError(
        "expected data, found a pickle, which executes code when it is read; pass "
        "allow_pickle=True if you trust whoever wrote it, or leave the field out with `fields`"
    )


def _unpickle(data: bytes) -> Any:
    import pickle

    return pickle.loads(data)  # noqa: S301 - the caller allowed it


def _unzip(data: bytes, max_nbytes: int) -> bytes:
    """Decompress gzip data, and no more than the limit."""
    if not data:
        raise ValueError("it is empty, and no gzip data")
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        found = stream.read(max_nbytes + 1)
    if len(found) > max_nbytes:
        raise ValueError(f"it is longer than {max_nbytes} bytes when decompressed")
    return found


def _check_zip(data: bytes) -> None:
    """Refuse an archive that would fill the memory."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            nbytes = sum(member.file_size for member in archive.infolist())
        if nbytes > max(MAX_UNZIPPED_NBYTES, len(data)):
            raise ValueError(f"it is longer than {MAX_UNZIPPED_NBYTES} bytes when decompressed")


# Plain values


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _json_lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.decode("utf-8").split("\n") if line.strip()]


def _npy(data: bytes) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False)


def _npz(data: bytes) -> dict[str, npt.NDArray[Any]]:
    _check_zip(data)
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


def _msgpack(data: bytes) -> Any:
    return import_module("msgpack").unpackb(data, strict_map_key=False)


def _cbor(data: bytes) -> Any:
    return import_module("cbor2").loads(data)


def _torch_weights(data: bytes) -> Any:
    import torch

    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        raise _RefusedError(
            f"expected torch 2.6 or later to read weights, found {torch.__version__}, which can be "
            "made to execute code (CVE-2025-32434)"
        )
    _check_zip(data)
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")


def _safetensors(data: bytes) -> Any:
    return import_module("safetensors.torch").load(data)


_TABLE: Final[Mapping[str, Decode]] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "jsonl": _json_lines,
    "npy": _npy,
    "npz": _npz,
    **dict.fromkeys(("ten", "tenbin", "tb"), tenbin.loads),
    **dict.fromkeys(("mp", "msg", "msgpack"), _msgpack),
    "cbor": _cbor,
    **dict.fromkeys(("pt", "pth"), _torch_weights),
    "safetensors": _safetensors,
}

# Pictures


def opened_image(data: bytes) -> Any:
    """Give a PIL image of which only the header was read."""
    from PIL import Image

    return Image.open(io.BytesIO(data), formats=_PIL_FORMATS)


def _opened(data: bytes) -> Any:
    image = opened_image(data)
    image.load()  # now, so that a corrupt picture is an error here, where its sample is known
    return image


def _numpy(data: bytes) -> Any:
    image = _opened(data)
    if image.mode[0] in "IF":  # grey of more than 8 bits, which Pillow would cut off at 255
        array = np.array(image)
        is_short = array.dtype.kind in "iu" and array.min() >= 0 and array.max() <= 0xFFFF
        return array.astype(np.uint16) if is_short else array
    if image.mode not in _KEPT_MODES:
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    return np.array(image)


def _torch(data: bytes) -> Any:
    array = _numpy(data)
    return _channels_first(array if array.ndim == 3 else array[:, :, None])


def _channels_first(array: npt.NDArray[Any]) -> Any:
    import torch

    if array.ndim == 3:
        array = array.transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(array))


class _Specified:
    """Pictures as a specification of webdataset says: container, mode, and floats or bytes."""

    def __init__(self, specification: str) -> None:
        self.container = next(c for c in ("torch", "pil", "") if specification.startswith(c))
        rest = specification.removeprefix(self.container)
        self.is_float = not rest.endswith("8") and self.container != "pil"
        self.mode = rest.removesuffix("8") or "rgb"

    def __call__(self, data: bytes) -> Any:
        from PIL import Image

        image = _opened(data)
        if image.mode[0] in "IF":
            # Pillow would cut 16 bits off at 255.
            image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
        if image.mode == "P" and image.has_transparency_data:
            image = image.convert("RGBA")  # or Pillow warns
        image = image.convert(self.mode.upper())
        if self.container == "pil":
            return image
        array = np.array(image)
        if self.is_float:
            array = array.astype(np.float32) / np.float32(255)
        return array if self.container == "" else _channels_first(array)


_SPECIFICATIONS: Final = (
    *(f"{kind}{mode}{end}" for kind in ("", "torch") for mode in _MODES for end in ("8", "")),
    *(f"pil{mode}" for mode in ("", *_MODES)),
)


def _image_decoder(images: Any) -> Decode | None:
    named: dict[str, Decode] = {"PIL": _opened, "numpy": _numpy, "torch": _torch}
    if not isinstance(images, str):
        return None
    if images in _SPECIFICATIONS:
        return _Specified(images)
    return named.get(images)
