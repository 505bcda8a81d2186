"""A batch requests all that it needs of its remote shards at once, and no more than that."""

from __future__ import annotations

import random
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import raises, write_tar
from events import LONG_S
from loopback import Fault, Page, Request, Server
from remote_site import EXPECTED, LENGTHS, Site, texts

import wids
from wids.errors import FetchError, NotFoundError, ShardFormatError
from wids.shards.batches import read_batch
from wids.shards.policy import Wanted
from wids.storage.transport import machine
from wids.storage.transport.machine import Machine

pytestmark = pytest.mark.usefixtures("quick_retries")


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Site:
    """Shards of 8, 5 and 7 samples."""
    return Site(tmp_path / "site", server)


class Together(Page):
    """A page that answers when a number of requests have come, to it and to others."""

    barrier: threading.Barrier

    def next_fault(self, request: Request) -> Fault | None:
        try:
            self.barrier.wait(LONG_S)
        except threading.BrokenBarrierError:
            return Fault(404)
        return super().next_fault(request)


def answer_together(server: Server, prefix: str, num_requests: int) -> None:
    """Have the files with a prefix answer only when a number of requests wait for them."""
    barrier = threading.Barrier(num_requests)
    for path in [path for path in server.pages if path.startswith(prefix)]:
        server.pages[path] = page = Together(server.pages[path].body)
        page.barrier = barrier


def tar_requests(server: Server) -> list[Request]:
    return [request for request in server.log if request.path.endswith(".tar")]


@pytest.mark.parametrize("access", ["range", "auto"])
def test_all_shards_of_a_batch_are_requested_at_once(site: Site, access: Any) -> None:
    """The requests for three shards are in flight together, those for their indexes before."""
    for number, shard in enumerate(site.shards):
        path = site.folder / f"index-{number}"
        wids.build_spec([str(site.folder / shard["url"])], dataset_index=path)
        site.server.page(f"/{path.name}", path.read_bytes())
        shard["index"] = path.name
    answer_together(site.server, "/index-", 3)
    answer_together(site.server, "/train-", 3)
    with wids.ShardListDataset(site.spec(), access=access) as dataset:
        assert texts(dataset.__getitems__([19, 0, 10, 0])) == [EXPECTED[n] for n in (19, 0, 10, 0)]
    assert len(tar_requests(site.server)) == 3


def test_both_sides_of_a_join_are_requested_at_once(site: Site, tmp_path: Path) -> None:
    """The shards of the one side in one flight, and those of the other in another."""
    site.dataset_index()
    paths = []
    for number in range(2):
        names = [f"s{n:05d}" for n in range(number * 10, number * 10 + 10)]
        paths.append(write_tar(tmp_path / f"o-{number}.tar", [(f"{n}.json", b"{}") for n in names]))
    spec = wids.build_spec(list(map(str, paths)), dataset_index=tmp_path / "o.index")
    spec.save(tmp_path / "o.json")
    for path in (*paths, tmp_path / "o.index", tmp_path / "o.json"):
        site.server.page(f"/{path.name}", path.read_bytes())
    options: Any = {"access": "range", "raw": "bytes", "transformations": None}
    with (
        wids.ShardListDataset(site.spec(index="train.index"), **options) as left,
        wids.ShardListDataset(site.server.url + "/o.json", **options) as right,
    ):
        joined = left.join(right)
        answer_together(site.server, "/train-", 3)
        answer_together(site.server, "/o-", 3)
        samples = joined.__getitems__([0, 9, 19])
    assert [sample[".txt"] for sample in samples] == [b"text 0", b"text 9", b"text 19"]
    assert [sample[".json"] for sample in samples] == [b"{}"] * 3


def large_site(tmp_path: Path, server: Server) -> Site:
    """Return two shards of 100 samples."""
    site = Site(tmp_path / "site", server, [100, 100])
    site.dataset_index()
    return site


def test_random_batch_reads_at_most_twice_its_bytes(tmp_path: Path, server: Server) -> None:
    """With access="auto" and no announced order, nothing else is fetched."""
    site = large_site(tmp_path, server)
    sample_nbytes = 2 * 512 + 512 + 1  # two headers, and two members with padding
    with wids.ShardListDataset(site.spec(index="train.index")) as dataset:
        for batch_size in (1, 4, 16):
            server.log.clear()
            indices = random.Random(batch_size).sample(range(200), batch_size)
            assert texts(dataset.__getitems__(indices)) == [f"text {n}" for n in indices]
            assert not any(request.is_download for request in tar_requests(server))
            assert sum(r.num_sent for r in tar_requests(server)) <= 2 * batch_size * sample_nbytes
        assert not dataset.reader.is_local(0)
        assert not dataset.reader.is_local(1)


def test_a_shard_of_which_much_is_wanted_is_fetched(tmp_path: Path, server: Server) -> None:
    """A batch with most of a shard fetches it, and reads the other shard by range."""
    site = large_site(tmp_path, server)
    with wids.ShardListDataset(site.spec(index="train.index")) as dataset:
        indices = [*range(80), 150]
        assert texts(dataset.__getitems__(indices)) == [f"text {n}" for n in indices]
        assert [dataset.reader.is_local(number) for number in (0, 1)] == [True, False]
    assert [r.is_download for r in tar_requests(server)] in ([True, False], [False, True])


@pytest.mark.parametrize("read", ["batch", "single"])
def test_many_reads_transfer_at_most_twice_the_shard(
    tmp_path: Path, server: Server, read: str
) -> None:
    """Batches and single samples go to the whole shard when they have read as much."""
    site = large_site(tmp_path, server)
    nbytes = len(site.bodies[0])
    with wids.ShardListDataset(site.spec(index="train.index")) as dataset:
        for turn in range(3):
            for start in range(0, 100, 5):
                indices = list(range(start, start + 5))
                if read == "batch":
                    found = dataset.__getitems__(indices)
                else:
                    found = [dataset[index] for index in indices]
                assert texts(found) == [f"text {n}" for n in indices]
                if not turn and start < 40:
                    assert not dataset.reader.is_local(0)
        assert dataset.reader.is_local(0)
    requests = tar_requests(server)
    assert [request.is_download for request in requests].count(True) == 1
    assert sum(request.num_sent for request in requests) <= 2 * nbytes


def test_a_shard_that_fails_concerns_its_own_samples(site: Site) -> None:
    """``on_error`` gets the error of each sample of one shard; the others are read."""
    site.dataset_index()
    url = site.spec(index="train.index")
    del site.server.pages["/train-1.tar"]
    for access in ("auto", "range"):
        with wids.ShardListDataset(
            url, access=access, on_error=lambda error: {".txt": type(error)}
        ) as dataset:
            found = texts(dataset.__getitems__([0, 9, 19]))
            assert found == ["text 0", NotFoundError, "text 19"]
        with wids.ShardListDataset(url, access=access) as dataset:
            with raises(FetchError, "/train-1.tar"):
                dataset.__getitems__([0, 9, 19])


def test_a_shard_without_an_index_is_fetched(site: Site) -> None:
    """With access="auto"; with access="range" its samples fail, and others are read."""
    site.dataset_index()
    (site.folder / "train-2.tar").write_bytes(site.bodies[2] + bytes(512))
    site.server.page("/train-2.tar", site.bodies[2] + bytes(512))
    site.shards[2]["filesize"] = len(site.bodies[2]) + 512
    url = site.spec(index="train.index")
    with wids.ShardListDataset(url) as dataset:
        assert texts(dataset.__getitems__([0, 9, 19])) == ["text 0", "text 9", "text 19"]
        assert [dataset.reader.is_local(number) for number in range(3)] == [False, False, True]
    with wids.ShardListDataset(
        url, access="range", on_error=lambda _: None, cache_dir=site.folder / "c"
    ) as dataset:
        assert [s is None for s in dataset.__getitems__([0, 9, 19])] == [False, False, True]


def test_a_server_without_ranges_sends_whole_shards(site: Site) -> None:
    """A batch with access="auto" fetches its shards from a server that ignores ranges."""
    site.dataset_index()
    for page in site.server.pages.values():
        page.has_ranges = False
    with wids.ShardListDataset(site.spec(index="train.index")) as dataset:
        assert texts(dataset.__getitems__([1, 9, 14])) == ["text 1", "text 9", "text 14"]
        assert all(dataset.reader.is_local(number) for number in range(3))


def test_a_batch_of_one_shard_open_at_a_time(site: Site) -> None:
    """A pool that holds one shard does not close those of the flight."""
    site.dataset_index()
    url = site.spec(index="train.index")
    with wids.ShardListDataset(url, access="range", lru_size=1) as dataset:
        assert texts(dataset.__getitems__(range(20))) == EXPECTED
    assert len(tar_requests(site.server)) == len(LENGTHS)


@pytest.mark.parametrize("raw", ["bytes", "view"])
def test_responses_are_released_when_their_samples_are_cut(
    site: Site, monkeypatch: pytest.MonkeyPatch, raw: Any
) -> None:
    """A batch that has arrived keeps the bytes of its samples, also as views, and no response."""
    made: list[weakref.ref[Block]] = []

    class Block(bytearray):
        """Memory that tells when it is freed."""

    def block(nbytes: int) -> memoryview:
        found = Block(nbytes)
        made.append(weakref.ref(found))
        return memoryview(found)

    site.dataset_index()
    options: Any = {"access": "range", "raw": raw, "transformations": None}
    with wids.ShardListDataset(site.spec(index="train.index"), **options) as dataset:
        monkeypatch.setattr(machine, "HERE", Machine(memory=block))
        _, open_shard = read_batch(dataset.reader, np.array([0, 9, 19]))
        assert made
        assert [each() for each in made] == [None] * len(made)
        assert bytes(open_shard(1, Wanted.SAMPLES).read(1)[".txt"]) == b"text 9"


@pytest.mark.parametrize("together", [True, False])
def test_a_damaged_member_concerns_its_own_sample(site: Site, together: bool) -> None:
    """Its neighbours in the same range are read, in a batch and one by one."""
    site.dataset_index()
    page = site.server.pages["/train-0.tar"]
    page.body = page.body.replace(b"text 2", b"TEXT 2")

    class One(wids.ShardListDataset):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)

    with (wids.ShardListDataset if together else One)(
        site.spec(index="train.index"), access="range", on_error=lambda error: {".txt": type(error)}
    ) as dataset:
        found = texts(dataset.__getitems__([1, 2, 3]))
    assert found == ["text 1", ShardFormatError, "text 3"]
