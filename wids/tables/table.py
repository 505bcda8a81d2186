"""Read columns of a dataset or view into one `pyarrow.Table`, shard by shard on any executor.

Rows follow the view. Two columns are always there: the position in the whole dataset, and the key.

Only the members of the wanted fields are read, in bulk, by the arrays of the index; no sample is
made. A reader can be pickled for the workers of any executor. It does not choose the final types of
columns, since they depend on all shards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np

from wids.errors import DecodeError, ShardFormatError, TableError, WidsError
from wids.publish.executors import results_of
from wids.shards.fields.picture_headers import HEAD_NBYTES
from wids.shards.policy import Wanted, Way, way_to_read
from wids.shards.positions import Positions
from wids.shards.reader import ShardReader
from wids.shards.remote_shard import RemoteShard
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import ReadableShard
from wids.storage.arrays import IntArray
from wids.storage.progress import Bar
from wids.storage.ranges import RangeError
from wids.storage.reading_threads import in_threads
from wids.storage.transport import urls
from wids.tables import column_values
from wids.tables.columns import (
    ColumnPart,
    Errors,
    Example,
    column_of,
    in_one_part,
    layers_of,
    names_of,
)
from wids.tables.shard_fields import Rows, ShardFields

if TYPE_CHECKING:
    import pyarrow as pa


def in_ascending_order(positions: Positions) -> range | IntArray:
    """Return each position once, in ascending order."""
    if isinstance(positions, range):
        return positions if positions.step > 0 else positions[::-1]
    array = np.asarray(positions)
    return array if (array[1:] > array[:-1]).all() else np.unique(array)


def rows_of_shards(ascending: range | IntArray, edges: IntArray) -> Iterator[tuple[int, Rows]]:
    """Yield the shards that have some of the positions, each with its rows."""
    if isinstance(ascending, range) and ascending.step == 1:
        firsts = np.clip(edges, ascending.start, max(ascending.start, ascending.stop))
        for number in np.flatnonzero(np.diff(firsts)).tolist():
            start = int(edges[number])
            yield number, range(int(firsts[number]) - start, int(firsts[number + 1]) - start)
        return
    positions = np.asarray(ascending, np.int64)
    cuts = np.searchsorted(positions, edges)
    for number in np.flatnonzero(np.diff(cuts)).tolist():
        rows = positions[cuts[number] : cuts[number + 1]] - edges[number]
        first, last = int(rows[0]), int(rows[-1])
        yield number, range(first, last + 1) if last - first == len(rows) - 1 else rows


@dataclass(frozen=True)
class BlockColumns:
    """The columns of samples of one shard that were read together, in the order of the shard.

    Attributes:
        keys: Their keys.
        positions: Their positions in the dataset.
        parts: The columns.
    """

    keys: pa.Array
    positions: IntArray
    parts: list[ColumnPart]

    @property
    def nbytes(self) -> int:
        """The bytes of memory that they take."""
        arrays = [array for part in self.parts for array in part.layers.values()]
        return int(self.keys.nbytes + sum(array.nbytes for array in arrays))


def in_long_blocks(blocks: Iterable[BlockColumns]) -> Iterator[BlockColumns]:
    """Yield blocks joined into long ones as they come, so that memory is not cut into bits."""
    some: list[BlockColumns] = []
    num_rows, nbytes = 0, 0
    for block in blocks:
        some.append(block)
        num_rows, nbytes = num_rows + len(block.keys), nbytes + block.nbytes
        if num_rows >= _LONG_ROWS or nbytes >= _LONG_NBYTES:
            yield _in_one_block(some)
            some, num_rows, nbytes = [], 0, 0
    if some:
        yield _in_one_block(some)


def _in_one_block(blocks: list[BlockColumns]) -> BlockColumns:
    import pyarrow as pa

    if len(blocks) == 1:
        return blocks[0]
    parts = zip(*(block.parts for block in blocks), strict=True)
    return BlockColumns(
        pa.concat_arrays([block.keys for block in blocks]),
        np.concatenate([block.positions for block in blocks]),
        [in_one_part(some) for some in parts],
    )


@dataclass(frozen=True)
class ColumnReader:
    """Reads columns shard by shard.

    Attributes:
        shards: The shards of the dataset.
        paths: The columns.
        errors: How to treat a value that cannot be read.
    """

    shards: ShardReader
    paths: tuple[column_values.ColumnPath, ...]
    errors: Errors

    def read(self, number: int, rows: Rows) -> list[BlockColumns] | WidsError | None:
        """Read some samples of a shard, a remote one by range.

        Returns:
            None if the shard has to be fetched, or if that costs less. An error is returned too: of
            several shards that are read together, that of the first one is raised.
        """
        shards = self.shards
        try:
            if shards.joint is not None:
                with closing(shards.only({path.field for path in self.paths})) as reader:
                    return self._columns(self._joined(reader, number, rows), number, rows)
            if way_to_read(Wanted.SAMPLES, shards.facts(number)) is Way.FETCH:
                return None
            shard = shards.open(number, Wanted.SAMPLES)
            if isinstance(shard, RemoteShard) and self._costs_less_whole(shard, rows):
                return None
            return self._columns(shard, number, rows)
        except _ReplacedError:
            return self.read(number, rows)
        except WidsError as error:
            has_no_ranges = isinstance(error, RangeError)
            return None if has_no_ranges and shards.options.may_fetch else error

    def fetch(self, number: int, rows: Rows) -> list[BlockColumns]:
        """Read some samples of a shard that is fetched first.

        Raises:
            DecodeError: A field cannot be decoded, and ``errors`` is ``"raise"``.
            TableError: A value fits into no column, and ``errors`` is ``"raise"``.
            WidsError: The shard cannot be read.
        """
        shards = self.shards
        try:
            if shards.joint is not None:
                return self._columns(self._joined(shards, number, rows), number, rows)
            return self._columns(shards.open(number, Wanted.MOST), number, rows)
        except _ReplacedError:
            return self.fetch(number, rows)

    def _joined(self, reader: ShardReader, number: int, rows: Rows) -> ReadableShard:
        ignores = None if self.errors == "raise" else (lambda _: None)
        shard: ReadableShard = reader.joint.of_samples(number, rows, ignores)
        return shard

    def _costs_less_whole(self, shard: RemoteShard, rows: Rows) -> bool:
        """Return whether to fetch a shard, which may be, in place of reading members of it."""
        if not self.shards.options.may_fetch:
            return False
        nbytes, reader = 0, ShardFields(shard)
        fields = {path.field for path in self.paths}
        pictures = set(filter(column_values.is_picture, fields))
        for names, most_nbytes in ((fields - pictures, None), (pictures, HEAD_NBYTES[0])):
            found = [reader.members(name, rows)[1] for name in names]
            members = np.concatenate([np.empty(0, np.int64), *found])
            if len(members):
                nbytes += shard.request_nbytes(members, most_nbytes)
        return nbytes >= shard.nbytes

    def _columns(self, shard: ReadableShard, number: int, rows: Rows) -> list[BlockColumns]:
        return list(in_long_blocks(self._blocks(shard, number, rows)))

    def _blocks(self, shard: ReadableShard, number: int, rows: Rows) -> Iterator[BlockColumns]:
        """Yield columns block by block, so that only the values of one are alive at once."""

        def replace_damaged(error: ShardFormatError) -> None:
            if self.shards.replaces(number, shard, error):
                raise _ReplacedError from error

        verify = self.shards.verifies_decoded
        fields = ShardFields(shard, verify=verify, on_damage=replace_damaged)
        names = list(dict.fromkeys(path.field for path in self.paths))
        keys, positions = _keys(shard.index, rows), np.asarray(rows) + self.shards.starts[number]
        start = 0
        for some in fields.blocks(names, rows):
            stop = start + len(some)
            parts = self._parts(fields, names, number, some)
            yield BlockColumns(keys[start:stop], positions[start:stop], parts)
            start = stop

    def _parts(
        self, fields: ShardFields, names: Sequence[str], number: int, rows: Rows
    ) -> list[ColumnPart]:
        """Return the columns of a block of samples.

        Args:
            fields: The fields of their shard.
            names: The fields that have columns.
            number: The number of the shard.
            rows: The samples.
        """
        index = fields.shard.index

        def example(place: int, value: Any) -> Example:
            row, url = int(rows[place]), urls.redact(self.shards.shards[number].url)
            position = int(self.shards.starts[number]) + row
            return Example(f"{value!r:.60}", index.key(row), position, url)

        parts = {}
        for name, (at, datas) in zip(names, fields.read(names, rows), strict=True):
            values = fields.decoded(name, datas)
            for path in self.paths:
                if path.field == name:
                    found = column_values.parts_of(values, path.steps)
                    parts[path.name] = self._part(path, at, found, len(rows), example)
                    if not len(at):
                        parts[path.name].names = index.fields
        return [parts[path.name] for path in self.paths]

    def _part(
        self,
        path: column_values.ColumnPath,
        places: IntArray,
        found: column_values.Parts,
        length: int,
        example: Callable[[int, Any], Example],
    ) -> ColumnPart:
        """Return what was found of a column in a block.

        Args:
            path: The path of the column.
            places: The samples that have the field.
            found: What they have.
            length: The number of samples.
            example: Returns the sample at a place, which has a value.
        """
        values: list[Any] = [None] * length
        for place, value in zip(places.tolist(), found.values, strict=True):
            values[place] = value
        names = [column_values.path_text(path.field, each) for each in found.names]

        def on_problem(place: int, error: Exception) -> None:
            if self.errors == "raise":
                raise _located(example(place, values[place]), path, error) from error

        part = ColumnPart(length, exists=found.exists, names=tuple(names))
        for kind, array in layers_of(values, on_problem).items():
            if array.null_count < length:
                place = array.is_valid().index(True).as_py()
                part.layers[kind], part.examples[kind] = array, example(place, values[place])
        return part


class _ReplacedError(Exception):
    """A damaged copy of a remote shard was released; another one can be opened."""


def _located(sample: Example, path: column_values.ColumnPath, error: Exception) -> Exception:
    """Return the error of a value, with its sample."""
    key, index, shard = sample.key, sample.index, sample.shard
    text = f'{shard}: sample "{key}" (index {index}): {error}'
    if isinstance(error, DecodeError):
        return DecodeError(text, shard=shard, key=key, field=path.field, index=index)
    if isinstance(error, ShardFormatError):
        return ShardFormatError(text)
    return TableError(f'column "{path.name}": {text}; pass errors="null" to have null for it')


def _keys(index: ShardIndex, rows: Rows) -> pa.Array:
    """Return the keys of samples without an object for each of them."""
    import pyarrow as pa

    text = bytes(index.text[index.text_start : index.text_stop])
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:  # member names need not be UTF-8, while strings of a table are
        keys = [index.key(row).encode("utf-8", "backslashreplace").decode() for row in rows]
        return pa.array(keys, pa.string())
    # Key i stands after i + 1 NULs, which are left out here.
    offsets = np.asarray(index.key_starts, np.int64) - np.arange(1, len(index) + 2)
    array = pa.StringArray.from_buffers(
        len(index), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text.replace(b"\0", b""))
    )
    return array[rows.start : rows.stop] if isinstance(rows, range) else array.take(pa.array(rows))


_LONG_ROWS: Final = 1 << 16
_LONG_NBYTES: Final = 64 << 20
"""The rows, or bytes, of columns that are not joined to the next ones."""

_MAX_TASKS: Final = 256
"""Most tasks of an executor; each receives the reader of all shards."""

_MAX_TOGETHER: Final = 64
"""Most shards that are read by range at the same time."""

_MAX_SAMPLES: Final = 1024
"""Samples that are read at a time, where a shard has no index of all their fields."""


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
    columns: column_values.Columns,
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
    paths = column_values.parse_columns(columns)
    reader = ColumnReader(shards, paths, errors)
    ascending = in_ascending_order(positions)
    tasks = list(rows_of_shards(ascending, shards.edges))
    if shards.joint is not None:
        tasks = [
            (number, rows[at : at + _MAX_SAMPLES])
            for number, rows in tasks
            for at in range(0, len(rows), _MAX_SAMPLES)
        ]
    with Bar("reading columns", len(tasks), "shard", wanted=progress) as bar:
        blocks = _read_blocks(reader, tasks, executor, bar)
    if blocks:
        _check_exist(paths, blocks)
    index = [pa.array(block.positions) for block in blocks]
    table = pa.table(
        {
            column_values.INDEX: pa.chunked_array(index, pa.int64()),
            column_values.KEY: pa.chunked_array([block.keys for block in blocks], pa.string()),
            **{
                path.name: column_of(path.name, [block.parts[at] for block in blocks], errors)
                for at, path in enumerate(paths)
            },
        }
    )
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


def _read_blocks(
    reader: ColumnReader, tasks: Sequence[tuple[int, Rows]], executor: Executor | None, bar: Bar
) -> list[BlockColumns]:
    """Return the blocks of all shards, in order."""
    shards = reader.shards.shards
    size = -(-len(tasks) // _MAX_TASKS) or 1
    if executor is None:
        size = 1 if all(reader.shards.is_local(n) for n, _ in tasks) else _MAX_TOGETHER
    results = results_of(
        *(executor, partial(_read_group, reader, os.getpid())),
        [tasks[at : at + size] for at in range(0, len(tasks), size)],
        lambda group: urls.redact(shards[group[0][0]].url),
        in_order=True,
    )

    def found() -> Iterator[BlockColumns]:
        num_read = 0
        for group, blocks in results:
            num_read += len(group)
            bar.reach(num_read)
            yield from blocks

    with closing(results):
        return list(in_long_blocks(found()))


def _read_group(
    reader: ColumnReader, caller: int, tasks: Sequence[tuple[int, Rows]]
) -> list[BlockColumns]:
    """Read a group of shards, together those that need not be fetched. Runs on any executor."""
    try:
        requests = [partial(reader.read, *task) for task in tasks]
        blocks: list[BlockColumns] = []
        for task, found in zip(tasks, in_threads(requests, "wids-columns"), strict=True):
            if isinstance(found, WidsError):
                raise found
            blocks += reader.fetch(*task) if found is None else found
        return blocks
    finally:
        # A worker may live long, and an open copy cannot be evicted (CACHE-7).
        if os.getpid() != caller:
            reader.shards.close()


def _check_exist(paths: Sequence[column_values.ColumnPath], blocks: Sequence[BlockColumns]) -> None:
    """Raise `TableError` for a path that no sample has."""
    for at, path in enumerate(paths):
        parts = [block.parts[at] for block in blocks]
        if not any(part.exists for part in parts):
            names = names_of(parts)
            near = get_close_matches(f"{path.text}", names, n=3, cutoff=0.5)
            listed = ", ".join(near or names[:12]) or "no fields at all"
            raise TableError(
                f'column "{path.name}": expected a path that a sample has, found {path.text}, '
                f"which no sample has; {'near it' if near else 'the samples have'}: {listed}"
            )
