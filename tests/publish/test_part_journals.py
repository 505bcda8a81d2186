"""The journal of a part, and several processes that do the same part."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, raises

from wids.publish import journal
from wids.publish.describe import ShardRecord
from wids.publish.journal import JobPart, Journal, collect_parts, part_journal
from wids.storage import locks

PART = JobPart(1, 2)
PLAN = "digest"
RECORD = ShardRecord("s3://bucket/a.tar", "first", None, 3, 10, None, b"index")
TASK = (RECORD.url, RECORD.key_split)


def work(path: str) -> bool:
    """Do the part; return whether it was already done."""
    with part_journal(path, PART, PLAN) as log:
        was_done = TASK in log
        if not was_done:
            log.add(RECORD)
    return was_done


def test_a_part_has_its_name_while_it_is_locked(tmp_path: Path) -> None:
    """Nobody opens the journal between its last record and its final name."""
    path = str(tmp_path / "train.partial")
    ours, theirs = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        rename = os.replace

        def waiting(*names: Any) -> None:
            os.write(ours[1], b".")
            os.read(theirs[0], 1)
            rename(*names)

        os.replace = waiting
        status = 1
        try:
            status = int(work(path))
        finally:
            os._exit(status)
    try:
        assert os.read(ours[0], 1) == b"."
        with raises(OSError, "train.partial-1-of-2.unfinished: another process"):
            work(path)
    finally:
        os.write(theirs[1], b".")
        assert os.waitpid(child, 0)[1] == 0
        for handle in (*ours, *theirs):
            os.close(handle)
    assert work(path), "the other process completed it"
    assert os.listdir(tmp_path) == ["train.partial-1-of-2"]


@pytest.mark.parametrize("name", ["before", "between"])
def test_a_part_that_is_completed_meanwhile(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process completes it before its journal is opened, or is locked."""
    path = str(tmp_path / "train.partial")
    with Journal(PART.path(path) + ".unfinished") as log:
        log.begin(PLAN)
    module, function = {
        "before": (journal, "Journal"),
        "between": (locks, "holding"),
    }[name]
    call = getattr(module, function)

    def late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        assert in_child(lambda: not work(path))
        return call(*arguments, **options)

    monkeypatch.setattr(module, function, late)
    assert work(path), "the other process completed it"
    assert os.listdir(tmp_path) == ["train.partial-1-of-2"]
    with Journal(PART.path(path)) as log:
        assert (log.plan, list(log)) == (PLAN, [TASK])


def test_no_file_is_open_that_is_renamed_or_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows, which has no locks here either, refuses both."""
    monkeypatch.setattr(locks, "fcntl", None)
    path = str(tmp_path / "train.partial")
    changed = []

    def closed(function: Any) -> Any:
        def call(name: str, *others: str) -> None:
            changed.append(os.path.basename(name))
            links = [f"/proc/self/fd/{handle}" for handle in os.listdir("/proc/self/fd")]
            assert name not in [os.readlink(link) for link in links if os.path.islink(link)]
            function(name, *others)

        return call

    monkeypatch.setattr(os, "replace", closed(os.replace))
    monkeypatch.setattr(os, "unlink", closed(os.unlink))
    part = JobPart(1, 1)
    with part_journal(path, part, PLAN) as log:
        log.add(RECORD)
    collect_parts(path, PLAN, [TASK])
    with Journal(path) as log:
        assert (log.plan, list(log)) == (PLAN, [TASK])
        log.delete()
    with Journal(tmp_path / "empty"):
        pass
    assert changed == [
        *("train.partial-1-of-1.unfinished", "train.partial-1-of-1", "train.partial", "empty")
    ]
    assert os.listdir(tmp_path) == []
