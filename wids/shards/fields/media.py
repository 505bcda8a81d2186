"""Map the extensions of audio and video fields to media types.

Decoders, remarks and pages decide by this table what is audio or video and what to play. Images
have codecs.
"""

from __future__ import annotations

from typing import Final

from wids.shards.fields.codecs import extension

MEDIA_TYPES: Final = {
    "flac": "audio/flac",
    "m4a": "audio/mp4",
    "mp3": "audio/mpeg",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "wav": "audio/wav",
    "avi": "video/x-msvideo",
    "m4v": "video/mp4",
    "mkv": "video/x-matroska",
    "mov": "video/quicktime",
    "mp4": "video/mp4",
    "ogv": "video/ogg",
    "webm": "video/webm",
}
_UNPLAYED: Final = frozenset(("avi", "mkv", "mov"))
"""Extensions that not all browsers play."""


def media_type(field: str) -> str | None:
    """Return the media type of an audio or video field, or None."""
    return MEDIA_TYPES.get(extension(field))


def media_kind(field: str) -> str:
    """Return ``"audio"`` or ``"video"`` for such a field; ``""`` for others."""
    return (media_type(field) or "").partition("/")[0]


def media_extensions(kind: str) -> list[str]:
    """Return the extensions of fields of ``"audio"`` or ``"video"``."""
    return [name for name, found in MEDIA_TYPES.items() if found.startswith(f"{kind}/")]


def played_type(field: str) -> str | None:
    """Return the media type of a field that a browser can play, or None."""
    return None if extension(field) in _UNPLAYED else media_type(field)
