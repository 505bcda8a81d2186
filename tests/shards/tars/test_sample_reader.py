"""Both functions that read a sample return the same, and the faster one is used where it can be."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from conftest import Member, sample_members, write_tar
from hypothesis import given
from hypothesis import strategies as st

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


def test_uniform_shards_are_read_by_the_faster_function(tmp_path: Path) -> None:
    """One sample with another field, a large member or a field that is left out prevents it."""
    cases: list[tuple[list[Member], set[str] | None, bool]] = [
        (sample_members(0, 9), None, True),
        (sample_members(0, 9), {".txt", ".cls", ".jpg"}, True),
        (sample_members(0, 9), {".txt"}, False),
        ([*sample_members(0, 9), ("x.txt", b"")], None, False),
        ([*sample_members(0, 9), ("x.txt", b""), ("x.jpg", b"")], None, False),
        ([*sample_members(0, 9), ("x.txt", b""), ("x.cls", bytes(20_000))], None, False),
    ]
    for number, (members, fields, is_faster) in enumerate(cases):
        with Shard(write_tar(tmp_path / f"{number}.tar", members), fields=fields) as shard:
            before = shard._read
            shard.check()
            assert (shard._read is not before) is is_faster, members
            assert (shard._read is shard._read_verified) is True


@pytest.mark.parametrize("num_warm", [0, 1, 5, 33, 40])
def test_samples_after_a_slow_one_are_requested_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_warm: int
) -> None:
    """A batch that begins warm and comes from the disk later is announced soon after that."""
    with Shard(write_tar(tmp_path / "a.tar", sample_members(0, 400))) as shard:
        shard.check()  # which replaces the function that reads, once
        hinted: list[list[int]] = []
        clock = [0.0]
        read = shard._read_several

        def slow_read(local_indices: Any, labels: Any) -> list[dict[str, Any]]:
            clock[0] += 1e-3 * sum(local_index >= num_warm for local_index in local_indices)
            return read(local_indices, labels)

        monkeypatch.setattr("wids.shards.tars.shard.monotonic", lambda: clock[0])
        monkeypatch.setattr(shard, "_check_after_s", 1e9)
        monkeypatch.setattr(shard, "_read_several", slow_read)
        monkeypatch.setattr(shard, "hint", lambda indices: hinted.append(list(indices)))
        samples = shard.read_many(range(400))

    assert [sample["__key__"] for sample in samples] == [f"s{n:05d}" for n in range(400)]
    expected = {0: 1, 1: 33, 5: 33, 33: 65, 40: 65}[num_warm]
    assert hinted[0] == list(range(expected, 400))
    assert all(not indices for indices in hinted[1:])
