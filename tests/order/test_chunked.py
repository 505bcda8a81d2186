"""Samplers for one rank: every index once, epoch by epoch."""

from __future__ import annotations

import doctest
from itertools import islice, pairwise
from types import ModuleType

import pytest
from ranks import DATA

from wids import ChunkedSampler, DistributedChunkedSampler, ShardedSampler, ShardListSampler
from wids.order import samplers, sampling_cost


@pytest.mark.parametrize("kind", [ChunkedSampler, ShardListSampler, DistributedChunkedSampler])
def test_pass_has_every_index_once(kind: type[ChunkedSampler]) -> None:
    """A single process reads all indices in a shuffled order, and ``len`` is their number."""
    sampler = kind(DATA)

    indices = list(sampler)

    assert sorted(indices) == list(range(20))
    assert indices != sorted(indices)
    assert len(sampler) == 20
    assert {type(index) for index in indices} == {int}


def test_default_chunks_follow_shards() -> None:
    """The indices of a shard come together, so each shard is opened once per epoch."""
    shard_of = [0] * 8 + [1] * 5 + [2] * 7
    indices = list(ShardListSampler(DATA))

    visits = [shard_of[index] for index in indices]

    assert sum(a != b for a, b in pairwise(visits)) == 2
    assert ShardedSampler is ShardListSampler
    assert sorted(ShardListSampler(range(20), lengths=[3, 4])) == list(range(7))


def test_data_without_lengths_is_cut_into_ranges() -> None:
    """Anything with ``len()`` will do; without lengths, chunks are plain ranges."""
    assert sorted(ChunkedSampler(range(23), chunksize=5)) == list(range(23))


def test_iter_alone_changes_nothing() -> None:
    """``iter`` and an incomplete pass leave the epoch as it is (ORDER-8)."""
    sampler = ChunkedSampler(DATA)
    first = list(islice(sampler, 5))

    iter(sampler)

    assert list(islice(sampler, 5)) == first
    assert sampler.epoch == 0


def test_complete_pass_advances_the_epoch() -> None:
    """Without ``set_epoch``, each complete pass is followed by one in another order (ORDER-8)."""
    sampler = ChunkedSampler(DATA)
    passes = [list(sampler) for _ in range(3)]

    assert sampler.epoch == 3
    assert passes[0] != passes[1] != passes[2]
    fixed = ChunkedSampler(DATA)
    for epoch, indices in enumerate(passes):
        fixed.set_epoch(epoch)
        assert list(fixed) == indices
        assert list(islice(fixed, 5)) == indices[:5], "a fixed epoch stays"


@pytest.mark.parametrize("kind", [ChunkedSampler, ShardListSampler, DistributedChunkedSampler])
def test_second_full_pass_of_a_fixed_epoch_warns_once(kind: type[ChunkedSampler]) -> None:
    """``set_epoch`` called once, before the loop, gives the same order for ever (ORDER-14)."""
    sampler = kind(DATA)
    sampler.set_epoch(0)
    first = list(sampler)
    list(islice(sampler, 19))  # not a full pass

    with pytest.warns(UserWarning, match=r"second full pass.*epoch 0.*set_epoch\(epoch\)"):
        assert list(sampler) == first
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) == list(sampler)


def test_repeated_orders_on_purpose_do_not_warn() -> None:
    """Ascending indices, epochs that are set before each pass, and epochs that advance (ORDER-14).

    Warnings are errors in the tests.
    """
    ascending = ChunkedSampler(DATA, shuffle=False)
    ascending.set_epoch(0)
    set_each_time, advancing = ChunkedSampler(DATA), ChunkedSampler(DATA)
    for _ in range(3):
        assert list(ascending) == list(range(20))
        set_each_time.set_epoch(0)
        list(set_each_time)
        list(advancing)


def test_restored_pass_is_not_a_full_one() -> None:
    """The rest of an epoch does not count, and so a trainer that resumes never warns (ORDER-14)."""
    before, after = ChunkedSampler(DATA), ChunkedSampler(DATA)
    before.set_epoch(3)
    list(islice(before, 8))
    after.load_state_dict(before.state_dict(8))
    rest = list(after)
    assert list(after)[8:] == rest
    with pytest.warns(UserWarning, match="epoch 3"):
        list(after)


def test_pass_takes_its_epoch_when_it_begins() -> None:
    """An epoch that is set during a pass counts for the next pass."""
    sampler = ChunkedSampler(DATA)
    expected = list(sampler)
    sampler.set_epoch(0)
    running = iter(sampler)
    start = list(islice(running, 3))
    sampler.set_epoch(5)

    assert start + list(running) == expected
    assert sampler.epoch == 5


@pytest.mark.parametrize("module", [samplers, sampling_cost], ids=lambda module: module.__name__)
def test_examples_run(module: ModuleType) -> None:
    """The examples in the docstrings print what they say."""
    assert doctest.testmod(module).failed == 0
