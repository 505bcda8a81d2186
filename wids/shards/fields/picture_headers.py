"""Read height, width and orientation of a picture from its first bytes, without decoding it.

Pillow reads the headers of most formats. Those of WebP and TIFF are read here: Pillow wants all
bytes of a WebP file, and warns where a TIFF file ends early.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

PARTS: Final = ("height", "width", "orientation")
"""What the header of a picture has."""

HEAD_NBYTES: Final = (4 << 10, 64 << 10)
"""How many first bytes to read: most headers are short, those with a preview or a profile longer.

A header that is longer still, or that is at the end of the file, costs the whole file.
"""

_WIDTH, _HEIGHT, _ORIENTATION = 0x100, 0x101, 0x112
_NUMBERS: Final = {3: "H", 4: "I"}
"""The types of TIFF's tags that have these numbers."""


def picture_facts(data: bytes) -> dict[str, int]:
    """Return height and width of a picture, in pixels as stored, and its orientation.

    The orientation is that of EXIF, 1 to 8: from 5 on, an upright picture has them exchanged. It is
    1 where none is stated, and in PNG also where it follows the pixels.

    Args:
        data: The file, or its first bytes if its header is in them.

    Raises:
        Exception: It is no picture of a known format, its header is damaged, or not in the bytes.

    Example:
        >>> import io, PIL.Image
        >>> from wids.shards.fields.picture_headers import picture_facts
        >>> PIL.Image.new("RGB", (640, 480)).save(file := io.BytesIO(), "JPEG")
        >>> picture_facts(file.getvalue()[:4096])
        {'height': 480, 'width': 640, 'orientation': 1}
    """
    if data[:4] in (b"II*\0", b"MM\0*"):
        tags = _tags(data)
        return _facts(tags[_HEIGHT], tags[_WIDTH], tags)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _facts_of_webp(data)
    from wids.shards.fields.images import opened_image

    image = opened_image(data)
    return _facts(image.height, image.width, _tags_of_exif(image.info.get("exif", b"")))


def orientation_of(image: Any) -> int:
    """Return the orientation of a PIL image as `picture_facts` does; its pixels are not read."""
    if image.format == "TIFF":
        return _orientation({_ORIENTATION: image.tag_v2.get(_ORIENTATION, 1)})
    return _orientation(_tags_of_exif(image.info.get("exif", b"")))


def _orientation(tags: Mapping[int, int]) -> int:
    stated = tags.get(_ORIENTATION, 1)
    return stated if stated in range(1, 9) else 1


def _facts(height: int, width: int, tags: Mapping[int, int]) -> dict[str, int]:
    if height < 1 or width < 1:
        raise ValueError(f"expected a picture of at least one pixel, found {height} by {width}")
    return dict(zip(PARTS, (height, width, _orientation(tags)), strict=True))


def _tags(tiff: bytes) -> dict[int, int]:
    """Return the numbers of the first directory of a TIFF file, by their tags (TIFF 6.0, 2)."""
    order = {b"II": "<", b"MM": ">"}[tiff[:2]]
    (at,) = struct.unpack_from(f"{order}I", tiff, 4)
    (count,) = struct.unpack_from(f"{order}H", tiff, at)
    found: dict[int, int] = {}
    for place in range(at + 2, at + 2 + 12 * count, 12):
        tag, kind = struct.unpack_from(f"{order}HH", tiff, place)
        if kind in _NUMBERS:
            found[tag] = struct.unpack_from(order + _NUMBERS[kind], tiff, place + 8)[0]
    return found


def _tags_of_exif(exif: bytes) -> dict[int, int]:
    """Return the tags of EXIF; none if it is damaged, as programs that show pictures do."""
    try:
        return _tags(exif.removeprefix(b"Exif\0\0"))
    except (KeyError, struct.error):
        return {}


def _facts_of_webp(data: bytes) -> dict[str, int]:
    """Return the facts of a WebP file (RFC 9649, 2)."""
    kind = data[12:16]
    if kind == b"VP8X":
        flags, *edges = struct.unpack_from("<B3x3s3s", data, 20)
        width, height = (int.from_bytes(edge, "little") + 1 for edge in edges)
        return _facts(height, width, _tags_of_webp(data) if flags & _HAS_EXIF else {})
    if kind == b"VP8L":
        (packed,) = struct.unpack_from("<I", data, 21)
        return _facts((packed >> 14 & 0x3FFF) + 1, (packed & 0x3FFF) + 1, {})
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return _facts(height & 0x3FFF, width & 0x3FFF, {})
    raise ValueError(f"expected a picture in a WebP file, found {kind!r}")


_HAS_EXIF: Final = 8


def _tags_of_webp(data: bytes) -> dict[int, int]:
    """Return the tags of EXIF, which follow the picture."""
    at, end = 12, int.from_bytes(data[4:8], "little") + 8
    while at + 8 <= end:
        kind, nbytes = struct.unpack_from("<4sI", data, at)
        body = data[at + 8 : at + 8 + nbytes]
        if kind == b"EXIF":
            if len(body) < nbytes:
                raise ValueError(f"expected {nbytes} bytes of EXIF, found {len(body)}")
            return _tags_of_exif(body)
        at += 8 + nbytes + nbytes % 2
    return {}
