"""Pad the values of a batch that differ in length, so that they can be stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

LENGTHS: Final = "__lengths__"
"""The name of the lengths in a padded batch."""


def by_name(sample: Any) -> dict[Any, Any]:
    """Return the values of a sample by field, or by position if it is a tuple without names.

    A sample that is neither a dict nor a tuple has one value, by the name ``None``.
    """
    if isinstance(sample, Mapping):
        return dict(sample)
    if isinstance(sample, tuple | list):
        return dict(zip(getattr(sample, "_fields", range(len(sample))), sample, strict=True))
    return {None: sample}


def label(name: str | int | None) -> str:
    """Return what messages call a value of the samples: a field, or a position in a tuple."""
    if name is None:
        return "the samples"
    return f"value {name} of the tuples" if isinstance(name, int) else f'field "{name}"'


def padded(samples: Sequence[Any], pad: Mapping[Any, float]) -> list[Any]:
    """Return samples whose values of some fields have one shape, with their previous lengths.

    Args:
        samples: The samples of a batch: dicts or tuples with the same fields. A padded value is a
            tensor, an array, or ``(samples, rate)`` as audio is decoded.
        pad: The fields, or the positions in tuples, to pad at the end, and what to fill them with.

    Raises:
        ValueError: The samples lack a field, or its values differ in more than one dimension, or in
            their rate.
        TypeError: The values of a field are not arrays.
    """
    found = [{**by_name(sample), LENGTHS: {}} for sample in samples]
    for field, filler in pad.items():
        if field is None or field not in found[0]:
            raise _unknown(field, by_name(samples[0]))
        values = [sample[field] for sample in found]
        rates = _rates(field, values)
        arrays = [value[0] for value in values] if rates else values
        axis = _axis(field, arrays, default=-1 if rates else 0)
        size = max(array.shape[axis] for array in arrays)
        for number, array in enumerate(arrays):
            longer = _extended(array, axis, size, filler)
            found[number][field] = (longer, rates[number]) if rates else longer
            found[number][LENGTHS][field] = array.shape[axis]
    return found if isinstance(samples[0], Mapping) else [tuple(each.values()) for each in found]


def _unknown(field: Any, values: Mapping[Any, Any]) -> ValueError:
    """Return the error for a field to pad that the samples do not have."""
    expected, advice = f"a field of the samples, {', '.join(map(str, values))}", ""
    if None in values:
        expected = f"samples that are dicts or tuples, not {type(values[None]).__name__}"
    elif isinstance(next(iter(values), ""), int):
        expected = f"a position from 0 to {len(values) - 1}, since the samples are tuples"
        advice = "; pass pad={0: 0.0} for their first value"
    return ValueError(f"collate: pad: expected {expected}, found {field!r}{advice}")


def _rates(field: Any, values: Sequence[Any]) -> list[int]:
    """Return the rates of decoded sounds, which are equal; none for other values."""
    if not all(isinstance(value, tuple) and len(value) == 2 for value in values):
        return []
    rates = [rate for _, rate in values]
    if len(set(rates)) > 1:
        found = ", ".join(map(str, sorted(set(rates))))
        raise ValueError(
            f"collate: {label(field)}: expected audio of one rate, found {found} Hz; resample "
            "them with wids.Audio(rate=…)"
        )
    return rates


def _axis(field: Any, arrays: Sequence[Any], default: int) -> int:
    """Return the dimension in which arrays differ, or a default if they have one shape."""
    for array in arrays:
        if not getattr(array, "shape", ()):
            raise TypeError(
                f"collate: {label(field)}: expected tensors, arrays or audio to pad, found "
                f"{type(array).__name__}; decode the field, or leave it out of pad"
            )
    shapes = {tuple(array.shape) for array in arrays}
    is_even = len(set(map(len, shapes))) == 1
    axes = [n for n, sizes in enumerate(zip(*shapes, strict=is_even)) if len(set(sizes)) > 1]
    if not is_even or len(axes) > 1:
        raise ValueError(
            f"collate: {label(field)}: expected values that differ in one dimension, found shapes "
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
