"""`wids.collate`: torch's function, an empty batch, and errors that name the field."""

from __future__ import annotations

import doctest
import io
import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conftest import raises
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, default_collate

import wids
from wids.dataset import collating


def high(height: int) -> torch.Tensor:
    """Return a picture of a height, in the order of its pixels, as decoders return it."""
    return torch.ones(height, 8, 3).permute(2, 0, 1)


def test_it_is_torchs_function_otherwise() -> None:
    """Tensors, texts, labels and tuples become what torch makes of them."""
    samples = [{".cls": n, ".txt": str(n), ".ten": torch.ones(2)} for n in range(3)]
    ours, torchs = wids.collate(samples), default_collate(samples)
    assert ours.keys() == torchs.keys()
    assert torch.equal(ours[".cls"], torchs[".cls"])
    assert (ours[".txt"], ours[".ten"].shape) == (torchs[".txt"], (3, 2))
    assert torch.equal(wids.collate([(1, 2), (3, 4)])[0], torch.tensor([1, 3]))
    assert wids.collate([]) == {}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_pictures_stay_in_the_order_of_their_pixels(num_workers: int) -> None:
    """A batch of pictures has torch's shape and values, and is channels-last as they are."""
    pixels = torch.arange(3 * 96 * 96 * 3, dtype=torch.float32).reshape(3, 96, 96, 3)
    pictures = [{".jpg": picture.permute(2, 0, 1), ".cls": 1} for picture in pixels]
    (batch,) = DataLoader(pictures, 3, num_workers=num_workers, collate_fn=wids.collate)  # type: ignore[arg-type]

    assert torch.equal(batch[".jpg"], default_collate(pictures)[".jpg"])
    assert batch[".jpg"].shape == (3, 3, 96, 96)
    assert batch[".jpg"].is_contiguous(memory_format=torch.channels_last)
    assert not batch[".jpg"].is_contiguous()


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    data=st.data(),
    step=st.sampled_from([1, 2]),
)
def test_tensors_in_any_order_are_stacked_as_torch_does(
    shape: list[int], data: st.DataObject, step: int
) -> None:
    """Permuted, sliced and expanded tensors become torch's batch, whatever each one is."""
    tensors = []
    for number in range(2):
        order = data.draw(st.permutations(range(len(shape))))
        stored = torch.arange(math.prod(shape) * step).reshape(
            [shape[at] for at in order[:-1]] + [-1]
        )
        tensor = stored[..., ::step].permute([order.index(at) for at in range(len(shape))])
        tensors.append(tensor + number if data.draw(st.booleans()) else tensor)
    ours = wids.collate(tensors)
    assert torch.equal(ours, default_collate(tensors))
    assert torch.equal(wids.collate([tensors[0].expand(2, *shape)] * 2)[0][1], tensors[0])


@pytest.mark.parametrize(
    ("samples", "kind", "parts"),
    [
        (
            [{"__key__": "a", ".cls": 1, ".txt": ""}, {"__key__": "b", ".cls": 1}],
            ValueError,
            ('".txt"', "all 2 samples", "found it in 1", "not in 'b'", "to_tuple"),
        ),
        (
            [{"__key__": "b", ".cls": 1}, {"__key__": "a", ".cls": 1, ".txt": ""}],
            ValueError,
            ('".txt"', "not in 'b'"),
        ),
        ([{".jpg": io.BytesIO(b"x")}], TypeError, ('".jpg"', "found BytesIO", '"torch"')),
        ([{".png": Image.new("L", (1, 1))}], TypeError, ('".png"', "found Image")),
        (
            [{".ten": torch.ones(2)}, {".ten": torch.ones(3)}],
            ValueError,
            ('".ten"', "one shape", "(2,), (3,)"),
        ),
    ],
)
def test_errors_name_the_field(
    samples: list[dict[str, object]], kind: type[Exception], parts: tuple[str, ...]
) -> None:
    """What cannot be collated is named, with what to do."""
    with raises(kind, "collate: field ", *parts):
        wids.collate(samples)


@pytest.mark.parametrize(
    ("samples", "kind", "message"),
    [
        (
            [(high(4), 1), (high(5), 2)],
            ValueError,
            (
                "value 0 of the tuples: expected values of one shape, found shapes (3, 4, 8), "
                "(3, 5, 8); crop or pad them"
            ),
        ),
        ([high(4), high(5)], ValueError, "the samples: expected values of one shape, found shapes"),
        (
            [(1, (torch.ones(1, 4), 16000)), (1, (torch.ones(1, 5), 16000))],
            ValueError,
            (
                "value 1 of the tuples: expected values of one shape, found shapes (1, 4), (1, 5); "
                "pad them, collate_fn=functools.partial(wids.collate, pad={1: 0.0})"
            ),
        ),
        ([(1, 2), (1,)], ValueError, "value 1 of the tuples: expected it in all 2 samples"),
        (
            [(1, Image.new("L", (1, 1)))],
            TypeError,
            (
                "value 1 of the tuples: expected numbers, texts, arrays or tensors, found Image; "
                'decode it (transformations="torch")'
            ),
        ),
    ],
)
def test_tuples_get_the_messages_of_dicts(
    samples: list[Any], kind: type[Exception], message: str
) -> None:
    """Values without a name are named by their position, with shapes as a user sees them."""
    with raises(kind, f"collate: {message}"):
        wids.collate(samples)


class Spoken(NamedTuple):
    """A sample with names for its values."""

    sound: Any
    label: int


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1700000001, 1700000000.25], torch.float64),
        ([True, 2, 2.5], torch.float64),
        ([3, np.float32(0.1)], torch.float64),
        ([2**53 + 1, True], torch.int64),
        ([2**60, 0.5], torch.float64),
        ([np.uint8(3), 2**40], torch.int64),
        ([bool(1), np.False_], torch.bool),
        ([np.float16(3), np.float16(1)], torch.float16),
        *(  # torch 2.2 has no such type
            [([np.uint64(2**64 - 1)] * 2, torch.uint64)] if hasattr(torch, "uint64") else []
        ),
        ([{"a": 1}, {"a": 0.1}], torch.float64),
        ([torch.tensor([1]), torch.tensor([0.5])], torch.float32),
        ([np.array([1, 2], ">i4")] * 2, torch.int32),
    ],
)
def test_the_type_of_a_batch_does_not_follow_the_first_value(
    values: list[Any], expected: torch.dtype
) -> None:
    """It is the same in all orders, and no value is changed."""
    for order in (values, values[::-1]):
        batches = [wids.collate([{"t": value} for value in order])["t"]]
        batches += wids.collate([(value,) for value in order])
        for batch in batches:
            found, wanted = batch, order
            if isinstance(order[0], dict):
                found, wanted = batch["a"], [value["a"] for value in order]
            assert found.dtype == expected
            assert found.tolist() == [np.asarray(value).tolist() for value in wanted]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([2**70, 1], "integers of 64 bits, found 1180591620717411303424"),
        ([2**53 + 1, 0.5], "numbers that float64 holds, found 9007199254740993 beside fractions"),
        ([np.int64(2**53 + 1), 0.5], "numbers that float64 holds"),
        ([10**400, 0.5], "numbers that float64 holds"),
        ([1, None], "NoneType"),
        (["a", None], "NoneType"),
        ([1, torch.tensor(2.5)], "numbers|values that torch can stack"),
        (
            [np.ones(2), np.ma.array([1, 2], mask=[0, 1])],
            "arrays without masked values",
        ),
        ([{"a": 1}, {"a": 1, "b": 2}], "dicts with the same keys, found 'b' in some of them only"),
        ([torch.tensor([2**24 + 1]), torch.tensor([0.5])], "values that torch.float32 holds"),
    ],
)
def test_values_that_do_not_go_together_are_refused(values: list[Any], message: str) -> None:
    """In all orders, with the name of the field; nothing is lost silently."""
    for order in (values, values[::-1]):
        with pytest.raises((TypeError, ValueError), match=f'^collate: field "t": .*({message})'):
            wids.collate([{"t": value} for value in order])


def test_tuples_are_padded() -> None:
    """`pad` names positions, or the names of a named tuple; the lengths come last."""
    sounds = [(torch.ones(1, length), 16000) for length in (4, 2)]
    (samples, rates), labels, lengths = wids.collate(
        list(zip(sounds, (7, 8), strict=True)), pad={0: 0.5}
    )
    assert samples.tolist() == [[[1, 1, 1, 1]], [[1, 1, 0.5, 0.5]]]
    assert (rates.tolist(), labels.tolist()) == ([16000, 16000], [7, 8])
    assert lengths[0].tolist() == [4, 2]
    named = [Spoken(torch.ones(length), 1) for length in (3, 1)]
    rows, labels, lengths = wids.collate(named, pad={"sound": 0})
    assert rows.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert lengths["sound"].tolist() == [3, 1]
    assert type(wids.collate(named[:1])) is Spoken


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (
            [(torch.ones(2), 1)],
            (
                "expected a position from 0 to 1, since the samples are tuples, found '.wav'; pass "
                "pad={0: 0.0}"
            ),
        ),
        ([torch.ones(2)], "expected samples that are dicts or tuples, not Tensor, found '.wav'"),
        ([{".flac": torch.ones(2)}], "expected a field of the samples, .flac, found '.wav'"),
    ],
)
def test_a_field_to_pad_that_is_not_there(samples: list[Any], message: str) -> None:
    """The error says what the samples have instead of names."""
    with raises(ValueError, f"collate: pad: {message}"):
        partial(wids.collate, pad={".wav": 0.0})(samples)


def test_a_field_to_pad_that_only_some_tuples_have() -> None:
    """The error names the position and the sample, as it does for fields."""
    samples = [(torch.ones(2), torch.ones(2)), (torch.ones(1),)]
    with raises(ValueError, "collate: value 1 of the tuples: expected it in all 2 samples"):
        wids.collate(samples, pad={1: 0.0})


@pytest.mark.parametrize(
    "rows", [np.arange(6).reshape(3, 2), np.arange(3), torch.arange(6).view(3, 2)]
)
def test_an_array_is_a_batch_of_its_rows(rows: Any) -> None:
    """`collate(array)` is what torch's function returns for its rows; of none it is empty."""
    assert torch.equal(wids.collate(rows), default_collate(list(rows)))
    assert wids.collate(rows[:0]) == {}


def test_gradients_do_not_leave_a_worker() -> None:
    """The error says so, and what to do; in the main process such tensors are stacked."""
    samples = [{"weights": torch.ones(2, requires_grad=True)}] * 2
    (batch,) = DataLoader(samples, 2, collate_fn=wids.collate)  # type: ignore[arg-type]
    assert batch["weights"].requires_grad
    loader: DataLoader[Any] = DataLoader(
        samples,  # type: ignore[arg-type]
        2,
        num_workers=1,
        collate_fn=wids.collate,
    )
    message = 'collate: field "weights": expected tensors without requires_grad'
    with raises(ValueError, message, "return tensor.detach()"):
        next(iter(loader))


def test_example_runs() -> None:
    """The example of the docstring."""
    assert doctest.testmod(collating).failed == 0


class Samples:
    """Samples with values of every kind, for the workers of a loader."""

    def __init__(self, *, as_tuples: bool) -> None:
        self.as_tuples = as_tuples

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        sample = {
            ".cls": index,
            ".txt": f"text {index}",
            ".json": {"height": index / 2},
            ".npy": np.full((2, 3), index, np.float32),
            ".half": torch.full((2,), index, dtype=torch.bfloat16),
            ".jpg": torch.full((3, 150, 150), index, dtype=torch.uint8),
            ".bool": index % 2 == 0,
            ".none": np.zeros((0, 2)),
        }
        return tuple(sample.values()) if self.as_tuples else sample


@pytest.mark.parametrize("as_tuples", [False, True])
def test_batches_of_workers_are_those_of_the_main_process(as_tuples: bool) -> None:
    """A batch from a worker is a plain dict or list, with equal, writable tensors (VIEW-21)."""

    def batches(num_workers: int) -> list[Any]:
        loader: DataLoader[Any] = DataLoader(
            Samples(as_tuples=as_tuples),  # type: ignore[arg-type]
            batch_size=3,
            num_workers=num_workers,
            collate_fn=wids.collate,
        )
        return list(loader)

    for here, sent in zip(batches(0), batches(1), strict=True):
        assert type(here) is type(sent) is (list if as_tuples else dict)
        if not as_tuples:
            assert list(here) == list(sent)
            here, sent = list(here.values()), list(sent.values())  # noqa: PLW2901 - as tuples
        for one, other in zip(here, sent, strict=True):
            if isinstance(one, dict):
                assert list(one) == list(other)
                one, other = one["height"], other["height"]  # noqa: PLW2901 - as the others
            if isinstance(one, torch.Tensor):
                assert (one.dtype, one.shape) == (other.dtype, other.shape)
                assert torch.equal(one, other)
                other.zero_()
            else:
                assert one == other


@pytest.mark.parametrize("num_workers", [0, 1])
def test_large_tensors_that_are_not_in_order_are_stacked_as_torch_does(num_workers: int) -> None:
    """Matrices that are transposed, repeated or in columns become planes."""
    row = torch.arange(40_000.0)
    samples = [
        {
            "transposed": row.view(200, 200).T,
            "sliced": row.view(10, 20, 200).permute(2, 0, 1)[::2],
            "repeated": row[:200, None].expand(200, 100),
            "columns": np.asfortranarray(row.view(100, 400).numpy()),
        }
    ] * 2
    loader: DataLoader[Any] = DataLoader(
        samples,  # type: ignore[arg-type]
        2,
        num_workers=num_workers,
        collate_fn=wids.collate,
    )
    (batch,) = loader
    for name, wanted in default_collate(samples).items():
        assert torch.equal(batch[name], wanted)
        assert batch[name].stride() == wanted.stride()
