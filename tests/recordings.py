"""Sounds and films for tests, made by soundfile and PyAV; ffmpeg makes those of other formats."""

from __future__ import annotations

import io
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
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


@cache
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


def numbered_film(
    format_name: str,
    codec: str,
    *,
    num_frames: int = 120,
    distance: int = 12,
    rate: int = 25,
    times: Sequence[int] | None = None,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
    is_piped: bool = False,
    has_sound: bool = False,
) -> bytes:
    """Return a film whose pictures show their numbers, for `shown_number`.

    ``times`` has when each is shown, in milliseconds, if the rate varies. A muxer that is piped
    cannot go back to write lengths. Sound lasts six seconds.
    """
    av = optional("av")
    file: Any = Pipe() if is_piped else io.BytesIO()
    with av.open(file, "w", format=format_name, options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height = 64, 48
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.gop_size = distance
        unit = Fraction(1, rate) if times is None else Fraction(1, 1000)
        stream.codec_context.time_base = unit
        packets = []
        for number in range(num_frames):
            bits = [255 * (number >> bit & 1) for bit in range(8)]
            pixels = np.tile(np.repeat(np.array(bits, np.uint8), 8)[None, :, None], (48, 1, 3))
            frame = av.VideoFrame.from_ndarray(pixels)
            frame.pts, frame.time_base = number if times is None else times[number], unit
            packets += stream.encode(frame)
        packets += stream.encode()
        if has_sound:
            samples = sound(6.0)[0][:1]
            audio = container.add_stream("aac", rate=RATE)
            frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = RATE, 0, Fraction(1, RATE)
            packets += [*audio.encode(frame), *audio.encode()]
        for packet in sorted(packets, key=lambda each: each.dts * each.time_base):
            container.mux(packet)
    if codec == "libsvtav1" and hasattr(os, "sched_setscheduler"):
        # For root, this encoder makes the thread that calls it one of real time, before all others,
        # and so whatever it starts later: a browser then leaves the processors to nobody.
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    return bytes(file.getvalue())


class Pipe:
    """A file for PyAV that can only be written from its beginning to its end."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def getvalue(self) -> bytes:
        return bytes(self._data)


def shown_number(pixels: npt.NDArray[np.uint8]) -> int:
    """Return the number that a frame of a numbered film shows, of shape (height, width, 3)."""
    return sum(int(pixels[8:40, 8 * bit + 2 : 8 * bit + 6].mean() > 127) << bit for bit in range(8))


def copied(
    data: bytes,
    format_name: str,
    *,
    first: int = 0,
    shift_s: float = 0.0,
    container_options: dict[str, str] | None = None,
    change: Callable[[int, bytes], bytes] = lambda _, data: data,
) -> bytes:
    """Return a film whose packets, from one on, were copied to another container."""
    av = optional("av")
    file = io.BytesIO()
    with (
        av.open(io.BytesIO(data)) as source,
        av.open(file, "w", format=format_name, options=container_options or {}) as target,
    ):
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        packets = (packet for packet in source.demux(stream) if packet.dts is not None)
        for number, packet in enumerate(packets):
            if number < first:
                continue
            shift = round(shift_s / packet.time_base)
            changed = av.Packet(change(number, bytes(packet)))
            changed.pts, changed.dts = packet.pts + shift, packet.dts + shift
            changed.time_base, changed.duration = packet.time_base, packet.duration
            changed.is_keyframe, changed.stream = packet.is_keyframe, copy
            target.mux(changed)
    return file.getvalue()


def sound_by_ffmpeg(
    format_name: str,
    codec: str,
    samples: npt.NDArray[np.float32],
    rate: int,
    *,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
    is_piped: bool = False,
) -> bytes:
    """Return samples of shape (channels, frames) as a file that PyAV writes."""
    av = optional("av")
    file: Any = Pipe() if is_piped else io.BytesIO()
    layout = "mono" if len(samples) == 1 else "stereo"
    with av.open(file, "w", format=format_name, options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.layout = layout
        kind = "s16" if codec == "flac" else "fltp"
        converter = av.AudioResampler(format=kind, layout=layout, rate=rate)
        for start in range(0, samples.shape[1], 1024):
            piece = np.ascontiguousarray(samples[:, start : start + 1024])
            frame = av.AudioFrame.from_ndarray(piece, format="fltp", layout=layout)
            frame.sample_rate, frame.pts = rate, start
            for each in converter.resample(frame):
                container.mux(stream.encode(each))
        container.mux(stream.encode())
    return bytes(file.getvalue())
