"""Remote shards by byte range: the protocol of a local shard, and nothing read that is not wanted.

The tests of the protocol run on a local `Shard` and on a `RemoteShard` over the same tar.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import raises, sample_members, write_tar

from wids.errors import ShardFormatError
from wids.reading.range_shard import RemoteShard
from wids.tars import index, tar
from wids.tars.shard import Shard

MEMBERS = [
    *sample_members(0, 50),
    ("large.bin", random.Random(1).randbytes(300_000)),
    ("large.txt", b"behind a large one"),
    ("empty.txt", b""),
    ("dir/ünïcode-" + "x" * 120 + ".txt", b"a long name"),
    *sample_members(50, 60),
    ("s00003.json", b"{}"),  # a late member of an early sample
]


class Asked:
    """Reads ranges of bytes, and keeps a list of them."""

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
    """A tar with samples of all kinds."""
    return write_tar(tmp_path_factory.mktemp("tar") / "a.tar", MEMBERS)


def remote(path: Path, **about: Any) -> tuple[RemoteShard, Asked]:
    """Give a remote shard over the bytes of a file."""
    data = path.read_bytes()
    made = index.with_checksums(index.build(tar.scan(data, "a.tar")), data)
    asked = Asked(data)
    return RemoteShard("a.tar", made, len(data), asked, **about), asked


Make = Callable[..., Any]


@pytest.fixture(params=["local", "remote"])
def make(request: pytest.FixtureRequest, path: Path) -> Make:
    """Give what opens the tar, in both ways."""
    if request.param == "local":
        return lambda **about: Shard(path, **about)
    return lambda **about: remote(path, **about)[0]


def test_all_samples(make: Make, path: Path) -> None:
    """Length, each sample, iteration and batches are those of the tar."""
    with make() as shard, Shard(path) as expected:
        assert len(shard) == len(expected) == 63
        assert list(shard) == list(expected)
        assert [shard[i] for i in range(63)] == list(expected)
        wanted = [3, 60, 3, 50, 0, 62]
        assert shard.read_many(wanted) == [expected[i] for i in wanted]
        assert shard.read_many([]) == []
        assert shard[-1] == expected[62]
        assert shard.nbytes == expected.nbytes


def test_out_of_range(make: Make) -> None:
    """As for a list."""
    with make() as shard:
        for bad in (63, -64):
            with raises(IndexError, f"index {bad} is out of range for 63 samples"):
                shard[bad]


def test_fields_and_raw(make: Make) -> None:
    """Only wanted fields, in the wanted form."""
    with make(fields=[".cls"]) as shard:
        assert shard[3] == {".cls": b"3", "__key__": "s00003"}
        assert shard[50] == {"__key__": "large"}
    with make(raw="stream") as shard:
        assert isinstance(shard[3][".txt"], io.BytesIO)
        assert shard[3][".txt"].read() == b"text 3"
    with make(raw="view") as shard:
        view = shard[3][".txt"]
        assert isinstance(view, memoryview)
        assert bytes(view) == b"text 3"
        view.release()


def test_find(make: Make) -> None:
    """Keys lead to samples."""
    with make() as shard:
        assert shard[shard.find("large")]["__key__"] == "large"
        assert shard.find("nope") == -1


def test_one_sample_is_one_range(path: Path) -> None:
    """From the header of its first member to the last byte of its last one."""
    shard, asked = remote(path)
    before = path.read_bytes().find(b"s00007.txt")

    assert shard[7][".txt"] == b"text 7"
    assert asked.spans == [(before, before + 3 * 512 + 1)]
    assert shard.num_read_nbytes == 3 * 512 + 1


def test_neighbours_are_read_together(path: Path) -> None:
    """Small gaps are read over, large ones are not (CACHE-15)."""
    shard, asked = remote(path)
    shard.read_many(list(range(10, 50)))
    assert len(asked.spans) == 1

    asked.spans.clear()
    shard.read_many([0, 62])
    assert len(asked.spans) == 2
    assert asked.nbytes < 10_000

    asked.spans.clear()
    shard, asked = remote(path, fields=[".txt"])
    shard.read_many([49, 50, 51])  # without the large member between them
    assert asked.nbytes < 10_000


def test_a_sample_in_two_places(path: Path) -> None:
    """Its members are found where they are."""
    shard, asked = remote(path)

    assert shard[3] == {
        ".txt": b"text 3", ".cls": b"3", ".json": b"{}", "__key__": "s00003",
    }  # fmt: skip
    assert len(asked.spans) == 2


def test_another_tar_is_an_error(path: Path, tmp_path: Path) -> None:
    """A tar of the same length with its samples in another order is noticed (CACHE-15)."""
    shard, asked = remote(path)
    shuffled = [*sample_members(1, 2), *sample_members(0, 1), *MEMBERS[4:]]
    asked.data = write_tar(tmp_path / "b.tar", shuffled).read_bytes()
    assert len(asked.data) == shard.nbytes

    with raises(ShardFormatError, "a.tar: at byte 0", "another", "rebuild the index"):
        shard[0]
    assert shard[20][".txt"] == b"text 20"


def test_an_index_without_checksums_is_refused(path: Path) -> None:
    """What it says could not be held against anything."""
    shard, asked = remote(path)
    bare = replace(shard.index, crcs=np.empty(0, np.uint32))

    with raises(ValueError, "expected an index with checksums"):
        RemoteShard("a.tar", bare, shard.nbytes, asked)


def test_enough(path: Path) -> None:
    """It says when so much was read that the whole had been better."""
    shard, _ = remote(path, enough_nbytes=4000)
    spent = []
    for local_index in range(5):
        shard[local_index]
        spent.append(shard.is_spent)

    assert spent == [False, False, True, True, True]
