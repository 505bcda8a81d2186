"""A dataset of remote shards: fetched once, or read by range, and never wrong."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, raises, sample_members, write_tar
from loopback import Fault, Server

import wids
from wids.cache.leases import delete_if_unused
from wids.errors import FetchError, MismatchError, ShardFormatError
from wids.transport import retry

LENGTHS = [8, 5, 7]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow one another without much waiting."""
    monkeypatch.setattr(retry, "_FIRST_WAIT_S", 0.01)


class Site:
    """Three shards and their spec on a server; what is stated of them can be chosen."""

    def __init__(self, folder: Path, server: Server, lengths: list[int]) -> None:
        self.server = server
        self.shards = []
        self.bodies = []
        start = 0
        for number, length in enumerate(lengths):
            path = write_tar(folder / f"train-{number}.tar", sample_members(start, start + length))
            body = path.read_bytes()
            server.page(f"/{path.name}", body)
            self.bodies.append(body)
            self.shards.append({"url": path.name, "nsamples": length})
            start += length
        self.folder = folder

    def state(self, **what: Callable[[bytes], Any]) -> None:
        """State something of each shard."""
        for shard, body in zip(self.shards, self.bodies, strict=True):
            shard.update({name: give(body) for name, give in what.items()})

    def pack(self) -> None:
        """Publish the pack."""
        wids.build_spec(
            [str(self.folder / s["url"]) for s in self.shards],
            pack=self.folder / "train.index",
        )
        self.server.page("/train.index", (self.folder / "train.index").read_bytes())

    def spec(self, **more: Any) -> str:
        """Publish the spec; give its URL."""
        document = {"wids_version": 1, "name": "train", "shardlist": self.shards, **more}
        return self.server.page("/train.json", document)

    def asked(self) -> list[str]:
        """Give the tars that were asked for, in order."""
        return [path for path in self.server.requests if path.endswith(".tar")]


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Site:
    """Shards of 8, 5 and 7 samples."""
    (tmp_path / "site").mkdir()
    return Site(tmp_path / "site", server, LENGTHS)


def texts(dataset: Any) -> list[str]:
    return [sample[".txt"] for sample in dataset]


EXPECTED = [f"text {n}" for n in range(20)]


def test_all_samples_each_shard_once(site: Site) -> None:
    """Iteration, batches and single samples; one request for each shard."""
    with wids.ShardListDataset(site.spec()) as dataset:
        assert texts(dataset) == EXPECTED
        assert texts(dataset.__getitems__([19, 0, 10])) == ["text 19", "text 0", "text 10"]
        assert dataset[-1]["__shard__"] == site.server.url + "/train-2.tar"
    with wids.ShardListDataset(site.spec()) as again:
        assert texts(again) == EXPECTED
    assert site.asked() == ["/train-0.tar", "/train-1.tar", "/train-2.tar"]


def test_nothing_is_fetched_before_it_is_read(site: Site, own_cache: Path) -> None:
    """Opening a dataset whose lengths are stated costs one document."""
    dataset = wids.ShardListDataset(site.spec(), access="download")
    assert (len(dataset), site.asked(), own_cache.exists()) == (20, [], False)
    dataset[10]
    assert site.asked() == ["/train-1.tar"]
    dataset.close()


def test_missing_counts_are_found_out(site: Site) -> None:
    """By fetching, once; or from a pack, without."""
    for shard in site.shards:
        del shard["nsamples"]
    with wids.ShardListDataset(site.spec()) as dataset:
        assert (len(dataset), dataset.lengths) == (20, LENGTHS)
    assert len(site.asked()) == 3
    with wids.ShardListDataset(site.spec()) as dataset:
        assert dataset.lengths == LENGTHS
    assert len(site.asked()) == 3


def test_counts_from_a_pack(site: Site) -> None:
    """With a pack no tar is asked for."""
    site.pack()
    for shard in site.shards:
        del shard["nsamples"]
    with wids.ShardListDataset(site.spec(index="train.index")) as dataset:
        assert dataset.lengths == LENGTHS
    assert site.asked() == []


def test_a_wrong_count_is_named_and_the_copy_fetched_again_once(site: Site) -> None:
    """A stale copy of a shard that was published anew under its URL is replaced (CACHE-14)."""
    with wids.ShardListDataset(site.spec()) as dataset:
        assert texts(dataset) == EXPECTED
    grown = write_tar(site.folder / "train-0.tar", sample_members(0, 9)).read_bytes()
    site.server.page("/train-0.tar", grown)
    site.shards[0]["nsamples"] = 9
    site.server.log.clear()
    with wids.ShardListDataset(site.spec()) as dataset:
        assert dataset[8][".txt"] == "text 8"
    assert site.asked() == ["/train-0.tar"]

    site.shards[0]["nsamples"] = 10
    site.server.log.clear()
    with wids.ShardListDataset(site.spec()) as dataset:
        for _ in range(3):
            with raises(MismatchError, "/train-0.tar: the spec says 10 samples, the shard has 9"):
                dataset[0]
    assert site.asked() == ["/train-0.tar"]


def test_a_page_that_is_no_tar(site: Site, own_cache: Path) -> None:
    """An HTML page of status 200 is never cached as a shard (CACHE-3)."""
    url = site.spec()
    site.server.page("/train-0.tar", b"<html>log in</html>" * 100)
    with wids.ShardListDataset(url) as dataset:
        with raises(ShardFormatError, "/train-0.tar", "HTML"):
            dataset[0]
        site.server.page("/train-0.tar", site.bodies[0])
        assert dataset[0][".txt"] == "text 0"
    assert len(list((own_cache / "shards").glob("*.tar"))) == 1


def test_a_copy_that_was_cut_is_replaced(site: Site, own_cache: Path) -> None:
    """By the length that the index beside it states, where the spec states none (CACHE-14)."""
    with wids.ShardListDataset(site.spec()) as dataset:
        texts(dataset)
    (copy,) = (own_cache / "shards").glob("*-train-1.tar")
    os.truncate(copy, 3 * 1024)
    with wids.ShardListDataset(site.spec()) as dataset:
        assert texts(dataset) == EXPECTED
    assert site.asked().count("/train-1.tar") == 2
    # Without the index, by its contents.
    os.truncate(copy, 3 * 1024 + 100)
    copy.with_name(copy.name + ".index").unlink()
    with wids.ShardListDataset(site.spec()) as dataset:
        assert texts(dataset) == EXPECTED
    assert site.asked().count("/train-1.tar") == 3


def test_an_index_that_was_lost_is_made_again(site: Site, own_cache: Path) -> None:
    """The copy is as good as before."""
    with wids.ShardListDataset(site.spec()) as dataset:
        texts(dataset)
    for path in (own_cache / "shards").glob("*.index"):
        path.unlink()
    with wids.ShardListDataset(site.spec()) as dataset:
        assert texts(dataset) == EXPECTED
    assert len(list((own_cache / "shards").glob("*.index"))) == 3
    assert len(site.asked()) == 3


def test_on_error_gets_what_cannot_be_fetched(site: Site) -> None:
    """A shard that is gone costs its samples only, if the caller says so."""
    url = site.spec()
    del site.server.pages["/train-1.tar"]
    with wids.ShardListDataset(url, on_error=lambda error: {".txt": type(error)}) as dataset:
        found = texts(dataset.__getitems__(range(20)))
    assert found == [*EXPECTED[:8], *[wids.NotFoundError] * 5, *EXPECTED[13:]]


def test_a_document_from_elsewhere_names_no_pipe_or_file(site: Site) -> None:
    """As SEC-1 and SEC-2 say, for shards that can be fetched now too."""
    for reference in ("pipe:touch /tmp/owned", "file:///etc/passwd"):
        site.shards[0]["url"] = reference
        with raises(wids.SpecError, "train.json"):
            wids.ShardListDataset(site.spec())
    site.shards[0] = {"url": "train-0.tar", "nsamples": 8, "index": "file:///etc/passwd"}
    with raises(wids.SpecError, "file:///etc/passwd"):
        wids.ShardListDataset(site.spec())


def test_pipes_and_rewriting(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command's output is a shard; a rewritten URL that is a path is read in place."""
    command = f"pipe:cat '{site.folder}/train-0.tar'"
    with wids.ShardListDataset([(command, 8)]) as dataset:
        assert texts(dataset) == EXPECTED[:8]
    monkeypatch.setenv("WDS_REWRITE", f"^s3://bucket/={site.folder}/")
    with wids.ShardListDataset(["s3://bucket/train-{0..2}.tar"]) as dataset:
        assert texts(dataset) == EXPECTED
        assert dataset[0]["__shard__"] == "s3://bucket/train-0.tar"


def test_rewritten_urls_and_handlers(site: Site) -> None:
    """A handler of the caller's is used for its scheme, and for nothing else."""
    handlers = {"mine": lambda url: (site.folder / url.partition("://")[2]).open("rb")}
    for access in ("auto", "download", "range"):
        with wids.ShardListDataset(
            [{"url": f"mine://{s['url']}", "nsamples": s["nsamples"]} for s in site.shards],
            handlers=handlers,
        ) as dataset:
            assert texts(dataset) == EXPECTED, access


def test_tokens_stay_with_the_first_document(site: Site) -> None:
    """However it was named: what it leads to elsewhere gets none (SEC-9)."""
    other = Server()
    try:
        other.page("/train-0.tar", site.bodies[0])
        document = {"shardlist": [{"url": other.url + "/train-0.tar", "nsamples": 8}]}
        url = site.server.page("/far.json", document)
        options = {"headers": {"X-Token": "T"}}
        for number, shards in enumerate((url, [url], {"datasets": [{"source_url": url}]})):
            folder = site.folder / f"c{number}"
            with wids.ShardListDataset(
                shards, storage_options=options, cache_dir=folder
            ) as dataset:
                assert dataset[0][".txt"] == "text 0"
        assert all(r.headers.get("x-token") == "T" for r in site.server.log)
        assert not any("x-token" in r.headers for r in other.log)
        assert len(other.log) == 3
    finally:
        other.close()


def test_headers(site: Site) -> None:
    """storage_options reach document, shards and pack."""
    site.pack()
    url = site.spec(index="train.index")
    for page in site.server.pages.values():
        page.needs = ("X-Token", "T")
    with raises(FetchError, "403"):
        wids.ShardListDataset(url)
    options = {"headers": {"X-Token": "T"}}
    with wids.ShardListDataset(url, storage_options=options) as dataset:
        assert texts(dataset) == EXPECTED


# The folder.


def test_cache_dir_and_placed_files(site: Site, tmp_path: Path) -> None:
    """A shard that was copied there by hand is used, in a folder that is passed (CACHE-4)."""
    site.state(filesize=len)
    (tmp_path / "c").mkdir()
    for number, body in enumerate(site.bodies):
        (tmp_path / "c" / f"train-{number}.tar").write_bytes(body)
    with wids.ShardListDataset(site.spec(), cache_dir=tmp_path / "c") as dataset:
        assert texts(dataset) == EXPECTED
    assert site.asked() == []
    with wids.ShardListDataset(site.spec(), cache_dir=tmp_path / "d") as dataset:
        assert texts(dataset) == EXPECTED
    assert len(site.asked()) == 3


def test_placed_files_in_the_default_folder_are_not_used(site: Site, own_cache: Path) -> None:
    """Nor where two shards share the name."""
    site.state(filesize=len)
    own_cache.mkdir(parents=True)
    (own_cache / "train-0.tar").write_bytes(site.bodies[0])
    with wids.ShardListDataset(site.spec()) as dataset:
        dataset[0]
    assert site.asked() == ["/train-0.tar"]
    site.server.page("/b/train-0.tar", site.bodies[0])
    site.shards.append({**site.shards[0], "url": "b/train-0.tar"})
    with wids.ShardListDataset(site.spec(), cache_dir=own_cache) as dataset:
        assert dataset[20][".txt"] == "text 0"
    assert site.asked()[-1] == "/b/train-0.tar"


def test_localname(site: Site, tmp_path: Path) -> None:
    """People who have a layout of their own keep it (CACHE-4)."""

    def localname(url: str) -> str:
        return str(tmp_path / "mine" / url.rpartition("/")[2])

    for _ in range(2):
        with wids.ShardListDataset(site.spec(), localname=localname) as dataset:
            assert texts(dataset) == EXPECTED
    assert sorted(os.listdir(tmp_path / "mine")) == [f"train-{n}.tar" for n in range(3)]
    assert len(site.asked()) == 3


def test_sizes_are_checked_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than the two largest shards cannot work; the error has the numbers (CACHE-8)."""
    site.state(filesize=len)
    largest = sum(sorted(map(len, site.bodies))[-2:])
    with raises(ValueError, "two largest shards", str(largest), "found 1000"):
        wids.ShardListDataset(site.spec(), cache_size="1KB")
    with raises(ValueError, "keep=True", "choose one"):
        wids.ShardListDataset(site.spec(), cache_size="1TB", keep=True)
    with raises(ValueError, 'access: expected "auto"'):
        wids.ShardListDataset(site.spec(), access="both")
    monkeypatch.setenv("WIDS_CACHE_SIZE", "1KB")
    with raises(ValueError, "two largest shards"):
        wids.ShardListDataset(site.spec())
    wids.ShardListDataset(site.spec(), keep=True).close()
    wids.ShardListDataset([str(site.folder / "train-0.tar")]).close()


def test_a_small_cache(site: Site, own_cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Room for two shards is enough to read all of them, again and again, without a warning."""
    site.state(filesize=len)
    limit = sum(sorted(map(len, site.bodies))[-2:])
    with wids.ShardListDataset(site.spec(), cache_size=limit) as dataset:
        for _ in range(3):
            assert texts(dataset.__getitems__(range(20))) == EXPECTED
            used = sum(path.stat().st_size for path in (own_cache / "shards").glob("*.tar"))
            assert used <= limit
    assert caplog.records == []


# By range.


def test_single_samples_by_range(site: Site) -> None:
    """With a pack, one sample is one request for its bytes (CACHE-15)."""
    site.pack()
    with wids.ShardListDataset(site.spec(index="train.index"), raw="bytes") as dataset:
        assert dataset[10][".txt"] == "text 10"
        assert dataset[10]["__index__"] == 10
    (first, second) = [r for r in site.server.log if r.path.endswith(".tar")]
    assert first.num_sent == second.num_sent == 3 * 512 + 1
    assert first.range.startswith("bytes=")


def test_a_pack_is_fetched_once(site: Site) -> None:
    """And again when it was published anew (CACHE-15)."""
    site.pack()
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
    site.pack()
    with wids.ShardListDataset(url) as dataset:
        assert dataset[0][".txt"] == "text 1"


def test_after_a_quarter_the_whole_is_fetched(tmp_path: Path, server: Server) -> None:
    """With access="auto" (CACHE-15)."""
    (tmp_path / "site").mkdir()
    site = Site(tmp_path / "site", server, [100])
    site.pack()
    with wids.ShardListDataset(site.spec(index="train.index")) as dataset:
        for index in range(40):
            assert dataset[index][".txt"] == f"text {index}"
    by_range = [r.range is not None for r in server.log if r.path.endswith(".tar")]
    nbytes = len(site.bodies[0])
    assert by_range == [True] * (1 + nbytes // 4 // 1537) + [False]


def test_a_copy_that_comes_meanwhile_is_used(site: Site) -> None:
    """Somebody else fetched the shard: there is no need to ask the server again."""
    site.pack()
    url = site.spec(index="train.index")
    with wids.ShardListDataset(url) as dataset, wids.ShardListDataset(url) as other:
        assert dataset[0][".txt"] == "text 0"
        other.__getitems__([0])
        site.server.log.clear()
        assert dataset[1][".txt"] == "text 1"
    assert site.asked() == []


@pytest.mark.parametrize("read", ["batch", "iteration", "slice"])
def test_what_reads_much_fetches_the_whole(site: Site, read: str) -> None:
    """Batches and passes: one request for each shard (CACHE-15)."""
    site.pack()
    with wids.ShardListDataset(site.spec(index="train.index")) as dataset:
        if read == "batch":
            dataset.__getitems__([0, 1])
        elif read == "iteration":
            assert texts(dataset) == EXPECTED
        else:
            assert texts(dataset[0:4]) == EXPECTED[:4]
            assert texts(dataset[8:9]) == EXPECTED[8:9]
    ranges = {r.path: r.range for r in site.server.log if r.path.endswith(".tar")}
    assert ranges["/train-0.tar"] is None
    if read == "slice":
        assert ranges["/train-1.tar"] is not None
    assert len([p for p in site.asked() if p == "/train-0.tar"]) == 1


def test_only_by_range(site: Site, own_cache: Path) -> None:
    """access="range" never fetches a shard, and refuses what it has no index for (CACHE-15)."""
    with wids.ShardListDataset(site.spec(), access="range") as dataset:
        with raises(FetchError, "/train-0.tar: expected an index", "wids create"):
            dataset[0]
    site.pack()
    with wids.ShardListDataset(site.spec(index="train.index"), access="range") as dataset:
        assert texts(dataset) == EXPECTED
        assert texts(dataset.__getitems__(range(20))) == EXPECTED
    assert all(r.range for r in site.server.log if r.path.endswith(".tar"))
    assert not list((own_cache / "shards").glob("*.tar"))


def test_only_by_range_counts_by_range(site: Site) -> None:
    """Counts that are missing are no reason to fetch a shard against the caller's word."""
    for shard in site.shards:
        del shard["nsamples"]
    with raises(FetchError, "/train-0.tar: expected an index"):
        wids.ShardListDataset(site.spec(), access="range")
    assert site.asked() == []


def test_a_fetched_pack_is_leased(site: Site, own_cache: Path) -> None:
    """It is not evicted while it is mapped, and fetched again by who unpickles the dataset."""
    members = sample_members(0, 4000)
    wids.build_spec(
        str(write_tar(site.folder / "large.tar", members)),
        pack=site.folder / "large.index",
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


def test_many_shards_with_packs_of_their_own(tmp_path: Path) -> None:
    """They cost no descriptors beyond those of the shards that are open."""
    shards = []
    for number in range(300):
        (tmp_path / str(number)).mkdir()
        path, index = (tmp_path / str(number) / name for name in ("a.tar", "a.index"))
        if number:
            path.symlink_to(tmp_path / "0" / "a.tar")
            shutil.copy(tmp_path / "0" / "a.index", index)
        else:
            write_tar(path, sample_members(0, 5))
            wids.build_spec(str(path), pack=index)
        shards.append({"url": str(path), "index": str(index)})
    before = len(os.listdir("/proc/self/fd"))
    with wids.ShardListDataset(shards, lru_size=3) as dataset:
        assert len(dataset) == 1500
        assert len(os.listdir("/proc/self/fd")) <= before + 6


def test_a_shards_own_pack(site: Site) -> None:
    """A sidecar that one entry names serves that shard alone (CACHE-15)."""
    path = site.folder / "one.index"
    wids.build_spec(str(site.folder / "train-1.tar"), pack=path)
    site.server.page("/one.index", path.read_bytes())
    site.shards[1]["index"] = "one.index"
    with wids.ShardListDataset(site.spec()) as dataset:
        assert dataset[10][".txt"] == "text 10"
        assert dataset[0][".txt"] == "text 0"
    ranges = {r.path: r.range for r in site.server.log}
    assert (ranges["/train-1.tar"] is None, ranges["/train-0.tar"] is None) == (False, True)
    assert wids.load_spec(site.spec()).shards[1].entry()["index"] == site.server.url + "/one.index"


def test_an_index_that_is_left(site: Site, own_cache: Path) -> None:
    """From an earlier copy that was evicted (CACHE-15)."""
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
    """access="auto" fetches the whole instead (CACHE-15)."""
    site.pack()
    url = site.spec(index="train.index")
    for page in site.server.pages.values():
        page.has_ranges = False
    with wids.ShardListDataset(url) as dataset:
        assert dataset[10][".txt"] == "text 10"
        assert dataset[9][".txt"] == "text 9"
    with wids.ShardListDataset(url, access="range", cache_dir=site.folder / "c") as dataset:
        with raises(FetchError, "whole files only"):
            dataset[10]


def test_a_pack_of_other_tars(site: Site) -> None:
    """Not used where the spec states other lengths; an error where the server does (CACHE-15)."""
    site.pack()
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


def test_a_pack_that_is_missing_or_broken(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Is done without, and said."""
    caplog.set_level(logging.INFO)
    url = site.spec(index="train.index")
    with wids.ShardListDataset(url) as dataset:
        assert dataset[10][".txt"] == "text 10"
    assert "going on without it" in caplog.text
    site.server.page("/train.index", b"broken")
    with wids.ShardListDataset(url) as dataset:
        assert dataset[10][".txt"] == "text 10"
    assert "no index that can be used" in caplog.text


def test_get_by_key(site: Site) -> None:
    """With a pack a search; without one, no dataset is fetched for a key (CACHE-15)."""
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
    site.pack()
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
    """Only what is wanted travels."""
    site.pack()
    url = site.spec(index="train.index")
    with wids.ShardListDataset(url, fields=[".cls"], access="range") as dataset:
        assert {k for k in dataset[10] if not k.startswith("__")} == {".cls"}
    (request,) = [r for r in site.server.log if r.path.endswith(".tar")]
    assert request.num_sent == 512 + 1


# Processes.


def test_pickled_forked_and_used(site: Site) -> None:
    """After use in the parent, in every way of reading."""
    site.pack()
    for access in ("auto", "download", "range"):
        with wids.ShardListDataset(site.spec(index="train.index"), access=access) as dataset:
            assert dataset[0][".txt"] == "text 0"
            copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - made here
            assert texts(copy) == EXPECTED
            copy.close()
            assert in_child(lambda d=dataset: texts(d) == EXPECTED)
            assert texts(dataset) == EXPECTED


def test_digests_of_the_spec(site: Site) -> None:
    """They are compared; a signed URL finds the copy again (CACHE-2)."""
    site.state(filesize=len, sha256=lambda body: hashlib.sha256(body).hexdigest())
    for shard in site.shards:
        shard["url"] += "?sig=1"
    with wids.ShardListDataset(site.spec()) as dataset:
        assert texts(dataset) == EXPECTED
    for shard in site.shards:
        shard["url"] = shard["url"].replace("sig=1", "sig=2")
    with wids.ShardListDataset(site.spec()) as dataset:
        assert texts(dataset) == EXPECTED
    assert len(site.server.log) == 3 + 2
    site.shards[0]["sha256"] = "0" * 64
    with wids.ShardListDataset(site.spec()) as dataset:
        with raises(MismatchError, "train-0.tar?…", "sha256"):
            dataset[0]


def test_a_mixed_dataset(site: Site) -> None:
    """Local shards stay where they are, among remote ones."""
    local = str(site.folder / "train-1.tar")
    shards = [site.server.url + "/train-0.tar", local, site.server.url + "/train-2.tar"]
    with wids.ShardListDataset(list(zip(shards, LENGTHS, strict=True))) as dataset:
        assert texts(dataset) == EXPECTED
        assert texts(dataset.__getitems__(range(19, -1, -1))) == EXPECTED[::-1]
    assert site.asked() == ["/train-0.tar", "/train-2.tar"]


def test_a_spec_is_read_again_after_a_failure(site: Site) -> None:
    """Documents are asked for as patiently as shards."""
    url = site.spec()
    site.server.pages["/train.json"].faults.append(Fault(503))
    with wids.ShardListDataset(url) as dataset:
        assert json.dumps(dataset.shards[0])
