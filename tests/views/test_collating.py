"""`wids.collate`: torch's function, an empty batch, and errors that name the field."""

from __future__ import annotations

import doctest
import io

import pytest
import torch
from conftest import raises
from PIL import Image
from torch.utils.data import default_collate

import wids
from wids.views import collating


def test_it_is_torchs_function_otherwise() -> None:
    """Tensors, texts, labels and tuples become what torch makes of them."""
    samples = [{".cls": n, ".txt": str(n), ".ten": torch.ones(2)} for n in range(3)]
    ours, torchs = wids.collate(samples), default_collate(samples)
    assert ours.keys() == torchs.keys()
    assert torch.equal(ours[".cls"], torchs[".cls"])
    assert (ours[".txt"], ours[".ten"].shape) == (torchs[".txt"], (3, 2))
    assert torch.equal(wids.collate([(1, 2), (3, 4)])[0], torch.tensor([1, 3]))
    assert wids.collate([]) == {}


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


def test_example_runs() -> None:
    """The example of the docstring."""
    assert doctest.testmod(collating).failed == 0
