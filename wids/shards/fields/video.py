"""Decode videos: all frames, clips of a few frames, or any frames through a reader.

FFmpeg (by PyAV, imported when first used) reads mp4, mov, mkv, webm, avi and others. A video is
bytes, or a file that can seek, of which only the video's index and the needed frames are read.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from wids.shards.fields import audio
from wids.shards.fields.safety import MAX_UNZIPPED_NBYTES, check_time, within_s

if TYPE_CHECKING:
    import torch
    from numpy.random import Generator
    from typing_extensions import Self

Pixels = npt.NDArray[np.uint8]
VideoBytes = bytes | IO[bytes]

_SEEK_S: Final = 10.0
"""A frame that is further ahead is sought; for a nearer one, those between are decoded. Encoders
place a frame to begin at every ten seconds or less."""

_MAX_PIXELS: Final = 1 << 27
"""Most pixels of a frame: 16,384 by 8,192."""


class VideoReader:
    """The frames of one video, each decoded when it is asked for.

    Frame ``n`` is the one that is on the screen at ``n / rate`` seconds, which for videos of a
    constant rate is the frame number ``n``. Not safe to share between threads.

    Args:
        film: The bytes of the video, or a binary file that can seek.
        max_nbytes: Largest size of the frames that one call returns, in bytes; None for 1 GiB.

    Attributes:
        rate: Frames per second.
        duration_s: Length in seconds.
        height, width: Size of a frame in pixels, as stored: a rotation is not applied.
        audio_rate: Rate of the first audio stream in Hz; None if there is none.

    Raises:
        ModuleNotFoundError: PyAV is not installed.
        ValueError: It has no video, more than 64 streams, or frames of more than 134 million
            pixels.
        Exception: It is not a video; any type.

    Example:
        >>> import io, av, numpy as np, wids
        >>> film = io.BytesIO()
        >>> with av.open(film, "w", format="mp4") as container:
        ...     stream = container.add_stream("mpeg4", rate=25)
        ...     stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        ...     for number in range(50):
        ...         pixels = np.full((48, 64, 3), 5 * number, np.uint8)
        ...         container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        ...     container.mux(stream.encode())
        >>> with wids.VideoReader(film.getvalue()) as reader:
        ...     len(reader), reader.rate, reader.frames([0, 49]).shape
        (50, 25.0, torch.Size([2, 3, 48, 64]))
    """

    def __init__(self, film: VideoBytes, max_nbytes: int | None = None) -> None:
        self._max_nbytes = MAX_UNZIPPED_NBYTES if max_nbytes is None else max_nbytes
        file = io.BytesIO(film) if isinstance(film, bytes) else film
        self._is_lost = False
        self._container = audio.opened_media(file, min(_MAX_PIXELS, self._max_nbytes // 3))
        try:
            self._stream = _checked_stream(self._container)
            # One thread: a loader has a worker for each processor.
            self._stream.codec_context.thread_count = 1
            self.width, self.height = self._stream.width, self._stream.height
            self.rate = float(self._stream.average_rate or self._stream.guessed_rate)
            sound = self._container.streams.audio
            self.audio_rate = int(sound[0].rate) if sound else None
            self._start_s = float((self._stream.start_time or 0) * self._stream.time_base)
            length_s = audio.stated_s(self._container, self._stream)
            self.duration_s = self._stream.frames / self.rate if length_s is None else length_s
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """Return the number of frames, from the video's index or from its length and rate."""
        return int(self._stream.frames or round(self.duration_s * self.rate))

    def __repr__(self) -> str:
        return (
            f"<VideoReader: {len(self)} frames of {self.width} by {self.height} at {self.rate:g} "
            f"per second, {self.duration_s:.2f} s>"
        )

    def frames(
        self, indices: Sequence[int] | None = None, *, seconds: Sequence[float] | None = None
    ) -> torch.Tensor:
        """Return frames by their numbers, or those on the screen at some times.

        Args:
            indices: Numbers of frames, in any order; negative ones count from the end.
            seconds: Times from the beginning, in place of ``indices``.

        Returns:
            A uint8 tensor of shape ``(frames, 3, height, width)``. A time beyond the end has the
            last frame.

        Raises:
            ValueError: Both arguments, or neither; or the frames are larger than the limit.
            IndexError: There is no frame with this number.
        """
        if (indices is None) == (seconds is None):
            raise ValueError("frames: expected either indices or seconds")
        if indices is not None:
            seconds = [self._index(index) / self.rate for index in indices]
        times = [float(at_s) for at_s in seconds or ()]
        self._is_lost = True  # until the thread has ended, it may use the decoder
        pixels = within_s(audio.MAX_S, lambda: self.at(times))
        self._is_lost = False
        return _as_tensor(pixels)

    def _index(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"frame {index} is out of range for {len(self)} frames")
        return index % len(self)

    def at(self, seconds: Sequence[float]) -> Pixels:
        """Return the frames at some times, shape (frames, height, width, 3), in this thread."""
        self._check_size(len(seconds))
        found = np.empty((len(seconds), self.height, self.width, 3), np.uint8)
        frames: Iterator[Any] = iter(())
        current = following = None
        for place in np.argsort(np.array(seconds, float), kind="stable").tolist():
            # A quarter of a frame later, since the times of frames are rounded.
            at_s = seconds[place] + 0.25 / self.rate
            if current is None or at_s - self._time_s(following or current) > _SEEK_S:
                frames = self._from(at_s)
                current, following = next(frames, None), None
            if current is None:
                raise ValueError("expected a video with frames, found none that can be decoded")
            # The next frame is decoded only where the current one does not say that it lasts.
            while self._time_s(current, is_end=True) <= at_s:
                following = following or next(frames, None)
                if following is None or self._time_s(following) > at_s:
                    break
                current, following = following, None
            found[place] = self._pixels(current)
        return found

    def _time_s(self, frame: Any, *, is_end: bool = False) -> float:
        """Return when a frame begins, or the earliest time at which it may end."""
        ticks = frame.pts + ((frame.duration or 0) if is_end else 0)
        return float(ticks * self._stream.time_base) - self._start_s

    def _from(self, start_s: float) -> Iterator[Any]:
        """Yield frames from one that is not later than ``start_s`` on."""
        offset = max(0, math.floor((start_s + self._start_s) / self._stream.time_base))
        self._container.seek(offset, stream=self._stream, backward=True)
        for frame in self._container.decode(self._stream):
            check_time()
            if frame.pts is not None:
                yield frame

    def all_frames(self) -> Pixels:
        """Return all frames, shape (frames, height, width, 3)."""
        self._check_size(len(self))
        found: list[Pixels] = []
        for frame in self._from(0.0):
            found.append(self._pixels(frame))
            self._check_size(len(found))
        if not found:
            raise ValueError("expected a video with frames, found none that can be decoded")
        return np.stack(found)

    def _pixels(self, frame: Any) -> Pixels:
        if (frame.width, frame.height) != (self.width, self.height):  # it may change inside
            frame = frame.reformat(self.width, self.height)
        pixels: Pixels = frame.to_ndarray(format="rgb24")
        return pixels

    def _check_size(self, num_frames: int) -> None:
        if num_frames * self.height * self.width * 3 > self._max_nbytes:
            raise ValueError(
                f"{num_frames} frames of {self.width} by {self.height} pixels are more than "
                f"{self._max_nbytes} bytes (`max_nbytes`); decode fewer with wids.Clips"
            )

    def check(self) -> None:
        """Decode all frames and all audio, of which nothing is kept.

        Raises:
            ValueError: There are fewer than the video states.
            Exception: They cannot be decoded; any type.
        """
        self._is_lost = True  # as in `frames`
        audio.check_streams(self._container, self._stream, *self._container.streams.audio[:1])
        self._is_lost = False

    def close(self) -> None:
        """Release the decoder."""
        if not self._is_lost:
            self._container.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checked_stream(container: Any) -> Any:
    """Return the first video stream of a container."""
    streams = container.streams
    if not streams.video:
        raise ValueError(f"expected a video, found {len(streams)} streams without video")
    stream = streams.video[0]
    if not 1 <= stream.width * stream.height <= _MAX_PIXELS:
        raise ValueError(
            f"expected frames of 1 to {_MAX_PIXELS} pixels, found {stream.width} by {stream.height}"
        )
    if not (stream.average_rate or stream.guessed_rate):
        raise ValueError("expected a video with a frame rate, found none")
    return stream


def _as_tensor(pixels: Pixels) -> torch.Tensor:
    import torch

    # A view: the memory keeps the order in which decoders write it, as for pictures.
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Clips:
    """How video fields are decoded to clips: a few frames at equal distances.

    Only these frames, and those that they depend on, are decoded. A clip is a uint8 tensor of shape
    ``(num_frames, 3, height, width)``; a video that ends earlier repeats its last frame.

    Args:
        num_frames: Frames in a clip.
        stride: Distance between two of them, in frames of the video.
        at: Where the clip begins, in seconds; ``"random"`` for anywhere in the video, chosen by the
            generator of ``dataset.map(decoder, seed=…)``.
        max_nbytes: Largest clip in bytes; None for 1 GiB.

    Raises:
        ValueError: An argument has a value that it cannot have.

    Example:
        >>> import wids
        >>> wids.Decoder("torch", video=wids.Clips(num_frames=8, stride=4, at=1.5))
        Decoder(images='torch', video=Clips(num_frames=8, stride=4, at=1.5, max_nbytes=None))
    """

    num_frames: int = 16
    stride: int = 1
    at: float | Literal["random"] = "random"
    max_nbytes: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("num_frames", self.num_frames), ("stride", self.stride)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, found {value!r:.80}")
        if not self.is_random and not 0 <= float(self.at) < math.inf:
            raise ValueError(f'at: expected seconds or "random", found {self.at!r:.80}')

    @property
    def is_random(self) -> bool:
        """Whether decoding needs a random generator."""
        return self.at == "random"

    def __call__(self, film: VideoBytes, generator: Generator | None = None) -> torch.Tensor:
        """Return a clip of a video; the generator chooses a random one."""
        if self.is_random and generator is None:
            raise audio.needs_generator("a random clip")
        return _as_tensor(within_s(audio.MAX_S, partial(self._pixels, film, generator)))

    def _pixels(self, film: VideoBytes, generator: Generator | None) -> Pixels:
        with VideoReader(film, self.max_nbytes) as reader:
            if generator is not None and self.is_random:
                span = (self.num_frames - 1) * self.stride + 1
                first = float(generator.integers(max(1, len(reader) - span + 1)))
            else:
                first = float(self.at) * reader.rate
            places = first + self.stride * np.arange(self.num_frames)
            return reader.at((places / reader.rate).tolist())


def decode_frames(
    film: bytes, max_nbytes: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, dict[str, float]]:
    """Return all frames and all audio, as ``torchvision.io.read_video(pts_unit="sec")`` does.

    Returns:
        Frames as uint8 of shape ``(frames, height, width, 3)``; samples of the first audio stream
        as float32 of shape ``(channels, frames)``, ``(1, 0)`` if there is none; and a dict with
        ``video_fps``, and ``audio_fps`` if there is audio.
    """
    import torch

    pixels, sound, info = within_s(audio.MAX_S, partial(_all_of, film, max_nbytes))
    return torch.from_numpy(pixels), torch.from_numpy(sound), info


def _all_of(film: bytes, max_nbytes: int | None) -> tuple[Pixels, audio.Samples, dict[str, float]]:
    with VideoReader(film, max_nbytes) as reader:
        pixels = reader.all_frames()
    info: dict[str, float] = {"video_fps": reader.rate}
    if reader.audio_rate is None:
        return pixels, np.zeros((1, 0), np.float32), info
    sound, rate = audio.read_by_ffmpeg(film, audio.Audio(max_nbytes=max_nbytes))
    return pixels, sound, {**info, "audio_fps": rate}


def check_film(film: VideoBytes) -> None:
    """Decode all of a video and its audio, and keep nothing; raise as `check_audio` does."""
    with VideoReader(film) as reader:
        reader.check()


def video_decoder(video: Any, max_nbytes: int | None) -> Any:
    """Return the function that decodes videos as ``Decoder(video=...)`` says.

    Raises:
        ValueError: It is not ``"frames"``, ``"reader"`` or clips.
    """
    if isinstance(video, Clips):
        return video
    if isinstance(video, str) and video in ("frames", "reader"):
        decode = decode_frames if video == "frames" else VideoReader
        return partial(decode, max_nbytes=max_nbytes)
    raise ValueError(f'video: expected "frames", "reader" or wids.Clips(…), found {video!r:.80}')
