"""Decode videos: all frames, clips of a few frames, or any frames through a reader.

FFmpeg (by PyAV, imported when first used) reads mp4, mov, mkv, webm, avi and others. A video is
bytes, or a file that can seek, of which only the video's index and the needed frames are read.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from wids.shards.fields import audio
from wids.shards.fields.frame_index import MAX_PIXELS, NO_FRAMES, Film, video_stream
from wids.shards.fields.safety import MAX_UNZIPPED_NBYTES, within_s

if TYPE_CHECKING:
    import torch
    from numpy.random import Generator
    from typing_extensions import Self

Pixels = npt.NDArray[np.uint8]
VideoBytes = bytes | IO[bytes]

_T = TypeVar("_T")

_SEEK_S: Final = 10.0
"""A frame that is further ahead is sought; for a nearer one, those between are decoded. Encoders
place a frame to begin at every ten seconds or less."""


class VideoReader:
    """The frames of one video, each decoded when it is asked for.

    Frame ``n`` is the one that decoding from the beginning returns as number ``n``, whatever the
    container says. Times count from the first frame. Not safe to share between threads.

    Args:
        film: The bytes of the video, or a binary file that can seek.
        max_nbytes: Largest size of the frames that one call returns, in bytes; None for 1 GiB.

    Attributes:
        rate: Frames per second, as the video states it.
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
        self._is_lost = self._is_closed = False
        self._film = Film(file, self._max_nbytes // 3)
        stream, sound = self._film.stream, self._film.container.streams.audio
        self.width, self.height = stream.width, stream.height
        self.rate = float(stream.average_rate or stream.guessed_rate)
        self.audio_rate = int(sound[0].rate) if sound else None

    def __len__(self) -> int:
        """Return the number of frames.

        Where the container does not list them, its packets are counted: the whole file is read.
        """
        return self._within(lambda: self._film.num_frames)

    @property
    def duration_s(self) -> float:
        """Length in seconds, from the first frame to the end of the last one.

        Costs reading what follows the last frame at which decoding can begin.
        """
        ticks = self._within(lambda: self._film.end - self._film.start)
        return float(ticks * self._film.stream.time_base)

    def __repr__(self) -> str:
        return f"<VideoReader: {self.width} by {self.height} at {self.rate:g} frames per second>"

    def frames(
        self, indices: Sequence[int] | None = None, *, seconds: Sequence[float] | None = None
    ) -> torch.Tensor:
        """Return frames by their numbers, or those on the screen at some times.

        Args:
            indices: Numbers of frames, in any order; negative ones count from the end.
            seconds: Times from the first frame, in place of ``indices``.

        Returns:
            A uint8 tensor of shape ``(frames, 3, height, width)``. A time beyond the end has the
            last frame.

        Raises:
            ValueError: Both arguments, or neither; or the frames are larger than the limit.
            IndexError: There is no frame with this number.
        """
        if (indices is None) == (seconds is None):
            raise ValueError("frames: expected either indices or seconds")
        if indices is None:
            return _as_tensor(self._within(lambda: self.at(seconds or ())))
        return _as_tensor(self._within(lambda: self._numbered(indices)))

    def _within(self, decode: Callable[[], _T]) -> _T:
        """Return what a function returns within the time that decoding may take."""
        if self._is_closed:
            raise ValueError("expected an open reader, found one that was closed")
        self._is_lost = True  # until the thread has ended, it may use the decoder
        result = within_s(audio.MAX_S, decode)
        self._is_lost = False
        return result

    def _numbered(self, indices: Sequence[int]) -> Pixels:
        count = self._film.num_frames if min(indices, default=0) < 0 else 0
        numbers = [index + count if index < 0 else index for index in indices]
        if min(numbers, default=0) < 0:
            raise IndexError(f"frame {min(indices)} is out of range for {count} frames")
        return self._chosen(numbers, are_numbers=True)

    def at(self, seconds: Sequence[float]) -> Pixels:
        """Return the frames at some times, shape (frames, height, width, 3), in this thread."""
        return self._chosen([self._film.tick(each) for each in seconds], are_numbers=False)

    def _chosen(self, places: Sequence[int], *, are_numbers: bool) -> Pixels:
        """Return the frames with some numbers, or on the screen at some times."""
        begin = self._film.numbered if are_numbers else self._film.timed
        far = round(_SEEK_S * self.rate) * (1 if are_numbers else self._film.step)
        pixels = self._room(len(places))
        frames: Iterator[tuple[int, Any]] = iter(())
        current = following = None
        for row in np.argsort(np.array(places, np.int64), kind="stable").tolist():
            place = places[row]
            if current is None or place - (following or current)[0] > far:
                frames = begin(place)
                current, following = next(frames, None), None
            if current is None:
                raise ValueError(NO_FRAMES)
            while current[0] < place:
                following = following or next(frames, None)
                if following is None or following[0] > place:
                    break
                current, following = following, None
            if are_numbers and current[0] != place:
                raise IndexError(f"frame {place} is out of range for {current[0] + 1} frames")
            pixels[row] = self._pixels(current[1])
        return pixels

    def clip(self, clips: Clips, generator: Generator | None) -> Pixels:
        """Return a clip, shape (frames, height, width, 3), in this thread."""
        film = self._film
        if generator is None or not clips.is_random:
            return self._spread(film.shown_from(film.tick(float(clips.at))), clips)[0]
        span = (clips.num_frames - 1) * clips.stride + 1
        if film.is_listed or not film.can_seek:
            number = int(generator.integers(max(1, film.num_frames - span + 1)))
        else:
            last = film.end - (span - 1) * film.step
            tick = int(generator.integers(film.start, max(film.start + 1, last)))
            pixels, count = self._spread(film.shown_from(tick), clips)
            if count == clips.num_frames or tick == film.start:
                return pixels
            number = max(0, film.num_frames - span)  # the rate varies: the last clip that there is
        frames = (frame for place, frame in film.numbered(number) if place >= number)
        return self._spread(frames, clips)[0]

    def _spread(self, frames: Iterator[Any], clips: Clips) -> tuple[Pixels, int]:
        """Return every ``stride``-th frame, and how many there are; the last of all fills up."""
        pixels, count, last = self._room(clips.num_frames), 0, None
        for place, last in enumerate(islice(frames, (clips.num_frames - 1) * clips.stride + 1)):
            if place % clips.stride == 0:
                pixels[count] = self._pixels(last)
                count += 1
        if last is None:
            raise ValueError(NO_FRAMES)
        if count < clips.num_frames:
            pixels[count:] = self._pixels(last)
        return pixels, count

    def all_frames(self) -> Pixels:
        """Return all frames, shape (frames, height, width, 3)."""
        film, pixels, end = self._film, list[Pixels](), 0
        for frame in film.from_start():
            self._check_size(len(pixels) + 1)
            pixels.append(self._pixels(frame))
            if frame.pts is not None:
                end = max(end, film.end_of(frame))
        if not pixels:
            raise ValueError(NO_FRAMES)
        if film.is_listed:
            _check_count(len(pixels), film.num_frames)
        elif len(film.container.streams) == 1:  # or sound may be longer
            audio.check_end(film.container, film.stream, {film.stream.index: end})
        return np.stack(pixels)

    def _pixels(self, frame: Any) -> Pixels:
        if (frame.width, frame.height) != (self.width, self.height):  # it may change inside
            frame = frame.reformat(self.width, self.height)
        pixels: Pixels = frame.to_ndarray(format="rgb24")
        return pixels

    def _room(self, num_frames: int) -> Pixels:
        self._check_size(num_frames)
        return np.empty((num_frames, self.height, self.width, 3), np.uint8)

    def _check_size(self, num_frames: int) -> None:
        if num_frames * self.height * self.width * 3 > self._max_nbytes:
            raise ValueError(
                f"{num_frames} frames of {self.width} by {self.height} pixels are more than "
                f"{self._max_nbytes} bytes (`max_nbytes`); decode fewer with wids.Clips"
            )

    def close(self) -> None:
        """Release the decoder."""
        self._is_closed = True
        if not self._is_lost:
            self._film.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_count(found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"expected {expected} frames, found {found} that can be decoded")


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
            return reader.clip(self, generator)


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


def check_film(film: bytes) -> None:
    """Decode all of a video and its audio, and keep nothing; raise as `check_audio` does."""
    container = audio.opened_media(io.BytesIO(film), MAX_PIXELS)
    stream = video_stream(container)
    num_frames = audio.check_streams(container, stream, *container.streams.audio[:1])
    with VideoReader(film) as reader:
        _check_count(num_frames, len(reader))


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
