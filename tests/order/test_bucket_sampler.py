"""Batches from buckets: what may be passed, epochs, states, and what is counted."""

from __future__ import annotations

import doctest
import importlib.util
import json
import pickle
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from conftest import need, raises
from ranks import DATA, Lengths
from torch.utils.data import DataLoader, RandomSampler

from wids import (
    BucketBatchSampler,
    ChunkedSampler,
    DistributedChunkedSampler,
    MixedSampler,
    ShardListSampler,
    StateError,
)
from wids.order import bucket_sampler, rounds
from wids.order.rounds import checked_buckets

BUCKETS = [n % 3 for n in range(20)]


def made(**others: Any) -> BucketBatchSampler:
    """Return batches of three over 20 samples in three buckets."""
    options = {"buckets": BUCKETS, "batch_size": 3, **others}
    return BucketBatchSampler(options.pop("sampler", None) or ChunkedSampler(DATA), **options)


def of_rank(rank: int, num_replicas: int, buckets: Any, **others: Any) -> BucketBatchSampler:
    """Return the batches of a rank, of slices of the dataset."""
    sampler = DistributedChunkedSampler(
        range(len(buckets)), num_replicas=num_replicas, rank=rank, even=False
    )
    return BucketBatchSampler(sampler, buckets, 2, **others)


# What may be passed


@pytest.mark.parametrize(
    "buckets",
    [
        np.array(BUCKETS, np.uint8),
        np.array(BUCKETS, np.uint64),
        tuple(BUCKETS),
        torch.tensor(BUCKETS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_buckets_are_integers_in_any_form(buckets: Any) -> None:
    """Arrays, sequences and tensors of integers mean the same."""
    assert list(made(buckets=buckets)) == list(made())


def test_names_of_buckets_do_not_matter_but_their_order() -> None:
    """Negative, huge and sparse integers are names like any others."""
    names = np.array([-(2**62), 5, 2**62])
    assert list(made(buckets=names[BUCKETS])) == list(made())
    few = np.array([-1, 7, 900])
    assert list(made(buckets=few[BUCKETS])) == list(made())


def test_columns_of_tables() -> None:
    """Arrow arrays and pandas Series are accepted, unless values are missing."""
    need(importlib.util.find_spec("pyarrow"), "pip install pyarrow")
    need(importlib.util.find_spec("pandas"), "pip install pandas")
    import pandas as pd
    import pyarrow as pa

    columns = [pa.array(BUCKETS), pa.chunked_array([BUCKETS[:7], BUCKETS[7:]])]
    columns += [pd.Series(BUCKETS, dtype=dtype) for dtype in ("int64", "Int64", "uint8")]
    for column in columns:
        assert list(made(buckets=column)) == list(made())
    missing = [None, *BUCKETS[1:]]
    for column in (pd.Series(missing, dtype="Int64"), pa.array(missing)):
        with raises(ValueError, "buckets: expected one integer for each sample, found "):
            made(buckets=column)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"buckets": BUCKETS[1:]}, "for each of the dataset's 20 samples, found 19"),
        ({"buckets": [0.5] * 20}, "found list of float64, shape (20,); fill in missing values"),
        ({"buckets": ["a"] * 20}, "expected one integer for each sample, found list of <U1"),
        ({"buckets": [[1]] * 20}, "shape (20, 1)"),
        *(
            ({"buckets": large}, f"expected integers from -2**63 to 2**63 - 1, found {large[0]}")
            for large in ([2**63] * 20, [2**63, *BUCKETS[1:]], [-(2**64), *BUCKETS[1:]])
        ),
        ({"batch_size": 0}, "batch_size: expected an integer of at least 1, found 0"),
        ({"batch_size": 2.5}, "batch_size: expected an integer of at least 1, found 2.5"),
        ({"batch_size": lambda n: 2 - n}, "batch_size(2): expected an integer of at least 1, f"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    """The error names the argument, what was expected and what was found."""
    with raises(ValueError, message):
        made(**arguments)


def test_other_samplers_are_refused() -> None:
    """A sampler whose order is not known for all ranks cannot have equal ranks."""
    with raises(TypeError, "expected one of wids' samplers", "RandomSampler"):
        BucketBatchSampler(RandomSampler(range(3)), [0] * 3, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [ChunkedSampler, ShardListSampler, DistributedChunkedSampler])
def test_every_sampler_will_do(kind: Any) -> None:
    """Each batch has one bucket, and all samples are in one."""
    batches = list(made(sampler=kind(DATA)))

    assert sorted(index for batch in batches for index in batch) == list(range(20))
    assert all(len({BUCKETS[index] for index in batch}) == 1 for batch in batches)


def test_mixed_sources() -> None:
    """Batches of a `MixedSampler` keep its proportions and its ranks equal, also if it repeats."""

    class Two(Lengths):
        sources: ClassVar = {"a": [[0, 12]], "b": [[12, 20]]}

    def sampler(rank: int) -> BucketBatchSampler:
        mixed = MixedSampler(
            Two(12, 8), [3, 1], num_samples=48, num_replicas=2, rank=rank, chunksize=4
        )
        return made(sampler=mixed, aligned=True)

    ranks = [list(sampler(rank)) for rank in range(2)]

    assert len(ranks[0]) == len(ranks[1]) == len(sampler(0))
    drawn = Counter(index < 12 for batches in ranks for batch in batches for index in batch)
    assert drawn.total() == 48 + sampler(0).num_repeated
    assert drawn[True] >= 36
    half = sampler(1)
    done = list(islice(half, 4))
    resumed = sampler(1)
    resumed.load_state_dict(half.state_dict())
    assert done + list(resumed) == ranks[1]


def test_budget_of_tokens() -> None:
    """A callable sets the batch size of each bucket, and gets the caller's integer."""
    lengths = [128, 512, 1024]
    asked = []

    def size(bucket: int) -> int:
        asked.append(bucket)
        return 2048 // bucket

    batches = list(made(buckets=np.array(lengths)[BUCKETS], batch_size=size))

    assert asked == lengths
    assert sorted(map(len, batches)) == [2, 2, 2, 3, 4, 7]


# Counts


def test_a_rank_with_fewer_batches_takes_those_of_others() -> None:
    """A rank keeps its first batches; the others go to ranks that made fewer (ORDER-41)."""
    buckets = [0] * 8 + [0, 1, 2, 3, 4, 5, 6, 7]
    ranks = [list(of_rank(rank, 2, buckets)) for rank in range(2)]

    assert [len(batches) for batches in ranks] == [6, 6]
    every = [batch for batches in ranks for batch in batches]
    assert sorted(index for batch in every for index in batch) == list(range(16))
    assert "batch_size=2, al" in repr(of_rank(0, 2, buckets))
    assert "6 batches on each rank, 0 samples repeated, 0 left out" in repr(of_rank(0, 2, buckets))


def test_fewer_batches_than_ranks_repeat() -> None:
    """They are the first of the epoch, none of them twice, and are counted (ORDER-41, ORDER-45)."""
    buckets = [0] * 8 + [0, 1, 2, 3, 4, 5, 5, 6]
    ranks = [list(of_rank(rank, 2, buckets)) for rank in range(2)]

    assert [len(batches) for batches in ranks] == [6, 6]
    assert ranks[0][-1] == ranks[0][0]
    assert of_rank(0, 2, buckets).num_repeated == 2


def test_drop_last_leaves_out_no_whole_round() -> None:
    """Incomplete batches, and the last ones that are no whole round, are left out and counted."""
    buckets = [0] * 10 + [0, 0, 0, 0, 1, 1, 1, 2, 3, 4]
    ranks = [list(of_rank(rank, 2, buckets, drop_last=True)) for rank in range(2)]

    assert [[len(batch) for batch in batches] for batches in ranks] == [[2] * 4] * 2
    assert of_rank(1, 2, buckets, drop_last=True).num_left_out == 4


def test_aligned_rank_borrows_what_it_lacks() -> None:
    """Nothing is repeated or left out where ranks can share exactly (ORDER-44)."""
    buckets = [0] * 8 + [1] * 8
    ranks = [list(of_rank(rank, 2, buckets, aligned=True)) for rank in range(2)]

    assert [[buckets[batch[0]] for batch in batches] for batches in ranks] == [[0, 1, 0, 1]] * 2
    assert sorted(i for batches in ranks for batch in batches for i in batch) == list(range(16))
    assert of_rank(0, 2, buckets, aligned=True).num_repeated == 0


def test_length_is_that_of_the_current_epoch() -> None:
    """The number of batches changes with the order, and is known before the pass."""
    rng = np.random.default_rng(1)
    buckets = rng.integers(0, 9, 200)

    def sampler(rank: int) -> BucketBatchSampler:
        inside = DistributedChunkedSampler(
            range(200), num_replicas=3, rank=rank, chunksize=5, redeal=True
        )
        return BucketBatchSampler(inside, buckets, 4)

    lengths = set()
    for epoch in range(8):
        ranks = [sampler(rank) for rank in range(3)]
        for batches in ranks:
            batches.set_epoch(epoch)
        stated = [len(batches) for batches in ranks]
        assert stated == [len(list(batches)) for batches in ranks]
        assert len(set(stated)) == 1
        lengths |= set(stated)
    assert len(lengths) > 1


# Epochs and states


def test_the_epoch_is_that_of_the_sampler_inside() -> None:
    """``set_epoch`` of either has the same effect, since trainers call either (ORDER-46)."""
    outside, inside = made(), made()
    outside.set_epoch(3)
    inside.sampler.set_epoch(3)  # type: ignore[attr-defined]
    assert list(outside) == list(inside)
    assert outside.epoch == inside.epoch == inside.sampler.epoch == 3
    first = made()
    passes = [list(first) for _ in range(3)]
    assert passes[0] != passes[1] != passes[2]
    assert first.epoch == 3


def test_set_epoch_of_the_sampler_inside_keeps_or_clears_the_position() -> None:
    """The restored epoch keeps its position; another epoch clears it (ORDER-11, ORDER-46)."""
    sampler = made()
    sampler.set_epoch(2)
    whole = list(sampler)
    list(islice(sampler, 4))
    state = sampler.state_dict()
    inside: Any = sampler.sampler
    for epochs, expected in (([2], whole[4:]), ([2, 2], whole[4:]), ([3, 2], whole)):
        sampler.load_state_dict(state)
        for epoch in epochs:
            inside.set_epoch(epoch)
        assert list(sampler) == expected


def test_second_full_pass_of_a_fixed_epoch_warns_once() -> None:
    """The batches warn as the sampler would, under their own name (ORDER-14)."""
    sampler = made()
    sampler.set_epoch(0)
    list(sampler)
    with pytest.warns(UserWarning, match="BucketBatchSampler: a second full pass") as caught:
        list(sampler)
    list(sampler)
    assert len(caught) == 1


def test_state_is_of_batches() -> None:
    """A state by hand counts batches; at the end it is the start of the next epoch."""
    sampler = made()
    whole = list(sampler)
    sampler.set_epoch(0)
    loader: Any = DataLoader(list(range(20)), batch_sampler=sampler)
    seen = [batch.tolist() for batch in islice(loader, 5)]
    state = json.loads(json.dumps(sampler.state_dict(num_consumed=5)))

    resumed = made()
    resumed.load_state_dict(state)

    assert seen + list(resumed) == whole
    assert [batch.tolist() for batch in loader] == whole
    assert sampler.state_dict(num_consumed=len(whole))["epoch"] == 1


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"batch_size": 4}, "batch_size: expected 4, found 3"),
        (
            {"batch_size": [1, 2, 3].__getitem__},
            "batch_size: expected {'0': 1, '1': 2, '2': 3}, found 3",
        ),
        ({"aligned": True}, "aligned: expected True, found False"),
        ({"drop_last": True}, "drop_last: expected True, found False"),
        ({"buckets": [0, *BUCKETS[:-1]]}, "buckets: expected '"),
        ({"buckets": [n + 1 for n in BUCKETS]}, "buckets: expected '"),
        ({"sampler": ChunkedSampler(DATA, seed=1)}, "seed: expected 1, found 0"),
        ({"sampler": ChunkedSampler(Lengths(9, 11))}, "lengths: expected '"),
    ],
)
def test_state_of_other_settings_is_refused(others: dict[str, Any], message: str) -> None:
    """The error shows both values of each difference (ORDER-10, ORDER-46)."""
    state = made().state_dict()
    with raises(StateError, "the state belongs to another order: " + message):
        made(**others).load_state_dict(state)


def test_aligned_batches_resume_with_their_runs() -> None:
    """On other ranks they continue with ``num_canonical``, else the error says how (ORDER-46)."""

    def ranks(num_replicas: int, num_canonical: int | None) -> list[BucketBatchSampler]:
        inside = [
            DistributedChunkedSampler(
                DATA, num_replicas=num_replicas, rank=rank, num_canonical=num_canonical
            )
            for rank in range(num_replicas)
        ]
        return [BucketBatchSampler(each, BUCKETS, 1, aligned=True) for each in inside]

    state = ranks(4, None)[0].state_dict(num_consumed=1)
    resumed = ranks(2, 4)
    for rank, sampler in enumerate(resumed):
        sampler.load_state_dict(state)
        assert list(sampler) == list(ranks(2, 4)[rank])[2:]
    how = "resume on 1, 2 or 4 ranks with num_canonical=4, and change to others between epochs"
    for sampler in (*ranks(3, None), *ranks(2, None), *ranks(1, None)):
        with raises(StateError, "BucketBatchSampler: expected the 4 runs of the state", how):
            sampler.load_state_dict(state)
    odd = ranks(2, 4)[0].state_dict(num_consumed=3)
    with raises(StateError, "resume on 2 ranks with num_canonical=4"):
        ranks(4, 4)[0].load_state_dict(odd)


def test_states_of_indices_and_of_batches_are_different() -> None:
    """Neither sampler accepts the state of the other."""
    with raises(StateError, "buckets: expected '", "found nothing in the state"):
        made().load_state_dict(ChunkedSampler(DATA).state_dict())
    with raises(StateError, "buckets: found '", "which this sampler does not have"):
        ChunkedSampler(DATA).load_state_dict(made().state_dict())


def test_sampler_can_be_pickled_in_the_middle() -> None:
    """Also after it has computed an epoch; the copy has the same batches."""
    sampler = made(aligned=True)
    whole = list(sampler)
    copy = pickle.loads(pickle.dumps(sampler))  # noqa: S301 - made here
    assert list(copy) == list(sampler) != whole


def test_nothing_to_read_makes_no_batches() -> None:
    """An empty dataset has epochs without batches."""
    for others in ({}, {"aligned": True}, {"drop_last": True}):
        empty = BucketBatchSampler(ChunkedSampler([]), [], 3, **others)
        assert (list(empty), len(empty), empty.num_repeated, empty.num_left_out) == ([], 0, 0, 0)


@pytest.mark.parametrize("module", [bucket_sampler])
def test_examples_run(module: ModuleType) -> None:
    """The examples in the docstrings produce what they show."""
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64])
def test_buckets_are_numbered_without_a_copy_of_64_bits(dtype: type) -> None:
    """ORDER-40: numbering and hashing buckets takes a byte for each sample."""
    values = np.random.default_rng(0).integers(3, 90, 3_000_000).astype(dtype)
    tracemalloc.start()
    try:
        buckets = checked_buckets(values, 8, len(values))
        buckets.fingerprint()
        _, peak_nbytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_nbytes < len(values) + 25_000_000, "a byte for each, and some for a part"
    assert np.array_equal(buckets.names[buckets.numbers], values)


def test_runs_that_wait_keep_no_indices() -> None:
    """Each of the runs that are read together has its place in its order, and no window of it."""
    kept: list[weakref.ref[Any]] = []

    def blocks() -> Iterator[Any]:
        for _ in range(6):
            block = np.zeros(1 << 14, np.int64)
            kept.append(weakref.ref(block))
            yield block
            del block

    found = rounds.windows(blocks())
    window = next(found)
    assert len(window) == 1 << 15
    kept.append(weakref.ref(window))
    del window
    assert sum(ref() is not None for ref in kept) <= 1
