"""Filtered datasets: samplers follow their shards, and unsorted ones say what they cost."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import raises, settle, write_shards

from wids import (
    ChunkedSampler,
    DistributedChunkedSampler,
    ShardListDataset,
    ShardListSampler,
    StateError,
)

NUM_SHARDS = 50
PER_SHARD = 40
HALF = np.random.default_rng(0).random(NUM_SHARDS * PER_SHARD) < 0.5


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("views")
    spec = write_shards(folder, [PER_SHARD] * NUM_SHARDS)
    for tar in folder.glob("*.tar"):
        settle(tar)
    return spec


@pytest.fixture
def dataset(spec: Path) -> Iterator[ShardListDataset]:
    with ShardListDataset(spec, lru_size=8) as dataset:
        yield dataset


def num_opened(view: ShardListDataset, sampler: Any) -> int:
    """Return how often a shard is opened while an epoch is read, sample by sample."""
    before = view.get_stats()[1]
    indices = [view[index]["__index__"] for index in sampler]
    assert sorted(indices) == sorted(view.positions)
    return view.get_stats()[1] - before


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (ShardListSampler, NUM_SHARDS),
        # A chunk of a view has the samples of up to eight shards.
        (lambda view: ChunkedSampler(view, chunksize=40), NUM_SHARDS),
        (lambda view: DistributedChunkedSampler(view, chunksize=40), NUM_SHARDS),
    ],
    ids=["shards", "chunks", "distributed"],
)
def test_a_sampler_over_an_ascending_view_opens_each_shard_about_once(
    dataset: ShardListDataset, make: Callable[[ShardListDataset], Any], most: int
) -> None:
    """TABLE-17: masks, sorted indices, steps, and views of views have the shards' lengths."""
    views = [dataset[HALF], dataset[np.flatnonzero(HALF)[::3]], dataset[::7], dataset[HALF][40:]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for view in views:
            assert sum(view.lengths) == len(view)
            assert len(view.lengths) == NUM_SHARDS
            assert num_opened(view, make(view)) <= most


@pytest.mark.parametrize(
    "make",
    [
        ShardListSampler,
        partial(ChunkedSampler, chunksize=40),
        partial(DistributedChunkedSampler, chunksize=40),
    ],
)
def test_an_unsorted_view_says_so_once(dataset: ShardListDataset, make: Callable[..., Any]) -> None:
    """When a sampler is made, with the remedy; the remedy helps, and says nothing."""
    shuffled = np.random.default_rng(1).permutation(np.flatnonzero(HALF))
    view = dataset[shuffled]
    assert view.lengths == [len(view)]
    with pytest.warns(UserWarning, match=r"50 shards.*dataset\[sorted\(indices\)\]") as caught:
        sampler = make(view)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert num_opened(view, sampler) > 10 * NUM_SHARDS
        make(view, shuffle=False)  # the order is the caller's
        ascending = dataset[np.sort(shuffled)]
        assert num_opened(ascending, make(ascending)) <= NUM_SHARDS


def test_a_view_of_one_shard_needs_no_order(tmp_path: Path) -> None:
    """Nothing is opened again and again where there is one shard."""
    with ShardListDataset(write_shards(tmp_path, [5])) as dataset:
        assert len(list(ChunkedSampler(dataset[[3, 1]]))) == 2


def test_a_state_of_a_view_without_lengths_is_refused(dataset: ShardListDataset) -> None:
    """TABLE-17: an order that followed no shards is not continued by one that does."""
    view = dataset[HALF]
    old = ShardListSampler(range(len(view)))  # a view's only length was that of all its samples
    state = old.state_dict(num_consumed=100)
    with raises(StateError, "num_shards: expected 50, found 1 in the state"):
        ShardListSampler(view).load_state_dict(state)
    sampler = ShardListSampler(view)
    sampler.load_state_dict(ShardListSampler(dataset[HALF]).state_dict(num_consumed=100))
    assert list(sampler) == list(ShardListSampler(view))[100:]


def test_a_view_survives_a_pickle(dataset: ShardListDataset) -> None:
    """With its samples and lengths, and about a bit for each sample of the dataset."""
    view = dataset[HALF]
    packed = pickle.dumps(view)
    assert len(packed) - len(pickle.dumps(dataset)) < len(HALF) / 8 + 300
    with pickle.loads(packed) as other:  # noqa: S301 - made here
        assert other.lengths == view.lengths
        assert other[7]["__key__"] == view[7]["__key__"]
        assert other[other.find_key(view[7]["__key__"])]["__index__"] == view[7]["__index__"]


def test_iteration_fetches_the_shards_of_a_dense_view(spec: Path) -> None:
    """A view in ascending order is read in bulk, and yields its samples in order."""
    with ShardListDataset(spec, lru_size=1) as dataset:
        view = dataset[HALF]
        assert [sample["__index__"] for sample in view] == np.flatnonzero(HALF).tolist()
        assert dataset.get_stats()[1] == NUM_SHARDS
