"""Combine the values of one column in parts of a dataset into one Arrow array of one type.

Each part has arrays by kind. Once all parts are known, the column gets the type that all values
fit; if there is none, the error names a sample of each type. Nothing is read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from wids.errors import TableError
from wids.tables.column_types import Kind, cast, combined, grouped, misfits

if TYPE_CHECKING:
    import pyarrow as pa

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


def joined(parts: Sequence[ColumnPart]) -> ColumnPart:
    """Concatenate parts in their order."""
    import pyarrow as pa

    if len(parts) == 1:
        return parts[0]
    whole = ColumnPart(sum(part.length for part in parts))
    for kind in dict.fromkeys(kind for part in parts for kind in part.layers):
        arrays = [
            part.layers[kind] if kind in part.layers else pa.nulls(part.length, kind.arrow_type())
            for part in parts
        ]
        whole.layers[kind] = pa.concat_arrays(arrays)
    for part in parts:
        whole.examples = part.examples | whole.examples
    whole.exists = any(part.exists for part in parts)
    whole.names = names_of(parts)
    return whole


def names_of(parts: Iterable[ColumnPart]) -> tuple[str, ...]:
    """Return the paths that exist in place of one that does not, each once."""
    names = dict.fromkeys(name for part in parts for name in part.names)
    return tuple(names)[:_MAX_NAMES]


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
    kind, kinds = groups[0]
    chunks = [_chunk(name, part, kind, kinds, errors) for part in parts]
    return pa.chunked_array(chunks, kind.arrow_type())


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


def _chunk(
    name: str, part: ColumnPart, kind: Kind, kinds: tuple[Kind, ...], errors: Errors
) -> pa.Array:
    import pyarrow as pa

    layers = [_fitting(name, part, k, kind, errors) for k in kinds if k in part.layers]
    return combined(layers) if layers else pa.nulls(part.length, kind.arrow_type())


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
