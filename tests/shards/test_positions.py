"""Indices, slices and masks select what they select from a list."""

from __future__ import annotations

import itertools
import pickle
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conftest import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from wids.shards.positions import (
    PositionArray,
    counts_per_shard,
    from_start,
    index_of,
    position_at,
    select,
)

EDGES = np.array([0, 8, 8, 13, 20])


@given(st.slices(20), st.slices(20), st.lists(st.integers(-20, 19)))
def test_selections_nest_like_those_of_a_list(
    first: slice, second: slice, indices: list[int]
) -> None:
    """A slice of a slice, then indices of that: the same positions as from a list."""
    model = list(range(20))[first][second]
    positions = select(select(range(20), first), second)
    assert list(positions) == model
    chosen = [index for index in indices if -len(model) <= index < len(model)]
    assert list(select(positions, chosen)) == [model[index] for index in chosen]


@given(st.lists(st.booleans(), min_size=20, max_size=20))
def test_a_mask_selects_where_it_is_true(mask: list[bool]) -> None:
    """From a range and from an array, in order."""
    for positions in (range(20), select(range(20), [*range(0, 20, 2), *range(1, 20, 2)])):
        expected = [int(p) for p, is_selected in zip(positions, mask, strict=True) if is_selected]
        assert list(select(positions, mask)) == list(select(positions, np.array(mask))) == expected


@pytest.mark.parametrize("outside", [20, -21, 2**63, 2**64, -(2**70)])
def test_an_index_out_of_range_is_named(outside: int) -> None:
    """Alone and in a list, also where it does not fit into 64 bits."""
    message = "is out of range for a dataset of 20 samples"
    with raises(IndexError, f"index {outside} {message}"):
        from_start(outside, 20)
    with raises(IndexError, message):
        select(range(20), [outside])


@pytest.mark.parametrize("indices", [1.0, "1", None, [1.5], np.ones((2, 2), int), {}])
def test_what_selects_nothing_is_a_type_error(indices: Any) -> None:
    """The message lists what would be an index."""
    with raises(TypeError, "expected an index, a slice, a list of indices or a mask of 20"):
        select(range(20), indices)


def test_one_index_is_an_integer() -> None:
    """Where one sample is meant, a key names the method that takes keys."""
    positions = select(range(20), [3, 1, 8])
    assert [position_at(positions, index) for index in (0, -1, np.int8(1))] == [3, 8, 1]
    for index in (1.0, None, [1], np.array([1.5]), True, np.True_):
        with raises(TypeError, "expected the index of a sample, found"):
            position_at(positions, index)
    with raises(TypeError, "found str 'a'", "get_by_key(key)"):
        position_at(positions, "a")


@given(st.lists(st.integers(0, 9)), st.integers(0, 9))
def test_the_first_index_of_a_position(values: list[int], position: int) -> None:
    """As ``list.index`` has it, and -1 where there is none."""
    expected = values.index(position) if position in values else -1
    assert index_of(np.array(values, np.int64).view(PositionArray), position) == expected
    ascending = sorted(values)
    expected = ascending.index(position) if position in ascending else -1
    assert index_of(np.array(ascending, np.int64).view(PositionArray), position) == expected
    assert index_of(range(3, 9, 2), position) == {3: 0, 5: 1, 7: 2}.get(position, -1)


@settings(deadline=None)
@given(st.one_of(st.slices(20), st.lists(st.integers(0, 19)), st.sets(st.integers(0, 19))))
def test_counts_follow_shards(selection: slice | list[int] | set[int]) -> None:
    """TABLE-17: positions that never descend have one count for each shard, others one in all."""
    positions = select(range(20), sorted(selection) if isinstance(selection, set) else selection)
    found = list(positions)
    if found == sorted(found):
        expected = [sum(a <= p < b for p in found) for a, b in itertools.pairwise(EDGES)]
    else:
        expected = [len(found)]
    assert counts_per_shard(positions, EDGES) == expected


@settings(deadline=None)
@given(st.one_of(st.slices(20), st.lists(st.integers(0, 19)), st.sets(st.integers(0, 19))))
def test_positions_survive_a_pickle(selection: slice | list[int] | set[int]) -> None:
    """A view of any kind, and views of it after the pickle."""
    positions = select(range(20), sorted(selection) if isinstance(selection, set) else selection)
    other = pickle.loads(pickle.dumps(positions))  # noqa: S301 - made here
    assert type(other) is type(positions)
    assert list(other) == list(positions)
    assert list(select(other, slice(1, None, 2))) == list(positions)[1::2]
    assert counts_per_shard(other, EDGES) == counts_per_shard(positions, EDGES)


@given(st.integers(0, 30), st.integers(-5, 5).filter(bool), st.integers(0, 9))
def test_evenly_spaced_indices_are_a_range(start: int, step: int, length: int) -> None:
    """A mask or a list that means a slice is one, so that it takes no memory."""
    evenly = range(start, start + length * step, step)
    if all(0 <= index < 100 for index in evenly):
        positions = select(range(100), list(evenly))
        assert isinstance(positions, range)
        assert list(positions) == list(evenly)


def test_a_view_does_not_follow_the_array_that_selected_it() -> None:
    """Neither indices nor a mask that the program changes later move its samples."""
    indices, mask = np.array([3, 1, 2]), np.array([True, False, True, True, False])
    by_index, by_mask = select(range(5), indices), select(range(5), mask)
    indices[:], mask[:] = 0, True
    assert (list(by_index), list(by_mask)) == ([3, 1, 2], [0, 2, 3])


def test_ten_million_samples_are_selected_at_once() -> None:
    """A mask, its lengths and its pickle take no time for each sample."""
    mask = np.random.default_rng(0).random(10_000_000) < 0.1
    start_s = time.process_time()
    positions = select(range(len(mask)), mask)
    counts = counts_per_shard(positions, np.arange(0, len(mask) + 1, 1000))
    packed = pickle.dumps(positions)
    took_s = time.process_time() - start_s
    assert np.array_equal(positions, np.flatnonzero(mask))
    assert counts == mask.reshape(-1, 1000).sum(axis=1).tolist()
    assert len(packed) < len(mask) / 8 + 200, "a bit for each sample"
    assert np.array_equal(pickle.loads(packed), positions)  # noqa: S301 - made here
    assert took_s < 2, "measured: 0.2 s"


@pytest.mark.parametrize(
    ("indices", "most_nbytes"),
    [
        (np.arange(500_000, 900_000), 100),
        (np.arange(0, 10**6, 7), 100),
        (np.flatnonzero(np.arange(10**6) % 3), 10**6 // 8 + 200),
        (np.flatnonzero(np.arange(10**6) % 50 < 2), 20_000 * 2 + 200),
        (np.arange(10**6) ^ 1, 4 * 10**6 + 200),
    ],
    ids=["contiguous", "strided", "dense", "sparse", "unsorted"],
)
def test_a_pickle_is_as_small_as_its_positions_allow(
    indices: npt.NDArray[np.int64], most_nbytes: int
) -> None:
    """Nothing for a range, a bit for each sample or a byte for each selected one."""
    packed = pickle.dumps(select(range(10**6), indices))
    assert len(packed) <= most_nbytes
