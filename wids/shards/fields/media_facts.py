"""Describe a sound or film in words by its header, without decoding it."""

from __future__ import annotations

import io
from functools import partial
from typing import IO, Final

from wids.shards.fields.media import media_kind
from wids.shards.fields.safety import within_s
from wids.storage.sizes import count_text

_MAX_S: Final = 3.0
"""Longest time that reading the header of a field may take."""


def media_facts(field: str, file: IO[bytes]) -> str:
    """Return length and rate of a sound, or length, size and rate of a film; ``""`` for others.

    Args:
        field: The name of the field.
        file: Its bytes, as a file that can seek.

    Raises:
        ModuleNotFoundError: The package that reads such fields is not installed.
        Exception: It is neither; any type.
    """
    kind = media_kind(field)
    if kind == "audio":
        rate, num_channels, length_s = _sound_facts(file)
        return f"{length_s:.1f} s, {rate:,} Hz, {count_text(num_channels, 'channel')}"
    if kind == "video":
        from wids.shards.fields.video import VideoReader

        with VideoReader(file) as film:
            size = f"{film.width} x {film.height}"
            return f"{film.duration_s:.1f} s, {size}, {film.rate:g} frames per second"
    return ""


def _sound_facts(file: IO[bytes]) -> tuple[int, int, float]:
    """Return rate, number of channels, and length in seconds."""
    is_mp4 = file.read(8)[4:] == b"ftyp"
    file.seek(0)
    if not is_mp4:
        import soundfile

        info = soundfile.info(file)
        return int(info.samplerate), int(info.channels), float(info.duration)
    from wids.shards.fields.audio import opened_media

    with opened_media(file) as container:
        stream = container.streams.audio[0]
        return int(stream.rate), int(stream.channels), float((container.duration or 0) / 1e6)


def facts_of_bytes(field: str, data: bytes) -> str:
    """Return the same for bytes, and ``""`` for those that cannot be read or have no reader."""
    if not media_kind(field):
        return ""
    try:
        return within_s(_MAX_S, partial(media_facts, field, io.BytesIO(data)))
    except Exception:  # noqa: BLE001 - of a package that is absent, or of a damaged file
        return ""
