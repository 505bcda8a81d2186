"""What an order has in the working set, and whether a cache holds it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from conftest import raises
from hypothesis import given
from hypothesis import strategies as st

import wids
from wids import (
    ChunkedSampler,
    DistributedChunkedSampler,
    MixedSampler,
    Prefetcher,
    ShardListDataset,
    ShardListSampler,
    StateError,
    sampling_cost,
)
from wids.order import epoch_order
from wids.order.fit import WorkingSet, fitting_chunksize, working_set
from wids.shards.capacity import Capacity


class Data:
    """A dataset that has only lengths and limits."""

    def __init__(
        self,
        lengths: list[int],
        nbytes: list[float] | None = None,
        cache_nbytes: int | None = None,
        num_open: int = 256,
    ) -> None:
        self.lengths = lengths
        sizes = np.array(lengths if nbytes is None else nbytes, np.float64)
        self.limits = Capacity(np.array(lengths), sizes, cache_nbytes, num_open)

    def __len__(self) -> int:
        return sum(self.lengths)


def warned(sampler: Any) -> list[str]:
    """Return the warnings of two passes."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for epoch in range(2):
            sampler.set_epoch(epoch)
            list(sampler)
    return [str(warning.message) for warning in found]


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


# The working set


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=9),
    st.integers(1, 30),
    st.integers(0, 2**30),
)
def test_hand_is_what_a_chunk_touches(lengths: list[int], chunksize: int, seed: int) -> None:
    """The working set has the shards and bytes of the chunks of the order (ORDER-27)."""
    made = ChunkedSampler(Data(lengths), chunksize=chunksize, seed=seed).settings
    nbytes = np.array([3.0**number for number in range(len(lengths))])
    shard_of = np.repeat(np.arange(len(lengths)), lengths)
    touched = [
        set(shard_of[block].tolist()) for block in epoch_order.rank_blocks(made, seed, 0, 0, 1)
    ]

    found = working_set(made, chunksize, np.array(lengths), nbytes)

    assert found.num_shards == max(map(len, touched), default=0)
    lengths_of = [[nbytes[s] for s in range(min(t), max(t) + 1)] for t in touched]
    assert found.nbytes == pytest.approx(max(map(sum, lengths_of), default=0))


def test_cost_states_the_working_set() -> None:
    """That of a rank has its runs, of a node its ranks, of a mix a chunk of each source."""
    shards = [wids.ShardSpec(f"/{i}.tar", 10, 1000 + i, dataset="ab"[i // 4]) for i in range(8)]
    spec = wids.DatasetSpec(tuple(shards))
    dataset = ShardListDataset(spec)
    options: dict[str, Any] = {"num_replicas": 2, "rank": 0, "num_canonical": 4}

    one = sampling_cost(spec, ChunkedSampler(dataset, chunksize=20))
    many = sampling_cost(spec, DistributedChunkedSampler(dataset, chunksize=20, **options))
    mixed = sampling_cost(spec, MixedSampler(dataset, chunksize=20))

    assert (one.working_shards, one.working_nbytes) == (2, 1006 + 1007)
    assert (many.working_shards, many.working_nbytes) == (4, 2 * 2013)
    assert (mixed.working_shards, mixed.working_nbytes) == (4, 1002 + 1003 + 2013)
    assert str(many).splitlines()[1] == (
        "working set: at most 4 shards (4.0 kB) of a rank, 8.1 kB of a node"
    )


# Choosing chunks


def test_auto_is_2000_without_limits() -> None:
    """Where nothing has to fit, the chunks are the usual ones; so they are without a dataset."""
    assert ChunkedSampler(range(9), chunksize="auto").chunksize == 2000
    assert ChunkedSampler(Data([10] * 100), chunksize="auto").chunksize == 2000
    everything = Data([10] * 100, cache_nbytes=1000)
    assert ChunkedSampler(everything, chunksize="auto").chunksize == 2000


def test_auto_takes_a_quarter_of_the_cache() -> None:
    """The chunks are the largest that are at most a quarter of the cache (ORDER-27)."""
    data = Data([10] * 100, cache_nbytes=160)
    assert ChunkedSampler(data, chunksize="auto").chunksize == 49, "four shards, and never five"
    for made in (DistributedChunkedSampler, MixedSampler):
        sampler = made(data, chunksize="auto", num_replicas=4, rank=1)
        assert sampler.chunksize == 49, "it does not depend on ranks"


def test_auto_takes_as_many_shards_as_stay_open() -> None:
    """A chunk is read from at most ``lru_size`` shards, also where all are local."""
    data = Data([10] * 100, num_open=7)
    assert ChunkedSampler(data, chunksize="auto").chunksize == 79


def test_auto_cuts_no_shard_that_would_be_fetched_again() -> None:
    """Where the cache cannot hold everything, a chunk has whole shards, longer than usual ones."""
    data = Data([5000] * 10, cache_nbytes=20_000)
    assert ChunkedSampler(data, chunksize="auto").chunksize == 5000
    assert ChunkedSampler(Data([5000] * 10), chunksize="auto").chunksize == 2000


def test_auto_of_a_mix_has_a_chunk_of_each_source() -> None:
    """The chunks of all sources together fit."""
    data = Data([10] * 100, cache_nbytes=320)
    data.sources = {  # type: ignore[attr-defined]
        "a": np.array([[10 * i, 10 * i + 10] for i in range(50)]),
        "b": np.array([[10 * i, 10 * i + 10] for i in range(50, 100)]),
    }
    sampler = MixedSampler(data, chunksize="auto")
    assert sampler.chunksize == 49
    assert working_set(sampler.settings, 49, data.limits.lengths, data.limits.nbytes) == WorkingSet(
        8, 80
    )


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=12),
    st.integers(20, 400),
    st.integers(1, 12),
)
def test_auto_fits_if_anything_fits(lengths: list[int], cache_nbytes: int, num_open: int) -> None:
    """Either the chosen chunks fit, or no larger ones than the least would."""
    limits = Data(lengths, cache_nbytes=cache_nbytes, num_open=num_open).limits
    made = ChunkedSampler(Data(lengths)).settings

    chosen = fitting_chunksize(made, limits)

    found = working_set(made, chosen, limits.lengths, limits.nbytes)
    least = max(lengths) if sum(lengths) > cache_nbytes else 1
    if sum(lengths) > cache_nbytes:
        assert found.nbytes <= cache_nbytes / 4 or chosen == least
    assert found.num_shards <= num_open or chosen == least
    assert chosen >= least


def test_state_has_the_chosen_chunksize() -> None:
    """A machine with other limits chooses other chunks, and refuses the state (ORDER-10)."""
    state = ChunkedSampler(Data([10] * 100, cache_nbytes=160), chunksize="auto").state_dict()
    ChunkedSampler(Data([10] * 100), chunksize=49).load_state_dict(state)
    with raises(StateError, "chunksize: expected 99, found 49"):
        ChunkedSampler(Data([10] * 100, cache_nbytes=360), chunksize="auto").load_state_dict(state)


# Warnings


def test_chunk_beyond_the_cache_is_a_warning() -> None:
    """It states the numbers and the settings that fit, once in the life of a sampler."""
    found = warned(ChunkedSampler(Data([10] * 100, cache_nbytes=160)))

    assert found == [
        (
            "ChunkedSampler: chunks of 2000 samples have up to 100 shards (1.0 kB) in the "
            "working set, but the cache holds 160 B (cache_size), so that shards are downloaded "
            "again and again; set chunksize=49, or cache_size=1030, for all that is read"
        )
    ]


@pytest.mark.parametrize(
    ("sampler", "cure"),
    [
        (ChunkedSampler(Data([10] * 100, cache_nbytes=160), chunksize=49), None),
        (ChunkedSampler(Data([10] * 100, cache_nbytes=160), chunksize=80), None),
        (ChunkedSampler(Data([10] * 100, cache_nbytes=1000)), None),
        (ChunkedSampler(Data([10] * 100, [np.nan] * 100, cache_nbytes=160)), None),
        (ChunkedSampler(Data([10] * 100, [0] * 100, cache_nbytes=160)), None),
        (ChunkedSampler(Data([10] * 100, cache_nbytes=160), num_samples=160), None),
        (ChunkedSampler(Data([10] * 100, cache_nbytes=160), shuffle=False), None),
        (ChunkedSampler(Data([10] * 100, cache_nbytes=160), chunksize=5, shuffle=False), None),
        (
            ChunkedSampler(Data([10] * 100, cache_nbytes=160), chunksize=90),
            "chunks of 90 samples have up to 9 shards (90 B)",
        ),
        (
            ChunkedSampler(Data([10] * 100, cache_nbytes=160), chunksize=5),
            (
                "chunks of 5 samples cut shards of up to 10, each part of which is read "
                "separately, but the cache holds 160 B (cache_size), so that shards are "
                "downloaded again and again; set chunksize=49, or"
            ),
        ),
        (
            ShardListSampler(Data([100] * 10, cache_nbytes=150)),
            (
                "shards have up to 1 shard (100 B) in the working set, but the cache holds 150 B "
                "(cache_size), so that shards are downloaded again and again; set cache_size=400, "
                "or cache_size=1300, for all that is read"
            ),
        ),
        (
            ChunkedSampler(Data([10] * 100, num_open=7)),
            (
                "chunks of 2000 samples are read from up to 100 shards at a time, but 7 stay open "
                "(lru_size), so that shards are opened again and again; set chunksize=79, or "
                "lru_size=100"
            ),
        ),
    ],
)
def test_warnings_fit_the_limits(sampler: Any, cure: str | None) -> None:
    """Nothing is said where everything fits, or where nothing is known."""
    found = warned(sampler)

    assert len(found) == (cure is not None)
    assert all(cure in text for text in found if cure)


def test_ranks_of_a_machine_share_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The working set of each rank is its chunks; together they read only their part."""

    def sampler(**others: Any) -> DistributedChunkedSampler:
        data = Data([10] * 100, cache_nbytes=400)
        options = {"num_replicas": 8, "rank": 0, "chunksize": 60, **others}
        return DistributedChunkedSampler(data, **options)

    assert warned(sampler()) == [], "a rank alone reads an eighth, which fits"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    (found,) = warned(sampler())
    assert "up to 24 shards (240 B) in the working set" in found
    assert "set chunksize=29, or cache_size=530, for all that is read" in found
    assert warned(sampler(chunksize=29)) == []
    (dealt,) = warned(sampler(redeal=True))
    assert "cache_size=1030, for all that is read" in dealt
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    (runs,) = warned(sampler(num_canonical=32, redeal=True))
    assert "up to 24 shards (240 B) in the working set" in runs


def test_peers_have_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four processes of a machine that share their samples in pairs read as two do (ORDER-66)."""
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    data = Data([10] * 100, cache_nbytes=200)

    (found,) = warned(DistributedChunkedSampler(data, replication=2, chunksize=60))
    assert "up to 12 shards (120 B) in the working set" in found
    assert "cache_size=280, for all that is read" in found


def test_no_chunks_fit_a_cache_that_is_too_small() -> None:
    """Where even one shard for each run does not fit, the size of the cache is the cure."""
    sampler = MixedSampler(Data([10] * 100, cache_nbytes=80), num_canonical=8, chunksize=10)
    (found,) = warned(sampler)
    assert "8 shards (80 B) in the working set" in found
    assert "set cache_size=320, or cache_size=1030, for all that is read" in found


def document(sizes: dict[str, int], **more: Any) -> dict[str, Any]:
    """Return a document of named datasets, each of shards of 10 samples."""
    parts = [
        {
            "name": name,
            "shardlist": [{"url": f"{name}{i}.tar", "nsamples": 10} for i in range(size)],
            **more,
        }
        for name, size in sizes.items()
    ]
    return {"datasets": parts}


def test_ranks_that_follow_the_sources_are_a_warning() -> None:
    """Where the last rank alone has most of a source, mixing is the remedy."""
    dataset = ShardListDataset(document({"a": 67, "b": 13}), base="/data")

    def ranks(**options: Any) -> list[list[str]]:
        return [
            warned(DistributedChunkedSampler(dataset, num_replicas=4, rank=rank, **options))
            for rank in range(4)
        ]

    text = (
        "DistributedChunkedSampler: the slices of the ranks follow the datasets: [100%, 100%, 100%,"
        " 35%] of their samples are from 'a'; use MixedSampler, which has every dataset in the same"
        " proportion on all ranks, or redeal=True"
    )
    assert ranks() == [[text]] * 4
    assert ranks(redeal=True) == ranks(shuffle=False) == [[]] * 4
    assert warned(MixedSampler(dataset, num_replicas=4, rank=0)) == []
    assert warned(ChunkedSampler(dataset)) == []
    even = ShardListDataset(
        [wids.ShardSpec(f"/{i}.tar", 10, dataset="ab"[i % 2]) for i in range(8)]
    )
    assert warned(DistributedChunkedSampler(even, num_replicas=2, rank=0)) == []


def test_weights_that_are_not_used_are_a_warning() -> None:
    """A sampler that reads every sample once says that it ignores the weights (SPEC-5)."""
    dataset = ShardListDataset(document({"a": 2, "b": 3}, weight=2), base="/data")

    assert warned(ChunkedSampler(dataset)) == [
        (
            "ChunkedSampler: the weights in the spec are not used, as an epoch has every sample "
            "once; MixedSampler uses them"
        )
    ]
    assert warned(MixedSampler(dataset)) == []
    assert warned(Prefetcher(MixedSampler(dataset), dataset)) == []
