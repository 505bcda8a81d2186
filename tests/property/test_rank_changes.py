"""The laws of epochs that are read on changing numbers of ranks, for chains of such numbers."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import reference_order as reference
from hypothesis import strategies as st
from laws import REPEATS, law
from test_sampler_laws import Data

from wids import BucketBatchSampler, DistributedChunkedSampler

pytestmark = REPEATS

OPTIONS = {
    "pad": {},
    "drop": {"drop_last": True},
    "uneven": {"even": False},
}


History = list[tuple[int, int, int]]


@dataclass(frozen=True)
class Job:
    """A dataset with the order of its epochs, and the numbers of ranks that read one of them."""

    case: reference.Case
    chain: tuple[tuple[int, int], ...]
    num_canonical: int | None

    def sampler(self, rank: int, num_replicas: int) -> DistributedChunkedSampler:
        case = self.case
        return DistributedChunkedSampler(
            Data(tuple(case.lengths)),
            num_replicas=num_replicas,
            rank=rank,
            num_samples=(case.start, case.stop),
            chunksize=case.chunksize or 1,
            seed=case.seed,
            shuffle=case.shuffle,
            redeal=case.redeal,
            num_canonical=self.num_canonical,
            **OPTIONS[case.ending],
        )

    def num_runs(self, num_replicas: int) -> int:
        return self.num_canonical or num_replicas

    @property
    def range(self) -> range:
        return range(self.case.start, self.case.stop)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    lengths = draw(st.lists(st.integers(0, 25), min_size=1, max_size=6))
    total = sum(lengths)
    case = reference.Case(
        lengths,
        draw(st.sampled_from([0, 0, min(3, total)])),
        total,
        draw(st.sampled_from([1, 3, 8, 2000])),
        draw(st.sampled_from([True, True, False])),
        redeal=draw(st.booleans()),
        ending=draw(st.sampled_from(["pad", "pad", "drop", "uneven"])),
        seed=draw(st.integers(0, 2**40)),
    )
    num_canonical = draw(st.sampled_from([None, None, None, 12]))
    ranks = st.sampled_from([1, 2, 3, 4, 6, 12]) if num_canonical else st.integers(1, 17)
    part = st.tuples(ranks, st.one_of(st.integers(0, 3), st.integers(0, 12)))
    return Job(case, tuple(draw(st.lists(part, min_size=2, max_size=7))), num_canonical)


def continued(job: Job, history: History, num_replicas: int) -> tuple[History, int]:
    """Return the parts before, and how far ranks have come since (ORDER-10, ORDER-50)."""
    if history:
        *earlier, (ranks, steps, runs) = history
        is_same = ranks == num_replicas or ranks * steps % runs == 0
        if runs == job.num_runs(num_replicas) and is_same:
            return earlier, steps * ranks // num_replicas
    return history, 0


def read(job: Job, samplers: list[Any], history: History, before: int, steps: int | None) -> Any:
    """Read some steps on all ranks; compare them with the second implementation."""
    num_replicas = len(samplers)
    runs = job.num_runs(num_replicas)
    case = replace(job.case, num_runs=runs)
    whole = reference.rest(case, history, runs) if history else reference.runs(case)
    for rank, sampler in enumerate(samplers):
        places = reference.of_rank(whole, rank, num_replicas)[before:]
        expected = [whole[run][turn] for run, turn in places]
        assert len(sampler) == before + len(expected) + sum(part[1] for part in history)
        assert list(sampler.ahead()) == expected
        found = list(islice(sampler, steps))
        assert found == expected[:steps]
        yield from found


@law(80, 10_000, jobs())
def test_chains_of_ranks_read_each_sample_once(job: Job) -> None:
    """However the ranks change, each sample comes once, as the second implementation has it.

    Fewer than the ranks come again at the end, or are left out, or neither (ORDER-50, ORDER-51).
    """
    history: History = []
    state: dict[str, Any] | None = None
    seen: Counter[int] = Counter()
    *chain, (last, _) = job.chain
    for num_replicas, steps in [*chain, (last, None)]:
        samplers = [job.sampler(rank, num_replicas) for rank in range(num_replicas)]
        for sampler in samplers if state else ():
            sampler.load_state_dict(state)
        if samplers[0].epoch:  # fewer samples than ranks were left, and are left out
            break
        history, before = continued(job, history, num_replicas)
        seen.update(read(job, samplers, history, before, steps))
        states = [sampler.state_dict() for sampler in samplers]
        if all(each["epoch"] for each in states):
            break
        assert steps is not None
        state = json.loads(json.dumps(min(states, key=lambda each: int(each["epoch"]))))
        if before + steps:
            history = [*history, (num_replicas, before + steps, job.num_runs(num_replicas))]
    check_counts(job, seen, num_replicas)


def check_counts(job: Job, seen: Counter[int], num_replicas: int) -> None:
    again, missing = seen.total() - len(seen), len(job.range) - len(seen)
    assert set(seen) <= set(job.range)
    assert not missing or job.case.ending == "drop"
    assert not again or job.case.ending == "pad"
    assert missing < job.num_runs(num_replicas)
    # Inside the last round of several runs for each rank, a rank has had what comes again.
    assert again < num_replicas or job.num_canonical


@law(100, 10_000, jobs(), st.integers(1, 4), st.booleans())
def test_chains_of_ranks_read_each_batch_once(job: Job, num_buckets: int, drop_last: bool) -> None:
    """Batches stay what they are, and each comes once; fewer than the ranks repeat (ORDER-53)."""
    job = replace(job, case=replace(job.case, ending="uneven"))
    buckets = [index * index % 7 % num_buckets for index in range(sum(job.case.lengths))]

    def sampler(rank: int, num_replicas: int) -> BucketBatchSampler:
        inside = job.sampler(rank, num_replicas)
        return BucketBatchSampler(
            inside, buckets, lambda bucket: bucket % 2 + 2, drop_last=drop_last
        )

    state: dict[str, Any] | None = None
    seen: Counter[tuple[int, ...]] = Counter()
    whole: set[tuple[int, ...]] = set()
    num_again = 0
    *chain, (last, _) = job.chain
    for num_replicas, steps in [*chain, (last, None)]:
        samplers = [sampler(rank, num_replicas) for rank in range(num_replicas)]
        if not seen:
            whole = {tuple(batch) for each in samplers for batch in each.ahead()}
        for each in samplers if state else ():
            each.load_state_dict(state)
        if samplers[0].epoch:  # fewer batches than ranks were left, and are left out
            break
        has_changed = bool(samplers[0]._place_of(0).history)
        read = zip(*(islice(each, steps) for each in samplers), strict=True)
        for step in read:  # as many of each rank, or this raises
            num_again += has_changed * sum(tuple(batch) in seen for batch in step)
            seen.update(map(tuple, step))
            assert all(len({buckets[index] for index in batch}) == 1 for batch in step)
        states = [each.state_dict() for each in samplers]
        assert all(each == states[0] for each in states)
        state = json.loads(json.dumps(states[0]))
        if states[0]["epoch"]:
            break
    indices = Counter(index for batch in seen for index in batch)
    assert set(indices.values()) <= {1}, "no sample is in two batches"
    assert not whole - set(seen) or drop_last
    assert not set(seen) - whole or drop_last
    assert num_again < num_replicas or job.num_canonical
    assert not num_again or not drop_last


def test_a_long_epoch_resumes_at_once() -> None:
    """No index of a hundred million is listed, whatever the chain (ORDER-50)."""

    def made(num_replicas: int) -> DistributedChunkedSampler:
        data = Data((1_000_000,) * 100)
        return DistributedChunkedSampler(data, num_replicas=num_replicas, rank=num_replicas - 1)

    state = made(8).state_dict()
    tracemalloc.start()
    for num_replicas in (8, 6, 7, 16, 3):
        sampler = made(num_replicas)
        sampler.load_state_dict(state)
        state = sampler.state_dict(num_consumed=1_000_003)
        first = list(islice(sampler, 5))
        assert len(set(first)) == 5
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 << 20
    assert len(json.dumps(state)) < 1000
