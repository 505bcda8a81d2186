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
class Packed:
    """A dataset index in a file, and what was packed."""

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
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    kind, folder = KINDS[request.param], tmp_path_factory.mktemp("packed")
    indexes, tar_nbytes = [], []
    for number, stop in enumerate(accumulate(kind.lengths)):
        start = stop - kind.lengths[number]
        data = write_tar(folder / f"{number}.tar", sample_members(start, stop)).read_bytes()
        indexes.append(index_tar(data, checksums=True))
        tar_nbytes.append(len(data))
    with (folder / "p.index").open("w+b") as file:
        names = [f"{number}.tar" for number in range(len(indexes))]
        write_dataset_index(file, zip(names, tar_nbytes, indexes, strict=True))
    return Packed(folder / "p.index", kind, indexes, tar_nbytes)


@pytest.fixture
def packed(written: Packed, tmp_path: Path) -> Packed:
    """A copy, which a test may damage."""
    return replace(written, path=Path(shutil.copy(written.path, tmp_path)))


def test_dataset_index_states_what_was_packed(packed: Packed) -> None:
    """Counts, base names and lengths of the tars are those that were written."""
    dataset_index = packed.open()

    assert len(dataset_index) == 5
    assert dataset_index.num_samples.tolist() == packed.kind.lengths
    assert dataset_index.is_mapped is packed.kind.is_mapped
    for number in range(5):
        assert dataset_index.tar_nbytes(number) == packed.tar_nbytes[number]
        assert dataset_index.is_named(number, f"{number}.tar")
        assert not dataset_index.is_named(number, "x.tar")
    assert not dataset_index.is_named(7, "7.tar")


def test_index_of_a_shard_is_the_one_that_was_packed(packed: Packed) -> None:
    """Byte for byte, the second time too."""
    dataset_index = packed.open()

    for number in [0, 1, 2, 3, 4, 0]:
        identity = TarIdentity(packed.tar_nbytes[number])
        shard_index = dataset_index.index(number, identity.nbytes, "first")
        assert shard_index is not None
        expected = index_file.dump(packed.indexes[number], identity)
        assert index_file.dump(shard_index, identity) == expected


def test_index_of_another_tar_or_rule_is_none(packed: Packed) -> None:
    """A tar of another length, and the other key rule, are not served (INDEX-5)."""
    dataset_index = packed.open()

    for number, nbytes in enumerate(packed.tar_nbytes):
        assert dataset_index.index(number, nbytes + 512, "first") is None
        assert dataset_index.index(number, nbytes, "last") is None


def test_keys_lead_to_their_shards(packed: Packed) -> None:
    """Each key to its sample alone; a key that no shard has, to none (INDEX-7)."""
    dataset_index = packed.open()
    places = [(n, i) for n, length in enumerate(packed.kind.lengths) for i in range(length)]

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


def test_key_in_several_shards_leads_to_all(packed: Packed) -> None:
    """A key that is not unique is found in each of its shards."""
    shard = ("a.tar", packed.tar_nbytes[3], packed.indexes[3])
    with packed.path.open("w+b") as file:
        write_dataset_index(file, [shard, shard])

    first = packed.kind.lengths[0] + packed.kind.lengths[2]
    assert packed.open().samples_with(f"s{first:05d}") == [(0, 0), (1, 0)]


@pytest.mark.parametrize("damage", ["magic", "version", "cut", "longer", "directory", "empty"])
def test_damaged_dataset_index_is_refused(packed: Packed, damage: str) -> None:
    """A file that is not a complete dataset index of this version cannot be opened."""
    good = packed.path.read_bytes()
    if damage == "magic":
        packed.damage(0, b"x")
    elif damage == "version":
        packed.damage(8, b"\1")
    elif damage == "directory":
        packed.damage(packed.header().directory + 3, b"\xff")
    else:
        bad = {"cut": good[:-1], "longer": good + b"x", "empty": b""}[damage]
        packed.path.write_bytes(bad)

    assert packed.kind.open(packed.path) is None


def test_every_flipped_byte_of_the_header_is_noticed(packed: Packed) -> None:
    """The header is covered by its own fields and its CRC."""
    good = packed.path.read_bytes()
    for at in range(HEADER_NBYTES):
        packed.path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert packed.kind.open(packed.path) is None


def test_damaged_index_of_a_shard_is_none(packed: Packed) -> None:
    """One shard loses its index, the others do not (INDEX-3)."""
    packed.damage(HEADER_NBYTES + 200, b"\xff\xff\xff")
    dataset_index = packed.open()

    assert dataset_index.index(0, packed.tar_nbytes[0], "first") is None
    assert dataset_index.index(3, packed.tar_nbytes[3], "first") is not None


def test_damaged_key_table_cannot_say(packed: Packed) -> None:
    """Hashes out of order are noticed, and all shards are to be searched (INDEX-7)."""
    header = packed.header()
    hashes = np.frombuffer(packed.path.read_bytes(), "<u8", header.total, header.hashes)
    packed.damage(header.hashes, hashes[::-1].tobytes())
    dataset_index = packed.open()

    assert dataset_index.samples_with("s00000") is None
    assert dataset_index.index(0, packed.tar_nbytes[0], "first") is not None
