"""Read columns of a dataset or view into one `pyarrow.Table`, shard by shard on any executor.

Rows follow the view. Two columns are always there: the position in the whole dataset, and the key.
`column_reader` decides which bytes are read, and how they become values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Final, get_args

import numpy as np

from wids.errors import TableError, WidsError
from wids.publish.results import results_of
from wids.shards.positions import Positions
from wids.shards.reader import ShardReader
from wids.storage.array_types import IntArray
from wids.storage.progress import Bar
from wids.storage.reading_threads import in_threads
from wids.storage.transport import urls
from wids.tables.column_parts import Errors, column_of, names_of
from wids.tables.column_paths import INDEX, KEY, ColumnPath, Columns, parse_columns
from wids.tables.column_reader import ColumnReader, PickledOnce, ShardColumns
from wids.tables.shard_rows import Rows, in_ascending_order, rows_of_shards

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_TASKS: Final = 256
"""Most tasks of an executor, each of which receives the reader of all shards."""

_MAX_TOGETHER: Final = 64
"""Most shards that are read by range at the same time."""

_MAX_SAMPLES: Final = 1024
"""Samples that are read at a time, where a shard has no index of all their fields."""
_SMALL_CHUNK: Final = 10_000
"""Columns whose chunks have fewer rows on average become one chunk each."""


def check_arrow() -> None:
    """Raise `ModuleNotFoundError` with the extra that installs pyarrow, if it is missing."""
    try:
        import pyarrow  # noqa: F401, ICN001 - only whether it can be imported
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "tables need the package pyarrow, which is not installed: pip install 'wids[table]'",
            name="pyarrow",
        ) from error


def read_table(
    shards: ShardReader,
    positions: Positions,
    columns: Columns,
    *,
    errors: Errors = "raise",
    executor: Executor | None = None,
    progress: bool | None = None,
) -> pa.Table:
    """Read columns of the samples at some positions; see `ShardListDataset.table`."""
    check_arrow()
    import pyarrow as pa

    if errors not in get_args(Errors):
        raise ValueError(f'errors: expected "raise" or "null", found {errors!r}')
    paths = parse_columns(columns)
    reader = ColumnReader(shards, paths, errors)
    ascending = in_ascending_order(positions)
    tasks = list(rows_of_shards(ascending, shards.edges))
    if not shards.has_all_fields:
        tasks = [
            (number, rows[at : at + _MAX_SAMPLES])
            for number, rows in tasks
            for at in range(0, len(rows), _MAX_SAMPLES)
        ]
    read: list[ShardColumns] = []
    with Bar("reading columns", len(tasks), "shard", wanted=progress) as bar:
        for group in _results(reader, tasks, executor):
            read += group
            bar.reach(len(read))
    if read:
        _check_exist(paths, read)
    index = [pa.array(part.positions) for part in read]
    table = pa.table(
        {
            INDEX: pa.chunked_array(index, pa.int64()),
            KEY: pa.chunked_array([part.keys for part in read], pa.string()),
            **{
                path.name: column_of(path.name, [part.parts[at] for part in read], errors)
                for at, path in enumerate(paths)
            },
        }
    )
    if len(read) > 1 and len(table) < _SMALL_CHUNK * len(read):
        table = table.combine_chunks()
    return _in_order(table, ascending, positions)


def _in_order(table: pa.Table, ascending: range | IntArray, positions: Positions) -> pa.Table:
    """Return the rows of ascending positions in the order of positions."""
    import pyarrow as pa

    if isinstance(positions, range):
        reversed_ = np.arange(len(positions))[::-1]
        return table if positions.step > 0 else table.take(pa.array(reversed_))
    if len(ascending) == len(positions) and positions.is_ascending:
        return table
    return table.take(pa.array(np.searchsorted(ascending, np.asarray(positions))))


def _results(
    reader: ColumnReader, tasks: Sequence[tuple[int, Rows]], executor: Executor | None
) -> Iterator[list[ShardColumns]]:
    """Yield the columns of the shards, in order."""
    if executor is None:
        for at in range(0, len(tasks), _MAX_TOGETHER):
            group = tasks[at : at + _MAX_TOGETHER]
            requests = [partial(_by_range, reader, *task) for task in group]
            is_local = all(reader.shards.is_local(number) for number, _ in group)
            found = [None] * len(group) if is_local else in_threads(requests, "wids-columns")
            for task, by_range in zip(group, found, strict=True):
                if isinstance(by_range, WidsError):
                    raise by_range
                yield _read_group(reader, [task]) if by_range is None else [by_range]
        return
    shared = PickledOnce(reader)
    size = -(-len(tasks) // _MAX_TASKS) or 1
    groups = [tasks[at : at + size] for at in range(0, len(tasks), size)]
    shards = reader.shards.shards
    results = results_of(
        *(executor, partial(_read_shared, shared), groups),
        lambda group: urls.redact(shards[group[0][0]].url),
        in_order=True,
    )
    with closing(results):
        for _, columns in results:
            yield columns


def _by_range(reader: ColumnReader, number: int, rows: Rows) -> ShardColumns | WidsError | None:
    """Return what `read_ranges` does, or its error; that of the first shard is raised."""
    try:
        return reader.read_ranges(number, rows)
    except WidsError as error:
        return error


def _read_shared(shared: PickledOnce, tasks: Sequence[tuple[int, Rows]]) -> list[ShardColumns]:
    """Read a group of shards. Runs on the workers of an executor."""
    try:
        return _read_group(shared.value, tasks)
    finally:
        # A worker may live long, and an open copy cannot be evicted (CACHE-7).
        if shared.is_restored:
            shared.value.shards.close()


def _read_group(reader: ColumnReader, tasks: Sequence[tuple[int, Rows]]) -> list[ShardColumns]:
    return [reader.read(number, rows) for number, rows in tasks]


def _check_exist(paths: Sequence[ColumnPath], read: Sequence[ShardColumns]) -> None:
    """Raise `TableError` for a path that no sample has."""
    for at, path in enumerate(paths):
        parts = [part.parts[at] for part in read]
        if not any(part.exists for part in parts):
            names = names_of(parts)
            near = get_close_matches(f"{path.text}", names, n=3, cutoff=0.5)
            listed = ", ".join(near or names[:12]) or "no fields at all"
            raise TableError(
                f'column "{path.name}": expected a path that a sample has, found {path.text}, '
                f"which no sample has; {'near it' if near else 'the samples have'}: {listed}"
            )
