"""A batch equals one-by-one access, for any dataset, view and indices."""

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
    """Thirty samples in shards of 10, 0, 1, 15 and 4; keys of the fourth are out of order."""
    folder = tmp_path_factory.mktemp("batches")
    write_shards(folder, [10, 0, 1, 15, 4])
    # With members apart and a duplicate, order in the file is not the order of keys.
    members = sample_members(11, 26)
    write_tar(folder / "train-000003.tar", [*members[::2], *members[1::2], members[0]])
    return folder


indices = st.lists(st.integers(-20, 19), max_size=40)


@settings(max_examples=60, deadline=None)
@given(indices, st.lists(st.integers(-30, 29), min_size=20, max_size=20), st.integers(1, 5))
def test_batch_equals_one_by_one(
    folder: Path, indices: list[int], chosen: list[int], lru_size: int
) -> None:
    """For the dataset, a slice of it and views of any indices."""
    with ShardListDataset(folder / "train.json", lru_size=lru_size, repeated="last") as dataset:
        for view in (dataset, dataset[5:25], dataset[chosen], dataset[::-1][:20]):
            one_by_one: list[Any] = [view[index] for index in indices]
            assert view.__getitems__(indices) == one_by_one


@settings(max_examples=40, deadline=None)
@given(indices)
def test_failed_samples_are_replaced_in_place(folder: Path, indices: list[int]) -> None:
    """Each sample that fails is replaced by the result of ``on_error`` for it."""
    shards = [folder / f"train-{number:06d}.tar" for number in (0, 3)]
    spec = [(shards[0], 10), (folder / "gone.tar", 3), (shards[1], 15)]

    options: Any = {"on_error": lambda error: type(error).__name__, "repeated": "last"}
    with ShardListDataset(spec, **options) as dataset:
        assert dataset.__getitems__(indices) == [dataset[index] for index in indices]
