"""Where indexes are stored: the cache folder, else the user's own, else a warning says the cost."""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, settle
from events import LONG_S
from loopback import Server
from remote_site import EXPECTED, Site, texts
from scan_log import log_scans

import wids


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return log_scans(monkeypatch)


@pytest.fixture
def old_train(train: Path) -> Path:
    """Shards that are old enough for their indexes to be stored."""
    for path in train.parent.glob("*.tar"):
        settle(path)
    return train


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A cache folder that nobody can write to, the root user included."""
    (tmp_path / "file").touch()
    return tmp_path / "file" / "cache"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def read(spec: Any, **options: Any) -> None:
    with wids.ShardListDataset(spec, **options) as dataset:
        assert texts(dataset) == EXPECTED


def test_a_folder_that_cannot_be_written_is_named_once(
    old_train: Path,
    blocked: Path,
    scans: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One warning for each folder says what it costs and what to do."""
    monkeypatch.setenv("WIDS_CACHE", str(blocked))
    for _ in range(2):
        read(str(old_train))
    assert len(scans) == 6
    (warning,) = warnings_of(caplog)
    assert warning == (
        f"{blocked}: the cache folder cannot be written (Not a directory), so that each process "
        "scans its tars again; pass cache_dir or set WIDS_CACHE to a folder that can be, or store "
        "the indexes beside the shards with `wids create`"
    )
    read(str(old_train), cache_dir=blocked / "another")
    assert len(warnings_of(caplog)) == 2


def test_each_process_warns(
    old_train: Path, blocked: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    """A worker that opens the first shard warns too; one that is forked later does not."""
    monkeypatch.setenv("WIDS_CACHE", str(blocked))

    def has_warned() -> bool:
        read(str(old_train))
        return len(warnings_of(caplog)) == 1

    assert in_child(has_warned)
    assert in_child(has_warned)
    assert has_warned()
    assert in_child(has_warned)


def test_young_shards_and_dataset_indexes_need_no_folder(
    train: Path, blocked: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    """Nothing would be stored, so there is no warning."""
    monkeypatch.setenv("WIDS_CACHE", str(blocked))
    for path in train.parent.glob("*.tar"):
        os.utime(path, (time.time() + LONG_S,) * 2)  # still young when it is read
    read(str(train))
    wids.build_spec(str(train), dataset_index=train.parent / "train.index").save(train)
    for path in train.parent.glob("*.tar"):
        settle(path)
    read(str(train))
    assert warnings_of(caplog) == []


def test_the_users_own_folder_stands_in(
    old_train: Path,
    blocked: Path,
    scans: list[str],
    caplog: pytest.LogCaptureFixture,
    own_cache: Path,
) -> None:
    """An index that the chosen folder does not take is in the default one, as notes are."""
    for _ in range(2):
        read(str(old_train), cache_dir=blocked)
    assert len(scans) == 3
    assert len(list((own_cache / "indexes").iterdir())) == 3
    assert warnings_of(caplog) == []


def test_copies_in_a_folder_of_another_user(
    tmp_path: Path, server: Server, scans: list[str], own_cache: Path
) -> None:
    """Their indexes are not used, so those of this user are in the default folder."""
    spec = wids.load_spec(Site(tmp_path / "site", server).spec())
    read(spec)
    shutil.copytree(own_cache, tmp_path / "c")
    shutil.rmtree(own_cache)
    for path in (tmp_path / "c" / "shards").glob("*.index"):
        path.unlink()
        path.mkdir()  # as if it were another user's: neither readable nor to be replaced
    scans.clear()
    for _ in range(2):
        read(spec, cache_dir=tmp_path / "c")
    assert len(scans) == 3
    assert len(list((own_cache / "indexes").iterdir())) == 3
