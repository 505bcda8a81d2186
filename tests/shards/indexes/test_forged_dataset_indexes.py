"""Dataset indexes with correct checksums and wrong contents, as an attacker would make them."""

from __future__ import annotations

import json
import logging
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from conftest import raises, sample_members, write_tar
from loopback import Server

import wids
from wids.shards.indexes.dataset_index import (
    HEADER_NBYTES,
    DatasetIndex,
    DatasetIndexHeader,
    RangeDatasetIndex,
    load_dataset_index,
    parse_header,
)
from wids.shards.indexes.dataset_index_writer import write_dataset_index
from wids.shards.tars.index import index_tar

HEADER = struct.Struct("<8sIIQQQQQQQQII")
NUM_SHARDS = 3


@pytest.fixture
def good(tmp_path: Path) -> bytes:
    """A dataset index of three shards."""
    shards = []
    for number in range(NUM_SHARDS):
        path = write_tar(tmp_path / f"{number}.tar", sample_members(9 * number, 9 * number + 9))
        data = path.read_bytes()
        shards.append((path.name, len(data), index_tar(data, checksums=True)))
    with (tmp_path / "good.index").open("w+b") as file:
        write_dataset_index(file, shards)
    return (tmp_path / "good.index").read_bytes()


def sealed(data: bytes) -> bytes:
    """Return a dataset index with the CRC and length that header and directory should have."""
    header = DatasetIndexHeader._make(HEADER.unpack_from(data, 0))._replace(crc=0, nbytes=len(data))
    directory = data[header.directory : header.directory_stop]
    crc = zlib.crc32(directory, zlib.crc32(HEADER.pack(*header)[16:]))
    return HEADER.pack(*header._replace(crc=crc)) + data[HEADER_NBYTES:]


def forged(good: bytes, **changes: int) -> bytes:
    header = DatasetIndexHeader._make(HEADER.unpack_from(good, 0))._replace(**changes)
    return sealed(HEADER.pack(*header) + good[HEADER_NBYTES:])


class Claimed:
    """Reads a file by range that is as long as somebody claims; its end is zeros."""

    def __init__(self, start: bytes, limit_nbytes: int = 1 << 20) -> None:
        self.start = start
        self.limit_nbytes = limit_nbytes
        self.largest = 0

    def __call__(self, start: int, stop: int) -> bytes:
        assert 0 <= start < stop, "servers refuse empty ranges"
        self.largest = max(self.largest, stop - start)
        assert self.largest <= self.limit_nbytes
        return self.start[start:stop].ljust(stop - start, b"\0")


def use(dataset_index: DatasetIndex) -> None:
    """Call all that a dataset calls."""
    for number in range(min(len(dataset_index), NUM_SHARDS + 1)):
        shard_index = dataset_index.index(number, dataset_index.tar_nbytes(number), "first")
        if shard_index is not None and len(shard_index):
            shard_index.find(shard_index.key(0))
        dataset_index.is_named(number, f"{number}.tar")
    for key in ("s00003", "s00026", "none"):
        for number, local_index in dataset_index.samples_with(key) or []:
            if number < len(dataset_index):
                dataset_index.has_key(number, local_index, key, "first")
                dataset_index.has_key(number, 1 << 62, key, "first")


def mutations(good: bytes) -> Callable[[random.Random], bytes]:
    header = parse_header(good, len(good))
    numbers = [0, 1, 2, 7, 8, 255, 1 << 16, 1 << 31, 1 << 32, (1 << 61) + 1, 1 << 63, (1 << 64) - 1]
    # Not magic and version, which would be refused at once.
    header_places = [16, 24, 32, 40, 48, 56, 64, 72, 80]
    directory_places = range(header.directory, header.names, 8)

    def mutated(chance: random.Random) -> bytes:
        data = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            kind = chance.randrange(4)
            if kind == 0:
                at = chance.choice(header_places)
                (old,) = struct.unpack_from("<Q", data, at)
                new = chance.choice([*numbers, old + 1, old - 1, old + 8, len(good)]) % (1 << 64)
                struct.pack_into("<Q", data, at, new)
            elif kind == 1:
                at = chance.choice(directory_places)
                (old,) = struct.unpack_from("<Q", data, at)
                new = chance.choice([*numbers, old + 1, old - 1, old + 8, len(good)]) % (1 << 64)
                struct.pack_into("<Q", data, at, new)
            elif kind == 2:
                data[chance.randrange(header.directory, len(data))] = chance.randrange(256)
            else:
                at = chance.randrange(HEADER_NBYTES, header.directory)
                data[at] = chance.randrange(256)
        if chance.random() < 0.1:
            del data[chance.randrange(len(data)) :]
        return sealed(bytes(data)) if len(data) >= HEADER_NBYTES else bytes(data)

    return mutated


def test_mutated_dataset_indexes_are_used_or_ignored(good: bytes, tmp_path: Path) -> None:
    """Of 2,000 dataset indexes with correct checksums, none raises anything unexpected (SEC-20)."""
    mutated, chance = mutations(good), random.Random(13)
    path = tmp_path / "bad.index"
    num_used = 0
    for number in range(2000):
        data = mutated(chance)
        dataset_index: DatasetIndex | None = None
        if number % 2:
            path.write_bytes(data)
            dataset_index = load_dataset_index(str(path), None, NUM_SHARDS)
        else:
            with suppress(ValueError):
                dataset_index = RangeDatasetIndex(Claimed(data), len(data), NUM_SHARDS)
        if dataset_index is not None:
            num_used += 1
            use(dataset_index)
    assert 200 < num_used < 1800


def directory_of_2_gib(good: bytes) -> bytes:
    """Return the header of a dataset index of 3 GiB that claims a directory of 2 GiB."""
    header = DatasetIndexHeader._make(HEADER.unpack_from(good, 0))
    num_shards = (2 << 30) // 32
    places = {"directory": 512 << 20, "names": (512 << 20) + (2 << 30), "names_nbytes": 0}
    changed = header._replace(nbytes=3 << 30, num_shards=num_shards, **places)
    return HEADER.pack(*changed)


def test_directory_is_as_long_as_the_spec_allows(good: bytes, tmp_path: Path) -> None:
    """A dataset index that claims 64 million shards for three is refused unread (SEC-20)."""
    start = directory_of_2_gib(good)
    ranges = Claimed(start)
    with raises(
        ValueError, "expected a dataset index for 3 shards, found one that claims 67108864"
    ):
        RangeDatasetIndex(ranges, 3 << 30, NUM_SHARDS)
    assert ranges.largest == HEADER_NBYTES

    path = tmp_path / "sparse.index"
    with path.open("wb") as file:
        file.write(start)
        file.truncate(3 << 30)
    tracemalloc.start()
    assert load_dataset_index(str(path), None, NUM_SHARDS) is None
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_dataset_index_of_more_shards_than_the_spec_is_used(good: bytes, tmp_path: Path) -> None:
    """A spec may list a part of the shards that were indexed."""
    (tmp_path / "good.index").write_bytes(good)
    dataset_index = load_dataset_index(str(tmp_path / "good.index"), None, 1)
    assert dataset_index is not None
    assert len(dataset_index) == NUM_SHARDS


FORGERIES: dict[str, Callable[[bytes], bytes]] = {
    "names without end": lambda good: forged(good, names_nbytes=0),
    "fewer shards than names": lambda good: forged(good, num_shards=2),
    "more samples than there are": lambda good: forged(good, total=26),
    "samples that wrap around": lambda good: counted(good, [1 << 63, 1 << 63, 27]),
}


def counted(good: bytes, counts: list[int]) -> bytes:
    """Return a dataset index with other numbers of samples in its directory."""
    header = parse_header(good, len(good))
    at = header.directory + 3 * 8 * NUM_SHARDS
    return sealed(good[:at] + np.array(counts, "<u8").tobytes() + good[at + 8 * NUM_SHARDS :])


@pytest.mark.parametrize("name", FORGERIES)
def test_contradictions_are_refused(good: bytes, tmp_path: Path, name: str) -> None:
    """A directory that contradicts itself is no dataset index, however it is opened (SEC-20)."""
    data = FORGERIES[name](good)
    (tmp_path / "bad.index").write_bytes(data)
    assert load_dataset_index(str(tmp_path / "bad.index"), None, NUM_SHARDS) is None
    with raises(ValueError, "expected a dataset index, found one that contradicts itself"):
        RangeDatasetIndex(Claimed(data), len(data), NUM_SHARDS)


def test_index_longer_than_its_tar_is_not_read(good: bytes) -> None:
    """An index takes less space than the headers of its tar: more is not read (SEC-20)."""
    header = parse_header(good, len(good))
    at = header.directory + 8 * NUM_SHARDS
    data = good[:at] + struct.pack("<Q", 2 << 30) + good[at + 8 :]
    changed = header._replace(nbytes=3 << 30, crc=0)
    directory = data[header.directory : header.directory_stop]
    crc = zlib.crc32(directory, zlib.crc32(HEADER.pack(*changed)[16:]))
    ranges = Claimed(HEADER.pack(*changed._replace(crc=crc)) + data[HEADER_NBYTES:])
    dataset_index = RangeDatasetIndex(ranges, 3 << 30, NUM_SHARDS)

    assert dataset_index.index(0, dataset_index.tar_nbytes(0), "first") is None
    assert dataset_index.index(1, dataset_index.tar_nbytes(1), "first") is not None
    assert ranges.largest < 1 << 20


@pytest.mark.parametrize("is_remote", [False, True])
def test_dataset_ignores_what_is_no_dataset_index_of_this_version(
    good: bytes,
    tmp_path: Path,
    server: Server,
    caplog: pytest.LogCaptureFixture,
    *,
    is_remote: bool,
) -> None:
    """An index of version 1 is not used; a line in the log says so, at level INFO (INDEX-3)."""
    data = sealed(good[:8] + struct.pack("<I", 1) + good[12:])
    (tmp_path / "train.index").write_bytes(data)
    document = {"shardlist": [{"url": "0.tar"}], "index": "train.index", "name": "t"}
    (tmp_path / "train.json").write_text(json.dumps(document))
    for path in tmp_path.iterdir():
        server.page(f"/{path.name}", path.read_bytes())
    caplog.set_level(logging.INFO, "wids")

    source = f"{server.url}/train.json" if is_remote else str(tmp_path / "train.json")
    with wids.ShardListDataset(source) as dataset:
        assert dataset[8][".txt"] == "text 8"
    lines = [
        r
        for r in caplog.records
        if "expected a dataset index of version 2, found version 1" in r.message
    ]
    assert [line.levelno for line in lines] == [logging.INFO]


def forged_index(good: bytes, chance: random.Random) -> bytes:
    """Return a dataset index with wrong numbers or bytes in an index or in the tables of keys."""
    header, data = parse_header(good, len(good)), bytearray(good)
    starts = struct.unpack_from(f"<{2 * NUM_SHARDS}Q", data, header.directory)
    start, nbytes = chance.choice(list(zip(starts[:NUM_SHARDS], starts[NUM_SHARDS:], strict=True)))
    # Keys and where they begin are changed most often, then everything else.
    section = chance.choice([0, 0, 2, 2, 2, *range(10), 10, 11])
    for _ in range(chance.randint(1, 3)):
        if section < 10:
            at, length = struct.unpack_from("<QQ", data, start + 88 + 16 * section)
            at, count = at + start, (length, length, 10, 10)[section] if section < 4 else 18
        else:
            at, count = (header.hashes, header.positions)[section - 10], 27
            length = count * (8, header.width)[section - 10]
        width = length // count
        at += width * chance.randrange(count)
        old, limit = int.from_bytes(data[at : at + width], "little"), 1 << 8 * width
        other = old ^ 1 << chance.randrange(8 * width)
        new = chance.choice([0, 1, old + 1, old - 1, old + 2, other, chance.randrange(limit), -1])
        data[at : at + width] = (new % limit).to_bytes(width, "little")
    struct.pack_into("<I", data, start + 12, zlib.crc32(data[start + 16 : start + nbytes]))
    keys = data[header.hashes : header.hashes + 8 * 27]
    positions = data[header.positions : header.positions + header.width * 27]
    return forged(bytes(data), keys_crc=zlib.crc32(positions, zlib.crc32(keys)))


@pytest.mark.parametrize(
    "count", [100, pytest.param(3000, marks=[pytest.mark.seeds, pytest.mark.timeout(600)])]
)
def test_forged_indexes_end_in_own_errors(good: bytes, tmp_path: Path, count: int) -> None:
    """Keys, tables and samples by a forged index are returned, or an error of wids (INDEX-3).

    Its checksums are correct, and the error names the tar.
    """
    pytest.importorskip("pyarrow")
    chance = random.Random(count)
    document = {"index": "a.index", "shardlist": [{"url": f"{n}.tar"} for n in range(NUM_SHARDS)]}
    (tmp_path / "a.json").write_text(json.dumps(document))
    errors: list[Exception] = []
    for _ in range(count):
        (tmp_path / "a.index").write_bytes(forged_index(good, chance))
        with wids.ShardListDataset(tmp_path / "a.json") as dataset:
            assert len(list(dataset.keys())) == len(dataset) == 9 * NUM_SHARDS
            assert len(dataset[5:23].keys()[2:]) == 16
            for use in (
                lambda: dataset.table([".cls", ".txt"]).to_pylist(),
                lambda: dataset[7:20].table([".cls"]).to_pylist(),
                lambda: [dataset[index] for index in range(27)],
                lambda: dataset.__getitems__([26, 3, 14]),
                lambda: dataset.get_by_key("s00014"),
                lambda: dataset.find_key("s00026"),
                lambda: dataset.find_key("none"),
            ):
                try:
                    use()
                except (wids.WidsError, KeyError) as error:
                    errors.append(error)
    assert all("no sample has" in str(e) for e in errors if not isinstance(e, wids.WidsError))
    own = [str(error) for error in errors if isinstance(error, wids.WidsError)]
    assert all(".tar" in text for text in own)
    assert len(own) > count // 20
