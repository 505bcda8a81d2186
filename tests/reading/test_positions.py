"""Indices, slices and masks select what they select from a list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import raises
from hypothesis import given
from hypothesis import strategies as st

from wids.reading.positions import counts_per_shard, from_start, index_of, select

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
    for positions in (range(20), np.arange(20)[::-1]):
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


@pytest.mark.parametrize("indices", [1.0, "1", None, [1.5], np.ones((2, 2), int), [True], {}])
def test_what_selects_nothing_is_a_type_error(indices: Any) -> None:
    """The message lists what would be an index."""
    with raises(TypeError, "expected an index, a slice, a list of indices or a mask of 20"):
        select(range(20), indices)


@given(st.lists(st.integers(0, 9)), st.integers(0, 9))
def test_the_first_index_of_a_position(values: list[int], position: int) -> None:
    """As ``list.index`` has it, and -1 where there is none."""
    expected = values.index(position) if position in values else -1
    assert index_of(np.array(values, np.int64), position) == expected
    assert index_of(range(3, 9, 2), position) == {3: 0, 5: 1, 7: 2}.get(position, -1)


@given(st.slices(20))
def test_counts_follow_shards(selection: slice) -> None:
    """A contiguous range has one count for each shard, anything else one in all."""
    positions = range(20)[selection]
    counts = counts_per_shard(positions, EDGES)
    assert sum(counts) == len(positions)
    if positions.step == 1:
        assert len(counts) == 4
        assert counts[1] == 0
    else:
        assert counts == [len(positions)]
    assert counts_per_shard(np.array(positions), EDGES) == [len(positions)]
