"""States and the settings of other versions: those that are new, and those that would be forgotten.

`tests/golden/test_golden_files.py` reads states that earlier versions saved.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import pytest
from conftest import raises
from ranks import Lengths

from wids import (
    BucketBatchSampler,
    ChunkedSampler,
    DistributedChunkedSampler,
    MixedSampler,
    PackedBatchSampler,
    ShardListSampler,
    StateError,
)
from wids.order.epoch_order import OrderSettings
from wids.order.mixing import Mix

DATA = Lengths(8, 5, 7)


@dataclass(frozen=True, eq=False)
class LaterSettings(OrderSettings):
    """The settings of a later version, with one that is new."""

    num_interleaved: int = 1


@dataclass(frozen=True, eq=False)
class LaterMix(Mix):
    """The same for mixed epochs."""

    num_interleaved: int = 1


class LaterSampler(DistributedChunkedSampler):
    """A sampler of a later version."""

    num_interleaved = 1

    @property
    def settings(self) -> OrderSettings:
        return LaterSettings(**fields_of(super().settings), num_interleaved=self.num_interleaved)


class LaterMixedSampler(MixedSampler):
    """The same for mixed epochs."""

    num_interleaved = 1

    @property
    def settings(self) -> Mix:  # type: ignore[override]
        return LaterMix(**fields_of(super().settings), num_interleaved=self.num_interleaved)


def fields_of(settings: Any) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


KINDS = [(DistributedChunkedSampler, LaterSampler), (MixedSampler, LaterMixedSampler)]


def saved(sampler: Any) -> Any:
    return json.loads(json.dumps(sampler.state_dict(num_consumed=3)))


@pytest.mark.parametrize(("today", "later"), KINDS)
def test_a_new_setting_at_its_default_is_in_no_state(today: type, later: type) -> None:
    """Each version resumes from the states of the other (ORDER-9)."""
    state = saved(today(DATA, num_replicas=2, rank=0))
    assert saved(later(DATA, num_replicas=2, rank=0)) == state
    for kind in (today, later):
        sampler = kind(DATA, num_replicas=2, rank=0)
        sampler.load_state_dict(state)
        assert len(list(sampler)) == 7


@pytest.mark.parametrize(("today", "later"), KINDS)
def test_a_new_setting_that_is_used_is_compared(
    today: type, later: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error shows it, in the version that has it and in the one that does not (ORDER-10)."""
    before = saved(later(DATA, num_replicas=2, rank=0))
    monkeypatch.setattr(later, "num_interleaved", 4)
    sampler = later(DATA, num_replicas=2, rank=0)
    with raises(StateError, "num_interleaved: expected 4, found nothing in the state"):
        sampler.load_state_dict(before)
    with raises(StateError, "num_interleaved: found 4 in the state, which this sampler does not"):
        today(DATA, num_replicas=2, rank=0).load_state_dict(saved(sampler))


def bucketed(sampler: Any = None, **others: Any) -> BucketBatchSampler:
    settings = {"buckets": [number % 3 for number in range(20)], "batch_size": 3, **others}
    return BucketBatchSampler(sampler or ChunkedSampler(DATA), **settings)


def packed(sampler: Any = None, **others: Any) -> PackedBatchSampler:
    settings = {"lengths": [number % 3 for number in range(20)], "max_tokens": 3, **others}
    return PackedBatchSampler(sampler or ChunkedSampler(DATA), **settings)


OF_EACH_KIND: dict[Any, Mapping[str, Any]] = {
    "dataset": {"dataset": Lengths(7, 6, 7)},
    "seed": {"seed": 1},
    "shuffle": {"shuffle": False},
}
OF_CHUNKED = {
    **OF_EACH_KIND,
    "num_samples": {"num_samples": (2, 20)},
    "chunksize": {"chunksize": 3},
    "shufflefirst": {"shufflefirst": False},
}
OF_RANKS = {
    **dict.fromkeys(("num_replicas", "rank", "mesh", "replication")),
    "num_canonical": {"num_canonical": 4},
}
ARGUMENTS: dict[Any, Mapping[str, Mapping[str, Any] | None]] = {
    ChunkedSampler: {**OF_CHUNKED, "dslength_per_replica": None},
    DistributedChunkedSampler: {
        **OF_CHUNKED,
        **OF_RANKS,
        "drop_last": {"drop_last": True},
        "even": {"even": False},
        "redeal": {"redeal": True},
    },
    ShardListSampler: {
        **OF_EACH_KIND,
        "lengths": {"lengths": [7, 6, 7]},
        "shufflefirst": {"shufflefirst": False},
    },
    MixedSampler: {
        **OF_EACH_KIND,
        **OF_RANKS,
        "weights": {"dataset": Lengths(20), "weights": [1]},
        "num_samples": {"num_samples": 18},
        "chunksize": {"chunksize": 3},
    },
    BucketBatchSampler: {
        "sampler": {"sampler": ChunkedSampler(DATA, seed=1)},
        "buckets": {"buckets": [number % 2 for number in range(20)]},
        "batch_size": {"batch_size": 4},
        "aligned": {"aligned": True},
        "drop_last": {"drop_last": True},
    },
    PackedBatchSampler: {
        "sampler": {"sampler": ChunkedSampler(DATA, seed=1)},
        "lengths": {"lengths": [number % 2 for number in range(20)]},
        "max_tokens": {"max_tokens": 4},
        "max_items": {"max_items": 2},
        "budgets": {"budgets": {"images": ([1] * 20, 3)}},
        "window": {"window": 2},
        "too_long": {"too_long": "skip"},
        "drop_last": {"drop_last": True},
        "cost": {"cost": [0.5] * 20},
    },
}
"""For each argument of each sampler, arguments with which the order is another; None for those that
change no order. A new argument needs an entry."""


def sampler_of(kind: Any, others: Mapping[str, Any]) -> Any:
    if kind in (BucketBatchSampler, PackedBatchSampler):
        return (bucketed if kind is BucketBatchSampler else packed)(**others)
    ranks = {"num_replicas": 2, "rank": 0} if "rank" in ARGUMENTS[kind] else {}
    return kind(**{"dataset": DATA, **ranks, **others})


@pytest.mark.parametrize("kind", ARGUMENTS, ids=lambda kind: kind.__name__)
def test_no_argument_is_missing_from_states(kind: Any) -> None:
    """Whatever changes the order is in the fingerprint, for each argument that a sampler has."""
    arguments = ARGUMENTS[kind]
    assert set(inspect.signature(kind).parameters) == set(arguments)
    state = saved(sampler_of(kind, {}))
    for others in arguments.values():
        if others is not None:
            sampler = sampler_of(kind, others)
            with pytest.raises(StateError, match="belongs to another order"):
                sampler.load_state_dict(state)
