"""A batch is what one-by-one access gives, whatever the dataset, view and indices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import sample_members, write_shards, write_tar
from hypothesis import given, settings
from hypothesis import strategies as st

from wids import ShardListDataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty samples in shards of 10, 0, 1, 15 and 4, the second last of them broken."""
    folder = tmp_path_factory.mktemp("batches")
    write_shards(folder, [10, 0, 1, 15, 4])
    # Keys that do not stand together, and duplicates, so that order in the file is not all.
    members = sample_members(11, 26)
    write_tar(folder / "train-000003.tar", [*members[::2], *members[1::2], members[0]])
    return folder


indices = st.lists(st.integers(-20, 19), max_size=40)


@settings(max_examples=200, deadline=None)
@given(indices, st.lists(st.integers(-30, 29), min_size=20, max_size=20), st.integers(1, 5))
def test_batch_equals_one_by_one(
    folder: Path, indices: list[int], chosen: list[int], lru_size: int
) -> None:
    """Of the dataset, of a slice of it and of a view of any indices."""
    with ShardListDataset(folder / "train.json", lru_size=lru_size) as dataset:
        for view in (dataset, dataset[5:25], dataset[chosen], dataset[::-1][:20]):
            one_by_one: list[Any] = [view[index] for index in indices]
            assert view.__getitems__(indices) == one_by_one


@settings(max_examples=100, deadline=None)
@given(indices)
def test_stand_ins_take_their_places(folder: Path, indices: list[int]) -> None:
    """Where samples fail, each gets its own stand-in."""
    shards = [folder / f"train-{number:06d}.tar" for number in (0, 3)]
    spec = [(shards[0], 10), (folder / "gone.tar", 3), (shards[1], 15)]

    with ShardListDataset(spec, on_error=lambda error: type(error).__name__) as dataset:
        assert dataset.__getitems__(indices) == [dataset[index] for index in indices]
