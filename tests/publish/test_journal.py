"""Descriptions of shards ↔ a file that survives interruptions."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, raises, sample_members, write_shards, write_tar

from wids import ShardFormatError, build_spec
from wids.publish import new_spec
from wids.publish.describe import describe_shard
from wids.publish.journal import Journal


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    write_shards(tmp_path, [8, 5, 7])
    return sorted(tmp_path.glob("*.tar"))


def test_an_interrupted_run_is_resumed(
    shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that was read before a kill is not read again, unless its record is incomplete."""
    journal = tmp_path / "journal"
    described = new_spec.describe_shard

    def work() -> bool:
        def until_the_last(path: str, *rule: Any) -> Any:
            if path == str(shards[2]):
                os.kill(os.getpid(), signal.SIGKILL)
            return described(path, *rule)

        monkeypatch.setattr(new_spec, "describe_shard", until_the_last)
        build_spec(shards, journal=journal)
        return True

    assert not in_child(work)
    asked: list[str] = []

    def noted(path: str, *rule: Any) -> Any:
        asked.append(path)
        return described(path, *rule)

    monkeypatch.setattr(new_spec, "describe_shard", noted)
    data = journal.read_bytes()
    for cut, expected in ((len(data), shards[2:]), (len(data) - 1, shards[1:]), (20, shards)):
        journal.write_bytes(data[:cut])
        asked.clear()
        spec = build_spec(shards, journal=journal, dataset_index=tmp_path / "a.index")
        assert asked == list(map(str, expected))
        assert [shard.num_samples for shard in spec.shards] == [8, 5, 7]
    damaged = bytearray(data)
    damaged[60] ^= 1
    journal.write_bytes(damaged)
    asked.clear()
    build_spec(shards, journal=journal)
    assert len(asked) == 3


def test_a_record_after_a_torn_one(tmp_path: Path) -> None:
    """What a killed run wrote of a record is cut off, or it would hide all that follow."""
    path = tmp_path / "journal"
    with Journal(path) as log:
        log.begin("first")
        log.begin("second, killed")
    path.write_bytes(path.read_bytes()[:-3])
    with Journal(path) as log:
        assert log.plan == "first"
        log.begin("third")
    with Journal(path) as log:
        assert log.plan == "third"


def test_other_files_and_journals_in_use_are_left_alone(shards: list[Path], tmp_path: Path) -> None:
    """Another file of that name stays as it is; a journal that is being written is not touched."""
    other = tmp_path / "notes"
    other.write_text("something of the user's own" * 10)
    with raises(FileExistsError, "notes: expected a journal", "move it away"):
        build_spec(shards, journal=other)
    assert other.read_text() == "something of the user's own" * 10

    journal = tmp_path / "journal"
    with Journal(journal) as first:
        first.add(describe_shard(str(shards[0])))
        with raises(OSError, "another process is describing these shards"):
            build_spec(shards, journal=journal)
    assert journal.exists()


def test_a_record_survives_an_interruption_at_once(shards: list[Path], tmp_path: Path) -> None:
    """An interruption between writing a record and noting it: the file counts."""
    journal = tmp_path / "journal"
    with Journal(journal) as log:
        log.add(describe_shard(str(shards[0])))
        log._places.clear()
    with Journal(journal) as log:
        assert (str(shards[0]), "first") in log


def test_completed_work_stays_when_another_shard_fails(tmp_path: Path, shards: list[Path]) -> None:
    """Wherever the bad shard is, shards that were read are not read again."""
    bad = tmp_path / "a-bad.tar"
    bad.write_bytes(b"<html>" * 200)
    journal = tmp_path / "journal"
    with ThreadPoolExecutor(1) as executor, raises(ShardFormatError, "a-bad.tar"):
        build_spec([*shards, bad], journal=journal, executor=executor)
    with Journal(journal) as log:
        assert all((str(path), "first") in log for path in shards)
    journal.unlink()
    with raises(ShardFormatError, "a-bad.tar"):
        build_spec([bad], journal=journal)
    assert not journal.exists(), "a journal without a record is deleted"


def test_a_shard_that_has_changed_is_read_again(shards: list[Path], tmp_path: Path) -> None:
    """A record of a local shard counts only while the file is unchanged."""
    journal = tmp_path / "journal"
    write_tar(tmp_path / "bad.tar", [])
    (tmp_path / "bad.tar").write_bytes(b"<html>" * 200)
    with raises(ShardFormatError, "bad.tar"):
        build_spec([*shards, tmp_path / "bad.tar"], journal=journal)
    write_tar(shards[0], sample_members(0, 3))

    spec = build_spec(shards, journal=journal)

    assert [shard.num_samples for shard in spec.shards] == [3, 5, 7]


def test_an_edited_shard_whose_time_was_kept_is_read_again(
    shards: list[Path], tmp_path: Path
) -> None:
    """Programs set the time of modification, and no length need change: ctime is compared too."""
    journal = tmp_path / "journal"
    before = build_spec(shards, journal=journal)
    status = shards[0].stat()
    shards[0].write_bytes(shards[0].read_bytes().replace(b"text 3", b"TEXT 3"))
    os.utime(shards[0], ns=(status.st_atime_ns, status.st_mtime_ns))

    after = build_spec(shards, journal=journal)

    assert after.shards[0].sha256 == hashlib.sha256(shards[0].read_bytes()).hexdigest()
    assert after.shards[0].sha256 != before.shards[0].sha256
    assert after.shards[1:] == before.shards[1:]


def test_a_shard_that_was_copied_is_not_described_again(
    shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restored backup has another ctime and the same bytes: its record counts."""
    journal = tmp_path / "journal"
    expected = build_spec(shards, journal=journal)
    for path in shards:
        shutil.copy(path, tmp_path / "copy")
        (tmp_path / "copy").replace(path)
    monkeypatch.setattr(new_spec, "describe_shard", None)
    assert build_spec(shards, journal=journal) == expected


def test_a_plan_of_an_earlier_version_counts(shards: list[Path], tmp_path: Path) -> None:
    """It was stored as the description of a shard whose digest is empty; others follow it."""
    path = tmp_path / "journal"
    fields = {"url": "/out/train.json", "key_split": "first", "identity": None}
    fields |= {"num_samples": 0, "nbytes": 0, "sha256": "", "source": "digest"}
    head = json.dumps(fields).encode()
    start = struct.pack("<QQI", len(head), 0, zlib.crc32(head))
    path.write_bytes(b"wids journal 2\n" + start + head)
    with Journal(path) as log:
        assert (log.plan, list(log)) == ("digest", [])
        log.add(describe_shard(str(shards[0])))
    with Journal(path) as log:
        assert log.is_of("digest")
        assert list(log) == [(str(shards[0]), "first")]
        with raises(FileExistsError, "journal: expected a journal of these shards and options"):
            log.is_of("another")


def test_a_full_disk_names_the_journal(small_disk: Path) -> None:
    """It may be the first file that does not fit."""
    tar, path = write_tar(small_disk / "a.tar", sample_members(0, 1)), small_disk / "a.journal"
    record = replace(describe_shard(str(tar)), blob=bytes(1 << 20))
    with raises(OSError, f"No space left on device: '{path}'"), Journal(path) as journal:
        journal.add(record)
