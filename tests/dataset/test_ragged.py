"""`wids.collate(ragged=…)`: rows of all samples in one tensor, and where those of each begin."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conftest import raises
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import wids
from wids.dataset.sending import LARGE_NBYTES


def rows_of(batch: Any, number: int) -> torch.Tensor:
    values, offsets = batch["values"], batch["offsets"]
    return values[offsets[number] : offsets[number + 1]]


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    rest=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    kind=st.sampled_from(["f4", "f8", ">f4", "i8", "i2", "u1", "?", "c8"]),
    as_tensors=st.booleans(),
)
def test_each_sample_has_its_rows(
    lengths: list[int], rest: tuple[int, ...], kind: str, *, as_tensors: bool
) -> None:
    """Values keep type and shape, and the offsets are those of a loop."""
    arrays = [np.full((length, *rest), n, kind) for n, length in enumerate(lengths)]
    native = [array.astype(array.dtype.newbyteorder("=")) for array in arrays]
    tensors = list(map(torch.from_numpy, native))
    (batch,) = wids.collate([(each,) for each in (tensors if as_tensors else arrays)], ragged=[0])
    assert batch.keys() == {"values", "offsets"}
    assert batch["values"].dtype == tensors[0].dtype
    assert batch["offsets"].dtype == torch.int64
    assert batch["offsets"].tolist() == [0, *np.cumsum(lengths)]
    for number, tensor in enumerate(tensors):
        assert torch.equal(rows_of(batch, number), tensor)
    split = batch["values"].tensor_split(batch["offsets"][1:-1])
    assert all(map(torch.equal, split, tensors))


class Pair(NamedTuple):
    """A sample whose values have names."""

    picture: Any
    target: Any


def test_fields_have_names_or_positions_also_in_dicts() -> None:
    """What is not named is collated as usual, and named tuples stay such."""
    ones, threes = torch.ones(2), torch.ones(3)
    plain: Any = [{"a": ones, "b": {"c": threes[:n], "n": n}} for n in (1, 2)]
    batch = wids.collate(plain, ragged=["c"])
    assert batch["a"].shape == (2, 2)
    assert batch["b"]["n"].tolist() == [1, 2]
    assert batch["b"]["c"]["offsets"].tolist() == [0, 1, 3]
    pairs = [Pair(each["a"], OrderedDict(each["b"])) for each in plain]
    for samples, names in [(pairs, ["c"]), ([(p.picture, p.target) for p in pairs], ["c"])]:
        picture, target = wids.collate(samples, ragged=names)
        assert torch.equal(picture, batch["a"])
        assert torch.equal(target["c"]["values"], torch.ones(3))
    whole = wids.collate([Pair(ones, threes), Pair(threes, threes)], ragged=["picture"])
    assert type(whole) is Pair
    assert whole.picture["offsets"].tolist() == [0, 2, 5]
    assert plain[0]["b"]["c"] is not batch["b"]["c"], "the samples are left as they are"
    assert {*plain[0]} == {"a", "b"}
    assert wids.collate([], ragged=["c"]) == {}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[[1, 2]], [], [[3, 4]]], torch.tensor([[1, 2], [3, 4]])),
        ([[], [0.5]], torch.tensor([0.5], dtype=torch.float64)),
        ([np.zeros(0, "f4"), np.ones((1, 4), "i4")], torch.ones((1, 4), dtype=torch.int32)),
        ([np.zeros((0, 4), "f4")], torch.zeros((0, 4))),
        ([torch.ones(1, dtype=torch.int16), torch.ones(1)], torch.ones(2)),
        ([np.ma.array([1, 2])], torch.tensor([1, 2])),
    ],
)
def test_values_without_rows_and_of_several_types(values: Any, expected: torch.Tensor) -> None:
    """An empty list fits boxes; types that lose nothing are joined."""
    found = wids.collate([{"v": value} for value in values], ragged=["v"])["v"]
    assert torch.equal(found["values"], expected)
    assert found["values"].dtype == expected.dtype
    assert found["offsets"].tolist() == [0, *np.cumsum([len(value) for value in values])]


@pytest.mark.parametrize(
    ("samples", "ragged", "kind", "message"),
    [
        ([{"b": [1]}], "b", TypeError, "ragged: expected a list of fields, found 'b'"),
        ([(1,)], 0, TypeError, "ragged: expected a list of fields, found 0"),
        ([{"b": [1]}], ["b", "c"], ValueError, "ragged: expected a field of the samples, b, found"),
        ([([1], 2)], [2], ValueError, "ragged: expected a position from 0 to 1, since the samples"),
        ([3], [0], ValueError, "ragged: expected samples that are dicts or tuples, not int"),
        ([{"b": [1]}, {"a": [1]}], ["b"], ValueError, 'field "b": expected it in all 2 samples'),
        ([{"b": 1}], ["b"], TypeError, "lists of numbers as 'b', found 1"),
        ([{"b": "x"}], ["b"], TypeError, "lists of numbers as 'b', found 'x'"),
        ([{"b": [[1], [2, 3]]}], ["b"], TypeError, "lists of numbers as 'b', found [[1], [2, 3]]"),
        ([{"b": [1]}, {"b": [[1]]}], ["b"], TypeError, "alone, found shapes (1, 1), (1,)"),
        (
            [{"b": torch.tensor([2**53 + 1])}, {"b": torch.tensor([0.5]).double()}],
            ["b"],
            TypeError,
            "values of 'b' that torch.float64 holds, found torch.float64 and torch.int64",
        ),
        ([{"b": np.ma.array([1], mask=True)}], ["b"], TypeError, "arrays without masked values"),
    ],
)
def test_errors_name_the_field(
    samples: Any, ragged: Any, kind: type[Exception], message: str
) -> None:
    """They say what was expected and what was found."""
    with raises(kind, "collate: ", message):
        wids.collate(samples, ragged=ragged)


class Scenes:
    """Pictures with five ragged fields, large and small."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, Any]:
        count = index % 7
        return {
            "mask": torch.full((count, 40, 40), index, dtype=torch.int32),
            "boxes": np.full((count, 4), index, np.float32),
            "labels": [index] * count,
            "points": torch.full((2 * count, 2), float(index)),
            "scores": np.full(count, index / 2),
        }


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_of_a_worker_has_two_tensors_for_each_field(num_workers: int) -> None:
    """They arrive as they were sent, large values in memory that the worker lends."""
    names = ["mask", "boxes", "labels", "points", "scores"]
    scenes = Scenes()
    loader = DataLoader(
        scenes,  # type: ignore[arg-type]
        64,
        num_workers=num_workers,
        collate_fn=partial(wids.collate, ragged=names),
    )
    for number, batch in enumerate(loader):
        assert [len(batch[name]) for name in names] == [2] * 5
        assert batch["mask"]["values"].nbytes > LARGE_NBYTES
        assert batch["mask"]["values"].is_shared() == (num_workers > 0)
        for n in range(64):
            sample = scenes[number * 64 + n]
            for name in names:
                assert torch.equal(rows_of(batch[name], n), torch.as_tensor(sample[name])), name
