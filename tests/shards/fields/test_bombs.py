"""Fields that are small until they are decoded, and archives that two readers disagree about."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from conftest import need_weights, raises

from wids.errors import DecodeError
from wids.shards.fields.decode import Decoder
from wids.shards.fields.encode import encode

LARGE = 200_000
"""Bytes of the larger of two values; the tests lower the limit to half of it."""


def torch_archive(value: Any, compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return what ``torch.save`` writes, in an archive that zipfile wrote."""
    stream = io.BytesIO()
    torch.save(value, stream)
    target = io.BytesIO()
    with zipfile.ZipFile(stream) as source, zipfile.ZipFile(target, "w", compression) as copy:
        for name in source.namelist():
            copy.writestr(name, source.read(name))
    return target.getvalue()


def end_of(data: bytes) -> int:
    return data.rfind(b"PK\x05\x06")


def directory_of(data: bytes) -> bytes:
    size, offset = struct.unpack_from("<LL", data, end_of(data) + 12)
    return data[offset : offset + size]


def two_directories(shown: bytes, hidden: bytes) -> bytes:
    """Return an archive with two directories: zipfile reads the first, miniz the second.

    zipfile looks for the directory right before the record at the end, and miniz, which torch uses,
    at the offset that this record states. Members of ``shown`` stay where zipfile looks for them.
    """
    small = directory_of(shown)
    large = directory_of(hidden)
    size = max(len(small), len(large))
    small, large = pad(small, size), pad(large, size)
    body = hidden[: end_of(hidden) - len(directory_of(hidden))] + large + small
    count = struct.unpack_from("<H", hidden, end_of(hidden) + 10)[0]
    return body + struct.pack(
        "<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, size, len(body) - 2 * size, 0
    )


def pad(directory: bytes, size: int) -> bytes:
    """Return a directory whose last comment makes it longer."""
    last = directory.rfind(b"PK\x01\x02")
    comment = size - len(directory)
    header = bytearray(directory)
    struct.pack_into("<H", header, last + 32, comment)
    return bytes(header) + bytes(comment)


def with_zip64_end(data: bytes, **changes: int) -> bytes:
    """Return an archive with records of zip64 at its end, with some of their numbers changed."""
    end = end_of(data)
    count, size, offset = struct.unpack_from("<HLL", data, end + 10)
    values = {"size": size, "offset": offset, "count": count, "at": end, **changes}
    record = struct.pack(
        "<4sQ2H2L4Q",
        *(b"PK\x06\x06", 44, 45, 45, 0, 0),
        *(values["count"], values["count"], values["size"], values["offset"]),
    )
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, values["at"], 1)
    return data[:end] + record + locator + data[end:]


def test_archives_of_torch_numpy_and_zipfile_are_read() -> None:
    """What the usual writers make is accepted: stored, compressed, with zip64 records, empty."""
    arrays = {"a": np.arange(5), "b": np.zeros((3, 2))}
    tensors = {"a": torch.arange(5), "b": torch.zeros(3)}
    compressed = io.BytesIO()
    np.savez_compressed(compressed, **arrays)
    commented = io.BytesIO(encode(".npz", arrays))
    with zipfile.ZipFile(commented, "a") as archive:
        archive.comment = b"a comment"
    archives = [
        encode(".npz", arrays),
        compressed.getvalue(),
        commented.getvalue(),
        with_zip64_end(compressed.getvalue()),
    ]
    for data in archives:
        found = Decoder()({".npz": data})[".npz"]
        assert {name: array.tolist() for name, array in found.items()} == {
            "a": [0, 1, 2, 3, 4],
            "b": [[0, 0]] * 3,
        }
    assert Decoder()({".npz": encode(".npz", {})})[".npz"] == {}
    need_weights()
    legacy = io.BytesIO()
    torch.save(tensors, legacy, _use_new_zipfile_serialization=False)
    for data in (
        encode(".pt", tensors),
        torch_archive(tensors, zipfile.ZIP_DEFLATED),
        legacy.getvalue(),
    ):
        assert Decoder()({".pt": data})[".pt"]["a"].tolist() == [0, 1, 2, 3, 4]


def test_two_directories_are_read_differently_by_zipfile_and_torch() -> None:
    """The archive of the next test is a real one: zipfile finds little in it, torch all."""
    small = torch_archive(torch.zeros(1, dtype=torch.uint8))
    data = two_directories(
        small, torch_archive(torch.zeros(LARGE, dtype=torch.uint8), zipfile.ZIP_DEFLATED)
    )
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert sum(member.file_size for member in archive.infolist()) < 1000
    assert len(torch.load(io.BytesIO(data), weights_only=True)) == LARGE


def bomb_by_directories() -> bytes:
    return two_directories(
        torch_archive(torch.zeros(1, dtype=torch.uint8)),
        torch_archive(torch.zeros(LARGE, dtype=torch.uint8), zipfile.ZIP_DEFLATED),
    )


def bomb_by_zip64() -> bytes:
    """The record of zip64 that miniz reads is not where zipfile looks for it."""
    large = torch_archive(torch.zeros(LARGE, dtype=torch.uint8), zipfile.ZIP_DEFLATED)
    small = directory_of(torch_archive(torch.zeros(1, dtype=torch.uint8)))
    end = end_of(large)
    count, size, offset = struct.unpack_from("<HLL", large, end + 10)
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, offset)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1)
    small = pad(small, len(small) + 76)  # covers the two records that zipfile would look for
    body = large[:end] + record + small[:-20] + locator
    return body + struct.pack(
        "<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, len(small), len(body) - len(small), 0
    )


def bomb_with_more_behind() -> bytes:
    """Readers search for the end backwards, and differ in how far."""
    return torch_archive(torch.zeros(1)) + b"more"


def bomb_of_lzma() -> bytes:
    """Python decompresses lzma in chunks of any size, whatever the directory claims."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.npy", encode(".npy", np.zeros(LARGE, np.uint8)))
    data = bytearray(stream.getvalue())
    struct.pack_into("<L", data, data.rfind(b"PK\x01\x02") + 24, 100)
    return bytes(data)


def bomb_by_repetition() -> bytes:
    """The same member many times: each time it is read, it is decompressed."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", encode(".npy", np.zeros(LARGE // 6, np.uint8)))
    data = stream.getvalue()
    entry = directory_of(data)
    body = data[: end_of(data)] + entry
    return body + struct.pack(
        "<4s4H2LH", b"PK\x05\x06", 0, 0, 2, 2, 2 * len(entry), len(body) - 2 * len(entry), 0
    )


@pytest.mark.parametrize(
    ("field", "bomb"),
    [
        (".pt", bomb_by_directories),
        (".pth", bomb_by_zip64),
        (".pt", bomb_with_more_behind),
        (".npz", bomb_by_directories),
        (".npz", bomb_of_lzma),
        (".npz", bomb_by_repetition),
    ],
)
def test_ambiguous_archives_are_refused(
    field: str, bomb: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive that zipfile, numpy and torch need not read alike is an error (SEC-50)."""
    if field != ".npz":
        need_weights()
    monkeypatch.setattr("wids.shards.fields.safety.MAX_UNZIPPED_NBYTES", LARGE // 2)
    with raises(DecodeError, f'field "{field}": expected {field[1:]} data', "archive"):
        Decoder()({field: bomb()})


@pytest.mark.parametrize("changes", [{"size": 1}, {"offset": 1}, {"count": 9}, {"at": 0}])
def test_records_of_zip64_have_to_agree(changes: dict[str, int]) -> None:
    """Two statements about one archive that differ are an error, whichever is read (SEC-50)."""
    data = with_zip64_end(encode(".npz", {"a": np.arange(5)}), **changes)
    with raises(DecodeError, 'field ".npz"', "archive"):
        Decoder()({".npz": data})


def test_an_npy_is_not_an_archive() -> None:
    """One array and nothing else, though numpy would open an archive under any name (SEC-50)."""
    data = encode(".npz", {"a": np.zeros(10)})
    with raises(DecodeError, 'field ".npy": expected npy data'):
        Decoder()({".npy": data})
    with raises(DecodeError, 'field ".npz": expected npz data', "archive"):
        Decoder()({".npz": encode(".npy", np.zeros(10))})


def structured(extension: str) -> bytes:
    """Return a document of a thousand empty lists, each of which takes 64 bytes of memory."""
    if extension == "jsonl":
        return b"[]\n" * 1000
    if extension == "cbor":
        return bytes(import_module("cbor2").dumps([[]] * 1000))
    if extension.startswith("m"):
        return bytes(import_module("msgpack").packb([[]] * 1000))
    return json.dumps([[]] * 1000).encode()


@pytest.mark.parametrize("extension", ["json", "jsn", "jsonl", "mp", "msg", "msgpack", "cbor"])
def test_zipped_structures_have_a_lower_limit(
    extension: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nested values take many times the memory of their bytes, so their limit is lower (SEC-51)."""
    field, data = f".{extension}.gz", gzip.compress(structured(extension))
    assert len(Decoder()({field: data})[field]) == 1000
    monkeypatch.setattr("wids.shards.fields.safety.MAX_UNZIPPED_STRUCTURE_NBYTES", 900)
    with raises(DecodeError, f'field "{field}"', "when decompressed", "max_nbytes"):
        Decoder()({field: data})
    assert len(Decoder(max_nbytes=10_000)({field: data})[field]) == 1000


def test_a_small_json_does_not_become_gigabytes() -> None:
    """With the real limit: 65 MB of empty lists would take 1.4 GB (SEC-51)."""
    data = gzip.compress(b"[" + b"[]," * 21_700_000 + b"[]]", compresslevel=1)
    with raises(DecodeError, 'field ".json.gz"', "longer than 64000000 bytes"):
        Decoder()({".json.gz": data})


def test_other_zipped_fields_may_be_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text and arrays take as much memory as their bytes: their limit is 1 GiB (SEC-12)."""
    monkeypatch.setattr("wids.shards.fields.safety.MAX_UNZIPPED_STRUCTURE_NBYTES", 900)
    data = gzip.compress(encode(".npy", np.zeros(10_000, np.uint8)))
    assert Decoder()({".npy.gz": data})[".npy.gz"].shape == (10_000,)
