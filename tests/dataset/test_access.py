"""The `Access` of a dataset: what views, joins and other packages have instead of its methods."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

import wids
from wids.shards.sample_access import access_of


class Short(wids.ShardListDataset):
    """Returns something else than the samples."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return found if isinstance(found, wids.ShardListDataset) else found["__index__"]


def test_a_view_is_the_same_class_with_another_access(train: Path) -> None:
    """Views share the reader; what is assigned to one of them changes no other."""
    with wids.ShardListDataset(train) as dataset:
        view, before = dataset[3:9], access_of(dataset)
        assert (type(view), view.reader) == (type(dataset), dataset.reader)
        assert access_of(view).locate(-1) == view.locate(5) == (1, 0)
        view.dataset_name, view.on_error, view.transformations = "other", "skip", [len]
        assert (view[0], dataset[3]["__dataset__"]) == (7, "train")
        assert access_of(dataset) is before
        with pytest.raises(dataclasses.FrozenInstanceError):
            before.positions = range(3)
        for other in (pickle.loads(pickle.dumps(view)), copy.copy(view)):  # noqa: S301 - made here
            assert (other[0], other.on_error, other.dataset_name) == (7, "skip", "other")
            other.close()


def test_an_access_reads_samples_that_a_subclass_changes(train: Path) -> None:
    """It says that they are changed, and those of a join or of chosen fields are not."""
    with Short(train) as dataset:
        assert (dataset[4], access_of(dataset[2:]).read(4)["__key__"]) == (4, "s00004")
        assert access_of(dataset).is_overridden
        assert access_of(dataset[1:]).is_overridden
        joined = dataset.join({"s00004": 1}, missing="none", prefix="b")
        assert type(joined) is wids.ShardListDataset
        assert not access_of(joined).is_overridden
        with dataset.only([".txt"]) as view:
            assert type(view) is wids.ShardListDataset
            assert view[4][".txt"] == b"text 4"


def test_a_join_of_a_subclass_is_of_its_samples(train: Path) -> None:
    """A class that returns dicts of its own is joined by the keys of the stored samples."""

    class Named(wids.ShardListDataset):
        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            return found if isinstance(found, wids.ShardListDataset) else {".own": found["__key__"]}

    with Named(train) as dataset, wids.ShardListDataset(train) as plain:
        joined = plain.join(dataset)
        assert (joined[4][".own"], joined[4][".cls"]) == ("s00004", 4)
