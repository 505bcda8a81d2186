"""Decode a JPEG by libjpeg-turbo, if the package simplejpeg is installed.

The pixels equal those of Pillow, which uses the same library with one more copy. Unusual files are
left to Pillow: other formats, CMYK, and every file that the decoder complains about, so that a
damaged picture is read, or rejected, as without the package.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Final, TypeAlias

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
