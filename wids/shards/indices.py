"""Convert the indices or the mask that a caller passes to a numpy array.

Lists, arrays, tensors, and columns of pandas, Arrow and polars are recognized by their methods,
without importing those packages.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_LARGEST: Final = (1 << 63) - 1
_NULLS: Final = frozenset(("NoneType", "NAType"))
"""The names of the types of Python's null and of pandas'."""


def as_index(index: Any) -> int:
    """Return the index of one sample as a Python integer.

    Raises:
        TypeError: It is not an index. A tensor with dimensions selects a view, even if it has one
            element, and a boolean tensor is a mask, although torch would convert both to integers.
    """
    if not isinstance(index, int | np.integer):
        num_dimensions, dtype = getattr(index, "ndim", 0), str(getattr(index, "dtype", ""))
        if num_dimensions or "bool" in dtype:
            raise TypeError(f"expected the index of a sample, found {index!r:.80}")
    return operator.index(index)


def as_array(indices: Any) -> npt.NDArray[Any]:
    """Return indices as an array; anything else becomes a scalar array, which `select` rejects."""
    try:
        array = np.asarray(indices)
        if array.dtype == object and array.ndim == 1:  # integers too large for numpy, or no numbers
            # Those too large are out of range; clamped, numpy can compare them.
            return np.array([max(-_LARGEST, min(_LARGEST, operator.index(i))) for i in array])
    except (ValueError, TypeError, RuntimeError):
        return np.empty((), object)
    return array


def as_selection(indices: Any, length: int) -> npt.NDArray[Any]:
    """Return a selection as an array of integers or booleans, or else what `as_array` returns.

    A null in a mask is false, as in SQL and in the filters of pandas, Arrow and polars.

    Args:
        indices: Integers or booleans in any one-dimensional form.
        length: Number of samples to select from.

    Raises:
        IndexError: A mask has another length.
        TypeError: There are nulls among integers, or the index of a pandas mask is not 0, 1, 2, …,
            so that its rows may not be in the order of the samples.
    """
    values = _without_nulls(indices)
    array = _as_mask(values)
    if array is None:
        array = as_array(values)
        num_nulls = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
        if num_nulls:
            raise TypeError(
                f"expected integers as indices, found {type(indices).__name__} with {num_nulls:,} "
                f"of {len(array):,} missing; drop these rows first"
            )
    elif array.ndim == 1:
        _check_mask(indices, array, length)
    return array


def _without_nulls(indices: Any) -> Any:
    """Return a column with nulls replaced: by false in a mask, by NaN in masked numpy integers."""
    if isinstance(indices, np.ma.MaskedArray):  # as DuckDB returns columns that have nulls
        if indices.dtype == bool:
            return indices.filled(False)  # noqa: FBT003 - the parameter has no name in common
        return np.ma.filled(indices.astype(np.float64), np.nan) if indices.mask.any() else indices
    package = type(indices).__module__.partition(".")[0]
    if package == "pandas" and str(getattr(indices, "dtype", "")) in ("boolean", "bool[pyarrow]"):
        return indices.to_numpy(dtype=bool, na_value=False)
    kind = str(getattr(indices, "type", getattr(indices, "dtype", "")))
    is_column = package in ("pyarrow", "polars") and hasattr(indices, "fill_null")  # no scalar
    if is_column and kind in ("bool", "Boolean"):
        return indices.fill_null(False)  # noqa: FBT003 - the parameter has no name in common
    return indices


def _as_mask(indices: Any) -> npt.NDArray[np.bool_] | None:
    """Return a mask as an array of booleans; None if it is not a mask."""
    try:
        array = np.asarray(indices)
    except (ValueError, TypeError, RuntimeError):
        return None
    if array.dtype == object and array.ndim == 1:
        kinds = {kind.__name__ for kind in set(map(type, array.tolist()))}
        if "bool" in kinds and kinds <= {"bool", *_NULLS}:
            array = np.fromiter((item is True for item in array.tolist()), bool, len(array))
    return array if array.dtype == bool else None


def _check_mask(indices: Any, mask: npt.NDArray[np.bool_], length: int) -> None:
    if len(mask) != length:
        raise IndexError(
            f"expected a mask of {length:,} booleans, one for each sample, found {len(mask):,}; "
            "make it from a table of this dataset or view"
        )
    # After sorting or filtering a frame, row 3 of a Series is not sample 3.
    labels = getattr(indices, "index", None)
    if type(indices).__module__.partition(".")[0] != "pandas" or labels is None:
        return
    if not np.array_equal(np.asarray(labels), np.arange(length)):
        raise TypeError(
            "expected a Series with the index 0, 1, 2, …, found one with another index, whose rows "
            "may be in another order than the samples; pass mask.sort_index(), or mask.to_numpy() "
            "if its rows are in the order of the samples"
        )
