"""Fields → values → fields."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from conftest import raises
from PIL import Image

from wids.decode import Decoder
from wids.encode import encode
from wids.errors import DecodeError


def picture(mode: str, form: str, size: tuple[int, int] = (5, 3)) -> bytes:
    values = np.arange(size[0] * size[1] * 4, dtype=np.uint8)
    image = Image.frombytes("RGBA", size, values.tobytes()).convert(mode)
    stream = io.BytesIO()
    image.save(stream, form)
    return stream.getvalue()


def test_fields_are_decoded_by_extension_in_any_case() -> None:
    """The last extension decides, in any case; unknown and private names stay as they are."""
    array = io.BytesIO()
    np.save(array, np.eye(2))
    sample = {
        ".txt": io.BytesIO("é".encode()),
        ".CLS": b"7",
        ".meta.JSON": memoryview(b'{"a": [1]}'),
        ".npy": array,
        ".bin": b"raw",
        "__key__": "k.txt",
    }

    decoded = Decoder()(sample)

    assert decoded is sample
    np.testing.assert_array_equal(decoded.pop(".npy"), np.eye(2))
    assert decoded == {
        ".txt": "é",
        ".CLS": 7,
        ".meta.JSON": {"a": [1]},
        ".bin": b"raw",
        "__key__": "k.txt",
    }


@pytest.mark.parametrize("extension", ["jpg", "jpeg", "png", "webp", "JPG", "seg.Png"])
def test_pictures_are_loaded(extension: str) -> None:
    """Each kind of picture, in any case, is a loaded PIL image, an array or a tensor."""
    form = extension.rsplit(".", maxsplit=1)[-1].upper().replace("JPG", "JPEG")
    data = picture("RGB", form)

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
def test_picture_modes(
    mode: str, numpy_shape: tuple[int, ...], torch_shape: tuple[int, ...]
) -> None:
    """Grey, RGB and RGBA are kept; palettes and the rest become RGB or RGBA."""
    data = picture(mode, "PNG")

    assert Decoder("numpy")({".png": data})[".png"].shape == numpy_shape
    assert tuple(Decoder("torch")({".png": data})[".png"].shape) == torch_shape


def test_sixteen_bit_grey_is_kept() -> None:
    """A 16-bit grey picture keeps its values."""
    values = np.array([[0, 1, 65535]], np.uint16)
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, "PNG")

    found = Decoder("numpy")({".png": stream.getvalue()})[".png"]

    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize(
    ("field", "data", "reason"),
    [
        (".txt", b"\xff", "UnicodeDecodeError"),
        (".cls", b"cat", "ValueError"),
        (".json", b"{", "JSONDecodeError"),
        (".npy", b"no", "ValueError"),
        (".jpg", b"no", "UnidentifiedImageError"),
        (".png", picture("RGB", "PNG", (200, 200))[:-400], "OSError"),
    ],
)
def test_corrupt_field_is_named(field: str, data: bytes, reason: str) -> None:
    """The error names the field, what it should be and why it is not."""
    with raises(
        DecodeError, f'field "{field}": expected {field[1:]} data, found {len(data)} bytes', reason
    ):
        Decoder()({field: data})


def test_pickled_arrays_are_refused() -> None:
    """An array of objects would execute code (SEC-5)."""
    stream = io.BytesIO()
    np.save(stream, np.array([{}], object), allow_pickle=True)

    with raises(DecodeError, "allow_pickle=False"):
        Decoder()({".npy": stream})


def test_unknown_target_is_refused() -> None:
    """There are three targets for pictures."""
    with raises(ValueError, 'images: expected "PIL", "numpy" or "torch", found \'jax\''):
        Decoder("jax")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (".txt", "é\n"),
        (".cls", -3),
        (".json", {"a": [1, 2.5, None, "é"]}),
        (".npy", np.arange(6, dtype=np.int16).reshape(2, 3)),
        (".png", np.arange(12, dtype=np.uint8).reshape(2, 2, 3)),
    ],
)
def test_lossless_types_come_back(field: str, value: Any) -> None:
    """Encode, then decode, gives the value back."""
    found = Decoder("numpy")({field: encode(field, value)})[field]

    np.testing.assert_equal(found, value)
    assert type(found) is type(value)


def test_bytes_are_stored_as_they_are() -> None:
    """Bytes need no encoder; other values do."""
    assert encode(".bin", bytearray(b"x")) == b"x"
    assert encode(".jpg", b"x") == b"x"
    assert json.loads(encode(".json", "x")) == "x"
    with raises(TypeError, 'field ".bin": expected bytes, found int; there are encoders for txt'):
        encode(".bin", 3)
