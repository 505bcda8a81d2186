"""The arguments of samplers: numbers, ranges of samples, lengths of shards."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from conftest import raises
from ranks import DATA, Lengths, distributed

from wids import ChunkedSampler, DistributedChunkedSampler, ShardListSampler


@pytest.mark.parametrize(
    ("num_samples", "expected"),
    [
        (None, range(20)),
        (7, range(7)),
        ((3, 9), range(3, 9)),
        (0, []),
        ((5, 5), []),
        ((20, 20), []),
        ((22, 20), []),
        (20, range(20)),
    ],
)
def test_num_samples_is_a_count_or_a_range(num_samples: Any, expected: Any) -> None:
    """Zero means no samples, and a pair is a range: it excludes its end, where it may be empty."""
    assert sorted(ChunkedSampler(DATA, num_samples=num_samples)) == list(expected)
    union = {i for rank in distributed(2, num_samples=num_samples) for i in rank}
    assert union == set(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_samples": 21}, "within the dataset's 20 samples, found 21"),
        ({"num_samples": (3, 21)}, "found (3, 21)"),
        ({"num_samples": (22, 21)}, "found (22, 21)"),
        ({"num_samples": (5, 3)}, "(start, stop), with start first, within"),
        ({"num_samples": -1}, "num_samples: expected an integer of at least 0, found -1"),
        ({"num_samples": 1.5}, "found 1.5"),
        ({"num_samples": True}, "found True"),
        ({"num_samples": (1, 2, 3)}, "found (1, 2, 3)"),
        ({"num_samples": (1,)}, "num_samples: expected an integer of at least 0, found None"),
        ({"chunksize": True}, "chunksize: expected an integer of at least 1, found True"),
        ({"chunksize": 0}, "chunksize: expected an integer of at least 1, found 0"),
        ({"seed": -1}, "seed: expected an integer of at least 0, found -1"),
    ],
)
def test_bad_settings_are_refused(arguments: dict[str, Any], message: str) -> None:
    """The error names the argument, what was expected and what was found."""
    for kind in (ChunkedSampler, DistributedChunkedSampler):
        with raises(ValueError, message):
            kind(DATA, **arguments)


def test_lengths_have_to_add_up() -> None:
    """Lengths that do not add up would lose samples."""

    class Wrong(Lengths):
        def __len__(self) -> int:
            return 21

    with raises(ValueError, "numbers that add up to the dataset's 21 samples, found 20"):
        ChunkedSampler(Wrong(8, 5, 7))


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ([15, -10], "found [15, -10]"),
        ([2.5, 3.5], "found [2.5, 3.5]"),
        ([[1, 2], [3, 4]], "found [[1, 2], [3, 4]]"),
        ([[1, 2], [3]], "found [[1, 2], [3]]"),
        ([None, 3], "found [None, 3]"),
        (len, "found <built-in function len>"),
        ([30], "found 30"),
    ],
)
def test_lengths_are_counts(lengths: Any, found: str) -> None:
    """Lengths that are not counts are refused; the error names what to pass instead."""
    with raises(ValueError, "lengths: expected", found, "range(len(dataset))"):
        ShardListSampler(range(20), lengths=lengths)

    class Odd:
        def __init__(self) -> None:
            self.lengths = lengths

        def __len__(self) -> int:
            return 20

    with raises(ValueError, "lengths: expected"):
        ChunkedSampler(Odd())


def test_integers_of_numpy_are_integers() -> None:
    """Integers and flags of any type are accepted, and the state remains JSON."""
    one, two, yes = np.int64(1), np.int64(2), np.bool_(1)
    sampler = DistributedChunkedSampler(
        DATA, num_replicas=two, rank=one, num_canonical=two, seed=one, shuffle=yes
    )
    plain = DistributedChunkedSampler(DATA, num_replicas=2, rank=1, num_canonical=2, seed=1)

    assert json.loads(json.dumps(sampler.state_dict())) == plain.state_dict()
    assert list(sampler) == list(plain)
    assert list(ChunkedSampler(DATA, chunksize=10**30)) == list(ChunkedSampler(DATA, chunksize=20))


def test_stated_length_is_what_len_returns() -> None:
    """``dslength_per_replica`` changes only ``len``, as in the old library."""
    stated = ChunkedSampler(DATA, num_samples=(15, 20), dslength_per_replica=7)
    true = ChunkedSampler(DATA, num_samples=(15, 20), dslength_per_replica=-1)

    assert (len(stated), len(true)) == (7, 5)
    assert list(stated) == list(true)
    assert stated.state_dict() == true.state_dict()
