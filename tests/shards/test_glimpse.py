"""Tars without an index, of which only the beginning is read."""

from __future__ import annotations

import random
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import Member, raises, sample_members, write_tar
from loopback import Fault, Server

import wids
from wids.shards.glimpse import Glimpse, ShardLook
from wids.shards.read_options import ReadOptions
from wids.shards.reader import ShardReader
from wids.shards.tars.index import index_tar
from wids.storage.cache.cache_names import RemoteFile, copy_path
from wids.storage.cache.store import Cache
from wids.storage.fetch import Fetcher

MB = 1_000_000


def photos(count: int, nbytes: int) -> Iterable[Member]:
    draw = random.Random(count)
    for number in range(count):
        yield f"p{number:03d}.jpg", draw.randbytes(nbytes)
        yield f"p{number:03d}.txt", f"photo {number}".encode()


def serve(server: Server, folder: Path, members: Iterable[Member], **options: Any) -> str:
    path = write_tar(folder / "a.tar", members)
    return server.page("/a.tar", path.read_bytes(), **options)


def test_a_glimpse_has_the_first_samples(server: Server, tmp_path: Path) -> None:
    """The first megabyte is read, and the samples that are complete in it are known."""
    url = serve(server, tmp_path, photos(100, 100_000))
    glimpse = Glimpse(Fetcher(), url)

    assert (len(server.log), server.num_sent) == (1, 1 << 20)
    assert len(glimpse.index) == 10  # the eleventh may have more members
    samples = glimpse.shard().read_many(range(10))
    assert [sample[".txt"] for sample in samples] == [b"photo %d" % n for n in range(10)]
    assert len(server.log) == 1
    assert (glimpse.is_complete, glimpse.can_continue) == (False, True)
    assert glimpse.remark() == "1.0 MB of 10.2 MB were read"


def test_a_glimpse_grows_on_demand(server: Server, tmp_path: Path) -> None:
    """More samples are found by reading on, at a limited cost for each look, to the end."""
    url = serve(server, tmp_path, photos(300, 100_000))
    glimpse = Glimpse(Fetcher(), url)
    glimpse.reach(20)
    assert 20 <= len(glimpse.index) < 45
    sent = server.num_sent
    glimpse.reach(20)
    assert server.num_sent == sent
    glimpse.reach(300)
    assert server.num_sent - sent < 8 * MB
    for _ in range(6):
        glimpse.reach(300)
    assert glimpse.is_complete
    assert (len(glimpse.index), glimpse.remark()) == (300, "")
    assert server.num_sent <= glimpse.nbytes
    assert glimpse.shard().read(299)[".txt"] == b"photo 299"


@pytest.mark.long
def test_large_members_are_passed_over(server: Server, tmp_path: Path) -> None:
    """A first member of many megabytes is named and not read; the next header is one request."""
    members = [
        ("a.mp4", bytes(40 * MB)),
        ("a.txt", b"A"),
        ("b.mp4", bytes(5 * MB)),
        ("b.txt", b"B"),
    ]
    url = serve(server, tmp_path, members)
    glimpse = Glimpse(Fetcher(), url)
    assert len(glimpse.index) == 0
    glimpse.reach(1)
    assert server.num_sent < 1.2 * MB
    assert glimpse.index.key(0) == "a"
    assert glimpse.shard(fields=[".txt"]).read(0) == {".txt": b"A", "__key__": "a"}
    glimpse.complete()
    assert (len(server.log), server.num_sent < 1.3 * MB) == (3, True)
    assert len(glimpse.index) == 2
    assert len(glimpse.shard().read_part(1, ".mp4", 10, 20)) == 10


@pytest.mark.long
def test_requests_of_one_look_are_limited(server: Server, tmp_path: Path) -> None:
    """A look ends after 24 requests, however far the wanted sample is."""
    url = serve(server, tmp_path, ((f"{n}.bin", bytes(600_000)) for n in range(60)))
    glimpse = Glimpse(Fetcher(), url)
    glimpse.reach(60)
    assert len(server.log) == 25
    assert 20 < len(glimpse.index) < 30


def test_a_sample_is_shown_when_it_is_complete(server: Server, tmp_path: Path) -> None:
    """All members of a sample are found before it counts, by either rule for keys."""
    members = [("a.b.txt", b"1"), ("a.c.txt", b"2"), ("z", b""), ("big.bin", bytes(2 * MB))]
    url = serve(server, tmp_path, [*members, ("end.txt", b"")])
    for key_split, keys in (("first", ["a"]), ("last", ["a.b", "a.c"])):
        glimpse = Glimpse(Fetcher(), url, key_split)
        assert [glimpse.index.key(n) for n in range(len(glimpse.index))] == keys


def test_servers_without_ranges(server: Server, tmp_path: Path) -> None:
    """Three megabytes of the body are read, what ends there is shown, and it says so."""
    body = write_tar(tmp_path / "b.tar", photos(300, 100_000)).read_bytes()
    for options in ({}, {"is_chunked": True}, {"has_length": False}):
        server.log.clear()
        glimpse = Glimpse(Fetcher(), server.page("/b.tar", body, has_ranges=False, **options))
        glimpse.reach(300)
        assert len(server.log) == 1
        assert server.num_sent < 16 * MB
        assert (len(glimpse.index), glimpse.is_complete, glimpse.can_continue) == (30, False, False)
        assert glimpse.shard().read(29)[".txt"] == b"photo 29"
        of = "" if options else " of 30.6 MB"
        assert glimpse.remark() == (
            f"the server sends whole files only: 3.1 MB{of} were read, the samples in these are "
            "shown"
        )

    big = serve(server, tmp_path, [("a.mp4", bytes(9 * MB)), ("a.txt", b"")], has_ranges=False)
    glimpse = Glimpse(Fetcher(), big)
    assert len(glimpse.index) == 0
    assert "3.1 MB of 9.0 MB were read, no sample ends there" in glimpse.remark()


def test_small_tars_are_complete_at_once(server: Server, tmp_path: Path) -> None:
    """A tar of less than a megabyte is read and known in full, whatever its server can do."""
    for options in ({}, {"has_ranges": False}, {"is_chunked": True, "has_ranges": False}):
        server.log.clear()
        glimpse = Glimpse(Fetcher(), serve(server, tmp_path, sample_members(0, 20), **options))
        assert (len(server.log), glimpse.is_complete, len(glimpse.index)) == (1, True, 20)
        assert glimpse.shard().read(19)[".txt"] == b"text 19"


def test_damage_is_shown_after_the_samples_before_it(server: Server, tmp_path: Path) -> None:
    """A tar that is damaged later on shows what precedes; one that is no tar shows what it is."""
    body = write_tar(tmp_path / "a.tar", photos(8, 100_000)).read_bytes()
    body = body[:500_000] + b"\1" * 100_000 + body[600_000:]
    glimpse = Glimpse(Fetcher(), server.page("/a.tar", body))
    assert 3 <= len(glimpse.index) <= 4
    assert "damaged there" in glimpse.remark()
    glimpse = Glimpse(Fetcher(), server.page("/a.tar", b"<html>not found</html>" * 100))
    assert len(glimpse.index) == 0
    assert "HTML or XML" in glimpse.remark()
    with raises(wids.ShardFormatError, "empty"):
        Glimpse(Fetcher(), server.page("/a.tar", b""))
    with raises(wids.NotFoundError, "nothing.tar"):
        Glimpse(Fetcher(), server.url + "/nothing.tar")


@pytest.mark.usefixtures("quick_retries")
def test_a_failed_look_can_be_repeated(server: Server, tmp_path: Path) -> None:
    """After a failure nothing is lost or found twice."""
    url = serve(server, tmp_path, photos(40, 100_000))
    glimpse = Glimpse(Fetcher(), url)
    server.pages["/a.tar"].faults = [Fault(403)]
    with raises(wids.FetchError, "403"):
        glimpse.reach(40)
    while glimpse.can_continue:
        glimpse.reach(40)
    expected = index_tar((tmp_path / "a.tar").read_bytes(), checksums=True)
    assert (glimpse.index.head_crcs == expected.head_crcs).all()


# Shards with an index and without.


def look_at(shards: Any, cache: Path) -> ShardLook:
    """Return a look at the first shard."""
    store, options = Cache(str(cache), Fetcher()), ReadOptions("range")
    return ShardLook(ShardReader(wids.load_spec(shards), store, options), 0)


def test_an_index_is_left_for_datasets(server: Server, tmp_path: Path) -> None:
    """The index of a completed shard is in the cache folder as after a fetch."""
    url = serve(server, tmp_path, photos(10, 2 * MB))
    look = look_at([url, url], tmp_path / "cache")
    assert not wids.peek([url, url], cache_dir=tmp_path / "cache").has_all_indexes
    look.make_index()
    assert wids.peek([url, url], cache_dir=tmp_path / "cache").has_all_indexes
    assert len(look.index()) == 10
    assert server.num_sent < 1.5 * MB
    with wids.ShardListDataset([url], access="range", cache_dir=tmp_path / "cache") as dataset:
        assert len(dataset) == 10
        assert dataset.find_key("p007") == 7
    with look.open(fields=[".txt"]) as shard:
        assert shard.read(9)[".txt"] == b"photo 9"
    look.make_index()  # it is there


def test_a_shard_with_an_index_is_opened_once(tmp_path: Path) -> None:
    """A shard whose index is known needs no further look."""
    path = write_tar(tmp_path / "local.tar", sample_members(0, 3))
    look = look_at([path], tmp_path / "cache")
    assert look.index() is look.index()


def test_a_shard_without_ranges_is_fetched_to_be_indexed(server: Server, tmp_path: Path) -> None:
    """The copy is kept in the cache, with its index, since nothing else can be read of it."""
    url = serve(server, tmp_path, photos(60, 100_000), has_ranges=False)
    look = look_at([url], tmp_path / "cache")
    assert len(look.index()) == 30
    look.make_index()
    assert len(look.index()) == 60
    assert Path(copy_path(str(tmp_path / "cache"), RemoteFile(url))).exists()
    with look.open() as shard:
        assert shard.read(59)[".txt"] == b"photo 59"


def test_a_replaced_shard_is_looked_at_anew(server: Server, tmp_path: Path) -> None:
    """After a shard was replaced, its old samples are an error, and the next look has the new."""
    url = serve(server, tmp_path, photos(30, 100_000))
    look = look_at([url], tmp_path / "cache")
    assert len(look.index()) == 10
    server.pages["/a.tar"].body = write_tar(tmp_path / "b.tar", photos(31, 100_000)).read_bytes()
    look.reach(31)
    assert len(look.index()) == 31
    server.pages["/a.tar"].body = write_tar(tmp_path / "b.tar", photos(29, 100_000)).read_bytes()
    glimpse = look.glimpse
    assert glimpse is not None
    with raises(wids.MismatchError, "a.tar"):
        glimpse._parts._parts.clear()
        glimpse.shard().read(20)
    assert len(look.index()) == 10


def test_stated_lengths_are_compared(server: Server, tmp_path: Path) -> None:
    """A shard of another length than the spec states is an error before samples are shown."""
    url = serve(server, tmp_path, sample_members(0, 5))
    look = look_at({"shardlist": [{"url": url, "filesize": 512}]}, tmp_path / "cache")
    with raises(wids.MismatchError, "expected 512 bytes (filesize), found 20480"):
        look.index()


def test_local_and_indexed_shards_need_no_glimpse(server: Server, tmp_path: Path) -> None:
    """What has an index, or a copy, is opened as for a dataset."""
    path = write_tar(tmp_path / "local.tar", sample_members(0, 7), tarfile.USTAR_FORMAT)
    url = server.page("/local.tar", path.read_bytes())
    wids.build_spec([url], dataset_index=tmp_path / "a.index").save(tmp_path / "a.json")
    server.log.clear()
    for shards in ([path], tmp_path / "a.json"):
        look = look_at(shards, tmp_path / "cache")
        assert look.glimpse is None
        assert len(look.index()) == 7
    assert server.log == []
