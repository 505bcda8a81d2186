"""Loaders that deal out or skip what a sampler yields, noticed by the calls that they make."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

import wids


class Listed(Dataset[int]):
    """The indices of a sampler, as wrappers of Lightning, ignite and catalyst list them."""

    def __init__(self, sampler: Any) -> None:
        self.sampler, self.indices = sampler, list[int]()

    def __len__(self) -> int:
        return len(self.sampler)

    def __getitem__(self, index: int) -> int:
        return self.indices[index]


class Wrapper(DistributedSampler[int]):
    """A sampler that deals out what another one yields."""

    def __iter__(self) -> Iterator[int]:
        listed: Any = self.dataset
        listed.indices = list(listed.sampler)
        return (listed[index] for index in super().__iter__())


def dealt(sampler: Any, num_replicas: int = 2) -> list[int]:
    return list(Wrapper(Listed(sampler), num_replicas=num_replicas, rank=0))


def test_an_order_that_is_picked_apart_is_noticed() -> None:
    """A ``DistributedSampler`` around a shuffled sampler warns, once, with the cure (ORDER-61)."""
    sampler = wids.ChunkedSampler(range(20))
    with pytest.warns(UserWarning, match=r"Wrapper \(test_callers\) lists the whole") as caught:
        assert len(dealt(sampler)) == len(dealt(sampler)) == 10
    assert len(caught) == 1
    assert "use DistributedChunkedSampler" in str(caught[0].message)


def test_a_share_that_is_dealt_out_again_is_noticed() -> None:
    """The same around the sampler of a rank: most of the dataset would not be read (ORDER-60)."""
    for shuffle in (True, False):
        sampler = wids.DistributedChunkedSampler(range(20), num_replicas=2, rank=0, shuffle=shuffle)
        with pytest.warns(UserWarning, match="has its share already") as caught:
            assert len(dealt(sampler)) == 5
        assert "most of the dataset is never read; pass it unwrapped" in str(caught[0].message)


def test_right_use_is_silent() -> None:
    """Batches, one rank, and unshuffled orders, which are dealt out in turn, do not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler = wids.DistributedChunkedSampler(range(20), num_replicas=2, rank=1)
        batches = wids.BucketBatchSampler(sampler, [0] * 20, 4)
        for silent in (sampler, batches, BatchSampler(sampler, 4, drop_last=False)):
            assert list(silent)
        assert len(list(DataLoader(range(20), sampler=sampler))) == 10  # type: ignore[arg-type]
        assert len(dealt(wids.ChunkedSampler(range(20)), num_replicas=1)) == 20
        assert len(dealt(wids.ChunkedSampler(range(20), shuffle=False))) == 10
