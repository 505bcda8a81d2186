"""Fields → values, and the errors of fields that cannot be decoded."""

from __future__ import annotations

import codecs
import doctest
import gzip
import io
import pickle
import sys
from typing import Any

import numpy as np
import pytest
import torch
from conftest import need_weights, raises

from wids.errors import DecodeError
from wids.shards.fields import decode
from wids.shards.fields.decode import Decoder
from wids.shards.fields.encode import encode

PNG = encode(".png", np.random.default_rng(0).integers(0, 256, (200, 200, 3), np.uint8))


@pytest.mark.parametrize("mark", [codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])
def test_a_byte_order_mark_is_no_part_of_a_value(mark: bytes) -> None:
    """As other programs write it, in UTF-8 or UTF-16; a text that begins with one comes back."""
    encoding = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}.get(
        mark, "utf-8"
    )

    def decoded(field: str, text: str) -> Any:
        return Decoder()({field: mark + text.encode(encoding)})[field]

    assert decoded(".txt", "é") == "é"
    assert decoded(".json", '{"a": 1}') == {"a": 1}
    assert decoded(".jsonl", '{"a": 1}\n2\n') == [{"a": 1}, 2]
    if mark == codecs.BOM_UTF8:
        assert decoded(".cls", "3\r\n") == 3
    for text in ("\ufeff", "\ufeff\ufeffa"):
        assert Decoder()({".txt": encode(".txt", text)})[".txt"] == text


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


@pytest.mark.parametrize(
    ("field", "data", "reason"),
    [
        (".txt", b"\xff", "UnicodeDecodeError"),
        (".cls", b"cat", "ValueError"),
        (".json", b"{", "JSONDecodeError"),
        (".npy", b"no", "ValueError"),
        (".jpg", b"no", "UnidentifiedImageError"),
        (".png", PNG[:-400], "OSError"),
    ],
)
def test_corrupt_field_is_named(field: str, data: bytes, reason: str) -> None:
    """The error names the field, what was expected and why decoding failed."""
    with raises(
        DecodeError, f'field "{field}": expected {field[1:]} data, found {len(data)} bytes', reason
    ):
        Decoder()({field: data})


def test_unknown_zipped_fields_stay_as_they_are() -> None:
    """A field without a decoder is not decompressed either."""
    assert Decoder()({".bin.gz": b"?", ".gz": b"?"}) == {".bin.gz": b"?", ".gz": b"?"}


def test_decoders_of_your_own() -> None:
    """The longest match wins, in any case; None leaves fields as they are."""
    decoder = Decoder(
        decoders={"FLAC": len, ".seg.png": lambda _: "mask", "json": None, "txt": bytes.upper}
    )

    sample = decoder(
        {".flac": b"123", ".a.SEG.png": b"", ".json": b"{", ".txt.gz": gzip.compress(b"a")}
    )

    assert sample == {".flac": 3, ".a.SEG.png": "mask", ".json": b"{", ".txt.gz": b"A"}


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package or extra to install."""
    for package, field, extra in (
        ("msgpack", ".mp", "wids[msgpack]"),
        ("cbor2", ".cbor", "wids[cbor]"),
        ("safetensors.torch", ".safetensors", "wids[safetensors]"),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        with raises(DecodeError, f'field "{field}"', f"pip install '{extra}'"):
            Decoder()({field: b""})
        with raises(ModuleNotFoundError, f'field "{field}"', f"pip install '{extra}'"):
            encode(field, {})


@pytest.mark.parametrize("extension", ["pkl", "pickle", "pyd", "PKL", "pkl.gz"])
def test_pickles_are_refused_unless_allowed(extension: str) -> None:
    """The error names the option that allows them (SEC-5)."""
    data = pickle.dumps({"a": 1})
    if extension.endswith("gz"):
        data = gzip.compress(data)

    with raises(DecodeError, f'".{extension}"', "executes code", "allow_pickle=True", "`fields`"):
        Decoder()({f".{extension}": data})
    assert Decoder(allow_pickle=True)({f".{extension}": data}) == {f".{extension}": {"a": 1}}


def test_pickled_arrays_are_refused() -> None:
    """Reading an array of objects would execute code (SEC-5)."""
    stream = io.BytesIO()
    np.save(stream, np.array([{}], object), allow_pickle=True)

    with raises(DecodeError, "allow_pickle=False"):
        Decoder()({".npy": stream})


def test_weights_execute_nothing() -> None:
    """A ``.pt`` with anything other than tensors and plain values is refused (SEC-5)."""
    need_weights()

    class Command:
        def __reduce__(self) -> Any:
            return print, ("executed",)

    stream = io.BytesIO()
    torch.save(Command(), stream)

    with raises(DecodeError, 'field ".pt"', "UnpicklingError"):
        Decoder()({".pt": stream.getvalue()})


def test_weights_need_a_torch_that_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.6 ``weights_only`` could be made to execute code (SEC-5)."""
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with raises(DecodeError, 'field ".pt"', "torch 2.6 or later", "CVE-2025-32434"):
        Decoder()({".pt": encode(".pt", {"a": torch.zeros(2)})})


def test_gzip_bombs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that would fill the memory is an error, and so is an incomplete one (SEC-12)."""
    monkeypatch.setattr("wids.shards.fields.safety.MAX_UNZIPPED_NBYTES", 1000)
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
    """An ``.npz`` or a ``.pt`` of zeros is small in the shard and large in memory (SEC-12)."""
    need_weights()
    arrays = io.BytesIO()
    np.savez_compressed(arrays, a=np.zeros(100_000))
    assert Decoder()({".npz": arrays})[".npz"]["a"].shape == (100_000,)
    monkeypatch.setattr("wids.shards.fields.safety.MAX_UNZIPPED_NBYTES", 1000)
    for field in (".npz", ".pt"):
        with raises(DecodeError, f'field "{field}"', "longer than 1000 bytes"):
            Decoder()({field: arrays})


def test_example_of_the_decoder_runs() -> None:
    """The example in the docstring prints what it says."""
    assert doctest.testmod(decode).failed == 0


def test_what_is_decoded_stays() -> None:
    """A second decoder leaves what the first one decoded, so that it can decode the rest."""
    first, second = Decoder(), Decoder(decoders={"flac": len})
    sample = {".cls": b"3", ".txt": b"a cat", ".json": b"[1]", ".flac": b"12345"}
    expected = {".cls": 3, ".txt": "a cat", ".json": [1], ".flac": 5}
    assert second(first(dict(sample))) == expected
