"""Positions lead to shards, and each access mode fetches what it should."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import raises, write_shards
from hypothesis import given
from hypothesis import strategies as st

from wids import load_spec
from wids.shards.counted_shards import counted_shards
from wids.shards.policy import Wanted
from wids.shards.positions import select
from wids.shards.read_options import ReadOptions, field_set
from wids.shards.reader import ShardReader
from wids.storage.cache.store import Cache
from wids.storage.fetch import Fetcher

LENGTHS = [8, 0, 5, 7]


@pytest.fixture(scope="module")
def open_reader(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ShardReader]:
    """Return a callable that opens a reader of 20 samples in four shards."""
    folder = tmp_path_factory.mktemp("reader")
    spec_path = write_shards(folder, LENGTHS)

    def open_reader(**options: object) -> ShardReader:
        store = Cache(str(folder / "cache"), Fetcher())
        read_options = ReadOptions(**options)  # type: ignore[arg-type]
        return counted_shards(load_spec(str(spec_path)), store, read_options)

    return open_reader


def test_every_position_is_in_its_shard(open_reader: Callable[..., ShardReader]) -> None:
    """Empty shards have no position."""
    reader = open_reader()
    expected = [(n, i) for n, length in enumerate(LENGTHS) for i in range(length)]
    assert len(reader) == 20
    assert [reader.locate(position) for position in range(20)] == expected


@given(st.lists(st.integers(0, 19)))
def test_groups_put_a_batch_in_the_order_of_the_files(
    open_reader: Callable[..., ShardReader], positions: list[int]
) -> None:
    """Each shard comes once, ascending, and every position of the batch has its place."""
    reader = open_reader()
    groups = list(reader.groups(np.array(positions, np.int64)))
    numbers = [number for number, *_ in groups]
    assert numbers == sorted(set(numbers))
    found = {}
    for number, places, local_indices in groups:
        assert local_indices == sorted(local_indices)
        found.update((p, (number, i)) for p, i in zip(places, local_indices, strict=True))
    assert found == {place: reader.locate(position) for place, position in enumerate(positions)}


def test_a_view_wants_most_of_a_shard_of_which_it_has_a_quarter(
    open_reader: Callable[..., ShardReader],
) -> None:
    """Or some samples of it, also of one to which it goes back."""
    reader = open_reader()
    views = [range(7, 8), range(6, 8), range(20), range(0, 8, 2), range(0, 20, 8)]
    views += [select(range(20), indices) for indices in ([0, 1, 4], [0, 9, 12], [4, 0, 1])]
    found = [reader.wanted_of_view(0, view) is Wanted.MOST for view in views]
    assert found == [False, True, True, True, False, True, False, False]
    assert {reader.wanted_of_view(0, view) for view in views} == {Wanted.MOST, Wanted.SAMPLES}


def test_only_has_shards_of_its_own_and_fetches_none(
    open_reader: Callable[..., ShardReader],
) -> None:
    """The fields are bytes; the reader that it came from is as it was."""
    reader = open_reader(raw="stream", access="download")
    other = reader.only([".cls"])
    assert other.open(0).read(3) == {".cls": b"3", "__key__": "s00003"}
    assert (other.options.access, reader.options.access) == ("range", "download")
    assert (reader.num_open, other.num_open) == (0, 1)
    assert reader.open(0).read(3)[".txt"].read() == b"text 3"
    assert set(reader.only(None).open(0).read(3)) == {".txt", ".cls", "__key__"}


def test_a_key_is_found_in_each_shard_that_has_it(open_reader: Callable[..., ShardReader]) -> None:
    """Positions count from the first shard, in all shards and in one."""
    reader = open_reader()
    assert list(reader.find("s00009")) == list(reader.find("s00009", 2)) == [9]
    assert list(reader.find("s00009", 0)) == list(reader.find("nope")) == []


def test_a_pickle_has_no_open_shards(open_reader: Callable[..., ShardReader]) -> None:
    """A reader that was used travels, and opens its shards again."""
    reader = open_reader()
    reader.open(0)
    other = pickle.loads(pickle.dumps(reader))  # noqa: S301 - made here
    assert other.num_open == 0
    number, local_index = other.locate(9)
    assert other.open(number).read(local_index) == reader.open(2).read(1)
    assert other.num_open == 1


def test_wrong_options_are_errors_before_anything_is_opened() -> None:
    """Each names what it expects and what it found."""
    with raises(ValueError, 'access: expected "auto", "download" or "range", found \'both\''):
        ReadOptions(access="both")  # type: ignore[arg-type]
    with raises(ValueError, "raw: expected"):
        ReadOptions(raw="text")  # type: ignore[arg-type]
    with raises(ValueError, "lru_size: expected at least 1, found 0"):
        ReadOptions(lru_size=0)
    with raises(TypeError, "fields: expected a list of fields"):
        field_set(".cls")


def test_shards_are_counted_where_the_spec_does_not(tmp_path: Path) -> None:
    """A shard that was opened to be counted stays open."""
    write_shards(tmp_path, [3, 2])
    spec = load_spec(str(tmp_path / "train-{000000..000001}.tar"))
    store = Cache(str(tmp_path / "cache"), Fetcher())
    reader = counted_shards(spec, store, ReadOptions())
    assert (reader.edges.tolist(), reader.num_open) == ([0, 3, 5], 2)
