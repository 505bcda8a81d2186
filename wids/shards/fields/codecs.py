"""Define the table of codecs: how fields are decoded, encoded and played, by extension.

`CODECS` is the only list of field types. Decoders, encoders, remarks, previews and pages look
fields up in it. To add a field type, write one function for each direction and add one entry. For
``.heic``, with a new module ``wids/shards/fields/heic.py``::

    Codec(("heic",), heic.decode_heic, heic.encode_heic)

The functions import optional packages when they are called, never at the top of their module;
`_EXTRAS` has what installs them.
They may raise any exception; the caller adds the name of the field. The caller also decompresses
``.gz``, but a format that is itself compressed must limit its decoded size (SEC-12).

``tests/property/test_fields.py`` fails until you add sample values for the new extension. The
docstring of `Decoder` lists the types for users, and the extra goes into ``pyproject.toml``. Fields
without a codec stay bytes, so a new type also needs a line in CHANGELOG.

`wids.shards.fields.decode` applies the options of a caller. Images, audio and video are decoded as
these options say; without an option, audio and video stay bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeVar

from wids.shards.fields import images, values
from wids.shards.fields.values import (
    decode_npy,
    decode_npz,
    decode_safetensors,
    decode_torch_weights,
    encode_npy,
    encode_npz,
    encode_safetensors,
    encode_tenbin,
    encode_torch_weights,
    loads,
)

Decode = Callable[[bytes], Any]
Encode = Callable[[Any], bytes]
Entry = TypeVar("Entry")

CHOSEN_KINDS: Final = ("image", "audio", "video")
"""Kinds of codecs whose decoder an argument of `Decoder` chooses."""


@dataclass(frozen=True)
class Codec:
    """One field type.

    Attributes:
        extensions: Field extensions, in lower case and without a dot. The field is matched by what
            follows its last dot.
        decode: Converts bytes to a value.
        encode: Converts a value to bytes; `decode` restores the value, as far as the format allows.
            None if there is no encoder.
        kind: ``"image"``, ``"audio"`` or ``"video"`` if an argument of `Decoder` of this name
            chooses the decoder; ``"pickle"`` if decoding executes code, so that the caller has to
            allow it.
        is_structure: Whether the value consists of many small objects, which take many times the
            memory of the bytes; its ``.gz`` fields have a lower limit.
        is_archive: Whether `decode` takes ``max_nbytes``, a limit on the decompressed size.
        media_type: The media type of audio or video; else ``""``.
        is_played: Whether all browsers play this type of audio or video.
    """

    extensions: tuple[str, ...]
    decode: Decode
    encode: Encode | None
    kind: Literal["plain", "image", "pickle", "audio", "video"] = "plain"
    is_structure: bool = False
    is_archive: bool = False
    media_type: str = ""
    is_played: bool = True


def _image(*extensions: str, encode: Encode) -> Codec:
    return Codec(extensions, images.decode_pil, encode, kind="image")


def _audio(name: str, subtype: str, libsndfile: tuple[str, str | None] | None = None) -> Codec:
    encode = None if libsndfile is None else partial(_encode_audio, libsndfile)
    return Codec((name,), bytes, encode, kind="audio", media_type=f"audio/{subtype}")


def _encode_audio(libsndfile: tuple[str, str | None], value: Any) -> bytes:
    from wids.shards.fields.audio import encode_audio  # few datasets have audio

    return encode_audio(value, *libsndfile)


def _video(name: str, subtype: str, *, is_played: bool = True) -> Codec:
    media_type = f"video/{subtype}"
    return Codec((name,), bytes, None, "video", media_type=media_type, is_played=is_played)


CODECS: Final = (
    Codec(("txt", "text", "transcript"), values.decode_text, values.encode_text),
    Codec(
        ("cls", "cls2", "class", "count", "index", "inx", "id"),
        values.decode_integer,
        values.encode_integer,
    ),
    Codec(("json", "jsn"), values.decode_json, values.encode_json, is_structure=True),
    Codec(("jsonl",), values.decode_json_lines, values.encode_json_lines, is_structure=True),
    Codec(("npy",), decode_npy, encode_npy),
    Codec(("npz",), decode_npz, encode_npz, is_archive=True),
    Codec(("ten", "tenbin", "tb"), loads, encode_tenbin),
    Codec(
        ("mp", "msg", "msgpack"), values.decode_msgpack, values.encode_msgpack, is_structure=True
    ),
    Codec(("cbor",), values.decode_cbor, values.encode_cbor, is_structure=True),
    Codec(("pt", "pth"), decode_torch_weights, encode_torch_weights, is_archive=True),
    Codec(("safetensors",), decode_safetensors, encode_safetensors),
    Codec(("pkl", "pickle", "pyd"), values.decode_pickle, values.encode_pickle, kind="pickle"),
    _image("jpg", "jpeg", encode=images.image_encoder("JPEG", quality=images.JPEG_QUALITY)),
    _image("png", encode=images.image_encoder("PNG")),
    _image("ppm", "pgm", "pbm", "pnm", encode=images.image_encoder("PPM")),
    # exact: otherwise WebP would change the colour of transparent pixels.
    _image("webp", encode=images.image_encoder("WEBP", lossless=True, exact=True)),
    _image("gif", encode=images.image_encoder("GIF")),
    _image("bmp", encode=images.image_encoder("BMP")),
    _image("tif", "tiff", encode=images.image_encoder("TIFF")),
    # With the names of format and subtype in libsndfile, if it writes them.
    _audio("wav", "wav", ("WAV", None)),
    _audio("flac", "flac", ("FLAC", None)),
    _audio("ogg", "ogg", ("OGG", "VORBIS")),
    _audio("opus", "ogg", ("OGG", "OPUS")),
    _audio("mp3", "mpeg", ("MP3", "MPEG_LAYER_III")),
    _audio("m4a", "mp4"),
    _video("mp4", "mp4"),
    _video("m4v", "mp4"),
    _video("webm", "webm"),
    _video("ogv", "ogg"),
    _video("mov", "quicktime", is_played=False),
    _video("mkv", "x-matroska", is_played=False),
    _video("avi", "x-msvideo", is_played=False),
)

_EXTRAS: Final = {
    "msgpack": "msgpack",
    "cbor2": "cbor",
    "zstandard": "zstd",
    "safetensors": "safetensors",
    "soundfile": "audio",
    "soxr": "audio",
    "av": "video",
}
"""The extras that install optional packages, by the import names of these."""

BY_EXTENSION: Final[Mapping[str, Codec]] = {
    extension: codec for codec in CODECS for extension in codec.extensions
}

IMAGE_EXTENSIONS: Final = frozenset(
    extension for extension, codec in BY_EXTENSION.items() if codec.kind == "image"
)

CAPTION_EXTENSIONS: Final = ("txt", "text", "transcript")
TEXT_EXTENSIONS: Final = (*CAPTION_EXTENSIONS, "cls", "json", "id", "index")
"""Fields with text for people: captions, classes, small structures."""
MAX_TEXT_NBYTES: Final = 16_000
"""Longer texts are neither searched nor shown on cards."""


def extension(field: str) -> str:
    """Return what follows the last dot of a field, in lower case."""
    return field.rpartition(".")[2].lower()


def find(name: str, table: Mapping[str, Entry]) -> Entry | None:
    """Return the entry for the longest ending of a field name, or None.

    Args:
        name: Name of a field in lower case, with its leading dot: ``.seg.png`` matches an entry
            ``seg.png``, or else one for ``png``.
        table: Entries by extension.
    """
    # From the longest ending to the shortest, so that a caller's `seg.png` wins over `png`.
    while name:
        name = name.partition(".")[2]
        if name in table:
            return table[name]
    return None


def how_to_install(package: str) -> str:
    """Return the command that installs a missing package, given its import name."""
    extra = _EXTRAS.get(package)
    return f"pip install 'wids[{extra}]'" if extra else f"pip install {package}"


def media_kind(field: str) -> str:
    """Return ``"audio"`` or ``"video"`` for such a field; ``""`` for others."""
    codec = BY_EXTENSION.get(extension(field))
    return codec.kind if codec is not None and codec.media_type else ""


def media_extensions(kind: str) -> list[str]:
    """Return the extensions of fields of ``"audio"`` or ``"video"``."""
    return [name for name, codec in BY_EXTENSION.items() if codec.kind == kind]


def played_type(field: str) -> str | None:
    """Return the media type of a field that a browser can play, or None."""
    codec = BY_EXTENSION.get(extension(field))
    return codec.media_type or None if codec is not None and codec.is_played else None
