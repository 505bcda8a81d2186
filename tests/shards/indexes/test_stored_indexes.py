"""Indexes that datasets store in the cache folder, and when they use them."""

from __future__ import annotations

import multiprocessing
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import sample_members, settle, write_tar
from events import LONG_S

from wids import Shard, ShardListDataset
from wids.shards.indexes import index_file
from wids.shards.tars import scan
from wids.shards.tars.index import ShardIndex, TarIdentity, index_tar


@pytest.fixture
def shard_path(tmp_path: Path) -> Path:
    members = [*sample_members(0, 7), ("README", b"?"), ("é.seg.png", b"x" * 700)]
    return settle(write_tar(tmp_path / "a.tar", [*members, ("s00003.new.txt", b"new")]))


def stored(folder: Path) -> list[Path]:
    return sorted((folder / "indexes").glob("*")) if folder.exists() else []


def test_index_is_made_once(
    shard_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second dataset does not scan, and has the same samples (INDEX-1)."""
    with ShardListDataset(shard_path) as dataset:
        expected = list(dataset[:7])
    monkeypatch.setattr(scan, "scan", None)

    with ShardListDataset(shard_path) as dataset:
        assert list(dataset[:7]) == expected
    (file,) = stored(own_cache)
    assert file.name.endswith("-a.tar.index")


def test_index_of_a_long_name_is_stored(tmp_path: Path, own_cache: Path) -> None:
    """A tar whose name has 255 bytes, in any script, gets an index whose name fits."""
    path = settle(write_tar(tmp_path / ("𠀀" * 60 + ".tar"), sample_members(0, 2)))
    with ShardListDataset(path) as dataset:
        assert len(dataset) == 2
    assert len(stored(own_cache)) == 1


def test_cache_is_the_users_own(shard_path: Path, own_cache: Path) -> None:
    """Other users cannot read the folders and files of the cache (INDEX-4)."""
    with ShardListDataset(shard_path):
        pass

    (file,) = stored(own_cache)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (own_cache, file.parent, file)]
    assert modes == [0o700, 0o700, 0o600]


def test_cache_folder_is_chosen_by_argument(shard_path: Path, own_cache: Path) -> None:
    """``cache_dir`` overrides the environment."""
    folder = shard_path.parent / "mine"

    with ShardListDataset(shard_path, cache_dir=folder):
        pass

    assert len(stored(folder)) == 1
    assert stored(own_cache) == []


def test_index_of_a_young_tar_is_not_stored(shard_path: Path, own_cache: Path) -> None:
    """A tar that was just written may change again within the resolution of its time (INDEX-1)."""
    os.utime(shard_path, (time.time() + LONG_S,) * 2)  # still young when it is opened
    with ShardListDataset(shard_path) as dataset:
        assert len(dataset) == 8

    assert stored(own_cache) == []


def test_rewritten_tar_is_noticed(shard_path: Path, own_cache: Path) -> None:
    """A regenerated shard, even of equal length, is scanned again, and its index replaced."""
    with ShardListDataset(shard_path) as dataset:
        assert dataset[0][".txt"] == "text 0"
    before = stored(own_cache)
    size = shard_path.stat().st_size
    members = [*sample_members(50, 57), ("README", b"?"), ("é.seg.png", b"x" * 700)]
    write_tar(shard_path, [*members, ("s00053.new.txt", b"new")])
    assert shard_path.stat().st_size == size
    os.utime(shard_path, (1_600_000_000, 1_600_000_000))

    with ShardListDataset(shard_path) as dataset:
        assert dataset[0][".txt"] == "text 50"
        assert dataset.get_by_key("s00056")[".cls"] == 6
    assert stored(own_cache) == before


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "foreign"])
def test_damaged_index_is_replaced(shard_path: Path, own_cache: Path, damage: str) -> None:
    """Whatever is stored in place of an index, samples are right, and the index is replaced."""
    with ShardListDataset(shard_path) as dataset:
        expected = list(dataset[:7])
    (file,) = stored(own_cache)
    good = file.read_bytes()
    bad = {
        "empty": b"",
        "truncated": good[:-8],
        "flipped": good[:200] + bytes([good[200] ^ 4]) + good[201:],
        "foreign": b"something else altogether" * 100,
    }[damage]
    file.write_bytes(bad)

    with ShardListDataset(shard_path) as dataset:
        assert list(dataset[:7]) == expected
    assert file.read_bytes() == good


def test_each_key_rule_has_its_own_index(tmp_path: Path, own_cache: Path) -> None:
    """The same tar by the other rule has another index, and neither replaces the other."""
    path = settle(write_tar(tmp_path / "a.tar", [("a.b.txt", b"1"), ("a.c.txt", b"2")]))
    for _ in range(2):
        for rule, count in (("first", 1), ("last", 2)):
            with ShardListDataset(path, key_split=rule) as dataset:  # type: ignore[arg-type]
                assert len(dataset) == count
    assert len(stored(own_cache)) == 2


def test_cache_that_cannot_be_written_changes_nothing(shard_path: Path) -> None:
    """Samples are the same if the cache folder is a file, or cannot be made (INDEX-4)."""
    blocked = shard_path.parent / "file"
    blocked.write_text("not a folder")
    for folder in (blocked, blocked / "below", "/proc/nothing"):
        with ShardListDataset(shard_path, cache_dir=folder) as dataset:
            assert dataset[3][".new.txt"] == "new"
    assert blocked.read_text() == "not a folder"


def _read_all(path: str, folder: str, barrier: Any, results: Any) -> None:
    barrier.wait()
    with ShardListDataset(path, cache_dir=folder, transformations=None, raw="bytes") as dataset:
        results.put([sample[".cls"] for sample in dataset])


def test_processes_that_index_at_once_do_not_disturb(tmp_path: Path) -> None:
    """Four processes that open the same new shard all read it right, and store one valid index."""
    path = settle(write_tar(tmp_path / "a.tar", sample_members(0, 3000)))
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    folder = str(tmp_path / "cache")
    processes = [
        context.Process(target=_read_all, args=(str(path), folder, barrier, results))
        for _ in range(4)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()

    assert found == [[str(i % 10).encode() for i in range(3000)]] * 4
    (file,) = stored(Path(folder))
    assert index_file.load(str(file), TarIdentity.of_file(path.stat()), "first")


def test_shard_uses_the_index_it_is_given(shard_path: Path) -> None:
    """A shard calls ``find_index`` once, with path, bytes and identity of what it opened."""
    asked = []

    def find_index(path: str, data: Any, identity: TarIdentity) -> ShardIndex:
        asked.append((path, len(data), identity.nbytes))
        return index_tar(shard_path.read_bytes())

    with Shard(shard_path, find_index=find_index) as shard:
        assert shard[0][".txt"] == b"text 0"
    size = shard_path.stat().st_size
    assert asked == [(str(shard_path), size, size)]


def test_index_of_another_user_is_not_used(
    shard_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache folder that users share, each trusts only its own files (INDEX-3)."""
    with ShardListDataset(shard_path) as dataset:
        expected = list(dataset[:7])
    (file,) = stored(own_cache)
    identity = TarIdentity.of_file(shard_path.stat())
    assert index_file.load(str(file), identity, "first") is not None

    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    assert index_file.load(str(file), identity, "first") is None
    with ShardListDataset(shard_path) as dataset:
        assert list(dataset[:7]) == expected
