"""Sounds and films for tests, made by soundfile and PyAV; ffmpeg makes those of other formats."""

from __future__ import annotations

import io
import shutil
import struct
import zlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from conftest import optional

from wids.shards.fields.encode import encode

FFMPEG: Final = shutil.which("ffmpeg")
RATE: Final = 8000


def sound(seconds: float = 1.0, seed: int = 0) -> tuple[npt.NDArray[np.float32], int]:
    """Return two channels of a tone of 440 Hz, with a little noise, and their rate."""
    times = np.arange(round(seconds * RATE)) / RATE
    noise = np.random.default_rng(seed).normal(0, 0.01, (2, len(times)))
    samples = 0.5 * np.sin(2 * np.pi * 440 * times) + noise
    return samples.astype(np.float32), RATE


def wav() -> bytes:
    """Return such a sound of 16 bits as a file."""
    samples, rate = sound()
    return encode("wav", ((samples * 32767).astype(np.int16), rate))


def film(
    num_frames: int = 50,
    *,
    rate: int = 25,
    size: tuple[int, int] = (64, 48),
    distance: int = 12,
    format_name: str = "mp4",
    has_sound: bool = False,
    bit_rate: int | None = None,
) -> bytes:
    """Return a film of a moving gradient; every ``distance`` frames one can be sought.

    With a bit rate there is noise in it, so that it has about this many bits per second.
    """
    av = optional("av")
    file = io.BytesIO()
    with av.open(file, "w", format=format_name) as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = distance
        noise = None
        if bit_rate is not None:
            stream.bit_rate = bit_rate
            noise = np.random.default_rng(0).integers(0, 256, (8, *size[::-1], 3), np.uint8)
        audio = container.add_stream("aac", rate=RATE) if has_sound else None
        for number in range(num_frames):
            pixels = picture(number, size) if noise is None else noise[number % 8]
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if audio is not None:
            samples = sound(num_frames / rate)[0][:1]
            frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
            frame.sample_rate = RATE
            container.mux(audio.encode(frame))
            container.mux(audio.encode())
    return file.getvalue()


def picture(number: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Return one frame of the film; the frames of a film all differ."""
    width, height = size
    row = (np.arange(width) * 2 + number * 5) % 256
    pixels: Any = np.broadcast_to(row[None, :, None], (height, width, 3))
    return np.ascontiguousarray(pixels.astype(np.uint8))


def png(width: int, height: int) -> bytes:
    """Return a black picture, in about a thousandth of its bytes."""
    zipped, rows = zlib.compressobj(1), bytes(width + 1)
    parts = [zipped.compress(rows) for _ in range(height)]
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0),
        b"IDAT": b"".join((*parts, zipped.flush())),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    )


def film_of_pngs(pictures: Sequence[bytes]) -> bytes:
    """Return a mov whose track says 64 x 64, whatever its frames are."""
    av = optional("av")
    file = io.BytesIO()
    with av.open(file, "w", format="mov") as container:
        stream = container.add_stream("png", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "gray"
        stream.codec_context.open()
        for number, data in enumerate(pictures):
            packet = av.Packet(data)
            packet.stream, packet.pts, packet.dts = stream, number, number
            packet.time_base, packet.is_keyframe = Fraction(1, 25), True
            container.mux(packet)
    return file.getvalue()
