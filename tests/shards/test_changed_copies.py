"""Copies whose time of modification is another: compared with what was recorded, once."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, need, raises
from loopback import Server
from remote_site import EXPECTED, Site, texts
from scan_log import log_scans

import wids
from wids.shards import copied_shards


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Site:
    return Site(tmp_path / "site", server)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return log_scans(monkeypatch)


def fetched(spec: Any, folder: Path, number: int = 1) -> Path:
    """Fetch all shards, and return the copy of one."""
    with wids.ShardListDataset(spec) as dataset:
        assert texts(dataset) == EXPECTED
    (copy,) = (folder / "shards").glob(f"*-train-{number}.tar")
    return copy


def edit(copy: Path, old: bytes, new: bytes) -> None:
    """Change bytes in place, as somebody does who finds the file; its time changes too."""
    assert len(old) == len(new)
    copy.chmod(0o644)
    data = copy.read_bytes()
    assert old in data
    with copy.open("r+b") as file:
        file.write(data.replace(old, new))
    os.utime(copy, ns=(0, copy.stat().st_mtime_ns + 7_000_000_000))


@pytest.mark.parametrize("verify", ["auto", "always"])
@pytest.mark.parametrize("what", ["a payload", "a name"])
def test_a_copy_that_was_edited_is_fetched_again(
    what: str, verify: Any, site: Site, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Other bytes are not returned as the truth, where nothing states a digest (CACHE-35)."""
    copy = fetched(site.spec(), own_cache)
    edit(copy, *((b"text 9", b"TEXT 9") if what == "a payload" else (b"s00009.", b"s99999.")))
    with wids.ShardListDataset(site.spec(), verify=verify) as dataset:
        assert texts(dataset) == EXPECTED
        assert dataset[9]["__key__"] == "s00009"
    assert site.asked().count("/train-1.tar") == 2
    assert "; fetching the shard again" in caplog.text
    assert copy.read_bytes() == site.bodies[1]


def test_a_restored_copy_is_compared_once(site: Site, own_cache: Path, scans: list[str]) -> None:
    """The same bytes with a new time are used offline, and the time is noted (CACHE-35)."""
    spec = wids.load_spec(site.spec())
    copy = fetched(spec, own_cache)
    shutil.copy(copy, copy.with_suffix(".backup"))
    os.replace(copy.with_suffix(".backup"), copy)
    os.utime(copy, ns=(0, 0))
    site.server.pages.clear()
    scans.clear()
    for _ in range(2):
        with wids.ShardListDataset(spec) as dataset:
            assert texts(dataset) == EXPECTED
    assert scans == [str(copy)]


def test_a_restored_copy_is_read_by_another_rule(site: Site, own_cache: Path) -> None:
    """What was recorded by one rule of keys is compared by that rule (CACHE-35)."""
    spec = wids.load_spec(site.spec())
    copy = fetched(spec, own_cache)
    os.utime(copy, ns=(0, 0))
    with wids.ShardListDataset(spec, key_split="last") as dataset:
        assert texts(dataset) == EXPECTED
    edit(copy, b"text 9", b"TEXT 9")
    with wids.ShardListDataset(spec, key_split="first") as dataset:
        assert texts(dataset) == EXPECTED
    assert site.asked().count("/train-1.tar") == 2


def test_an_edited_copy_offline_is_an_error(site: Site, own_cache: Path) -> None:
    """Where it cannot be fetched again, nothing wrong is returned (CACHE-35)."""
    spec = wids.load_spec(site.spec())
    edit(fetched(spec, own_cache), b"text 9", b"TEXT 9")
    site.server.pages.clear()
    with wids.ShardListDataset(spec, access="download") as dataset:
        assert dataset[0][".txt"] == "text 0"
        with raises(wids.NotFoundError, "train-1.tar"):
            dataset[9]


@pytest.mark.parametrize("is_edited", [False, True])
def test_without_an_index_the_stated_digest_is_compared(
    is_edited: bool, site: Site, own_cache: Path
) -> None:
    """Where the index is lost or damaged, the spec has what to compare a copy with (CACHE-35)."""
    site.state(sha256=lambda body: sha256(body).hexdigest())
    spec = wids.load_spec(site.spec())
    copy = fetched(spec, own_cache)
    index = copy.with_name(copy.name + ".index")
    index.write_bytes(index.read_bytes()[:-1])
    if is_edited:
        edit(copy, b"text 9", b"TEXT 9")
    with wids.ShardListDataset(spec) as dataset:
        assert texts(dataset) == EXPECTED
    assert site.asked().count("/train-1.tar") == 1 + is_edited


def test_a_read_only_folder(site: Site, own_cache: Path) -> None:
    """Restored copies are used where no time can be noted, by each process again (CACHE-35)."""
    need(hasattr(os, "geteuid") and os.geteuid() == 0, "root, to become another user")
    spec = wids.load_spec(site.spec())
    fetched(spec, own_cache)
    site.server.pages.clear()
    with tempfile.TemporaryDirectory() as home:  # the folders above own_cache are closed to others
        Path(home).chmod(0o755)
        folder = Path(home) / "c"
        shutil.copytree(own_cache, folder, copy_function=shutil.copyfile)  # with new times
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 65534, 65534)
            path.chmod(0o555 if path.is_dir() else 0o444)

        def read_as_nobody() -> bool:
            os.setuid(65534)
            for _ in range(2):
                with wids.ShardListDataset(spec, cache_dir=folder) as dataset:
                    assert texts(dataset) == EXPECTED
            return True

        assert in_child(read_as_nobody)


def test_an_index_that_cannot_be_stored_leaves_no_old_one(
    site: Site, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new copy is not compared with the index of an older one (CACHE-35)."""
    spec = wids.load_spec(site.spec())
    copy = fetched(spec, own_cache)
    copy.unlink()
    new = site.bodies[1].replace(b"text 9", b"TEXT 9")
    site.server.page("/train-1.tar", new)
    monkeypatch.setattr("wids.storage.cache.cache_names.save_quietly", lambda *_: False)
    logged: list[str] = []
    monkeypatch.setattr(logging.getLogger("wids"), "warning", lambda *a: logged.append(str(a)))
    with wids.ShardListDataset(spec, access="download") as dataset:
        assert dataset[9][".txt"] == "TEXT 9"
    assert logged == []


def test_a_local_shard_is_indexed_again(train: Path) -> None:
    """It is the original, so that what was changed there is the truth (INDEX-1)."""
    shard = train.parent / "train-000001.tar"
    os.utime(shard, ns=(0, 0))
    for text in ("text 9", "TEXT 9"):
        with wids.ShardListDataset(str(train)) as dataset:
            assert dataset[9][".txt"] == text
        if text == "text 9":
            edit(shard, b"text 9", b"TEXT 9")


@pytest.mark.parametrize("how", ["placed", "named"])
def test_a_file_of_the_users(how: str, site: Site, tmp_path: Path) -> None:
    """A changed one is compared with a stated digest; without one it is as a local shard is."""
    for shard, body in zip(site.shards, site.bodies, strict=True):
        shard["filesize"] = len(body)
        (tmp_path / shard["url"]).write_bytes(body)
    options: dict[str, Any] = {"cache_dir": tmp_path}
    if how == "named":
        options = {"localname": lambda url: tmp_path / url.rpartition("/")[2]}
    spec = wids.load_spec(site.spec())
    mine = tmp_path / "train-1.tar"
    with wids.ShardListDataset(spec, **options) as dataset:
        assert texts(dataset) == EXPECTED
    edit(mine, b"text 9", b"TEXT 9")
    with wids.ShardListDataset(spec, **options) as dataset:
        assert dataset[9][".txt"] == "TEXT 9"
    assert site.asked() == []
    site.state(sha256=lambda body: sha256(body).hexdigest())
    with wids.ShardListDataset(wids.load_spec(site.spec()), **options) as dataset:
        assert texts(dataset) == EXPECTED
    assert site.asked() == ["/train-1.tar"]
    assert (mine.read_bytes() == site.bodies[1]) is (how == "named")


def test_a_copy_that_another_process_discards_meanwhile(
    site: Site, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not mistaken for one whose index is lost; the new copy is opened (CACHE-35)."""
    copy = fetched(site.spec(), own_cache)
    edit(copy, b"text 9", b"TEXT 9")
    index = copy.with_name(copy.name + ".index")
    load_recorded = copied_shards.index_file.load_recorded

    def discard_and_load(path: str) -> Any:
        index.unlink(missing_ok=True)
        copy.unlink(missing_ok=True)
        return load_recorded(path)

    monkeypatch.setattr(copied_shards.index_file, "load_recorded", discard_and_load)
    with wids.ShardListDataset(site.spec()) as dataset:
        assert texts(dataset) == EXPECTED
    assert site.asked().count("/train-1.tar") == 2


def test_a_copy_that_another_process_is_about_to_discard(
    site: Site, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not read by others once its index is gone: nobody could tell that it was edited."""
    copy = fetched(site.spec(), own_cache)
    edit(copy, b"text 9", b"TEXT 9")
    unlink, found = os.unlink, list[str]()

    def unlink_and_read(path: str) -> None:
        unlink(path)
        if path == f"{copy}.index" and not found:
            found.append("read")
            with wids.ShardListDataset(site.spec()) as other:
                found[:] = texts(other)

    monkeypatch.setattr(os, "unlink", unlink_and_read)
    with wids.ShardListDataset(site.spec()) as dataset:
        assert texts(dataset) == EXPECTED
    assert found == EXPECTED


def test_a_copy_that_is_discarded_before_its_digest_is_compared(
    site: Site, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is fetched again, as one that was discarded earlier is (CACHE-35)."""
    copy = fetched(site.spec(), own_cache)
    copy.with_name(copy.name + ".index").unlink()
    has_name = copied_shards._has_name

    def look_and_discard(path: str, inode: int) -> bool:
        is_named = has_name(path, inode)
        copy.unlink(missing_ok=True)
        return is_named

    monkeypatch.setattr(copied_shards, "_has_name", look_and_discard)
    with wids.ShardListDataset(site.spec()) as dataset:
        assert texts(dataset) == EXPECTED
    assert site.asked().count("/train-1.tar") == 2
