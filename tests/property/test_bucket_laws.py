"""The laws of batches from buckets, on thousands of datasets, buckets and numbers of ranks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import reference_buckets as reference
import reference_order
from hypothesis import strategies as st
from laws import REPEATS, law
from test_sampler_laws import Data, divisors

from wids import BucketBatchSampler, DistributedChunkedSampler
from wids.order import rounds

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "specs" / "bucket-batches.golden.json").read_text("utf-8")
)

pytestmark = REPEATS

Batches = list[list[int]]


@pytest.fixture(autouse=True, scope="module")
def small_windows() -> Iterator[None]:
    """Make windows so short that even these datasets have several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "_WINDOW", 4)
        yield


@dataclass(frozen=True)
class Job:
    """A dataset with its buckets, and the options of both samplers."""

    case: reference_order.Case
    buckets: list[int]
    sizes: dict[int, int]
    aligned: bool
    drop_last: bool

    def sampler(self, rank: int, num_replicas: int, **others: Any) -> BucketBatchSampler:
        """Return the sampler of a rank, in the job's epoch."""
        case = self.case
        inside = DistributedChunkedSampler(
            Data(tuple(case.lengths)),
            num_replicas=num_replicas,
            rank=rank,
            num_canonical=case.num_runs,
            num_samples=(case.start, case.stop),
            chunksize=case.chunksize or 1,
            seed=case.seed,
            shuffle=case.shuffle,
            redeal=case.redeal,
            drop_last=case.ending == "drop",
            even=case.ending != "uneven",
        )
        options = {"aligned": self.aligned, "drop_last": self.drop_last, **others}
        made = BucketBatchSampler(inside, self.buckets, self.sizes.__getitem__, **options)
        made.set_epoch(case.epoch)
        return made

    def expected(self) -> reference.Epoch:
        """Return the epoch by the second implementation."""
        sizes = {bucket: self.sizes[bucket] for bucket in set(self.buckets)}
        runs = reference_order.runs(self.case)
        return reference.epoch(
            reference.Job(runs, self.buckets, sizes, self.aligned, self.drop_last)
        )

    def ranks(self, num_replicas: int) -> list[Batches]:
        """Return the batches of all ranks."""
        return [list(self.sampler(rank, num_replicas)) for rank in range(num_replicas)]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    lengths = draw(st.lists(st.integers(0, 20), min_size=1, max_size=6))
    total = sum(lengths)
    case = reference_order.Case(
        lengths,
        draw(st.sampled_from([0, 0, min(2, total)])),
        total,
        draw(st.sampled_from([1, 3, 8, 2000])),
        shuffle=draw(st.sampled_from([True, True, False])),
        num_runs=draw(st.sampled_from([1, 2, 3, 4, 6])),
        redeal=draw(st.booleans()),
        ending=draw(st.sampled_from(["uneven", "uneven", "pad", "drop"])),
        seed=draw(st.integers(0, 2**40)),
        epoch=draw(st.integers(0, 3)),
    )
    names = draw(st.lists(st.integers(-3, 300), min_size=1, max_size=5, unique=True))
    sizes = {name: draw(st.sampled_from([1, 2, 3, 4, 7])) for name in names}
    kind = draw(st.sampled_from(["any", "sorted", "one rare"]))
    buckets = draw(st.lists(st.sampled_from(names), min_size=total, max_size=total))
    if kind == "sorted":  # so that each run has buckets of its own
        buckets = sorted(buckets)
    elif kind == "one rare" and total:
        buckets = [names[-1], *([names[0]] * (total - 1))]
    return Job(case, buckets, sizes, draw(st.booleans()), draw(st.booleans()))


# The batches


@law(150, 3000, jobs(), st.data())
def test_batches_are_those_of_the_specification(job: Job, data: st.DataObject) -> None:
    """Batches and counts are those of a second implementation, written from the page.

    ORDER-40, ORDER-41, ORDER-42, ORDER-43, ORDER-44, ORDER-45.
    """
    num_replicas = data.draw(st.sampled_from(divisors(job.case.num_runs)))
    expected = job.expected()

    samplers = [job.sampler(rank, num_replicas) for rank in range(num_replicas)]

    for rank, sampler in enumerate(samplers):
        assert list(sampler) == reference.rank(expected, rank, num_replicas)
        assert (sampler.num_repeated, sampler.num_left_out) == (
            expected.num_repeated,
            expected.num_left_out,
        )


@pytest.mark.parametrize("number", range(len(GOLDEN["epochs"])))
def test_golden_batches(number: int) -> None:
    """The batches of every rank match (ORDER-47)."""
    vector = GOLDEN["epochs"][number]
    job = Job(
        reference_order.Case(**vector["order"]),
        vector["buckets"],
        dict(vector["batch_sizes"]),
        vector["aligned"],
        vector["drop_last"],
    )
    assert job.ranks(vector["num_replicas"]) == vector["ranks"]
    sampler = job.sampler(0, 1)
    assert sampler.num_repeated == vector["num_repeated"]
    assert sampler.num_left_out == vector["num_left_out"]


def test_golden_vectors_are_those_of_the_reference() -> None:
    """The second implementation writes exactly this file."""
    assert json.loads(json.dumps(reference.golden())) == GOLDEN


# Exact epochs


@law(100, 2000, jobs(), st.data())
def test_nothing_is_lost_or_repeated_but_what_is_counted(job: Job, data: st.DataObject) -> None:
    """Ranks are equal, batches have one bucket and its size, and the counts explain the rest."""
    num_replicas = data.draw(st.sampled_from(divisors(job.case.num_runs)))

    ranks = job.ranks(num_replicas)

    sampler = job.sampler(0, num_replicas)
    assert {len(batches) for batches in ranks} == {len(sampler)}
    every = [batch for batches in ranks for batch in batches]
    for batch in every:
        assert {job.buckets[index] for index in batch} == {job.buckets[batch[0]]}
        size = job.sizes[job.buckets[batch[0]]]
        assert len(batch) == size if job.drop_last else 1 <= len(batch) <= size
    read = Counter(index for run in reference_order.runs(job.case) for index in run)
    made = Counter(index for batch in every for index in batch)
    if job.drop_last:
        assert made <= read
        assert sampler.num_repeated == 0
        assert sum((read - made).values()) == sampler.num_left_out
    else:
        assert made >= read
        assert sampler.num_left_out == 0
        assert sum((made - read).values()) == sampler.num_repeated


@law(60, 1200, jobs(), st.data())
def test_aligned_ranks_have_one_bucket_in_each_step(job: Job, data: st.DataObject) -> None:
    """In every step the batches of all ranks are of one bucket; at most one round is incomplete."""
    num_replicas = data.draw(st.sampled_from(divisors(job.case.num_runs)))
    job = replace(job, aligned=True)

    ranks = job.ranks(num_replicas)

    for step in zip(*ranks, strict=True):
        assert len({job.buckets[index] for batch in step for index in batch}) == 1
    if not job.drop_last:
        partial = Counter(
            job.buckets[batch[0]]
            for batches in ranks
            for batch in batches
            if len(batch) < job.sizes[job.buckets[batch[0]]]
        )
        assert max(partial.values(), default=0) <= job.case.num_runs


@law(60, 1200, jobs())
def test_fewer_batches_than_runs_repeat_or_are_left_out(job: Job) -> None:
    """Without `aligned`, of all that runs made; with it, of each bucket (ORDER-41, ORDER-44)."""
    num_runs = job.case.num_runs
    sampler = job.sampler(0, 1)
    longest = max(job.sizes.values())
    if not job.aligned:
        partial = sum(job.sizes[bucket] - 1 for bucket in set(job.buckets)) * num_runs
        assert sampler.num_repeated <= (num_runs - 1) * longest
        assert sampler.num_left_out <= (num_runs - 1) * longest + partial
        return
    read = Counter(job.buckets[i] for run in reference_order.runs(job.case) for i in run)
    left = {bucket: count % (num_runs * job.sizes[bucket]) for bucket, count in read.items()}
    expected = sum(max(num_runs - rest, 0) for rest in left.values() if rest)
    if job.drop_last:
        assert sampler.num_left_out == sum(left.values())
    elif num_runs > 1:
        assert sampler.num_repeated == expected


@law(30, 600, jobs())
def test_a_run_reads_its_own_samples_in_its_own_order(job: Job) -> None:
    """Samples of a bucket come in the order of the run, and borrowed ones come last."""
    job = replace(job, drop_last=True)
    for run, batches in enumerate(job.ranks(job.case.num_runs)):
        own = reference_order.runs(job.case)[run]
        mine = (
            [batch for batch in batches if set(batch) <= set(own)] if not job.aligned else batches
        )
        for bucket in set(job.buckets):
            of_run = [index for index in own if job.buckets[index] == bucket]
            taken = [i for batch in mine for i in batch if job.buckets[i] == bucket]
            assert taken[: len(of_run)] == of_run[: len(taken)]
            assert job.aligned or len(taken) <= len(of_run)


# Resuming anywhere


@law(6, 100, jobs(), st.data())
def test_resume_at_every_position_is_the_tail(job: Job, data: st.DataObject) -> None:
    """A state that went through JSON restores the rest of its epoch, after every batch."""
    num_replicas = data.draw(st.sampled_from(divisors(job.case.num_runs)))
    rank = data.draw(st.integers(0, num_replicas - 1))
    sampler = job.sampler(rank, num_replicas)
    whole = list(sampler)
    for position in range(len(whole)):
        list(islice(sampler, position))
        state = json.loads(json.dumps(sampler.state_dict()))
        assert state == json.loads(json.dumps(sampler.state_dict(num_consumed=position)))
        resumed = job.sampler(rank, num_replicas)
        resumed.load_state_dict(state)
        assert list(resumed) == whole[position:]
        assert list(resumed) == whole, "the epoch is fixed, and its next pass is complete"


@law(6, 100, jobs(), st.data())
def test_state_resumes_on_other_numbers_of_ranks(job: Job, data: st.DataObject) -> None:
    """After a full round a state resumes on any number of ranks with the same batches.

    Inside a round, the remaining batches are dealt out again (`test_rank_changes.py`).
    """
    before, after = (data.draw(st.sampled_from(divisors(job.case.num_runs))) for _ in "ba")
    width = job.case.num_runs // before
    olds = [job.sampler(rank, before) for rank in range(before)]
    expected = sorted(batch for sampler in olds for batch in sampler)
    for position in range(0, len(olds[0]), 1 if before == after else width):
        done = [batch for sampler in olds for batch in islice(sampler, position)]
        states = [sampler.state_dict() for sampler in olds]
        assert all(state == states[0] for state in states)
        news = [job.sampler(rank, after) for rank in range(after)]
        for new in news:
            new.load_state_dict(states[0])
        assert sorted([*done, *(batch for new in news for batch in new)]) == expected
