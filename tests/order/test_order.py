"""Orders as pure functions: chunks, permutations, runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wids.order.epoch_order import OrderSettings, chunk_edges, permutation, rank_blocks


def made(lengths: list[int], **others: object) -> OrderSettings:
    values = {"start": 0, "stop": sum(lengths), "chunksize": 5, **others}
    return OrderSettings(np.array(lengths, np.int64), **values)  # type: ignore[arg-type]


def indices(settings: OrderSettings, *where: int) -> list[int]:
    return [int(i) for block in rank_blocks(settings, *where) for i in block]


@pytest.mark.parametrize(
    ("lengths", "start", "stop", "chunksize", "edges"),
    [
        ([10], 0, 10, 5, [0, 5, 10]),
        ([11], 0, 11, 5, [0, 3, 7, 11]),  # three near-equal pieces, not 5 + 5 + 1
        ([2, 2, 2], 0, 6, 5, [0, 4, 6]),  # short ones are joined up to the chunk size
        ([2, 3, 2, 3], 0, 10, 5, [0, 5, 10]),
        ([5, 5], 0, 10, 5, [0, 5, 10]),
        ([6, 2, 2], 0, 10, 5, [0, 3, 6, 10]),  # pieces of a long shard are not joined
        ([2, 6, 2], 0, 10, 5, [0, 2, 5, 8, 10]),
        ([0, 3, 0, 0, 4, 0], 0, 7, 5, [0, 3, 7]),
        ([8, 8], 3, 13, 5, [3, 8, 13]),  # the parts of shards in a range
        ([8, 8], 5, 11, None, [5, 8, 11]),
        ([3, 3], 3, 3, 5, [3]),
        ([], 0, 0, 5, [0]),
    ],
)
def test_chunks_follow_shards(
    lengths: list[int], start: int, stop: int, chunksize: int | None, edges: list[int]
) -> None:
    """Long shards are cut into near-equal chunks, short neighbours are joined (ORDER-4)."""
    assert chunk_edges(np.array(lengths, np.int64), start, stop, chunksize).tolist() == edges


@given(
    st.lists(st.integers(0, 40), max_size=12), st.integers(1, 15), st.floats(0, 1), st.floats(0, 1)
)
def test_chunks_tile_the_range(lengths: list[int], chunksize: int, low: float, high: float) -> None:
    """Chunks cover the range, are at most as long as allowed, and cross no edge of a long shard."""
    total = sum(lengths)
    start, stop = sorted((int(low * total), int(high * total)))

    edges = chunk_edges(np.array(lengths, np.int64), start, stop, chunksize)

    sizes = np.diff(edges)
    assert (edges[0], edges[-1]) == (start, stop)
    assert ((sizes > 0) & (sizes <= chunksize)).all()
    for end, length in zip(np.cumsum(lengths), lengths, strict=True):
        for edge in (end - length, end):
            if length > chunksize and start + chunksize < edge < stop - chunksize:
                assert edge in edges


@given(st.integers(0, 300), st.integers(0, 2**70), st.lists(st.integers(0, 2**32 - 1), max_size=4))
def test_permutation_has_each_position_once(length: int, seed: int, key: list[int]) -> None:
    """Each position occurs once, and a second call returns the same."""
    found = permutation(length, seed, *key)

    assert sorted(found.tolist()) == list(range(length))
    np.testing.assert_array_equal(found, permutation(length, seed, *key))


def test_permutations_are_uniform() -> None:
    """Over many keys, each element is equally likely in each place."""
    counts = np.zeros((5, 5), int)
    for key in range(4000):
        counts[np.arange(5), permutation(5, 0, key)] += 1

    assert abs(counts - 800).max() < 150


def test_empty_run_borrows_from_the_nearest() -> None:
    """With fewer indices than runs, an empty run repeats the nearest one's (ORDER-3)."""
    few = made([3], num_runs=12)

    runs = [next(rank_blocks(few, 0, 0, run, 12)).tolist()[0] for run in range(12)]

    # Only runs 3, 7 and 11 have their own index.
    assert runs == [0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2]


def test_chunks_are_read_one_after_another() -> None:
    """All indices of a chunk come before any of the next chunk (ORDER-5)."""
    order_of_epoch = indices(made([10, 10, 10]), 0, 0, 0, 1)

    chunks = [sorted(order_of_epoch[i : i + 5]) for i in range(0, 30, 5)]

    assert sorted(chunks) == [list(range(i, i + 5)) for i in range(0, 30, 5)]
    assert chunks != sorted(chunks)


def test_shufflefirst_false_keeps_chunks_in_epoch_zero() -> None:
    """Only epoch 0 keeps the order of chunks; indices inside them are shuffled (ORDER-5)."""
    settled = made([30], shufflefirst=False)

    first, second = (indices(settled, 0, epoch, 0, 1) for epoch in (0, 1))

    assert [i // 5 for i in first] == sorted(i // 5 for i in first)
    assert first != sorted(first)
    assert [i // 5 for i in second] != sorted(i // 5 for i in second)


def test_unshuffled_is_ascending() -> None:
    """Without shuffling, a run yields its range (ORDER-5)."""
    assert indices(made([7, 6], shuffle=False, start=2, stop=11), 0, 5, 0, 1) == list(range(2, 11))


def test_streams_differ() -> None:
    """Seeds, epochs and runs never repeat one another, not even for equal sums (ORDER-7)."""
    wide = made([64], chunksize=64, num_runs=1)
    seen = {tuple(indices(wide, seed, epoch, 0, 1)) for seed in range(8) for epoch in range(8)}
    assert len(seen) == 64

    two = made([128], chunksize=64, num_runs=2)
    first, second = (indices(two, 0, 0, rank, 2) for rank in (0, 1))
    assert first != [index - 64 for index in second]


def test_very_long_ranges_are_cut_exactly() -> None:
    """Products of lengths that exceed 64 bits do not overflow."""
    edges = chunk_edges(np.array([10**15], np.int64), 0, 10**15, 10**9)

    assert (edges[0], edges[-1], len(edges)) == (0, 10**15, 10**6 + 1)
    assert (np.diff(edges) == 10**9).all()
