"""Make a smaller picture, which a browser can show, from a picture of a dataset.

No browser decodes the bytes of a dataset: every picture is decoded here, within limits of memory,
and encoded again.
"""

from __future__ import annotations

import io
import re
from threading import BoundedSemaphore
from typing import IO, Any, Final, NamedTuple

from wids.shards.fields.images import opened_image
from wids.shards.fields.safety import within_s

THUMBNAIL_PIXELS: Final = 256
MAX_PIXELS: Final = 40_000_000
"""Larger pictures are not decoded: a few bytes can claim to be billions of pixels (SEC-13). A pixel
takes 4 bytes in most formats, and 16 while a WebP is decoded."""
_TINY_PIXELS: Final = 128
"""Pictures that are not wider or higher are encoded without loss, and shown pixel by pixel."""

_POSTER_AT_S: Final = 1.0
_POSTER_S: Final = 5.0
"""Longest time that the poster of a film may take."""

_DECODING: Final = BoundedSemaphore(2)
"""Limits the pictures in memory at full size, since a page requests many at once (SEC-53)."""


class Thumbnail(NamedTuple):
    """A picture that was decoded, made smaller and encoded again.

    Attributes:
        data: Its bytes.
        media_type: Their media type.
        description: A text about the original.
        width, height: Those of the original, in pixels.
    """

    data: bytes
    media_type: str
    description: str
    width: int
    height: int

    @property
    def is_tiny(self) -> bool:
        """Whether the original has so few pixels that each of them should be seen."""
        return max(self.width, self.height) <= _TINY_PIXELS


def thumbnail(data: bytes | Any, size: int = THUMBNAIL_PIXELS) -> Thumbnail:
    """Return a thumbnail of a picture.

    Args:
        data: Bytes of a picture, or a PIL image, which stays as it is.
        size: Maximum width and height in pixels.

    Raises:
        ValueError: The picture cannot be decoded, or has too many pixels.
    """
    try:
        image = opened_image(data) if isinstance(data, bytes) else data
        width, height = image.width, image.height
        form = getattr(image, "format", None) or "image"
        description = f"{form} {width} x {height} {image.mode}"
        with _DECODING:
            # An image of the caller's is decoded already, and `draft` would change it.
            if not isinstance(data, bytes) or _num_decoded_pixels(image, size) <= MAX_PIXELS:
                return Thumbnail(*_small(image, size), description, width, height)
    except Exception as error:
        raise ValueError(_reason(error)) from error
    raise ValueError(f"{description}: too many pixels to show")


def poster(film: IO[bytes], size: int = THUMBNAIL_PIXELS) -> Thumbnail:
    """Return a picture that stands for a film: one from its first seconds.

    Args:
        film: The film, as a file that can seek.
        size: Maximum width and height in pixels.

    Raises:
        ValueError: The film cannot be decoded, within a few seconds, or has too many pixels.
    """
    from PIL import Image

    from wids.shards.fields.video import VideoReader

    def decoded() -> tuple[Any, str]:
        with VideoReader(film) as reader:
            if reader.width * reader.height > MAX_PIXELS:
                raise ValueError("too many pixels to show")
            # Films often begin in the dark.
            (pixels,) = reader.at([min(_POSTER_AT_S, reader.duration_s / 10)])
            return Image.fromarray(pixels), repr(reader)

    try:
        with _DECODING:
            image, description = within_s(_POSTER_S, decoded)
    except Exception as error:
        raise ValueError(_reason(error)) from error
    return Thumbnail(*_small(image, size), description, image.width, image.height)


def _reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "its bytes are those of no JPEG, PNG, WebP, GIF, BMP, TIFF or PPM"
    # Pillow names the stream that it read from, which means nothing to a reader.
    text = re.sub(r"<_io\.BytesIO object at 0x[0-9a-f]+>", "of it", str(error))
    return f"{type(error).__name__}: {text}"


def _num_decoded_pixels(image: Any, size: int) -> int:
    """Have a JPEG decoded at a reduced size, and return how many pixels decoding will hold."""
    num_pixels: int = image.width * image.height
    image.draft("RGB", (size, size))
    # All of a progressive JPEG is in memory before its first pixel is decoded.
    return num_pixels if image.info.get("progressive") else image.width * image.height


def _small(image: Any, size: int) -> tuple[bytes, str]:
    is_tiny = max(image.size) <= _TINY_PIXELS
    scale = min(size / image.width, size / image.height, 1)
    shape = max(round(image.width * scale), 1), max(round(image.height * scale), 1)
    # Not `thumbnail`, which changes the image: a copy of a caller's would take its memory again.
    small = image.resize(shape, reducing_gap=2.0)
    is_opaque = not small.has_transparency_data
    small = small.convert("RGB" if is_opaque else "RGBA")
    stream = io.BytesIO()
    kind = "JPEG" if is_opaque and not is_tiny else "PNG"
    small.save(stream, kind, quality=85)
    return stream.getvalue(), f"image/{kind.lower()}"
