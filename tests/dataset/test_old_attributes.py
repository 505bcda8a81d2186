"""Attributes that datasets and samplers of the old library had."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
from conftest import raises

import wids


@pytest.mark.parametrize("name", ["base", "cache", "cache_dir", "cum_lengths"])
def test_attributes_of_datasets(train: Path, name: str) -> None:
    """The error names the replacement and the page, also for views and subclasses."""

    class Mine(wids.ShardListDataset):
        pass

    for made in (wids.ShardListDataset, Mine):
        with made(train) as dataset:
            for view in (dataset, dataset[1:]):
                with raises(AttributeError, made.__name__, repr(name), "docs/migration.md"):
                    getattr(view, name)
                assert not hasattr(view, name)


@pytest.mark.parametrize("name", ["ranges", "rng"])
def test_attributes_of_samplers(train: Path, name: str) -> None:
    """Samplers name the page too."""
    with wids.ShardListDataset(train) as dataset:
        for sampler in (
            wids.ChunkedSampler(dataset),
            wids.DistributedChunkedSampler(dataset, num_replicas=2, rank=0),
        ):
            with raises(AttributeError, type(sampler).__name__, repr(name), "docs/migration.md"):
                getattr(sampler, name)


@pytest.mark.parametrize("name", ["shuffle", "decode", "batched", "filter", "select", "rename"])
def test_methods_of_webdataset(train: Path, name: str) -> None:
    """The error says what does the same here."""
    page = "docs/from-webdataset.md"
    with wids.ShardListDataset(train) as dataset, raises(AttributeError, repr(name), "use ", page):
        getattr(dataset, name)


@pytest.mark.parametrize("name", ["WebDataset", "WebLoader"])
def test_classes_of_webdataset(name: str) -> None:
    """So does that of a class of webdataset."""
    with raises(AttributeError, name, "webdataset's; use ", "docs/from-webdataset.md"):
        getattr(wids, name)


@pytest.mark.parametrize("name", ["total_length", "lengths", "shards"])
def test_assigned_attributes(train: Path, name: str) -> None:
    """What follows from the shards is not assigned; the error says what to do instead."""

    class Mine(wids.ShardListDataset):
        def __init__(self) -> None:
            super().__init__(train)
            setattr(self, name, 3)

    with raises(AttributeError, f"Mine.{name}", "cannot be assigned", "dataset[:100]"):
        Mine()


def test_other_attributes(train: Path) -> None:
    """Any other name is the usual error, and half-built objects are copied and pickled."""
    with wids.ShardListDataset(train) as dataset:
        with raises(
            AttributeError, "'ShardListDataset' object has no attribute 'lenghts'"
        ) as error:
            dataset.lenghts  # noqa: B018
        assert "migration" not in str(error.value)
        assert error.value.name == "lenghts"
        assert len(copy.copy(dataset)) == len(copy.deepcopy(dataset)) == 20
        assert len(pickle.loads(pickle.dumps(dataset))) == 20  # noqa: S301 - made here
        dataset.cache_dir = "mine"  # type: ignore[attr-defined]
        assert dataset.cache_dir == "mine"  # type: ignore[attr-defined]
    empty = wids.ChunkedSampler.__new__(wids.ChunkedSampler)
    with pytest.raises(AttributeError):
        empty.epochs  # noqa: B018
