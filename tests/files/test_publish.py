"""A file that appears complete or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wids.files.publish import replacing


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
