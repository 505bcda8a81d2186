"""Images → PIL images, arrays and tensors → images."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from conftest import raises
from PIL import Image

from wids.errors import DecodeError
from wids.shards.fields.decode import Decoder
from wids.shards.fields.encode import encode

FLOATS, BYTES = (np.float32, torch.float32), (np.uint8, torch.uint8)


def image_bytes(mode: str, form: str, size: tuple[int, int] = (5, 3)) -> bytes:
    values = np.arange(size[0] * size[1] * 4, dtype=np.uint8)
    image = Image.frombytes("RGBA", size, values.tobytes()).convert(mode)
    stream = io.BytesIO()
    image.save(stream, form)
    return stream.getvalue()


@pytest.mark.parametrize("extension", ["jpg", "jpeg", "png", "webp", "JPG", "seg.Png"])
def test_images_are_loaded(extension: str) -> None:
    """Each format becomes a loaded PIL image, an array or a tensor; case does not matter."""
    form = extension.rsplit(".", maxsplit=1)[-1].upper().replace("JPG", "JPEG")
    data = image_bytes("RGB", form)

    def decoded(images: Any) -> Any:
        return Decoder(images)({"." + extension: data})["." + extension]

    image, array, tensor = decoded("PIL"), decoded("numpy"), decoded("torch")
    assert image.size == (5, 3)
    np.testing.assert_array_equal(array, np.asarray(image))
    assert (array.shape, array.dtype) == ((3, 5, 3), np.uint8)
    assert (tuple(tensor.shape), tensor.dtype) == ((3, 3, 5), torch.uint8)
    np.testing.assert_array_equal(tensor.permute(1, 2, 0).numpy(), array)


@pytest.mark.parametrize(
    ("mode", "numpy_shape", "torch_shape"),
    [
        ("L", (3, 5), (1, 3, 5)),
        ("RGB", (3, 5, 3), (3, 3, 5)),
        ("RGBA", (3, 5, 4), (4, 3, 5)),
        ("P", (3, 5, 4), (4, 3, 5)),
        ("LA", (3, 5, 4), (4, 3, 5)),
        ("1", (3, 5, 3), (3, 3, 5)),
    ],
)
def test_image_modes(mode: str, numpy_shape: tuple[int, ...], torch_shape: tuple[int, ...]) -> None:
    """Grey, RGB and RGBA stay as they are; palettes and other modes become RGB or RGBA."""
    data = image_bytes(mode, "PNG")

    assert Decoder("numpy")({".png": data})[".png"].shape == numpy_shape
    assert tuple(Decoder("torch")({".png": data})[".png"].shape) == torch_shape


def test_sixteen_bit_grey_is_kept() -> None:
    """A 16-bit grey image keeps its values."""
    values = np.array([[0, 1, 65535]], np.uint16)
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, "PNG")

    found = Decoder("numpy")({".png": stream.getvalue()})[".png"]

    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("field", [".ppm", ".pgm", ".tiff", ".png"])
def test_deep_grey_is_not_clipped(field: str) -> None:
    """16-bit grey keeps its values in every mode that Pillow opens it in."""
    values = np.array([[0, 255, 256, 40_000, 65_535]], np.uint16)
    found = Decoder("numpy")({field: encode(field, values)})[field]
    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, values)


def test_floating_grey_is_kept() -> None:
    """A TIFF of floats or of 32-bit integers keeps its values."""
    for values in (np.array([[0.5, 1e9]], np.float32), np.array([[-1, 1 << 30]], np.int32)):
        stream = io.BytesIO()
        Image.fromarray(values).save(stream, "TIFF")
        found = Decoder("numpy")({".tiff": stream})[".tiff"]
        np.testing.assert_array_equal(found, values)


def test_unknown_target_is_refused() -> None:
    """The error lists what images can become."""
    with raises(ValueError, 'images: expected "PIL"', "torchrgb8", "found 'jax'"):
        Decoder("jax")
    with raises(ValueError, "found 3"):
        Decoder(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "LA"])
@pytest.mark.parametrize(
    ("images", "shape", "dtypes"),
    [
        ("l8", (3, 5), BYTES),
        ("rgb8", (3, 5, 3), BYTES),
        ("rgba8", (3, 5, 4), BYTES),
        ("l", (3, 5), FLOATS),
        ("rgb", (3, 5, 3), FLOATS),
        ("rgba", (3, 5, 4), FLOATS),
        ("torchl8", (3, 5), BYTES),
        ("torchrgb8", (3, 3, 5), BYTES),
        ("torchrgba8", (4, 3, 5), BYTES),
        ("torchl", (3, 5), FLOATS),
        ("torchrgb", (3, 3, 5), FLOATS),
        ("torchrgba", (4, 3, 5), FLOATS),
    ],
)
def test_specifications_of_webdataset(
    mode: str, images: str, shape: tuple[int, ...], dtypes: tuple[Any, Any]
) -> None:
    """A name of webdataset's means one shape and type for all images; floats are from 0 to 1."""
    data = image_bytes(mode, "PNG")

    found = Decoder(images)({".png": data})[".png"]

    assert (tuple(found.shape), found.dtype) == (shape, dtypes[images.startswith("torch")])
    stored = Image.open(io.BytesIO(data))
    if mode == "P":
        stored = stored.convert("RGBA")  # or Pillow warns
    expected = np.asarray(stored.convert(images.removeprefix("torch").removesuffix("8").upper()))
    if images.startswith("torch") and expected.ndim == 3:
        expected = expected.transpose(2, 0, 1)
    scale = 255 if dtypes is FLOATS else 1
    np.testing.assert_allclose(np.asarray(found), expected / np.float32(scale), rtol=1e-6)


@pytest.mark.parametrize(
    ("images", "mode"), [("pil", "RGB"), ("pill", "L"), ("pilrgb", "RGB"), ("pilrgba", "RGBA")]
)
def test_specifications_of_images(images: str, mode: str) -> None:
    """``pil`` with a mode means PIL images of that mode."""
    assert Decoder(images)({".png": image_bytes("P", "PNG")})[".png"].mode == mode


def test_sixteen_bits_are_scaled_to_eight() -> None:
    """Names of webdataset's scale 16-bit grey instead of clipping it at 255."""
    values = np.array([[0, 1, 257, 32768, 65535]], np.uint16)
    data = encode(".png", values)

    assert Decoder("l8")({".png": data})[".png"].tolist() == [[0, 0, 1, 127, 255]]
    assert Decoder("rgb")({".png": data})[".png"].max() == 1
    np.testing.assert_array_equal(Decoder("numpy")({".png": data})[".png"], values)


def test_other_image_formats_are_refused() -> None:
    """PostScript in a field called ``.jpg`` would start another program (SEC-5)."""
    stream = io.BytesIO()
    Image.new("RGB", (4, 4)).save(stream, "EPS")

    with raises(DecodeError, "UnidentifiedImageError"):
        Decoder()({".jpg": stream.getvalue()})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (".webp", np.zeros((2, 2), np.uint16)),
        (".gif", np.zeros((2, 2), np.uint16)),
        (".bmp", np.zeros((2, 2, 4), np.uint8)),
        (".ppm", np.zeros((2, 2, 4), np.uint8)),
    ],
)
def test_lossy_modes_are_refused(field: str, value: Any) -> None:
    """A format that would silently drop bits or alpha raises instead."""
    with raises(ValueError, f'field "{field}"', "cannot store all of an image of mode"):
        encode(field, value)


def test_tensors_and_grey_arrays_are_images() -> None:
    """A tensor has its channels first, an array last; one channel is grey."""
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    data = encode(".png", pixels)
    assert encode(".png", torch.from_numpy(pixels).permute(2, 0, 1)) == data
    assert encode(".png", pixels / 255) == data
    assert encode(".png", pixels[:, :, :1]) == encode(".png", pixels[:, :, 0])
