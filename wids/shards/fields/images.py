"""Decode images to PIL images, numpy arrays or torch tensors, and encode them.

The format of an image is detected from its bytes. Pillow and torch are imported when first used.

With the package simplejpeg, JPEGs are decoded by libjpeg-turbo. The pixels equal those of Pillow,
which uses the same library with one more copy. Unusual files are left to Pillow: other formats,
CMYK, and every file that the decoder complains about, so that a damaged picture is read, or
rejected, as without the package.
"""

from __future__ import annotations

import io
import math
import operator
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from wids.shards.fields.values import as_array

Size: TypeAlias = tuple[int, int]
"""Height and width."""

_START: Final = b"\xff\xd8\xff"

_TARGETS: Final = {
    **dict.fromkeys([("Gray", None), ("Gray", "L")], "GRAY"),
    **{(colours, mode): "RGB" for colours in ("YCbCr", "RGB") for mode in (None, "RGB")},
    ("Gray", "RGB"): "RGB",
}
"""What to decode to, by the colours in the file and the requested mode.

Not colours to grey: the decoder would return the luminance in the file, while Pillow computes it
from RGB, which differs by rounding.
"""

_SHRINKS: Final = (8, 4, 2)
"""Divisors of height and width that make decoding faster, largest first.

The decoder also has the scales 3/8, 5/8, 6/8 and 7/8, but only powers of two are vectorised: 3/8 of
1500 by 2250 takes 1.2 times as long as 4/8, and 5/8 to 7/8 take 1.6 to 2.6 times as long as the
whole. Pillow has only powers of two, so pictures have the same size with and without simplejpeg.
"""


def jpeg_shrink(size: Size, at_least: Size) -> int:
    """Return the largest divisor, 1, 2, 4 or 8, that keeps a JPEG at least as large as a size."""
    height, width = size
    for shrink in _SHRINKS:
        # libjpeg rounds up.
        is_enough = -(-height // shrink) >= at_least[0] and -(-width // shrink) >= at_least[1]
        if is_enough and shrink <= min(size):
            return shrink
    return 1


def turbo_pixels(data: bytes, at_least: Size | None = None, mode: str | None = None) -> Any:
    """Return the pixels of a JPEG as a uint8 array, or None if Pillow has to decode it.

    Args:
        data: The file.
        at_least: Height and width; the picture is decoded at the smallest size that is not smaller.
        mode: Pillow's name of the mode; None for the mode of the file.

    Returns:
        An array of shape (height, width) for grey, else (height, width, 3).
    """
    turbo = _simplejpeg()
    if turbo is None or not data.startswith(_START):
        return None
    from PIL import Image

    try:
        height, width, colours, _ = turbo.decode_jpeg_header(data)
        target = _TARGETS.get((colours, mode))
        # Above its limit, Pillow warns or raises.
        if target is None or height * width > (Image.MAX_IMAGE_PIXELS or math.inf):
            return None
        shrink = jpeg_shrink((height, width), at_least) if at_least else 1
        scaled = {"min_height": -(-height // shrink), "min_width": -(-width // shrink)}
        pixels = turbo.decode_jpeg(data, target, **scaled)
    except ValueError:  # damage, including damage that Pillow tolerates
        return None
    return pixels[:, :, 0] if target == "GRAY" else pixels


@cache
def _simplejpeg() -> ModuleType | None:
    try:
        return import_module("simplejpeg")
    except ImportError:
        return None


JPEG_QUALITY: Final = 95
"""Highest quality that Pillow recommends; above it, files grow but images hardly improve."""

# Only these formats are opened, whatever the extension says. Pillow supports more, and starts other
# programs for some of them.
_PIL_FORMATS: Final = ("JPEG", "PNG", "PPM", "WEBP", "GIF", "BMP", "TIFF")
_KEPT_MODES: Final = ("L", "RGB", "RGBA")

_STRIP_NBYTES: Final = 1 << 18
"""How much of an image is copied at a time.

Pillow's own conversion makes two more copies of the whole image: a JPEG of 1500 by 2250 takes
15.5 ms to an array, and 12.9 ms in strips of this size.
"""

_OWN_NAMES: Final = {"PIL": ("pil", ""), "numpy": ("", ""), "torch": ("torch", "")}
_WEBDATASET_NAMES: Final = {
    f"{container}{mode}{end}": (container, f"{mode or 'rgb'}{end}")
    for container, modes, ends in (
        *((container, ("l", "rgb", "rgba"), ("8", "")) for container in ("", "torch")),
        ("pil", ("", "l", "rgb", "rgba"), ("",)),
    )
    for mode in modes
    for end in ends
}
"""Container and mode by name; ``8`` for uint8 instead of floats."""

_DEEP_MODES: Final = ("I;16", "I;16B", "I", "F")
_ALPHA_MODES: Final = ("RGBA", "LA", "PA")
_LOSSY_MODES: Final = {
    "WEBP": _DEEP_MODES,
    "GIF": _DEEP_MODES,
    "BMP": (*_DEEP_MODES, *_ALPHA_MODES),
    "PPM": ("F", *_ALPHA_MODES),
}
"""Modes that Pillow stores only partly in a format, without an error."""


# Decoding.


def image_decoder(images: Any, at_least: Size | None = None) -> Callable[[bytes], Any]:
    """Return the function that decodes images as ``Decoder(images=...)`` says.

    Args:
        images: The name.
        at_least: Height and width that the image needs; larger JPEGs are decoded at a smaller size.

    Raises:
        ValueError: The name is unknown, or the size is not two positive integers.
    """
    if at_least is not None:
        at_least = _checked_size(at_least)
    found = {**_OWN_NAMES, **_WEBDATASET_NAMES}.get(images if isinstance(images, str) else "")
    if found is None:
        raise ValueError(
            f'images: expected "PIL", "numpy", "torch" or one of webdataset\'s names, '
            f"{' '.join(_WEBDATASET_NAMES)}, found {images!r}"
        )
    container, mode = found
    is_float = container != "pil" and mode != "" and not mode.endswith("8")
    # partial, not a closure: spawned workers receive the decoder by pickle.
    return partial(_decoded, container, mode.removesuffix("8").upper(), is_float, at_least)


def _checked_size(size: Any) -> Size:
    try:
        height, width = map(operator.index, size)
    except (TypeError, ValueError):
        height = width = 0
    if min(height, width) < 1:
        raise ValueError(f"at_least: expected (height, width) in pixels, found {size!r:.80}")
    return height, width


def opened_image(data: bytes) -> Any:
    """Return a PIL image with only its header read."""
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(data), formats=_PIL_FORMATS)
    except UnidentifiedImageError:  # its text names a BytesIO and its address
        formats = ", ".join(_PIL_FORMATS)
        raise UnidentifiedImageError(f"expected one of {formats}, found none of them") from None


def ends_early(nbytes: int, head: bytes, tail: bytes) -> bool:
    """Whether a file of so many bytes is a picture without its end, by its first and last bytes."""
    if head.startswith(b"\xff\xd8\xff"):
        return b"\xff\xd9" not in tail  # programs add data after it
    if head.startswith(b"\x89PNG"):
        return b"IEND" not in tail
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return int.from_bytes(head[4:8], "little") + 8 > nbytes
    return head.startswith(b"GIF8") and not tail.rstrip(b"\0").endswith(b";")


def decode_pil(data: bytes, at_least: Size | None = None) -> Any:
    """Return a PIL image in its stored mode."""
    image = opened_image(data)
    if at_least is not None:
        shrink = jpeg_shrink((image.height, image.width), at_least)
        if shrink > 1:  # formats other than JPEG ignore it
            image.draft(None, (image.width // shrink, image.height // shrink))
    # Otherwise Pillow would read the pixels at first use, where errors no longer name the sample.
    image.load()
    return image


def _decoded(container: str, mode: str, is_float: bool, at_least: Size | None, data: bytes) -> Any:
    """Return an image in a container, converted to a mode of Pillow unless that is empty."""
    if container == "pil":
        image = decode_pil(data, at_least)
        return converted(image, mode) if mode else image
    array = turbo_pixels(data, at_least, mode or None)
    if array is None:
        image = decode_pil(data, at_least)
        array = _array_of(converted(image, mode)) if mode else _stored_array(image)
    if is_float:
        array = array.astype(np.float32)
        array /= np.float32(255)
    if container == "":
        return array
    return _channels_first(array if mode or array.ndim == 3 else array[:, :, None])


def converted(image: Any, mode: str) -> Any:
    """Return a PIL image in another mode of 8 bits; 16 bits are scaled to these."""
    from PIL import Image

    if image.mode[0] in "IF":  # `convert` would clip 16 bits at 255
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if image.mode == "P" and image.has_transparency_data:
        image = image.convert("RGBA")  # Pillow warns if it goes to another mode directly
    return image.convert(mode)


def _stored_array(image: Any) -> npt.NDArray[Any]:
    """Return the array of an image in its mode, if that is one of arrays."""
    if image.mode[0] in "IF":  # grey with more than 8 bits, which `convert` would clip at 255
        array = np.array(image)
        # Pillow opens 16-bit grey as int32 in some formats and releases.
        is_short = array.dtype.kind in "iu" and array.min() >= 0 and array.max() <= 0xFFFF
        return array.astype(np.uint16) if is_short else array
    if image.mode not in _KEPT_MODES:
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    return _array_of(image)


def _array_of(image: Any) -> npt.NDArray[np.uint8]:
    """Return the writable array of an image of mode L, RGB or RGBA."""
    channels = len(image.mode)
    num_rows = max(_STRIP_NBYTES // (channels * max(image.width, 1)), 1)
    if image.height <= num_rows:
        return np.array(image)
    shape = (image.height, image.width, channels)
    array = np.empty(shape[:2] if channels == 1 else shape, np.uint8)
    for top in range(0, image.height, num_rows):
        bottom = min(top + num_rows, image.height)
        array[top:bottom] = image.crop((0, top, image.width, bottom))
    return array


def _channels_first(array: npt.NDArray[Any]) -> Any:
    import torch

    # A view: the memory keeps the order in which decoders write it (torch.channels_last). A copy
    # would take 3 ms for 1500 by 2250 pixels, and later steps would not be faster: decision 0049.
    return torch.from_numpy(array).permute(2, 0, 1) if array.ndim == 3 else torch.from_numpy(array)


# Encoding.


def image_encoder(format_name: str, **options: Any) -> Callable[[Any], bytes]:
    """Return the function that encodes PIL images, arrays and tensors in a Pillow format.

    Args:
        format_name: Pillow's name of the format.
        options: Options of Pillow's ``Image.save`` for this format.
    """

    def encode_image(value: Any) -> bytes:
        image = _pil_image(value)
        # Pillow converts these modes silently, and the loss would show only in training.
        if image.mode in _LOSSY_MODES.get(format_name, ()):
            raise ValueError(
                f"{format_name} cannot store all of an image of mode {image.mode}; use png or tiff"
            )
        stream = io.BytesIO()
        image.save(stream, format=format_name, **options)
        return stream.getvalue()

    return encode_image


def _pil_image(value: Any) -> Any:
    """Convert an image, array or tensor to a PIL image."""
    from PIL import Image

    if isinstance(value, Image.Image):
        return value
    array = as_array(value)
    # By name, so that torch is not imported to store an array.
    if type(value).__module__.partition(".")[0] == "torch" and array.ndim == 3:
        array = array.transpose(1, 2, 0)
    # Pillow does not accept arrays of one channel with a third dimension.
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype.kind == "f":
        array = _as_bytes(array)
    _check_is_image(array)
    return Image.fromarray(np.ascontiguousarray(array))


def _check_is_image(array: npt.NDArray[Any]) -> None:
    is_grey16 = array.dtype == np.uint16 and array.ndim == 2
    if not is_grey16 and (array.dtype != np.uint8 or array.shape[2:] not in ((), (3,), (4,))):
        raise ValueError(
            "expected an image of shape (height, width), (height, width, channels) for an array or "
            "(channels, height, width) for a tensor, with 3 or 4 channels, of uint8 or of floats "
            f"from 0 to 1, or grey of uint16; found {array.shape} of {array.dtype}"
        )
    if array.ndim not in (2, 3):
        raise ValueError(f"expected an image of 2 or 3 dimensions, found {array.ndim}")


def _as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    low, high = (array.min(), array.max()) if array.size else (0, 1)
    if not (low >= 0 and high <= 1):  # NaN fails both comparisons
        raise ValueError(f"expected floats from 0 to 1, found {low} to {high}")
    # Rounded: a cast alone truncates, and bytes converted to floats would not survive a round trip.
    scaled: npt.NDArray[np.uint8] = np.rint(array * 255).astype(np.uint8)
    return scaled
