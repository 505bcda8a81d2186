"""The ranges of indices of each named dataset, in a dataset and its views."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_tar
from hypothesis import given
from hypothesis import strategies as st

from wids import ShardListDataset, ShardSpec
from wids.shards.positions import ranges_by_name, select

EDGES = np.array([0, 3, 3, 5, 9])
NAMES = ["a", "b"], np.array([0, 0, 1, 0])


def found(positions: Any) -> dict[str, list[int]]:
    ranges = ranges_by_name(positions, EDGES, *NAMES)
    return {name: [i for a, b in part for i in range(a, b)] for name, part in ranges.items()}


def expected(positions: Any) -> dict[str, list[int]]:
    return {
        name: [
            i for i, position in enumerate(positions) if ("b" if 3 <= position < 5 else "a") == name
        ]
        for name in "ab"
    }


@pytest.mark.parametrize(
    "view", [range(9), range(2, 8), range(1, 9, 3), range(8, 0, -1), range(0), range(4, 5)]
)
def test_ranges_of_a_slice(view: range) -> None:
    """Each index is in the ranges of its dataset."""
    assert found(view) == expected(view)


@given(st.lists(st.integers(0, 8), max_size=20))
def test_ranges_of_any_view(indices: list[int]) -> None:
    """The indices of any selection, with repeats and in any order, are those of each dataset."""
    positions = select(range(9), indices)

    assert found(positions) == expected(np.asarray(positions).tolist())


def test_a_shard_is_a_range() -> None:
    """Samplers follow shards, so that neighbouring and empty shards have ranges of their own."""
    assert ranges_by_name(range(9), EDGES, *NAMES)["a"].tolist() == [[0, 3], [3, 3], [5, 9]]


def test_sources_of_a_dataset_are_its_specs(tmp_path: Path) -> None:
    """A list of specs names the sources; shards without a name have that of the dataset."""
    for name in "ab":
        write_tar(tmp_path / f"{name}.tar", [("x.txt", b""), ("y.txt", b"")])
        spec = {"name": name, "shardlist": [{"url": f"{name}.tar", "nsamples": 2}]}
        (tmp_path / f"{name}.json").write_text(json.dumps(spec))

    with ShardListDataset(
        [tmp_path / "b.json", tmp_path / "a.json", tmp_path / "b.tar"]
    ) as dataset:
        assert {k: v.tolist() for k, v in dataset.sources.items()} == {
            "b": [[0, 2]],
            "a": [[2, 4]],
            "": [[4, 6]],
        }
        assert [sample["__dataset__"] for sample in dataset] == ["b", "b", "a", "a", "", ""]
        assert dataset.weights == {"b": 1, "a": 1, "": 1}


def test_weights_of_a_dataset_are_those_of_its_spec() -> None:
    """A view has the weights of the sources that the dataset has."""
    document = {
        "datasets": [
            {"name": name, "shardlist": [{"url": f"{name}.tar", "nsamples": 2}], "weight": weight}
            for name, weight in (("a", 3), ("b", 0.5))
        ]
    }
    assert ShardListDataset(document, base="/data")[::-1].weights == {"a": 3, "b": 0.5}
    assert ShardListDataset([ShardSpec("/a.tar", 1)]).weights == {"": 1}
