"""A sample is read the same the first time and later, and is compared the first time alone."""

from __future__ import annotations

import io
import random
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Member, raises, sample_members, write_tar
from hypothesis import given
from hypothesis import strategies as st

from wids.errors import ShardFormatError
from wids.shards.tars.index import index_tar
from wids.shards.tars.raw_samples import Raw
from wids.shards.tars.shard import Shard

FIELDS = (".txt", ".cls", ".seg.png", ".ä")


def content(value: Any) -> Any:
    """Return the bytes of a field in any form, and everything else as it is."""
    if isinstance(value, io.BytesIO):
        return value.getvalue()
    return bytes(value) if isinstance(value, memoryview) else value


def samples_of(shard: Shard) -> list[dict[str, Any]]:
    """Read all samples one by one, and compare them with a batch of them, also with labels."""
    single = [{k: content(v) for k, v in shard.read(i).items()} for i in range(len(shard))]
    batch = shard.read_many(range(len(shard)))
    for start, name in ((5, "a"), (7, "b")):  # labels of the same shard in two datasets
        labelled = shard.read_many(range(len(shard)), labels=(start, "s.tar", name))
        for local_index, (sample, plain) in enumerate(zip(labelled, batch, strict=True)):
            labels = (start + local_index, "s.tar", local_index, name)
            assert [content(v) for v in sample.values()][len(plain) :] == list(labels)
            names = ["__index__", "__shard__", "__shardindex__", "__dataset__"]
            assert list(sample) == [*plain, *names]
            alone = shard.read(local_index, labels=(start, "s.tar", name))
            assert {k: content(v) for k, v in alone.items()} == {
                k: content(v) for k, v in sample.items()
            }
            assert list(alone) == list(sample)
    assert [{k: content(v) for k, v in sample.items()} for sample in batch] == single
    assert [list(sample) for sample in batch] == [list(sample) for sample in single]
    return single


@given(
    shapes=st.lists(st.lists(st.sampled_from(FIELDS), min_size=1, unique=True), max_size=6),
    is_uniform=st.booleans(),
    fields=st.none() | st.sets(st.sampled_from(FIELDS)),
    raw=st.sampled_from(["bytes", "stream", "view"]),
)
def test_a_shard_reads_the_same_before_and_after_it_is_looked_at(
    tmp_path_factory: pytest.TempPathFactory,
    shapes: list[list[str]],
    is_uniform: bool,
    fields: set[str] | None,
    raw: Raw,
) -> None:
    """What samples have in common changes how they are read, and nothing of what is read."""
    shapes = [shapes[0]] * len(shapes) if is_uniform and shapes else shapes
    expected: list[dict[str, Any]] = []
    members: list[Member] = []
    for number, shape in enumerate(shapes):
        names = {field: f"{number}{field}".encode() * number for field in shape}
        members += [(f"k{number}é{field}", data) for field, data in names.items()]
        wanted = {f: data for f, data in names.items() if fields is None or f in fields}
        expected.append({**wanted, "__key__": f"k{number}é"})
    path = write_tar(tmp_path_factory.mktemp("tars") / "a.tar", members)
    with Shard(path, fields=fields, raw=raw) as shard:
        before = samples_of(shard)
        shard.check()
        assert samples_of(shard) == before == expected
        assert [list(sample) for sample in before] == [list(sample) for sample in expected]


def counted_crcs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the length of all that is compared with a checksum from now on."""
    lengths: list[int] = []

    def crc32(data: bytes | memoryview) -> int:
        lengths.append(len(data))
        return zlib.crc32(data)

    monkeypatch.setattr("wids.shards.tars.samples.fastest_crc32", lambda: crc32)
    return lengths


MIXED = [*sample_members(0, 3), ("x.txt", bytes(20_000)), ("x.é" + "l" * 120, b"long name")]


@pytest.mark.parametrize("members", [sample_members(0, 4), MIXED], ids=["uniform", "mixed"])
@pytest.mark.parametrize("raw", ["bytes", "stream", "view"])
@pytest.mark.parametrize("is_checked", [False, True])
def test_a_header_is_compared_at_the_first_read_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    members: list[Member],
    raw: Raw,
    is_checked: bool,
) -> None:
    """Single reads and batches, and those that compare members too, share what they compared."""
    index = index_tar(write_tar(tmp_path / "a.tar", members).read_bytes(), checksums=True)
    lengths = counted_crcs(monkeypatch)
    head_nbytes = int(index.head_blocks.sum()) * 512
    with Shard(tmp_path / "a.tar", find_index=lambda *_: index, raw=raw) as shard:
        if is_checked:
            shard.check()  # from now on the shard knows whether all samples have the same fields
        shard.read_many([0, 2])
        shard.read(3)
        shard.read(1, verify=True)
        sizes = index.sizes.data[index.member_starts.data[1] : index.member_starts.data[2]]
        assert sum(lengths) == head_nbytes + sum(sizes)
        lengths.clear()
        for labels in (None, (7, "a.tar", "t"), (7, "a.tar", "u")):
            shard.read_many([3, 2, 1, 0, 3], labels=labels)
            shard.read(3, labels=labels)
        assert lengths == []
        shard.read_many(range(4), verify=True)
        assert sorted(lengths) == sorted(index.sizes.tolist())
    with Shard(tmp_path / "a.tar", find_index=lambda *_: index, raw=raw) as shard:
        lengths.clear()
        shard.read(0)
        assert lengths, "another opening compares again"


def test_a_sample_with_another_header_fails_at_each_read(tmp_path: Path) -> None:
    """What was not found to be right is compared again, in a shard of any fields."""
    for members in (sample_members(0, 4), MIXED):
        data = bytearray(write_tar(tmp_path / "a.tar", members).read_bytes())
        index = index_tar(bytes(data), checksums=True)
        data[int(index.blocks[index.member_starts[2]]) * 512 - 512 + 136] ^= 1  # a digit of a time
        (tmp_path / "a.tar").write_bytes(data)
        with Shard(tmp_path / "a.tar", find_index=lambda *_, index=index: index) as shard:
            for _ in range(2):
                for read in (lambda: shard[2], lambda: shard.read_many([1, 2])):
                    with raises(ShardFormatError, "expected the header of a .txt"):
                        read()
                assert shard[1]["__key__"] == "s00001"
                shard.check()


@pytest.mark.parametrize("checksums", [False, True])
def test_more_shapes_than_have_numbers(tmp_path: Path, checksums: bool) -> None:
    """A shard whose samples all have other fields is read right, and nothing is kept for each."""
    names = [
        (f"k{number}.{field}", number) for number in range(90) for field in ("a", f"f{number}")
    ]
    members = [(name, b"%d" % number * (1 + number % 2 * 9000)) for name, number in names]
    index = index_tar(write_tar(tmp_path / "a.tar", members).read_bytes(), checksums=checksums)
    with Shard(tmp_path / "a.tar", find_index=lambda *_: index) as shard:
        for _ in range(3):
            for number, sample in enumerate(shard.read_many(range(90))):
                content = b"%d" % number * (1 + number % 2 * 9000)
                assert sample == {".a": content, f".f{number}": content, "__key__": f"k{number}"}
                assert shard[number] == sample
        assert max(shard._known) < 32


def test_threads_that_meet_shapes_at_the_same_time(tmp_path: Path) -> None:
    """A number never stands for two shapes, whichever thread gave it."""
    members = [(f"k{n}.{f}", f"{n}{f}".encode()) for n in range(400) for f in "abcd"[: 1 + n % 4]]
    path = write_tar(tmp_path / "a.tar", members)
    expected = [{f".{f}": f"{n}{f}".encode() for f in "abcd"[: 1 + n % 4]} for n in range(400)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(10):
                with Shard(path) as shard:
                    orders = [random.Random(seed).sample(range(400), 400) for seed in range(4)]
                    found = threads.map(lambda order: [shard[i] for i in order], orders)
                    for order, samples in zip(orders, found, strict=True):
                        for i, sample in zip(order, samples, strict=True):
                            assert sample == {**expected[i], "__key__": f"k{i}"}
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("num_warm", [0, 1, 5, 33, 40])
def test_samples_after_a_slow_one_are_requested_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_warm: int
) -> None:
    """A batch that begins warm and comes from the disk later is announced soon after that."""
    with Shard(write_tar(tmp_path / "a.tar", sample_members(0, 400))) as shard:
        shard.check()  # which looks at the index, once
        hinted: list[list[int]] = []
        clock = [0.0]
        read = shard._read

        def slow_read(local_indices: Any, *arguments: Any) -> dict[str, Any]:
            clock[0] += 1e-3 * sum(local_index >= num_warm for local_index in local_indices)
            return read(local_indices, *arguments)

        monkeypatch.setattr("wids.shards.tars.shard.monotonic", lambda: clock[0])
        monkeypatch.setattr(shard, "_check_after_s", 1e9)
        monkeypatch.setattr(shard, "_read", slow_read)
        monkeypatch.setattr(shard, "hint", lambda indices: hinted.append(list(indices)))
        samples = shard.read_many(range(400))

    assert [sample["__key__"] for sample in samples] == [f"s{n:05d}" for n in range(400)]
    expected = {0: 1, 1: 33, 5: 33, 33: 65, 40: 65}[num_warm]
    assert hinted[0] == list(range(expected, 400))
    assert all(not indices for indices in hinted[1:])
