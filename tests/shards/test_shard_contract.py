"""What every open shard promises (`wids.shards.tars.raw_samples`), wherever its bytes come from.

Each test runs on a local `Shard`, on a `RemoteShard` over bytes in memory, and on a `RemoteShard`
over a loopback HTTP server. The expected samples are written down here, not read with wids.
"""

from __future__ import annotations

import io
import os
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Member, in_child, raises, sample_members, write_tar

from wids.errors import ShardFormatError
from wids.shards.remote_shard import RemoteShard
from wids.shards.tars.headers import BLOCK_NBYTES
from wids.shards.tars.index import index_tar
from wids.shards.tars.raw_samples import TarShard
from wids.shards.tars.shard import Shard
from wids.storage.fetch import Fetcher
from wids.storage.ranges import ReadPart

LARGE = random.Random(1).randbytes(300_000)
LONG_KEY = "dir/ünïcode-" + "x" * 120
MEMBERS: list[Member] = [
    *sample_members(0, 50),
    ("large.bin", LARGE),
    ("large.txt", b"after a large member"),
    ("empty.txt", b""),
    (f"{LONG_KEY}.txt", b"a long name"),
    *sample_members(50, 60),
    ("s00003.json", b"{}"),  # a late member of an early sample
]


def expected_samples() -> list[dict[str, Any]]:
    """Return the samples of `MEMBERS`: one for each key, in the order of first members."""
    samples: dict[str, dict[str, Any]] = {}
    for name, data in MEMBERS:
        key, _, field = name.partition(".")
        samples.setdefault(key, {})["." + field] = data
    return [{**fields, "__key__": key} for key, fields in samples.items()]


EXPECTED = expected_samples()
KEYS = [sample["__key__"] for sample in EXPECTED]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tar with samples of all kinds."""
    return write_tar(tmp_path_factory.mktemp("contract") / "a.tar", MEMBERS)


Make = Callable[..., TarShard]


@pytest.fixture(params=["local", "bytes", "server"])
def make(request: pytest.FixtureRequest, path: Path) -> Make:
    """Return a callable that opens the tar, with the arguments that all shards take."""
    if request.param == "local":
        return lambda **options: Shard(path, **options)
    data = path.read_bytes()
    shard_index = index_tar(data, path="a.tar", checksums=True)

    def read_from_memory(start: int, stop: int) -> bytes:
        return data[start:stop]

    read_range: ReadPart = read_from_memory
    if request.param == "server":
        url = request.getfixturevalue("server").page("/a.tar", data)
        read_range = Fetcher().range_reader(url, len(data))
    return lambda **options: RemoteShard("a.tar", shard_index, len(data), read_range, **options)


def test_members_are_read_in_bulk(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """One field of all samples, near and far members, cold ones, and none at all."""
    with make() as shard:
        for field in (".txt", ".cls", ".bin", ".json", ".none"):
            samples, members = shard.index.members_of(field)
            expected = {n: s[field] for n, s in enumerate(EXPECTED) if field in s}
            assert dict(zip(samples.tolist(), shard.read_members(members), strict=True)) == expected
            some = members[::3]
            assert shard.read_members(some, verify=True) == [*expected.values()][::3]
            with monkeypatch.context() as patched:
                patched.setattr(
                    "wids.shards.tars.shard._DENSE_NBYTES", 0
                )  # as if they were far apart
                patched.setattr("wids.shards.tars.shard._COLD_READ_S", -1.0)  # and on a slow disk
                assert shard.read_members(members) == list(expected.values())
                patched.setattr("wids.shards.tars.shard._LONG_NBYTES", 0)  # from the map
                assert shard.read_members(members) == list(expected.values())
        index = shard.index
        names = [index.member_name(member) for member in range(len(index.sizes))]
        assert sorted(names) == sorted(name for name, _ in MEMBERS)


def test_length_and_order(make: Make, path: Path) -> None:
    """Samples come in the order of their first members, each with all its members."""
    with make() as shard:
        assert len(shard) == len(shard.index) == len(EXPECTED) == 63
        assert [shard[i] for i in range(63)] == EXPECTED
        assert shard.nbytes == path.stat().st_size


def test_fields_come_in_archive_order_and_the_key_last(make: Make) -> None:
    """Also where the members of a sample do not stand together."""
    with make() as shard:
        assert list(shard[3]) == [".txt", ".cls", ".json", "__key__"]
        assert list(shard[50]) == [".bin", ".txt", "__key__"]


def test_iteration_can_be_repeated_and_nested(make: Make) -> None:
    """Each iteration starts at the first sample, and none disturbs another."""
    with make() as shard:
        first = iter(shard)
        assert next(first) == EXPECTED[0]
        assert [sample["__key__"] for sample in shard] == KEYS
        assert next(first) == EXPECTED[1]


def test_indices_are_those_of_a_list(make: Make) -> None:
    """Negative indices and numpy integers work as for a list."""
    with make() as shard:
        for local_index in (0, 62, -1, -63, -12):
            assert shard[local_index] == EXPECTED[local_index]
            assert shard[np.int16(local_index)] == EXPECTED[local_index]  # type: ignore[index]


def test_a_part_of_a_field(make: Make) -> None:
    """Any bytes of a field are read without the others; past its end there are none."""
    read: list[int] = []
    with make() as shard:
        if isinstance(shard, RemoteShard):
            shard.takes = lambda nbytes: read.append(nbytes) is None
        assert shard.read_part(50, ".bin", 0, 10) == LARGE[:10]
        assert shard.read_part(50, ".bin", 150_000, 250_000) == LARGE[150_000:250_000]
        assert shard.read_part(50, ".bin", 299_990, 10**12) == LARGE[-10:]
        assert shard.read_part(50, ".bin", 400_000, 500_000) == b""
        assert shard.read_part(51, ".txt", 0, 10) == b""
        assert sum(read) < 100_000 + 10 * BLOCK_NBYTES
        with raises(KeyError, "a.tar", ".cls"):
            shard.read_part(50, ".cls", 0, 1)


def test_a_part_of_another_tar_is_not_read(path: Path) -> None:
    """A tar that is not the one of its index is noticed by the header before the field."""
    data = bytearray(path.read_bytes())
    index = index_tar(bytes(data), path="a.tar", checksums=True)
    at = data.index(b"large.bin")
    data[at : at + 5] = b"other"
    with RemoteShard(
        "a.tar", index, len(data), lambda start, stop: bytes(data[start:stop])
    ) as shard:
        with raises(ShardFormatError, "expected the header of a .bin"):
            shard.read_part(50, ".bin", 200_000, 200_010)


READS: dict[str, Callable[[Any], object]] = {
    "read": lambda shard: shard.read(3),
    "read and verify": lambda shard: shard.read(3, verify=True),
    "read_many": lambda shard: shard.read_many([2, 3, 4]),
    "read_many and verify": lambda shard: shard.read_many([2, 3, 4], verify=True),
    "read_members": lambda shard: shard.read_members(shard.index.members_of(".cls")[1]),
    "read_part": lambda shard: shard.read_part(3, ".cls", 0, 1),
    "views": lambda shard: shard.views(shard.index.members_of(".cls")[1], []),
}


@pytest.mark.parametrize(
    ("is_local", "name"),
    [(True, name) for name in READS] + [(False, name) for name in READS if name != "views"],
)
def test_every_read_compares_headers_with_a_published_index(
    tmp_path: Path, is_local: bool, name: str
) -> None:
    """A tar with the same names, places and bytes is another one if a header differs (INDEX-2).

    Also where all samples have the same fields: the faster functions for these compare nothing.
    """
    data = bytearray(write_tar(tmp_path / "a.tar", sample_members(0, 50)).read_bytes())
    index = index_tar(bytes(data), path="a.tar", checksums=True)
    at = int(index.blocks[index.member(3, ".cls", "a.tar")]) * BLOCK_NBYTES
    data[at - BLOCK_NBYTES + 136] ^= 1  # a digit of its time
    (tmp_path / "a.tar").write_bytes(data)
    with (
        Shard(tmp_path / "a.tar", find_index=lambda *_: index)
        if is_local
        else RemoteShard("a.tar", index, len(data), lambda start, stop: bytes(data[start:stop]))
    ) as shard:
        shard.check()  # from now on the fastest functions read that fit
        assert shard.read(2, verify=True) == EXPECTED[2]
        with raises(ShardFormatError, "a.tar: at byte", "expected the header of a .cls"):
            READS[name](shard)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_damaged_member_is_named(tmp_path: Path, is_local: bool) -> None:
    """Whole samples and bulk reads raise the same error; other samples are read."""
    data = bytearray(write_tar(tmp_path / "a.tar", sample_members(0, 9)).read_bytes())
    index = index_tar(bytes(data), path="a.tar", checksums=True)
    data[data.index(b"text 4")] ^= 1
    (tmp_path / "a.tar").write_bytes(data)
    with (
        Shard(tmp_path / "a.tar", find_index=lambda *_: index)
        if is_local
        else RemoteShard("a.tar", index, len(data), lambda start, stop: bytes(data[start:stop]))
    ) as shard:
        for read in (
            lambda: shard.read(4, verify=True),
            lambda: shard.read_many([2, 4, 1], verify=True),
            lambda: shard.read_members(index.members_of(".txt")[1], verify=True),
        ):
            with raises(ShardFormatError, 'a.tar: member "s00004.txt": expected bytes with'):
                read()
        assert shard.read_many([2, 5], verify=True) == [EXPECTED[2], EXPECTED[5]]


def test_labels(make: Make) -> None:
    """They say where a sample is, also where labels change or a sample is repeated."""
    with make() as shard:
        for labels in ((100, "a.tar", "train"), (7, "b.tar", "test"), None):
            added = {} if labels is None else {"__shard__": labels[1], "__dataset__": labels[2]}
            for n, sample in zip(
                (50, 3, 3), shard.read_many([50, 3, 3], labels=labels), strict=True
            ):
                places = {} if labels is None else {"__index__": labels[0] + n, "__shardindex__": n}
                assert sample == EXPECTED[n] | added | places


@pytest.mark.parametrize("outside", [63, -64, 10**9, 2**70])
def test_out_of_range(make: Make, outside: int) -> None:
    """An index that does not exist is an `IndexError` that names the shard and its length."""
    with make() as shard:
        with raises(IndexError, "a.tar: ", f"index {outside} is out of range for 63 samples"):
            shard[outside]


@pytest.mark.parametrize("index", [1.0, "1", None])
def test_other_indices_are_type_errors(make: Make, index: Any) -> None:
    """Only integers are indices."""
    with make() as shard, pytest.raises(TypeError):
        shard[index]


@pytest.mark.parametrize(
    "local_indices",
    [[], [0], [62, 0], [3, 60, 3, 50, 0, 62, 3], list(range(62, -1, -1)), range(10, 40), [51, 51]],
)
def test_read_many_in_any_order(make: Make, local_indices: Any) -> None:
    """A batch has the order of its indices, with repeats, and equals reading one by one."""
    with make() as shard:
        samples = shard.read_many(local_indices)
        assert samples == [EXPECTED[i] for i in local_indices]
        assert samples == [shard.read(i) for i in local_indices]


def test_samples_are_the_callers_own(make: Make) -> None:
    """A sample that is changed changes no other, in the same batch or later."""
    with make() as shard:
        first, second = shard.read_many([7, 7])
        first.clear()
        assert second == shard[7] == EXPECTED[7]


@pytest.mark.parametrize("fields", [[".cls"], {".cls": 1}.keys(), frozenset([".cls", ".nope"])])
def test_only_wanted_fields_are_read(make: Make, fields: Any) -> None:
    """Other fields are left out; the key stays, also of a sample that has none of the fields."""
    with make(fields=fields) as shard:
        assert shard[3] == {".cls": b"3", "__key__": "s00003"}
        assert shard[50] == {"__key__": "large"}
        assert shard.read_many([50, 3]) == [shard[50], shard[3]]
        assert len(shard) == 63


def test_raw_bytes(make: Make) -> None:
    """The default form of a field."""
    with make(raw="bytes") as shard:
        assert type(shard[50][".bin"]) is bytes
        assert shard[50][".bin"] == LARGE


def test_raw_streams(make: Make) -> None:
    """A stream is at its start, and each sample has streams of its own."""
    with make(raw="stream") as shard:
        first, second = shard.read_many([50, 50])
        assert type(first[".bin"]) is io.BytesIO
        assert first[".bin"].read() == second[".bin"].read() == LARGE
        assert shard[51][".txt"].read() == b""


def test_raw_views(make: Make) -> None:
    """A view has the bytes of the field alone, cannot be written, and outlives its shard.

    It has the hash of its bytes, so that it can be a key.
    """
    with make(raw="view") as shard:
        views = [shard[50][".bin"], shard[3][".txt"], shard[51][".txt"]]
    for view, data in zip(views, (LARGE, EXPECTED[3][".txt"], b""), strict=True):
        assert type(view) is memoryview
        assert view.readonly
        assert view.nbytes == len(data)
        assert view == data
        assert hash(view) == hash(data)
        view.release()


def test_find(make: Make) -> None:
    """Every key leads to its sample, and no other text leads to any."""
    with make() as shard:
        assert [shard.find(key) for key in KEYS] == list(range(63))
        for key in ("nope", "", "s0000", "s00003.txt", "a\0b", "\ud800", LONG_KEY[:-1]):
            assert shard.find(key) == -1


def test_what_the_pool_asks(make: Make) -> None:
    """`check` accepts a shard that can be read."""
    with make() as shard:
        shard.check()


def test_context_manager_closes(make: Make) -> None:
    """The block gets the shard itself, and errors pass through."""
    opened = make()
    with raises(ZeroDivisionError, "passes"):
        with opened as shard:
            assert shard is opened
            raise ZeroDivisionError("passes")
    opened.close()


def test_after_close(make: Make) -> None:
    """Closing twice is harmless, and a closed shard never returns wrong bytes.

    It still knows its length and keys; a read returns the sample or raises `ValueError`.
    """
    shard = make()
    sample = shard[3]
    shard.close()
    shard.close()
    assert sample == EXPECTED[3]
    assert (len(shard), shard.find("s00003")) == (63, 3)
    with suppress(ValueError):
        assert shard[3] == EXPECTED[3]
    with suppress(ValueError):
        assert shard.read_many([3, 50]) == [EXPECTED[3], EXPECTED[50]]


def test_an_index_that_was_cut_is_an_error(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` and every batch notice a mapped index that lost its end."""
    with make() as shard:
        shard.read_many([0])  # the first batch compares more
        monkeypatch.setattr(type(shard.index), "is_intact", lambda _: False)
        for read in (shard.check, lambda: shard.read_many([0]), lambda: shard[0]):
            with raises(ShardFormatError, "a.tar: expected its index as when it was opened"):
                read()


def test_threads_and_forks(make: Make) -> None:
    """Threads and a forked child read the right samples from one open shard."""
    wrong: list[int] = []

    def read(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(30):
            local_index = choose.randrange(63)
            if shard[local_index] != EXPECTED[local_index]:
                wrong.append(local_index)

    with make() as shard:
        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert in_child(lambda: shard.read_many([0, 50]) == [EXPECTED[0], EXPECTED[50]])


@pytest.mark.parametrize("is_uniform", [True, False])
@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16])
def test_short_integers_are_positions(kind: type[Any], is_uniform: bool, tmp_path: Path) -> None:
    """A position may be any integer of numpy: nothing is added to its few bits."""
    members = sample_members(0, 300) + [("s00007.json", b"{}")] * (not is_uniform)
    path = write_tar(tmp_path / "a.tar", members)
    positions = np.array([1, 100, 126, 127, np.iinfo(np.uint8).max][: 4 + (kind != np.int8)], kind)
    keys = [f"s{position:05d}" for position in positions.tolist()]
    texts = [f"text {position}".encode() for position in positions.tolist()]
    data = path.read_bytes()
    remote = RemoteShard(
        "a.tar", index_tar(data, checksums=True), len(data), lambda start, stop: data[start:stop]
    )
    with Shard(path) as local:
        for shard in (local, remote):
            for samples in (
                [shard[position] for position in positions],
                [shard.read(position) for position in positions],
                shard.read_many(positions),
                shard.read_many([300 - 1, *positions])[1:],
            ):
                assert [sample["__key__"] for sample in samples] == keys
                assert [sample[".txt"] for sample in samples] == texts
            parts = [shard.read_part(position, ".txt", 0, 99) for position in positions]
            assert parts == texts
            assert [shard.index.key(position) for position in positions] == keys


def test_a_file_that_is_cut_between_two_batches(tmp_path: Path) -> None:
    """It is an error: to touch the map beyond the end of the file would kill the process."""
    path = write_tar(tmp_path / "a.tar", sample_members(0, 8))
    with Shard(path) as shard:
        assert len(shard.read_many([0, 1])) == 2
        os.truncate(path, 512)
        with pytest.raises(ShardFormatError):
            shard.read_many([6, 7])
