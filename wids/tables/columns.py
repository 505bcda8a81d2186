"""Turn Python values of unknown types into Arrow arrays, and those of many shards into columns.

The values of a part of a column are collected by kind: integers, texts, lists of numbers, and so
on, each in an array with nulls where the value is of another kind. Once all parts are known, the
column gets the type that all values fit; if there is none, the error names a sample of each type.
Nothing is read here.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np

from wids.errors import TableError

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa


OBJECT: Final = "object"
"""The kind of objects, and of lists that no list type holds: their JSON, as text."""

Kind: TypeAlias = "pa.DataType | Literal['object']"
"""What some values are: the Arrow type that holds them, or `OBJECT`."""


def kind_text(kind: Kind) -> str:
    """Return a kind as messages name it."""
    return str(kind).replace("item: ", "").replace("double", "float64")


def _arrow_type(kind: Kind) -> pa.DataType:
    import pyarrow as pa

    return pa.string() if kind == OBJECT else kind


@cache
def _leaves() -> dict[type, pa.DataType]:
    import pyarrow as pa

    kinds = (pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.binary())
    return dict(zip((bool, int, float, str, bytes), kinds, strict=True))


OnProblem = Callable[[int, Exception], None]
"""Called with the position of a value that no array can hold and the reason; may raise."""


def layers_of(values: list[Any], on_problem: OnProblem) -> dict[Kind, pa.Array]:
    """Return values as arrays by kind, each as long as the values; none for nulls.

    A value for which ``on_problem`` does not raise becomes null.
    """
    array = _typed_by_arrow(values)
    if array is not None:
        return {array.type: array}
    kinds = [_kind_of(value) for value in values]
    layers = {}
    for kind in filter(None, dict.fromkeys(kinds)):
        some = [v if k == kind else None for v, k in zip(values, kinds, strict=True)]
        layers[kind] = _array(some, kind, on_problem)
    for at, (value, found) in enumerate(zip(values, kinds, strict=True)):
        if found is None and value is not None:
            text = f"a value of the type {type(value).__name__} fits into no column"
            on_problem(at, value if isinstance(value, Exception) else TypeError(text))
    return layers


def _typed_by_arrow(values: list[Any]) -> pa.Array | None:
    """Return values as an array of the type that Arrow finds; None where it finds none.

    It finds none for values of several types, for objects, and for integers of 64 bits.
    """
    import pyarrow as pa
    from pyarrow import types

    kinds = set(map(type, values)) - {type(None)}
    if kinds not in ({list}, {int, float}) and not (len(kinds) == 1 and kinds <= _leaves().keys()):
        return None
    try:
        array = pa.array(values, from_pandas=False)
    except (ValueError, TypeError, OverflowError):
        return None
    leaf = array.type
    while types.is_list(leaf):
        leaf = leaf.value_type
    # In lists, Arrow takes texts for bytes beside them, and booleans for 1.0 and 0.0.
    if kinds == {list} and (
        types.is_binary(leaf) or (types.is_floating(leaf) and _have_booleans(values))
    ):
        return None
    return array if types.is_null(leaf) or leaf in _leaves().values() else None


def _have_booleans(values: Iterable[Any]) -> bool:
    """Whether there are booleans in lists, at any depth."""
    items = list(chain.from_iterable(value for value in values if isinstance(value, list | tuple)))
    kinds = set(map(type, items))
    return bool in kinds or (not kinds.isdisjoint((list, tuple)) and _have_booleans(items))


def _array(values: list[Any], kind: Kind, on_problem: OnProblem) -> pa.Array:
    """Return an array of one kind; values that it cannot hold are problems."""
    import pyarrow as pa

    arrow_type = _arrow_type(kind)
    values = _as_json(values, on_problem) if kind == OBJECT else values
    try:
        return pa.array(values, arrow_type, from_pandas=False)
    except (ValueError, TypeError, OverflowError):
        pass  # one by one, to find the value that fails
    fitting = list(values)
    for at, value in enumerate(values):
        try:
            pa.array([value], arrow_type, from_pandas=False)
        except (ValueError, TypeError, OverflowError) as error:
            on_problem(at, ValueError(f"{str(value)[:80]!r} is no {kind_text(kind)}: {error}"))
            fitting[at] = None
    return pa.array(fitting, arrow_type, from_pandas=False)


def _as_json(values: Iterable[Any], on_problem: OnProblem) -> list[str | None]:
    """Return values as the text of JSON, in the order of their keys."""
    texts: list[str | None] = []
    for at, value in enumerate(values):
        text = None
        if value is not None:
            try:
                text = json_text(value)
            except (TypeError, ValueError, RecursionError) as error:
                on_problem(at, error)
        texts.append(text)
    return texts


def json_text(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value as compact JSON; ``default`` converts what JSON does not have."""
    text = json.dumps(value, ensure_ascii=False, default=default, separators=(",", ":"))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # half of a pair of surrogates, which JSON can escape
        return json.dumps(value, default=default, separators=(",", ":"))
    return text


def _kind_of(value: Any) -> Kind | None:
    """Return the kind of a value; None for null, and for a value that no array holds."""
    import pyarrow as pa

    if type(value) is int and value >> 63 == 1:  # as of 64-bit hashes
        return pa.uint64()
    if isinstance(value, list | tuple):
        some = [item for item in value if item is not None]
        some = [max(some)] if set(map(type, some)) == {int} else some  # which says what fits all
        items = united(_kind_of(item) or OBJECT for item in some)
        return OBJECT if items in (None, OBJECT) else pa.list_(items)
    return _leaves().get(type(value)) or (OBJECT if isinstance(value, Mapping) else None)


def united(kinds: Iterable[Kind]) -> Kind | None:
    """Return the kind that holds values of all these kinds; None if there is none.

    Integers and floating-point numbers are numbers; an empty list is a list of anything, and has
    JSON. Arrow's own ``promote_options`` make int64 of uint64, and bytes of texts.
    """
    import pyarrow as pa

    distinct = set(kinds) - {pa.null()}
    if len(distinct) <= 1:
        return next(iter(distinct), pa.null())
    if all(kind != OBJECT and pa.types.is_list(kind) for kind in distinct):
        items = united(_arrow_type(kind).value_type for kind in distinct)
        return items and pa.list_(items)
    if OBJECT in distinct and all(map(_is_empty, distinct - {OBJECT})):
        return OBJECT
    if not distinct <= {pa.int64(), pa.uint64(), pa.float64()}:
        return None
    return pa.float64() if pa.float64() in distinct else pa.uint64()


def _is_empty(kind: Kind) -> bool:
    """Whether a kind is that of lists of nothing but nulls."""
    return "null" in str(kind)


def grouped(counts: Mapping[Kind, int]) -> list[tuple[Kind, tuple[Kind, ...]]]:
    """Return the types that values of several kinds would have, most frequent first.

    Args:
        counts: How many values each kind has, in the order in which they appear.

    Returns:
        A type, and the kinds of the values that it holds; just one if all values have one type.
    """
    groups: list[list[Kind]] = []
    empty = list(filter(_is_empty, counts))
    # Empty lists last: they join the most frequent lists that they fit.
    for some in ([kind for kind in counts if kind not in empty], empty):
        for kind in some:
            for group in groups:
                if united([*group, kind]) is not None:
                    group.append(kind)
                    break
            else:
                groups.append([kind])
        groups.sort(key=lambda group: -sum(counts[kind] for kind in group))
    return [(united(group) or group[0], tuple(group)) for group in groups]


Errors = Literal["raise", "null"]
"""How to treat a value that cannot be read or has another type: raise an error, or use null."""

SampleAt = Callable[[int], str]
"""Returns the sample of a row, for messages."""


def column_of(
    name: str,
    layers: Mapping[Kind, pa.ChunkedArray],
    length: int,
    errors: Errors,
    sample_at: SampleAt,
) -> pa.ChunkedArray:
    """Return values of several kinds as one column.

    Args:
        name: The column in messages.
        layers: Arrays by kind, each with nulls where the value is of another kind.
        length: The number of values.
        errors: Whether values of another type than most raise, or become null.
        sample_at: Returns the sample of a row.

    Raises:
        TableError: Values have several types, or integers are too large for the type that all
            values fit.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    layers = _with_empty_lists_apart(layers, length) if len(layers) > 1 else layers
    groups = grouped({kind: length - array.null_count for kind, array in layers.items()})
    if not groups:
        return pa.chunked_array([pa.nulls(length)])
    if len(groups) > 1 and errors == "raise":
        raise TableError(_mixed_text(name, groups, layers, sample_at))
    wanted, kinds = groups[0]
    found = [_fitting(name, layers[kind], wanted, errors, sample_at) for kind in kinds]
    return found[0] if len(found) == 1 else pc.coalesce(*found)


def _with_empty_lists_apart(
    layers: Mapping[Kind, pa.ChunkedArray], length: int
) -> dict[Kind, pa.ChunkedArray]:
    """Return layers in which lists of nothing but nulls, at any depth, are of their own kind.

    They have the type of the other lists in their part, and fit lists of other types too.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    empty: dict[Kind | None, list[Any]] = defaultdict(lambda: [None] * length)
    found: dict[Kind, pa.ChunkedArray] = {}
    for kind, column in layers.items():
        is_empty = _are_empty_lists(column)
        lists = column.filter(is_empty).to_pylist()
        for row, value in zip(np.flatnonzero(is_empty).tolist(), lists, strict=True):
            empty[_kind_of(value)][row] = value
        found[kind] = pc.if_else(pa.array(is_empty), None, column) if lists else column
    for own, values in empty.items():
        column = pa.chunked_array([pa.array(values, own)])
        found[column.type] = pc.coalesce(found.get(column.type, column), column)
    return {kind: column for kind, column in found.items() if column.null_count < len(column)}


def _are_empty_lists(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return which values are lists that have nothing but nulls, at any depth."""
    import pyarrow.compute as pc
    from pyarrow import types

    found: npt.NDArray[np.bool_] = np.asarray(column.is_valid()) & types.is_list(column.type)
    start = 0
    for chunk in column.chunks if found.any() else ():
        rows, values = np.arange(start, start + len(chunk)), chunk
        while types.is_list(values.type):
            rows = rows[np.asarray(pc.list_parent_indices(values))]
            values = pc.list_flatten(values)
        found[rows[np.asarray(values.is_valid())]] = False
        start += len(chunk)
    return found


def _mixed_text(
    name: str,
    groups: list[tuple[Kind, tuple[Kind, ...]]],
    layers: Mapping[Kind, pa.ChunkedArray],
    sample_at: SampleAt,
) -> str:
    texts = []
    for kind, kinds in groups:
        count = sum(len(layers[each]) - layers[each].null_count for each in kinds)
        row = layers[kinds[0]].is_valid().index(True).as_py()
        value = layers[kinds[0]][row].as_py()
        texts.append(
            f"{count:,} of type {kind_text(kind)}, such as {value!r:.60} in {sample_at(row)}"
        )
    return (
        f'column "{name}": expected values of one type, found {"; and ".join(texts)}; pass '
        f'errors="null" to have null in place of those that are not {kind_text(groups[0][0])}'
    )


def _fitting(
    name: str, column: pa.ChunkedArray, wanted: Kind, errors: Errors, sample_at: SampleAt
) -> pa.ChunkedArray:
    """Return values of one kind as the type of their column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    arrow_type = _arrow_type(wanted)
    if wanted == OBJECT and _is_empty(column.type):
        texts = [None if value is None else json_text(value) for value in column.to_pylist()]
        return pa.chunked_array([texts], arrow_type)
    if column.type == arrow_type:  # Arrow casts lists of nulls to their own type wrongly
        return column
    try:
        return column.cast(arrow_type)
    except ValueError as error:
        fits = _fits(column, arrow_type)
        if errors == "raise":
            row = fits.index(False)
            raise TableError(
                f'column "{name}": expected values of type {kind_text(wanted)}, found '
                f"{column[row]}, which that type does not have ({sample_at(row)}); store such "
                'numbers as text, or pass errors="null"'
            ) from error
    return pc.if_else(pa.chunked_array([fits]), column, None).cast(arrow_type)


def _fits(column: pa.ChunkedArray, arrow_type: pa.DataType) -> list[bool]:
    """Return which values a type has: not an integer beyond 2^53 as float64, nor -1 as uint64."""
    try:
        column.cast(arrow_type)
    except ValueError:
        half = len(column) // 2
        if not half:
            return [False]
        return _fits(column[:half], arrow_type) + _fits(column[half:], arrow_type)
    return [True] * len(column)
