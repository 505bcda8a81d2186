"""The laws of packed batches, on thousands of datasets, budgets and numbers of ranks.

Configurations are drawn from a seed: by themselves they take a tenth of the time of strategies.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from math import gcd
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import reference_order
import reference_packed as reference
from hypothesis import strategies as st
from laws import REPEATS, law
from reference_buckets import rank as of_rank
from test_mix_laws import Data as Sources
from test_sampler_laws import Data, divisors

import wids
from wids import DistributedChunkedSampler, MixedSampler, PackedBatchSampler
from wids.order import packed_rounds, rounds, sequences

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "specs" / "packed-batches.golden.json").read_text("utf-8")
)

pytestmark = [REPEATS, pytest.mark.filterwarnings("ignore:.*batches of the epoch have")]

Batches = list[list[int]]
SEEDS = st.integers(0, 2**60)


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """Look at so few samples at a time that even these windows need several looks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "_WINDOW", 4)
        patch.setattr(packed_rounds, "_BLOCK_LENGTH", 3)
        patch.setattr(sequences, "_NUM_BATCHES", 2)
        yield


@dataclass(frozen=True)
class Job:
    """A dataset, the options of its order, and the arguments of the sampler."""

    order: reference_order.Case
    arguments: dict[str, Any]

    def sampler(
        self, rank: int, num_replicas: int, num_canonical: int | None = None
    ) -> PackedBatchSampler:
        """Return the sampler of a rank, in the job's epoch."""
        order = self.order
        inside = DistributedChunkedSampler(
            Data(tuple(order.lengths)),
            num_replicas=num_replicas,
            rank=rank,
            num_canonical=num_canonical,
            chunksize=order.chunksize or 1,
            seed=order.seed,
            shuffle=order.shuffle,
            redeal=order.redeal,
            drop_last=order.ending == "drop",
            even=order.ending != "uneven",
        )
        made = PackedBatchSampler(inside, **public(self.arguments))
        made.set_epoch(order.epoch)
        return made

    def expected(self, runs: list[list[int]] | None = None) -> reference.Job:
        """Return the job of the second implementation."""
        order = self.order
        shared = {"shuffle": order.shuffle, "seed": order.seed, "epoch": order.epoch}
        job = reference.Job([], **self.arguments, **shared)
        return replace(job, runs=runs or reference.cut_runs(order, job))


def public(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of the reference as those of the sampler."""
    others = dict(arguments)
    counts, limit = others.pop("counts"), others.pop("limit")
    if counts is not None:
        others["budgets"] = {"images": (counts, limit)}
    return {"lengths": others.pop("tokens"), **others}


def drawn_tokens(draw: Random, count: int, least: int, most: int) -> list[int]:
    """Return lengths of samples: of any order, of sources, sorted, drifting, or all alike."""
    kind = draw.choice(["any", "any", "sources", "sorted", "drifting", "half", "third"])
    tokens = [draw.randint(least, draw.choice([most, max(least, most // 4)])) for _ in range(count)]
    if kind == "sources":
        edges = [draw.randint(least, most) for _ in range(draw.randint(2, 8))]
        return [edges[at * len(edges) // count] for at in range(count)]
    if kind == "sorted":
        return sorted(tokens, reverse=draw.random() < 0.5)
    if kind == "drifting":
        return [max(least, tokens[at] * (at + 1) // count) for at in range(count)]
    share = {"half": 51, "third": 34}.get(kind)
    return tokens if share is None else [max(least, most * share // 100)] * count


def drawn_arguments(draw: Random, count: int) -> dict[str, Any]:
    """Return the arguments of a sampler over so many samples."""
    limit = draw.choice([1, 4, 9])
    max_tokens = draw.choice([1, 7, 20, 50])
    most = max_tokens + draw.choice([0, 0, 3])
    least = draw.choice([0, 1, 1, most // 2])
    tokens = drawn_tokens(draw, count, least, most)
    counts = [draw.choice([0, 0, 1, draw.randint(0, limit)]) for _ in range(count)]
    exceeds = max(tokens, default=0) > max_tokens
    return {
        "tokens": tokens,
        "max_tokens": max_tokens,
        "max_items": draw.choice([None, None, 1, 2, 5]),
        "counts": draw.choice([None, None, counts]),
        "limit": limit,
        "window": draw.choice([1, 2, 3, 8, 512]),
        "too_long": draw.choice(["skip", "alone"] if exceeds else ["error", "skip", "alone"]),
        "drop_last": draw.random() < 0.4,
        "cost": draw.choice([None, None, "sum", "squares", [draw.randint(0, 9) for _ in tokens]]),
    }


def drawn(seed: int) -> tuple[Job, Random]:
    """Return the job of a seed, and what draws the rest."""
    draw = Random(seed)
    lengths = [draw.randint(0, 25) for _ in range(draw.randint(1, 5))]
    order = reference_order.Case(
        lengths,
        0,
        sum(lengths),
        draw.choice([1, 3, 8, 2000]),
        shuffle=draw.random() < 0.8,
        num_runs=draw.choice([1, 2, 2, 3, 3, 4, 4, 6, 6, draw.randint(7, 64)]),
        redeal=draw.random() < 0.5,
        ending=draw.choice(["uneven", "uneven", "pad", "drop"]),
        seed=draw.getrandbits(40),
        epoch=draw.randint(0, 3),
    )
    return Job(order, drawn_arguments(draw, sum(lengths))), draw


def own_batches(job: Job) -> list[Batches]:
    """Return the batches that each run makes of its own samples."""
    num_runs = job.order.num_runs
    sampler = job.sampler(0, num_runs, num_runs)
    made: Any = sampler._rounds(sampler._place_of(job.order.epoch))
    return [
        [batch for block in made.own_batches(run, 0) for batch in block] for run in range(num_runs)
    ]


# The batches


@law(120, 10_000, SEEDS)
def test_batches_are_those_of_the_specification(seed: int) -> None:
    """Batches and counts are those of a second implementation, written from the page.

    ORDER-70, ORDER-71, ORDER-72, ORDER-73, ORDER-74, ORDER-75, ORDER-81.
    """
    job, draw = drawn(seed)
    expected = reference.epoch(job.expected())
    num_replicas = draw.choice(divisors(job.order.num_runs))
    for rank in range(num_replicas):
        sampler = job.sampler(rank, num_replicas, job.order.num_runs)
        own = of_rank(expected, rank, num_replicas)
        if draw.random() < 0.5:
            assert len(sampler) == len(own)
        assert list(sampler) == own
        counts = sampler.num_repeated, sampler.num_left_out
        sampler.set_epoch(job.order.epoch)
        assert counts == (expected.num_repeated, expected.num_left_out)


@pytest.mark.parametrize("number", range(len(GOLDEN["epochs"])))
def test_golden_batches(number: int) -> None:
    """The batches of every rank match (ORDER-77)."""
    vector = dict(GOLDEN["epochs"][number])
    order = reference_order.Case(**vector.pop("order"))
    names = ("num_replicas", "ranks", "num_repeated", "num_left_out")
    num_replicas, ranks, *counts = (vector.pop(name) for name in names)
    samplers = [
        Job(order, vector).sampler(rank, num_replicas, order.num_runs)
        for rank in range(num_replicas)
    ]
    assert [list(sampler) for sampler in samplers] == ranks
    samplers[0].set_epoch(order.epoch)
    assert [samplers[0].num_repeated, samplers[0].num_left_out] == counts


def test_golden_vectors_are_those_of_the_reference() -> None:
    """The second implementation writes exactly this file."""
    assert json.loads(json.dumps(reference.golden())) == GOLDEN


@law(60, 10_000, SEEDS)
def test_budgets_are_kept_and_each_sample_comes_once(seed: int) -> None:
    """No batch exceeds a budget unless its only sample does; ranks are equal; counts are exact.

    Every sample comes once; fewer batches than runs repeat, or are left out (ORDER-41, ORDER-73).
    """
    job, draw = drawn(seed)
    arguments, num_runs = job.arguments, job.order.num_runs
    num_replicas = draw.choice(divisors(num_runs))
    samplers = [job.sampler(rank, num_replicas, num_runs) for rank in range(num_replicas)]
    ranks = [list(sampler.ahead()) for sampler in samplers]

    assert {len(batches) for batches in ranks} == {len(samplers[0])}
    every = [batch for batches in ranks for batch in batches]
    for batch in every:
        tokens = sum(arguments["tokens"][index] for index in batch)
        images = sum(arguments["counts"][index] for index in batch) if arguments["counts"] else 0
        fits = tokens <= arguments["max_tokens"] and images <= arguments["limit"]
        assert fits or (len(batch) == 1 and arguments["too_long"] == "alone")
        assert 1 <= len(batch) <= (arguments["max_items"] or len(batch))
    exceeds = job.expected().exceeds
    skipped = {
        index
        for index in range(job.order.stop)
        if arguments["too_long"] == "skip" and exceeds(index)
    }
    made = Counter(index for batch in every for index in batch)
    missing = set(range(job.order.stop)) - skipped - set(made)
    assert not skipped & set(made)
    assert made.total() - len(made) == samplers[0].num_repeated
    assert len(missing) + len(skipped) == samplers[0].num_left_out
    own = [tuple(batch) for batches in own_batches(job) for batch in batches]
    again = Counter(map(tuple, every)) - Counter(own)
    left_out = Counter(own) - Counter(map(tuple, every))
    if arguments["drop_last"]:
        assert not again
        assert left_out.total() < num_runs
    else:
        assert not missing
        assert again.total() < num_runs
        assert max(again.values(), default=0) <= -(-num_runs // len(own)) if own else not again


@law(100, 5_000, SEEDS)
def test_windows_are_full_and_in_order(seed: int) -> None:
    """Each window but the last has as many batches as stated; windows follow one another."""
    job, _ = drawn(seed)
    job = Job(job.order, {**job.arguments, "drop_last": False, "too_long": "alone"})
    window = job.arguments["window"]
    runs = job.expected().runs
    for run, batches in enumerate(own_batches(job)):
        at = 0
        for first in range(0, len(batches), window):
            inside = [index for batch in batches[first : first + window] for index in batch]
            assert Counter(inside) == Counter(runs[run][at : at + len(inside)])
            at += len(inside)
        assert at == len(runs[run])


@law(60, 3_000, SEEDS)
def test_steps_have_about_the_same_cost_on_all_ranks(seed: int) -> None:
    """In each common step of a window, all runs have the batch of the same place by cost.

    So do they in the last windows, where runs have different numbers of batches (ORDER-74).
    """
    job, _ = drawn(seed)
    job = Job(job.order, {**job.arguments, "cost": "squares", "drop_last": False})
    expected = job.expected()
    made = own_batches(job)
    window = job.arguments["window"]
    common = min(map(len, made))
    costs = [[reference.cost(expected, batch) for batch in batches] for batches in made]
    for first in range(0, common, window):
        last = min(first + window, common)
        if first + window < common or all(len(each) <= last + window for each in made):
            by_cost = [sorted(each[first:last], reverse=True) for each in costs]
            places = [
                [by_cost[run].index(costs[run][step]) for step in range(first, last)]
                for run in range(len(made))
            ]
            distinct = [len(set(each)) == last - first for each in by_cost]
            kept = [each for each, is_distinct in zip(places, distinct, strict=True) if is_distinct]
            assert all(each == kept[0] for each in kept)


# Resuming anywhere


@law(8, 1_000, SEEDS)
def test_resume_at_every_step_is_the_tail(seed: int) -> None:
    """A state that went through JSON restores the rest of its epoch, after every batch.

    It does so with the `windows` of any rank, and with those of all (ORDER-76).
    """
    job, draw = drawn(seed)
    num_replicas = draw.choice(divisors(job.order.num_runs))
    rank, other = (draw.randrange(num_replicas) for _ in range(2))
    sampler, saving = (
        job.sampler(each, num_replicas, job.order.num_runs) for each in (rank, other)
    )
    whole = list(sampler.ahead())
    for position in range(len(whole)):
        list(islice(saving, position))
        if draw.random() < 0.3:
            len(saving)
        state = json.loads(json.dumps(saving.state_dict()))
        resumed = job.sampler(rank, num_replicas, job.order.num_runs)
        resumed.load_state_dict(state)
        assert list(resumed) == whole[position:]
        saving = job.sampler(other, num_replicas, job.order.num_runs)


@law(40, 10_000, SEEDS)
def test_chains_of_ranks_read_each_batch_once(seed: int) -> None:
    """Batches stay what they are on any numbers of ranks, and each comes once (ORDER-53, ORDER-76).

    Fewer than the ranks come again, or are left out with `drop_last`.
    """
    job, draw = drawn(seed)
    drop_last = job.arguments["drop_last"]
    chain = [(draw.randint(1, 9), draw.randint(0, 6)) for _ in range(draw.randint(1, 4))]
    order = replace(job.order, num_runs=next((n for n, steps in chain if steps), chain[-1][0]))
    whole = reference.own_batches(Job(order, job.arguments).expected())
    batches = Counter(tuple(sorted(batch)) for of_run in whole for batch in of_run)
    state: dict[str, Any] | None = None
    seen: Counter[tuple[int, ...]] = Counter()
    num_again, has_changed = 0, False
    for number, (num_replicas, steps) in enumerate(chain):
        samplers = [job.sampler(rank, num_replicas) for rank in range(num_replicas)]
        for each in samplers if state else ():
            each.load_state_dict(state)
        if samplers[0].epoch != job.order.epoch:
            break
        has_changed = bool(samplers[0]._place_of(job.order.epoch).history)
        stop = None if number == len(chain) - 1 else steps
        for step in zip(*(islice(each, stop) for each in samplers), strict=True):
            for batch in step:
                name = tuple(sorted(batch))
                num_again += has_changed * (seen[name] >= batches[name])
                seen[name] += 1
        if draw.random() < 0.3:
            samplers[0].num_repeated  # noqa: B018 - counts all windows
        states = [each.state_dict() for each in samplers]
        state = json.loads(json.dumps(draw.choice(states)))
        if state["epoch"] != job.order.epoch:
            break
    assert set(seen) <= set(batches)
    assert drop_last or set(seen) == set(batches)
    assert num_again < num_replicas
    assert not num_again or not drop_last
    indices = Counter(index for name in set(seen) for index in name)
    assert set(indices.values()) <= {1}


@law(25, 3_000, SEEDS)
def test_the_order_can_be_asked(seed: int) -> None:
    """`indices` and `steps_of` have what passes yield, also in another process."""
    job, draw = drawn(seed)
    num_replicas = draw.choice(divisors(job.order.num_runs))
    samplers = [job.sampler(rank, num_replicas, job.order.num_runs) for rank in range(num_replicas)]
    ranks = [list(sampler.ahead()) for sampler in samplers]
    number = draw.randrange(num_replicas)
    found = pickle.loads(pickle.dumps(samplers[number].indices()))  # noqa: S301 - made here
    for at in draw.sample(range(len(found)), min(len(found), 5)):
        assert found[at] == ranks[number][at]
    assert list(found) == ranks[number]
    for index in draw.sample(range(sum(job.order.lengths)), min(sum(job.order.lengths), 3)):
        assert samplers[number].steps_of(index) == [
            (rank, step)
            for rank, batches in enumerate(ranks)
            for step, batch in enumerate(batches)
            if index in batch
        ]


@law(30, 2_000, SEEDS)
def test_views_have_each_of_their_samples_once(seed: int) -> None:
    """Of masks, slices and repeated indices, of a range, on any number of ranks."""
    draw = Random(seed)
    shards = [wids.ShardSpec(f"/{n}.tar", draw.randint(0, 30)) for n in range(1, 5)]
    whole: Any = wids.ShardListDataset(shards)
    count = len(whole)
    kind = draw.choice(["mask", "slice", "indices"])
    if kind == "mask":
        view = whole[[draw.random() < 0.5 for _ in range(count)]]
    elif kind == "slice":
        view = whole[draw.randint(0, 5) :: draw.randint(1, 3)]
    else:
        view = whole[sorted(draw.randrange(count) for _ in range(count))] if count else whole
    lengths = drawn_tokens(draw, len(view), 1, 20)
    start = draw.randint(0, len(view))
    num_replicas = draw.choice([1, 2, 3, 5, 64])
    window = draw.choice([1, 4, 512])
    seen: Counter[int] = Counter()
    samplers = []
    for rank in range(num_replicas):
        inside = DistributedChunkedSampler(
            view, rank=rank, num_replicas=num_replicas, num_samples=(start, len(view)), chunksize=7
        )
        samplers.append(PackedBatchSampler(inside, lengths, 20, window=window))
        seen.update(index for batch in samplers[-1].ahead() for index in batch)
    assert set(seen) == set(range(start, len(view)))
    assert seen.total() - len(seen) == samplers[0].num_repeated


@law(50, 3_000, SEEDS)
def test_mixes_keep_their_proportions_of_samples(seed: int) -> None:
    """Windows follow the mixed order, whose proportions are of samples; states resume in them."""
    draw = Random(seed)
    weights = [draw.randint(1, 9) for _ in range(draw.randint(1, 3))]
    edges = np.cumsum([0, *(draw.randint(1, 20) for _ in weights)]).tolist()
    ranges = [[[a, b]] for a, b in pairwise(edges)]
    num_runs = draw.choice([1, 2, 4])
    mixing = {
        "weights": weights,
        "num_samples": draw.randint(1, 80),
        "chunksize": draw.choice([1, 3, 2000]),
        "seed": draw.getrandbits(40),
        "num_canonical": num_runs,
    }
    arguments = {**drawn_arguments(draw, edges[-1]), "cost": None, "drop_last": False}
    num_replicas = draw.choice(divisors(num_runs))

    def made(rank: int) -> PackedBatchSampler:
        inside = MixedSampler(Sources(ranges), num_replicas=num_replicas, rank=rank, **mixing)
        return PackedBatchSampler(inside, **public(arguments))

    mix = reference_order.Mix(
        ranges,
        [weight // gcd(*weights) for weight in weights],
        mixing["num_samples"],
        mixing["chunksize"],
        seed=mixing["seed"],
        num_runs=num_runs,
    )
    runs = [reference_order.mixed_run(mix, run) for run in range(num_runs)]
    expected = reference.epoch(
        reference.Job(runs, **arguments, shuffle=True, seed=mix.seed, epoch=0)
    )
    for rank in range(num_replicas):
        whole = of_rank(expected, rank, num_replicas)
        sampler = made(rank)
        step = draw.randint(0, max(len(whole) - 1, 0))
        assert list(islice(sampler, step)) == whole[:step]
        resumed = made(rank)
        resumed.load_state_dict(sampler.state_dict())
        assert list(resumed) == whole[step:] or not whole
