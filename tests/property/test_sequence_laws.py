"""The order that can be asked is the one that is read, for thousands of epochs, rests and mixes.

Configurations are drawn from a seed: by themselves they take a tenth of the time of strategies.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from itertools import chain, islice
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from laws import REPEATS, law
from test_mix_laws import Data as Sources
from test_sampler_laws import Data, divisors

from wids import (
    BucketBatchSampler,
    DistributedChunkedSampler,
    MixedSampler,
    PackedBatchSampler,
)
from wids.cli.order_command import ReadEpoch
from wids.order import epoch_order, mixing, rounds, sequences

pytestmark = REPEATS


@pytest.fixture(autouse=True, scope="module")
def little_is_kept() -> Iterator[None]:
    """Keep so little that even these epochs do not fit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch_order, "_NUM_KEPT", 1)
        patch.setattr(epoch_order, "_NUM_HELD", 20)
        patch.setattr(mixing, "_NUM_KEPT", 1)
        patch.setattr(sequences, "_NUM_BATCHES", 2)
        patch.setattr(rounds, "_WINDOW", 4)
        yield


SEEDS = st.integers(0, 2**60)


def chunked(draw: Random, longest: int = 14) -> dict[str, Any]:
    """Return the arguments of a sampler of chunks, but for its rank."""
    data = Data(tuple(draw.randint(0, longest) for _ in range(draw.randint(1, 7))))
    total = len(data)
    start = draw.choice([0, 0, min(3, total)])
    drop_last, even = draw.choice([(False, True), (True, True), (False, False)])
    return {
        "dataset": data,
        "num_samples": (start, draw.choice([total, total, max(start, total - 4)])),
        "chunksize": draw.choice([1, 2, 3, 5, 8, 13, 2000]),
        "seed": draw.getrandbits(40),
        "shuffle": draw.random() < 0.8,
        "shufflefirst": draw.random() < 0.5,
        "drop_last": drop_last,
        "even": even,
        "redeal": draw.random() < 0.5,
    }


def mixed(draw: Random) -> dict[str, Any]:
    """Return the arguments of a mix, but for its rank."""
    weights = [draw.randint(1, 12) for _ in range(draw.randint(1, 4))]
    ranges: list[list[list[int]]] = [[] for _ in weights]
    at = 0
    # Ranges of the sources in turn, with gaps, so that most sources are in several places.
    for number in range(draw.randint(len(weights), 8)):
        at += draw.choice([0, 0, 2])
        length = draw.randint(0 if number >= len(weights) else 1, 9)
        ranges[number % len(weights)].append([at, at + length])
        at += length
    return {
        "dataset": Sources(ranges),
        "weights": draw.choice([weights, changing(draw, weights)]),
        "num_samples": draw.randint(1, 40),
        "chunksize": draw.choice([1, 2, 3, 5, 2000]),
        "seed": draw.getrandbits(40),
        "shuffle": draw.random() < 0.7,
    }


def changing(draw: Random, weights: list[int]) -> list[Any]:
    """Return a schedule that begins with these weights."""
    phases: list[Any] = [(0, weights)]
    for _ in range(draw.randint(1, 3)):
        later = [draw.randint(1, 12), *(draw.randint(0, 12) for _ in weights[1:])]
        phases.append((phases[-1][0] + draw.choice([1, 5, 30, 100]), later))
    return phases


def ranks(draw: Random, kind: Any, arguments: dict[str, Any]) -> list[Any]:
    """Return the samplers of all ranks of a job, in the same epoch."""
    num_runs = draw.choice([1, 2, 3, 4, 6, 8, 12])
    count, epoch = draw.choice(divisors(num_runs)), draw.randint(0, 5)
    made = [
        kind(**arguments, rank=rank, num_replicas=count, num_canonical=num_runs)
        for rank in range(count)
    ]
    for sampler in made:
        sampler.set_epoch(epoch)
    return made


def check(samplers: list[Any], walks: list[list[Any]], draw: Random) -> None:
    """`indices` and `steps_of` of all ranks say what the ranks read."""
    for sampler, walk in zip(samplers, walks, strict=True):
        found, length = sampler.indices(), len(walk)
        assert len(found) == length
        assert list(found) == walk
        places = [draw.randrange(-length, length) for _ in range(min(6, length))]
        assert [found[place] for place in places] == [walk[place] for place in places]
        start, stop = (draw.choice([None, draw.randint(-length - 2, length + 2)]) for _ in "ab")
        some = slice(start, stop, draw.choice([None, 1, 2, 3, -1, -2]))
        assert list(found[some]) == walk[some]
        assert list(pickle.loads(pickle.dumps(found[some]))) == walk[some]  # noqa: S301 - ours
        with pytest.raises(IndexError, match=f"one of the {length:,} places .* found {length};"):
            found[length]
    steps_of: dict[int, list[tuple[int, int]]] = {}
    for rank, walk in enumerate(walks):
        for position, item in enumerate(walk):
            for index in set(item) if isinstance(item, list) else [item]:
                steps_of.setdefault(index, []).append((rank, position))
    sampler = draw.choice(samplers)
    for index in draw.sample(range(sampler.dataset_length), min(10, sampler.dataset_length)):
        assert sampler.steps_of(index) == steps_of.get(index, [])


@law(100, 10_000, SEEDS)
def test_epochs_are_what_is_asked(seed: int) -> None:
    """Each place of each rank, and each place of each sample, in any epoch (ORDER-67, ORDER-68)."""
    draw = Random(seed)
    samplers = ranks(draw, DistributedChunkedSampler, chunked(draw))

    check(samplers, [list(sampler.ahead()) for sampler in samplers], draw)


@law(50, 7_000, SEEDS)
def test_mixes_are_what_is_asked(seed: int) -> None:
    """So it is for mixes, whose sources are read again and again (ORDER-67, ORDER-68).

    Their weights may change (ORDER-29).
    """
    draw = Random(seed)
    samplers = ranks(draw, MixedSampler, mixed(draw))

    check(samplers, [list(sampler.ahead()) for sampler in samplers], draw)


@law(30, 2_000, SEEDS)
def test_rests_are_what_is_asked(seed: int) -> None:
    """After resumptions, on any numbers of ranks, it is the latest part (ORDER-67, ORDER-68)."""
    draw = Random(seed)
    arguments, state = chunked(draw), None
    for num_left in reversed(range(draw.randint(2, 4))):
        count, num_read = draw.randint(1, 9), draw.randint(0, 4)
        samplers = [
            DistributedChunkedSampler(**arguments, rank=rank, num_replicas=count)
            for rank in range(count)
        ]
        for sampler in samplers if state else ():
            sampler.load_state_dict(state)
        for sampler in samplers:
            before = sampler._place_of(sampler.epoch).position
            assert list(sampler.indices()[before:]) == list(sampler.ahead())
        if samplers[0].epoch or not num_left:
            check(samplers, [list(sampler.indices()) for sampler in samplers], draw)
            return
        for sampler in samplers:
            list(islice(sampler, num_read))
        state = json.loads(json.dumps(samplers[-1].state_dict()))


@law(20, 1_500, SEEDS)
def test_batches_are_what_is_asked(seed: int) -> None:
    """So it is for batches of buckets, whose positions are those of batches."""
    draw = Random(seed)
    kind, arguments = draw.choice([(DistributedChunkedSampler, chunked), (MixedSampler, mixed)])
    inside = ranks(draw, kind, arguments(draw))
    numbers = [draw.randint(0, 3) for _ in range(inside[0].dataset_length)]
    options = {"aligned": draw.random() < 0.5, "drop_last": draw.random() < 0.5}
    samplers = [
        BucketBatchSampler(sampler, np.array(numbers), lambda bucket: bucket % 3 + 1, **options)
        for sampler in inside
    ]

    check(samplers, [list(sampler.ahead()) for sampler in samplers], draw)


def of_job(draw: Random, kind: str, arguments: dict[str, Any]) -> Callable[[int], list[Any]]:
    """Return what makes the samplers of all ranks of a job, for any number of ranks."""
    numbers = [draw.randint(0, 3) for _ in range(len(arguments["dataset"]))]
    drop_last = draw.random() < 0.5
    num_runs = draw.choice([None, None, 24])

    def made(count: int) -> list[Any]:
        ranks = [
            DistributedChunkedSampler(
                **arguments, rank=rank, num_replicas=count, num_canonical=num_runs
            )
            for rank in range(count)
        ]
        if kind == "samples":
            return ranks
        if kind == "packed":
            lengths = [number + 1 for number in numbers]
            return [PackedBatchSampler(each, lengths, 5, window=6) for each in ranks]
        return [
            BucketBatchSampler(each, numbers, lambda b: b % 3 + 1, drop_last=drop_last)
            for each in ranks
        ]

    return made


@law(20, 2_000, SEEDS)
def test_steps_are_what_ranks_have_read(seed: int) -> None:
    """Each step of an epoch, whatever ranks read its parts, and each step of a sample (ORDER-80).

    What is skipped counts as read, and the state is anywhere in its part.
    """
    draw = Random(seed)
    kind = draw.choice(["samples", "samples", "batches", "packed"])
    made = of_job(draw, kind, chunked(draw, 40))
    walk: list[list[list[Any]]] = []  # steps, ranks, items
    sizes, state, epoch, count = [], None, draw.randint(0, 3), 0
    for num_later in reversed(range(draw.randint(1, 4))):
        count = draw.choice([number for number in (1, 2, 3, 4, 6, 8) if number != count])
        samplers = made(count)
        for sampler in samplers:
            sampler.load_state_dict(state) if state else sampler.set_epoch(epoch)
        orders = [list(sampler.ahead()) for sampler in samplers]
        size = draw.randint(1, 3) if kind == "samples" else 1
        num_read = draw.randint(0, 2) * size if num_later else draw.randint(0, 5)
        is_other = samplers[0].epoch != epoch or samplers[0]._place_of(epoch).position
        if is_other or num_read >= min(map(len, orders)):
            return  # the epoch has ended, or others continue the same part (ORDER-50)
        state = json.loads(json.dumps(samplers[-1].state_dict(num_consumed=num_read)))
        sizes += [size] if num_read or not num_later else []
        begun = num_read if num_later or num_read % size else 0
        walk += cut(orders, range(begun), size)
    next_step = len(walk) + (num_read - begun) // size
    walk += cut(orders, range(begun, max(map(len, orders))), size)

    num_runs = json.loads(state["fingerprint"])["num_canonical"]
    job = made(1)[0]._of_rank(0, state["num_replicas"], num_runs)
    job.load_state_dict(state)
    found = ReadEpoch(job, sizes)
    rows = list(found.samples(range(len(walk))))

    assert (found.number, found.next_step) == (epoch, next_step)
    assert [row[2] for row in rows if kind == "samples"] == [
        place for step in walk for items in step for place, _ in items if kind == "samples"
    ]
    for number, step in enumerate(walk):
        for rank, items in enumerate(step):
            expected = list(chain.from_iterable([i] if kind == "samples" else i for _, i in items))
            assert [row[3] for row in rows if row[:2] == (number, rank)] == expected
    length = samplers[0].dataset_length
    for index in draw.sample(range(length), min(4, length)):
        assert {*found.steps_of(index)} == {row for row in rows if row[3] == index}
    with pytest.raises(ValueError, match=f"expected one of the {len(walk)} steps of epoch {epoch}"):
        found.samples(range(len(walk) + 1))


def cut(orders: list[list[Any]], places: range, size: int) -> list[list[list[Any]]]:
    """Return the steps at some places: for each rank, places and items."""
    return [
        [[*enumerate(order)][at : min(at + size, places.stop)] for order in orders]
        for at in places[::size]
    ]
