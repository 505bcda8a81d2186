"""The order of an epoch as a sequence, and where a sample comes in it."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import pytest
from conftest import raises
from ranks import Lengths

import wids
from wids import BucketBatchSampler, ChunkedSampler, DistributedChunkedSampler, MixedSampler
from wids.order import epoch_order

MIX = [wids.ShardSpec(f"/{number}.tar", 500, dataset="ab"[number % 2]) for number in range(8)]


def resumed(**options: Any) -> DistributedChunkedSampler:
    """Return a sampler in an epoch that another number of ranks has begun."""
    state = DistributedChunkedSampler(Lengths(900, 2100), num_replicas=5, rank=0).state_dict(77)
    sampler = DistributedChunkedSampler(Lengths(900, 2100), num_replicas=3, rank=1, **options)
    sampler.load_state_dict(state)
    return sampler


def batched() -> BucketBatchSampler:
    inside = DistributedChunkedSampler(Lengths(900, 2100), num_replicas=2, rank=1, num_canonical=4)
    return BucketBatchSampler(inside, [n % 3 for n in range(3000)], 8, aligned=True)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "one process": lambda: ChunkedSampler(Lengths(900, 2100)),
    "shards": lambda: wids.ShardListSampler(Lengths(900, 2100)),
    "ranks": lambda: DistributedChunkedSampler(
        Lengths(900, 2100), num_replicas=3, rank=1, chunksize=100, num_canonical=6, redeal=True
    ),
    "rest": resumed,
    "mix": lambda: MixedSampler(
        wids.ShardListDataset(MIX), {"a": 3, "b": 1}, num_replicas=2, rank=1, chunksize=100
    ),
    "batches": batched,
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_threads_may_share_it(name: str) -> None:
    """Whatever places they ask for, and in whatever turn."""
    sampler = SAMPLERS[name]()
    order, found = list(sampler.ahead()), sampler.indices()
    places = [Random(0).randrange(len(order)) for _ in range(200)]
    places += [*range(100), *reversed(range(100))]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(found.__getitem__, places)) == [order[place] for place in places]


def test_programs_without_torch_read_it(tmp_path: Path) -> None:
    """What a sampler returns is loaded and read where torch cannot be imported."""
    made = {name: make() for name, make in SAMPLERS.items()}
    sequences = {name: sampler.indices() for name, sampler in made.items()}
    (tmp_path / "sequences").write_bytes(pickle.dumps(sequences))
    program = """if True:
        import json, pickle, sys
        sys.modules["torch"] = None
        with open(sys.argv[1], "rb") as file:
            found = pickle.load(file)
        print(json.dumps({name: [*each] + [each[7]] for name, each in found.items()}))
    """
    command = [sys.executable, "-c", program, str(tmp_path / "sequences")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    expected = {name: [*each, each[7]] for name, each in sequences.items()}
    assert json.loads(done.stdout) == expected


@pytest.mark.parametrize("name", ["one process", "ranks", "rest", "mix"])
def test_a_place_costs_one_chunk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the chunks and one permutation; one more in another chunk; none in the same."""
    sampler = SAMPLERS[name]()
    order = list(sampler.ahead())
    lengths = []

    def counted(length: int, *key: int) -> Any:
        lengths.append(length)
        return permuted(length, *key)

    permuted = epoch_order.permutation
    monkeypatch.setattr(epoch_order, "permutation", counted)
    kept = cache(epoch_order._kept_permutations.__wrapped__)
    monkeypatch.setattr(epoch_order, "_kept_permutations", kept)
    found = sampler.indices()
    assert len(found) == len(order)
    assert lengths == []
    assert found[300] == order[300]
    del lengths[0]  # the order of the chunks
    assert len(lengths) == 1
    assert found[300] == order[300]
    assert len(lengths) == 1
    sampler.steps_of(order[300])
    assert len(lengths) <= 2


def test_it_is_small_when_sent() -> None:
    """A hundred million samples in ten thousand shards: a few kB, also of unequal shards."""
    equal, draw = Lengths(*[10_000] * 10_000), Random(0)
    unequal = Lengths(*[draw.choice([9_984, 10_000, 10_016]) for _ in range(10_000)])
    nearly = Lengths(*[*[10_000] * 9_999, 17])

    sizes = [
        len(pickle.dumps(DistributedChunkedSampler(data, num_replicas=8, rank=3).indices()[5:]))
        for data in (equal, nearly, unequal)
    ]

    assert max(sizes[:2]) < 1000
    assert sizes[2] < 5000


def test_it_does_not_change_with_the_sampler() -> None:
    """It is of one epoch, as a pass is; `epoch` chooses another."""
    sampler = ChunkedSampler(range(50), chunksize=10)
    first, third = sampler.indices(), sampler.indices(epoch=2)
    orders = [list(sampler) for _ in range(3)]

    assert [list(first), list(third), list(sampler.indices(1))] == [orders[0], orders[2], orders[1]]
    assert sampler.epoch == 3


def test_what_is_left_starts_at_the_position() -> None:
    """A restored sampler's sequence has the whole epoch, and the state says where it is."""
    data = Lengths(30, 20)
    state = DistributedChunkedSampler(data, num_replicas=2, rank=0).state_dict(num_consumed=7)
    sampler = DistributedChunkedSampler(data, num_replicas=2, rank=1)
    whole = list(sampler)
    sampler.load_state_dict(state)

    order = sampler.indices()

    assert list(order) == whole
    assert list(order[state["position"] // state["num_replicas"] :]) == list(sampler)


def test_a_length_that_is_stated_is_not_that_of_the_sequence() -> None:
    """``dslength_per_replica`` is what ``len(sampler)`` returns, and nothing else."""
    sampler = ChunkedSampler(range(10), dslength_per_replica=99)

    assert (len(sampler), len(sampler.indices())) == (99, 10)


def test_steps_of_what_is_repeated_and_left_out() -> None:
    """A padded rank has its first sample twice; a dropped sample comes nowhere (ORDER-68)."""
    padded, dropped = (
        [
            DistributedChunkedSampler(range(7), num_replicas=2, rank=rank, drop_last=drop)
            for rank in (0, 1)
        ]
        for drop in (False, True)
    )
    first = next(iter(padded[0]))
    (missing,) = {*range(7)} - {*dropped[0], *dropped[1]}

    assert padded[1].steps_of(first, epoch=0) == [(0, 0), (0, 3)]
    assert dropped[0].steps_of(missing, epoch=0) == []


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (-1, "index: expected an integer of at least 0, found -1"),
        (7, "index: expected less than the 7 samples of the dataset, found 7; dataset.find_key"),
        (1.0, "index: expected an integer of at least 0, found 1.0"),
        ("a", "found 'a'"),
    ],
)
@pytest.mark.parametrize("is_batched", [False, True])
def test_samples_that_are_not_there(index: Any, message: str, is_batched: bool) -> None:
    """An index of no sample is an error, not an empty answer."""
    sampler: Any = ChunkedSampler(range(7))
    if is_batched:
        sampler = BucketBatchSampler(sampler, [0] * 7, 2)
    with raises(ValueError, message):
        sampler.steps_of(index)
    with raises(ValueError, "epoch: expected an integer of at least 0, found -1"):
        sampler.indices(epoch=-1)
    with raises(ValueError, "epoch: expected an integer of at least 0, found -1"):
        sampler.steps_of(0, epoch=-1)


def test_it_says_what_it_is() -> None:
    """A prompt shows rank and epoch; slices are sequences."""
    order = DistributedChunkedSampler(range(9000), num_replicas=3, rank=1).indices(4)

    assert repr(order) == "<3,000 indices of rank 1 of 3 in epoch 4>"
    assert repr(order[10:20]) == "<10 indices of rank 1 of 3 in epoch 4>"


def test_batches_go_on_after_ctrl_c() -> None:
    """An error in the walk to a batch is of that call alone."""
    inside = ChunkedSampler(range(100_000))
    found = BucketBatchSampler(inside, [0] * 100_000, 8).indices()
    expected = list(found)
    rounds, walks = found._rounds, []  # type: ignore[attr-defined]
    run_blocks = rounds._run_blocks

    def interrupted(run: int) -> Iterator[Any]:
        for number, block in enumerate(run_blocks(run)):
            walks.append(number)
            if len(walks) == 20:
                raise KeyboardInterrupt
            yield block

    rounds._run_blocks = interrupted
    with pytest.raises(KeyboardInterrupt):
        found[12_000]
    assert [found[number] for number in (12_000, 10, 12_499)] == [
        expected[number] for number in (12_000, 10, 12_499)
    ]


@pytest.mark.alone
def test_what_is_kept_makes_no_place_slower() -> None:
    """Small chunks are many: a dataset of a million shards of one sample has a million."""
    found = ChunkedSampler(range(400_000), chunksize=2).indices()

    def seconds(start: int) -> float:
        begun_s = process_time()
        for place in range(start, start + 400, 2):
            found[place]
        return process_time() - begun_s

    seconds(0)
    empty_s = seconds(1000)
    for place in range(2000, 100_000, 2):
        found[place]
    assert seconds(200_000) < 5 * empty_s
