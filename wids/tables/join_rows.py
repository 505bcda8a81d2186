"""Use a table, a frame or a mapping as the other side of a join.

Values are joined as they are, which Arrow could not do for all of them (decision 0085). pyarrow and
pandas are used by their methods, and imported only where a caller's object needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from math import isnan
from typing import Any

import numpy as np

from wids.storage.array_types import IntArray
from wids.tables.column_paths import KEY
from wids.tables.join_keys import RowKeys
from wids.tables.join_names import Fields, Names, Wanted
from wids.tables.join_sides import OtherSide
from wids.tables.join_values import PLAIN, own_value, value_fields


class RowSide(OtherSide):
    """Rows with keys, from any kind of source. An entry is the number of a row.

    Args:
        name: The name of their source, for messages.
        fields: The fields that a row can have.
        keys: Returns the keys, in order.
        take: Returns the fields of rows, in new dicts, each with its key as ``__key__``.

    Attributes:
        held_nbytes: About how many bytes of memory they take, if it is known.
    """

    held_nbytes = 0

    def __init__(
        self,
        name: str,
        fields: Iterable[str],
        keys: Callable[[], Iterator[Any]],
        take: Callable[[Sequence[int]], list[Fields]],
    ) -> None:
        self.keys = RowKeys(keys, name)
        self._fields = list(fields)
        self._take = take

    def read(self, entries: IntArray) -> list[Fields | None]:
        """Return the values of rows; see `OtherSide`."""
        return self._selected([*self._take(entries.tolist())] if len(entries) else [])

    def read_one(self, entry: int, *, local: bool) -> Fields | None:  # noqa: ARG002 - in memory
        """Return the values of one row."""
        return self._selected([*self._take([entry])])[0]

    def fields(self, number: int | None) -> Sequence[str]:  # noqa: ARG002 - the same for all
        """Return the fields that a row can have."""
        return self._fields


def import_arrow(what: str) -> Any:
    """Return pyarrow, to read a caller's object or file."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError(
            f"join: expected pyarrow, to read {what}, found none; pip install 'wids[table]'"
        ) from error
    return pa


def table_rows(table: Any, names: Names, wanted: Wanted, what: str = "the table") -> RowSide:
    """Return the rows of a ``pyarrow.Table``."""
    columns = wanted.fields(what, table.column_names, names)
    # Arrow cannot take single rows of the text that polars has.
    for number, column in enumerate(table.schema):
        wide = {"string_view": "large_string", "binary_view": "large_binary"}
        if str(column.type) in wide:
            cast = table.column(number).cast(wide[str(column.type)])
            table = table.set_column(number, column.name, cast)
    # Partials and no closures: a joined dataset is pickled for workers.
    keys = partial(_table_keys, table, wanted.key)
    take = partial(_take_of_table, table, (*columns.values(), wanted.key), columns)
    return RowSide(what, columns, keys, take)


def _table_keys(table: Any, key: str) -> Iterator[Any]:
    for batch in table.column(key).chunks:
        for start in range(0, len(batch), 1 << 16):
            yield from batch.slice(start, 1 << 16).to_pylist()


def _take_of_table(
    table: Any, names: Sequence[str], fields: Iterable[str], rows: Sequence[int]
) -> list[Fields]:
    if len(rows) == 1:  # in a hundredth of the time that `take` needs
        values = [[table.column(name)[rows[0]].as_py()] for name in names]
    else:
        values = [_taken(table.column(name), rows) for name in names]
    return _as_rows(fields, values)


def _taken(column: Any, rows: Sequence[int]) -> list[Any]:
    """Return the values of rows of a column of Arrow."""
    try:
        found: list[Any] = column.take(rows).to_pylist()
    except NotImplementedError:  # texts of polars inside lists
        found = [column[row].as_py() for row in rows]
    return found


def frame_rows(frame: Any, names: Names, wanted: Wanted) -> RowSide:
    """Return the rows of a pandas frame as it is now, whose keys are a column or the index."""
    if frame.index.name == wanted.key:
        frame = frame.reset_index(allow_duplicates=True)
    columns = wanted.fields("the frame", list(frame.columns), names)
    # Copies, since frames are sorted in place.
    labels = frame[wanted.key].copy()
    take = partial(_take_of_frame, frame[list(columns.values())].copy(), labels, columns)
    return RowSide("the frame", columns, partial(iter, labels), take)


def _take_of_frame(
    frame: Any, labels: Any, columns: Mapping[str, str], rows: Sequence[int]
) -> list[Fields]:
    taken = frame.iloc[list(rows)]
    values = [
        [v if type(v) in PLAIN else own_value(v) for v in taken[name].tolist()]
        for name in columns.values()
    ]
    for name, found in zip(columns.values(), values, strict=True):
        if taken[name].dtype.kind == "O":  # where NaN is the null of texts and objects
            found[:] = [None if type(v) is float and isnan(v) else v for v in found]
    return _as_rows(columns, [*values, labels.take(list(rows)).tolist()])


def mapping_rows(mapping: Mapping[str, Any], names: Names, *, with_fields: bool) -> RowSide:
    """Return the values of a mapping by their keys: mappings of fields, or single values.

    Args:
        mapping: The mapping, which must not change while datasets read it.
        names: The names of the fields.
        with_fields: Whether the fields of all values are needed; otherwise those of the first one.
    """
    fields: dict[str, None] = {}
    for value in islice(mapping.values(), None if with_fields else 1):
        fields.update(dict.fromkeys(value_fields(value, names)))
    listed = list(mapping)
    take = partial(_take_of_mapping, mapping, listed, names)
    return RowSide("the mapping", fields, partial(iter, listed), take)


def _take_of_mapping(
    mapping: Mapping[str, Any], listed: Sequence[str], names: Names, rows: Sequence[int]
) -> list[Fields]:
    keys = [listed[row] for row in rows]
    return [{**value_fields(mapping[key], names), KEY: key} for key in keys]


def is_array(other: Any) -> bool:
    """Return whether an object is an array, or like one, and neither a frame nor of Arrow."""
    others = ("iloc", "__arrow_c_stream__", "__arrow_c_array__")
    is_other = isinstance(other, type) or any(hasattr(other, name) for name in others)
    return not is_other and all(hasattr(other, name) for name in ("shape", "dtype", "__getitem__"))


def array_rows(array: Any, names: Names) -> RowSide:
    """Return the rows of an array as one field, whose own name is empty; they have no keys."""
    field = names[""]
    return RowSide("the array", [field], partial(iter, ()), partial(_take_of_array, array, field))


def _take_of_array(array: Any, field: str, rows: Sequence[int]) -> list[Fields]:
    # One by one: not every array takes a list in any order.
    values = [array[row] for row in rows]
    if values and hasattr(values[0], "numpy"):  # a tensor
        values = [value.numpy() for value in values]
    # Copies of their own; `[()]` makes a number of an array without dimensions.
    return [{field: np.array(value)[()]} for value in values]


def entry_rows(entries: Sequence[tuple[str, Any]], names: Names, what: str) -> RowSide:
    """Return the values of a file by their keys. Their fields are made once, unlike a mapping's."""
    rows = [{**value_fields(value, names, what), KEY: key} for key, value in entries]
    fields = dict.fromkeys(field for row in rows for field in row if field != KEY)
    keys = partial(iter, [key for key, _ in entries])
    return RowSide(what, fields, keys, partial(_take_of_entries, rows))


def _take_of_entries(entries: Sequence[Fields], rows: Sequence[int]) -> list[Fields]:
    return [own_value(entries[row]) for row in rows]


def _as_rows(fields: Iterable[str], values: list[list[Any]]) -> list[Fields]:
    names = (*fields, KEY)
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
