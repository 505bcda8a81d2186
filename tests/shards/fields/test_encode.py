"""Values → fields."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest
from conftest import raises
from PIL import Image

from wids.shards.fields.decode import Decoder
from wids.shards.fields.encode import encode


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
