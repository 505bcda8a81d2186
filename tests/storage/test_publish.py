"""A file that appears complete or not at all."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import nullcontext
from pathlib import Path

import pytest
from conftest import raises

from wids.storage.files import replacing


def test_file_appears_at_the_end(tmp_path: Path) -> None:
    """Readers see the old file until the block ends, then the new one, and nothing beside it."""
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"

    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_failure_leaves_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    """If the block fails, the old file stays, and nothing is left beside it."""
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(error), replacing(path):
        raise error

    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_errors_have_the_final_name(tmp_path: Path) -> None:
    """A folder that is missing is an error with the name of the file, not of a temporary one."""
    path = tmp_path / "none" / "a.json"
    with pytest.raises(FileNotFoundError) as caught, replacing(path):
        raise AssertionError
    assert caught.value.filename == str(path)


def test_mode_follows_the_umask(tmp_path: Path) -> None:
    """The permissions are those of other files that the user makes."""
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "a"):
            pass
        with replacing(tmp_path / "b", mode=0o600):
            pass
    finally:
        os.umask(before)

    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"]
    assert modes == [0o640, 0o600]


def test_longest_names_can_be_written(tmp_path: Path) -> None:
    """A file can have as long a name as the file system allows."""
    for name in ("猫" * 83 + ".tar", "a" * 251 + ".tar"):
        with replacing(tmp_path / name):
            pass
        assert (tmp_path / name).exists()


def test_the_name_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is flushed too: a power failure does not take the file back (SPEC-16).

    Its descriptor is closed then.
    """
    done: list[str] = []
    fsync, replace, close = os.fsync, os.replace, os.close

    def noted_fsync(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def noted_replace(*paths: str) -> None:
        done.append("rename")
        replace(*paths)

    def noted_close(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            done.append("close")
        close(handle)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    monkeypatch.setattr(os, "close", noted_close)
    with replacing(tmp_path / "a"):
        pass
    assert done == ["file", "rename", "folder", "close"]


@pytest.mark.parametrize(
    ("number", "is_raised"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)]
)
def test_folders_that_cannot_be_flushed(
    number: int, is_raised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file system has no such operation nothing is lost; an error of the disk is one.

    The descriptor of the folder is closed in any case.
    """
    fsync, close = os.fsync, os.close
    flushed: list[int] = []
    closed: list[int] = []

    def failing(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            flushed.append(handle)
            raise OSError(number, os.strerror(number))
        fsync(handle)

    def noted_close(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            closed.append(handle)
        close(handle)

    monkeypatch.setattr(os, "fsync", failing)
    monkeypatch.setattr(os, "close", noted_close)
    with raises(OSError, "output error") if is_raised else nullcontext():
        with replacing(tmp_path / "a"):
            pass
    assert os.listdir(tmp_path) == ["a"]
    assert len(flushed) == 1
    assert flushed == closed
