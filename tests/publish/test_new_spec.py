"""Remote shards → spec and dataset index by their headers alone: its cost, and its readers."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import raises, sample_members, write_tar
from loopback import Fault, Page, Request, Server

import wids
from wids.shards.indexes.dataset_index import RangeDatasetIndex, load_dataset_index
from wids.shards.tars.header_scan import HeaderScan
from wids.shards.tars.index import index_tar

MB = 1_000_000


def films(count: int, nbytes: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield the members of samples with one large and two small members."""
    draw = random.Random(seed)
    for number in range(count):
        yield f"{seed}-{number:04d}.mp4", draw.randbytes(nbytes)
        yield f"{seed}-{number:04d}.json", json.dumps({"n": number, "seed": seed}).encode()
        yield f"{seed}-{number:04d}.txt", f"film {number} of {seed}".encode()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three shards of 8 videos of 2 MB."""
    folder = tmp_path_factory.mktemp("films")
    return [write_tar(folder / f"film-{n}.tar", films(8, 2 * MB, n)) for n in range(3)]


def publish(server: Server, shards: list[Path], **options: Any) -> list[str]:
    return [server.page(f"/{path.name}", path.read_bytes(), **options) for path in shards]


def indexes_in(path: Path) -> list[Any]:
    """Return the indexes of a dataset index of three shards."""
    dataset_index = load_dataset_index(str(path))
    assert dataset_index is not None
    return [
        dataset_index.index(n, dataset_index.tar_nbytes(n), "first")
        for n in range(len(dataset_index))
    ]


def test_large_members_are_skipped(server: Server, shards: list[Path], tmp_path: Path) -> None:
    """A request for each large member and a few bytes make the index (INDEX-20)."""
    costs: list[Any] = []
    spec = wids.build_spec(
        publish(server, shards), dataset_index=tmp_path / "r.index", on_cost=costs.append
    )

    assert server.num_sent < 3 * (1.1 * (1 << 20) + 8 * (33 << 10))
    assert len(server.log) <= 3 * 9
    assert list(map(str, costs)) == ["3.1 MB in 3 shards"], "a MiB of each, no whole one"
    local = wids.build_spec(shards, dataset_index=tmp_path / "l.index")
    assert [(s.num_samples, s.nbytes, s.sha256) for s in spec.shards] == [
        (s.num_samples, s.nbytes, None) for s in local.shards
    ]
    for found, expected in zip(
        indexes_in(tmp_path / "r.index"), indexes_in(tmp_path / "l.index"), strict=True
    ):
        assert len(found.payload_crcs) == 0
        assert (found.head_crcs == expected.head_crcs).all()
        assert (found.blocks == expected.blocks).all()


def test_what_was_indexed_by_headers_is_read_and_verified(
    server: Server, shards: list[Path], tmp_path: Path
) -> None:
    """Readers, the cache and verify do without digests and checksums (INDEX-22)."""
    urls = publish(server, shards)
    wids.build_spec(urls, dataset_index=tmp_path / "a.index").save(tmp_path / "a.json")
    entry = json.loads((tmp_path / "a.json").read_text())["shardlist"][0]
    assert sorted(entry) == ["filesize", "nsamples", "url"]

    for access in ("range", "auto", "download"):
        cache = tmp_path / access
        with wids.ShardListDataset(
            tmp_path / "a.json", access=access, verify="always", cache_dir=cache
        ) as dataset:
            assert dataset[9][".txt"] == "film 1 of 1"
            assert dataset.get_by_key("0-0003")[".json"] == {"n": 3, "seed": 0}
    assert wids.verify_spec(tmp_path / "a.json") == []
    server.pages["/film-1.tar"].body = shards[0].read_bytes()
    problems = [problem.text for problem in wids.verify_spec(tmp_path / "a.json")]
    # The keys of the other shard, which this one has now, occur twice.
    assert ["does not match" in text for text in problems] == [False, True]


def test_small_members_are_streamed_with_digests(server: Server, tmp_path: Path) -> None:
    """Where headers are near each other, the whole shard is read, once and with its digest."""
    path = write_tar(tmp_path / "a.tar", ((f"{n}.bin", bytes(200_000)) for n in range(20)))
    small = write_tar(tmp_path / "small.tar", sample_members(0, 9))
    costs: list[Any] = []
    spec = wids.build_spec(
        publish(server, [path, small]), dataset_index=tmp_path / "r.index", on_cost=costs.append
    )

    assert spec.shards[0].sha256 == wids.build_spec([path]).shards[0].sha256
    assert all(len(index.payload_crcs) for index in indexes_in(tmp_path / "r.index"))
    assert sorted(server.requests) == ["/a.tar", "/a.tar", "/small.tar"]
    assert list(map(str, costs)) == ["1.1 MB in 2 shards", "4.0 MB in 1 shard"]


def test_digests_are_computed_if_they_are_wanted(
    server: Server, shards: list[Path], tmp_path: Path
) -> None:
    """All bytes are read then, also of shards that a journal has without a digest (INDEX-22)."""
    urls, journal = publish(server, shards[:1]), tmp_path / "journal"
    plain = wids.build_spec(urls, journal=journal)
    assert plain.shards[0].sha256 is None
    spec = wids.build_spec(urls, journal=journal, digests=True, dataset_index=tmp_path / "r.index")
    assert spec.shards[0].sha256 == wids.build_spec(shards[:1]).shards[0].sha256
    assert len(indexes_in(tmp_path / "r.index")[0].payload_crcs) == 24
    num_requests = len(server.log)
    assert wids.build_spec(urls, journal=journal).shards == spec.shards
    assert len(server.log) == num_requests


def test_stated_digests_stay(server: Server, shards: list[Path]) -> None:
    """A document's digest is kept for a shard of the length that it states, and not of another."""
    (url,) = publish(server, shards[:1])
    nbytes = shards[0].stat().st_size
    for stated, expected in ((nbytes, "ab" * 32), (nbytes + 512, None)):
        entry = {"url": url, "filesize": stated, "sha256": "ab" * 32}
        spec = wids.build_spec({"shardlist": [entry]})
        assert spec.shards[0].sha256 == expected


def test_servers_without_ranges_are_streamed(server: Server, shards: list[Path]) -> None:
    """The first request is cut off, the second reads everything."""
    costs: list[Any] = []
    urls = publish(server, shards[:1], has_ranges=False)
    spec = wids.build_spec(urls, on_cost=costs.append)
    assert spec.shards == tuple(
        wids.load_spec({"shardlist": [s.entry() | {"url": urls[0]}]}).shards[0]
        for s in wids.build_spec(shards[:1]).shards
    )
    assert len(server.log) == 2
    assert [cost.nbytes for cost in costs] == [1 << 20, shards[0].stat().st_size]


def test_work_is_stopped_before_whole_shards_are_read(
    server: Server, shards: list[Path], tmp_path: Path
) -> None:
    """What `on_cost` raises ends the work; the next run resumes it."""

    def refuse(cost: Any) -> None:
        if cost.nbytes > 4 * MB:
            assert cost.nbytes_of.keys() == {urls[2]}
            raise RuntimeError(str(cost))

    urls = publish(server, shards[:2]) + publish(server, shards[2:], has_ranges=False)
    with raises(RuntimeError, "in 1 shard"):
        wids.build_spec(urls, journal=tmp_path / "journal", on_cost=refuse)
    server.log.clear()
    wids.build_spec(urls, journal=tmp_path / "journal")
    assert set(server.requests) == {"/film-2.tar"}


class Replaced(Page):
    """A file that is replaced after its first part was sent."""

    later: bytes = b""
    num_replacements: int = 1

    def answer(self, request: Request, fault: Fault | None) -> Any:
        result = super().answer(request, fault)
        if self.num_replacements:
            self.num_replacements -= 1
            self.body, self.later = self.later, self.body
        return result


@pytest.mark.parametrize("same_length", [True, False])
def test_a_replaced_shard_is_indexed_as_it_is_now(
    server: Server, shards: list[Path], *, same_length: bool
) -> None:
    """An index never has headers of two versions of a file (CACHE-30)."""
    first, second = shards[0].read_bytes(), shards[1].read_bytes()
    second = second if same_length else second + bytes(10240)
    page = Replaced(first)
    page.later = second
    server.pages["/a.tar"] = page
    spec = wids.build_spec([server.url + "/a.tar"])
    assert (spec.shards[0].num_samples, spec.shards[0].nbytes) == (8, len(second))

    page.num_replacements = 1000
    spec = wids.build_spec([server.url + "/a.tar"])
    assert spec.shards[0].num_samples == 8
    assert spec.shards[0].nbytes in (len(first), len(second))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"<html>no</html>" + data, "HTML"),
        (lambda data: data[: 9 * MB], "but the file has 9000000"),
        (lambda data: data[: 4 * MB] + b"\1" * 600_000 + data[4 * MB + 600_000 :], "damaged there"),
    ],
)
def test_damaged_shards_are_the_same_errors(
    server: Server, shards: list[Path], damage: Any, message: str
) -> None:
    """What is wrong with a shard is found by its headers as in a local file, under its URL."""
    body = damage(shards[0].read_bytes())
    with raises(wids.ShardFormatError, f"{server.url}/a.tar?…: ", message):
        wids.build_spec([server.page("/a.tar", body) + "?token=secret"])
    assert server.num_sent < 3 * MB


def test_a_missing_and_an_empty_shard(server: Server) -> None:
    """The error names the URL."""
    with raises(wids.NotFoundError, "nothing.tar"):
        wids.build_spec([server.url + "/nothing.tar"])
    with raises(wids.ShardFormatError, "empty.tar", "an empty file"):
        wids.build_spec([server.page("/empty.tar", b"")])


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_both_lanes_make_one_index(tar_format: int) -> None:
    """Timestamps in PAX headers change no index, wherever a batch of headers ends (INDEX-20)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tar_format) as writer:
        for number in range(5000):
            info = tarfile.TarInfo(f"{number:06d}{'x' * 120 * (number % 7 == 0)}.txt")
            info.mtime = number + 0.5 if number % 3 else number  # type: ignore[assignment]
            info.size = number % 600
            writer.addfile(info, io.BytesIO(bytes(info.size)))
    data = stream.getvalue()
    found = HeaderScan(data)
    while not found.is_complete:
        found.step()
    index, local = found.index(found.members()), index_tar(data, checksums=True)
    assert (index.head_blocks == local.head_blocks).all()
    assert (index.head_crcs == local.head_crcs).all()


def test_dataset_index_by_range_without_checksums(
    server: Server, shards: list[Path], tmp_path: Path
) -> None:
    """A remote dataset index of such indexes is valid too."""
    wids.build_spec(publish(server, shards), dataset_index=tmp_path / "a.index")
    data = (tmp_path / "a.index").read_bytes()
    dataset_index = RangeDatasetIndex(lambda start, stop: data[start:stop], len(data), 3)
    index = dataset_index.index(2, shards[2].stat().st_size, "first")
    assert index is not None
    assert len(index) == 8
