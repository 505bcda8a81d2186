"""One local tar as a sequence of raw samples."""

from __future__ import annotations

import doctest
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import num_open, raises, sample_members, write_tar

from wids import Shard
from wids.errors import FetchError, NotFoundError, ShardFormatError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tar(tmp_path / "a.tar", sample_members(0, 5))


def test_sample_is_fields_then_key(path: Path) -> None:
    """A raw sample has the stored bytes under the fields' names, in archive order, and its key."""
    with Shard(path) as shard:
        assert list(shard[2].items()) == [
            (".txt", b"text 2"),
            (".cls", b"2"),
            ("__key__", "s00002"),
        ]


def test_shard_is_a_sequence(path: Path) -> None:
    """Length, negative indices, iteration and ``IndexError`` are those of a list."""
    with Shard(path) as shard:
        assert len(shard) == 5
        assert shard[-1] == shard[4]
        assert [sample["__key__"] for sample in shard] == [f"s{i:05d}" for i in range(5)]
        for index in (5, -6):
            with raises(IndexError, f"a.tar: index {index} is out of range for 5 samples"):
                shard[index]


def test_negative_indices_of_all_ways_to_read(path: Path) -> None:
    """No way to read takes a negative index for another sample than ``shard[i]`` does."""
    with Shard(path) as shard:
        assert shard.read(-1) == shard.read(-1, verify=True) == shard[4]
        assert shard.read_many([0, -1, -5]) == [shard[0], shard[4], shard[0]]
        with raises(IndexError, "index -6 is out of range for 5 samples"):
            shard.read(-6)
        with raises(IndexError, "index -6 is out of range for 5 samples"):
            shard.read_many([0, -6])


def test_forms_of_raw_bytes(path: Path) -> None:
    """A field is bytes, a stream or a view as requested, and other fields are not read."""
    with Shard(path, fields=[".txt"], raw="stream") as shard:
        stream = shard[1]
    with Shard(path, raw="view") as shard:
        view = shard[1][".txt"]
    assert list(stream) == [".txt", "__key__"]
    assert isinstance(stream[".txt"], io.BytesIO)
    assert stream[".txt"].read() == b"text 1"
    assert isinstance(view, memoryview)
    assert view.readonly
    assert bytes(view) == b"text 1", "a view outlives its shard"


def test_missing_file_is_named(tmp_path: Path) -> None:
    """The error is a ``FileNotFoundError`` that names the path."""
    with raises(NotFoundError, "gone.tar: no such file", "check the path"):
        Shard(tmp_path / "gone.tar")
    assert issubclass(NotFoundError, FileNotFoundError)


def test_folder_and_empty_file_are_refused(tmp_path: Path) -> None:
    """The error says that the path is a folder, or that the file is empty."""
    (tmp_path / "empty.tar").touch()

    with raises(FetchError, str(tmp_path), "expected a readable file, found: a folder"):
        Shard(tmp_path)
    with raises(ShardFormatError, "empty.tar: expected a tar, found an empty file"):
        Shard(tmp_path / "empty.tar")


def test_file_cut_short_is_an_error_not_a_signal(path: Path) -> None:
    """A shard that is truncated while it is mapped raises an error; a plain read would crash.

    SEC-7.
    """
    code = (
        "import os, sys, wids\n"
        "shard = wids.Shard(sys.argv[1])\n"
        "os.truncate(sys.argv[1], 512)\n"
        "shard.check()\n"
    )

    result = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )

    assert result.returncode == 1
    assert "ShardFormatError" in result.stderr
    assert "found 512; it was changed in place" in result.stderr


def test_replaced_file_keeps_its_old_bytes(path: Path, tmp_path: Path) -> None:
    """An open shard reads the file that it opened; opened again, the new file (SEC-7)."""
    with Shard(path) as shard:
        os.replace(write_tar(tmp_path / "b.tar", [("new.txt", b"new")]), path)

        assert shard[0][".txt"] == b"text 0"
    with Shard(path) as shard:
        assert shard[0][".txt"] == b"new"


def test_a_descriptor_that_is_passed_is_closed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is of a folder, which is an error as by its name."""
    handle = os.open(tmp_path, os.O_RDONLY)
    closed: list[int] = []
    close = os.close

    def noted_close(handle: int) -> None:
        closed.append(handle)
        close(handle)

    with monkeypatch.context() as patches:
        patches.setattr(os, "close", noted_close)
        with raises(FetchError, str(tmp_path), "expected a readable file, found: a folder"):
            Shard(tmp_path, handle=handle)
    assert handle in closed
    with Shard(path, handle=os.open(path, os.O_RDONLY)) as shard:
        assert len(shard) == 5


def test_read_only_folder_is_left_alone(path: Path) -> None:
    """Reading writes nothing, so it works in a read-only folder."""
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        before = sorted(path.parent.rglob("*"))
        with Shard(path) as shard:
            assert shard[0][".cls"] == b"0"
        assert sorted(path.parent.rglob("*")) == before
    finally:
        path.parent.chmod(0o755)


def test_one_descriptor_for_an_open_shard(path: Path) -> None:
    """An open shard holds one file descriptor, a closed one none."""
    shard = Shard(path)
    assert num_open(path) == 1
    shard.close()
    assert num_open(path) == 0


def test_closed_shard_ends_its_iteration(path: Path) -> None:
    """An abandoned iteration over a closed shard ends without an error."""
    shard = Shard(path)
    samples = iter(shard)
    next(samples)
    shard.close()
    samples.close()  # type: ignore[attr-defined]


def test_impossible_path_is_refused() -> None:
    """A path that no file can have is an error that shows the path."""
    with raises(FetchError, "'a\\x00.tar': expected a path"):
        Shard("a\0.tar")


def test_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example in the docstring of `Shard` prints what it says."""
    monkeypatch.chdir(tmp_path)
    (example,) = doctest.DocTestFinder(recurse=False).find(Shard, "Shard", globs={})

    assert doctest.DocTestRunner().run(example) == (0, 3)
