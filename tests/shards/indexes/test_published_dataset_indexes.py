"""Datasets with a dataset index beside them: what it saves, and when it is not used."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import num_open, raises, sample_members, write_shards, write_tar

from wids import ShardFormatError, ShardListDataset, build_spec, load_spec
from wids.shards.tars import scan


def stored(folder: Path) -> list[Path]:
    return sorted((folder / "indexes").glob("*")) if folder.exists() else []


@pytest.fixture
def indexed(tmp_path: Path) -> Path:
    """The spec of 20 samples in three shards, with a dataset index."""
    path = write_shards(tmp_path, [8, 5, 7])
    build_spec(path, dataset_index=tmp_path / "train.index")
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "index": "train.index"}))
    return path


def test_dataset_index_replaces_scans(
    indexed: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a dataset index nothing is scanned or stored, and missing counts are known (INDEX-5)."""
    with ShardListDataset(indexed) as dataset:
        expected = list(dataset)
    monkeypatch.setattr(scan, "scan", None)
    document = json.loads(indexed.read_text())
    for entry in document["shardlist"]:
        del entry["nsamples"]
    indexed.write_text(json.dumps(document))

    with ShardListDataset(indexed) as dataset:
        assert dataset.lengths == [8, 5, 7], "INDEX-6"
        assert dataset.get_stats() == (0, 0)
        assert list(dataset) == expected
    assert stored(own_cache) == []


def test_dataset_index_costs_no_descriptor_for_a_shard(indexed: Path) -> None:
    """An open shard holds one descriptor; that of the dataset index is shared."""
    with ShardListDataset(indexed) as dataset:
        before = num_open(indexed.parent)
        dataset.__getitems__([0, 9, 19])
        assert num_open(indexed.parent) == before + 3


def test_key_is_looked_up_in_the_dataset_index(indexed: Path) -> None:
    """A key opens only its shard; a key that does not exist opens none (INDEX-7)."""
    with ShardListDataset(indexed) as dataset:
        assert dataset.get_by_key("s00018")["__index__"] == 18
        with raises(KeyError, "no sample has the key 's00020'"):
            dataset.get_by_key("s00020")
        assert dataset.get_stats() == (1, 1)


def test_rewritten_tar_is_another_tar(indexed: Path) -> None:
    """A tar of another length is scanned; one of equal length is an error (INDEX-2)."""
    shard = indexed.parent / "train-000001.tar"
    write_tar(shard, [*sample_members(70, 75), ("big.bin", bytes(20_000))])
    with ShardListDataset(indexed) as dataset, raises(ValueError, "the spec says 5 samples"):
        dataset[9]
    write_tar(shard, sample_members(70, 75))
    with ShardListDataset(indexed) as dataset:
        with raises(
            ShardFormatError, "train-000001.tar: at byte", "expected the header of a .txt as in the"
        ):
            dataset[9]
        with raises(ShardFormatError, "rebuild the index"):
            dataset.__getitems__([9, 10])
        assert dataset[3][".txt"] == "text 3"


def test_shards_that_the_dataset_index_does_not_know_are_searched(indexed: Path) -> None:
    """Keys of a shard that was rewritten after the dataset index are found (INDEX-7)."""
    shard = indexed.parent / "train-000001.tar"
    write_tar(shard, [*sample_members(70, 74), ("new.txt", bytes(20_000))])
    with ShardListDataset(indexed) as dataset:
        assert dataset.get_by_key("new")["__index__"] == 12
        with raises(KeyError, "no sample has the key 's00009'"):
            dataset.get_by_key("s00009")


@pytest.mark.parametrize("damage", ["gone", "empty", "flipped", "truncated", "foreign", "renamed"])
def test_unusable_dataset_index_is_ignored(indexed: Path, damage: str) -> None:
    """Without a usable dataset index a dataset scans, and has the same samples."""
    with ShardListDataset(indexed) as dataset:
        expected = list(dataset)
    dataset_index = indexed.parent / "train.index"
    good = dataset_index.read_bytes()
    if damage == "gone":
        dataset_index.unlink()
    elif damage == "renamed":
        names = good.replace(b"train-000001", b"other-000001")
        dataset_index.write_bytes(names)
    else:
        dataset_index.write_bytes(
            {
                "empty": b"",
                "flipped": good[:40] + bytes([good[40] ^ 1]) + good[41:],
                "truncated": good[:-8],
                "foreign": b"not a dataset index" * 500,
            }[damage]
        )

    with ShardListDataset(indexed) as dataset:
        assert list(dataset) == expected
        assert dataset.get_by_key("s00018")["__index__"] == 18


def test_every_flipped_byte_of_a_dataset_index_is_harmless(indexed: Path) -> None:
    """No damage to a dataset index changes a sample or a key."""
    with ShardListDataset(indexed) as dataset:
        expected = list(dataset)
    dataset_index = indexed.parent / "train.index"
    good = dataset_index.read_bytes()
    for at in range(0, len(good), 11):
        dataset_index.write_bytes(good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :])
        with ShardListDataset(indexed) as dataset:
            assert list(dataset) == expected
            for number in (0, 19):
                assert dataset.get_by_key(f"s{number:05d}")["__index__"] == number


def test_other_key_rule_ignores_the_dataset_index(indexed: Path) -> None:
    """A caller who splits names by the other rule gets no samples by that of the dataset index."""
    with ShardListDataset(indexed, key_split="last") as dataset:
        assert dataset[9]["__key__"] == "s00009"


def test_failed_dataset_index_leaves_the_old_one(indexed: Path) -> None:
    """A dataset index is replaced by a complete one, or not at all."""
    dataset_index = indexed.parent / "train.index"
    good = dataset_index.read_bytes()
    (indexed.parent / "train-000002.tar").write_bytes(b"no tar")

    with pytest.raises(ShardFormatError):
        build_spec(indexed, dataset_index=dataset_index)

    assert dataset_index.read_bytes() == good
    assert not list(indexed.parent.glob(".*"))


@pytest.mark.parametrize("names", [["猫", "狗"], ["a" * 101, "b" * 101], ["x", "y"]])
def test_names_in_extended_headers_are_checked(tmp_path: Path, names: list[str]) -> None:
    """A tar whose samples changed places is an error, however it stores names (INDEX-2)."""

    def write(order: list[str]) -> None:
        members = [(f"{name}.txt", f"of {name[0]}".encode()) for name in order]
        write_tar(tmp_path / "a.tar", members)

    write(names)
    spec = load_spec([tmp_path / "a.tar"])
    build_spec(spec, dataset_index=tmp_path / "a.index")
    spec = replace(spec, index=str(tmp_path / "a.index"))
    with ShardListDataset(spec) as dataset:
        assert dataset[0][".txt"] == f"of {names[0][0]}"
    write(names[::-1])

    with ShardListDataset(spec) as dataset:
        for index_of_sample in (0, 1):
            with raises(ShardFormatError, "expected the header of a .txt as in the published"):
                dataset[index_of_sample]


def test_key_in_several_shards_is_the_first(indexed: Path) -> None:
    """A shard that the dataset index does not know is searched in its turn, not last (INDEX-7)."""
    members = [*sample_members(0, 7), ("s00018.txt", bytes(20_000).replace(b"\0", b"x"))]
    write_tar(indexed.parent / "train-000000.tar", members)

    with ShardListDataset(indexed) as dataset:
        assert dataset.get_by_key("s00018")["__index__"] == 7
