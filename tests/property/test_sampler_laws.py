"""The laws of an epoch, tested on thousands of datasets, settings and numbers of ranks."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_order as reference
from hypothesis import strategies as st
from laws import REPEATS, law

from wids import ChunkedSampler, DistributedChunkedSampler, ShardListSampler
from wids.order import epoch_order

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "specs" / "sampler-order.golden.json").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Data:
    """A dataset that has only lengths."""

    lengths: tuple[int, ...]

    def __len__(self) -> int:
        return sum(self.lengths)


pytestmark = REPEATS


@dataclass(frozen=True)
class Job:
    """A dataset, the options of its sampler, and the number of canonical runs."""

    data: Data
    num_canonical: int
    options: dict[str, Any]
    epoch: int

    def sampler(self, rank: int, num_replicas: int, **options: Any) -> DistributedChunkedSampler:
        """Return the sampler of a rank, in the job's epoch."""
        made = DistributedChunkedSampler(
            self.data,
            num_replicas=num_replicas,
            rank=rank,
            num_canonical=self.num_canonical,
            **{**self.options, **options},
        )
        made.set_epoch(self.epoch)
        return made

    def ranks(self, num_replicas: int | None = None, **options: Any) -> list[list[int]]:
        """Return the indices of all ranks; by default there is one rank per canonical run."""
        count = num_replicas or self.num_canonical
        return [list(self.sampler(rank, count, **options)) for rank in range(count)]

    @property
    def range(self) -> range:
        """The indices that an epoch must read."""
        return range(*self.options["num_samples"])

    @property
    def case(self) -> reference.Case:
        """The same job for the reference implementation."""
        options = self.options
        return reference.Case(
            list(self.data.lengths),
            *options["num_samples"],
            options["chunksize"],
            options["shuffle"],
            options["shufflefirst"],
            self.num_canonical,
            options["redeal"],
            "drop" if options["drop_last"] else "pad" if options["even"] else "uneven",
            options["seed"],
            self.epoch,
        )


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    lengths = tuple(draw(st.lists(st.integers(0, 14), min_size=1, max_size=7)))
    total = sum(lengths)
    start = draw(st.sampled_from([0, 0, 0, min(3, total)]))
    stop = draw(st.sampled_from([total, total, total, max(start, total - 4)]))
    drop_last, even = draw(st.sampled_from([(False, True), (True, True), (False, False)]))
    options = {
        "num_samples": (start, stop),
        "chunksize": draw(st.sampled_from([1, 2, 3, 5, 8, 13, 2000])),
        "seed": draw(st.integers(0, 2**40)),
        "shuffle": draw(st.sampled_from([True, True, True, False])),
        "shufflefirst": draw(st.booleans()),
        "drop_last": drop_last,
        "even": even,
        "redeal": draw(st.booleans()),
    }
    num_canonical = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12]))
    return Job(Data(lengths), num_canonical, options, draw(st.integers(0, 5)))


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


# What an order is


@law(150, 1200, jobs(), st.data())
def test_order_is_the_one_of_the_specification(job: Job, data: st.DataObject) -> None:
    """Each rank's order is that of a second implementation, written from the specification.

    ORDER-1, ORDER-2, ORDER-3, ORDER-4, ORDER-5, ORDER-6, ORDER-7.
    """
    num_replicas = data.draw(st.sampled_from(divisors(job.num_canonical)))

    expected = [reference.rank(job.case, rank, num_replicas) for rank in range(num_replicas)]

    assert job.ranks(num_replicas) == expected


@pytest.mark.parametrize("vector", GOLDEN["permutations"])
def test_golden_permutations(vector: dict[str, Any]) -> None:
    """Permutations are the same on every machine and release of numpy (ORDER-12)."""
    found = epoch_order.permutation(vector["length"], vector["seed"], *vector["key"])
    assert found.tolist() == vector["order"]


def golden_ranks(vector: dict[str, Any]) -> list[list[int]]:
    vector = {**vector, "lengths": np.array(vector["lengths"], np.int64)}
    num_replicas, seed, epoch = (vector.pop(name) for name in ("num_replicas", "seed", "epoch"))
    made = epoch_order.OrderSettings(**vector)
    return [
        [
            int(i)
            for block in epoch_order.rank_blocks(made, seed, epoch, r, num_replicas)
            for i in block
        ]
        for r in range(num_replicas)
    ]


@pytest.mark.parametrize("vector", GOLDEN["orders"])
def test_golden_orders(vector: dict[str, Any]) -> None:
    """Each rank of a small order matches, index by index (ORDER-12)."""
    vector = dict(vector)
    expected = vector.pop("ranks")
    assert golden_ranks(vector) == expected


@pytest.mark.parametrize("vector", GOLDEN["digests"])
def test_golden_digests(vector: dict[str, Any]) -> None:
    """Each rank of a long order matches by its digest (ORDER-12)."""
    vector = dict(vector)
    expected = vector.pop("sha256")
    digests = [
        hashlib.sha256(np.array(rank, "<i8").tobytes()).hexdigest() for rank in golden_ranks(vector)
    ]
    assert digests == expected


def test_golden_vectors_are_those_of_the_reference() -> None:
    """The second implementation writes exactly this file."""
    assert json.loads(json.dumps(reference.golden())) == GOLDEN


# Exact epochs


@law(125, 1000, jobs(), st.data())
def test_ranks_together_are_the_dataset(job: Job, data: st.DataObject) -> None:
    """Ranks cover it, are disjoint before padding and have the equal lengths of ``len()``."""
    num_replicas = data.draw(st.sampled_from(divisors(job.num_canonical)))

    ranks = job.ranks(num_replicas)

    n, c = len(job.range), job.num_canonical
    seen = Counter(index for rank in ranks for index in rank)
    assert [len(job.sampler(rank, num_replicas)) for rank in range(num_replicas)] == [
        len(rank) for rank in ranks
    ]
    if job.options["drop_last"]:
        assert set(seen) <= set(job.range)
        assert max(seen.values(), default=1) == 1
        assert {len(rank) for rank in ranks} == {n // c * c // num_replicas}
    elif job.options["even"]:
        assert set(seen) == set(job.range)
        assert {len(rank) for rank in ranks} == {-(-n // c) * c // num_replicas}
    else:
        assert seen == Counter(job.range)
        assert max(map(len, ranks)) - min(map(len, ranks)) <= c // num_replicas


@law(125, 1000, jobs())
def test_padding_is_one_of_the_runs_own(job: Job) -> None:
    """A run repeats at most one index of its own; an empty run repeats its neighbour's."""
    own = job.ranks(even=False, drop_last=False)
    padded = job.ranks(even=True, drop_last=False)

    for number, (before, after) in enumerate(zip(own, padded, strict=True)):
        assert after[: len(before)] == before
        added = after[len(before) :]
        assert len(added) <= 1
        if before:
            assert set(added) <= set(before)
        elif added:
            distance = {abs(other - number) for other, run in enumerate(own) if added[0] in run}
            assert distance == {min(abs(o - number) for o, run in enumerate(own) if run)}


@law(75, 600, jobs())
def test_same_settings_same_order(job: Job) -> None:
    """Only the settings matter, not the object or what it yielded earlier."""
    first = job.sampler(0, 1)
    used = job.sampler(0, 1)
    for epoch in (7, job.epoch):
        list(islice(used, 5))
        used.set_epoch(epoch)
    assert list(first) == list(used) == list(used)


@law(75, 600, st.integers(20, 2**40), st.integers(0, 1000), st.integers(1, 20), st.booleans())
def test_seeds_and_epochs_differ(seed: int, epoch: int, step: int, redeal: bool) -> None:
    """No seed or epoch repeats another, not even if their sums are equal."""
    job = Job(Data((30, 30)), 2, {"chunksize": 15, "seed": seed, "redeal": redeal}, epoch)
    others = [
        replace(job, epoch=epoch + step),
        replace(job, options={**job.options, "seed": seed + step}),
        replace(job, epoch=epoch + step, options={**job.options, "seed": seed - step}),
    ]

    ranks = [tuple(job.ranks()[0]), *(tuple(other.ranks()[0]) for other in others)]

    assert len(set(ranks)) == 4


@law(75, 600, st.integers(0, 2**40), st.integers(0, 1000), st.integers(2, 6))
def test_ranks_differ(seed: int, epoch: int, num_replicas: int) -> None:
    """Each rank shuffles its share in its own order."""
    job = Job(Data((40,) * num_replicas), num_replicas, {"seed": seed}, epoch)

    shifted = {
        tuple(index - 40 * rank for index in indices) for rank, indices in enumerate(job.ranks())
    }

    assert len(shifted) == num_replicas


# Resuming anywhere


@law(37, 300, jobs(), st.data())
def test_resume_at_every_position_is_the_tail(job: Job, data: st.DataObject) -> None:
    """A state that went through JSON restores the rest of its epoch, at every position."""
    num_replicas = data.draw(st.sampled_from(divisors(job.num_canonical)))
    rank = data.draw(st.integers(0, num_replicas - 1))
    sampler = job.sampler(rank, num_replicas)
    whole = list(sampler)
    for position in range(len(whole)):
        list(islice(sampler, position))
        state = json.loads(json.dumps(sampler.state_dict()))
        resumed = job.sampler(rank, num_replicas)
        resumed.load_state_dict(state)
        assert list(resumed) == whole[position:]
        assert list(resumed) == whole, "the epoch is fixed, and its next pass is complete"


@law(
    50, 400, st.lists(st.integers(0, 9), min_size=1, max_size=5), st.booleans(), st.integers(0, 50)
)
def test_all_samplers_resume(lengths: list[int], shard_by_shard: bool, position: int) -> None:
    """A restored sampler yields the rest of the epoch and then the next ones."""

    def made() -> ChunkedSampler:
        if shard_by_shard:
            return ShardListSampler(Data(tuple(lengths)))
        return ChunkedSampler(Data(tuple(lengths)), chunksize=4)

    sampler = made()
    stream = [list(sampler) for _ in range(3)]
    sampler = made()
    done = list(islice(sampler, position))
    resumed = made()
    resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))

    following = [list(resumed) for _ in range(2)]

    if done == stream[0]:  # the state at the end of a pass is the start of the next
        assert following == stream[1:]
    else:
        assert [done + following[0], following[1]] == stream[:2]


@law(75, 600, jobs(), st.data())
def test_global_steps_are_the_same_on_any_number_of_ranks(job: Job, data: st.DataObject) -> None:
    """A step of the job takes the same samples for every number of ranks."""
    if not job.options["even"]:
        job = replace(job, options={**job.options, "even": True})
    rounds = data.draw(st.integers(1, 4))  # indices of each canonical run in a step

    def steps(num_replicas: int) -> list[Counter[int]]:
        width = rounds * job.num_canonical // num_replicas
        ranks = job.ranks(num_replicas)
        return [
            Counter(index for rank in ranks for index in rank[start : start + width])
            for start in range(0, len(ranks[0]), width)
        ]

    first, *others = (steps(num_replicas) for num_replicas in divisors(job.num_canonical))
    assert all(other == first for other in others)


@law(37, 300, jobs(), st.data())
def test_state_resumes_on_other_numbers_of_ranks(job: Job, data: st.DataObject) -> None:
    """A state saved on R ranks after any round resumes on R': no sample is lost or repeated.

    If runs have unequal lengths, the last round is incomplete and belongs to the end of the epoch.
    """
    before, after = (data.draw(st.sampled_from(divisors(job.num_canonical))) for _ in "ba")
    width = job.num_canonical // before
    olds = [job.sampler(rank, before) for rank in range(before)]
    expected = sorted(index for sampler in olds for index in sampler)
    num_rounds = len(job.range) // job.num_canonical
    for round_ in range(num_rounds):
        done = [index for sampler in olds for index in islice(sampler, round_ * width)]
        states = [sampler.state_dict() for sampler in olds]
        assert all(state == states[0] for state in states)
        news = [job.sampler(rank, after) for rank in range(after)]
        for new in news:
            new.load_state_dict(states[0])
        assert sorted([*done, *(index for new in news for index in new)]) == expected


# Epochs


@law(
    50,
    400,
    jobs(),
    st.lists(st.sampled_from(["pass", "broken", "iter", "len", "state"]), max_size=6),
)
def test_only_a_complete_pass_advances_the_epoch(job: Job, events: list[str]) -> None:
    """An interrupted pass leaves the epoch as it is; a complete one advances it."""
    sampler = DistributedChunkedSampler(
        job.data, num_replicas=1, rank=0, num_canonical=job.num_canonical, **job.options
    )
    finished = 0
    for event in events:
        expected = replace(job, epoch=finished).ranks(1)[0]
        if event == "pass":
            assert list(sampler) == expected
            finished += 1
        elif event == "broken":
            width = max(len(sampler) - 1, 0)
            assert list(islice(sampler, width)) == expected[:width]
        elif event == "iter":
            iter(sampler)
        elif event == "len":
            assert len(sampler) == len(expected)
        else:
            sampler.state_dict()
        assert sampler.epoch == finished


@law(50, 400, jobs(), st.lists(st.integers(0, 3), max_size=5))
def test_full_pass_never_changes_after_set_epoch(job: Job, positions: list[int]) -> None:
    """Earlier passes, complete or not, and restores do not change the order of a set epoch."""
    sampler = job.sampler(0, 1)
    expected = list(sampler)
    for position in positions:
        sampler.set_epoch(job.epoch + 1)
        list(islice(sampler, position))
        sampler.load_state_dict(sampler.state_dict())
        sampler.set_epoch(job.epoch)
        assert list(sampler) == list(sampler) == expected
        assert sampler.epoch == job.epoch


# What it costs


@law(100, 800, jobs())
def test_visits_are_those_of_the_order(job: Job) -> None:
    """The shards that runs visit, computed from chunks, are those of their indices."""
    made = job.sampler(0, 1).settings
    shard_of = np.repeat(np.arange(len(job.data.lengths)), job.data.lengths)
    seed = job.options["seed"]
    for run, visits in enumerate(epoch_order.visits(made, seed, job.epoch)):
        expected: list[int] = []
        for block in epoch_order.rank_blocks(made, seed, job.epoch, run, made.num_runs):
            shards = np.unique(shard_of[block]).tolist()
            expected += shards[1:] if expected and expected[-1] == shards[0] else shards
        assert visits.tolist() == expected


def test_golden_cases_name_all_settings() -> None:
    """The vectors name every setting; a new one has to be added to them."""
    names = {"num_replicas", "ranks", *asdict(reference.Case([], 0, 0, 1))}
    assert all(set(vector) == names for vector in GOLDEN["orders"])
    # Runs of other lengths are those of packed batches, which have vectors of their own.
    fields = set(epoch_order.OrderSettings.__dataclass_fields__) - {"edges"}
    assert fields | {"seed", "epoch", "num_replicas", "ranks"} == names
