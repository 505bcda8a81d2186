"""Decode fields by their names.

The text after the field's last dot, in any case, chooses the decoder: ``.jpg``, ``.JPG`` and
``.seg.jpg`` are decoded alike. If ``.gz`` follows, the bytes are decompressed first. A field with
an extension that is not in the table of `wids.shards.fields.codecs` is left unchanged. Decoding
never executes the data, unless the caller allows pickle.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from wids.errors import DecodeError
from wids.shards.fields import safety
from wids.shards.fields.codecs import (
    BY_EXTENSION,
    CHOSEN_KINDS,
    Codec,
    Decode,
    extension,
    find,
    how_to_install,
)
from wids.shards.fields.images import image_decoder
from wids.shards.fields.safety import RefusedError, unzip
from wids.storage import stages

if TYPE_CHECKING:
    from numpy.random import Generator

    from wids.shards.fields.audio import Audio
    from wids.shards.fields.video import Clips


class Decoder:
    """Decode the fields of a sample by extension.

    A decoder is a callable from a sample to a sample, so it can stand in a list of
    ``transformations``. It changes the sample that it is given and returns it; values that are
    decoded already stay as they are. It may be called from several threads at once.

    ``txt text transcript`` become text; ``cls cls2 class count index inx id`` an integer; ``json
    jsn`` their value, and ``jsonl`` a list of values; ``npy`` an array, ``npz`` a dict of arrays,
    ``ten tenbin tb`` a list of arrays; ``mp msg msgpack`` and ``cbor`` their value; ``pt pth`` and
    ``safetensors`` tensors. Images (``jpg jpeg png ppm pgm pbm pnm webp gif bmp tif tiff``) become
    what ``images`` names:

    ================================= ================ =============== ===========================
    ``images``                        type             values          shape
    ================================= ================ =============== ===========================
    ``"PIL"``                         PIL.Image.Image  as stored
    ``"pill" "pilrgb" "pilrgba"``     PIL.Image.Image  uint8
    ``"pil"``                         as ``"pilrgb"``
    ``"numpy"``                       numpy.ndarray    uint8, uint16   (h, w) or (h, w, channels)
    ``"l8"``                          numpy.ndarray    uint8           (h, w)
    ``"rgb8" "rgba8"``                numpy.ndarray    uint8           (h, w, 3 or 4)
    ``"l" "rgb" "rgba"``              numpy.ndarray    float32, 0..1   (h, w) or (h, w, 3 or 4)
    ``"torch"`` (not webdataset's)    torch.Tensor     uint8, uint16   (channels, h, w)
    ``"torchl8"``                     torch.Tensor     uint8           (h, w)
    ``"torchrgb8" "torchrgba8"``      torch.Tensor     uint8           (3 or 4, h, w)
    ``"torchl" "torchrgb"`` …         torch.Tensor     float32, 0..1   (h, w) or (3 or 4, h, w)
    ================================= ================ =============== ===========================

    ``"numpy"`` and ``"torch"`` keep grey, RGB and RGBA as they are, and 16-bit grey (32-bit grey as
    int32 or float32); palettes, CMYK and other modes become RGB, or RGBA if they are transparent.
    Tensors of three channels are views whose memory is ``torch.channels_last``. With the extra
    ``wids[turbo]`` arrays and tensors of JPEGs are decoded faster, to the same pixels.
    The other names are webdataset's and have its values, except for grey of more than 8 bits, which
    is scaled here and clipped at 255 there. For webdataset's values of its ``"torch"`` write
    ``"torchrgb"``; for those of deep grey in PNG, ``decoders={"png":
    functools.partial(webdataset.imagehandler("rgb8"), "png")}``.

    Args:
        images: What images become.
        decoders: Your own decoders by extension, such as ``{"flac": decode_flac}``. They take the
            bytes of the field and take precedence over the table. A key with dots, ``"seg.png"``,
            matches fields that end in it; the longest match wins. None instead of a callable leaves
            fields as they are.
        allow_pickle: Whether to decode ``pkl pickle pyd``, which executes the code in them.
        max_nbytes: Largest decompressed size in bytes of ``.gz``, npz and pt. None for 1 GiB,
            and for 64 MB in a ``.gz`` of json, jsonl, msgpack or cbor, whose values take many times
            the memory of their bytes.
        audio: What ``wav flac mp3 ogg opus m4a`` become: ``"torch"`` or ``"numpy"`` for all samples
            and their rate, ``(samples, rate)``, or a `wids.Audio` for a part, another rate or one
            channel. None leaves them as bytes.
        video: What ``mp4 m4v mov mkv webm avi ogv`` become: ``"frames"`` for all frames and audio
            as webdataset decodes them, ``"reader"`` for a `wids.VideoReader`, or a `wids.Clips`.
            None leaves them as bytes.
        at_least: Height and width in pixels that a picture needs. A JPEG is decoded at 1/2, 1/4 or
            1/8 of its size, the smallest that is at least as high and as wide, in a fraction of the
            time; JPEGs that are smaller, and other formats, keep their size.

    Raises:
        ValueError: ``images``, ``audio`` or ``video`` is not one of the names above, or
            ``at_least`` is not two positive integers.

    Calling the decoder raises `DecodeError`, with the name of the field, if a field cannot be
    decoded, if it is a pickle and ``allow_pickle`` is False, or if its decoder needs a package that
    is not installed.

    Example:
        >>> import wids
        >>> decode = wids.Decoder(images="numpy", decoders={"upper.txt": bytes.upper})
        >>> decode({"__key__": "17", ".cls": b"3", ".txt": b"a cat", ".upper.txt": b"dog"})
        {'__key__': '17', '.cls': 3, '.txt': 'a cat', '.upper.txt': b'DOG'}
    """

    def __init__(
        self,
        images: str = "PIL",
        *,
        decoders: Mapping[str, Decode | None] | None = None,
        allow_pickle: bool = False,
        max_nbytes: int | None = None,
        at_least: tuple[int, int] | None = None,
        audio: str | Audio | None = None,
        video: str | Clips | None = None,
    ) -> None:
        # Looked up now, so that a misspelt name raises here and not in a worker.
        chosen: dict[str, Decode] = {"image": image_decoder(images, at_least)}
        if audio is not None:
            from wids.shards.fields.audio import audio_decoder

            chosen["audio"] = audio_decoder(audio, max_nbytes)
        if video is not None:
            from wids.shards.fields.video import video_decoder

            chosen["video"] = video_decoder(video, max_nbytes)
        self.images = images
        self.audio = audio
        self.video = video
        self.at_least = at_least
        self.allow_pickle = allow_pickle
        self.max_nbytes = max_nbytes
        self.table: Mapping[str, Decode | None] = {
            **{
                extension: self._decode_of(codec, chosen)
                for extension, codec in BY_EXTENSION.items()
            },
            # Last, so that they replace entries of the table.
            **{name.lower().removeprefix("."): f for name, f in (decoders or {}).items()},
        }

    def __repr__(self) -> str:
        options = {
            "audio": self.audio,
            "video": self.video,
            "at_least": self.at_least,
            "allow_pickle": self.allow_pickle or None,
            "max_nbytes": self.max_nbytes,
        }
        stated = (f", {name}={value!r}" for name, value in options.items() if value is not None)
        return f"Decoder(images={self.images!r}{''.join(stated)})"

    def __call__(
        self, sample: dict[str, Any], generator: Generator | None = None
    ) -> dict[str, Any]:
        """Decode the fields of a sample in place and return it.

        Args:
            sample: The sample.
            generator: Chooses random parts; ``dataset.map(decoder, seed=…)`` passes it.
        """
        # Replacing values, unlike adding keys, is allowed while iterating over a dict.
        for field, value in sample.items():
            if field[:1] == ".":
                name = field.lower()
                is_zipped = name.endswith(".gz")
                decode = find(name[:-3] if is_zipped else name, self.table)
                if decode is not None:
                    if generator is not None and getattr(decode, "is_random", False):
                        random_part: Callable[..., Any] = decode
                        decode = partial(random_part, generator=generator)
                    if is_zipped:
                        decode = partial(_unzipped_and_decoded, decode, self._limit(name[:-3]))
                    sample[field] = _decoded(decode, field, value)
        return sample

    def _decode_of(self, codec: Codec, chosen: Mapping[str, Decode]) -> Decode | None:
        """Return how the fields of a codec are decoded; None if they stay bytes."""
        if codec.kind in CHOSEN_KINDS:
            return chosen.get(codec.kind)
        if codec.kind == "pickle" and not self.allow_pickle:
            return _refuse_pickle
        if codec.is_archive and self.max_nbytes is not None:
            decode: Callable[..., Any] = codec.decode
            # partial, not a closure: spawned workers receive the decoder by pickle.
            return partial(decode, max_nbytes=self.max_nbytes)
        return codec.decode

    def _limit(self, name: str) -> int:
        """Return the limit for a ``.gz`` field, given its name without that ending."""
        if self.max_nbytes is not None:
            return self.max_nbytes
        codec = BY_EXTENSION.get(extension(name))
        if codec is not None and codec.is_structure:
            return safety.MAX_UNZIPPED_STRUCTURE_NBYTES
        return safety.MAX_UNZIPPED_NBYTES


stages.of_type[Decoder] = stages.DECODE


def named_decoder(name: str, *, allow_pickle: bool = False) -> Decoder:
    """Return the decoder of a name among ``transformations``.

    Args:
        name: What pictures become; or ``"torch_audio"`` or ``"torch_video"``, as webdataset has
            them, which decode only audio to tensors, or only video to all of its frames.
        allow_pickle: As for `Decoder`.

    Raises:
        ValueError: The name is unknown.
    """
    if name == "torch_audio":
        return Decoder(audio="torch", decoders=_NO_OTHER)
    if name == "torch_video":
        return Decoder(video="frames", decoders=_NO_OTHER)
    return Decoder(name, allow_pickle=allow_pickle)


_NO_OTHER: Final = {name: None for name, codec in BY_EXTENSION.items() if not codec.media_type}


def _refuse_pickle(_: bytes) -> Any:
    raise RefusedError(
        "expected data, found a pickle, which executes code when it is read; pass "
        "allow_pickle=True if you trust its author, or leave the field out with `fields`"
    )


def _unzipped_and_decoded(decode: Decode, max_nbytes: int, data: bytes) -> Any:
    return decode(unzip(data, max_nbytes))


def _decoded(decode: Decode, field: str, value: Any) -> Any:
    if isinstance(value, io.BytesIO):
        data = value.getvalue()  # not `read`: another transformation may have read from it
    elif isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
    else:  # decoded by an earlier transformation
        return value
    try:
        return decode(data)
    except RefusedError as error:  # the bytes are not at fault, so the message omits them
        raise DecodeError(f'field "{field}": {error}', field=field) from None
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise DecodeError(
            f'field "{field}": its decoder needs a package that is not installed ({error.name}); '
            f"{how_to_install(package)}",
            field=field,
        ) from error
    except Exception as error:
        raise DecodeError(
            f'field "{field}": expected {extension(field)} data, found {len(data)} bytes that the '
            f"decoder refuses: {type(error).__name__}: {error}",
            field=field,
        ) from error
