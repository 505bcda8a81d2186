"""Samples → one tar shard."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import subprocess
import tarfile
import threading
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import raises

from wids import Shard, ShardWriter, TarWriter, build_spec
from wids.publish.tar_writer import header_function
from wids.shards.indexes.dataset_index_writer import write_dataset_index

SAMPLES: list[dict[str, Any]] = [
    {"__key__": "a", ".txt": "one", "cls": 1, "__index__": 7},
    {"__key__": "猫/" + "k" * 120, "seg.png": b"x", ".TXT": "two"},
]


def write(target: Any) -> TarWriter:
    with TarWriter(target) as writer:
        for sample in SAMPLES:
            writer.write(sample)
    return writer


def test_samples_are_read_back(tmp_path: Path) -> None:
    """Fields with or without the dot are stored with it; private names are left out."""
    writer = write(tmp_path / "a.tar")

    with Shard(tmp_path / "a.tar") as shard:
        assert list(shard) == [
            {".txt": b"one", ".cls": b"1", "__key__": "a"},
            {".seg.png": b"x", ".TXT": b"two", "__key__": "猫/" + "k" * 120},
        ]
    assert (writer.num_samples, writer.nbytes) == (2, os.path.getsize(tmp_path / "a.tar"))


def test_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    """Owner, mode and time are fixed, so a shard depends on its samples alone."""
    stream = io.BytesIO()
    write(stream)
    write(tmp_path / "a.tar")

    assert stream.getvalue() == (tmp_path / "a.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert {(i.uid, i.uname, i.mode, i.mtime) for i in archive} == {(0, "", 0o444, 0)}


def test_gnu_tar_reads_it(tmp_path: Path) -> None:
    """The shard is an ordinary tar."""
    write(tmp_path / "a.tar")

    listing = subprocess.run(
        ["tar", "--quoting-style=literal", "-tf", "a.tar"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )

    assert listing.stdout.decode().splitlines()[:2] == ["a.txt", "a.cls"]


def test_shard_appears_when_complete(tmp_path: Path) -> None:
    """A shard has no name until it is complete, and an error leaves nothing behind."""
    with TarWriter(tmp_path / "a.tar") as writer:
        writer.write(SAMPLES[0])
        assert not (tmp_path / "a.tar").exists()
    assert os.listdir(tmp_path) == ["a.tar"]

    with suppress(KeyboardInterrupt), TarWriter(tmp_path / "b.tar") as writer:
        writer.write(SAMPLES[0])
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["a.tar"]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({".txt": "x"}, 'expected its key under "__key__", found None'),
        ({"__key__": "a"}, "sample 'a': expected at least one field"),
        ({"__key__": "b.c", ".txt": "x"}, "'b.c.txt', which is read back as another key"),
        ({"__key__": "b", "x/y.txt": "x"}, "which is read back as another key"),
        ({"__key__": "b/", ".txt": "x"}, "which is read back as another key"),
        ({"__key__": "__b__/c", ".txt": "x"}, "'__b__/c.txt', which readers skip as metadata"),
    ],
)
def test_sample_that_would_be_read_back_differently_is_refused(
    sample: dict[str, Any], message: str
) -> None:
    """A name that would be split differently is an error now, not a wrong sample later."""
    with raises(ValueError, message), TarWriter(io.BytesIO()) as writer:
        writer.write(sample)


def test_same_key_twice_is_refused() -> None:
    """Two samples with one key would be read as one."""
    with (
        raises(ValueError, "sample 'a': expected a new key"),
        TarWriter(io.BytesIO()) as writer,
    ):
        writer.write({"__key__": "a", ".txt": "x"})
        writer.write({"__key__": "a", ".cls": 1})


def test_refused_sample_leaves_no_member(tmp_path: Path) -> None:
    """A value that cannot be encoded leaves no partial sample behind."""
    with TarWriter(tmp_path / "a.tar") as writer:
        with raises(TypeError, 'field ".bin"'):
            writer.write({"__key__": "a", ".txt": "x", ".bin": object()})
        writer.write(SAMPLES[0])

    with Shard(tmp_path / "a.tar") as shard:
        assert len(shard) == 1
        assert shard.index.num_files == 2


def test_same_field_twice_is_refused() -> None:
    """A field with its dot and one without are one field."""
    with (
        raises(ValueError, "sample 'a': expected the field '.txt' once, found it twice"),
        TarWriter(io.BytesIO()) as writer,
    ):
        writer.write({"__key__": "a", "txt": "x", ".txt": "y"})


def test_failed_publication_leaves_nothing(tmp_path: Path) -> None:
    """If a shard cannot take its name, no part of it stays."""
    (tmp_path / "a.tar").mkdir()
    with raises(IsADirectoryError, "a.tar"), TarWriter(tmp_path / "a.tar") as writer:
        writer.write(SAMPLES[0])

    assert os.listdir(tmp_path) == ["a.tar"]
    writer.close()


@pytest.mark.parametrize(
    "options", [{}, {"user": "é", "mtime": 1.5}, {"mtime": 2**33, "group": "g" * 40}]
)
def test_index_of_the_finished_shard(options: dict[str, Any], tmp_path: Path) -> None:
    """A writer has the index of the finished shard: the one that `build_spec` makes."""
    with TarWriter(tmp_path / "a.tar", **options) as writer:
        for sample in SAMPLES:
            writer.write(sample)
        writer.write({"__key__": "large", "bin": bytes(100_000), "seg.bin": b"", "txt": "x" * 512})

    assert writer.index is not None
    assert [writer.index.key(i) for i in range(3)] == ["a", "猫/" + "k" * 120, "large"]
    with (tmp_path / "a.index").open("w+b") as file:
        write_dataset_index(file, [("a.tar", writer.nbytes, writer.index)])
    build_spec([tmp_path / "a.tar"], dataset_index=tmp_path / "b.index")
    assert (tmp_path / "a.index").read_bytes() == (tmp_path / "b.index").read_bytes()


def test_headers_are_those_of_the_standard_library() -> None:
    """A header from the template equals that of ``tarfile``, byte for byte."""
    names = ["a.txt", "d/" * 40 + "k.jpg", "y" * 100, "y" * 101, "y" * 99 + "é", "é.txt"]
    for mode, user, group, mtime in [
        (0o444, "", "", 0),
        (0o644, "u", "g" * 31, 2**33),
        (0o600, "é", "", 0),
        (0o444, "", "", 1.5),
    ]:
        header = header_function(mode, user, group, mtime)
        for name in names:
            for nbytes in (0, 1, 8**11 - 1, 8**11):
                member = tarfile.TarInfo(name)
                member.size, member.mode, member.mtime = nbytes, mode, mtime
                member.uname, member.gname = user, group
                expected = member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
                assert header(name, nbytes) == expected


def test_parameters_of_webdatasets_writer(tmp_path: Path) -> None:
    """Owner, mode and time are as requested; ``write`` returns the total length of the fields."""
    path = tmp_path / "a.tar"
    with TarWriter(path, mode=0o640, user="me", group="us", mtime=1.5) as writer:
        assert writer.write({"__key__": "a", "txt": "four", "_meta": "left out"}) == 4

    with tarfile.open(path) as archive:
        found = [(m.name, m.mode, m.uname, m.gname, m.mtime) for m in archive]
    assert found == [("a.txt", 0o640, "me", "us", 1.5)]


def test_encoders(tmp_path: Path) -> None:
    """The table, encoders that take precedence over it, none, or a callable on the sample."""
    sample = {"__key__": "a", "txt": "x", "cls": 3}
    for encoder, expected in [
        (None, b"3"),
        (True, b"3"),
        ({"cls": lambda value: b"<%d>" % value}, b"<3>"),
        (lambda s: {"__key__": s["__key__"], "txt": b"x", "cls": b"!"}, b"!"),
    ]:
        with TarWriter(tmp_path / "a.tar", encoder=encoder) as writer:
            writer.write(sample)
        with Shard(tmp_path / "a.tar") as shard:
            assert shard[0] == {".txt": b"x", ".cls": expected, "__key__": "a"}
    with TarWriter(io.BytesIO(), encoder=False) as writer:
        writer.write({"__key__": "b", "cls": memoryview(b"3")})
        with raises(TypeError, "sample 'a': field \".txt\": expected bytes, found str"):
            writer.write(sample)


@pytest.mark.parametrize("compress", [True, "gz"])
def test_compression_is_refused(compress: Any, tmp_path: Path) -> None:
    """A compressed tar has no random access; the error says what to do instead."""
    with raises(ValueError, "no random access", ".json.gz"):
        TarWriter(tmp_path / "a.tar", compress=compress)
    with raises(ValueError, "a.tar.gz", "no random access"):
        TarWriter(tmp_path / "a.tar.gz")
    with raises(ValueError, "no random access"):
        ShardWriter(tmp_path / "a-%06d.tar", compress=compress)
    assert os.listdir(tmp_path) == []


def test_a_partial_sample_is_not_published() -> None:
    """After a failed write, more samples and the end are errors, and there is no shard."""

    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            if len(data) > 3000:
                raise OSError(28, "No space left on device")
            return super().write(data)

    writer = TarWriter(Full())
    with raises(OSError, "No space left"):
        writer.write({"__key__": "a", "bin": bytes(3000)})
    with raises(OSError, "an earlier sample was written only in part"):
        writer.write({"__key__": "b", "bin": b"x"})
    with raises(OSError, "an earlier sample was written only in part"):
        writer.close()


@pytest.mark.parametrize("kind", ["bytearray", "memoryview"])
def test_bytes_of_an_encoder_are_counted(kind: str, tmp_path: Path) -> None:
    """An encoder may return any kind of bytes; a view of numbers is counted in bytes."""
    numbers = array("i", [1, 2, 3])
    data = memoryview(numbers) if kind == "memoryview" else bytearray(numbers.tobytes())
    with TarWriter(tmp_path / "a.tar", encoder={"bin": lambda _: data}) as writer:
        assert writer.write({"__key__": "a", "bin": 1}) == len(numbers.tobytes())
        writer.write({"__key__": "b", "bin": 1})

    with Shard(tmp_path / "a.tar") as shard:
        assert [sample[".bin"] for sample in shard] == [numbers.tobytes()] * 2


@pytest.mark.parametrize("data", [array("i", [1, 2, 3]), "text", None, 3])
def test_encoder_that_returns_no_bytes_is_refused(data: Any, tmp_path: Path) -> None:
    """The error names the field, and no tar appears: its headers would state other lengths."""
    with (
        raises(TypeError, 'bin": expected bytes from its encoder, found ' + type(data).__name__),
        TarWriter(tmp_path / "a.tar", encoder={"bin": lambda _: data}) as writer,
    ):
        writer.write({"__key__": "a", "bin": 1})

    assert not list(tmp_path.iterdir())


def test_names_of_any_length_are_read_back_or_refused(tmp_path: Path) -> None:
    """No shard is written that a scan refuses for the length of a name; the writer goes on."""
    longest = "👾" * (200_000 - len(".txt"))
    with TarWriter(tmp_path / "a.tar") as writer:
        with raises(ValueError, "at most 200,000 characters together, found 200,001"):
            writer.write({"__key__": longest + "k", ".txt": "x"})
        writer.write({"__key__": longest, ".txt": "x"})

    with Shard(tmp_path / "a.tar") as shard:
        assert [sample["__key__"] for sample in shard] == [longest]


def test_stream_that_takes_few_bytes_at_a_time(tmp_path: Path) -> None:
    """All bytes reach a socket without a buffer, and their digest is that of the writer."""
    value = bytes(range(256)) * 4096
    ours, theirs = socket.socketpair()
    received = bytearray()

    def receive() -> None:
        while piece := theirs.recv(1 << 16):
            received.extend(piece)

    thread = threading.Thread(target=receive)
    thread.start()
    with ours, theirs:
        ours.settimeout(30)  # writes then take what fits into the system's buffer
        with ours.makefile("wb", buffering=0) as stream, TarWriter(stream) as writer:
            for key in "abc":
                writer.write({"__key__": key, ".bin": value})
        ours.shutdown(socket.SHUT_WR)
        thread.join()

    assert hashlib.sha256(received).hexdigest() == writer.sha256
    (tmp_path / "a.tar").write_bytes(received)
    with Shard(tmp_path / "a.tar") as shard:
        assert [sample[".bin"] == value for sample in shard] == [True] * 3


def test_stream_that_does_not_wait_is_an_error() -> None:
    """Bytes that a non-blocking pipe does not take are not left out."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with (
        os.fdopen(reading, "rb"),
        os.fdopen(writing, "wb", buffering=0) as stream,
        raises(BlockingIOError, "expected a stream that waits", "FileIO"),
        TarWriter(stream) as writer,
    ):
        writer.write({"__key__": "a", ".bin": bytes(1 << 22)})
