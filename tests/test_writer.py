"""Samples → a tar shard."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import raises

from wids import Shard, TarWriter, build_pack, load_spec
from wids.build import save_pack

SAMPLES: list[dict[str, Any]] = [
    {"__key__": "a", ".txt": "one", "cls": 1, "__index__": 7},
    {"__key__": "猫/" + "k" * 120, "seg.png": b"x", ".TXT": "two"},
]


def write(target: Any) -> TarWriter:
    with TarWriter(target) as writer:
        for sample in SAMPLES:
            writer.write(sample)
    return writer


def test_samples_come_back(tmp_path: Path) -> None:
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
    """Before the end the shard has no name, and after an error it leaves nothing."""
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
    ],
)
def test_sample_that_would_not_come_back_is_refused(sample: dict[str, Any], message: str) -> None:
    """What a reader would split otherwise is an error at once, not a wrong sample later."""
    with raises(ValueError, message), TarWriter(io.BytesIO()) as writer:
        writer.write(sample)


def test_same_key_twice_is_refused() -> None:
    """Two samples of one key would be read as one."""
    with (
        raises(ValueError, "sample 'a': expected a new key"),
        TarWriter(io.BytesIO()) as writer,
    ):
        writer.write({"__key__": "a", ".txt": "x"})
        writer.write({"__key__": "a", ".cls": 1})


def test_refused_sample_leaves_no_member(tmp_path: Path) -> None:
    """A value that cannot be encoded leaves no half sample behind."""
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


def test_failed_end_leaves_nothing(tmp_path: Path) -> None:
    """Where a shard cannot take its name, no part of it stays."""
    (tmp_path / "a.tar").mkdir()
    with raises(IsADirectoryError, "a.tar"), TarWriter(tmp_path / "a.tar") as writer:
        writer.write(SAMPLES[0])

    assert os.listdir(tmp_path) == ["a.tar"]
    writer.close()


def test_index_of_the_finished_shard(tmp_path: Path) -> None:
    """A writer gives the index of what it wrote, to be published with it."""
    writer = write(tmp_path / "a.tar")

    assert writer.index is not None
    assert [writer.index.key(i) for i in range(len(writer.index))] == ["a", "猫/" + "k" * 120]
    save_pack(tmp_path / "a.index", [("a.tar", writer.nbytes, writer.index)])
    build_pack(load_spec([tmp_path / "a.tar"]), tmp_path / "b.index")
    assert (tmp_path / "a.index").read_bytes() == (tmp_path / "b.index").read_bytes()
