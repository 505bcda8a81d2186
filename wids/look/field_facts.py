"""Turn the bytes of fields, and the indexes of shards, into what is shown of them.

That is smaller pictures, the length and rate of audio and video, damage (bytes without the checksum
of the index), and which fields samples have. No browser decodes the bytes of a dataset: every
picture is decoded here, within limits of memory and time, and encoded again. Nothing is read here.
"""

from __future__ import annotations

import io
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from queue import PriorityQueue
from typing import IO, Any, Final, NamedTuple, TypeVar

from wids.errors import printable
from wids.shards.fields import codecs
from wids.shards.fields.images import converted, opened_image
from wids.shards.fields.picture_headers import orientation_of
from wids.shards.fields.safety import RefusedError, within_s
from wids.shards.tars.index import ShardIndex
from wids.storage.files import fastest_crc32
from wids.storage.sizes import count_text

THUMBNAIL_PIXELS: Final = 256
MAX_PIXELS: Final = 40_000_000
"""Larger pictures are not decoded: a few bytes can claim to be billions of pixels (SEC-13). A pixel
takes 4 bytes in most formats, and 16 while a WebP is decoded."""
_TINY_PIXELS: Final = 128
"""Pictures that are not wider or higher are encoded without loss, and shown pixel by pixel."""

_POSTER_AT_S: Final = 1.0
_POSTER_S: Final = 5.0
"""Longest time that the poster of a video may take."""

_MAX_LARGE: Final = 256
"""Most requests for large pictures that wait; they hold nothing but their connection."""
_LARGE_NBYTES: Final = 40_000_000
"""Pictures that take more are decoded by one thread. Little is lost: most of Pillow's decoders keep
Python's lock anyway."""

_T = TypeVar("_T")
_Task = tuple[float, int, "Future[Any]", Callable[[], Any]]


class BusyError(Exception):
    """The error for a picture that is requested while too many others are waited for."""


class _Decoders:
    """Threads that decode what is shown, since a page requests many pictures at once (SEC-53).

    Always the same: the C library keeps what is freed for the thread that had it, so that as
    many threads as there are requests would keep that many pictures (decision 0158). Those that are
    small come first. What may take long is called through `within_s`.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self.begin()

    def begin(self) -> None:
        """Begin without threads and tasks."""
        self._tasks: PriorityQueue[_Task] = PriorityQueue()
        self._numbers = count()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def run(self, decode: Callable[[], _T], cost: float = math.inf) -> _T:
        """Return what a function returns, or raise what it raises.

        Args:
            decode: The function, which may call this one.
            cost: Those with the lowest are called first; infinity for what is large, or has to be
                read.

        Raises:
            BusyError: Too many large pictures are waited for.
        """
        if threading.current_thread() in self._threads:
            return decode()
        future = Future[_T]()
        with self._lock:
            if cost == math.inf and self._tasks.qsize() >= _MAX_LARGE:
                raise BusyError("too many pictures are being made; try again later")
            self._tasks.put((cost, next(self._numbers), future, decode))
            if len(self._threads) < self._num_threads:
                thread = threading.Thread(target=self._work, name="wids-pictures", daemon=True)
                thread.start()
                self._threads.append(thread)
        return future.result()

    def _work(self) -> None:
        while True:
            *_, future, decode = self._tasks.get()
            try:
                future.set_result(decode())
            except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
                # Without the frames of the decoder, which have the picture.
                error.__context__ = error.__cause__ = None
                future.set_exception(error.with_traceback(None))
            del future, decode  # or the result would stay until the next task


_decoders: Final = _Decoders(2)
_one_decoder: Final = _Decoders(1)
decoded: Final = _decoders.run

if hasattr(os, "register_at_fork"):  # the child has none of the threads
    os.register_at_fork(after_in_child=_decoders.begin)
    os.register_at_fork(after_in_child=_one_decoder.begin)


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


def description_of(image: Any) -> str:
    """Return the format, size and mode of a PIL image, and an orientation that is not applied."""
    form = getattr(image, "format", None) or "image"
    turned = orientation_of(image)
    remark = f", EXIF orientation {turned} (not applied)" if turned > 1 else ""
    return f"{form} {image.width} x {image.height} {image.mode}{remark}"


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
        description = description_of(image)
        small = decoded(partial(_decoded_small, data, size), width * height)
    except Exception as error:
        raise ValueError(_reason(error)) from error
    if small is None:
        raise ValueError(f"{description}: too many pixels to show")
    return Thumbnail(*small, description, width, height)


def _decoded_small(data: bytes | Any, size: int) -> tuple[bytes, str] | None:
    """Return a picture made smaller, and its type; None if it has too many pixels.

    It is opened here, or the thread that waits would have it in memory at full size.
    """
    if not isinstance(data, bytes):  # the caller's, decoded already: `draft` would change it
        return _small(data, size)
    image = opened_image(data)
    num_pixels = _num_decoded_pixels(image, size)
    if num_pixels > MAX_PIXELS:
        return None
    if num_pixels * (16 if image.format == "WEBP" else 4) <= _LARGE_NBYTES:
        return _small(image, size)
    return _one_decoder.run(partial(_opened_small, data, size))


def _opened_small(data: bytes, size: int) -> tuple[bytes, str]:
    image = opened_image(data)
    _num_decoded_pixels(image, size)
    return _small(image, size)


def poster(video: IO[bytes], size: int = THUMBNAIL_PIXELS) -> Thumbnail:
    """Return a picture that stands for a video: the one after a second, or the last.

    Args:
        video: The video, as a file that can seek.
        size: Maximum width and height in pixels.

    Raises:
        BusyError: Too many others are waited for.
        ValueError: The video cannot be decoded, within a few seconds, or has too many pixels.
    """
    from PIL import Image

    from wids.shards.fields.video import VideoReader

    def picture() -> Thumbnail:
        # As many pixels as a picture may have; FFmpeg has the same limit for what is inside.
        with VideoReader(video, 3 * MAX_PIXELS) as reader:
            (pixels,) = reader.at([_POSTER_AT_S])  # videos often begin in the dark
            small = _small(Image.fromarray(pixels), size)
            return Thumbnail(*small, repr(reader), reader.width, reader.height)

    try:
        return decoded(partial(within_s, _POSTER_S, picture))
    except BusyError:
        raise
    except Exception as error:
        raise ValueError(_reason(error)) from error


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
    small = converted(small, "RGB" if is_opaque else "RGBA")  # as training sees it
    stream = io.BytesIO()
    kind = "JPEG" if is_opaque and not is_tiny else "PNG"
    small.save(stream, kind, quality=85)
    return stream.getvalue(), f"image/{kind.lower()}"


def damaged_fields(index: ShardIndex, local_index: int, sample: Mapping[str, Any]) -> list[str]:
    """Return the fields of a sample whose bytes do not have the checksum in the index.

    Args:
        index: The index of the shard; without checksums of members, no damage is found.
        local_index: The position of the sample in the shard.
        sample: Its fields, undecoded; those that it lacks are not compared.
    """
    if not len(index.payload_crcs):
        return []
    crc32 = fastest_crc32()
    return [
        field
        for field, member in index.members(local_index).items()
        if field in sample and index.payload_crcs[member] != crc32(sample[field])
    ]


def damage_text(fields: list[str]) -> str:
    """Return a sentence that names the damaged fields of a sample; ``""`` if there are none."""
    if not fields:
        return ""
    return printable(
        f"the bytes of {' and '.join(fields)} are not those that the index describes: they were "
        "damaged after they were indexed, or the shard was written again and its index was not; "
        "`wids verify` compares all samples"
    )


_MAX_PICTURE_NBYTES: Final = 4_000_000
_MAX_TEXTS: Final = 3


def card_fields(sizes: Mapping[str, int], order: Sequence[str], picture: str = "") -> list[str]:
    """Choose fields that show what a sample is: one picture and a few texts, all of them small.

    Args:
        sizes: The lengths of the fields of the sample.
        order: All fields of the dataset, those to prefer first.
        picture: The picture to prefer to all others, if the sample has it.
    """
    small = [field for field, nbytes in sizes.items() if is_small(field, nbytes)]
    small = preferred(small, order, picture)
    pictures = [field for field in small if codecs.extension(field) in codecs.IMAGE_EXTENSIONS]
    texts = [field for field in small if field not in pictures]
    return [*pictures[:1], *texts[:_MAX_TEXTS]]


def preferred(fields: Iterable[str], order: Sequence[str], picture: str) -> list[str]:
    """Return fields in an order: first a picture, and last those that are not in the order."""
    ranks = {field: rank for rank, field in enumerate(order)}
    return sorted(fields, key=lambda field: (field != picture, ranks.get(field, len(ranks))))


def is_small(field: str, nbytes: int) -> bool:
    """Return whether a field of this length is small enough to be read for a preview."""
    kind = codecs.extension(field)
    if kind in codecs.IMAGE_EXTENSIONS:
        return nbytes <= _MAX_PICTURE_NBYTES
    return kind in codecs.TEXT_EXTENSIONS and nbytes <= codecs.MAX_TEXT_NBYTES


def field_sizes(index: ShardIndex, local_index: int) -> dict[str, int]:
    """Return the fields of one sample with their lengths in bytes."""
    members = index.members(local_index)
    return {field: int(index.sizes[member]) for field, member in members.items()}


_MAX_S: Final = 3.0
"""Longest time that reading the header of a field may take."""


def media_facts(field: str, file: IO[bytes]) -> str:
    """Return length and rate of audio, or length, size and rate of video; ``""`` for others.

    Args:
        field: The name of the field.
        file: Its bytes, as a file that can seek.

    Raises:
        ModuleNotFoundError: The package that reads such fields is not installed.
        Exception: It is neither; any type.
    """
    kind = codecs.media_kind(field)
    if kind == "audio":
        from wids.shards.fields.audio import audio_facts

        rate, num_channels, length_s = audio_facts(file)
        return f"{length_s:.1f} s, {rate:,} Hz, {count_text(num_channels, 'channel')}"
    if kind == "video":
        from wids.shards.fields.video import VideoReader

        with VideoReader(file) as video:
            size = f"{video.width} x {video.height}"
            return f"{video.duration_s:.1f} s, {size}, {video.rate:g} frames per second"
    return ""


def facts_of_file(field: str, opened: Callable[[], IO[bytes]]) -> str:
    """Return the same for the file that a function opens.

    ``""`` for one that cannot be read within a few seconds, or has no reader.

    Raises:
        ValueError: It is damaged, or takes too long; the message has the reason.
    """
    if not codecs.media_kind(field):
        return ""
    try:
        return decoded(partial(within_s, _MAX_S, lambda: media_facts(field, opened())), 0)
    except (ImportError, OSError, BusyError, RefusedError):  # absent, remote, or too slow
        return ""
    except Exception as error:
        raise ValueError(f"not decoded: {_reason(error)}") from error
