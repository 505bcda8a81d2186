"""A dataset of remote shards that are read by range, and when it fetches them instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import raises, sample_members, write_tar
from loopback import Mirrors, Server
from remote_site import EXPECTED, Site, texts

import wids
from wids.errors import FetchError, MismatchError, ShardFormatError


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Site:
    """Shards of 8, 5 and 7 samples."""
    return Site(tmp_path / "site", server)


def test_single_samples_by_range(site: Site) -> None:
    """With a dataset index, one sample costs one request for its bytes."""
    site.dataset_index()
    with wids.ShardListDataset(site.spec(index="train.index"), raw="bytes") as dataset:
        assert dataset[10][".txt"] == "text 10"
        assert dataset[10]["__index__"] == 10
    (first, second) = [r for r in site.server.log if r.path.endswith(".tar")]
    assert first.num_sent == second.num_sent == 3 * 512 + 1
    assert first.range.startswith("bytes=")


def test_a_copy_that_appears_later_is_used(site: Site) -> None:
    """When another process has fetched the shard, the server is not asked again."""
    site.dataset_index()
    url = site.spec(index="train.index")
    with wids.ShardListDataset(url) as dataset, wids.ShardListDataset(url) as other:
        assert dataset[0][".txt"] == "text 0"
        texts(other)
        site.server.log.clear()
        assert dataset[1][".txt"] == "text 1"
    assert site.asked() == []


@pytest.mark.parametrize("is_named", [False, True])
def test_a_file_that_is_placed_later_is_used(site: Site, tmp_path: Path, is_named: bool) -> None:
    """A shard that is read by range asks `localname` no more, and finds the file that it named."""
    site.dataset_index()
    site.state(filesize=len)
    folder, asked = tmp_path / "mine", list[str]()
    folder.mkdir()

    def localname(url: str) -> Path:
        asked.append(url)
        return folder / url.rpartition("/")[2]

    options: Any = {"localname": localname} if is_named else {"cache_dir": folder}
    spec = site.spec(index="train.index")
    with wids.ShardListDataset(spec, access="range", **options) as dataset:
        assert dataset[0][".txt"] == "text 0"
        num_asked = len(asked)
        assert texts(dataset[n] for n in range(1, 4)) == EXPECTED[1:4]
        assert len(asked) == num_asked
        (folder / "train-0.tar").write_bytes(site.bodies[0])
        site.server.log.clear()
        assert dataset[4][".txt"] == "text 4"
    assert site.asked() == []


@pytest.mark.parametrize("read", ["iteration", "slice"])
def test_large_reads_fetch_the_whole_shard(site: Site, read: str) -> None:
    """Passes and long slices make one request for each shard."""
    site.dataset_index()
    with wids.ShardListDataset(site.spec(index="train.index")) as dataset:
        if read == "iteration":
            assert texts(dataset) == EXPECTED
        else:
            assert texts(dataset[0:4]) == EXPECTED[:4]
            assert texts(dataset[8:9]) == EXPECTED[8:9]
    downloads = {r.path: r.is_download for r in site.server.log if r.path.endswith(".tar")}
    assert downloads["/train-0.tar"]
    if read == "slice":
        assert not downloads["/train-1.tar"]
    assert len([p for p in site.asked() if p == "/train-0.tar"]) == 1


def test_only_by_range(site: Site, own_cache: Path) -> None:
    """access="range" never fetches a shard, and refuses one without an index."""
    with wids.ShardListDataset(site.spec(), access="range") as dataset:
        with raises(FetchError, "/train-0.tar: expected an index", "wids create"):
            dataset[0]
    site.dataset_index()
    with wids.ShardListDataset(site.spec(index="train.index"), access="range") as dataset:
        assert texts(dataset) == EXPECTED
        assert texts(dataset.__getitems__(range(20))) == EXPECTED
    assert all(r.range for r in site.server.log if r.path.endswith(".tar"))
    assert not list((own_cache / "shards").glob("*.tar"))


def test_a_shard_that_is_replaced_between_two_reads(site: Site) -> None:
    """Two versions with the same headers and length are not mixed in one epoch (CACHE-30).

    What has the checksum of the index is right in both (INDEX-10).
    """
    site.dataset_index()
    url = site.spec(index="train.index")
    options = {"access": "range", "lru_size": 1}
    with (
        wids.ShardListDataset(url, **options) as dataset,
        wids.ShardListDataset(url, **options, verify="never") as unverified,
    ):
        for each in dataset, unverified:
            assert each[0][".txt"] == "text 0"
            assert each[8][".txt"] == "text 8"  # closes the first shard
        replaced = site.bodies[0].replace(b"text 1", b"TEXT 1")
        site.server.page("/train-0.tar", replaced)
        for _ in range(2):
            with raises(MismatchError, "/train-0.tar", "it was replaced while it was being read"):
                unverified[1]
            with raises(ShardFormatError, "/train-0.tar", "checksum", "rebuild its index"):
                dataset[1]
            assert dataset[2][".txt"] == "text 2"
    with wids.ShardListDataset(url, **options, verify="never") as unverified:
        assert unverified[1][".txt"] == "TEXT 1"


def test_mirrors_with_tags_of_their_own(site: Site) -> None:
    """The checksums of the index decide whether the bytes are those of the tar (CACHE-30)."""
    site.dataset_index()
    for path, page in list(site.server.pages.items()):
        site.server.pages[path] = Mirrors(page.body)
    url = site.spec(index="train.index")
    with wids.ShardListDataset(url, access="range") as dataset:
        assert [dataset[i][".txt"] for i in range(20)] == EXPECTED
        assert not any("if-range" in request.headers for request in site.server.log)
        for i in (3, 3, 4):
            with dataset.open_field(i, ".txt") as file:
                assert file.read() == EXPECTED[i].encode()
    damaged = site.bodies[0].replace(b"text 3", b"TEXT 3")
    site.server.pages["/train-0.tar"] = Mirrors(damaged)
    with wids.ShardListDataset(url, access="range") as dataset, dataset.open_field(0, ".txt") as f:
        assert f.read() == b"text 0"
        with dataset.open_field(3, ".txt") as file, raises(ShardFormatError, "checksum"):
            file.read()
    with wids.ShardListDataset(url, access="range", verify="never") as dataset:
        with raises(MismatchError, "replaced", "mirrors", 'access="download"'):
            _ = [dataset[i] for i in range(3)]


def test_only_by_range_counts_by_range(site: Site) -> None:
    """With access="range", not even a missing count makes the dataset fetch a shard."""
    for shard in site.shards:
        del shard["nsamples"]
    with raises(FetchError, "/train-0.tar: expected an index"):
        wids.ShardListDataset(site.spec(), access="range")
    assert site.asked() == []


def test_an_index_that_is_left_in_the_cache(site: Site, own_cache: Path) -> None:
    """The index of a copy that was evicted is enough to read by range."""
    with wids.ShardListDataset(site.spec()) as dataset:
        texts(dataset)
    for path in (own_cache / "shards").glob("*.tar"):
        path.unlink()
    site.server.log.clear()
    with wids.ShardListDataset(site.spec(), access="range") as dataset:
        assert dataset[10][".txt"] == "text 10"
        assert dataset.get_by_key("s00019")[".txt"] == "text 19"
    assert all(r.range for r in site.server.log if r.path.endswith(".tar"))
    # Another tar of the same length, in another order:
    changed = [*sample_members(9, 10), *sample_members(8, 9), *sample_members(10, 13)]
    write_tar(site.folder / "train-1.tar", changed)
    site.server.page("/train-1.tar", (site.folder / "train-1.tar").read_bytes())
    with wids.ShardListDataset(site.spec(), access="range") as dataset:
        with raises(ShardFormatError, "/train-1.tar", "another"):
            dataset[8]


def test_a_server_without_ranges(site: Site) -> None:
    """access="auto" fetches the whole shard instead."""
    site.dataset_index()
    url = site.spec(index="train.index")
    for page in site.server.pages.values():
        page.has_ranges = False
    with wids.ShardListDataset(url) as dataset:
        assert dataset[10][".txt"] == "text 10"
        assert dataset[9][".txt"] == "text 9"
    with wids.ShardListDataset(url, access="range", cache_dir=site.folder / "c") as dataset:
        with raises(FetchError, "whole files only"):
            dataset[10]


def test_get_by_key(site: Site) -> None:
    """A key is found through the dataset index; without one, no shard is fetched to search."""
    with wids.ShardListDataset(site.spec()) as dataset:
        with raises(FetchError, "/train-0.tar: expected its index", "wids create", "'s00010'"):
            dataset.get_by_key("s00010")
        assert site.asked() == []
        assert dataset.get_by_key("s00010", shard=1)[".txt"] == "text 10"
        with pytest.raises(KeyError) as caught:
            dataset.get_by_key("nope", shard=site.server.url + "/train-1.tar")
        assert "/train-1.tar" in str(caught.value)
        texts(dataset)
        assert dataset.get_by_key("s00010")[".txt"] == "text 10"
    site.dataset_index()
    site.server.log.clear()
    with wids.ShardListDataset(
        site.spec(index="train.index"), cache_dir=site.folder / "c"
    ) as dataset:
        assert dataset.get_by_key("s00010")[".txt"] == "text 10"
        with pytest.raises(KeyError):
            dataset.get_by_key("nope")
    (request,) = [r for r in site.server.log if r.path.endswith(".tar")]
    assert request.num_sent == 3 * 512 + 1


def test_fields_of_remote_samples(site: Site) -> None:
    """Only the bytes of the wanted fields are requested."""
    site.dataset_index()
    url = site.spec(index="train.index")
    with wids.ShardListDataset(url, fields=[".cls"], access="range") as dataset:
        assert {k for k in dataset[10] if not k.startswith("__")} == {".cls"}
    (request,) = [r for r in site.server.log if r.path.endswith(".tar")]
    assert request.num_sent == 512 + 1
