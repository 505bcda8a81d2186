"""Decoding an encoded value returns the value, for every lossless field type."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import need_weights
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from wids.shards.fields.codecs import BY_EXTENSION
from wids.shards.fields.decode import Decoder
from wids.shards.fields.encode import encode

NUMBERS = "?bhiqBHIQefdFD"
DTYPES = st.sampled_from([np.dtype(code) for code in NUMBERS])
SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
PLAIN = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXT
FINITE = PLAIN.filter(lambda value: value not in (math.inf, -math.inf))
JSON = st.recursive(
    FINITE, lambda v: st.lists(v, max_size=4) | st.dictionaries(TEXT, v, max_size=4)
)
BINARY = st.recursive(
    PLAIN | st.binary(max_size=9),
    lambda v: st.lists(v, max_size=4) | st.dictionaries(TEXT, v, max_size=4),
)
ARRAYS = arrays_of.arrays(DTYPES, SHAPES)
PLAIN_ARRAYS = arrays_of.arrays(st.sampled_from([np.dtype(c) for c in "bhiqBHIQefd"]), SHAPES)
TENSORS = arrays_of.arrays(st.sampled_from([np.dtype(c) for c in "?bhiqBefd"]), SHAPES).map(
    torch.from_numpy
)
NAMES = st.text("abcxyz_0", min_size=1, max_size=6)


def images(*channels: tuple[int, ...]) -> Any:
    sides = st.tuples(st.integers(1, 9), st.integers(1, 9))
    shape = st.tuples(sides, st.sampled_from(channels)).map(lambda parts: (*parts[0], *parts[1]))
    return arrays_of.arrays(np.uint8, shape)


GREY, RGB, RGBA = (), (3,), (4,)
VALUES = {
    **dict.fromkeys(("txt", "text", "transcript"), TEXT),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), st.integers()),
    **dict.fromkeys(("json", "jsn"), JSON),
    "jsonl": st.lists(JSON, max_size=4),
    "npy": ARRAYS,
    "npz": st.dictionaries(NAMES, ARRAYS, max_size=3),
    **dict.fromkeys(("ten", "tenbin", "tb"), st.lists(PLAIN_ARRAYS, max_size=3)),
    # `encode` stores bytes as they are, not as a value of the format.
    **dict.fromkeys(
        ("mp", "msg", "msgpack", "cbor"), BINARY.filter(lambda value: not isinstance(value, bytes))
    ),
    **dict.fromkeys(("pt", "pth"), st.dictionaries(NAMES, TENSORS | st.integers(), max_size=3)),
    "safetensors": st.dictionaries(NAMES, TENSORS, max_size=3),
    **dict.fromkeys(("png", "webp", "tif", "tiff"), images(GREY, RGB, RGBA)),
    "bmp": images(GREY, RGB),
    **dict.fromkeys(("ppm", "pnm"), images(GREY, RGB)),
    "pgm": images(GREY),
    "pbm": images(GREY),
}
LOSSY = {"jpg", "jpeg", "gif", "pkl", "pickle", "pyd"}


def plainly(value: Any) -> Any:
    """Return something that is equal only for values of equal types and bytes."""
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype, plainly(value.numpy())
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {name: plainly(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plainly(item) for item in value]
    return type(value), repr(value)  # -0.0 is not 0.0


@pytest.mark.parametrize("extension", VALUES)
# Drawing is slow on a busy machine, which is no reason to fail.
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_lossless_fields_come_back(extension: str, data: st.DataObject) -> None:
    """In any case, after other names and compressed; equal values become equal bytes."""
    if extension in ("pt", "pth"):
        need_weights()
    value = data.draw(VALUES[extension])
    field = data.draw(st.sampled_from([".{}", ".seg.{}", ".{}.gz"])).format(extension)
    if extension == "webp" and value.ndim == 2:
        value = np.stack([value] * 3, 2)  # it has no grey
    elif extension == "webp" and value.shape[2] == 4 and (value[:, :, 3] == 255).all():
        value = value[:, :, :3]  # and drops an alpha that is fully opaque
    encoded = encode(field, value)

    found = Decoder("numpy")({field: encoded})[field]

    assert plainly(found) == plainly(value)
    assert encode(field.upper(), value) == encoded


def test_every_extension_is_tested() -> None:
    """Each extension has values to test with here, is listed as lossy, or is audio or video."""
    lossless = {name for name, codec in BY_EXTENSION.items() if not codec.media_type} - LOSSY
    assert set(VALUES) == lossless
