"""Which shards are read by range and which are fetched: never at more than twice the best cost."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wids.shards.range_budget import RangeBudget

SHARD_NBYTES = 1000
LARGE_NBYTES = 100 << 20


def transferred(reads: Sequence[int]) -> int:
    """Return the bytes transferred for reads of one shard, each by range or from its copy."""
    budget, total_nbytes = RangeBudget(1), 0
    for nbytes in reads:
        if not budget.takes(0, SHARD_NBYTES, nbytes):
            return total_nbytes + SHARD_NBYTES  # all later reads are of the copy
        total_nbytes += nbytes
    return total_nbytes


@given(st.lists(st.integers(1, SHARD_NBYTES), max_size=50))
@example([1] * 2000)
@example([SHARD_NBYTES])
@example([SHARD_NBYTES // 2 - 1, SHARD_NBYTES // 2])
def test_at_most_twice_the_best_choice(reads: list[int]) -> None:
    """Whatever is read, and whenever a program stops (decision 0093)."""
    for stop in range(len(reads) + 1):
        best = min(sum(reads[:stop]), SHARD_NBYTES)
        assert transferred(reads[:stop]) <= 2 * best


@given(st.lists(st.lists(st.integers(1, SHARD_NBYTES), max_size=20), max_size=5))
@example([[SHARD_NBYTES]] * 5)
def test_at_most_twice_what_is_read_of_a_copy_that_is_evicted(stays: list[list[int]]) -> None:
    """A full cache may cost a download again and again, but never more than that."""
    assert sum(map(transferred, stays)) <= 2 * sum(map(sum, stays))


@given(st.lists(st.integers(1, SHARD_NBYTES), max_size=50))
def test_what_can_be_fetched_for_as_much_is_fetched(reads: list[int]) -> None:
    """A shard of which all was read is fetched: the rule does not read by range for ever."""
    if sum(reads) >= SHARD_NBYTES:
        assert transferred(reads) < sum(reads) + SHARD_NBYTES
        budget = RangeBudget(1)
        assert not all(budget.takes(0, SHARD_NBYTES, nbytes) for nbytes in reads)


def test_each_shard_counts_for_itself() -> None:
    """Reads of one shard say nothing about others; a fetched one begins again."""
    budget = RangeBudget(2)
    assert budget.takes(0, SHARD_NBYTES, 400)
    assert not budget.takes(0, SHARD_NBYTES, 400)
    assert budget.takes(1, SHARD_NBYTES, 400)
    budget.note_fetched(0)
    assert budget.takes(0, SHARD_NBYTES, 400)


def test_an_announced_shard_is_fetched_at_once() -> None:
    """Also after a copy of it was evicted."""
    budget = RangeBudget(2)
    budget.announce([1])
    for _ in range(2):
        assert budget.is_spent(1, LARGE_NBYTES)
        assert not budget.takes(1, LARGE_NBYTES, 1)
        budget.note_fetched(1)
    assert budget.takes(0, LARGE_NBYTES, 1)


def test_meanwhile_batches_read_within_a_limit() -> None:
    """While announced shards are fetched ahead, large ones are read by range, up to a limit."""
    budget = RangeBudget(2)
    budget.announce([0, 1])
    assert not budget.takes(0, LARGE_NBYTES, 1)
    budget.let_ahead(100)
    assert not budget.takes(0, SHARD_NBYTES, 10)  # arrives as soon as its ranges would
    assert not budget.is_spent(0, LARGE_NBYTES)
    assert budget.takes(0, LARGE_NBYTES, 60)
    assert not budget.takes(1, LARGE_NBYTES, 60)
    assert budget.takes(1, LARGE_NBYTES, 40)
    assert budget.is_spent(1, LARGE_NBYTES)


def read_some(budget: RangeBudget) -> None:
    budget.takes(0, SHARD_NBYTES, 400)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_processes_count_together(method: str) -> None:
    """What a worker reads counts in the process that started it, however it was started."""
    budget = RangeBudget(1)
    worker = multiprocessing.get_context(method).Process(target=read_some, args=(budget,))
    worker.start()
    worker.join()
    assert not budget.takes(0, SHARD_NBYTES, 400)


def test_a_pickle_is_independent() -> None:
    """It begins with the values at that time."""
    budget = RangeBudget(1)
    budget.takes(0, SHARD_NBYTES, 400)
    copy = pickle.loads(pickle.dumps(budget))  # noqa: S301 - made here
    assert not copy.takes(0, SHARD_NBYTES, 400)
    copy.note_fetched(0)
    assert not budget.takes(0, SHARD_NBYTES, 400)
