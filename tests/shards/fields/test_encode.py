"""Values → fields."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from conftest import need_weights, raises
from PIL import Image

from wids.shards.fields.decode import Decoder
from wids.shards.fields.encode import encode

MASKED = np.ma.array([1.0, 2.0], mask=[False, True])


@pytest.mark.parametrize(
    ("field", "value", "kind", "message"),
    [
        (".bin", 3, TypeError, "expected bytes or text, found int; there are encoders for txt"),
        (".cls", 1.5, TypeError, 'field ".cls": float could not be encoded'),
        (".cls", True, TypeError, "expected an integer, found True"),
        (".txt", 3, TypeError, "expected text, found 3"),
        (".txt", "\ud800", ValueError, "surrogates not allowed"),
        (".json", {1j}, TypeError, "not JSON serializable"),
        (".json", [{"a": float("nan")}], ValueError, "finite numbers, found NaN or infinity"),
        (".json", np.float64("inf"), ValueError, "finite numbers"),
        (".json", [{1: "a", "1": "b"}], ValueError, "keys that differ as text, found 1"),
        (".json", {"a": {None: 1, "null": 2}}, ValueError, "keys that differ as text, found None"),
        (".jsonl", [{True: 1, "true": 2}], ValueError, "keys that differ as text, found True"),
        (".npy", MASKED, ValueError, "an array without masked values"),
        (".npy", [MASKED, MASKED], ValueError, "an array without masked values"),
        (".npz", {"a": MASKED}, ValueError, "an array without masked values"),
        (".npz", {1: [0], "1": [1]}, ValueError, "names that differ as text"),
        (".ten", MASKED, ValueError, "an array without masked values"),
        (".png", MASKED.astype(np.uint8)[None], ValueError, "an array without masked values"),
        (".pth", {"a": np.arange(3)}, TypeError, "without executing code, found "),
        (".pt", [Decimal(1)], TypeError, "without executing code, found "),
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
    """The error names the field and what was expected."""
    with raises(kind, f'field "{field}"', message):
        encode(field, value)


def test_bytes_and_text_are_stored_as_they_are() -> None:
    """Bytes stay as they are under every extension, and text where there is no encoder."""
    assert encode(".bin", bytearray(b"x")) == b"x"
    assert encode(".jpg", b"x") == b"x"
    zipped = encode(".txt.gz", b"x")
    assert gzip.decompress(zipped) == b"x"
    assert encode(".txt.gz", zipped) == zipped
    assert encode(".html", "é") == "é".encode()
    assert json.loads(encode(".json", "x")) == "x"


def test_what_nothing_is_lost_of_is_stored() -> None:
    """Arrays that mask no value, keys that differ as text, and weights."""
    need_weights()
    plain = np.ma.array([1, 2], mask=[False, False])
    sample = {".npy": plain, ".json": {1: "a", 1.5: "b", None: "c"}, ".pth": {"a": torch.ones(3)}}
    found = Decoder()({name: encode(name, value) for name, value in sample.items()})
    assert found[".npy"].tolist() == [1, 2]
    assert found[".json"] == {"1": "a", "1.5": "b", "null": "c"}
    assert torch.equal(found[".pth"]["a"], torch.ones(3))


def test_encoders_of_your_own() -> None:
    """They match by extension and win over the table; the longest wins."""
    encoders = {"flac": lambda _: b"flac", "seg.png": lambda _: b"mask"}
    assert encode(".a.seg.png", 1, encoders) == b"mask"
    assert encode("flac", 1, encoders) == b"flac"
    assert encode(".cls", 1, encoders) == b"1"


def test_odd_names_and_keys_come_back() -> None:
    """Maps keep keys of other types, and an array can have a name that numpy's writer refuses."""
    assert Decoder()({".mp": encode(".mp", {1: 2})}) == {".mp": {1: 2}}
    found = Decoder()({".npz": encode(".npz", {"file": np.arange(3)})})[".npz"]
    assert found["file"].tolist() == [0, 1, 2]
