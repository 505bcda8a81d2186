"""Mixes of named datasets: their weights, their sources, and what else samplers are asked."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import need, raises, sample_members, write_tar
from torch.utils.data import ConcatDataset, DataLoader, DistributedSampler

import wids
from wids import (
    ChunkedSampler,
    MixedSampler,
    Prefetcher,
    ShardListDataset,
    StateError,
    sampling_cost,
)

LENGTHS = {"a": [12, 9], "b": [5], "c": [7, 8, 4]}


def write_specs(folder: Path, weights: dict[str, float]) -> list[Path]:
    """Write the specs of three datasets, and one of them with weights; return their paths."""
    paths, start = [], 0
    for name, lengths in LENGTHS.items():
        shardlist = []
        for number, length in enumerate(lengths):
            path = write_tar(folder / f"{name}-{number}.tar", sample_members(start, start + length))
            shardlist.append(
                {"url": path.name, "nsamples": length, "filesize": path.stat().st_size}
            )
            start += length
        paths.append(folder / f"{name}.json")
        paths[-1].write_text(json.dumps({"name": name, "shardlist": shardlist}))
    parts = [
        {"source_url": path.name, **({"weight": weights[name]} if name in weights else {})}
        for name, path in zip(LENGTHS, paths, strict=True)
    ]
    (folder / "mix.json").write_text(json.dumps({"datasets": parts}))
    return paths


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[ShardListDataset]:
    write_specs(tmp_path, {"a": 0.6, "b": 0.3, "c": 0.1})
    with ShardListDataset(tmp_path / "mix.json") as dataset:
        yield dataset


def names(dataset: Any, indices: Any) -> list[str]:
    return [dataset[index]["__dataset__"] for index in indices]


def test_weights_come_from_the_spec(dataset: ShardListDataset) -> None:
    """By default a mix has the weights that the spec states (SPEC-5)."""
    sampler = MixedSampler(dataset, num_samples=40)

    assert sampler.weights == {"a": Fraction(6, 10), "b": Fraction(3, 10), "c": Fraction(1, 10)}
    assert Counter(names(dataset, sampler)) == {"a": 24, "b": 12, "c": 4}


def test_a_list_of_specs_is_mixed_evenly(tmp_path: Path) -> None:
    """Sources without weights have equal weights, however long they are."""
    with ShardListDataset(write_specs(tmp_path, {})) as dataset:
        sampler = MixedSampler(dataset, num_samples=30)
        assert Counter(names(dataset, sampler)) == {"a": 10, "b": 10, "c": 10}
        assert len(MixedSampler(dataset)) == len(dataset) == 45


@pytest.mark.parametrize("weights", [[6, 3, 1], (0.6, 0.3, 0.1), {"c": 1, "a": 6, "b": 3}])
def test_weights_are_by_order_or_by_name(dataset: ShardListDataset, weights: Any) -> None:
    """A list has the order of the sources; a mapping has any order."""
    assert list(MixedSampler(dataset, weights)) == list(MixedSampler(dataset))


def test_weights_of_a_frame_are_by_name(dataset: ShardListDataset) -> None:
    """A Series has the names in its index, unless that is 0, 1, 2, …."""
    need(importlib.util.find_spec("pandas"), "pip install pandas")
    import pandas as pd

    sizes = pd.DataFrame({"name": list("cabaaaaabb")}).groupby("name").size()
    for weights in (sizes, sizes[::-1], sizes.reset_index(drop=True)):
        assert list(MixedSampler(dataset, weights)) == list(MixedSampler(dataset))
    with raises(ValueError, "weights: expected names of datasets, 'a', 'b', 'c', found 2, 1, 0"):
        MixedSampler(dataset, sizes.reset_index(drop=True)[::-1])


@pytest.mark.parametrize(
    ("weights", "parts"),
    [
        (2, ["weights: expected numbers by name or in a list, found 2"]),
        ([1, 2], ["weights: expected 3, one for each of 'a', 'b', 'c', found 2"]),
        (
            {"a": 1, "b": 1},
            ["expected one for each dataset, found none for 'c'", "0 draws nothing"],
        ),
        (
            {"a": 1, "b": 1, "c": 1, "x": 2},
            ["expected names of datasets, 'a', 'b', 'c', found 'x'"],
        ),
        *(
            ({"a": 1, "b": bad, "c": 1}, ["weights['b']: expected a number of at least 0, found"])
            for bad in (-1, float("nan"), float("inf"), "1", None, True, 1j, [1])
        ),
    ],
)
def test_weights_that_cannot_be_are_refused(
    dataset: ShardListDataset, weights: Any, parts: list[str]
) -> None:
    """Each mistake is named, with what to do."""
    with raises(ValueError, *parts):
        MixedSampler(dataset, weights)


def test_empty_sources_are_refused(dataset: ShardListDataset) -> None:
    """A source from which nothing can be drawn is an error, and not an epoch that is too short."""
    view = dataset[:26]
    with raises(ValueError, "expected samples of each source, found none of 'c'; leave it out"):
        MixedSampler(view)
    with raises(ValueError, "num_samples: expected an integer of at least 1, found 0"):
        MixedSampler(dataset, num_samples=0)


def test_contradicting_ranks_are_refused(dataset: ShardListDataset) -> None:
    """Ranks and runs are checked as by the other samplers."""
    with raises(ValueError, "rank: expected 0 to 1, found 2"):
        MixedSampler(dataset, num_replicas=2, rank=2)
    with raises(ValueError, "num_canonical: expected a multiple of the 2 ranks, found 3"):
        len(MixedSampler(dataset, num_replicas=2, rank=0, num_canonical=3))


@pytest.mark.parametrize("step", [1, -1, 3])
def test_views_are_mixed(dataset: ShardListDataset, step: int) -> None:
    """Sources of a view are the samples that it has of each dataset, in any order of the view."""
    view = dataset[::step]
    sampler = MixedSampler(view, num_samples=40, chunksize=4)

    assert Counter(names(view, sampler)) == {"a": 24, "b": 12, "c": 4}
    long = MixedSampler(view, [1, 1, 1], num_samples=6 * len(view))
    assert set(long) == set(range(len(view)))


def test_sources_in_several_places_are_one() -> None:
    """Shards of one name may stand anywhere; the mix goes through all of them."""
    shards = [wids.ShardSpec(f"/{i}.tar", 10, dataset="ab"[i % 2]) for i in range(6)]
    sampler = MixedSampler(ShardListDataset(shards), [2, 1], num_samples=90, chunksize=15)

    drawn = list(sampler)
    assert Counter(index // 10 % 2 for index in drawn) == {0: 60, 1: 30}
    assert set(Counter(drawn).values()) == {1, 2}
    assert set(drawn) == set(range(60))


def test_a_chunk_is_read_at_a_time() -> None:
    """Within a source, indices are shuffled in chunks that follow the shards."""
    shards = [wids.ShardSpec(f"/{i}.tar", 10, dataset="ab"[i // 4]) for i in range(8)]
    sampler = MixedSampler(ShardListDataset(shards), chunksize=10)

    own = [index // 10 for index in sampler if index < 40]
    assert len(own) == 40
    assert [own[i : i + 10] for i in range(0, 40, 10)] == [[shard] * 10 for shard in own[::10]]


def test_one_source_alone_has_epochs_of_any_length() -> None:
    """Without names, there is one source; epochs continue where the previous one ended."""
    sampler = MixedSampler(range(10), num_samples=4)
    epochs = [list(sampler) for _ in range(5)]

    assert [len(epoch) for epoch in epochs] == [4] * 5
    drawn = [index for epoch in epochs for index in epoch]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]


def test_ranks_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are not given come from the environment, and trainers see their own class."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    sampler = MixedSampler(range(9))

    assert isinstance(sampler, DistributedSampler)
    assert list(sampler) == list(MixedSampler(range(9), rank=1, num_replicas=2))
    assert (sampler.rank, sampler.num_replicas, sampler.num_samples, sampler.total_size) == (
        *(1, 2, 5),
        10,
    )


def test_prefetcher_yields_the_mix(dataset: ShardListDataset) -> None:
    """A prefetcher around it has its order, state and class."""
    sampler = MixedSampler(dataset, rank=0, num_replicas=1)
    ahead = Prefetcher(MixedSampler(dataset, rank=0, num_replicas=1), dataset)

    assert isinstance(ahead, DistributedSampler)
    assert list(ahead) == list(sampler)
    list(islice(ahead, 7))
    assert ahead.state_dict()["position"] == 7


def test_loader_with_workers_reads_the_mix(dataset: ShardListDataset) -> None:
    """Samples come from workers in the order of the sampler."""
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=10,
        sampler=MixedSampler(dataset),
        num_workers=2,
        multiprocessing_context="fork",
    )
    batches = list(loader)

    indices = [index for batch in batches for index in batch["__index__"].tolist()]
    assert indices == list(MixedSampler(dataset))
    for batch in batches[:4]:
        counts = Counter(batch["__dataset__"])
        assert all(abs(counts[n] - 10 * w) < 2 for n, w in {"a": 0.6, "b": 0.3, "c": 0.1}.items())


def test_weight_0_draws_nothing(dataset: ShardListDataset) -> None:
    """It is as if the dataset were not in the list, which may then be empty (ORDER-20)."""
    sampler = MixedSampler(dataset, {"a": 2, "b": 0, "c": 1}, num_samples=30)
    assert Counter(names(dataset, sampler)) == {"a": 20, "c": 10}
    assert sampler.weights == {"a": Fraction(2, 3), "b": 0, "c": Fraction(1, 3)}
    without_c = MixedSampler(dataset[:26], [1, 1, 0], num_samples=10)
    assert len(list(without_c)) == 10
    with raises(ValueError, "weights: expected one that is not 0, found 0 for each dataset"):
        MixedSampler(dataset, [0, 0, 0])
    state = sampler.state_dict(num_consumed=7)
    with raises(StateError, "belongs to another order"):
        MixedSampler(dataset, [2, 1, 1], num_samples=30).load_state_dict(state)


def test_views_of_one_dataset_are_mixed_by_a_list(dataset: ShardListDataset) -> None:
    """Parts without names have weights in their order; without a list they are one source."""

    class Batched(ConcatDataset[Any]):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices]

    both = Batched([dataset[:9], dataset[5:20]])
    sampler = MixedSampler(both, [1, 3], num_samples=40)
    assert Counter(index < 9 for index in sampler) == {True: 10, False: 30}
    assert sampler.weights == {"0": Fraction(1, 4), "1": Fraction(3, 4)}
    assert sorted(MixedSampler(both)) == list(range(24))
    with raises(ValueError, "found 2; ", "as torch's ConcatDataset([view, other_view])"):
        MixedSampler(dataset[:20], [1, 3])


# Schedules


def test_weights_change_after_samples_of_the_job(dataset: ShardListDataset) -> None:
    """Phases count the samples of all ranks and epochs, and are exact (ORDER-29)."""
    schedule = [(0, {"a": 1, "b": 1, "c": 0}), (20, [0, 1, 3]), (60, {"a": 2, "b": 1, "c": 1})]
    ranks = [
        MixedSampler(dataset, schedule, num_samples=30, num_replicas=2, rank=rank)
        for rank in range(2)
    ]
    steps = [step for _ in range(4) for step in zip(*ranks, strict=True)]
    drawn = names(dataset, [index for step in steps for index in step])
    assert Counter(drawn[:20]) == {"a": 10, "b": 10}
    assert Counter(drawn[20:60]) == {"b": 10, "c": 30}
    assert Counter(drawn[60:]) == {"a": 30, "b": 15, "c": 15}
    assert ranks[0].schedule[1] == (20, {"a": 0, "b": Fraction(1, 4), "c": Fraction(3, 4)})
    assert ranks[0].weights == ranks[0].schedule[0][1]
    assert "schedule=[(0, " in repr(ranks[0])
    alone = MixedSampler(dataset, [(0, [6, 3, 1])])
    assert list(alone) == list(MixedSampler(dataset))
    assert alone.state_dict() == {**MixedSampler(dataset).state_dict(), "epoch": 1}


@pytest.mark.parametrize(
    "schedule",
    [
        [(1, [1, 1, 1])],
        [(0, [1, 1, 1]), (9, [1, 2, 1]), (9, [1, 1, 1])],
        [(0, [1, 1, 1]), (9, [1, 2, 1]), (5, [1, 1, 1])],
        [(-1, [1, 1, 1]), (0, [1, 1, 1])],
        [(0, [1, 1, 1]), (0.5, [1, 2, 1])],
        [(0, [1, 1, 1]), (9,)],
        [(0, [1, 1, 1]), 9],
        [[0, [1, 1, 1], 9]],
    ],
)
def test_schedules_that_cannot_be_are_refused(dataset: ShardListDataset, schedule: Any) -> None:
    """A schedule ascends from 0, and the error shows one."""
    expected = "weights: expected pairs of a number of samples and the weights from there on"
    with raises(ValueError, expected, "ascending from 0, such as [(0, {…}), (2_000_000, {…})]"):
        MixedSampler(dataset, schedule)


@pytest.mark.parametrize(
    ("weights", "parts"),
    [
        ([1, -1, 1], ["weights[9]['b']: expected a number of at least 0, found -1"]),
        ([0, 0, 0], ["weights[9]: expected one that is not 0, found 0 for each dataset"]),
        ([1, 1], ["weights[9]: expected 3, one for each of 'a', 'b', 'c', found 2"]),
        (3, ["weights[9]: expected numbers by name or in a list, found 3"]),
        ({"a": 1, "x": 1}, ["weights[9]: expected names of datasets", "found 'x'"]),
        ({"a": 1}, ["weights[9]: expected one for each dataset, found none for 'b', 'c'"]),
    ],
)
def test_weights_of_a_phase_are_checked(
    dataset: ShardListDataset, weights: Any, parts: list[str]
) -> None:
    """Each phase is checked like weights alone, and the error says where it begins."""
    with raises(ValueError, *parts):
        MixedSampler(dataset, [(0, [1, 1, 1]), (9, weights)])


def test_a_run_continues_with_other_weights(tmp_path: Path) -> None:
    """A state says with which schedule it resumes, and a dataset may be added (ORDER-30)."""
    *paths, last = write_specs(tmp_path, {})
    with ShardListDataset(paths) as two, ShardListDataset([*paths, last]) as three:
        first = MixedSampler(two, {"a": 3, "b": 1}, num_samples=16)
        head = list(islice(first, 8))
        state = json.loads(json.dumps(first.state_dict()))
        with raises(
            StateError,
            "until sample 8, where it was saved, found [(0, {'a': '3/4', 'b': '1/4'})] in the",
            "pass weights=[(0, {…}), (8, {…})], with those of the state first",
        ):
            MixedSampler(two, {"a": 1, "b": 1}, num_samples=16).load_state_dict(state)
        changed = [(0, {"a": 3, "b": 1, "c": 0}), (8, {"a": 0, "b": 1, "c": 3})]
        resumed = MixedSampler(three, changed, num_samples=16)
        resumed.load_state_dict(state)
        tail = list(resumed)
        assert Counter(names(three, tail)) == {"b": 2, "c": 6}
        assert not set(head) & set(tail)  # b continues where it was
        again = MixedSampler(three, changed, num_samples=16)
        again.load_state_dict(resumed.state_dict())
        assert list(again) == list(islice(resumed, 16))
        with raises(StateError, "dataset: expected the datasets of the state, found none named"):
            later = [(0, {"a": 3, "b": 1}), (8, {"a": 0, "b": 1})]
            late = json.loads(json.dumps(resumed.state_dict()))
            late |= {"epoch": 0, "position": 8}
            MixedSampler(two, later, num_samples=16).load_state_dict(late)
        with raises(StateError, "belongs to another order: sources: expected"):
            MixedSampler(three[1:], changed, num_samples=16).load_state_dict(state)


@pytest.mark.parametrize("num_batches", [0, 1])
@pytest.mark.parametrize("buckets", [None, [0] * 45])
def test_the_advice_of_a_refused_state_can_be_followed(
    dataset: ShardListDataset, num_batches: int, buckets: Any
) -> None:
    """At any position, also at 0, where a schedule cannot change (ORDER-30)."""

    def made(weights: Any) -> Any:
        sampler = MixedSampler(dataset, weights)
        return sampler if buckets is None else wids.BucketBatchSampler(sampler, buckets, 4)

    former, new = {"a": 6, "b": 3, "c": 1}, {"a": 0, "b": 1, "c": 1}
    state = made(former).state_dict(num_consumed=num_batches)
    with raises(StateError, "until sample") as caught:
        made(new).load_state_dict(state)
    starts = re.findall(r"\((\d+), \{…\}\)", str(caught.value))
    assert ("start without it" in str(caught.value)) == (not starts) == (num_batches == 0)
    if starts:
        made(list(zip(map(int, starts), [former, new], strict=True))).load_state_dict(state)


@pytest.mark.parametrize("damage", [{"epoch": "2"}, {"position": None}, {"fingerprint": "{}"}])
@pytest.mark.parametrize("weights", [None, 3, [], {"a": 1}, [[0, 1]], [[0, {"a": "1"}], ["9", {}]]])
def test_a_damaged_state_of_a_mix_is_refused(
    dataset: ShardListDataset, weights: Any, damage: Any
) -> None:
    """Whatever stands where its weights should, it is an error of the state."""
    sampler = MixedSampler(dataset, [(0, [1, 1, 1]), (20, [1, 2, 3])])
    state = sampler.state_dict(num_consumed=21)
    fingerprint = json.loads(state["fingerprint"]) | {"weights": weights}
    state["fingerprint"] = json.dumps(fingerprint)
    with raises(StateError, "the state"):
        sampler.load_state_dict({**state, **damage})


def test_batches_of_a_schedule_resume(dataset: ShardListDataset) -> None:
    """Buckets and a prefetcher read a schedule; batches change with the next epoch (ORDER-30)."""
    schedule: Any = [(0, [1, 1, 0]), (20, [0, 1, 1])]
    buckets = [index % 2 for index in range(len(dataset))]

    def batches(weights: Any, **ranks: Any) -> wids.BucketBatchSampler:
        sampler = MixedSampler(dataset, weights, num_samples=30, **ranks)
        return wids.BucketBatchSampler(sampler, buckets, 3)

    made = batches(schedule)
    whole = list(made.ahead())
    inside = MixedSampler(dataset, schedule, num_samples=30)
    assert sorted(index for batch in whole for index in batch) == sorted(inside.ahead())
    state = made.state_dict(num_consumed=4)
    resumed = batches(schedule)
    resumed.load_state_dict(state)
    assert list(resumed) == whole[4:]
    batches([*schedule, (30, [1, 1, 1])]).load_state_dict(state)
    with raises(StateError, "until sample 30, where it was saved"):
        batches([*schedule, (29, [1, 1, 1])]).load_state_dict(state)
    ahead = Prefetcher(MixedSampler(dataset, schedule, num_samples=30), dataset)
    assert list(ahead) == list(inside)


def test_processes_share_a_rank_of_a_schedule(
    dataset: ShardListDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of processes read a schedule as a rank does."""
    schedule = [(0, [1, 1, 0]), (20, [0, 1, 1])]
    monkeypatch.setenv("WORLD_SIZE", "4")
    found = []
    for process in range(4):
        monkeypatch.setenv("RANK", str(process))
        found.append(list(MixedSampler(dataset, schedule, replication=2)))
    ranks = [list(MixedSampler(dataset, schedule, rank=r, num_replicas=2)) for r in range(2)]
    assert found == [ranks[0], ranks[0], ranks[1], ranks[1]]


# Other ranks


def test_a_mix_names_the_ranks_that_are_possible(dataset: ShardListDataset) -> None:
    """A mix keeps its runs, and the error says on how many ranks it resumes (ORDER-10)."""
    sampler = MixedSampler(dataset, num_replicas=2, rank=0, num_canonical=4)
    full, inside = sampler.state_dict(num_consumed=6), sampler.state_dict(num_consumed=3)
    for number in (1, 2, 4):
        MixedSampler(dataset, num_replicas=number, rank=0, num_canonical=4).load_state_dict(full)
    with raises(StateError, "2 ranks at position 12", "on 1, 2 or 4 ranks with num_canonical=4"):
        MixedSampler(dataset, num_replicas=3, rank=0).load_state_dict(full)
    with raises(StateError, "found 1 ranks", "resume on 2 ranks with num_canonical=4, and change"):
        MixedSampler(dataset, num_replicas=1, rank=0, num_canonical=4).load_state_dict(inside)
    with raises(ValueError, "which 1, 2 or 4 ranks can share") as caught:
        len(MixedSampler(dataset, num_replicas=3, rank=0, num_canonical=4))
    assert "without num_canonical" not in str(caught.value)
    batches = wids.BucketBatchSampler(sampler, [0] * len(dataset), 2)
    state = batches.state_dict(num_consumed=3)
    other = MixedSampler(dataset, num_replicas=1, rank=0, num_canonical=4)
    with raises(StateError, "resume on 2 ranks"):
        wids.BucketBatchSampler(other, [0] * len(dataset), 2).load_state_dict(state)


# What a mix reads


@pytest.mark.parametrize("num_samples", [40, 17, 400])
def test_cost_of_a_mix_is_what_is_read(dataset: ShardListDataset, num_samples: int) -> None:
    """Shards and bytes follow from the indices of the ranks, source by source (ORDER-13)."""
    options: dict[str, Any] = {"num_samples": num_samples, "chunksize": 5, "num_canonical": 4}
    ranks = [MixedSampler(dataset, rank=rank, num_replicas=2, **options) for rank in range(2)]

    cost = sampling_cost(dataset.spec, ranks[0], epochs=[1, 4])

    nbytes = np.array([shard.nbytes or 0 for shard in dataset.spec.shards])
    shard_of = np.repeat(np.arange(6), [shard.num_samples or 0 for shard in dataset.spec.shards])
    for row, epoch in enumerate((1, 4)):
        for rank, sampler in enumerate(ranks):
            sampler.set_epoch(epoch)
            shards = set(shard_of[list(sampler)].tolist())
            assert cost.num_shards[row, rank] == len(shards)
            assert cost.nbytes[row, rank] == nbytes[list(shards)].sum()
            assert cost.num_visits[row, rank] >= len(shards)


def test_visits_of_a_mix_are_those_of_its_chunks() -> None:
    """A source that is read shard by shard is visited once for each shard and pass."""
    shards = [wids.ShardSpec(f"/{i}.tar", 10, 10**i, dataset="ab"[i // 2]) for i in range(4)]
    spec = wids.DatasetSpec(tuple(shards))
    sampler = MixedSampler(ShardListDataset(spec), num_samples=80, chunksize=10)

    cost = sampling_cost(spec, sampler, epochs=[0])

    own = [index // 10 for index in sampler]
    changes = 0
    for source in (0, 1):
        line = [shard for shard in own if shard // 2 == source]
        changes += 1 + sum(a != b for a, b in pairwise(line))
    assert cost.num_visits.tolist() == [[changes]]
    assert cost.num_mixed == 20


def test_a_mix_over_other_shards_is_refused(dataset: ShardListDataset) -> None:
    """The cost of a view is not that of the spec."""
    with raises(ValueError, "expected one over the 6 shards of the spec"):
        sampling_cost(dataset.spec, MixedSampler(dataset[:40]))
    assert sampling_cost(dataset.spec, ChunkedSampler(dataset)).num_mixed == 45
