"""Make the reader of a joined dataset, and find which samples it contains.

This module decides what the other side is, and what happens to keys that it does not have.
`join_keys` matches entries.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from wids.errors import JoinError
from wids.shards.key_lookup import form_hint
from wids.shards.positions import as_int_array
from wids.shards.reader import ShardReader
from wids.shards.tars.headers import to_bytes
from wids.storage.arrays import BoolArray
from wids.tables import join_rows
from wids.tables.column_values import KEY
from wids.tables.join_fields import JoinedColumns, Names
from wids.tables.join_keys import DatasetKeys, Keyed, PositionMap, match_keys
from wids.tables.join_sides import DatasetSide, OtherSide
from wids.tables.joined import Joint
from wids.tables.table import check_arrow

Missing = Literal["error", "skip", "none"]

_MAX_NAMED = 3


def joined_reader(
    view: DatasetKeys,
    other: Any,
    missing: Missing,
    prefix: str,
    on: str = KEY,
    columns: Sequence[str] | None = None,
) -> tuple[ShardReader, BoolArray | slice]:
    """Return the reader of a joined dataset, and which samples of the view it has.

    Args:
        view: The dataset.
        other: A second dataset as a `DatasetKeys`, a table, a frame, a mapping, an array, or the
            name of a file, or of one for each shard.
        missing: How to treat samples whose key the other side does not have.
        prefix: Comes before the names of the other side's fields.
        on: The column of the other side that has the keys.
        columns: The columns of the other side that become fields; None for all.

    Raises:
        JoinError: Keys are missing or not unique, or the other side has no keys.
        FetchError: A remote shard has no index.
        TypeError, ValueError: An argument is invalid.
    """
    if missing not in get_args(Missing):
        raise ValueError(f'missing: expected "error", "skip" or "none", found {missing!r}')
    wanted = _wanted(other, on, columns)
    joint, is_present = _joint(view, other, missing, _names(prefix), wanted)
    if missing == "skip" and not is_present.all():
        return joint.reader(), is_present
    return joint.reader(), slice(None)


def _names(prefix: Any) -> Names:
    if not isinstance(prefix, str):
        raise TypeError(f"prefix: expected a text, found {type(prefix).__name__} {prefix!r:.80}")
    if prefix.startswith(("__", ".")) or prefix.endswith(".") or "\0" in prefix:
        raise ValueError(
            f'prefix: expected a name such as "b", by which .txt becomes .b.txt, found {prefix!r}'
        )
    return Names(prefix)


def _wanted(other: Any, on: Any, columns: Any) -> JoinedColumns:
    if not isinstance(on, str):
        raise TypeError(f"on: expected the name of a column, found {type(on).__name__} {on!r:.80}")
    if columns is not None:
        if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
            raise TypeError(f"columns: expected a list of names, found {columns!r:.80}")
        columns = tuple(columns)
    wanted = JoinedColumns(on, columns)
    if wanted != JoinedColumns() and (
        isinstance(other, DatasetKeys | Mapping) or join_rows.is_array(other)
    ):
        kind = "dataset" if isinstance(other, DatasetKeys) else type(other).__name__
        raise ValueError(
            f"on, columns: expected a table, a frame or files as the other side, found a {kind}, "
            "which has no such columns; open a dataset with fields="
        )
    return wanted


def _joint(
    view: DatasetKeys, other: Any, missing: Missing, names: Names, wanted: JoinedColumns
) -> tuple[Joint, BoolArray]:
    """Return what is joined, and which samples of the view have their keys on the other side."""
    fills = missing == "none"
    if isinstance(other, str | os.PathLike):
        other = os.fspath(other)
    if isinstance(other, str) and join_rows.is_per_shard(other):
        is_optional = missing != "error"
        files = join_rows.FileSide(view.reader, other, names, wanted, is_optional=is_optional)
        joint = Joint(view.samples, files, None, fills)
        return joint, _present_in_files(view, files, missing)
    if join_rows.is_array(other):
        rows = _by_number(view, other)
        joint = Joint(view.samples, join_rows.array_rows(other, names), rows, fills)
        return joint, np.ones(len(view.positions), bool)
    if isinstance(other, DatasetKeys):
        keyed: Keyed = other
        positions = match_keys(view, keyed)
        side: OtherSide = DatasetSide(other.samples, names, other.fields)
    else:
        side = _rows(view, other, names, wanted, with_fields=fills)
        keyed = side.keys
        positions = match_keys(view, keyed)
    is_present = positions.at(as_int_array(view.positions)) >= 0
    if missing == "error" and not is_present.all():
        raise _missing_error(view, keyed, is_present)
    return Joint(view.samples, side, positions, fills), is_present


def _rows(
    view: DatasetKeys, other: Any, names: Names, wanted: JoinedColumns, *, with_fields: bool
) -> join_rows.RowSide:
    """Return rows with keys, from any kind of source."""
    if isinstance(other, str):
        return join_rows.whole_file(view.reader, other, names, wanted)
    if isinstance(other, Mapping):
        return join_rows.mapping_rows(other, names, list(other), with_fields=with_fields)
    if hasattr(other, "iloc") and hasattr(other, "columns"):
        return join_rows.frame_rows(other, names, wanted)
    if not hasattr(other, "__arrow_c_stream__") and not hasattr(other, "__arrow_c_array__"):
        raise _not_joinable(other)
    check_arrow()
    import pyarrow as pa

    try:
        table = other if isinstance(other, pa.Table) else pa.table(other)
    except (ValueError, TypeError) as error:  # a single column
        raise _not_joinable(other) from error
    return join_rows.table_rows(table, names, wanted)


def _not_joinable(other: Any) -> TypeError:
    return TypeError(
        "join: expected a wids.ShardListDataset or a view, a pyarrow.Table, a pandas frame, a "
        "mapping from keys, an array with a row for each sample, or the name of a file, as "
        f'"{{shard}}.captions.json", found {type(other).__name__} {other!r:.80}; a subset is a '
        "view, dataset[indices], and a column with its keys a frame, column.to_frame()"
    )


def _by_number(view: DatasetKeys, array: Any) -> PositionMap:
    """Return the row of each sample of a view: as many as there are samples, in their order."""
    positions = as_int_array(view.positions)
    count = len(positions)
    if not array.shape or array.shape[0] != count:
        raise JoinError(
            f"join: expected an array with a row for each of the {count:,} samples, in their "
            f"order, found the shape {tuple(array.shape)}; join it to the dataset or view that it "
            "was made from, or make a mapping from keys of it"
        )
    start = int(positions.min()) if count else 0
    targets = np.full(int(positions.max()) + 1 - start if count else 0, -1)
    targets[positions - start] = np.arange(count)
    if (targets[positions - start] != np.arange(count)).any():
        raise JoinError("join: expected a view that has each sample once, for the rows of an array")
    return PositionMap(start, targets)


def _present_in_files(view: DatasetKeys, files: join_rows.FileSide, missing: Missing) -> BoolArray:
    """Return which samples of a view have their keys in the files; all unless ``"skip"``."""
    positions = as_int_array(view.positions)
    is_present = np.ones(len(positions), bool)
    if missing != "skip":
        return is_present
    reader = view.reader
    for number, indices, local_indices in reader.groups(positions):
        rows, stored = files.rows(number), reader.key_index(number)
        is_present[indices] = [stored.key(local_index) in rows for local_index in local_indices]
    return is_present


def _missing_error(view: DatasetKeys, other: Keyed, is_present: BoolArray) -> JoinError:
    missing = np.flatnonzero(~is_present)
    entries = [int(view.positions[index]) for index in missing[:_MAX_NAMED].tolist()]
    named = "; ".join(f"{view.key(entry)!r} ({view.place(entry)})" for entry in entries)
    hint = form_hint(view.key(entries[0]), partial(_has, other))
    if not hint and len(missing) == len(is_present):
        hint = f". {str(other)[:1].upper()}{str(other)[1:]} has {_examples(other)}"
    return JoinError(
        f"{view}: expected the keys of all {len(is_present):,} samples in {other}, found "
        f"{len(missing):,} of them missing: {named}{'; …' * (len(missing) > len(entries))}; pass "
        'missing="skip" to leave these samples out, or missing="none" for None as their '
        f"fields{hint}"
    )


def _has(other: Keyed, key: str) -> bool:
    """Whether a side has a key, for a message; looks at all of them."""
    wanted = b"\0%b\0" % to_bytes(key)  # each key ends with a NUL
    return any(wanted in b"\0" + texts.text.tobytes() for texts in other.texts())


def _examples(other: Keyed) -> str:
    """Return the first keys of the other side as text, for the error of a caller with others."""
    found: list[str] = []
    with suppress(IndexError, StopIteration):  # there is none, or one
        found.extend(map(repr, map(other.key, range(2))))
    return f"keys such as {', '.join(found)}" if found else "no such keys"
