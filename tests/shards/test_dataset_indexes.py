"""The dataset indexes: fetched once, checked, and ignored where they are of no use."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, num_open, raises, sample_members, write_tar
from events import LONG_S
from loopback import Server
from remote_site import EXPECTED, LENGTHS, Site

import wids
from wids.errors import FetchError, MismatchError, ShardFormatError
from wids.shards import dataset_indexes
from wids.shards.dataset_indexes import open_dataset_index
from wids.storage.cache.leases import delete_if_unused
from wids.storage.cache.store import Cache


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Site:
    """Shards of 8, 5 and 7 samples."""
    return Site(tmp_path / "site", server)


def test_counts_from_a_dataset_index(site: Site) -> None:
    """With a dataset index, no tar is requested to count its samples."""
    site.dataset_index()
    for shard in site.shards:
        del shard["nsamples"]
    with wids.ShardListDataset(site.spec(index="train.index")) as dataset:
        assert dataset.lengths == LENGTHS
    assert site.asked() == []


def test_a_dataset_index_is_fetched_once(site: Site) -> None:
    """A dataset index is fetched again only after another one was published."""
    site.dataset_index()
    url = site.spec(index="train.index")

    def sent() -> int:
        return sum(r.num_sent for r in site.server.log if r.path == "/train.index")

    for _ in range(3):
        with wids.ShardListDataset(url) as dataset:
            dataset[0]
    nbytes = len(site.server.pages["/train.index"].body)
    assert sent() <= nbytes + 3
    write_tar(site.folder / "train-0.tar", [*sample_members(1, 2), *sample_members(0, 1),
                                            *sample_members(2, 8)])  # fmt: skip
    site.server.page("/train-0.tar", (site.folder / "train-0.tar").read_bytes())
    with wids.ShardListDataset(url) as dataset, raises(ShardFormatError, "rebuild the index"):
        dataset[0]
    site.dataset_index()
    with wids.ShardListDataset(url) as dataset:
        assert dataset[0][".txt"] == "text 1"


def test_threads_open_a_dataset_index_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server is asked once; a process that is forked meanwhile opens its own."""
    site.dataset_index()
    opened: list[str] = []
    ready, is_forked = threading.Barrier(3), threading.Event()

    def open_index(store: Cache, url: str, num_shards: int) -> Any:
        if threading.current_thread() is not threading.main_thread():
            opened.append(url)
            is_forked.wait(LONG_S)
        return open_dataset_index(store, url, num_shards)

    monkeypatch.setattr(dataset_indexes, "open_dataset_index", open_index)
    with wids.ShardListDataset(site.spec(index="train.index"), access="range") as dataset:

        def read(index: int) -> Any:
            ready.wait(LONG_S)
            return dataset[index][".txt"]

        with ThreadPoolExecutor(2) as threads:
            found = threads.map(read, [0, 19])
            ready.wait(LONG_S)
            assert in_child(lambda: dataset[9][".txt"] == "text 9")
            is_forked.set()
            assert list(found) == ["text 0", "text 19"]
    assert opened == [f"{site.server.url}/train.index"]


def test_a_fetched_dataset_index_is_leased(site: Site, own_cache: Path) -> None:
    """It is not evicted while it is mapped; an unpickled dataset fetches it again."""
    members = sample_members(0, 4000)
    wids.build_spec(
        str(write_tar(site.folder / "large.tar", members)),
        dataset_index=site.folder / "large.index",
    )
    site.server.page("/large.tar", (site.folder / "large.tar").read_bytes())
    site.server.page("/large.index", (site.folder / "large.index").read_bytes())
    spec = {
        "base": site.server.url + "/",
        "index": "large.index",
        "shardlist": [{"url": "large.tar", "nsamples": 4000}],
    }
    with wids.ShardListDataset(spec, access="range") as dataset:
        assert dataset[3999][".txt"] == "text 3999"
        (copy,) = (own_cache / "shards").glob("*-large.index")
        assert not delete_if_unused(str(copy))
        stored = pickle.dumps(dataset)
    del dataset
    gc.collect()
    assert delete_if_unused(str(copy))
    with pickle.loads(stored) as again:  # noqa: S301 - made here
        assert again[3999][".txt"] == "text 3999"


def test_many_shards_with_dataset_indexes_of_their_own(tmp_path: Path) -> None:
    """They cost no descriptors beyond those of the open shards."""
    shards = []
    for number in range(300):
        (tmp_path / str(number)).mkdir()
        path, index = (tmp_path / str(number) / name for name in ("a.tar", "a.index"))
        if number:
            path.symlink_to(tmp_path / "0" / "a.tar")
            shutil.copy(tmp_path / "0" / "a.index", index)
        else:
            write_tar(path, sample_members(0, 5))
            wids.build_spec(str(path), dataset_index=index)
        shards.append({"url": str(path), "index": str(index)})
    with wids.ShardListDataset(shards, lru_size=3) as dataset:
        assert len(dataset) == 1500
        assert num_open(tmp_path) <= 6


def test_a_shards_own_dataset_index(site: Site) -> None:
    """A dataset index that one entry names serves that shard alone."""
    path = site.folder / "one.index"
    wids.build_spec(str(site.folder / "train-1.tar"), dataset_index=path)
    site.server.page("/one.index", path.read_bytes())
    site.shards[1]["index"] = "one.index"
    with wids.ShardListDataset(site.spec()) as dataset:
        assert dataset[10][".txt"] == "text 10"
        assert dataset[0][".txt"] == "text 0"
    downloads = {r.path: r.is_download for r in site.server.log}
    assert (downloads["/train-1.tar"], downloads["/train-0.tar"]) == (False, True)
    assert wids.load_spec(site.spec()).shards[1].entry()["index"] == site.server.url + "/one.index"


def test_a_dataset_index_of_other_tars(site: Site) -> None:
    """Ignored where the spec states other lengths, an error where the server does."""
    site.dataset_index()
    site.state(filesize=lambda body: len(body) + 512)
    with wids.ShardListDataset(site.spec(index="train.index"), access="range") as dataset:
        with raises(FetchError, "expected an index"):
            dataset[0]
    for shard in site.shards:
        del shard["filesize"]
    site.server.page("/train-0.tar", site.bodies[0] + bytes(512))
    with wids.ShardListDataset(site.spec(index="train.index"), access="range") as dataset:
        with raises(MismatchError, "a new version was published"):
            dataset[0]


def test_a_dataset_index_that_is_missing_or_broken(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """The dataset works without it, and the log says so."""
    caplog.set_level(logging.INFO)
    url = site.spec(index="train.index")
    with wids.ShardListDataset(url) as dataset:
        assert dataset[10][".txt"] == "text 10"
    assert "continuing without it" in caplog.text
    site.server.page("/train.index", b"broken")
    with wids.ShardListDataset(url) as dataset:
        assert dataset[10][".txt"] == "text 10"
    assert "no index that can be used" in caplog.text


def test_a_dataset_index_without_a_place_to_store_it(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Samples are read by range although the cache folder cannot be written."""
    site.dataset_index()
    (tmp_path / "file").touch()
    for _ in range(2):
        with wids.ShardListDataset(
            site.spec(index="train.index"), cache_dir=str(tmp_path / "file" / "c"), access="range"
        ) as dataset:
            assert [dataset[n][".txt"] for n in range(20)] == EXPECTED
    assert all(request.range for request in site.server.log if request.path.endswith(".tar"))
    assert "Not a directory" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "site"]


def test_a_dataset_index_without_any_place(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a writable folder for temporary files, shards are fetched to be read."""
    site.dataset_index()
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    url = site.spec(index="train.index")
    with wids.ShardListDataset(url, cache_dir=str(tmp_path / "file" / "c")) as dataset:
        with raises(FetchError, "cannot be stored"):
            dataset[0]


def test_a_dataset_index_that_was_damaged_in_the_cache(site: Site, own_cache: Path) -> None:
    """It is fetched again and used, also where the new copy has the inode of the old one."""
    site.dataset_index()
    url = site.spec(index="train.index")
    with wids.ShardListDataset(url) as dataset:
        expected = dataset.find_key("s00012")
    (dataset_index,) = (own_cache / "shards").glob("*-train.index")
    status = dataset_index.stat()
    for _ in range(3):
        with open(dataset_index, "r+b") as file:
            file.write(b"\xff" * 64)
        os.utime(dataset_index, ns=(status.st_atime_ns, status.st_mtime_ns))
        with wids.ShardListDataset(url) as dataset:
            assert dataset.find_key("s00012") == expected
            assert dataset.reader.known_index(0) is not None
        status = dataset_index.stat()
