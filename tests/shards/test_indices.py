"""Masks and indices in the forms of numpy, pandas, Arrow, polars and torch select alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from conftest import raises, sample_members, write_tar
from hypothesis import given, settings
from hypothesis import strategies as st

import wids
from wids.dataset.splits import split_indices
from wids.shards.positions import select


def masked(values: list[Any], dtype: Any) -> Any:
    """Return values as DuckDB's ``fetchnumpy`` does where some are null: whatever is below them."""
    mask = [value is None for value in values]
    return np.ma.array([value is None or value for value in values], dtype, mask=mask)


MASKS = {
    "list": list,
    "numpy": np.array,
    "torch": torch.tensor,
    "pandas": pd.Series,
    "pandas nullable": lambda mask: pd.Series(mask, dtype="boolean"),
    "pandas of Arrow": lambda mask: pd.Series(mask, dtype="bool[pyarrow]"),
    "pandas objects": lambda mask: pd.Series(mask, dtype=object),
    "Arrow": lambda mask: pa.array(mask, pa.bool_()),
    "Arrow in chunks": lambda mask: pa.chunked_array([mask[:3], mask[3:]], pa.bool_()),
    "polars": lambda mask: pl.Series(mask, dtype=pl.Boolean),
    "DuckDB": lambda mask: masked(mask, bool),
}
INDICES = {
    "pandas": pd.Series,
    "pandas index": lambda indices: pd.Index(indices, dtype="int64"),
    "pandas nullable": lambda indices: pd.Series(indices, dtype="Int64"),
    "Arrow": lambda indices: pa.array(indices, pa.int64()),
    "Arrow in chunks": lambda indices: pa.chunked_array([indices[:1], indices[1:]], pa.int64()),
    "polars": lambda indices: pl.Series(indices, dtype=pl.Int16),
    "DuckDB": lambda indices: masked(indices, np.int64),
    "torch": torch.tensor,
}
HAVE_NULLS = ("DuckDB", "list", "pandas nullable", "pandas of Arrow", "pandas objects", "polars")


@pytest.mark.parametrize("kind", MASKS)
@settings(deadline=None)
@given(mask=st.lists(st.booleans(), min_size=1, max_size=9))
def test_a_mask_of_any_kind_selects_alike(kind: str, mask: list[bool]) -> None:
    """TABLE-15: as the same list selects from Python's own lists."""
    selected = select(range(len(mask)), MASKS[kind](mask))
    assert list(selected) == [at for at, is_selected in enumerate(mask) if is_selected]


@pytest.mark.parametrize("kind", [*HAVE_NULLS, "Arrow", "Arrow in chunks"])
def test_a_null_in_a_mask_is_false(kind: str) -> None:
    """TABLE-15: as in SQL's WHERE, and in the filters of pandas, Arrow and polars."""
    assert list(select(range(5), MASKS[kind]([True, None, False, None, True]))) == [0, 4]


def test_nan_in_a_mask_of_objects_is_false() -> None:
    """TABLE-15: where pandas has it for a missing value, as after a left join."""
    values = [True, math.nan, False, np.nan, np.True_]
    for mask in (values, pd.Series(values, dtype=object), np.array(values, object)):
        assert list(select(range(5), mask)) == [0, 4]
    for mixed in ([True, 2], [2, False], np.array([True, 1.5], object), ["a", True]):
        with raises(TypeError, "found booleans beside"):
            select(range(5), mixed)


@pytest.mark.parametrize("kind", INDICES)
def test_integers_that_are_a_mask_are_refused(kind: str) -> None:
    """TABLE-15: 0 and 1 for each sample, as of np.where; other repeated indices are selected."""
    with raises(TypeError, "a mask of 4 booleans", "astype(bool)", "dataset[:2][indices]"):
        select(range(4), INDICES[kind]([0, 1, 1, 0]))
    for indices in ([0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 2, 0]):
        assert list(select(range(4), INDICES[kind](indices))) == indices
    assert list(select(range(2), INDICES[kind]([1, 0]))) == [1, 0]


@pytest.mark.parametrize("kind", INDICES)
def test_indices_of_any_kind_select_alike(kind: str) -> None:
    """TABLE-15: in the order in which they are passed."""
    assert list(select(range(10, 30), INDICES[kind]([3, 0, -1, 3]))) == [13, 10, 29, 13]


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("length", [1, 4, 6])
def test_a_mask_of_another_length_is_an_error(kind: str, length: int) -> None:
    """TABLE-15: it was made for another dataset or view."""
    with raises(IndexError, "expected a mask of 5 booleans", f"found {length}", "this dataset"):
        select(range(5), MASKS[kind]([True] * length))


def test_a_mask_in_another_order_is_an_error() -> None:
    """TABLE-15: after a sort, the rows of a Series are no longer beside their samples."""
    frame = pd.DataFrame({"height": [3, 1, 2]})
    mask = frame.sort_values("height").height > 1
    with raises(TypeError, "expected a Series with the index 0, 1, 2", "sort_index()"):
        select(range(3), mask)
    assert list(select(range(3), mask.sort_index())) == [0, 2]
    assert list(select(range(3), mask.to_numpy())) == [1, 2]
    indices = frame.sort_values("height").index.to_series()
    assert list(select(range(3), indices)) == [1, 2, 0]


ROWS = wids.ChunkedSampler(range(3))
PACKED = partial(wids.PackedBatchSampler, ROWS, max_tokens=3)
TAKERS: list[tuple[str, Callable[[Any], Any]]] = [
    ("mask", lambda values: select(range(3), values > 1)),
    ("by", lambda values: split_indices([3], [1, 2], 0, values)),
    ("buckets", lambda values: wids.BucketBatchSampler(ROWS, values, 1)),
    ("lengths", PACKED),
    ("budgets['a']", lambda values: PACKED([1] * 3, budgets={"a": (values, 3)})),
    ("cost", lambda values: PACKED([1] * 3, cost=values)),
    ("lengths", lambda values: wids.ShardListSampler(range(6), lengths=values)),
]
"""What takes a value for each sample, or shard, with the name of the argument."""


@pytest.mark.parametrize(("name", "take"), TAKERS, ids=[name for name, _ in TAKERS])
def test_a_value_for_each_sample_is_beside_it(name: str, take: Any) -> None:
    """TABLE-15: wherever a column is taken, one whose rows may be in another order is refused."""
    heights = pd.DataFrame({"height": [3, 1, 2]}).height
    keyed = heights.set_axis(list("cab"))
    part = pd.Series([1, 3, 1, 2]).iloc[1:]
    others = [heights.sort_values(), heights.iloc[::-1], keyed, part, heights.set_axis([0, 0, 2])]
    for other in others:
        with raises(TypeError, f"{name}: expected a Series with the index 0, 1, 2", "to_numpy()"):
            take(other)
        take(other.to_numpy())
    take(heights.sort_values().sort_index())
    for index in (pd.RangeIndex(3), pd.Index([0, 1, 2]), pd.Index([0, 1, 2], dtype="Int64")):
        take(heights.set_axis(index))
    take(pl.Series([3, 1, 2]).sort())


@pytest.mark.parametrize(
    "kind", ["pandas", "pandas nullable", "Arrow", "Arrow in chunks", "DuckDB"]
)
def test_a_null_among_indices_is_an_error(kind: str) -> None:
    """TABLE-15: unlike in a mask, nobody can tell which sample is meant."""
    with raises(TypeError, "1 of 3 missing", "drop these rows first"):
        select(range(5), INDICES[kind]([3, None, 1]))


@pytest.mark.parametrize(
    "indices", [pa.array(["a"]), pd.Series(["a"]), pa.table({"a": [1]}), [None, 1], [None], [0.5]]
)
def test_a_column_of_something_else_is_an_error(indices: Any) -> None:
    """Texts, tables, and nulls that could be a mask or indices."""
    with raises(TypeError, "expected an index, a slice, a list of indices or a mask of 5"):
        select(range(5), indices)


INTEGERS = {
    "list": list,
    "numpy": np.array,
    "Arrow table": lambda indices: pa.table({"a": indices})["a"],
    **INDICES,
}
ONE_SAMPLE = {
    "numpy scalar": np.int8,
    "numpy array": lambda index: np.array(index, np.uint16),
    "torch": torch.tensor,
    "torch of few bits": lambda index: torch.tensor(index, dtype=torch.int8),
}


@pytest.fixture
def five(tmp_path: Path) -> Iterator[wids.ShardListDataset]:
    """Five samples; the slices ``[:1]`` and ``[4:]`` are datasets of one."""
    path = write_tar(tmp_path / "a.tar", sample_members(0, 5))
    with wids.ShardListDataset([str(path)]) as dataset:
        yield dataset


@pytest.mark.parametrize("kind", MASKS)
def test_a_mask_of_one_selects_a_view(five: wids.ShardListDataset, kind: str) -> None:
    """TABLE-15: a mask with one element is a mask, although torch turns it into an integer."""
    make, one = MASKS[kind], five[4:]
    assert list(one[make([False])].positions) == list(one.keys()[make([False])]) == []
    assert list(one[make([True])].positions) == [4]
    assert list(one.keys()[make([True])]) == [one[0]["__key__"]]
    for view in (five, five.keys()):
        with raises(IndexError, "expected a mask of 5 booleans", "found 1"):
            view[make([True])]


@pytest.mark.parametrize("kind", INTEGERS)
def test_indices_of_one_select_a_view(five: wids.ShardListDataset, kind: str) -> None:
    """TABLE-15: a view of one sample, as any other number of indices; no index of a sample."""
    indices = INTEGERS[kind]([3])
    assert list(five[indices].positions) == [3]
    assert list(five.keys()[indices]) == [five[3]["__key__"]]
    with raises(TypeError, "expected the index of a sample"):
        five.locate(indices)


def test_hits_of_nonzero_select_a_view(five: wids.ShardListDataset) -> None:
    """TABLE-15: whether there are no hits, one or several."""
    for wanted in ([], [2], [0, 4]):
        hits = torch.isin(torch.arange(5), torch.tensor(wanted)).nonzero()
        assert list(five[hits.flatten()].positions) == wanted
        with raises(TypeError, "expected an index, a slice"):  # two dimensions, as for numpy
            five[hits]


@pytest.mark.parametrize("kind", ONE_SAMPLE)
def test_an_integer_without_dimensions_is_a_sample(five: wids.ShardListDataset, kind: str) -> None:
    """TABLE-15: of any package that has such integers."""
    index = ONE_SAMPLE[kind](3)
    assert five[index]["__index__"] == 3
    assert five.keys()[index] == five[3]["__key__"]
    assert five.locate(index) == (0, 3)


@pytest.mark.parametrize("make", [np.bool_, np.array, torch.tensor, pa.scalar])
def test_a_truth_without_dimensions_is_an_error(five: wids.ShardListDataset, make: Any) -> None:
    """TABLE-15: it could be a mask, or the result of a comparison of one value."""
    truth = make(bool(five))
    for view in (five, five.keys()):
        with raises(TypeError, "expected an index, a slice, a list of indices or a mask of 5"):
            view[truth]
    with raises(TypeError, "expected the index of a sample"):
        five.locate(truth)
