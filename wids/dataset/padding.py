"""Pad the values of a batch that differ in length, so that they can be stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

LENGTHS: Final = "__lengths__"
"""The name of the lengths in a padded batch."""


def padded(samples: Sequence[Mapping[str, Any]], pad: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return samples whose values of some fields have one shape, with their previous lengths.

    Args:
        samples: The samples of a batch, all with the same fields. A padded field is a tensor, an
            array, or ``(samples, rate)`` as audio is decoded.
        pad: The fields to pad at the end, and what to fill them with.

    Raises:
        ValueError: The samples lack a field, or its values differ in more than one dimension, or in
            their rate.
        TypeError: The values of a field are not arrays.
    """
    found: list[dict[str, Any]] = [{**sample, LENGTHS: {}} for sample in samples]
    for field, filler in pad.items():
        if field not in samples[0]:
            raise ValueError(
                f"collate: pad: expected a field of the samples, {', '.join(samples[0])}, found "
                f"{field!r}"
            )
        values = [sample[field] for sample in samples]
        rates = _rates(field, values)
        arrays = [value[0] for value in values] if rates else values
        axis = _axis(field, arrays, default=-1 if rates else 0)
        size = max(array.shape[axis] for array in arrays)
        for number, array in enumerate(arrays):
            longer = _extended(array, axis, size, filler)
            found[number][field] = (longer, rates[number]) if rates else longer
            found[number][LENGTHS][field] = array.shape[axis]
    return found


def _rates(field: str, values: Sequence[Any]) -> list[int]:
    """Return the rates of decoded sounds, which are equal; none for other values."""
    if not all(isinstance(value, tuple) and len(value) == 2 for value in values):
        return []
    rates = [rate for _, rate in values]
    if len(set(rates)) > 1:
        found = ", ".join(map(str, sorted(set(rates))))
        raise ValueError(
            f'collate: field "{field}": expected sounds of one rate, found {found} Hz; resample '
            "them with wids.Audio(rate=…)"
        )
    return rates


def _axis(field: str, arrays: Sequence[Any], default: int) -> int:
    """Return the dimension in which arrays differ, or a default if they have one shape."""
    for array in arrays:
        if not getattr(array, "shape", ()):
            raise TypeError(
                f'collate: field "{field}": expected tensors, arrays or sounds to pad, found '
                f"{type(array).__name__}; decode the field, or leave it out of pad"
            )
    shapes = {tuple(array.shape) for array in arrays}
    is_even = len(set(map(len, shapes))) == 1
    axes = [n for n, sizes in enumerate(zip(*shapes, strict=is_even)) if len(set(sizes)) > 1]
    if not is_even or len(axes) > 1:
        raise ValueError(
            f'collate: field "{field}": expected values that differ in one dimension, found shapes '
            f"{', '.join(sorted(map(str, shapes))[:4])}; crop or resize them in a transformation"
        )
    return axes[0] if axes else default


def _extended(value: Any, axis: int, size: int, filler: float) -> torch.Tensor:
    """Return a tensor that has this size in a dimension."""
    import torch

    tensor = torch.as_tensor(value)
    shape = list(tensor.shape)
    shape[axis] = size
    longer = tensor.new_full(shape, filler)
    longer.narrow(axis, 0, tensor.shape[axis]).copy_(tensor)
    return longer
