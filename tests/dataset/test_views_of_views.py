"""Views of views, in any order and form: the positions are those of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import raises, write_shards

import wids


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[wids.ShardListDataset[Any]]:
    with wids.ShardListDataset(write_shards(tmp_path, [10] * 10)) as dataset:
        yield dataset


def test_the_split_of_a_split(dataset: Any) -> None:
    """Parts, and views in random order, can be split again (VIEW-10)."""
    _, rest = dataset.split([0.8, 0.2])
    mixed = dataset[np.random.default_rng(0).permutation(100)]
    for view in (rest, mixed):
        parts = view.split([0.5, 0.5])
        found = sorted(int(position) for part in parts for position in part.positions)
        assert found == sorted(map(int, view.positions))


def test_a_mask_that_is_computed_from_positions(dataset: Any) -> None:
    """Booleans are a mask, and numbers that are no integers are refused."""
    mixed = dataset[np.random.default_rng(0).permutation(100)]
    mask = np.asarray(mixed.positions) > 50
    assert len(dataset[mixed.positions > 50]) == len(dataset[mask]) == 49
    with pytest.raises(IndexError):
        dataset[dataset[[5, 3, 9]].positions == 3]
    with pytest.raises(TypeError):
        dataset[mixed.positions * 0.5]


def test_a_view_keeps_its_positions(dataset: Any) -> None:
    """An array that is changed later changes no view that was made with it."""
    order = dataset[np.random.default_rng(0).permutation(100)].positions.copy()
    view = dataset[order]
    before = list(map(int, view.positions))
    np.random.default_rng(1).shuffle(order)
    assert list(map(int, view.positions)) == before


def test_positions_of_a_longer_dataset(dataset: Any) -> None:
    """Positions beyond the end are an error in each form."""
    part = dataset.split([0.5, 0.5], by="shard", seed=3)[0]
    assert part.positions[[0, 1]].tolist() == [int(part.positions[n]) for n in (0, 1)]
    with pytest.raises(IndexError):
        dataset[10:20][part.positions]


def test_a_search_of_nothing(dataset: Any) -> None:
    """A view without samples has no hits."""
    assert len(dataset.search("nothing there").search("x")) == 0


def test_classes_are_what_the_program_assigns(dataset: Any) -> None:
    """None, or an array, stays as it is."""
    for value in (None, np.array(["a", "b"])):
        dataset.classes = value
        assert dataset.classes is value


def test_equal_parts_have_equal_shares_of_labels(dataset: Any) -> None:
    """Many small parts take their samples from all labels, and not from the same ones (VIEW-10)."""
    labels = np.repeat(np.arange(10), 10)
    part = dataset.split([0.5] + [0.05] * 10, by=labels)[0]
    counts = np.bincount(labels[np.asarray(part.positions)], minlength=10)
    assert (abs(counts - 5) <= 1).all()
    with raises(ValueError, "by: expected a label for each sample, found None"):
        dataset.split([0.5, 0.5], by=["a"] * 99 + [None])


def test_one_read_counts_for_max_failed(tmp_path: Path) -> None:
    """Samples that are read one by one are part of what `max_failed` is a share of."""

    def refuse(sample: Any) -> Any:
        if sample["__index__"] < 5:
            raise ValueError("refused")
        return sample

    options: Any = {"on_error": "next", "max_failed": 0.1}
    path = write_shards(tmp_path, [100])
    with wids.ShardListDataset(path, transformations=[refuse], **options) as dataset:
        with pytest.warns(UserWarning, match="refused"):
            dataset[0]
        for index in [*range(1, 100), *range(100), *range(100), *range(100)]:
            dataset[index]
        assert dataset.num_failed == 20
