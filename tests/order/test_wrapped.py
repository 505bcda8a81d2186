"""Samplers over wids datasets in torch's wrappers: shards opened, samples read, warnings."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import write_shards
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset, random_split

from wids import ChunkedSampler, DistributedChunkedSampler, ShardListDataset, ShardListSampler

NUM_SHARDS, LENGTH = 25, 20


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[ShardListDataset]:
    """A dataset of 25 shards, of which two stay open."""
    spec = write_shards(tmp_path, [LENGTH] * NUM_SHARDS)
    with ShardListDataset(spec, lru_size=2, transformations="torch", raw="bytes") as dataset:
        yield dataset


def openings(dataset: ShardListDataset, source: Any, sampler: Any) -> tuple[int, int]:
    """Read a pass in batches; return the number of samples and of shards that were opened."""
    before = dataset.get_stats()[1]
    loader = DataLoader(source, batch_size=10, sampler=sampler, collate_fn=list)
    num_samples = sum(len(batch) for batch in loader)
    return num_samples, dataset.get_stats()[1] - before


def test_an_ascending_subset_follows_shards(dataset: ShardListDataset) -> None:
    """Each shard is opened about once, in a subset of a subset too."""
    subset = Subset(dataset, range(0, len(dataset), 2))
    assert openings(dataset, subset, ShardListSampler(subset)) == (250, NUM_SHARDS)
    inner = Subset(subset, range(125))
    num_samples, num_opened = openings(dataset, inner, ChunkedSampler(inner, chunksize=20))
    assert (num_samples, num_opened <= 20) == (125, True)
    ranks = [DistributedChunkedSampler(subset, num_replicas=2, rank=rank) for rank in (0, 1)]
    assert sorted(index for rank in ranks for index in rank) == list(range(250))


def test_random_split_says_what_to_use_instead(dataset: ShardListDataset) -> None:
    """Its parts are in no order; `split` has the same use, and follows shards."""
    part, _ = random_split(dataset, [400, 100], torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match=r"in no order.*dataset\.split\(\[0\.9, 0\.1\]\)"):
        sampler = ShardListSampler(part)
    num_samples, num_opened = openings(dataset, part, sampler)
    assert (num_samples, num_opened > 250) == (400, True)

    own, _ = dataset.split([400, 100])
    num_samples, num_opened = openings(dataset, own, ShardListSampler(own))
    # A batch may reach into the shard before, which a pass over a third one has closed.
    assert (num_samples, num_opened <= NUM_SHARDS + 2) == (400, True)


def test_a_concatenation_follows_shards_and_warns(dataset: ShardListDataset) -> None:
    """Shards are followed across the datasets; reading one by one is said, with the remedy."""
    both = ConcatDataset([dataset, dataset[: 2 * LENGTH], range(7)])  # type: ignore[list-item]
    with pytest.warns(UserWarning, match=r"one by one.*ShardListDataset\(\[spec, other_spec\]\)"):
        sampler = ShardListSampler(both)
    num_samples, num_opened = openings(dataset, both, sampler)
    assert num_samples == NUM_SHARDS * LENGTH + 47
    assert num_opened <= NUM_SHARDS + 2  # a shard may still be open from the other part


def test_stacked_datasets_follow_the_first(dataset: ShardListDataset) -> None:
    """A `StackDataset` reads both parts of a batch, and each in the order of its shards."""
    for stacked in (StackDataset(dataset, dataset), StackDataset(a=dataset, b=dataset)):
        assert openings(dataset, stacked, ShardListSampler(stacked)) == (500, NUM_SHARDS)


def test_other_datasets_are_a_single_shard() -> None:
    """What is no wrapper, or wraps something without shards, is as it was, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for source in (range(9), Subset(range(20), [7, 3, 5]), ConcatDataset([range(4), range(5)])):  # type: ignore[arg-type,list-item]
            assert sorted(ChunkedSampler(source)) == list(range(len(source)))
