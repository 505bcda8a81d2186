"""The samplers: length, epochs, ranks, state."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
import torch.utils.data
from conftest import raises

from wids import (
    ChunkedSampler,
    DistributedChunkedSampler,
    ShardedSampler,
    ShardListSampler,
    StateError,
)


class Lengths:
    """As much of a dataset as a sampler looks at."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = list(lengths)

    def __len__(self) -> int:
        return sum(self.lengths)


DATA = Lengths(8, 5, 7)


def distributed(num_replicas: int, data: Any = DATA, **others: Any) -> list[list[int]]:
    samplers = [
        DistributedChunkedSampler(data, num_replicas=num_replicas, rank=rank, **others)
        for rank in range(num_replicas)
    ]
    ranks = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(rank) for rank in ranks]
    return ranks


@pytest.mark.parametrize("kind", [ChunkedSampler, ShardListSampler, DistributedChunkedSampler])
def test_pass_has_every_index_once(kind: type[ChunkedSampler]) -> None:
    """One process reads all indices, in an order that is not theirs, and ``len`` says how many."""
    sampler = kind(DATA)

    indices = list(sampler)

    assert sorted(indices) == list(range(20))
    assert indices != sorted(indices)
    assert len(sampler) == 20
    assert {type(index) for index in indices} == {int}


def test_default_chunks_follow_shards() -> None:
    """A shard's indices come together, so that each shard is opened once an epoch."""
    shard_of = [0] * 8 + [1] * 5 + [2] * 7
    indices = list(ShardListSampler(DATA))

    visits = [shard_of[index] for index in indices]

    assert sum(a != b for a, b in pairwise(visits)) == 2
    assert ShardedSampler is ShardListSampler
    assert sorted(ShardListSampler(range(20), lengths=[3, 4])) == list(range(7))


@pytest.mark.parametrize(
    ("num_samples", "expected"),
    [
        (None, range(20)),
        (7, range(7)),
        ((3, 9), range(3, 9)),
        (0, []),
        ((5, 5), []),
        (20, range(20)),
    ],
)
def test_num_samples_is_a_count_or_a_range(num_samples: Any, expected: Any) -> None:
    """Zero means none, and a pair is half open."""
    assert sorted(ChunkedSampler(DATA, num_samples=num_samples)) == list(expected)
    union = {i for rank in distributed(2, num_samples=num_samples) for i in rank}
    assert union == set(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_samples": 21}, "within the dataset's 20 samples, found 21"),
        ({"num_samples": (3, 21)}, "found (3, 21)"),
        ({"num_samples": (9, 3)}, "found (9, 3)"),
        ({"num_samples": -1}, "num_samples: expected a whole number from 0 on, found -1"),
        ({"num_samples": 1.5}, "found 1.5"),
        ({"num_samples": True}, "found True"),
        ({"num_samples": (1, 2, 3)}, "found (1, 2, 3)"),
        ({"num_samples": (1,)}, "num_samples: expected a whole number from 0 on, found None"),
        ({"chunksize": True}, "chunksize: expected a whole number from 1 on, found True"),
        ({"chunksize": 0}, "chunksize: expected a whole number from 1 on, found 0"),
        ({"seed": -1}, "seed: expected a whole number from 0 on, found -1"),
    ],
)
def test_bad_settings_are_refused(arguments: dict[str, Any], message: str) -> None:
    """A number that cannot be is refused with what it could be."""
    for kind in (ChunkedSampler, DistributedChunkedSampler):
        with raises(ValueError, message):
            kind(DATA, **arguments)


def test_lengths_have_to_add_up() -> None:
    """A dataset whose lengths are not its own would lose samples."""

    class Wrong(Lengths):
        def __len__(self) -> int:
            return 21

    with raises(ValueError, "numbers that add up to the dataset's 21 samples, found 20"):
        ChunkedSampler(Wrong(8, 5, 7))


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ([15, -10], "found [15, -10]"),
        ([2.5, 3.5], "found [2.5, 3.5]"),
        ([[1, 2], [3, 4]], "found [[1, 2], [3, 4]]"),
        ([[1, 2], [3]], "found [[1, 2], [3]]"),
        ([None, 3], "found [None, 3]"),
        (len, "found <built-in function len>"),
        ([30], "found 30"),
    ],
)
def test_lengths_are_counts(lengths: Any, found: str) -> None:
    """What cannot be the samples of each shard is refused, with a way out."""
    with raises(ValueError, "lengths: expected", found, "range(len(dataset))"):
        ShardListSampler(range(20), lengths=lengths)

    class Odd:
        def __init__(self) -> None:
            self.lengths = lengths

        def __len__(self) -> int:
            return 20

    with raises(ValueError, "lengths: expected"):
        ChunkedSampler(Odd())


def test_numbers_of_numpy_are_numbers() -> None:
    """The state stays JSON, whatever kind of number or flag the settings were."""
    one, two, yes = np.int64(1), np.int64(2), np.bool_(1)
    sampler = DistributedChunkedSampler(
        DATA, num_replicas=two, rank=one, num_canonical=two, seed=one, shuffle=yes
    )
    plain = DistributedChunkedSampler(DATA, num_replicas=2, rank=1, num_canonical=2, seed=1)

    assert json.loads(json.dumps(sampler.state_dict())) == plain.state_dict()
    assert list(sampler) == list(plain)
    assert list(ChunkedSampler(DATA, chunksize=10**30)) == list(ChunkedSampler(DATA, chunksize=20))


def test_any_sized_dataset_will_do() -> None:
    """Without lengths, chunks are plain ranges."""
    assert sorted(ChunkedSampler(range(23), chunksize=5)) == list(range(23))


# Ranks


@pytest.mark.parametrize("num_replicas", range(1, 17))
def test_ranks_are_equal_for_every_length(num_replicas: int) -> None:
    """For every size and number of ranks: equal, together everything, at most one repeat each."""
    for n in range(60):
        ranks = distributed(num_replicas, Lengths(n // 2, n - n // 2), chunksize=7)
        assert len({len(rank) for rank in ranks}) == 1
        everything = [index for rank in ranks for index in rank]
        assert set(everything) == set(range(n))
        assert len(everything) - n < num_replicas

        ranks = distributed(num_replicas, Lengths(n), chunksize=7, drop_last=True)
        assert {len(rank) for rank in ranks} == {n // num_replicas}
        assert len({index for rank in ranks for index in rank}) == n // num_replicas * num_replicas

        ranks = distributed(num_replicas, Lengths(n), chunksize=7, even=False)
        assert sorted(index for rank in ranks for index in rank) == list(range(n))


def test_no_sample_is_favoured_for_ever() -> None:
    """What is repeated or left out changes from epoch to epoch."""
    sampler = DistributedChunkedSampler(Lengths(21), num_replicas=2, rank=0)
    dropping = DistributedChunkedSampler(Lengths(21), num_replicas=2, rank=1, drop_last=True)
    repeated, left_out = set(), set()
    for epoch in range(20):
        sampler.set_epoch(epoch)
        dropping.set_epoch(epoch)
        indices = list(sampler)
        repeated |= {index for index in indices if indices.count(index) > 1}
        left_out |= set(range(10, 21)) - set(dropping)

    assert len(repeated) > 3
    assert len(left_out) > 3


def test_share_is_fixed_or_dealt_anew() -> None:
    """A rank keeps its slice of the dataset, or with ``redeal`` gets another in each epoch."""
    for redeal, same in ((False, True), (True, False)):
        sampler = DistributedChunkedSampler(
            Lengths(*[10] * 20), num_replicas=4, rank=1, chunksize=10, redeal=redeal
        )
        shares = [set(sampler) for _ in range(2)]
        assert (shares[0] == shares[1]) is same


def test_ranks_need_no_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given ranks count, rank 0 too; then the environment of torchrun, looked up when needed."""
    assert distributed(4)[0] != distributed(4)[3]
    sampler = DistributedChunkedSampler(DATA)
    assert (sampler.rank, sampler.num_replicas, len(sampler)) == (0, 1, 20)

    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")

    assert (sampler.rank, sampler.num_replicas, len(sampler)) == (3, 4, 5)
    assert list(sampler) == distributed(4)[3]
    explicit = DistributedChunkedSampler(DATA, rank=0)
    assert list(explicit) == distributed(4)[0]


def test_process_group_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers set variables; the group is what the job has."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    sampler = DistributedChunkedSampler(DATA)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert (sampler.rank, sampler.num_replicas, len(sampler)) == (0, 1, 20)
    finally:
        dist.destroy_process_group()
    assert (sampler.rank, sampler.num_replicas) == (3, 4)


@pytest.mark.parametrize(
    ("name", "value"), [("WORLD_SIZE", "0"), ("WORLD_SIZE", ""), ("RANK", "a")]
)
def test_bad_environment_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is no number is refused under its name."""
    monkeypatch.setenv(name, value)
    with raises(ValueError, f"${name}: expected a whole number"):
        len(DistributedChunkedSampler(DATA))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_replicas": 2, "rank": 2}, "rank: expected 0 to 1, found 2"),
        ({"num_replicas": 2, "rank": -1}, "rank: expected a whole number from 0 on, found -1"),
        ({"num_replicas": 0}, "num_replicas: expected a whole number from 1 on, found 0"),
        ({"rank": "1"}, "rank: expected a whole number from 0 on, found '1'"),
        ({"rank": 1.0}, "found 1.0"),
        ({"drop_last": True, "even": False}, "choose one"),
        ({"num_canonical": 0}, "num_canonical: expected a whole number from 1 on, found 0"),
    ],
)
def test_bad_ranks_are_refused(arguments: dict[str, Any], message: str) -> None:
    """A rank that is none of the job's is refused at once where it can be."""
    with raises(ValueError, message):
        DistributedChunkedSampler(DATA, **arguments)


def test_canonical_has_to_fit() -> None:
    """Runs cannot be cut further."""
    sampler = DistributedChunkedSampler(DATA, num_replicas=4, rank=0, num_canonical=6)

    with raises(ValueError, "num_canonical: expected a multiple of the 4 ranks, found 6"):
        len(sampler)


def test_it_is_a_distributed_sampler() -> None:
    """Trainers look at the class and at torch's attributes."""
    sampler = DistributedChunkedSampler(DATA, num_replicas=3, rank=1, seed=5)

    assert isinstance(sampler, torch.utils.data.DistributedSampler)
    assert isinstance(sampler, ChunkedSampler)
    assert (sampler.num_samples, sampler.total_size) == (7, 21)
    assert (sampler.seed, sampler.epoch, sampler.shuffle, sampler.drop_last) == (5, 0, True, False)


# Epochs


def test_iter_alone_changes_nothing() -> None:
    """A pass that is not read to its end, and ``len``, leave the epoch alone (ORDER-8)."""
    sampler = ChunkedSampler(DATA)
    first = list(islice(sampler, 5))

    iter(sampler)

    assert list(islice(sampler, 5)) == first
    assert sampler.epoch == 0


def test_exhausted_pass_moves_on() -> None:
    """Without ``set_epoch``, each pass that was read to its end is followed by another order.

    ORDER-8.
    """
    sampler = ChunkedSampler(DATA)
    passes = [list(sampler) for _ in range(3)]

    assert sampler.epoch == 3
    assert passes[0] != passes[1] != passes[2]
    fixed = ChunkedSampler(DATA)
    for epoch, indices in enumerate(passes):
        fixed.set_epoch(epoch)
        assert list(fixed) == indices
        assert list(fixed) == indices, "a fixed epoch stays"


def test_pass_takes_its_epoch_when_it_begins() -> None:
    """What is set during a pass counts for the next one."""
    sampler = ChunkedSampler(DATA)
    expected = list(sampler)
    sampler.set_epoch(0)
    running = iter(sampler)
    start = list(islice(running, 3))
    sampler.set_epoch(5)

    assert start + list(running) == expected
    assert sampler.epoch == 5


# State


def test_resume_at_every_position() -> None:
    """A state is JSON, and what follows it is the tail of the epoch, then the next epoch.

    ORDER-9.
    """
    model = ChunkedSampler(DATA, chunksize=3)
    whole, following = list(model), list(model)
    for position in range(20):
        sampler = ChunkedSampler(DATA, chunksize=3)
        list(islice(sampler, position))
        state = json.loads(json.dumps(sampler.state_dict()))

        resumed = ChunkedSampler(DATA, chunksize=3)
        resumed.load_state_dict(state)

        assert list(resumed) == whole[position:]
        assert list(resumed) == following
        assert len(resumed) == 20


def test_state_at_the_end_is_the_next_start() -> None:
    """A finished pass restores to a full pass of the next epoch (ORDER-11)."""
    sampler = ChunkedSampler(DATA)
    list(sampler)
    following = ChunkedSampler(DATA)
    following.load_state_dict(sampler.state_dict())

    assert list(following) == list(sampler)


def test_set_epoch_keeps_or_clears_the_position() -> None:
    """The restored epoch keeps its position; any other is read in full (ORDER-11)."""
    sampler = ChunkedSampler(DATA)
    sampler.set_epoch(2)
    whole = list(sampler)
    list(islice(sampler, 7))
    state = sampler.state_dict()

    for epoch, expected in ((2, 13), (3, 20)):
        sampler.load_state_dict(state)
        sampler.set_epoch(epoch)
        indices = list(sampler)
        assert len(indices) == expected
        assert len(list(sampler)) == 20
    sampler.load_state_dict(state)
    assert list(sampler) == whole[7:]


def test_caller_says_what_was_consumed() -> None:
    """Workers run ahead, so the caller may count; a last batch may be counted as full."""
    sampler = ChunkedSampler(DATA)
    whole = list(sampler)
    sampler.set_epoch(0)
    list(islice(sampler, 12))
    sampler.load_state_dict(sampler.state_dict(num_consumed=8))
    assert list(islice(sampler, 4)) == whole[8:12]

    sampler.load_state_dict(sampler.state_dict(num_consumed=3))
    assert list(sampler) == whole[11:], "counted from where the pass began"
    sampler.set_epoch(0)
    iter(sampler)
    assert sampler.state_dict(num_consumed=24)["epoch"] == 1


def test_state_of_other_settings_is_refused() -> None:
    """Each difference is shown with both values (ORDER-10)."""
    state = ChunkedSampler(DATA, chunksize=3).state_dict()

    with raises(StateError, "chunksize: 3 in the state, 4 here", "seed: 0 in the state, 1 here"):
        ChunkedSampler(DATA, chunksize=4, seed=1).load_state_dict(state)
    with raises(StateError, "lengths: "):
        ChunkedSampler(Lengths(8, 6, 6), chunksize=3).load_state_dict(state)
    with raises(StateError, "of another order"):
        ChunkedSampler(DATA).load_state_dict({})


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ({"redeal": True}, {"redeal": False}),
        ({"drop_last": True}, {}),
        ({"even": False}, {}),
        ({"num_canonical": 4}, {"num_canonical": 2}),
        ({"num_samples": (0, 18)}, {"num_samples": (2, 20)}),
        ({"seed": 1}, {"seed": 2}),
        ({"chunksize": 3}, {"chunksize": 4}),
        ({"shuffle": False}, {}),
        ({"shufflefirst": False}, {}),
    ],
)
def test_every_setting_is_in_the_state(here: dict[str, Any], there: dict[str, Any]) -> None:
    """No setting that changes the order is overlooked (ORDER-10)."""
    state = DistributedChunkedSampler(DATA, num_replicas=2, rank=0, **here).state_dict()
    with raises(StateError, "of another order"):
        DistributedChunkedSampler(DATA, num_replicas=2, rank=0, **there).load_state_dict(state)


def test_state_after_a_restore_is_the_restored_one() -> None:
    """Whatever was read before, and whatever an old iterator does after."""
    sampler = ChunkedSampler(DATA)
    list(islice(sampler, 5))
    state = sampler.state_dict()
    old = iter(sampler)
    next(old)

    sampler.load_state_dict(state)
    assert sampler.state_dict() == state
    sampler.set_epoch(0)
    assert len(list(old)) == 19, "an iterator from before goes on"
    sampler.load_state_dict({**state, "epoch": 3, "position": 5})
    old = iter(sampler)
    next(old)
    sampler.load_state_dict(state)
    list(old)
    assert sampler.state_dict() == state, "its end is not that of another epoch"


def test_state_is_of_the_epoch_that_was_set() -> None:
    """After ``set_epoch`` of another epoch, a state is at its start."""
    sampler = ChunkedSampler(DATA)
    for count in (7, None):
        sampler.set_epoch(0)
        list(islice(sampler, count))
        sampler.set_epoch(5)
        state = sampler.state_dict()
        assert (state["epoch"], state["position"]) == (5, 0)
    assert sampler.state_dict(num_consumed=3)["position"] == 3, "counted from the start to come"


def test_state_is_carried_over_to_other_ranks() -> None:
    """At a multiple of the canonical number, a state restores on any number that divides it.

    ORDER-9, ORDER-10.
    """

    def samplers(num_replicas: int) -> list[DistributedChunkedSampler]:
        return [
            DistributedChunkedSampler(
                Lengths(30, 17), num_replicas=num_replicas, rank=rank, num_canonical=4, chunksize=5
            )
            for rank in range(num_replicas)
        ]

    expected = sorted(index for sampler in samplers(4) for index in sampler)
    for before, after in ((4, 1), (4, 2), (2, 4), (1, 4), (2, 1), (1, 2), (2, 2)):
        old = samplers(before)
        done = [index for sampler in old for index in islice(sampler, 8 // before * 2)]
        states = [sampler.state_dict() for sampler in old]
        assert all(state == states[0] for state in states)
        for sampler in samplers(after):
            sampler.load_state_dict(states[0])
            done += sampler
        assert sorted(done) == expected


def test_state_between_rounds_stays_on_its_ranks() -> None:
    """In the middle of a round, another number of ranks is refused, the same one is not.

    ORDER-10.
    """
    sampler = DistributedChunkedSampler(DATA, num_replicas=2, rank=0, num_canonical=4)
    list(islice(sampler, 3))
    state = sampler.state_dict()

    sampler.load_state_dict(state)
    one = DistributedChunkedSampler(DATA, num_replicas=1, rank=0, num_canonical=4)
    with raises(StateError, "saved on 2 ranks at position 6", "multiple of num_canonical=4"):
        one.load_state_dict(state)


@pytest.mark.parametrize(
    "damage",
    [
        {"position": None},
        {"position": "x"},
        {"position": 10**6},
        {"epoch": -1},
        {"num_replicas": 0},
    ],
)
def test_damaged_state_is_refused(damage: dict[str, Any]) -> None:
    """A state that lost a part, or is none at all, is a ``StateError``."""
    sampler = ChunkedSampler(DATA)
    with raises(StateError, "the state is damaged: ", next(iter(damage))):
        sampler.load_state_dict({**sampler.state_dict(), **damage})
    with raises(StateError, "of another order"):
        sampler.load_state_dict(None)  # type: ignore[arg-type]
