"""Packs that are read by range: the same answers as from a pack that is here, for fewer bytes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from conftest import raises, sample_members, write_tar
from loopback import Server

import wids
from wids.looking.field_stats import compute_field_stats
from wids.reading import packs
from wids.tars import index
from wids.tars.range_pack import RangePack

LENGTHS = [300, 0, 1, 900, 299]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 1500 samples, their spec and pack."""
    folder = tmp_path_factory.mktemp("packs")
    start = 0
    for number, length in enumerate(LENGTHS):
        write_tar(folder / f"{number}.tar", sample_members(start, start + length))
        start += length
    shards = sorted(folder.glob("*.tar"))
    wids.build_spec(shards, name="p", pack=folder / "p.index").save(folder / "p.json")
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


def test_it_answers_as_a_pack_that_is_here(folder: Path) -> None:
    """Counts, names, indexes and keys (INDEX-9)."""
    data = (folder / "p.index").read_bytes()
    whole = index.load_pack(str(folder / "p.index"))
    assert whole is not None
    part = RangePack(Ranges(data), len(data))

    assert len(part) == len(whole) == 5
    assert part.num_samples.tolist() == LENGTHS
    for number in range(5):
        nbytes = whole.tar_nbytes(number)
        assert part.tar_nbytes(number) == nbytes
        assert part.is_named(number, f"{number}.tar")
        assert not part.is_named(number, "x.tar")
        ours, theirs = part.index(number, nbytes, "first"), whole.index(number, nbytes, "first")
        assert ours is not None
        assert theirs is not None
        identity = index.TarIdentity(nbytes)
        assert index.dump(ours, identity) == index.dump(theirs, identity)
        assert part.index(number, nbytes + 512, "first") is None
        assert part.index(number, nbytes, "last") is None
    assert not part.is_named(7, "7.tar")
    for number in range(0, 1500, 7):
        assert part.shards_with(f"s{number:05d}") == whole.shards_with(f"s{number:05d}")
    assert part.shards_with("none") == set()


def test_keys_are_found_in_a_large_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stretch of it, at both ends too; and however the hashes lie."""
    keys = [f"k{number}" for number in range(50_000)]
    hashes = sorted((index.key_hash(key.encode()), number) for number, key in enumerate(keys))
    tables = b"".join(h.to_bytes(8, "little") for h, _ in hashes)
    tables += b"".join(n.to_bytes(4, "little") for _, n in hashes)
    ranges = Ranges(tables)
    pack = object.__new__(RangePack)
    pack._read_range = ranges
    pack._header = index.PackHeader(b"", 1, 0, 0, 2, 50_000, 0, 0, 0, 0, 400_000, 0, 4)
    pack.num_samples = [20_000, 30_000]  # type: ignore[assignment]

    ends = [hashes[0][1], hashes[-1][1]]
    for number in [*ends, *random.Random(0).sample(range(50_000), 300)]:
        assert pack.shards_with(keys[number]) == {int(number >= 20_000)}
    assert max(stop - start for start, stop in ranges.asked) < len(tables) // 10
    monkeypatch.setattr(
        "wids.tars.range_pack.isqrt", lambda _: -60
    )  # a window that is far too narrow
    for number in [*ends, 7, 25_000]:
        assert pack.shards_with(keys[number]) == {int(number >= 20_000)}


@pytest.mark.parametrize("damage", [lambda d: d[:50], lambda d: b"x" + d[1:], lambda d: d[:-1]])
def test_other_files_are_no_packs(damage: object, folder: Path) -> None:
    """Nor is a damaged one."""
    data = damage((folder / "p.index").read_bytes())  # type: ignore[operator]
    with raises(ValueError, "expected"):
        RangePack(Ranges(data), len(data))
    whole = bytearray((folder / "p.index").read_bytes())
    header = index.pack_header(bytes(whole[:200]))
    assert header is not None
    whole[header.directory + 3] ^= 1
    with raises(ValueError, "found it damaged"):
        RangePack(Ranges(bytes(whole)), len(whole))


@pytest.mark.parametrize("has_ranges", [True, False])
def test_datasets_read_large_packs_by_range(
    has_ranges: bool, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample and a key of a remote dataset, without fetching its pack, if the server can."""
    monkeypatch.setattr(packs, "_LARGE_PACK_NBYTES", 1000)
    for path in folder.iterdir():
        ranges = has_ranges or path.suffix != ".index"
        server.page(f"/{path.name}", path.read_bytes(), has_ranges=ranges)
    with wids.ShardListDataset(f"{server.url}/p.json", access="range") as dataset:
        assert dataset[1234][".txt"] == "text 1234"
        assert dataset.get_by_key("s00777")["__index__"] == 777
        assert compute_field_stats([i for i in [dataset.reader.index(0)] if i])[0].share == 1
    asked = [request for request in server.log if request.path == "/p.index"]
    assert (len([r for r in asked if r.range is None]) == 0) is has_ranges
    assert not [r for r in server.log if r.path.endswith(".tar") and r.range is None]


def test_a_first_page_costs_megabytes_whatever_the_size(server: Server, tmp_path: Path) -> None:
    """Of a dataset of 400,000 samples, whose pack has 25 MB: one request in a hundred of it."""
    path = write_tar(tmp_path / "a.tar", sample_members(0, 2000))
    shard = path.read_bytes()
    names = [f"big-{number:04d}.tar" for number in range(200)]
    known = index.for_ranges(shard, "first")
    with (tmp_path / "big.index").open("w+b") as file:
        index.write_pack(file, ((name, len(shard), known) for name in names))
    pack = (tmp_path / "big.index").read_bytes()
    assert len(pack) > packs._LARGE_PACK_NBYTES
    entries = [{"url": n, "nsamples": 2000, "filesize": len(shard)} for n in names]
    server.page("/big.json", {"shardlist": entries, "index": "big.index", "name": "big"})
    server.page("/big.index", pack)
    for name in names:
        server.page(f"/{name}", shard)

    before = server.num_sent
    with wids.ShardListDataset(f"{server.url}/big.json", access="range") as dataset:
        html = dataset._repr_html_()

    spec_nbytes = len(json.dumps(entries))
    assert "400,000" in html
    assert len(known) == 2000
    assert server.num_sent - before - spec_nbytes < 1_500_000 < len(pack) / 10
