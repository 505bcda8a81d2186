"""A dataset of remote shards that are fetched: once each, and never wrong."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import in_child, raises, sample_members, write_tar
from events import LONG_S
from loopback import Fault, Server
from remote_site import EXPECTED, LENGTHS, Site, texts

import wids
from wids.errors import FetchError, MismatchError, ShardFormatError

pytestmark = pytest.mark.usefixtures("quick_retries")


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Site:
    """Shards of 8, 5 and 7 samples."""
    return Site(tmp_path / "site", server)


def test_all_samples_each_shard_once(site: Site) -> None:
    """Iteration, batches and single samples make one request for each shard."""
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


def test_missing_counts_are_counted(site: Site) -> None:
    """Shards without a count are fetched to count them, once."""
    for shard in site.shards:
        del shard["nsamples"]
    with wids.ShardListDataset(site.spec()) as dataset:
        assert (len(dataset), dataset.lengths) == (20, LENGTHS)
    assert len(site.asked()) == 3
    with wids.ShardListDataset(site.spec()) as dataset:
        assert dataset.lengths == LENGTHS
    assert len(site.asked()) == 3


def test_a_wrong_count_is_named_and_the_copy_fetched_again_once(site: Site) -> None:
    """A stale copy is replaced when another shard has been published at its URL."""
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


def test_a_page_that_is_not_a_tar(site: Site, own_cache: Path) -> None:
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
    """The index beside it has its length, where the spec states none."""
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
    """A copy without its index is not fetched again."""
    with wids.ShardListDataset(site.spec()) as dataset:
        texts(dataset)
    for path in (own_cache / "shards").glob("*.index"):
        path.unlink()
    with wids.ShardListDataset(site.spec()) as dataset:
        assert texts(dataset) == EXPECTED
    assert len(list((own_cache / "shards").glob("*.index"))) == 3
    assert len(site.asked()) == 3


def test_on_error_gets_what_cannot_be_fetched(site: Site) -> None:
    """With ``on_error``, a shard that is missing fails only its own samples."""
    url = site.spec()
    del site.server.pages["/train-1.tar"]
    with wids.ShardListDataset(url, on_error=lambda error: {".txt": type(error)}) as dataset:
        found = texts(dataset.__getitems__(range(20)))
    assert found == [*EXPECTED[:8], *[wids.NotFoundError] * 5, *EXPECTED[13:]]


def test_a_document_from_elsewhere_names_no_pipe_or_file(site: Site) -> None:
    """A remote document names neither commands nor local files (SEC-1, SEC-2)."""
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
    """A handler is used for its scheme, in every access mode."""
    handlers = {"mine": lambda url: (site.folder / url.partition("://")[2]).open("rb")}
    for access in ("auto", "download", "range"):
        with wids.ShardListDataset(
            [{"url": f"mine://{s['url']}", "nsamples": s["nsamples"]} for s in site.shards],
            handlers=handlers,
        ) as dataset:
            assert texts(dataset) == EXPECTED, access


def test_tokens_stay_with_the_first_document(site: Site) -> None:
    """However the document was named, other servers get no token (SEC-9)."""
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
    """``storage_options`` are used for document, shards and dataset index."""
    site.dataset_index()
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
    """A shard that a user copied into a folder that is passed is used (CACHE-4)."""
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
    """Nor in a folder that is passed, where two shards share the name."""
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
    """``localname`` chooses the path of each copy (CACHE-4)."""

    def localname(url: str) -> str:
        return str(tmp_path / "mine" / url.rpartition("/")[2])

    for _ in range(2):
        with wids.ShardListDataset(site.spec(), localname=localname) as dataset:
            assert texts(dataset) == EXPECTED
    assert sorted(os.listdir(tmp_path / "mine")) == [f"train-{n}.tar" for n in range(3)]
    assert len(site.asked()) == 3


class WithUrl(wids.ShardListDataset):
    """A subclass with a ``__getitem__`` of its own."""

    def __getitem__(self, index: Any) -> Any:
        return {**super().__getitem__(index), "mine": True}


def test_batches_of_a_subclass_are_read_as_others(site: Site, tmp_path: Path) -> None:
    """Samples that come one by one are requested together, and a pass fetches whole shards."""
    site.dataset_index()
    spec = site.spec(index="train.index")
    with WithUrl(spec) as dataset:
        dataset[9]
        assert texts(dataset.__getitems__([0, 14, 1, -6])) == [EXPECTED[n] for n in (0, 14, 1, 14)]
        assert [dataset.reader.is_local(n) for n in range(3)] == [False, False, False]
        # Those of the batch come at the same time.
        first, *others = site.asked()
        assert (first, sorted(others)) == ("/train-1.tar", ["/train-0.tar", "/train-2.tar"])
        assert all(sample["mine"] for sample in dataset)
        assert [dataset.reader.is_local(n) for n in range(3)] == [True] * 3
    with WithUrl(spec, cache_dir=tmp_path) as dataset:
        dataset.__getitems__([0, 1])
        assert dataset[9]["mine"]  # a single one again
        assert not any(map(dataset.reader.is_local, range(3)))


class Reversed(wids.ShardListDataset):
    """A subclass whose indices are others."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(len(self) - 1 - index)


def test_a_subclass_reads_other_samples_than_its_indices_say(site: Site) -> None:
    """What was requested in vain changes no sample."""
    site.dataset_index()
    with Reversed(site.spec(index="train.index")) as dataset:
        assert texts(dataset.__getitems__([0, 14, 19])) == [EXPECTED[n] for n in (19, 5, 0)]


class Waiting(wids.ShardListDataset):
    """A subclass whose first sample of a batch waits while others read."""

    began: threading.Event
    may_end: threading.Event

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        if index == 0:
            self.began.set()
            assert self.may_end.wait(LONG_S)
        return sample


def test_a_batch_of_one_thread_reads_nothing_for_another(site: Site) -> None:
    """A batch of one thread is not read by another; one that ends leaves those of others."""
    site.dataset_index()
    with Waiting(site.spec(index="train.index")) as dataset:
        dataset.began, dataset.may_end = threading.Event(), threading.Event()
        with ThreadPoolExecutor(1) as thread:
            first = thread.submit(dataset.__getitems__, [0, 14])
            assert dataset.began.wait(LONG_S)
            assert texts([dataset[9]]) == EXPECTED[9:10]
            assert texts(dataset.__getitems__([1, 2])) == EXPECTED[1:3]
            site.server.log.clear()
            dataset.may_end.set()
            assert texts(first.result()) == [EXPECTED[0], EXPECTED[14]]
        assert site.asked() == []


def test_sizes_are_checked_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit below the two largest shards is an error with both numbers (CACHE-8)."""
    site.state(filesize=len)
    largest = sum(sorted(map(len, site.bodies))[-2:])
    with raises(ValueError, "two largest shards", str(largest), "found 1000"):
        wids.ShardListDataset(site.spec(), cache_size="1KB")
    with pytest.warns(UserWarning, match="keep=True never deletes"):
        wids.ShardListDataset(site.spec(), cache_size="1TB", keep=True).close()
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


def test_copies_that_are_kept(site: Site, own_cache: Path) -> None:
    """With keep=True nothing is evicted, whatever the limit (CACHE-8)."""
    site.state(filesize=len)
    options = {"cache_size": sum(sorted(map(len, site.bodies))[-2:]), "keep": True}
    with pytest.warns(UserWarning, match="keep=True never deletes"):
        dataset = wids.ShardListDataset(site.spec(), access="download", **options)
    with dataset:
        assert texts(dataset) == EXPECTED
    assert len(list((own_cache / "shards").glob("*.tar"))) == len(site.bodies)


# Processes.


def test_pickled_forked_and_used(site: Site) -> None:
    """A dataset that was used can be pickled and forked, in every access mode."""
    site.dataset_index()
    for access in ("auto", "download", "range"):
        with wids.ShardListDataset(site.spec(index="train.index"), access=access) as dataset:
            assert dataset[0][".txt"] == "text 0"
            copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - made here
            assert texts(copy) == EXPECTED
            copy.close()
            assert in_child(lambda d=dataset: texts(d) == EXPECTED)
            assert texts(dataset) == EXPECTED


def test_digests_of_the_spec(site: Site) -> None:
    """Digests are compared, and find a copy again under another signed URL (CACHE-2)."""
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
    """Local shards among remote ones are read in place."""
    local = str(site.folder / "train-1.tar")
    shards = [site.server.url + "/train-0.tar", local, site.server.url + "/train-2.tar"]
    with wids.ShardListDataset(list(zip(shards, LENGTHS, strict=True))) as dataset:
        assert texts(dataset) == EXPECTED
        assert texts(dataset.__getitems__(range(19, -1, -1))) == EXPECTED[::-1]
    assert site.asked() == ["/train-0.tar", "/train-2.tar"]


def test_a_spec_is_read_again_after_a_failure(site: Site) -> None:
    """A document is requested again after an error, like a shard."""
    url = site.spec()
    site.server.pages["/train.json"].faults.append(Fault(503))
    with wids.ShardListDataset(url) as dataset:
        assert json.dumps(dataset.shards[0])
