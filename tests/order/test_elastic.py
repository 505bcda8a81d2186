"""States of samplers: saved, restored, carried over to other ranks, refused."""

from __future__ import annotations

import json
import warnings
from itertools import islice
from typing import Any

import pytest
from conftest import raises
from ranks import DATA, Lengths
from torch.utils.data import ConcatDataset

import wids
from wids import BucketBatchSampler, ChunkedSampler, DistributedChunkedSampler, StateError


def test_resume_at_every_position() -> None:
    """A restored sampler yields the rest of the epoch, then the next epoch (ORDER-9)."""
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
    """The state after a complete pass restores to the start of the next epoch (ORDER-11)."""
    sampler = ChunkedSampler(DATA)
    list(sampler)
    following = ChunkedSampler(DATA)
    following.load_state_dict(sampler.state_dict())

    assert list(following) == list(sampler)


def test_set_epoch_keeps_or_clears_the_position() -> None:
    """The restored epoch keeps its position; another epoch starts at 0 (ORDER-11)."""
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
        assert len(list(islice(sampler, 20))) == 20
    sampler.load_state_dict(state)
    assert list(sampler) == whole[7:]


@pytest.mark.parametrize("num_samples", [0, 20])
def test_only_a_pass_of_the_set_epoch_waits_for_a_restore(num_samples: int) -> None:
    """An iterator of an earlier epoch, unread or ended, does not make a restore wait (ORDER-11)."""
    state = ChunkedSampler(range(num_samples)).state_dict() | {"epoch": 3, "position": num_samples}
    sampler = ChunkedSampler(range(num_samples))
    _unread = list(sampler) if not num_samples else iter(sampler)
    sampler.set_epoch(1)
    sampler.load_state_dict(state)
    assert sampler.epoch == 3


def test_caller_can_count_consumed_samples() -> None:
    """Workers run ahead, so the caller may count; the last batch may count as full."""
    sampler = ChunkedSampler(DATA)
    whole = list(sampler)
    sampler.set_epoch(0)
    list(islice(sampler, 12))
    sampler.load_state_dict(sampler.state_dict(num_consumed=8))
    assert list(islice(sampler, 4)) == whole[8:12]

    sampler.load_state_dict(sampler.state_dict(num_consumed=3))
    assert list(sampler) == whole[11:], "counted from where the pass began"
    sampler.set_epoch(0)
    list(sampler)
    assert sampler.state_dict(num_consumed=24)["epoch"] == 1


def test_a_count_that_never_was_is_refused() -> None:
    """More than was handed out is a count over all ranks, or over earlier passes."""
    sampler = DistributedChunkedSampler(range(40_000), num_replicas=4, rank=1, chunksize=100)
    list(islice(sampler, 800))
    with raises(
        ValueError,
        "num_consumed: expected at most the 800 samples that this sampler has handed out",
        "found 3200; pass what training on this rank has used since the pass began",
        "not what all ranks or earlier passes have",
    ):
        sampler.state_dict(num_consumed=3200)
    assert sampler.state_dict(num_consumed=800)["position"] == 3200
    assert sampler.state_dict(num_consumed=500)["position"] == 2000, "loaders run ahead"


def test_state_of_other_settings_is_refused() -> None:
    """The error shows both values of each difference (ORDER-10)."""
    state = ChunkedSampler(DATA, chunksize=3).state_dict()

    with raises(StateError, "chunksize: expected 4, found 3", "seed: expected 1, found 0"):
        ChunkedSampler(DATA, chunksize=4, seed=1).load_state_dict(state)
    with raises(StateError, "lengths: "):
        ChunkedSampler(Lengths(8, 6, 6), chunksize=3).load_state_dict(state)
    with raises(StateError, "state: expected what state_dict() returned, with", "found no epoch"):
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
    """Every setting that changes the order is compared (ORDER-10)."""
    state = DistributedChunkedSampler(DATA, num_replicas=2, rank=0, **here).state_dict()
    with raises(StateError, "belongs to another order"):
        DistributedChunkedSampler(DATA, num_replicas=2, rank=0, **there).load_state_dict(state)


def test_a_changed_dataset_is_named() -> None:
    """The error says that the dataset changed, and not the settings."""
    state = wids.ShardListSampler(range(20), lengths=[9, 11]).state_dict()
    with raises(StateError, "the dataset has changed since the state was saved"):
        wids.ShardListSampler(range(30), lengths=[9, 11, 10]).load_state_dict(state)


def test_restored_state_is_returned_again() -> None:
    """Earlier passes and old iterators do not change a restored state."""
    sampler = ChunkedSampler(DATA)
    list(islice(sampler, 5))
    state = sampler.state_dict()
    old = iter(sampler)
    next(old)

    sampler.load_state_dict(state)
    assert sampler.state_dict() == state
    sampler.set_epoch(0)
    assert len(list(old)) == 19, "an old iterator continues"
    sampler.load_state_dict({**state, "epoch": 3, "position": 5})
    old = iter(sampler)
    next(old)
    sampler.load_state_dict(state)
    list(old)
    assert sampler.state_dict() == state, "the end of an old iterator belongs to another epoch"


def test_state_belongs_to_the_epoch_that_was_set() -> None:
    """After ``set_epoch`` of another epoch, the state is the start of that epoch."""
    sampler = ChunkedSampler(DATA)
    for count in (7, None):
        sampler.set_epoch(0)
        list(islice(sampler, count))
        sampler.set_epoch(5)
        state = sampler.state_dict()
        assert (state["epoch"], state["position"]) == (5, 0)
    assert sampler.state_dict(num_consumed=3)["position"] == 3, (
        "counted from the start of the next pass"
    )


def test_state_is_carried_over_to_other_ranks() -> None:
    """After full rounds a state restores on any divisor of num_canonical (ORDER-9, ORDER-10)."""

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


@pytest.mark.parametrize("options", [{}, {"redeal": True}, {"drop_last": True}])
def test_any_number_of_ranks_after_a_failure(options: dict[str, Any]) -> None:
    """8 ranks, then 6, 7, 16, 3, 16 and 8: each sample comes once, and the next epoch is whole.

    Fewer than the ranks come again at the end, or are left out (ORDER-50, ORDER-51).
    """
    data = Lengths(301, 0, 200, 502)

    def samplers(num_replicas: int) -> list[DistributedChunkedSampler]:
        made = [
            DistributedChunkedSampler(
                data, num_replicas=num_replicas, rank=rank, chunksize=50, **options
            )
            for rank in range(num_replicas)
        ]
        for sampler in made if state else ():
            sampler.load_state_dict(state)
        return made

    state: dict[str, Any] = {}
    seen: list[int] = []
    for num_replicas, steps in ((8, 31), (6, 17), (7, 1), (16, 9), (3, 40), (16, 2)):
        ranks = samplers(num_replicas)
        seen += [index for rank in ranks for index in islice(rank, steps)]
        (state,) = {json.dumps(rank.state_dict()): rank.state_dict() for rank in ranks}.values()
    assert len(seen) == len(set(seen))
    assert state["history"] == [[8, 31], [6, 17], [7, 1], [16, 9], [3, 40]]
    ranks = samplers(8)
    seen += [index for rank in ranks for index in rank]
    assert len(seen) - len(set(seen)) <= (0 if "drop_last" in options else 7)
    assert 1003 - len(set(seen)) <= (7 if "drop_last" in options else 0)
    assert ranks[0].state_dict() == ranks[7].state_dict()
    assert (ranks[0].epoch, ranks[0].state_dict()["history"]) == (1, [])
    fresh = DistributedChunkedSampler(data, num_replicas=8, rank=5, chunksize=50, **options)
    fresh.set_epoch(1)
    assert list(ranks[5]) == list(fresh)


def test_ranks_that_read_nothing_change_nothing() -> None:
    """A job that fails before its first step leaves the order as it was (ORDER-50)."""
    state = DistributedChunkedSampler(DATA, num_replicas=2, rank=0).state_dict(num_consumed=4)
    other = DistributedChunkedSampler(DATA, num_replicas=3, rank=0)
    other.load_state_dict(state)
    same = DistributedChunkedSampler(DATA, num_replicas=2, rank=0)
    same.load_state_dict(other.state_dict())
    assert same.state_dict() == state
    assert list(same) == list(DistributedChunkedSampler(DATA, num_replicas=2, rank=0))[4:]


@pytest.mark.parametrize("num_others", [1, 2, 4, 5])
def test_runs_end_as_if_the_job_had_never_left(num_others: int) -> None:
    """A part in which nothing was read does not count, nor for what is repeated (ORDER-50)."""
    data = Lengths(7)

    def samplers(num_replicas: int) -> list[DistributedChunkedSampler]:
        options = {"num_replicas": num_replicas, "chunksize": 3}
        return [DistributedChunkedSampler(data, rank=r, **options) for r in range(num_replicas)]

    whole = [list(sampler) for sampler in samplers(3)]
    assert sum(map(len, whole)) == 9  # two come again
    state = samplers(3)[0].state_dict(num_consumed=2)
    rest = []
    for sampler in samplers(3):
        other = samplers(num_others)[0]
        other.load_state_dict(state)
        sampler.load_state_dict(other.state_dict())
        rest.append(list(sampler))
    assert rest == [indices[2:] for indices in whole]
    # Two come again that were read before; a new part would repeat the only one that is left.
    assert len({index for indices in rest for index in indices}) == 3


def test_the_length_counts_what_other_ranks_have_read() -> None:
    """Trainers count steps up to ``len``: those of the whole epoch, on any ranks (ORDER-52)."""
    state = DistributedChunkedSampler(DATA, num_replicas=4, rank=0).state_dict(num_consumed=2)
    sampler = DistributedChunkedSampler(DATA, num_replicas=3, rank=0)
    sampler.load_state_dict(state)
    assert len(sampler) == 2 + 4
    assert len(list(sampler)) == 4
    assert len(sampler) == 7


def test_a_rest_that_ranks_cannot_share_is_left_out() -> None:
    """With ``drop_last``, fewer samples than ranks are no epoch: the next one begins."""
    state = DistributedChunkedSampler(DATA, num_replicas=2, rank=0, drop_last=True).state_dict(
        num_consumed=9
    )
    sampler = DistributedChunkedSampler(DATA, num_replicas=3, rank=0, drop_last=True)
    sampler.load_state_dict(state)
    assert (sampler.epoch, len(list(sampler))) == (1, 6)


def test_a_state_with_num_canonical_resumes_without_it() -> None:
    """A job that has fixed its runs resumes on ranks that do not divide them, by leaving it out."""
    whole = DistributedChunkedSampler(DATA, num_replicas=2, rank=0, num_canonical=4)
    state = whole.state_dict(num_consumed=3)
    five = [DistributedChunkedSampler(DATA, num_replicas=5, rank=rank) for rank in range(5)]
    seen = list(islice(whole, 3))
    other = DistributedChunkedSampler(DATA, num_replicas=2, rank=1, num_canonical=4)
    seen += islice(other, 3)
    for sampler in five:
        sampler.load_state_dict(state)
        seen += sampler
    assert five[0].state_dict()["epoch"] == 1
    assert set(seen) == set(range(20))
    assert len(seen) == 21
    with raises(
        ValueError, "which 1, 2 or 4 ranks can share; without num_canonical, a job resumes on any"
    ):
        len(DistributedChunkedSampler(DATA, num_replicas=5, rank=0, num_canonical=4))


@pytest.mark.parametrize(
    "history", [3, [[2]], [["2", 1]], [[2, -1]], [[2, 10**6]], [[2, 1, 3]], [[2, 1, 2, 2]]]
)
def test_damaged_history_is_refused(history: Any) -> None:
    """A history that no job can have is a ``StateError``, as any damage is."""
    sampler = ChunkedSampler(DATA)
    state = sampler.state_dict()
    state["history"] = history
    with raises(StateError, "the state is damaged: "):
        sampler.load_state_dict(state)


@pytest.mark.parametrize(
    "damage",
    [
        {"position": None},
        {"position": "x"},
        {"position": 10**6},
        {"position": 3, "num_replicas": 2},
        {"epoch": -1},
        {"num_replicas": 0},
    ],
)
def test_damaged_state_is_refused(damage: dict[str, Any]) -> None:
    """A state with missing or impossible parts, or no state at all, is a ``StateError``."""
    sampler = ChunkedSampler(DATA)
    with raises(StateError, "the state is damaged: ", next(iter(damage))):
        sampler.load_state_dict({**sampler.state_dict(), **damage})
    for nothing in (None, "{}"):
        with raises(StateError, "state: expected the dict that state_dict() returned, found"):
            sampler.load_state_dict(nothing)  # type: ignore[arg-type]


def shards(*names: str, **facts: Any) -> wids.ShardListDataset:
    """Return a dataset of shards of ten samples, which need not exist."""
    made = [wids.ShardSpec(name, 10, **facts) for name in names]
    return wids.ShardListDataset(wids.DatasetSpec(tuple(made), name=names[-1][1:2]))


A = shards("/a/0.tar", "/a/1.tar", nbytes=500)


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (shards("/b/0.tar", "/b/2.tar", nbytes=500), "names"),
        (shards("/b/0.tar", "/b/1.tar", nbytes=501), "filesize"),
        (shards("https://b.example/2.tar?key=1", "/b/1.tar", nbytes=7), "filesize and names"),
        (shards("https://b.example/0.tar?key=1", "/b/1.tar", nbytes=500), None),
        (shards("/b/0.tar", "/b/1.tar"), None),
        (shards("/b/0.tar", "/b/1.tar", nbytes=500, sha256="0" * 64), None),
        (shards("/b/0.tar", "/b/1.tar", nbytes=500)[:], None),
        (Lengths(10, 10), None),
    ],
)
@pytest.mark.parametrize("is_batched", [False, True])
def test_a_state_of_another_dataset_warns(
    other: Any, differs: str | None, is_batched: bool, recwarn: pytest.WarningsRecorder
) -> None:
    """Where both specs state a fact, and it is not the same; the order is that of the state.

    Copies elsewhere, and facts that are added later, do not warn (ORDER-79).
    """

    def made(dataset: Any) -> Any:
        sampler = ChunkedSampler(dataset)
        return BucketBatchSampler(sampler, [0] * 20, 2) if is_batched else sampler

    state = json.loads(json.dumps(made(A).state_dict(num_consumed=4)))
    restored = made(other)
    restored.load_state_dict(state)
    restored.load_state_dict(state)

    assert list(restored) == list(made(A).ahead())[4:]
    text = (
        f"expected the dataset of the state 'a', found 'b' another: shards of the same lengths, "
        f"whose {differs} in the spec differ. The position stays, and has other samples; if that "
        "is not meant, open the dataset that the state was saved with"
    )
    found = [str(each.message).partition(": ")[2] for each in recwarn]
    assert found == [text] * (differs is not None)


def test_digests_of_many_shards_and_of_several_datasets() -> None:
    """Ten thousand shards cost as little as 4,096; torch's wrappers have those of all parts."""
    many = shards(*[f"/a/{number}.tar" for number in range(10_000)])
    other = shards(*[f"/a/{number + (number > 9000)}.tar" for number in range(10_000)])
    found = [json.loads(ChunkedSampler(each).state_dict()["spec"]) for each in (many, other)]
    assert found[0]["names"] != found[1]["names"]
    assert set(found[0]) == {"name", "names", "num_shards"}
    joined = ConcatDataset([A[:], A])
    one = json.loads(ChunkedSampler(A).state_dict()["spec"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such a dataset reads sample by sample
        two = json.loads(ChunkedSampler(joined).state_dict()["spec"])
    assert two == {fact: f"{value}+{value}" for fact, value in one.items()}


@pytest.mark.parametrize("is_batched", [False, True])
@pytest.mark.parametrize("count", [2, 3])
def test_skipped_items_are_part_of_the_state(count: int, *, is_batched: bool) -> None:
    """A restored sampler skips what is counted as consumed, as if it had been read (ORDER-9).

    So do later states, on any number of ranks; more than is left is an error.
    """

    def job(num_replicas: int) -> list[Any]:
        ranks = [
            DistributedChunkedSampler(DATA, chunksize=3, num_replicas=num_replicas, rank=rank)
            for rank in range(num_replicas)
        ]
        return [BucketBatchSampler(each, [0] * 20, 2) if is_batched else each for each in ranks]

    read, skipped = job(2), job(2)
    for sampler in read:
        list(islice(sampler, 3))
    for sampler in skipped:
        sampler.load_state_dict(sampler.state_dict(num_consumed=1))
        sampler.load_state_dict(sampler.state_dict(num_consumed=2))
    states = [sampler.state_dict() for sampler in (*read, *skipped)]
    rests = []
    for state in states:
        resumed = job(count)
        for sampler in resumed:
            sampler.load_state_dict(state)
        rests.append([list(sampler) for sampler in resumed])

    assert all(state == states[0] for state in states)
    assert all(rest == rests[0] for rest in rests)
    left = len(skipped[0]) - 3
    with raises(ValueError, f"expected at most the {left} ", "found 30"):
        skipped[0].state_dict(num_consumed=30)
