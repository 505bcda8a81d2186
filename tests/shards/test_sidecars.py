"""Copies of dataset indexes, tables and joined files: compared with what was recorded of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import sample_members, write_tar
from loopback import Server
from remote_site import EXPECTED, Site, texts

import wids
from wids.shards.sidecars import open_file
from wids.storage.cache.store import Cache
from wids.storage.fetch import Fetcher


@pytest.fixture
def store(own_cache: Path) -> Cache:
    return Cache(str(own_cache), Fetcher())


def read_file(store: Cache, url: str) -> bytes:
    with open_file(store, url) as file:
        return file.read()


@pytest.fixture
def copy(store: Cache, server: Server, own_cache: Path) -> Path:
    """The copy of a file that a join may name."""
    assert read_file(store, server.page("/0.json", b'{"a": 1}')) == b'{"a": 1}'
    (path,) = (own_cache / "shards").glob("*-0.json")
    return path


def num_bodies(server: Server, path: str) -> int:
    """Return how often a file was sent."""
    nbytes = len(server.pages[path].body)
    return sum(request.path == path and request.num_sent >= nbytes for request in server.log)


def overwrite(path: Path, data: bytes, *, keeps_time: bool = False) -> None:
    """Change a file in place."""
    status = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
    later_ns = 0 if keeps_time else 7_000_000_000
    os.utime(path, ns=(0, status.st_mtime_ns + later_ns))


def test_an_edited_file_is_fetched_again(
    store: Cache, server: Server, copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No server states a digest, so what was fetched is recorded beside it (CACHE-36)."""
    overwrite(copy, b'{"a": 2}')
    assert read_file(store, f"{server.url}/0.json") == b'{"a": 1}'
    assert num_bodies(server, "/0.json") == 2
    assert f"{copy}: expected the bytes that were fetched" in caplog.text
    assert read_file(store, f"{server.url}/0.json") == b'{"a": 1}'
    assert num_bodies(server, "/0.json") == 2


def test_a_restored_file_is_used(store: Cache, server: Server, copy: Path) -> None:
    """The same bytes with a new time are compared once, and their time is noted (CACHE-36)."""
    record = copy.with_name(copy.name + ".index")
    before = record.read_bytes()
    os.utime(copy, ns=(0, 0))
    for _ in range(2):
        assert read_file(store, f"{server.url}/0.json") == b'{"a": 1}'
        assert record.read_bytes() != before
    assert num_bodies(server, "/0.json") == 1


@pytest.mark.parametrize("left", [None, b"", b"[1, 2]"])
def test_a_file_without_a_record(
    left: bytes | None, store: Cache, server: Server, copy: Path
) -> None:
    """It is used as it is, as one of an earlier version of wids, and recorded (CACHE-36)."""
    record = copy.with_name(copy.name + ".index")
    before = record.read_bytes()
    record.unlink()
    if left is not None:
        record.write_bytes(left)
    assert read_file(store, f"{server.url}/0.json") == b'{"a": 1}'
    assert record.read_bytes() == before
    assert num_bodies(server, "/0.json") == 1


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Site:
    site = Site(tmp_path / "site", server)
    site.dataset_index()
    return site


def first_key(site: Site) -> str:
    with wids.ShardListDataset(site.spec(index="train.index"), access="range") as dataset:
        assert texts(dataset[1:]) == EXPECTED[1:]
        return str(dataset.keys()[0])


def test_another_dataset_index_in_place_of_a_dataset_index(site: Site, own_cache: Path) -> None:
    """A sound dataset index of other shards under the name of a copy is not believed (CACHE-36)."""
    assert first_key(site) == "s00000"
    (copy,) = (own_cache / "shards").glob("*-train.index")
    other = [("other.txt", b"text 0"), ("other.cls", b"0"), *sample_members(1, 8)]
    write_tar(site.folder / "train-0.tar", other)
    wids.build_spec(
        [str(site.folder / shard["url"]) for shard in site.shards],
        dataset_index=site.folder / "o.index",
    )
    overwrite(copy, (site.folder / "o.index").read_bytes())
    assert first_key(site) == "s00000"
    assert num_bodies(site.server, "/train.index") == 2


def test_a_damaged_dataset_index_is_fetched_again(site: Site, own_cache: Path) -> None:
    """A disk that damages a copy does not change its time; checksums show it (CACHE-36)."""
    assert first_key(site) == "s00000"
    (copy,) = (own_cache / "shards").glob("*-train.index")
    overwrite(copy, copy.read_bytes()[:-300], keeps_time=True)
    assert first_key(site) == "s00000"
    assert num_bodies(site.server, "/train.index") == 2


def test_a_dataset_index_that_was_published_damaged_is_fetched_once(site: Site) -> None:
    """The copy is what the server sends, so another one would be no better (CACHE-36)."""
    body = site.server.pages["/train.index"].body
    site.server.page("/train.index", body[:-300])
    for _ in range(2):
        with wids.ShardListDataset(site.spec(index="train.index")) as dataset:
            assert dataset[0][".txt"] == EXPECTED[0]
    assert num_bodies(site.server, "/train.index") == 1
