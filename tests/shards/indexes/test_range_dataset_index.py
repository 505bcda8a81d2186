"""What a dataset index that is read by range costs, and what datasets do with it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import raises, sample_members, write_tar
from loopback import Mirrors, Server

import wids
from wids.shards import dataset_indexes
from wids.shards.indexes.dataset_index import RangeDatasetIndex, key_hash, parse_header
from wids.shards.indexes.dataset_index_writer import write_dataset_index
from wids.shards.sample_access import compute_field_stats
from wids.shards.tars.headers import TarMembers
from wids.shards.tars.index import build_index, index_tar

LENGTHS = [300, 0, 1, 900, 299]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 1500 samples, their spec and dataset index."""
    folder = tmp_path_factory.mktemp("dataset_indexes")
    start = 0
    for number, length in enumerate(LENGTHS):
        write_tar(folder / f"{number}.tar", sample_members(start, start + length))
        start += length
    shards = sorted(folder.glob("*.tar"))
    wids.build_spec(shards, name="p", dataset_index=folder / "p.index").save(folder / "p.json")
    return folder


class Ranges:
    """Reads a file by range, and counts."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []

    def __call__(self, start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(self.data)
        self.asked.append((start, stop))
        return self.data[start:stop]


def test_keys_are_found_in_a_large_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key costs a stretch of the table, at both ends too, however the hashes are spread."""
    keys = [f"k{number}" for number in range(50_000)]
    shards = []
    for number, part in enumerate((keys[:20_000], keys[20_000:])):
        names = [f"{key}.txt".encode() for key in part]
        offsets = np.arange(1, len(part) + 1) * 512
        members = TarMembers(names, offsets, np.zeros(len(part), np.int64), offsets - 512)
        shard_index = replace(build_index(members), head_crcs=np.zeros(len(part), np.uint32))
        shards.append((f"{number}.tar", 512 * len(part), shard_index))
    with (tmp_path / "p.index").open("w+b") as file:
        write_dataset_index(file, shards)
    data = (tmp_path / "p.index").read_bytes()
    ranges = Ranges(data)
    dataset_index = RangeDatasetIndex(ranges, len(data))
    ranges.asked.clear()

    by_hash = sorted(range(50_000), key=lambda number: key_hash(keys[number].encode()))
    ends = [by_hash[0], by_hash[-1]]

    def place(number: int) -> tuple[int, int]:
        return (1, number - 20_000) if number >= 20_000 else (0, number)

    for number in [*ends, *random.Random(0).sample(range(50_000), 300)]:
        assert dataset_index.samples_with(keys[number]) == [place(number)]
    assert max(stop - start for start, stop in ranges.asked) < 8 * len(keys) // 10
    # A window that is far too narrow grows until it has the key.
    monkeypatch.setattr("wids.shards.indexes.dataset_index.isqrt", lambda _: -60)
    for number in [*ends, 7, 25_000]:
        assert dataset_index.samples_with(keys[number]) == [place(number)]


def test_damage_is_named(folder: Path) -> None:
    """Another file, a damaged dataset index, and a damaged directory are different errors."""
    good = (folder / "p.index").read_bytes()
    for bad, what in (
        (good[:50], "something else"),
        (b"x" + good[1:], "something else"),
        (good[:-1], "a damaged one"),
    ):
        with raises(ValueError, f"expected a dataset index, found {what}"):
            RangeDatasetIndex(Ranges(bad), len(bad))
    damaged = bytearray(good)
    damaged[parse_header(good, len(good)).directory + 3] ^= 1
    with raises(ValueError, "expected the directory of a dataset index, found it damaged"):
        RangeDatasetIndex(Ranges(bytes(damaged)), len(damaged))


def test_index_that_was_read_costs_no_second_request(folder: Path) -> None:
    """The last indexes are stored, and only these."""
    data = (folder / "p.index").read_bytes()
    ranges = Ranges(data)
    dataset_index = RangeDatasetIndex(ranges, len(data))
    ranges.asked.clear()

    for _ in range(3):
        assert dataset_index.index(0, dataset_index.tar_nbytes(0), "first") is not None
    assert len(ranges.asked) == 1


@pytest.mark.parametrize("has_ranges", [True, False])
def test_datasets_read_large_dataset_indexes_by_range(
    has_ranges: bool, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample and a key of a remote dataset, without fetching its index, if the server can."""
    monkeypatch.setattr(dataset_indexes, "_LARGE_INDEX_NBYTES", 1000)
    for path in folder.iterdir():
        ranges = has_ranges or path.suffix != ".index"
        server.page(f"/{path.name}", path.read_bytes(), has_ranges=ranges)
    with wids.ShardListDataset(f"{server.url}/p.json", access="range") as dataset:
        assert dataset[1234][".txt"] == "text 1234"
        assert dataset.get_by_key("s00777")["__index__"] == 777
        assert compute_field_stats([i for i in [dataset.reader.index(0)] if i])[0].share == 1
    asked = [request for request in server.log if request.path == "/p.index"]
    assert (any(r.is_download for r in asked)) is not has_ranges
    assert not [r for r in server.log if r.path.endswith(".tar") and r.is_download]


def test_large_dataset_indexes_on_mirrors(
    server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tags differ from machine to machine: the checksums decide, and keys are found."""
    monkeypatch.setattr(dataset_indexes, "_LARGE_INDEX_NBYTES", 1000)
    for path in folder.iterdir():
        server.pages[f"/{path.name}"] = Mirrors(path.read_bytes())
    with wids.ShardListDataset(f"{server.url}/p.json", access="range") as dataset:
        assert dataset[1234][".txt"] == "text 1234"
        for number in (777, 3, 1200):
            assert dataset.get_by_key(f"s{number:05d}")["__index__"] == number
    assert not [r for r in server.log if r.path == "/p.index" and r.is_download]


def test_a_first_page_costs_megabytes_whatever_the_size(server: Server, tmp_path: Path) -> None:
    """Of 400,000 samples, whose dataset index has 25 MB: one request in a hundred of it."""
    path = write_tar(tmp_path / "a.tar", sample_members(0, 2000))
    shard = path.read_bytes()
    names = [f"big-{number:04d}.tar" for number in range(200)]
    known = index_tar(shard, checksums=True)
    with (tmp_path / "big.index").open("w+b") as file:
        write_dataset_index(file, ((name, len(shard), known) for name in names))
    dataset_index = (tmp_path / "big.index").read_bytes()
    assert len(dataset_index) > dataset_indexes._LARGE_INDEX_NBYTES
    entries = [{"url": n, "nsamples": 2000, "filesize": len(shard)} for n in names]
    server.page("/big.json", {"shardlist": entries, "index": "big.index", "name": "big"})
    server.page("/big.index", dataset_index)
    for name in names:
        server.page(f"/{name}", shard)

    before = server.num_sent
    with wids.ShardListDataset(f"{server.url}/big.json", access="range") as dataset:
        html = dataset._repr_html_()

    spec_nbytes = len(json.dumps(entries))
    assert "400,000" in html
    assert len(known) == 2000
    assert server.num_sent - before - spec_nbytes < 1_500_000 < len(dataset_index) / 10


def test_a_directory_is_read_once_on_a_machine(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long directory stays in the cache, where a damaged one is replaced."""
    monkeypatch.setattr(dataset_indexes, "_LARGE_INDEX_NBYTES", 1000)
    monkeypatch.setattr("wids.shards.indexes.dataset_index.MAX_OWN_NBYTES", 100)
    path = write_tar(tmp_path / "a.tar", sample_members(0, 50))
    known, names = (
        index_tar(path.read_bytes(), checksums=True),
        [f"a-{number}.tar" for number in range(20)],
    )
    nbytes = path.stat().st_size
    with (tmp_path / "a.index").open("w+b") as file:
        write_dataset_index(file, ((name, nbytes, known) for name in names))
    entries = [{"url": n, "nsamples": 50, "filesize": nbytes} for n in names]
    server.page("/a.json", {"shardlist": entries, "index": "a.index"})
    server.page("/a.index", (tmp_path / "a.index").read_bytes())
    server.page("/a-7.tar", path.read_bytes())
    cache = tmp_path / "cache"

    def num_ranges() -> int:
        del server.log[:]
        with wids.ShardListDataset(
            f"{server.url}/a.json", access="range", cache_dir=cache
        ) as dataset:
            assert dataset[353]["__key__"] == "s00003"
        return sum(request.path == "/a.index" for request in server.log)

    first = num_ranges()
    (kept,) = cache.rglob("*.directory")
    assert num_ranges() == first - 1
    data = kept.read_bytes()
    kept.write_bytes(b"x" + data[1:])
    assert num_ranges() == first
    assert kept.read_bytes() == data
