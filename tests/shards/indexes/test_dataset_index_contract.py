"""The contract of `DatasetIndex`: mapped, in memory or by range, the answers are the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from conftest import sample_members, write_tar

from wids.shards.indexes import index_file
from wids.shards.indexes.dataset_index import (
    HEADER_NBYTES,
    DatasetIndex,
    DatasetIndexHeader,
    RangeDatasetIndex,
    load_dataset_index,
    parse_header,
)
from wids.shards.indexes.dataset_index_writer import write_dataset_index
from wids.shards.tars.index import ShardIndex, TarIdentity, index_tar


def open_local(path: Path) -> DatasetIndex | None:
    return load_dataset_index(str(path))


def open_by_range(path: Path) -> DatasetIndex | None:
    data = path.read_bytes()
    try:
        return RangeDatasetIndex(lambda start, stop: data[start:stop], len(data))
    except ValueError:
        return None


@dataclass
class Kind:
    """A way to open a dataset index, and the shards of a dataset index that is opened this way."""

    open: Callable[[Path], DatasetIndex | None]
    lengths: list[int]
    is_mapped: bool


KINDS = {
    "mapped": Kind(open_local, [600, 0, 1, 1800, 599], is_mapped=True),
    "in memory": Kind(open_local, [30, 0, 1, 90, 29], is_mapped=False),
    "by range": Kind(open_by_range, [600, 0, 1, 1800, 599], is_mapped=False),
}


@dataclass
class Indexed:
    """A dataset index in a file, and what was indexed."""

    path: Path
    kind: Kind
    indexes: list[ShardIndex]
    tar_nbytes: list[int]

    def open(self) -> DatasetIndex:
        dataset_index = self.kind.open(self.path)
        assert dataset_index is not None
        return dataset_index

    def header(self) -> DatasetIndexHeader:
        data = self.path.read_bytes()
        return parse_header(data, len(data))

    def damage(self, at: int, data: bytes) -> None:
        good = self.path.read_bytes()
        self.path.write_bytes(good[:at] + data + good[at + len(data) :])


@pytest.fixture(params=list(KINDS), scope="module")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    kind, folder = KINDS[request.param], tmp_path_factory.mktemp("indexed")
    indexes, tar_nbytes = [], []
    for number, stop in enumerate(accumulate(kind.lengths)):
        start = stop - kind.lengths[number]
        data = write_tar(folder / f"{number}.tar", sample_members(start, stop)).read_bytes()
        indexes.append(index_tar(data, checksums=True))
        tar_nbytes.append(len(data))
    with (folder / "p.index").open("w+b") as file:
        names = [f"{number}.tar" for number in range(len(indexes))]
        write_dataset_index(file, zip(names, tar_nbytes, indexes, strict=True))
    return Indexed(folder / "p.index", kind, indexes, tar_nbytes)


@pytest.fixture
def indexed(written: Indexed, tmp_path: Path) -> Indexed:
    """A copy, which a test may damage."""
    return replace(written, path=Path(shutil.copy(written.path, tmp_path)))


def test_dataset_index_states_what_was_indexed(indexed: Indexed) -> None:
    """Counts, base names and lengths of the tars are those that were written."""
    dataset_index = indexed.open()

    assert len(dataset_index) == 5
    assert dataset_index.num_samples.tolist() == indexed.kind.lengths
    assert dataset_index.is_mapped is indexed.kind.is_mapped
    for number in range(5):
        assert dataset_index.tar_nbytes(number) == indexed.tar_nbytes[number]
        assert dataset_index.is_named(number, f"{number}.tar")
        assert not dataset_index.is_named(number, "x.tar")
    assert not dataset_index.is_named(7, "7.tar")


def test_index_of_a_shard_is_the_one_that_was_indexed(indexed: Indexed) -> None:
    """Byte for byte, the second time too."""
    dataset_index = indexed.open()

    for number in [0, 1, 2, 3, 4, 0]:
        identity = TarIdentity(indexed.tar_nbytes[number])
        shard_index = dataset_index.index(number, identity.nbytes, "first")
        assert shard_index is not None
        expected = index_file.dump(indexed.indexes[number], identity)
        assert index_file.dump(shard_index, identity) == expected


def test_index_of_another_tar_or_rule_is_none(indexed: Indexed) -> None:
    """A tar of another length, and the other key rule, are not served (INDEX-5)."""
    dataset_index = indexed.open()

    for number, nbytes in enumerate(indexed.tar_nbytes):
        assert dataset_index.index(number, nbytes + 512, "first") is None
        assert dataset_index.index(number, nbytes, "last") is None


def test_keys_lead_to_their_shards(indexed: Indexed) -> None:
    """Each key to its sample alone; a key that no shard has, to none (INDEX-7)."""
    dataset_index = indexed.open()
    places = [(n, i) for n, length in enumerate(indexed.kind.lengths) for i in range(length)]

    for position in [*range(0, len(places), 7), len(places) - 1]:
        key = f"s{position:05d}"
        assert dataset_index.samples_with(key) == [places[position]]
        assert dataset_index.has_key(*places[position], key, "first")
        assert not dataset_index.has_key(*places[position], key, "last")
        assert not dataset_index.has_key(*places[position], key[:-1], "first")
        assert not dataset_index.has_key(*places[position], key[1:], "first")
        assert not dataset_index.has_key(*places[position], key + "0", "first")
        number, local_index = places[position]
        assert not dataset_index.has_key(number, local_index + 1, key, "first")
    for key in ("none", "", "s00000\0s00001", "\udcff"):
        assert dataset_index.samples_with(key) == []


def test_key_in_several_shards_leads_to_all(indexed: Indexed) -> None:
    """A key that is not unique is found in each of its shards."""
    shard = ("a.tar", indexed.tar_nbytes[3], indexed.indexes[3])
    with indexed.path.open("w+b") as file:
        write_dataset_index(file, [shard, shard])

    first = indexed.kind.lengths[0] + indexed.kind.lengths[2]
    assert indexed.open().samples_with(f"s{first:05d}") == [(0, 0), (1, 0)]


@pytest.mark.parametrize("damage", ["magic", "version", "cut", "longer", "directory", "empty"])
def test_damaged_dataset_index_is_refused(indexed: Indexed, damage: str) -> None:
    """A file that is not a complete dataset index of this version cannot be opened."""
    good = indexed.path.read_bytes()
    if damage == "magic":
        indexed.damage(0, b"x")
    elif damage == "version":
        indexed.damage(8, b"\1")
    elif damage == "directory":
        indexed.damage(indexed.header().directory + 3, b"\xff")
    else:
        bad = {"cut": good[:-1], "longer": good + b"x", "empty": b""}[damage]
        indexed.path.write_bytes(bad)

    assert indexed.kind.open(indexed.path) is None


def test_every_flipped_byte_of_the_header_is_noticed(indexed: Indexed) -> None:
    """The header is covered by its own fields and its CRC."""
    good = indexed.path.read_bytes()
    for at in range(HEADER_NBYTES):
        indexed.path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert indexed.kind.open(indexed.path) is None


def test_damaged_index_of_a_shard_is_none(indexed: Indexed) -> None:
    """One shard loses its index, the others do not (INDEX-3)."""
    indexed.damage(HEADER_NBYTES + 200, b"\xff\xff\xff")
    dataset_index = indexed.open()

    assert dataset_index.index(0, indexed.tar_nbytes[0], "first") is None
    assert dataset_index.index(3, indexed.tar_nbytes[3], "first") is not None


def test_damaged_key_table_cannot_say(indexed: Indexed) -> None:
    """Hashes out of order are noticed, and all shards are to be searched (INDEX-7)."""
    header = indexed.header()
    hashes = np.frombuffer(indexed.path.read_bytes(), "<u8", header.total, header.hashes)
    indexed.damage(header.hashes, hashes[::-1].tobytes())
    dataset_index = indexed.open()

    assert dataset_index.samples_with("s00000") is None
    assert dataset_index.index(0, indexed.tar_nbytes[0], "first") is not None
