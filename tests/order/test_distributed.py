"""Samplers for many ranks: equal shares, and how a rank is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
import torch.utils.data
from conftest import raises
from ranks import DATA, Lengths, distributed

from wids import ChunkedSampler, DistributedChunkedSampler

NUM_REPLICAS = [
    pytest.param(count, marks=() if count in (1, 2, 3, 5, 8, 16) else pytest.mark.seeds)
    for count in range(1, 17)
]


@pytest.mark.parametrize("num_replicas", NUM_REPLICAS)
def test_ranks_are_equal_for_every_length(num_replicas: int) -> None:
    """For any size and number of ranks: equal, complete together, at most one repeat each."""
    for n in (*range(2 * num_replicas + 2), 57, 58, 59):
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


def test_repeated_and_dropped_samples_vary() -> None:
    """Each epoch repeats or leaves out other samples."""
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


def test_redeal_changes_the_share_of_a_rank() -> None:
    """A rank has the same slice of the dataset in each epoch, or another one with ``redeal``."""
    for redeal, same in ((False, True), (True, False)):
        sampler = DistributedChunkedSampler(
            Lengths(*[10] * 20), num_replicas=4, rank=1, chunksize=10, redeal=redeal
        )
        shares = [set(sampler) for _ in range(2)]
        assert (shares[0] == shares[1]) is same


def test_ranks_need_no_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """An explicit rank wins, 0 too; then the environment of torchrun, read at first use."""
    assert distributed(4)[0] != distributed(4)[3]
    sampler = DistributedChunkedSampler(DATA)
    assert (sampler.rank, sampler.num_replicas, len(sampler)) == (0, 1, 20)

    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")

    assert (sampler.rank, sampler.num_replicas, len(sampler)) == (3, 4, 5)
    assert list(sampler) == distributed(4)[3]
    explicit = DistributedChunkedSampler(DATA, rank=0)
    assert list(explicit) == distributed(4)[0]


def test_process_group_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers set variables, but the process group is what the job really uses."""
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
    """The error names the environment variable."""
    monkeypatch.setenv(name, value)
    with raises(ValueError, f"${name}: expected an integer"):
        len(DistributedChunkedSampler(DATA))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_replicas": 2, "rank": 2}, "rank: expected 0 to 1, found 2"),
        ({"num_replicas": 2, "rank": -1}, "rank: expected an integer of at least 0, found -1"),
        ({"num_replicas": 0}, "num_replicas: expected an integer of at least 1, found 0"),
        ({"rank": "1"}, "rank: expected an integer of at least 0, found '1'"),
        ({"rank": 1.0}, "found 1.0"),
        ({"drop_last": True, "even": False}, "choose one"),
        ({"num_canonical": 0}, "num_canonical: expected an integer of at least 1, found 0"),
    ],
)
def test_bad_ranks_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Impossible ranks and numbers are refused by the constructor."""
    with raises(ValueError, message):
        DistributedChunkedSampler(DATA, **arguments)


def test_canonical_has_to_fit() -> None:
    """A number of runs that ranks cannot share equally is refused."""
    sampler = DistributedChunkedSampler(DATA, num_replicas=4, rank=0, num_canonical=6)

    with raises(ValueError, "num_canonical: expected a multiple of the 4 ranks, found 6"):
        len(sampler)


def test_it_is_a_distributed_sampler() -> None:
    """Trainers rely on the class and on torch's attributes."""
    sampler = DistributedChunkedSampler(DATA, num_replicas=3, rank=1, seed=5)

    assert isinstance(sampler, torch.utils.data.DistributedSampler)
    assert isinstance(sampler, ChunkedSampler)
    assert (sampler.num_samples, sampler.total_size) == (7, 21)
    assert (sampler.seed, sampler.epoch, sampler.shuffle, sampler.drop_last) == (5, 0, True, False)
