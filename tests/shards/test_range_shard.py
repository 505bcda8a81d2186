"""Remote shards by byte range: what is read, and what is noticed.

What they have in common with local shards is in test_shard_contract.py.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import raises, sample_members, write_tar

from wids.errors import ShardFormatError
from wids.shards.remote_shard import RemoteShard, SpentError
from wids.shards.tars.index import index_tar

MEMBERS = [
    *sample_members(0, 50),
    ("large.bin", random.Random(1).randbytes(300_000)),
    ("large.txt", b"after a large member"),
    *sample_members(50, 60),
    ("s00003.json", b"{}"),  # a late member of an early sample
]


class Recorder:
    """Reads ranges of bytes in memory, and records them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.spans: list[tuple[int, int]] = []

    def __call__(self, start: int, stop: int) -> bytes:
        self.spans.append((start, stop))
        return self.data[start:stop]

    @property
    def nbytes(self) -> int:
        return sum(stop - start for start, stop in self.spans)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tar with small samples, a large one, and one in two places."""
    return write_tar(tmp_path_factory.mktemp("tar") / "a.tar", MEMBERS)


def remote(path: Path, **options: Any) -> tuple[RemoteShard, Recorder]:
    """Return a remote shard over the bytes of a file, and what it reads."""
    data = path.read_bytes()
    recorder = Recorder(data)
    shard_index = index_tar(data, path="a.tar", checksums=True)
    return RemoteShard("a.tar", shard_index, len(data), recorder, **options), recorder


def test_one_sample_is_one_range(path: Path) -> None:
    """From the header of its first member to the last byte of its last one."""
    shard, recorder = remote(path)
    start = path.read_bytes().find(b"s00007.txt")

    assert shard[7][".txt"] == b"text 7"
    assert recorder.spans == [(start, start + 3 * 512 + 1)]


def test_neighbors_are_read_together(path: Path) -> None:
    """Small gaps are read along with the members, large ones are not."""
    shard, recorder = remote(path)
    shard.read_many(list(range(10, 50)))
    assert len(recorder.spans) == 1

    recorder.spans.clear()
    shard.read_many([0, 60])
    assert len(recorder.spans) == 2
    assert recorder.nbytes < 10_000

    shard, recorder = remote(path, fields=[".txt"])
    shard.read_many([49, 50, 51])  # without the large member between them
    assert recorder.nbytes < 10_000


def test_a_sample_in_two_places(path: Path) -> None:
    """Members that do not stand together are two ranges."""
    shard, recorder = remote(path)

    assert shard[3] == {
        ".txt": b"text 3", ".cls": b"3", ".json": b"{}", "__key__": "s00003",
    }  # fmt: skip
    assert len(recorder.spans) == 2


def test_nothing_is_read_before_a_sample_is(path: Path) -> None:
    """Length and keys come from the index."""
    shard, recorder = remote(path)

    assert (len(shard), shard.find("large")) == (61, 50)
    assert shard.read_many([]) == []
    assert recorder.spans == []


def test_another_tar_is_an_error(path: Path, tmp_path: Path) -> None:
    """A tar of the same length with its samples in another order is noticed."""
    shard, recorder = remote(path)
    shuffled = [*sample_members(1, 2), *sample_members(0, 1), *MEMBERS[4:]]
    recorder.data = write_tar(tmp_path / "b.tar", shuffled).read_bytes()
    assert len(recorder.data) == shard.nbytes

    with raises(ShardFormatError, "a.tar: at byte 0", "another", "rebuild the index"):
        shard[0]
    assert shard[20][".txt"] == b"text 20"


@pytest.mark.parametrize("times", [1, 2])
def test_damage_on_the_way_may_be_transient(path: Path, times: int) -> None:
    """What differs from its checksum is read once more, from the damaged sample on."""
    shard, recorder = remote(path)
    whole = recorder.data

    def damaged(start: int, stop: int) -> bytes:
        recorder.data = whole
        if len(recorder.spans) < times:
            recorder.data = whole.replace(b"text 8", b"TEXT 8")
        return recorder(start, stop)

    for read in (
        lambda: [sample[".txt"] for sample in shard.read_many([7, 8])],
        lambda: shard.read_members(shard.index.members_of(".txt")[1][7:9]),
    ):
        recorder.spans.clear()
        shard._read_range = damaged
        if times == 1:
            assert read() == [b"text 7", b"text 8"]
        else:
            with raises(ShardFormatError, "s00008.txt"):
                read()
        assert len(recorder.spans) == 2


def test_an_index_without_checksums_is_refused(path: Path) -> None:
    """With nothing to compare it with, a tar that has changed would go unnoticed."""
    shard, recorder = remote(path)
    bare = replace(shard.index, head_crcs=np.empty(0, np.uint32))

    with raises(ValueError, "expected an index with checksums"):
        RemoteShard("a.tar", bare, shard.nbytes, recorder)


def test_a_shard_is_spent_when_no_more_is_to_be_read(path: Path) -> None:
    """Nothing is read that was not allowed before, by its bytes."""
    asked: list[int] = []

    def takes(nbytes: int) -> bool:
        asked.append(nbytes)
        return sum(asked) < 4000

    shard, recorder = remote(path, takes=takes)
    for local_index in range(2):
        shard[local_index]
    assert asked == [3 * 512 + 1] * 2
    with raises(SpentError, "a.tar"):
        shard[2]
    assert recorder.nbytes == 2 * (3 * 512 + 1)
