"""Fields → values → fields."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sys
from typing import Any

import numpy as np
import pytest
import torch
from conftest import raises
from PIL import Image

from wids.errors import DecodeError
from wids.fields import tenbin
from wids.fields.decode import Decoder
from wids.fields.encode import ENCODERS, encode


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
    """The error lists what pictures can become."""
    with raises(ValueError, 'images: expected "PIL"', "torchrgb8", "found 'jax'"):
        Decoder("jax")
    with raises(ValueError, "found 3"):
        Decoder(3)  # type: ignore[arg-type]


FLOATS, BYTES = (np.float32, torch.float32), (np.uint8, torch.uint8)


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
    """Whatever is stored, a specification gives one shape and type; floats are from 0 to 1."""
    data = picture(mode, "PNG")

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
    """``pil`` and a mode give images of that mode."""
    assert Decoder(images)({".png": picture("P", "PNG")})[".png"].mode == mode


def test_sixteen_bits_are_scaled_to_eight() -> None:
    """A specification does not cut off what is brighter than 255."""
    values = np.array([[0, 1, 257, 32768, 65535]], np.uint16)
    data = encode(".png", values)

    assert Decoder("l8")({".png": data})[".png"].tolist() == [[0, 0, 1, 127, 255]]
    assert Decoder("rgb")({".png": data})[".png"].max() == 1
    np.testing.assert_array_equal(Decoder("numpy")({".png": data})[".png"], values)


def test_pictures_of_other_kinds_are_refused() -> None:
    """What claims to be a JPEG and is PostScript would start another program (SEC-5)."""
    stream = io.BytesIO()
    Image.new("RGB", (4, 4)).save(stream, "EPS")

    with raises(DecodeError, "UnidentifiedImageError"):
        Decoder()({".jpg": stream.getvalue()})


@pytest.mark.parametrize("extension", ["pkl", "pickle", "pyd", "PKL", "pkl.gz"])
def test_pickles_are_refused_unless_allowed(extension: str) -> None:
    """The error says how to allow them (SEC-5)."""
    data = pickle.dumps({"a": 1})
    if extension.endswith("gz"):
        data = gzip.compress(data)

    with raises(DecodeError, f'".{extension}"', "executes code", "allow_pickle=True", "`fields`"):
        Decoder()({f".{extension}": data})
    assert Decoder(allow_pickle=True)({f".{extension}": data}) == {f".{extension}": {"a": 1}}


def test_weights_execute_nothing() -> None:
    """A ``.pt`` with anything but tensors and plain values is refused (SEC-5)."""

    class Command:
        def __reduce__(self) -> Any:
            return print, ("executed",)

    stream = io.BytesIO()
    torch.save(Command(), stream)

    with raises(DecodeError, 'field ".pt"', "UnpicklingError"):
        Decoder()({".pt": stream.getvalue()})


def test_gzip_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small field that would fill the memory is an error, as is one that is cut (SEC-12)."""
    monkeypatch.setattr("wids.fields.decode.MAX_UNZIPPED_NBYTES", 1000)
    assert len(Decoder()({".txt.gz": gzip.compress(bytes(1000))})[".txt.gz"]) == 1000
    two = gzip.compress(b"a") + gzip.compress(b"b") + bytes(100)
    assert Decoder()({".txt.gz": two}) == {".txt.gz": "ab"}

    for data, reason in (
        (gzip.compress(bytes(1001)), "longer than 1000 bytes"),
        (gzip.compress(bytes(600)) * 2, "longer than 1000 bytes"),
        (gzip.compress(b"abc")[:-3], "ended before the end-of-stream marker"),
        (b"", "empty"),
        (b"text", "Not a gzipped file"),
    ):
        with raises(DecodeError, 'field ".txt.gz": expected gz data', reason):
            Decoder()({".txt.gz": data})


def test_archives_that_would_fill_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ``.npz`` or a ``.pt`` of zeros is small, and large when read (SEC-12)."""
    arrays = io.BytesIO()
    np.savez_compressed(arrays, a=np.zeros(100_000))
    assert Decoder()({".npz": arrays})[".npz"]["a"].shape == (100_000,)
    monkeypatch.setattr("wids.fields.decode.MAX_UNZIPPED_NBYTES", 1000)
    for field in (".npz", ".pt"):
        with raises(DecodeError, f'field "{field}"', "longer than 1000 bytes"):
            Decoder()({field: arrays})


def test_weights_need_a_torch_that_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2.6 ``weights_only`` could be deceived (SEC-5)."""
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with raises(DecodeError, 'field ".pt"', "torch 2.6 or later", "CVE-2025-32434"):
        Decoder()({".pt": encode(".pt", {"a": torch.zeros(2)})})


@pytest.mark.parametrize("field", [".ppm", ".pgm", ".tiff", ".png"])
def test_deep_grey_is_not_cut_off(field: str) -> None:
    """Grey of 16 bits, in whatever mode Pillow opens it."""
    values = np.array([[0, 255, 256, 40_000, 65_535]], np.uint16)
    found = Decoder("numpy")({field: encode(field, values)})[field]
    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, values)


def test_floating_grey_is_kept() -> None:
    """A TIFF of floats, or of large integers."""
    for values in (np.array([[0.5, 1e9]], np.float32), np.array([[-1, 1 << 30]], np.int32)):
        stream = io.BytesIO()
        Image.fromarray(values).save(stream, "TIFF")
        found = Decoder("numpy")({".tiff": stream})[".tiff"]
        np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (".webp", np.zeros((2, 2), np.uint16)),
        (".gif", np.zeros((2, 2), np.uint16)),
        (".bmp", np.zeros((2, 2, 4), np.uint8)),
        (".ppm", np.zeros((2, 2, 4), np.uint8)),
    ],
)
def test_pictures_that_a_format_would_cut_are_refused(field: str, value: Any) -> None:
    """An error, and not another picture."""
    with raises(ValueError, f'field "{field}"', "would lose some of a picture of mode"):
        encode(field, value)


def test_odd_names_and_keys_come_back() -> None:
    """Maps with keys that are no text, and an array whose name numpy's own writer has not."""
    assert Decoder()({".mp": encode(".mp", {1: 2})}) == {".mp": {1: 2}}
    found = Decoder()({".npz": encode(".npz", {"file": np.arange(3)})})[".npz"]
    assert found["file"].tolist() == [0, 1, 2]


def test_unknown_zipped_fields_stay_as_they_are() -> None:
    """Nothing is decompressed for nobody."""
    assert Decoder()({".bin.gz": b"?", ".gz": b"?"}) == {".bin.gz": b"?", ".gz": b"?"}


def test_decoders_of_your_own() -> None:
    """By extension, in any case, the longest first; None leaves fields alone."""
    decoder = Decoder(
        decoders={"FLAC": len, ".seg.png": lambda _: "mask", "json": None, "txt": bytes.upper}
    )

    sample = decoder(
        {".flac": b"123", ".a.SEG.png": b"", ".json": b"{", ".txt.gz": gzip.compress(b"a")}
    )

    assert sample == {".flac": 3, ".a.SEG.png": "mask", ".json": b"{", ".txt.gz": b"A"}


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    for package, field, extra in (
        ("msgpack", ".mp", "wids[msgpack]"),
        ("cbor2", ".cbor", "wids[cbor]"),
        ("safetensors.torch", ".safetensors", "wids[safetensors]"),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        with raises(DecodeError, f'field "{field}"', f"pip install '{extra}'"):
            Decoder()({field: b""})
        with raises(ModuleNotFoundError):
            encode(field, {})


@pytest.mark.parametrize(
    ("field", "value", "kind", "message"),
    [
        (".bin", 3, TypeError, "expected bytes or text, found int; there are encoders for txt"),
        (".cls", 1.5, TypeError, 'field ".cls": float could not be encoded'),
        (".cls", True, TypeError, "expected an integer, found True"),
        (".txt", 3, TypeError, "expected text, found 3"),
        (".txt", "\ud800", ValueError, "surrogates not allowed"),
        (".json", {1j}, TypeError, "not JSON serializable"),
        (".npy", np.array([{}]), ValueError, "allow_pickle=False"),
        (".npz", {"a": np.array([{}])}, ValueError, "found one of objects"),
        (".ten", [np.array(1j)], ValueError, "of complex128"),
        (".png", np.zeros((2, 2), np.int64), ValueError, "found (2, 2) of int64"),
        (".png", np.zeros((2, 2, 5), np.uint8), ValueError, "found (2, 2, 5) of uint8"),
        (".png", np.zeros(3, np.uint8), ValueError, "2 or 3 dimensions, found 1"),
        (".png", np.full((2, 2), 1.5), ValueError, "floats from 0 to 1, found 1.5 to 1.5"),
        (".png", np.full((2, 2), np.nan), ValueError, "floats from 0 to 1, found nan"),
        (".jpg", Image.new("RGBA", (2, 2)), ValueError, "cannot write mode RGBA as JPEG"),
        (".pkl", {}, TypeError, "readers refuse it; store json"),
    ],
)
def test_values_that_cannot_be_encoded(field: str, value: Any, kind: type, message: str) -> None:
    """The error names the field and what would have been right."""
    with raises(kind, f'field "{field}"', message):
        encode(field, value)


def test_bytes_and_text_are_stored_as_they_are() -> None:
    """Bytes under every name; text where there is no other encoder."""
    assert encode(".bin", bytearray(b"x")) == b"x"
    assert encode(".jpg", b"x") == b"x"
    zipped = encode(".txt.gz", b"x")
    assert gzip.decompress(zipped) == b"x"
    assert encode(".txt.gz", zipped) == zipped
    assert encode(".html", "é") == "é".encode()
    assert json.loads(encode(".json", "x")) == "x"


def test_encoders_of_your_own() -> None:
    """By extension, the longest first, in front of the table."""
    encoders = {"flac": lambda _: b"flac", "seg.png": lambda _: b"mask"}
    assert encode(".a.seg.png", 1, encoders) == b"mask"
    assert encode("flac", 1, encoders) == b"flac"
    assert encode(".cls", 1, encoders) == b"1"


def test_tables_are_mirror_images() -> None:
    """Whatever is decoded can be encoded."""
    assert set(ENCODERS) == set(Decoder().table)


def test_tensors_and_greys_are_pictures() -> None:
    """A tensor has its channels in front, an array behind; one channel is grey."""
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    data = encode(".png", pixels)
    assert encode(".png", torch.from_numpy(pixels).permute(2, 0, 1)) == data
    assert encode(".png", pixels / 255) == data
    assert encode(".png", pixels[:, :, :1]) == encode(".png", pixels[:, :, 0])


# tenbin


def test_tenbin_is_checked() -> None:
    """No number is believed: not a length, a shape or a type."""
    good = tenbin.dumps([np.arange(6.0).reshape(2, 3)])
    assert len(good) == 2 * (16 + 64)
    for offset, value, reason in (
        (0, b"X", "expected a chunk at byte 0"),
        (8, b"\xff" * 8, "found the length -1"),
        (8, b"\xff" * 7 + b"\x7f", "found the length 9223372036854775807"),
        (16, b"f3", "found 'f3'"),
        (32, b"\x03", "expected 3 dimensions"),
        (40, b"\xff" * 8, "expected 2 dimensions, found [-1, 3]"),
        (40, b"\x00" * 7 + b"\x40", "expected 110680464442257309696 bytes"),
        (80, b"?", "expected a chunk at byte 80"),
    ):
        bad = good[:offset] + value + good[offset + len(value) :]
        with raises(ValueError, reason):
            tenbin.loads(bad)
    for length in range(1, 144):  # beyond, only padding is missing
        with raises(ValueError, "expected"):
            tenbin.loads(good[:length])
    assert tenbin.loads(b"") == []
