"""Descriptions of shards ↔ a folder of records that survives interruptions."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, raises, sample_members, write_shards, write_tar
from loopback import flipped

from wids import ShardFormatError, build_spec
from wids.publish import new_spec
from wids.publish.describe import ShardRecord, describe_shard
from wids.publish.journal import JobPart, Journal, ShardTask, opened_journal
from wids.storage import locks


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
    spec = build_spec(shards, journal=journal, dataset_index=tmp_path / "a.index")
    assert asked == [str(shards[2])]
    assert [shard.num_samples for shard in spec.shards] == [8, 5, 7]


@pytest.mark.parametrize("nbytes", [0, 1, 20, 100, -1])
def test_a_torn_record_does_not_count(nbytes: int, shards: list[Path], tmp_path: Path) -> None:
    """After a power failure a file may be empty or cut, and a bit may flip: it is read again."""
    journal = tmp_path / "journal"
    expected = build_spec(shards[:1], journal=journal)
    (record,) = (path for path in journal.iterdir() if path.name != "lock")
    for data in (record.read_bytes()[:nbytes], flipped(record.read_bytes(), nbytes % 90)):
        record.write_bytes(data)
        task = ShardTask(str(shards[0]), None, None, "")
        assert Journal(str(journal)).find(task, is_whole=True) is None
        with raises(OSError, "journal: expected the record of", "found none or damaged bytes"):
            Journal(str(journal)).index(task)
        assert build_spec(shards[:1], journal=journal) == expected


def test_other_files_and_journals_in_use_are_left_alone(shards: list[Path], tmp_path: Path) -> None:
    """Something else of that name stays as it is, and so does a journal that is in use."""
    other, folder = tmp_path / "notes", tmp_path / "folder"
    other.write_text("something of the user's own")
    folder.mkdir()
    (folder / "letter").touch()
    for path in (other, folder):
        with raises(FileExistsError, f"{path}: expected a journal", "move it away"):
            build_spec(shards, journal=path)
    assert other.read_text() == "something of the user's own"
    assert [path.name for path in folder.iterdir()] == ["letter"]

    journal = Journal(str(tmp_path / "journal"))
    with journal.alone():
        journal.add(describe_shard(str(shards[0])))
        with raises(OSError, "journal: another process is at work on these shards"):
            build_spec(shards, journal=journal.path)
        with (
            raises(OSError, "another process is at work on all of these shards"),
            journal.part(JobPart(1, 2), "plan"),
        ):
            pass
    assert journal.has_records


def test_parts_at_once(tmp_path: Path) -> None:
    """Parts keep others from themselves, and from all of the work, but not from other parts."""
    journal = Journal(str(tmp_path / "journal"))
    with journal.part(JobPart(1, 2), "plan"):
        with journal.part(JobPart(2, 2), "plan"):
            pass
        with (
            raises(OSError, "journal: another process is at work on part 1/2"),
            journal.part(JobPart(1, 2), "plan"),
        ):
            pass
        with raises(OSError, "another process is at work on these shards"), journal.alone():
            pass
        with (
            raises(FileExistsError, "journal: expected a journal of these shards and options"),
            journal.part(JobPart(2, 2), "another plan"),
        ):
            pass
    assert journal.plan == "plan"


def test_a_part_begins_beside_one_that_failed(tmp_path: Path) -> None:
    """A part that fails before its first record looks whether others are at work."""
    failed, beginning = (Journal(str(tmp_path / "journal")) for _ in range(2))
    is_over = threading.Event()

    def fail() -> None:
        while not is_over.wait(0.005):
            with failed.part(JobPart(1, 2), "plan"):
                pass
            failed.abandon()

    thread = threading.Thread(target=fail)
    thread.start()
    try:
        for _ in range(1000):
            with beginning.part(JobPart(2, 2), "plan"):
                pass
    finally:
        is_over.set()
        thread.join()


def test_one_of_two_plans_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where locks do not work, two runs of different work do not both believe they are alone."""
    monkeypatch.setattr(locks, "fcntl", None)
    journals = [Journal(str(tmp_path / "journal")) for _ in range(2)]
    with journals[0].alone(), journals[1].alone():
        journals[0].begin("one")
        with raises(FileExistsError, "found one of others"):
            journals[1].begin("another")
        journals[1].begin("one")
    assert os.listdir(tmp_path / "journal") == ["plan", "lock"] or journals[0].plan == "one"


def test_a_journal_that_is_deleted_while_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for its lock begins another one, in a folder that is there."""
    journal = Journal(str(tmp_path / "journal"))
    with journal.alone():
        journal.begin("plan")
    holding, done = locks.holding, []

    def late(path: str, **options: Any) -> Any:
        if not done:
            done.append(path)
            journal.delete()
        return holding(path, **options)

    monkeypatch.setattr(locks, "holding", late)
    with journal.alone():
        assert sorted(os.listdir(journal)) == ["lock"]
    assert os.listdir(tmp_path) == []


def test_no_file_is_open_that_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, which has no locks here either, refuses that."""
    monkeypatch.setattr(locks, "fcntl", None)
    unlink, num_deleted = os.unlink, 0

    def closed(name: str) -> None:
        nonlocal num_deleted
        num_deleted += 1
        links = [f"/proc/self/fd/{handle}" for handle in os.listdir("/proc/self/fd")]
        assert name not in [os.readlink(link) for link in links if os.path.islink(link)]
        unlink(name)

    monkeypatch.setattr(os, "unlink", closed)
    journal = Journal(str(tmp_path / "journal"))
    with journal.part(JobPart(1, 1), "plan"):
        journal.add(ShardRecord("s3://bucket/a.tar", "first", None, 3, 10, None, b"index"))
    with journal.alone():
        journal.delete()
    assert num_deleted >= 4, "plan, record, part and lock"
    assert os.listdir(tmp_path) == []


def test_files_of_others_in_a_journal_stay(tmp_path: Path) -> None:
    """Only its own files are deleted, whenever the others came."""
    journal = Journal(str(tmp_path / "journal"))
    with journal.alone():
        journal.begin("plan")
        (tmp_path / "journal" / "letter").touch()
        journal.delete()
    assert os.listdir(journal) == ["letter"]


def test_completed_work_stays_when_another_shard_fails(tmp_path: Path, shards: list[Path]) -> None:
    """Wherever the bad shard is, shards that were read are not read again."""
    bad = tmp_path / "a-bad.tar"
    bad.write_bytes(b"<html>" * 200)
    journal = tmp_path / "journal"
    with ThreadPoolExecutor(1) as executor, raises(ShardFormatError, "a-bad.tar"):
        build_spec([*shards, bad], journal=journal, executor=executor)
    assert {record.url for record in Journal(str(journal))} == set(map(str, shards))
    shutil.rmtree(journal)
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


def test_records_of_other_sources_are_others(tmp_path: Path) -> None:
    """What was made from something else is no record of this shard, in a temporary journal too."""
    record = ShardRecord("s3://b/a.tar", "first", None, 3, 10, None, b"index", "from files")
    task = ShardTask(record.url, None, None, "")
    made = replace(task, source="from files")
    with opened_journal(None) as temporary, opened_journal(tmp_path / "journal") as log:
        for journal in (temporary, log):
            journal.add(record)
            journal.add(replace(record, blob=b"again"))
            assert journal.find(task) is None
            assert journal.record(made).blob == b""
            assert journal.record(made, is_whole=True).blob == b"again"
            assert [found.url for found in journal] == [record.url]
    assert os.listdir(tmp_path) == ["journal"]


def test_a_full_disk_names_the_journal(small_disk: Path) -> None:
    """It may be the first file that does not fit."""
    tar, path = write_tar(small_disk / "a.tar", sample_members(0, 1)), small_disk / "a.journal"
    record = replace(describe_shard(str(tar)), blob=bytes(1 << 20))
    with raises(OSError, f"No space left on device: '{path}/"), opened_journal(path) as journal:
        journal.add(record)
