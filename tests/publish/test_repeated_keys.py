"""Keys that occur in several shards: found with a dataset index or without, and named."""

from __future__ import annotations

import logging
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from conftest import write_tar

from wids import ShardWriter, build_spec, verify_spec
from wids.shards.indexes import dataset_index_writer
from wids.shards.tars.index import ShardIndex


def shard(folder: Path, name: str, *keys: str) -> Path:
    return write_tar(folder / name, [(f"{key}.txt", key.encode()) for key in keys])


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Three shards; the second repeats two keys of the first."""
    return [
        shard(tmp_path, "a.tar", "0", "1", "2", "3"),
        shard(tmp_path, "b.tar", "4", "2", "1"),
        shard(tmp_path, "c.tar", "5", "6"),
    ]


TEXT = '2 keys occur in several shards: "1" in a.tar and b.tar, "2" in a.tar and b.tar'


@pytest.mark.parametrize("has_index", [True, False])
def test_build_and_verify_report_them(
    has_index: bool, shards: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A build warns; they are a problem for a verification."""
    spec = build_spec(shards, dataset_index=tmp_path / "a.index" if has_index else None)
    assert TEXT in caplog.text
    (problem,) = verify_spec(spec)
    assert problem.shard == str(shards[1])
    assert problem.text == f"{TEXT}; a lookup finds the first sample only"
    with ProcessPoolExecutor(2) as executor:
        assert verify_spec(spec, executor=executor) == [problem]


def test_a_writer_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The samples are written nevertheless."""
    with ShardWriter(tmp_path / "a-%d.tar", maxcount=2) as writer:
        for key in "0121":
            writer.write({"__key__": key, "txt": key})
    assert '1 key occurs in several shards: "1" in a-0.tar and a-1.tar' in caplog.text
    assert len(verify_spec(tmp_path / "a.json")) == 1


def test_at_most_three_are_named(tmp_path: Path) -> None:
    """However many there are; the count has all of them."""
    keys = [f"{n:04d}" for n in range(500)]
    shards = [shard(tmp_path, f"{name}.tar", *keys) for name in "abc"]
    (problem,) = verify_spec(shards)
    assert problem.text.startswith('500 keys occur in several shards: "0000" in a.tar and b.tar, ')
    assert problem.text.count(" in a.tar and b.tar") == 3
    assert ", …; " in problem.text


def test_escape_characters_of_keys_reach_no_terminal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in the warning, which goes to stderr."""
    build_spec([shard(tmp_path, f"{name}.tar", "\x1b[31m") for name in "ab"])
    assert '"\\x1b[31m" in a.tar and b.tar' in caplog.records[-1].getMessage()


def test_shards_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """By their paths."""
    (tmp_path / "x").mkdir()
    first, second = shard(tmp_path, "a.tar", "0"), shard(tmp_path / "x", "a.tar", "0")
    (problem,) = verify_spec([first, second])
    assert f'"0" in {first} and {second}' in problem.text


def test_what_is_no_mistake(
    shards: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A shard that is listed twice, and datasets that number their samples alike."""
    build_spec([shards[0], shards[2], shards[0]])
    assert verify_spec([shards[0], shards[2], shards[0]]) == []
    for name, path in zip("xy", shards, strict=False):
        build_spec([path], name=name).save(tmp_path / f"{name}.json")
    assert verify_spec([tmp_path / "x.json", tmp_path / "y.json"]) == []
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_equal_hashes_are_not_equal_keys(
    shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys themselves are compared."""

    def colliding(shard_index: ShardIndex) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return np.array([int(shard_index.key(n)) % 2 for n in range(len(shard_index))], np.uint64)

    monkeypatch.setattr(dataset_index_writer, "_key_hashes", colliding)
    spec = build_spec([shards[0], shards[2]], dataset_index=tmp_path / "a.index")
    assert verify_spec(spec) == []
    assert len(verify_spec(build_spec(shards, dataset_index=tmp_path / "a.index"))) == 1
