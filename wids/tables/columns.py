"""Turn Python values of unknown types into Arrow arrays, and those of many shards into columns.

The values of a part of a column are collected by kind: integers, texts, lists of numbers, and so
on, each in an array with nulls where the value is of another kind. Once all parts are known, the
column gets the type that all values fit; if there is none, the error names a sample of each type.
Nothing is read here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from wids.errors import TableError

if TYPE_CHECKING:
    import pyarrow as pa


_NUMBERS: Final = frozenset(("int64", "uint64", "float64"))


class Kind(NamedTuple):
    """The type of some values.

    Attributes:
        leaf: Name of an Arrow type; ``"json"`` for objects, and for lists that no list type holds,
            as text; ``"null"`` for the items of empty lists.
        depth: How many lists are around it.
    """

    leaf: str
    depth: int = 0

    def arrow_type(self) -> pa.DataType:
        """Return the type of an Arrow array."""
        import pyarrow as pa

        arrow_type = pa.type_for_alias("string" if self.leaf == "json" else self.leaf)
        for _ in range(self.depth):
            arrow_type = pa.list_(arrow_type)
        return arrow_type

    def __str__(self) -> str:
        name = "object" if self.leaf == "json" else self.leaf
        return "list<" * self.depth + name + ">" * self.depth


_LEAVES: Final = {
    bool: Kind("bool"),
    int: Kind("int64"),
    float: Kind("float64"),
    str: Kind("string"),
    bytes: Kind("binary"),
}
_WIDE: Final = Kind("uint64")
"""Integers that need it, as 64-bit hashes do."""

OnProblem = Callable[[int, Exception], None]
"""Called with the position of a value that no array can hold and the reason; may raise."""


def layers_of(values: list[Any], on_problem: OnProblem) -> dict[Kind, pa.Array]:
    """Return values as arrays by kind, each as long as the values; none for nulls.

    A value for which ``on_problem`` does not raise becomes null.
    """
    common = _kind_of_all(values)
    if common is not None:
        return {common: _array(values, common, on_problem)}
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


def _array(values: list[Any], kind: Kind, on_problem: OnProblem) -> pa.Array:
    """Return an array of one kind; values that it cannot hold are problems."""
    import pyarrow as pa

    arrow_type = kind.arrow_type()
    values = _as_json(values, on_problem) if kind.leaf == "json" else values
    try:
        return pa.array(values, arrow_type, from_pandas=False)
    except (ValueError, TypeError, OverflowError):
        pass  # one by one, to find the value that fails
    fitting = list(values)
    for at, value in enumerate(values):
        try:
            pa.array([value], arrow_type, from_pandas=False)
        except (ValueError, TypeError, OverflowError) as error:
            on_problem(at, ValueError(f"{str(value)[:80]!r} is no {kind}: {error}"))
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


def _kind_of_all(values: list[Any]) -> Kind | None:
    """Return the kind that all values have, found quickly; None where each must be looked at."""
    depth, items = 0, values
    types = set(map(type, values)) - {type(None)}
    if types == {list}:
        # Empty lists fit into any kind, so none of them has to be looked at.
        depth, items = 1, list(chain.from_iterable(filter(None, values)))
        types = set(map(type, items)) - {type(None)}
        if types == {int, float}:
            return Kind("float64", 1)
    if types == {int}:
        is_wide = 1 << 63 <= max(filter(None, items), default=0) < 1 << 64
        return Kind("uint64" if is_wide else "int64", depth)
    kind = _LEAVES.get(types.pop()) if len(types) == 1 else None
    return kind and Kind(kind.leaf, depth)


def _kind_of(value: Any) -> Kind | None:
    """Return the kind of a value; that of JSON for a list that no list type holds.

    None for null, and for a value that no array holds.
    """
    if type(value) in _LEAVES:
        return _WIDE if type(value) is int and value >> 63 == 1 else _LEAVES[type(value)]
    if isinstance(value, list | tuple):
        kinds = {_kind_of(item) or Kind("json") for item in value if item is not None}
        kind = united(kinds)
        if kind is None or kind.leaf == "json":
            return Kind("json")
        return Kind(kind.leaf, kind.depth + 1)
    return Kind("json") if isinstance(value, Mapping) else None


def united(kinds: Iterable[Kind]) -> Kind | None:
    """Return the kind that holds values of all these kinds; None if there is none.

    Integers and floating-point numbers are numbers; an empty list is a list of anything.
    """
    distinct = set(kinds)
    filled = {kind for kind in distinct if kind.leaf != "null"}
    empty_depth = max((kind.depth for kind in distinct - filled), default=0)
    if not filled:
        return Kind("null", empty_depth)
    leaves, depths = {kind.leaf for kind in filled}, {kind.depth for kind in filled}
    if len(depths) > 1 or empty_depth > min(depths):
        return None
    depth = depths.pop()
    if len(leaves) == 1:
        return Kind(leaves.pop(), depth)
    if not leaves <= _NUMBERS:
        return None
    return Kind("float64" if "float64" in leaves else "uint64", depth)


def grouped(counts: Mapping[Kind, int]) -> list[tuple[Kind, tuple[Kind, ...]]]:
    """Return the types that values of several kinds would have, most frequent first.

    Args:
        counts: How many values each kind has, in the order in which they appear.

    Returns:
        A type, and the kinds of the values that it holds; just one if all values have one type.
    """
    groups: list[list[Kind]] = []
    # Empty lists last: they join the first lists that they fit.
    for kind in sorted(counts, key=lambda kind: kind.leaf == "null"):
        for group in groups:
            if united([*group, kind]) is not None:
                group.append(kind)
                break
        else:
            groups.append([kind])
    groups.sort(key=lambda group: -sum(counts[kind] for kind in group))
    return [(united(group) or group[0], tuple(group)) for group in groups]


def cast(array: pa.Array, kind: Kind) -> pa.Array:
    """Return an array as one of another kind that holds its values.

    Raises:
        ValueError: A value would change: an integer that float64 does not have, or a negative one
            among integers of more than 63 bits.
    """
    wanted = kind.arrow_type()
    # Arrow casts lists of nulls to their own type wrongly: the items become one.
    return array if array.type == wanted else array.cast(wanted)


def combined(arrays: Sequence[pa.Array]) -> pa.Array:
    """Return for each row the value of the only array that has one there, or null."""
    import pyarrow.compute as pc

    return arrays[0] if len(arrays) == 1 else pc.coalesce(*arrays)


def misfits(array: pa.Array, kind: Kind) -> Iterator[int]:
    """Yield the positions of values that `cast` refuses."""
    for at in range(len(array)):
        try:
            cast(array[at : at + 1], kind)
        except ValueError:
            yield at


Errors = Literal["raise", "null"]
"""How to treat a value that cannot be read or has another type: raise an error, or use null."""

_MAX_NAMES: Final = 100
"""Names of other parts of fields to keep for a message."""


@dataclass(frozen=True)
class Example:
    """A sample that has a value of some kind, for messages.

    Attributes:
        value: The value, as text.
        key: The key of the sample.
        index: Its position in the dataset.
        shard: Its shard, as messages may show it.
    """

    value: str
    key: str
    index: int
    shard: str

    def __str__(self) -> str:
        return f'{self.value} in {self.shard}: sample "{self.key}" (index {self.index})'


@dataclass
class ColumnPart:
    """The values of one column in some samples.

    Attributes:
        length: The number of samples.
        layers: Arrays by kind, each of this length, with nulls where the value is of another kind.
        examples: The first sample of each kind.
        exists: Whether any sample has the part of the field that the path leads to.
        names: Paths that some samples have in its place.
    """

    length: int = 0
    layers: dict[Kind, pa.Array] = field(default_factory=dict)
    examples: dict[Kind, Example] = field(default_factory=dict)
    exists: bool = False
    names: tuple[str, ...] = ()


def names_of(parts: Iterable[ColumnPart]) -> tuple[str, ...]:
    """Return the paths that exist in place of one that does not, each once."""
    names = dict.fromkeys(name for part in parts for name in part.names)
    return tuple(names)[:_MAX_NAMES]


def in_one_part(parts: Sequence[ColumnPart]) -> ColumnPart:
    """Return parts that follow each other as one."""
    import pyarrow as pa

    whole = ColumnPart(sum(part.length for part in parts), names=names_of(parts))
    whole.exists = any(part.exists for part in parts)
    for part in parts:
        whole.examples = part.examples | whole.examples
    for kind in whole.examples:
        nulls = partial(pa.nulls, type=kind.arrow_type())
        arrays = [part.layers.get(kind, nulls(part.length)) for part in parts]
        whole.layers[kind] = pa.concat_arrays(arrays)
    return whole


def column_of(name: str, parts: Sequence[ColumnPart], errors: Errors) -> pa.ChunkedArray:
    """Return the values of all parts as one column, a chunk for each part.

    Args:
        name: The column in messages.
        parts: Its parts, in order.
        errors: Whether values of another type than most raise, or become null.

    Raises:
        TableError: Values have several types, or integers are too large for the type that all
            values fit.
    """
    import pyarrow as pa

    counts: dict[Kind, int] = {}
    examples: dict[Kind, Example] = {}
    for part in parts:
        for kind, array in part.layers.items():
            counts[kind] = counts.get(kind, 0) + len(array) - array.null_count
        examples = part.examples | examples
    groups = grouped(counts)
    if not groups:
        return pa.chunked_array([pa.nulls(part.length) for part in parts], pa.null())
    if len(groups) > 1 and errors == "raise":
        raise TableError(_mixed_text(name, groups, counts, examples))
    wanted, kinds = groups[0]
    chunks = []
    for part in parts:
        layers = [_fitting(name, part, k, wanted, errors) for k in kinds if k in part.layers]
        chunks.append(combined(layers) if layers else pa.nulls(part.length, wanted.arrow_type()))
    return pa.chunked_array(chunks, wanted.arrow_type())


def _mixed_text(
    name: str,
    groups: list[tuple[Kind, tuple[Kind, ...]]],
    counts: dict[Kind, int],
    examples: dict[Kind, Example],
) -> str:
    found = "; and ".join(
        f"{sum(counts[kind] for kind in kinds):,} of type {united}, such as {examples[kinds[0]]}"
        for united, kinds in groups
    )
    return (
        f'column "{name}": expected values of one type, found {found}; pass errors="null" to have '
        f"null in place of those that are not {groups[0][0]}"
    )


def _fitting(name: str, part: ColumnPart, kind: Kind, wanted: Kind, errors: Errors) -> pa.Array:
    """Return a layer of a part as the type of the column."""
    import pyarrow as pa

    array = part.layers[kind]
    try:
        return cast(array, wanted)
    except ValueError as error:
        if errors == "raise":
            value = array[next(misfits(array, wanted))]
            raise TableError(
                f'column "{name}": expected values of type {wanted}, found {value}, which that '
                f"type does not have ({part.examples[kind].shard}); store such numbers as text, "
                'or pass errors="null"'
            ) from error
    bad = frozenset(misfits(array, wanted))
    mask = pa.array([at in bad for at in range(len(array))])
    return cast(pa.compute.if_else(mask, None, array), wanted)
