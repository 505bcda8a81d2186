"""Positions in bits and in runs are the sequences that arrays of them are."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wids.shards.position_sets import BitPositions, PositionSet, RunPositions, in_bits
from wids.shards.positions import (
    PositionArray,
    as_int_array,
    counts_per_shard,
    in_turn,
    index_of,
    positions_at,
    select,
)
from wids.storage.arrays import IntArray


def bits_of(positions: IntArray) -> PositionSet:
    """Return positions as bits, which come in several blocks."""
    return in_bits(np.array_split(positions, 1 + len(positions) % 3), positions[0], positions[-1])


def runs_of(positions: IntArray) -> PositionSet:
    """Return positions as runs."""
    starts = np.flatnonzero(np.diff(positions, prepend=-2) != 1)
    return RunPositions(positions[starts], np.diff(np.append(starts, len(positions))))


def random_positions(seed: int) -> IntArray:
    """Return positions of any density, with and without gaps of several kilobytes."""
    random = np.random.default_rng(seed)
    steps = random.integers(1, int(random.choice([2, 3, 70, 3000])), random.integers(1, 900))
    steps[random.random(len(steps)) < random.choice([0, 0.01])] += 40_000
    return np.asarray(random.integers(0, 99) + np.cumsum(steps), np.int64)


@pytest.mark.parametrize("form", [bits_of, runs_of])
@given(seed=st.integers(0, 1 << 30), cut=st.slices(40), step=st.sampled_from([1, 1, 2, -1]))
@settings(deadline=None, max_examples=25)
def test_a_set_is_the_sequence_of_its_positions(
    form: Callable[[IntArray], PositionSet], seed: int, cut: slice, step: int
) -> None:
    """For indices, slices, ranks, counts, iteration, composition and a pickle."""
    random = np.random.default_rng(seed)
    whole = random_positions(seed)
    cut = slice(cut.start, None if cut.stop is None else cut.stop * 20, step)
    found, expected = form(whole).shifted(7)[cut], whole[cut] + 7
    if not isinstance(found, PositionSet):  # in no ascending order, or with gaps
        assert np.array_equal(found, expected)
        found, expected = form(whole), whole
    assert len(found) == len(expected)
    assert list(found) == list(in_turn(found)) == expected.tolist() == found.tolist()
    assert np.array_equal(as_int_array(found), expected)
    for num_indices in (1, 5, 64) if len(expected) else ():
        indices = random.integers(-len(expected), len(expected), num_indices)
        assert np.array_equal(positions_at(found, indices, indices), expected[indices])
        assert [found[index] for index in indices.tolist()] == expected[indices].tolist()
    others = random.integers(0, whole[-1] + 100, 20)
    assert found.count_below(others).tolist() == np.searchsorted(expected, others).tolist()
    array = expected.view(PositionArray)
    assert [index_of(found, p) for p in others.tolist()] == [
        index_of(array, p) for p in others.tolist()
    ]
    edges = np.unique(np.append(others, [0, whole[-1] + 100]))
    assert counts_per_shard(found, edges) == counts_per_shard(array, edges)
    packed = pickle.loads(pickle.dumps(found))  # noqa: S301 - made here
    assert packed.tolist() == expected.tolist()
    mask = random.random(len(expected)) < 0.5
    inner = form(np.append(np.flatnonzero(mask), len(expected)))[:-1]
    assert list(select(found, inner)) == expected[mask].tolist() == list(select(found, mask))
    assert list(select(expected.view(PositionArray), inner)) == expected[mask].tolist()
    assert list(select(range(5, 5 + len(expected)), inner)) == [*(np.flatnonzero(mask) + 5)]


@pytest.mark.parametrize("density", [0.001, 0.02, 0.2, 0.9])
def test_views_of_many_samples_are_held_in_bits(density: float) -> None:
    """A mask, indices, and views of these have the positions that arrays have."""
    random = np.random.default_rng(1)
    mask = random.random(8_000_000 if density == 0.02 else 1_000_000) < density
    expected = np.flatnonzero(mask)
    for view in (select(range(len(mask)), mask), select(range(len(mask)), expected)):
        assert isinstance(view, BitPositions) == (density > 0.01)
        assert np.array_equal(view, expected)
        inner = random.random(len(expected)) < 0.5
        assert np.array_equal(select(view, inner), expected[inner])
        assert np.array_equal(select(view, slice(10, -10, 3)), expected[10:-10:3])
        indices = random.integers(0, len(expected), 10_000)
        assert np.array_equal(select(view, indices), expected[indices])
        assert np.array_equal(select(view, np.sort(indices)), expected[np.sort(indices)])


def test_evenly_spaced_positions_of_many_samples_are_a_range() -> None:
    """A mask that means a slice takes no memory."""
    mask = np.zeros(600_000, bool)
    mask[3::2] = True
    assert select(range(len(mask)), mask) == range(3, 600_000, 2)
    mask[400_001], mask[400_002] = False, True
    assert isinstance(select(range(len(mask)), mask), BitPositions)


def test_an_index_out_of_range_is_an_error() -> None:
    """As of a list, so that iteration by index ends."""
    with pytest.raises(IndexError):
        bits_of(np.array([3, 5]))[2]
