"""JPEG → pixels, with and without simplejpeg, whole and at a smaller size."""

from __future__ import annotations

import importlib.util
import io
import pickle
import random
import struct
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import need, optional, raises, write_tar
from PIL import Image
from torch.utils.data import default_collate

import wids
from wids.errors import DecodeError
from wids.shards.fields import images as jpeg
from wids.shards.fields.decode import Decoder
from wids.shards.fields.images import jpeg_shrink, turbo_pixels

NAMES = ("numpy", "torch", "rgb8", "l8", "rgba8", "rgb", "torchrgb", "torchrgb8", "torchl")


def jpeg_bytes(mode: str = "RGB", size: tuple[int, int] = (37, 29), **options: Any) -> bytes:
    """Return a JPEG of smooth colours."""
    values = np.random.default_rng(1).integers(0, 255, (6, 8, 3), np.uint8)
    stream = io.BytesIO()
    image = Image.fromarray(values).resize(size, Image.Resampling.BICUBIC).convert(mode)
    image.save(stream, "JPEG", **options)
    return stream.getvalue()


def turned() -> bytes:
    """A picture that viewers turn by 90 degrees."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return jpeg_bytes(exif=exif)


def ycck() -> bytes:
    """Colours for print, as Photoshop stores them."""
    simplejpeg = optional("simplejpeg")
    inks = np.asarray(Image.open(io.BytesIO(jpeg_bytes("CMYK"))))
    data: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(inks), colorspace="CMYK")
    assert simplejpeg.decode_jpeg_header(data)[2] == "YCCK"
    return data


TURBO: dict[str, Callable[[], bytes]] = {
    "grey": lambda: jpeg_bytes("L"),
    "4:2:0": lambda: jpeg_bytes(subsampling="4:2:0"),
    "4:2:2": lambda: jpeg_bytes(subsampling="4:2:2"),
    "4:4:4": lambda: jpeg_bytes(subsampling="4:4:4", quality=100),
    "progressive": lambda: jpeg_bytes(progressive=True),
    "optimized": lambda: jpeg_bytes(optimize=True, quality=20),
    "restarts": lambda: jpeg_bytes(restart_marker_blocks=1),
    "RGB": lambda: jpeg_bytes(keep_rgb=True),
    "EXIF": turned,
    "1 by 1": lambda: jpeg_bytes(size=(1, 1)),
    "1 wide": lambda: jpeg_bytes(size=(1, 40)),
    "1 high": lambda: jpeg_bytes(size=(40, 1)),
    "with more behind": lambda: jpeg_bytes() + jpeg_bytes("L"),
}
"""Pictures that simplejpeg decodes."""

OTHERS: dict[str, Callable[[], bytes]] = {
    "CMYK": lambda: jpeg_bytes("CMYK"),
    "YCCK": ycck,
}
"""Pictures that Pillow decodes in any case."""


@pytest.fixture
def without_turbo(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Any]:
    """Return a function that calls another as if simplejpeg were not installed."""

    def call(function: Callable[[], Any]) -> Any:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "simplejpeg", None)
            jpeg._simplejpeg.cache_clear()
            try:
                return function()
            finally:
                jpeg._simplejpeg.cache_clear()

    return call


def decoded(data: bytes, name: str, at_least: tuple[int, int] | None = None) -> Any:
    """Return the value of a picture, or its error."""
    try:
        return Decoder(name, at_least=at_least)({".jpg": data})[".jpg"]
    except DecodeError as error:
        return str(error)


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if not isinstance(found, str):
        found, expected = np.asarray(found), np.asarray(expected)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", [*TURBO, *OTHERS])
def test_pixels_do_not_depend_on_simplejpeg(
    kind: str, without_turbo: Callable[[Callable[[], Any]], Any]
) -> None:
    """Every kind of JPEG has the pixels of Pillow, also where simplejpeg decodes it."""
    need(importlib.util.find_spec("simplejpeg"), "pip install simplejpeg")
    data = (TURBO | OTHERS)[kind]()
    assert (turbo_pixels(data) is not None) == (kind in TURBO)
    for name in NAMES:
        for at_least in (None, (9, 9), (10, 14)):
            found = decoded(data, name, at_least)
            assert not isinstance(found, str)
            assert_same(found, without_turbo(lambda n=name, a=at_least: decoded(data, n, a)))


def test_orientation_is_not_applied() -> None:
    """EXIF does not turn a picture: boxes and masks beside it fit it as it is."""
    for name in ("PIL", "numpy", "torch"):
        assert_same(decoded(turned(), name), decoded(jpeg_bytes(), name))


@pytest.mark.parametrize("kind", ["grey", "4:2:0", "progressive", "CMYK", "restarts"])
def test_damaged_pictures_do_not_depend_on_simplejpeg(
    kind: str, without_turbo: Callable[[Callable[[], Any]], Any]
) -> None:
    """Cut anywhere, or with other bytes in it: the same pixels, or the same error."""
    data = (TURBO | OTHERS)[kind]()
    chance = random.Random(0)
    cases = [data[:length] for length in range(0, len(data), 37)]
    for _ in range(60):
        changed = bytearray(data)
        for _ in range(chance.choice((1, 2, 5))):
            changed[chance.randrange(len(data))] = chance.randrange(256)
        cases.append(bytes(changed))
    found = [decoded(case, "numpy", (5, 5)) for case in cases]
    expected = without_turbo(lambda: [decoded(case, "numpy", (5, 5)) for case in cases])
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)
    errors = [text for text in found if isinstance(text, str)]
    assert all(text.startswith('field ".jpg": expected jpg data') for text in errors)
    assert not any(" at 0x" in text for text in errors)
    assert 10 < len(errors) < len(cases)


@pytest.mark.parametrize("images", ["PIL", "numpy", "torch", "torchrgb"])
def test_damaged_pictures_name_their_sample(tmp_path: Path, images: str) -> None:
    """A picture is decoded when its sample is read, where the error has its name."""
    data = jpeg_bytes(size=(200, 200))
    members = [("s0.jpg", data), ("s1.jpg", data[: len(data) // 2])]
    tar = write_tar(tmp_path / "train.tar", members)
    dataset = wids.ShardListDataset([str(tar)], transformations=images)
    with raises(DecodeError, "train.tar", 'sample "s1" (index 1)', 'field ".jpg"', "truncated"):
        dataset[1]
    skipping = wids.ShardListDataset([str(tar)], transformations=images, on_error="skip")
    with pytest.warns(UserWarning, match="s1"):
        assert [sample["__key__"] for sample in skipping.__getitems__([0, 1])] == ["s0"]


@pytest.mark.parametrize(
    "size",
    [(700, 501), (1, 60_000), (60_000, 3), pytest.param((4928, 3264), marks=pytest.mark.long)],
)
def test_large_pictures(
    size: tuple[int, int], without_turbo: Callable[[Callable[[], Any]], Any]
) -> None:
    """Pictures that are copied in strips without simplejpeg have the same pixels."""
    data = jpeg_bytes(size=size)
    found = decoded(data, "numpy")
    np.testing.assert_array_equal(found, np.asarray(Image.open(io.BytesIO(data))))
    assert_same(found, without_turbo(lambda: decoded(data, "numpy")))
    assert_same(decoded(data, "l8"), np.asarray(Image.open(io.BytesIO(data)).convert("L")))


def test_too_many_pixels_are_refused(without_turbo: Callable[[Callable[[], Any]], Any]) -> None:
    """A small file that claims 4 billion pixels takes no memory; Pillow's limit holds."""
    data = bytearray(jpeg_bytes())
    struct.pack_into(">2H", data, data.index(b"\xff\xc0") + 5, 65500, 65500)
    for at_least in (None, (10, 10)):
        found = decoded(bytes(data), "torch", at_least)
        assert "DecompressionBombError" in found
        assert found == without_turbo(lambda: decoded(bytes(data), "torch"))


def test_lower_limit_of_pillow_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that lowers ``Image.MAX_IMAGE_PIXELS`` lowers it for all decoders."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    assert "DecompressionBombError" in decoded(jpeg_bytes(), "numpy")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert decoded(jpeg_bytes(), "numpy").shape == (29, 37, 3)


@pytest.mark.parametrize(
    ("size", "at_least", "shape"),
    [
        ((1500, 2250), (512, 512), (750, 1125)),
        ((150, 225), (38, 38), (38, 57)),
        ((150, 225), (19, 29), (19, 29)),
        ((150, 225), (19, 30), (38, 57)),
        ((150, 225), (75, 113), (75, 113)),
        ((150, 225), (76, 1), (150, 225)),
        ((29, 37), (100, 100), (29, 37)),
        ((29, 37), (15, 19), (15, 19)),
        ((29, 37), (1, 1), (4, 5)),
        ((7, 37), (1, 1), (2, 10)),
        ((1, 1), (1, 1), (1, 1)),
    ],
)
def test_pictures_at_size(
    size: tuple[int, int], at_least: tuple[int, int], shape: tuple[int, int]
) -> None:
    """A JPEG is decoded at the smallest of 1/1 to 1/8 that is not smaller."""
    data = jpeg_bytes(size=size[::-1])
    assert jpeg_shrink(size, at_least) in (1, 2, 4, 8)
    assert decoded(data, "torch", at_least).shape == (3, *shape)
    assert decoded(data, "rgb8", at_least).shape == (*shape, 3)
    assert decoded(data, "PIL", at_least).size == shape[::-1]
    assert decoded(data, "pill", at_least).size == shape[::-1]


def test_small_pictures_look_like_large_ones() -> None:
    """What is decoded at half the size is the picture, not its corner."""
    data = jpeg_bytes(size=(640, 480), subsampling="4:4:4")
    whole = Image.open(io.BytesIO(data)).reduce(2)
    half = decoded(data, "numpy", (240, 320))
    assert np.abs(np.asarray(whole).astype(int) - half).mean() < 2


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_other_formats_stay_whole(form: str) -> None:
    """Formats that cannot be decoded at a smaller size keep their size."""
    stream = io.BytesIO()
    Image.new("RGB", (64, 48)).save(stream, form)
    for name in ("PIL", "numpy", "torch", "rgb8"):
        picture = decoded(stream.getvalue(), name, (6, 6))
        assert (picture.size if name == "PIL" else picture.shape) in [
            *((64, 48), (48, 64), (48, 64, 3), (48, 64, 4), (3, 48, 64), (4, 48, 64))
        ]


@pytest.mark.parametrize("size", [256, (0, 5), (5, -1), (1.5, 2), (5,), (1, 2, 3), "ab", None])
def test_sizes_are_checked(size: Any) -> None:
    """A size that is not (height, width) is an error at once, which shows it."""
    if size is None:
        assert Decoder("numpy", at_least=None).at_least is None
        return
    with raises(ValueError, "at_least: expected (height, width) in pixels, found", repr(size)):
        Decoder("torch", at_least=size)


def test_tensors_are_channels_last() -> None:
    """Tensors are writable views of (height, width, channels), and collate as usual."""
    tensors = [decoded(jpeg_bytes(), name) for name in ("torch", "torchrgb8", "torchrgb")]
    for tensor in tensors:
        assert tensor.shape == (3, 29, 37)
        assert tensor[None].is_contiguous(memory_format=torch.channels_last)
        tensor[0, 0, 0] = 7
        assert tensor[0, 0, 0] == 7
        batch = default_collate([tensor, tensor])
        assert batch.is_contiguous()
        assert torch.equal(batch[1], tensor)
        assert torch.equal(pickle.loads(pickle.dumps(tensor)), tensor)  # noqa: S301 - made here
    assert decoded(jpeg_bytes("L"), "torch").is_contiguous()
    for name in ("numpy", "rgb8", "rgb"):
        assert decoded(jpeg_bytes(), name).flags.writeable
        assert decoded(jpeg_bytes(), name).flags.c_contiguous


def test_decoders_travel_and_are_shared(
    without_turbo: Callable[[Callable[[], Any]], Any],
) -> None:
    """A decoder with a size can be pickled, and several threads may use it at once."""
    data = jpeg_bytes(size=(300, 200))
    decoder = pickle.loads(pickle.dumps(Decoder("torch", at_least=(50, 50))))  # noqa: S301

    def shapes() -> set[Any]:
        with ThreadPoolExecutor(8) as threads:
            pictures = threads.map(lambda _: decoder({".jpg": data})[".jpg"], range(50))
            return {(*picture.shape, int(picture.sum())) for picture in pictures}

    assert shapes() == without_turbo(shapes)
    assert {shape[:3] for shape in shapes()} == {(3, 50, 75)}
