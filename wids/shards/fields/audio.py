"""Decode audio to samples and their rate, all of it or a part, and encode it.

A part is a slice of the whole. libsndfile (by soundfile) reads wav, flac, mp3, ogg and opus that
state their length; FFmpeg (by PyAV) reads m4a, and those that do not, from their beginning. soxr
resamples. All three are imported when first used. The format is detected from the bytes.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from wids.shards.fields import safety

if TYPE_CHECKING:
    from numpy.random import Generator

Samples = npt.NDArray[np.float32]

MAX_S: Final = 60.0
"""Longest time that FFmpeg may take for one field."""

_BLOCK_FRAMES: Final = 1 << 20
"""Frames that are decoded at a time: the header of a damaged file may claim any number."""

_HEAD_NBYTES: Final = 4096
"""Bytes within which the header of audio is, but for tags before it."""
_MP3_BEFORE: Final = 1 << 14
"""Frames that are decoded before a part of an mp3, which uses bits of up to 23 earlier packets."""
_MP3_RESERVOIR_NBYTES: Final = 511
"""How far back these bits may be (ISO/IEC 11172-3, `main_data_begin`), where header and side
information of packets do not count."""
_MP3_SIDE_NBYTES: Final = 4 + 2 + 32
_TAG_OFFSETS: Final = (36, 21, 13)
"""Where its tag may be in the first packet of an mp3, by the version and the channels."""

_END_S: Final = 0.5
"""By how much less than it states a whole file may have."""

_MISSING: Final = "expected {} frames, found {} that can be decoded"
_WRITTEN_FRAMES: Final = 1 << 14
_ALL_FRAMES: Final = 1 << 60
_MAX_CHANNELS: Final = 64
_MAX_STREAMS: Final = 64
_MAX_PICTURE_PIXELS: Final = 1 << 24
_MAX_PACKET_SAMPLES: Final = 1 << 22
"""Most samples of all channels that FFmpeg decodes at a time; a packet rarely has 100,000."""
_MAX_RATIO: Final = 10_000
"""Most that a rate is changed by: of 1 Hz, say, soxr would make a filter for minutes."""
_FORMATS: Final = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,ogg,asf,mjpeg,mp3,flac,wav"
"""Formats that FFmpeg may read. A playlist could name other files and addresses. Streams of formats
without a header (flv, mpeg, mpegts) are probed by FFmpeg without our limits (SEC-65)."""

_UNSTATED: Final = ("mp3", "flac", "wav")
"""Formats that FFmpeg reads here only if they do not state a length."""
_PIPED_FRAMES: Final = 1 << 30
"""What an avi states that was written to a pipe."""

_STREAMED_NBYTES: Final = 0x7FFFF000
"""What a wav that was written to a pipe states, or more."""

_OPUS_RATES: Final = (8000, 12000, 16000, 24000, 48000)


@dataclass(frozen=True)
class Audio:
    """How audio fields are decoded: to ``(samples, rate)``, as ``torchaudio.load`` returns them.

    The samples are float32 from -1 to 1, of shape ``(channels, frames)``; the rate is an integer in
    Hz. A part is decoded alone, without what comes earlier where the format allows.

    Args:
        container: ``"torch"`` for a tensor, ``"numpy"`` for an array.
        rate: Rate in Hz to resample to; None for the rate of the file.
        mono: Whether to return the mean of all channels as one channel.
        start_s: Where the part begins, in seconds; ``"random"`` for anywhere in the file, chosen by
            the generator of ``dataset.map(decoder, seed=…)``.
        duration_s: Length of the part in seconds; None for the rest of the file. A file that ends
            earlier yields fewer frames.
        max_nbytes: Largest decoded size in bytes; None for 1 GiB.

    Raises:
        ValueError: An argument has a value that it cannot have.

    Example:
        >>> import wids
        >>> wids.Decoder(audio=wids.Audio("numpy", rate=16000, mono=True, duration_s=2.0))
        Decoder(images='PIL', audio=Audio(container='numpy', rate=16000, mono=True, duration_s=2.0))
    """

    container: Literal["torch", "numpy"] = "torch"
    rate: int | None = None
    mono: bool = False
    start_s: float | Literal["random"] = 0.0
    duration_s: float | None = None
    max_nbytes: int | None = None

    def __post_init__(self) -> None:
        if self.container not in ("torch", "numpy"):
            raise ValueError(f'audio: expected "torch" or "numpy", found {self.container!r:.80}')
        if self.rate is not None and not 1 <= self.rate <= 1 << 20:
            raise ValueError(f"rate: expected 1 to {1 << 20} Hz, found {self.rate!r:.80}")
        if self.is_random and self.duration_s is None:
            raise ValueError('start_s="random": expected duration_s beside it, found None')
        if not self.is_random and not 0 <= float(self.start_s) < math.inf:
            raise ValueError(f"start_s: expected 0 seconds or more, found {self.start_s!r:.80}")
        if self.duration_s is not None and not 0 < self.duration_s < math.inf:
            raise ValueError(
                f"duration_s: expected more than 0 seconds, found {self.duration_s!r:.80}"
            )

    def __repr__(self) -> str:
        options = {
            name: value
            for name, value in vars(self).items()
            if name == "container" or value != getattr(Audio, name)
        }
        return f"Audio({', '.join(f'{name}={value!r}' for name, value in options.items())})"

    @property
    def is_random(self) -> bool:
        """Whether decoding needs a random generator."""
        return self.start_s == "random"

    def __call__(self, data: bytes, generator: Generator | None = None) -> tuple[Any, int]:
        """Return the samples and the rate of a file.

        Args:
            data: The file.
            generator: Chooses a random part.

        Raises:
            ModuleNotFoundError: A package is not installed.
            Exception: The bytes are not audio, or longer than the limit; any type.
        """
        if needs_ffmpeg(io.BytesIO(data)):
            samples, rate = safety.within_s(MAX_S, lambda: read_by_ffmpeg(data, self, generator))
        else:
            samples, rate = _read_by_libsndfile(data, self, generator)
        if self.mono and len(samples) > 1:
            samples = samples.mean(axis=0, keepdims=True)
        if self.rate is not None and self.rate != rate:
            import soxr

            if max(rate, self.rate) > _MAX_RATIO * min(rate, self.rate):
                raise ValueError(f"expected a rate to resample to {self.rate} Hz, found {rate} Hz")
            self.check_size(len(samples), samples.shape[1] * self.rate // rate)

            # Frames first, and one dimension for one channel, as soxr has them.
            resampled = soxr.resample(samples.T, rate, self.rate)
            samples, rate = np.ascontiguousarray(resampled.T), self.rate
        if self.container == "numpy":
            return samples, rate
        import torch

        return torch.from_numpy(samples), rate

    def part(self, rate: int, num_frames: int, generator: Generator | None) -> tuple[int, int]:
        """Return the first frame of the part in a file, and the most frames that it has.

        Args:
            rate: The rate of the file.
            num_frames: The frames that the file has.
            generator: Chooses a random part.
        """
        if self.duration_s is None:
            start = round(float(self.start_s) * rate)
            return start, max(0, num_frames - start)
        wanted = max(1, round(self.duration_s * rate))
        if not self.is_random:
            return round(float(self.start_s) * rate), wanted
        if generator is None:
            raise needs_generator("a random part of audio")
        return int(generator.integers(max(1, num_frames - wanted + 1))), wanted

    def check_size(self, num_channels: int, num_frames: int) -> None:
        """Raise `ValueError` for a file with too many channels, or longer than the limit."""
        if num_channels > _MAX_CHANNELS:
            raise ValueError(f"expected at most {_MAX_CHANNELS} channels, found {num_channels}")
        limit = safety.MAX_UNZIPPED_NBYTES if self.max_nbytes is None else self.max_nbytes
        if num_channels * num_frames * 4 > limit:
            raise ValueError(
                f"it is longer than {limit} bytes when decoded (`max_nbytes`); decode a part of it "
                "with duration_s"
            )


def needs_generator(what: str) -> safety.RefusedError:
    """Return the error for a random part that is decoded without a generator."""
    return safety.RefusedError(
        f"expected a random generator to choose {what}, found none; pass the decoder to "
        "dataset.map(decoder, seed=0) instead of transformations"
    )


def _read_by_libsndfile(
    data: bytes, wanted: Audio, generator: Generator | None
) -> tuple[Samples, int]:
    import soundfile

    with soundfile.SoundFile(io.BytesIO(data)) as file:
        start, count = wanted.part(file.samplerate, file.frames, generator)
        start = min(start, file.frames)
        count = min(count, file.frames - start)
        wanted.check_size(file.channels, count)
        at = _seekable_frame(file, data, start)
        if at:
            file.seek(at)
        file.seekable = lambda: False  # or soundfile seeks after each read, and mp3 loses its bits
        while at < start and (skipped := len(file.read(min(start - at, _BLOCK_FRAMES)))):
            at += skipped

        # A third of the time that libsndfile takes to make floats, of the same values.
        is_short = file.subtype == "PCM_16"
        dtype, scale = ("int16", np.float32(2**-15)) if is_short else ("float32", np.float32(1))
        # The system makes memory for what is written, and not for what a header claims.
        samples, at = np.empty((file.channels, count), np.float32), 0
        while at < count:
            block = file.read(min(count - at, _BLOCK_FRAMES), dtype=dtype, always_2d=True)
            if not len(block):
                raise ValueError(_MISSING.format(file.frames, start + at))
            np.multiply(block.T, scale, out=samples[:, at : at + len(block)])
            at += len(block)
        return samples, file.samplerate


def _seekable_frame(file: Any, data: bytes, start: int) -> int:
    """Return the last frame that is not after ``start`` from which libsndfile decodes rightly."""
    if not file.seekable():
        return 0
    if file.format == "MP3":
        return max(0, start - _frames_before(data, file.frames))
    if file.subtype == "VORBIS":  # the last page is cut, by which its first frame is misplaced
        before = data.rfind(b"OggS", 0, data.rfind(b"OggS"))
        end = int.from_bytes(data[before + 6 : before + 14], "little", signed=True)  # or -1
        return min(start, max(0, end))
    return start


def _frames_before(data: bytes, num_frames: int) -> int:
    """Return how many frames to decode before a part of an mp3."""
    tag = data.find(b"Info")  # of an mp3 whose packets have one length; the others have "Xing"
    is_tag = any(data[tag - offset] == 0xFF for offset in _TAG_OFFSETS if tag >= offset)
    if not is_tag or len(data) < tag + 16:
        return _MP3_BEFORE
    flags, num_packets, nbytes = struct.unpack_from(">III", data, tag + 4)
    if flags & 3 != 3 or not num_packets:
        return _MP3_BEFORE
    main_nbytes = int(nbytes // num_packets) - _MP3_SIDE_NBYTES
    earlier = 2 + _MP3_RESERVOIR_NBYTES // max(1, main_nbytes)  # two packets overlap
    return min(_MP3_BEFORE, (earlier + 1) * -int(-num_frames // num_packets))


def needs_ffmpeg(file: IO[bytes]) -> bool:
    """Return whether FFmpeg reads a file, since libsndfile would not, or would guess its length.

    Args:
        file: The audio, at its beginning; it is there again afterwards.
    """
    begin, head = 0, file.read(_HEAD_NBYTES)
    while head[:3] == b"ID3" and len(head) >= 10:
        sizes = zip(head[6:10], (21, 14, 7, 0), strict=True)
        begin += 10 + sum(byte << shift for byte, shift in sizes)
        file.seek(begin)
        head = file.read(_HEAD_NBYTES)
    if head[:4] == b"fLaC":  # 36 bits have the number of frames
        is_unknown = int.from_bytes(head[21:26], "big") & 0xFFFFFFFFF == 0
    elif head[:4] == b"RIFF":  # of no bytes, and yet there are some
        at = head.find(b"data" + bytes(4))
        is_unknown = 0 <= at < len(head) - 8
    elif head[4:8] == b"ftyp":
        is_unknown = True
    else:
        is_mp3 = begin > 0 or head[:1] == b"\xff"
        is_unknown = is_mp3 and not _is_counted(file, begin, head)
    file.seek(0)
    return is_unknown


def _is_counted(file: IO[bytes], begin: int, head: bytes) -> bool:
    """Return whether an mp3 states how many packets it has, and that of the bytes that it has."""
    tag = max(head.find(b"Xing"), head.find(b"Info"))
    if tag < 0 or len(head) < tag + 16:
        return False
    flags, _, nbytes = struct.unpack_from(">III", head, tag + 4)
    for offset in _TAG_OFFSETS:
        file.seek(max(0, begin + tag - offset + nbytes - 1))
        last = file.read(4)
        if flags & 3 == 3 and last and last[1:] in (b"", b"TAG", b"APE", b"LYR"):
            return True
    return False


def read_by_ffmpeg(
    data: bytes, wanted: Audio, generator: Generator | None = None
) -> tuple[Samples, int]:
    """Return the samples and the rate of the first audio stream of a file."""
    import av

    with opened_media(io.BytesIO(data)) as file:
        stream = _audio_stream(file)
        rate, channels = int(stream.rate), int(stream.channels)
        wanted.check_size(channels, 0)
        num_frames = 0
        if wanted.is_random:
            length_s = stated_s(file, stream)
            num_frames = _counted(data) if length_s is None else round(length_s * rate)
        start, count = wanted.part(rate, num_frames, generator)
        if wanted.duration_s is None:
            count = _ALL_FRAMES  # the stated length leaves out what encoders add at the end
        planar = av.AudioResampler(format="fltp")
        blocks: list[Samples] = []
        at = 0
        for frame in _decoded(file, stream):
            for piece in planar.resample(frame):
                block = piece.to_ndarray()[:, max(0, start - at) : max(0, start + count - at)]
                at += piece.samples
                blocks.append(block.T)
            wanted.check_size(channels, sum(map(len, blocks)))
            if at >= start + count:
                break
        return _joined(blocks, channels), rate


def _audio_stream(file: Any) -> Any:
    if not file.streams.audio:
        raise ValueError("expected audio, found a file without an audio stream")
    return file.streams.audio[0]


def _counted(data: bytes) -> int:
    """Return the number of frames of a file, by decoding it."""
    with opened_media(io.BytesIO(data)) as file:
        return sum(frame.samples for frame in _decoded(file, _audio_stream(file)))


def _decoded(file: Any, *streams: Any) -> Iterator[Any]:
    """Yield the frames of some streams.

    Packets of an mp3 that do not decode have none, as for players: a tag between two files that
    were joined, or what is left of a packet at the end.

    Raises:
        ValueError: The first of them ends earlier than it states; or, if only the file states a
            length, all streams do.
    """
    import av

    first, num_frames, failure = streams[0], 0, None
    ends: dict[int, int] = {}  # of each stream, in ticks
    for packet in file.demux():
        safety.check_time()
        number, at = packet.stream_index, packet.dts if packet.pts is None else packet.pts
        if at is not None:
            ends[number] = max(ends.get(number, 0), at + (packet.duration or 0))
        if all(number != each.index for each in streams):
            continue
        try:
            frames = packet.decode()
        except av.error.InvalidDataError as error:
            if file.format.name != "mp3":
                raise
            frames, failure = [], error
        num_frames += len(frames)
        yield from frames
    if failure is not None and not num_frames:
        raise failure
    check_end(file, first, ends)


def check_end(file: Any, first: Any, ends: Mapping[int, int]) -> None:
    """Compare the length that is stated for a stream with what could be decoded.

    Args:
        file: The container.
        first: The stream; if it states no length, that of the file is the end of any of them.
        ends: When the last frame of each stream ends, by its number.

    Raises:
        ValueError: More than half a second is missing.
    """
    stated = stated_s(file, first) or 0.0
    is_own = first.duration is not None
    start = (first.start_time or 0) if is_own else 0
    found = [first] if is_own else file.streams
    end_s = max(float((ends.get(each.index, 0) - start) * each.time_base) for each in found)
    if end_s < stated - max(_END_S, stated / 20):
        raise ValueError(f"expected {stated:.1f} s, found {end_s:.1f} s that can be decoded")


def audio_facts(file: IO[bytes]) -> tuple[int, int, float]:
    """Return rate, number of channels, and length in seconds of a file.

    From its header, or from those of its packets where FFmpeg reads a file without a length.
    """
    if not needs_ffmpeg(file):
        import soundfile

        info = soundfile.info(file)
        return int(info.samplerate), int(info.channels), float(info.duration)
    with opened_media(file) as container:
        stream = _audio_stream(container)
        length_s = stated_s(container, stream)
        if length_s is None:
            ticks = sum(packet.duration or 0 for packet in container.demux(stream))
            length_s = float(ticks * stream.time_base)
        return int(stream.rate), int(stream.channels), length_s


def stated_s(file: Any, stream: Any) -> float | None:
    """Return the length of a stream in seconds, or None if neither it nor the file states one."""
    if stream.frames == _PIPED_FRAMES or file.format.name in _UNSTATED:  # FFmpeg guesses
        return None
    if stream.duration is not None:
        return float(stream.duration * stream.time_base)
    return None if file.duration is None else float(file.duration) / 1e6


def opened_media(file: IO[bytes], max_pixels: int = _MAX_PICTURE_PIXELS) -> Any:
    """Return the container of PyAV for audio or video, which reads this file and no other.

    Args:
        file: A file that can seek.
        max_pixels: Size of frames that FFmpeg decodes in any case, be it to find out what a stream
            is, or a picture inside audio; it decodes none that is an eighth larger.

    Raises:
        ModuleNotFoundError: PyAV is not installed.
        ValueError: It has too many streams.
        Exception: It is neither; any type.
    """
    import av

    # Without a protocol no demuxer can open anything else.
    options = {"format_whitelist": _FORMATS, "protocol_whitelist": "none"}
    # A title that is not UTF-8 is an error up to PyAV 18, which has an argument to ignore it.
    is_strict = int(av.__version__.partition(".")[0]) < 19
    lenient: dict[str, Any] = {"metadata_errors": "ignore"} if is_strict else {}
    # FFmpeg counts what it pads, to whole blocks of up to 64 pixels.
    limits = {
        "max_pixels": str(max_pixels * 9 // 8 + (1 << 20)),
        "max_samples": str(_MAX_PACKET_SAMPLES),
    }
    container = av.open(file, options=limits, container_options=options, **lenient)
    num_streams = len(container.streams)
    if num_streams > _MAX_STREAMS:
        container.close()
        raise ValueError(f"expected at most {_MAX_STREAMS} streams, found {num_streams}")
    for stream in (*container.streams.video, *container.streams.audio):
        stream.codec_context.options = limits  # those above hold until here
    return container


def check_audio(data: bytes) -> None:
    """Decode all of a file, of which nothing is kept.

    Raises:
        ModuleNotFoundError: A package is not installed.
        ValueError: It ends earlier than it states.
        Exception: The bytes are not audio; any type.
    """
    if needs_ffmpeg(io.BytesIO(data)):
        container = opened_media(io.BytesIO(data))
        check_streams(container, _audio_stream(container))
        return
    import soundfile

    with soundfile.SoundFile(io.BytesIO(data)) as file:
        num_left = file.frames
        while num_left and (count := len(file.read(min(num_left, _BLOCK_FRAMES), dtype="float32"))):
            num_left -= count
        if num_left:
            raise ValueError(_MISSING.format(file.frames, file.frames - num_left))
    stated = int.from_bytes(data[4:8], "little") + 8
    if data.startswith(b"RIFF") and len(data) < stated < _STREAMED_NBYTES:
        raise ValueError(f"expected {stated} bytes, found {len(data)}")


def check_streams(file: Any, *streams: Any) -> int:
    """Decode streams of a file to the end, of which nothing is kept.

    Returns:
        The number of frames of the first of them.

    Raises:
        ValueError: It ends earlier than it states.
        Exception: They cannot be decoded; any type.
    """
    is_audio = streams[0].type == "audio"

    def num_frames() -> int:
        return sum(hasattr(each, "samples") == is_audio for each in _decoded(file, *streams))

    found = safety.within_s(MAX_S + (stated_s(file, streams[0]) or 0.0), num_frames)
    file.close()  # not after a time-out: the thread still uses it
    return found


def _joined(blocks: list[Samples], num_channels: int) -> Samples:
    """Return blocks of shape (frames, channels) as one array of shape (channels, frames)."""
    if not blocks:
        return np.zeros((num_channels, 0), np.float32)
    whole = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    return np.ascontiguousarray(whole.T)


# Encoding.


def encode_audio(value: Any, format_name: str, subtype: str | None) -> bytes:
    """Return ``(samples, rate)`` in a format of libsndfile.

    Args:
        value: The samples, of shape ``(channels, frames)``, and their rate in Hz.
        format_name: libsndfile's name of the format.
        subtype: libsndfile's name of the encoding; None for 16 bits if the samples are int16, and
            otherwise for as many bits as the format has.
    """
    import soundfile

    samples, rate = _checked(value)
    if subtype is None:
        deep = "FLOAT" if format_name == "WAV" else "PCM_24"
        subtype = "PCM_16" if samples.dtype == np.int16 else deep
    if subtype == "OPUS" and rate not in _OPUS_RATES:
        raise ValueError(f"opus: expected a rate of {_OPUS_RATES} Hz, found {rate}")
    if subtype != "FLOAT" and samples.dtype != np.int16 and np.abs(samples).max(initial=0) > 1:
        raise ValueError(
            f"{format_name} stores samples from -1 to 1, and would clip those beyond; found "
            f"{np.abs(samples).max():.3g}; scale them, or store them as wav"
        )
    stream = io.BytesIO()
    options = {"samplerate": rate, "channels": len(samples), "subtype": subtype}
    with soundfile.SoundFile(stream, "w", format=format_name, **options) as file:
        # In short pieces: the encoder of Vorbis keeps each piece on its stack.
        for start in range(0, samples.shape[1], _WRITTEN_FRAMES):
            file.write(samples[:, start : start + _WRITTEN_FRAMES].T)
    return stream.getvalue()


def _checked(value: Any) -> tuple[npt.NDArray[Any], int]:
    """Return samples of shape (channels, frames) and their rate."""
    try:
        samples, rate = value
        samples, rate = np.asarray(samples), int(rate)
    except (TypeError, ValueError):
        raise TypeError(
            f"expected (samples, rate), as audio is decoded, found {type(value).__name__}"
        ) from None
    if samples.ndim == 1:
        samples = samples[None]
    if samples.dtype.kind == "f":
        samples = samples.astype(np.float32, copy=False)
    if samples.dtype not in (np.float32, np.int16) or samples.ndim != 2:
        raise ValueError(
            "expected samples of shape (channels, frames), of floats from -1 to 1 or of int16, "
            f"found {samples.shape} of {samples.dtype}"
        )
    if not 1 <= len(samples) <= _MAX_CHANNELS:
        raise ValueError(
            f"expected 1 to {_MAX_CHANNELS} channels, found {len(samples)}; the shape of samples "
            "is (channels, frames)"
        )
    if not np.isfinite(samples).all():
        raise ValueError("expected finite samples, found infinity or NaN")
    return samples, rate


def audio_decoder(audio: Any, max_nbytes: int | None) -> Audio:
    """Return the function that decodes audio as ``Decoder(audio=...)`` says.

    Raises:
        ValueError: It is not ``"torch"``, ``"numpy"`` or an `Audio`.
    """
    if isinstance(audio, Audio):
        return audio
    if audio not in ("torch", "numpy"):
        raise ValueError(f'audio: expected "torch", "numpy" or wids.Audio(…), found {audio!r:.80}')
    return Audio(audio, max_nbytes=max_nbytes)
