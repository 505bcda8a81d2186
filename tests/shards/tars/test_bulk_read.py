"""Many spans of a file, also where its path leads to another file by now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import raises, write_tar

import wids
from wids import ShardFormatError

MEMBERS = [(f"{n:03d}.{ext}", data) for n in range(9) for ext, data in (("cls", b"%d" % n),)]


@pytest.mark.parametrize("is_dense", [True, False])
def test_a_file_that_was_replaced_is_read_as_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_dense: bool
) -> None:
    """Its bytes are those of the map, and never those of the new file under its name."""
    if not is_dense:
        monkeypatch.setattr("wids.shards.tars.shard._DENSE_NBYTES", 0)
    path = write_tar(tmp_path / "a.tar", MEMBERS)
    with wids.Shard(path) as shard:
        members = shard.index.members_of(".cls")[1]
        expected = [data for _, data in MEMBERS]
        assert shard.read_members(members) == expected
        other = write_tar(tmp_path / "b.tar", [(name, b"x") for name, _ in MEMBERS])
        os.replace(other, path)
        assert shard.read_members(members) == expected
        path.unlink()
        assert shard.read_members(members) == expected


def test_a_file_that_was_cut_is_an_error(tmp_path: Path) -> None:
    """To touch a page that it lost would kill the process."""
    path = write_tar(tmp_path / "a.tar", MEMBERS)
    with wids.Shard(path) as shard:
        os.truncate(path, 1024)
        with raises(ShardFormatError, "it was changed in place"):
            shard.read_members(shard.index.members_of(".cls")[1])
