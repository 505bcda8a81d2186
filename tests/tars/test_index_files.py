"""Indexes in files: what is stored, when it is believed, and that nothing else is."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
import struct
import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import raises, sample_members, settle, write_shards, write_tar

from wids import Shard, ShardFormatError, ShardListDataset, build_spec, load_spec
from wids.tars import index, index_file
from wids.tars.index import ShardIndex, TarIdentity, index_tar

TIMED = TarIdentity(10240, 1_700_000_000_000_000_000)


def made(path: Path, key_split: Any = "first") -> ShardIndex:
    return index_tar(path.read_bytes(), key_split)


def same(one: ShardIndex | None, other: ShardIndex) -> bool:
    """Tell whether two indexes say the same."""
    assert one is not None
    return all(
        np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b
        for a, b in (
            (getattr(one, f.name), getattr(other, f.name))
            for f in fields(one)
            if not f.name.startswith("text")
        )
    ) and [one.key(i) for i in range(len(one))] == [other.key(i) for i in range(len(other))]


@pytest.fixture
def shard_path(tmp_path: Path) -> Path:
    members = [*sample_members(0, 7), ("README", b"?"), ("é.seg.png", b"x" * 700)]
    return settle(write_tar(tmp_path / "a.tar", [*members, ("s00003.txt", b"new")]))


# One index as bytes


@pytest.mark.parametrize("members", [[], [("README", b"")], sample_members(0, 300)])
def test_index_comes_back(members: list[tuple[str, bytes]], tmp_path: Path) -> None:
    """What was stored is what is found, for shards of no, few and many samples."""
    original = made(write_tar(tmp_path / "a.tar", members))
    identity = TarIdentity((tmp_path / "a.tar").stat().st_size, 5)

    data = index_file.dump(original, identity)

    assert same(index_file.parse(data, 0, len(data), identity, "first"), original)
    shifted = b"x" * 8 + data + b"y"
    assert same(index_file.parse(shifted, 8, 8 + len(data), identity, "first"), original)


def test_file_is_as_the_page_says(tmp_path: Path) -> None:
    """The layout of specs/shard-index.md, read without the library."""
    original = made(
        write_tar(tmp_path / "a.tar", [("a.txt", b"xyz"), ("b.cls", b"1"), ("b.txt", b"")])
    )

    data = index_file.dump(original, TIMED)

    assert data[:8] == b"wids-idx"
    assert struct.unpack_from("<II", data, 8) == (1, zlib.crc32(data[16:]))
    assert struct.unpack_from("<QQqQQQQQII", data, 16) == (
        *(len(data), *TIMED),
        *(2, 3, 3, 0, 0, 0, 0),
    )
    places = [struct.unpack_from("<QQ", data, 88 + 16 * i) for i in range(9)]
    sections = [data[at : at + length] for at, length in places]
    assert all(at % 8 == 0 for at, _ in places)
    assert sections == [
        b"\0a\0b\0",
        b".txt\0.cls",
        bytes([1, 3, 5]),
        bytes([0, 1, 3]),
        bytes([1, 3, 5]),
        bytes([3, 1, 0]),
        bytes([0, 1, 0]),
        bytes([1, 1, 1]),
        b"",
    ]


def test_other_tar_rule_or_version_is_not_believed(shard_path: Path) -> None:
    """A stale, foreign, damaged or truncated index is as none (INDEX-3)."""
    data = index_file.dump(made(shard_path), TIMED)

    def parsed(data: bytes, identity: TarIdentity = TIMED, rule: Any = "first") -> Any:
        return index_file.parse(data, 0, len(data), identity, rule)

    assert parsed(data) is not None
    assert parsed(data, TarIdentity(TIMED.nbytes + 512, TIMED.mtime_ns)) is None
    assert parsed(data, TarIdentity(TIMED.nbytes, TIMED.mtime_ns + 1)) is None
    assert parsed(data, rule="last") is None
    assert parsed(data[:8] + struct.pack("<I", 2) + data[12:]) is None
    assert parsed(b"WIDS-idx" + data[8:]) is None
    for length in range(len(data)):
        assert parsed(data[:length]) is None
    for at in range(len(data)):
        assert parsed(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None


def forged(original: ShardIndex, **changes: Any) -> bytes:
    """Give an index with a right CRC and wrong contents, as an attacker would."""
    values = {f.name: getattr(original, f.name) for f in fields(original)}
    checked = {"crcs": np.zeros(len(original.blocks), np.uint32)}
    return index_file.dump(ShardIndex(**{**values, **checked, **changes}), TarIdentity(20480))


def test_forged_index_cannot_lead_outside(shard_path: Path) -> None:
    """A published index with a right CRC still has to stay inside the tar (INDEX-3, SEC-8)."""
    original = made(shard_path)
    num = len(original.blocks)
    attacks: dict[str, dict[str, Any]] = {
        "member beyond the end": {"blocks": np.full(num, 40, np.uint32)},
        "member far beyond the end": {"blocks": np.full(num, 2**63, np.uint64)},
        "member without a header": {"blocks": np.zeros(num, np.uint8)},
        "size beyond the end": {"sizes": np.full(num, 2**40, np.uint64)},
        "size that overflows": {"sizes": np.full(num, 2**64 - 512, np.uint64)},
        "field that does not exist": {"field_ids": np.full(num, 9, np.uint8)},
        "samples that go back": {"member_starts": original.member_starts[::-1].copy()},
        "samples past the end": {"member_starts": original.member_starts + np.uint8(1)},
        "keys that go back": {"key_starts": original.key_starts[::-1].copy()},
        "keys past the end": {"key_starts": original.key_starts + np.uint8(1)},
        "too few sizes": {"sizes": original.sizes[:-1]},
        "too few checksums": {"crcs": np.zeros(1, np.uint32)},
        "no checksums": {"crcs": np.zeros(0, np.uint32)},
        "samples that wrap around": {
            "member_starts": np.array(
                [0, 2**62, 2**63, 2**64 - 1, *original.member_starts[4:]], np.uint64
            )
        },
        "no header": {"head_blocks": np.zeros(num, np.uint8)},
        "header before the start": {"head_blocks": np.full(num, 200, np.uint8)},
    }
    good = forged(original)
    assert index_file.parse(good, 0, len(good), TarIdentity(20480), "first") is not None
    for name, changes in attacks.items():
        data = forged(original, **changes)
        assert index_file.parse(data, 0, len(data), TarIdentity(20480), "first") is None, name


# Kept on this machine


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "indexes").glob("*")) if folder.exists() else []


def test_index_is_made_once(
    shard_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second dataset does not scan, and finds the same (INDEX-1)."""
    with ShardListDataset(shard_path) as dataset:
        expected = list(dataset[:7])
    monkeypatch.setattr(index, "scan", None)

    with ShardListDataset(shard_path) as dataset:
        assert list(dataset[:7]) == expected
    (file,) = kept(own_cache)
    assert file.name.endswith("-a.tar.index")


def test_index_of_a_long_name_is_kept(tmp_path: Path, own_cache: Path) -> None:
    """A name of 255 bytes in any script leaves an index with a name that fits."""
    path = settle(write_tar(tmp_path / ("𠀀" * 60 + ".tar"), sample_members(0, 2)))
    with ShardListDataset(path) as dataset:
        assert len(dataset) == 2
    assert len(kept(own_cache)) == 1


def test_cache_is_the_users_own(shard_path: Path, own_cache: Path) -> None:
    """Folders and files of the cache are closed to others (INDEX-4)."""
    with ShardListDataset(shard_path):
        pass

    (file,) = kept(own_cache)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (own_cache, file.parent, file)]
    assert modes == [0o700, 0o700, 0o600]


def test_cache_folder_is_chosen_by_argument(shard_path: Path, own_cache: Path) -> None:
    """``cache_dir`` comes before the environment, and a view and a pickle keep it."""
    folder = shard_path.parent / "mine"

    with ShardListDataset(shard_path, cache_dir=folder):
        pass

    assert len(kept(folder)) == 1
    assert kept(own_cache) == []


def test_young_tar_is_not_kept(shard_path: Path, own_cache: Path) -> None:
    """A tar that was just written may change again without a new time (INDEX-1)."""
    os.utime(shard_path)
    with ShardListDataset(shard_path) as dataset:
        assert len(dataset) == 8

    assert kept(own_cache) == []


def test_rewritten_tar_is_noticed(shard_path: Path, own_cache: Path) -> None:
    """A regenerated shard, of equal length too, is scanned anew, and its index replaced."""
    with ShardListDataset(shard_path) as dataset:
        assert dataset[0][".txt"] == "text 0"
    before = kept(own_cache)
    size = shard_path.stat().st_size
    members = [*sample_members(50, 57), ("README", b"?"), ("é.seg.png", b"x" * 700)]
    write_tar(shard_path, [*members, ("s00053.txt", b"new")])
    assert shard_path.stat().st_size == size
    os.utime(shard_path, (1_600_000_000, 1_600_000_000))

    with ShardListDataset(shard_path) as dataset:
        assert dataset[0][".txt"] == "text 50"
        assert dataset.get_by_key("s00056")[".cls"] == 6
    assert kept(own_cache) == before


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "foreign"])
def test_damaged_index_is_replaced(shard_path: Path, own_cache: Path, damage: str) -> None:
    """Whatever stands where an index should be, samples are right, and the index is made again."""
    with ShardListDataset(shard_path) as dataset:
        expected = list(dataset[:7])
    (file,) = kept(own_cache)
    good = file.read_bytes()
    bad = {
        "empty": b"",
        "truncated": good[:-8],
        "flipped": good[:200] + bytes([good[200] ^ 4]) + good[201:],
        "foreign": b"something else altogether" * 100,
    }[damage]
    file.write_bytes(bad)

    with ShardListDataset(shard_path) as dataset:
        assert list(dataset[:7]) == expected
    assert file.read_bytes() == good


def test_rules_have_indexes_of_their_own(tmp_path: Path, own_cache: Path) -> None:
    """The same tar by the other rule is another index, and neither spoils the other."""
    path = settle(write_tar(tmp_path / "a.tar", [("a.b.txt", b"1"), ("a.c.txt", b"2")]))
    for _ in range(2):
        for rule, count in (("first", 1), ("last", 2)):
            with ShardListDataset(path, key_split=rule) as dataset:  # type: ignore[arg-type]
                assert len(dataset) == count
    assert len(kept(own_cache)) == 2


def test_cache_that_cannot_be_written_is_done_without(shard_path: Path) -> None:
    """A cache folder that is a file, or cannot be made, changes nothing (INDEX-4)."""
    blocked = shard_path.parent / "file"
    blocked.write_text("not a folder")
    for folder in (blocked, blocked / "below", "/proc/nothing"):
        with ShardListDataset(shard_path, cache_dir=folder) as dataset:
            assert dataset[3][".txt"] == "new"
    assert blocked.read_text() == "not a folder"


def _read_all(path: str, folder: str, barrier: Any, results: Any) -> None:
    barrier.wait()
    with ShardListDataset(path, cache_dir=folder, transformations=None, raw="bytes") as dataset:
        results.put([sample[".cls"] for sample in dataset])


def test_processes_that_index_at_once_do_not_disturb(tmp_path: Path) -> None:
    """Four processes that meet the same new shard all read it right, and leave one whole index."""
    path = settle(write_tar(tmp_path / "a.tar", sample_members(0, 3000)))
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    folder = str(tmp_path / "cache")
    processes = [
        context.Process(target=_read_all, args=(str(path), folder, barrier, results))
        for _ in range(4)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()

    assert found == [[str(i % 10).encode() for i in range(3000)]] * 4
    (file,) = kept(Path(folder))
    assert index_file.load(
        str(file), TarIdentity(path.stat().st_size, path.stat().st_mtime_ns), "first"
    )


# Published: the pack


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """The spec of 20 samples in three shards, with a pack."""
    path = write_shards(tmp_path, [8, 5, 7])
    build_spec(path, pack=tmp_path / "train.index")
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "index": "train.index"}))
    return path


def test_pack_makes_scans_needless(
    packed: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a pack nothing is scanned, nothing is kept, and missing counts are known (INDEX-5)."""
    with ShardListDataset(packed) as dataset:
        expected = list(dataset)
    monkeypatch.setattr(index, "scan", None)
    document = json.loads(packed.read_text())
    for entry in document["shardlist"]:
        del entry["nsamples"]
    packed.write_text(json.dumps(document))

    with ShardListDataset(packed) as dataset:
        assert dataset.lengths == [8, 5, 7], "INDEX-6"
        assert dataset.get_stats() == (0, 0)
        assert list(dataset) == expected
    assert kept(own_cache) == []


def test_pack_costs_no_descriptor_for_a_shard(packed: Path) -> None:
    """An open shard with a pack holds one descriptor: the pack's is shared."""
    with ShardListDataset(packed) as dataset:
        before = len(os.listdir("/proc/self/fd"))
        dataset.__getitems__([0, 9, 19])
        assert len(os.listdir("/proc/self/fd")) == before + 3


def test_key_is_searched_in_the_pack(packed: Path) -> None:
    """A key opens its shard alone; one that is nowhere opens none (INDEX-7)."""
    with ShardListDataset(packed) as dataset:
        assert dataset.get_by_key("s00018")["__index__"] == 18
        with raises(KeyError, "no sample has the key 's00020'"):
            dataset.get_by_key("s00020")
        assert dataset.get_stats() == (2, 1)


def test_tar_written_anew_is_another_tar(packed: Path) -> None:
    """A tar of another length is scanned, one of equal length is an error (INDEX-2)."""
    shard = packed.parent / "train-000001.tar"
    write_tar(shard, [*sample_members(70, 75), ("big.bin", bytes(20_000))])
    with ShardListDataset(packed) as dataset, raises(ValueError, "the spec says 5 samples"):
        dataset[9]
    write_tar(shard, sample_members(70, 75))
    with ShardListDataset(packed) as dataset:
        with raises(
            ShardFormatError, "train-000001.tar: at byte", "expected the header of a .txt as in the"
        ):
            dataset[9]
        with raises(ShardFormatError, "rebuild the index"):
            dataset.__getitems__([9, 10])
        assert dataset[3][".txt"] == "text 3"


def test_stale_key_table_is_searched_after(packed: Path) -> None:
    """Keys of a shard that the pack does not know are found all the same (INDEX-7)."""
    shard = packed.parent / "train-000001.tar"
    write_tar(shard, [*sample_members(70, 74), ("new.txt", bytes(20_000))])
    with ShardListDataset(packed) as dataset:
        assert dataset.get_by_key("new")["__index__"] == 12
        with raises(KeyError, "no sample has the key 's00009'"):
            dataset.get_by_key("s00009")


@pytest.mark.parametrize("damage", ["gone", "empty", "flipped", "truncated", "foreign", "renamed"])
def test_pack_that_is_no_good_is_done_without(packed: Path, damage: str) -> None:
    """Without its pack a dataset scans, and gives the same samples."""
    with ShardListDataset(packed) as dataset:
        expected = list(dataset)
    pack = packed.parent / "train.index"
    good = pack.read_bytes()
    if damage == "gone":
        pack.unlink()
    elif damage == "renamed":
        names = good.replace(b"train-000001", b"other-000001")
        pack.write_bytes(names)
    else:
        pack.write_bytes(
            {
                "empty": b"",
                "flipped": good[:40] + bytes([good[40] ^ 1]) + good[41:],
                "truncated": good[:-8],
                "foreign": b"no pack" * 500,
            }[damage]
        )

    with ShardListDataset(packed) as dataset:
        assert list(dataset) == expected
        assert dataset.get_by_key("s00018")["__index__"] == 18


def test_every_flipped_byte_of_a_pack_is_harmless(packed: Path) -> None:
    """No damage to a pack changes a sample or a key."""
    with ShardListDataset(packed) as dataset:
        expected = list(dataset)
    pack = packed.parent / "train.index"
    good = pack.read_bytes()
    for at in range(0, len(good), 11):
        pack.write_bytes(good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :])
        with ShardListDataset(packed) as dataset:
            assert list(dataset) == expected
            for number in (0, 19):
                assert dataset.get_by_key(f"s{number:05d}")["__index__"] == number


def test_other_rule_needs_no_pack(packed: Path) -> None:
    """A caller who splits names otherwise is not served by the pack's rule."""
    with ShardListDataset(packed, key_split="last") as dataset:
        assert dataset[9]["__key__"] == "s00009"


def test_failed_pack_leaves_the_old_one(packed: Path) -> None:
    """A pack is written whole or not at all."""
    pack = packed.parent / "train.index"
    good = pack.read_bytes()
    (packed.parent / "train-000002.tar").write_bytes(b"no tar")

    with pytest.raises(ShardFormatError):
        build_spec(packed, pack=pack)

    assert pack.read_bytes() == good
    assert not list(packed.parent.glob(".*"))


def test_shard_takes_an_index_from_elsewhere(shard_path: Path) -> None:
    """A shard asks for its index once, with path, bytes and identity of what it opened."""
    asked = []

    def find_index(path: str, data: Any, identity: TarIdentity) -> ShardIndex:
        asked.append((path, len(data), identity.nbytes))
        return made(shard_path)

    with Shard(shard_path, find_index=find_index) as shard:
        assert shard[0][".txt"] == b"text 0"
    size = shard_path.stat().st_size
    assert asked == [(str(shard_path), size, size)]


@pytest.mark.parametrize("names", [["猫", "狗"], ["a" * 101, "b" * 101], ["x", "y"]])
def test_names_in_extended_headers_are_checked(tmp_path: Path, names: list[str]) -> None:
    """A tar whose samples changed places is an error, however its names are stored (INDEX-2)."""

    def write(order: list[str]) -> None:
        members = [(f"{name}.txt", f"of {name[0]}".encode()) for name in order]
        write_tar(tmp_path / "a.tar", members)

    write(names)
    spec = load_spec([tmp_path / "a.tar"])
    build_spec(spec, pack=tmp_path / "a.index")
    spec = replace(spec, index=str(tmp_path / "a.index"))
    with ShardListDataset(spec) as dataset:
        assert dataset[0][".txt"] == f"of {names[0][0]}"
    write(names[::-1])

    with ShardListDataset(spec) as dataset:
        for index_of_sample in (0, 1):
            with raises(ShardFormatError, "expected the header of a .txt as in the published"):
                dataset[index_of_sample]


def test_key_in_several_shards_is_the_first(packed: Path) -> None:
    """A shard that the pack does not know comes in its place, not after the others (INDEX-7)."""
    members = [*sample_members(0, 7), ("s00018.txt", bytes(20_000).replace(b"\0", b"x"))]
    write_tar(packed.parent / "train-000000.tar", members)

    with ShardListDataset(packed) as dataset:
        assert dataset.get_by_key("s00018")["__index__"] == 7


def test_index_of_another_user_is_not_used(
    shard_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache folder that users share, each believes only itself (INDEX-3)."""
    with ShardListDataset(shard_path) as dataset:
        expected = list(dataset[:7])
    (file,) = kept(own_cache)
    identity = TarIdentity(shard_path.stat().st_size, shard_path.stat().st_mtime_ns)
    assert index_file.load(str(file), identity, "first") is not None

    monkeypatch.setattr(os, "geteuid", lambda: 12345)

    assert index_file.load(str(file), identity, "first") is None
    with ShardListDataset(shard_path) as dataset:
        assert list(dataset[:7]) == expected
