"""Read columns of a dataset or view into one `pyarrow.Table`, shard by shard on any executor.

Rows follow the view. Two columns are always there: the position in the whole dataset, and the key.

Only the members of the wanted fields are read, in bulk, by the arrays of the index; no sample is
made. A reader can be pickled for the workers of any executor. It does not choose the final types of
columns, since they depend on all shards.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, get_args

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
from wids.storage.ranges import WholeFileError
from wids.storage.reading_threads import in_threads
from wids.storage.transport import urls
from wids.tables import column_values
from wids.tables.column_values import ColumnPath
from wids.tables.columns import OBJECT, Errors, Kind, column_of, layers_of
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


_MAX_NAMES: Final = 100
"""Names of other parts of fields to keep for a message."""


@dataclass(frozen=True)
class Block:
    """The columns of samples that were read together.

    Attributes:
        table: Their positions, their keys, and for each path a column for each kind of its values,
            with nulls where the value is of another kind.
        others: For each path what some samples have in its place; None if a sample has it.
    """

    table: pa.Table
    others: list[tuple[str, ...] | None]


def in_long_blocks(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield blocks joined into long ones as they come, so that memory is not cut into bits."""
    some: list[Block] = []
    num_rows, nbytes = 0, 0
    for block in blocks:
        some.append(block)
        num_rows, nbytes = num_rows + len(block.table), nbytes + block.table.nbytes
        if num_rows >= _LONG_ROWS or nbytes >= _LONG_NBYTES:
            yield _in_one_block(some)
            some, num_rows, nbytes = [], 0, 0
    if some:
        yield _in_one_block(some)


def _in_one_block(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    others = [
        None if None in each else tuple(dict.fromkeys(chain(*filter(None, each))))[:_MAX_NAMES]
        for each in zip(*(block.others for block in blocks), strict=True)
    ]
    return Block(_in_one_table(blocks).combine_chunks(), others)


def _in_one_table(blocks: list[Block]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables([block.table for block in blocks], promote_options="default")


def _layer_name(at: int, kind: Kind) -> str:
    return f"{at}:{kind}"


def _layers(table: pa.Table, at: int) -> dict[Kind, pa.ChunkedArray]:
    """Return the columns of a path by the kinds of their values."""
    return {
        OBJECT if name == _layer_name(at, OBJECT) else table[name].type: table[name]
        for name in table.column_names
        if name.startswith(_layer_name(at, ""))
    }


@dataclass(frozen=True)
class ColumnReader:
    """Reads columns shard by shard.

    Attributes:
        shards: The shards of the dataset.
        paths: The columns.
        errors: How to treat a value that cannot be read.
    """

    shards: ShardReader
    paths: tuple[ColumnPath, ...]
    errors: Errors

    def read(self, number: int, rows: Rows) -> list[Block] | WidsError | None:
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
            has_no_ranges = isinstance(error, WholeFileError)
            return None if has_no_ranges and shards.options.may_fetch else error

    def fetch(self, number: int, rows: Rows) -> list[Block]:
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

    def _columns(self, shard: ReadableShard, number: int, rows: Rows) -> list[Block]:
        return list(in_long_blocks(self._blocks(shard, number, rows)))

    def _blocks(self, shard: ReadableShard, number: int, rows: Rows) -> Iterator[Block]:
        """Yield columns block by block, so that only the values of one are alive at once."""
        import pyarrow as pa

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
            index = {
                column_values.INDEX: positions[start:stop],
                column_values.KEY: keys[start:stop],
            }
            layers, others = self._read_block(fields, names, number, some)
            yield Block(pa.table(index | layers), others)
            start = stop

    def _read_block(
        self, fields: ShardFields, names: Sequence[str], number: int, rows: Rows
    ) -> tuple[dict[str, pa.Array], list[tuple[str, ...] | None]]:
        """Return the columns of some samples, and what samples have in place of paths; see `Block`.

        Args:
            fields: The fields of their shard.
            names: The fields that have columns.
            number: The number of the shard.
            rows: The samples.
        """
        index, url = fields.shard.index, urls.redact(self.shards.shards[number].url)
        read = dict(zip(names, fields.read(names, rows), strict=True))
        decoded = {name: fields.decoded(name, datas) for name, (_, datas) in read.items()}
        layers: dict[str, pa.Array] = {}
        others: list[tuple[str, ...] | None] = []
        for at, path in enumerate(self.paths):
            places, _ = read[path.field]
            found = column_values.parts_of(decoded[path.field], path.steps)
            values = found.values
            if len(places) < len(rows):
                values = [None] * len(rows)
                for place, value in zip(places.tolist(), found.values, strict=True):
                    values[place] = value

            def on_problem(place: int, error: Exception, path: ColumnPath = path) -> None:
                if self.errors == "raise":
                    row = int(rows[place])
                    position = int(self.shards.starts[number]) + row
                    raise _located(url, index.key(row), position, path, error) from error

            for kind, array in layers_of(values, on_problem).items():
                if array.null_count < len(array):
                    layers[_layer_name(at, kind)] = array
            texts = tuple(column_values.path_text(path.field, each) for each in found.names)
            others.append(None if found.exists else texts if len(places) else index.fields)
        return layers, others


class _ReplacedError(Exception):
    """A damaged copy of a remote shard was released; another one can be opened."""


def _located(shard: str, key: str, index: int, path: ColumnPath, error: Exception) -> Exception:
    """Return the error of a value, with its sample."""
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
"""Most shards of a group, of which `in_threads` reads 32 at a time."""

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
    whole = _in_one_table(blocks or [Block(_no_rows(), [])])
    index, keys = whole[column_values.INDEX], whole[column_values.KEY]

    def sample_at(row: int) -> str:
        position = index[row].as_py()
        url = urls.redact(shards.shards[shards.locate(position)[0]].url)
        return f'{url}: sample "{keys[row]}" (index {position})'

    found = {column_values.INDEX: index, column_values.KEY: keys}
    for at, path in enumerate(paths):
        layers = _layers(whole, at)
        found[path.name] = column_of(path.name, layers, len(whole), errors, sample_at)
    return _in_order(pa.table(found), ascending, positions)


def _no_rows() -> pa.Table:
    import pyarrow as pa

    schema = [(column_values.INDEX, pa.int64()), (column_values.KEY, pa.string())]
    return pa.schema(schema).empty_table()


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
) -> list[Block]:
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

    def found() -> Iterator[Block]:
        num_read = 0
        for group, blocks in results:
            num_read += len(group)
            bar.reach(num_read)
            yield from blocks

    with closing(results):
        return list(in_long_blocks(found()))


def _read_group(
    reader: ColumnReader, caller: int, tasks: Sequence[tuple[int, Rows]]
) -> list[Block]:
    """Read a group of shards, together those that need not be fetched. Runs on any executor."""
    try:
        requests = [partial(reader.read, *task) for task in tasks]
        blocks: list[Block] = []
        for task, found in zip(tasks, in_threads(requests, "wids-columns"), strict=True):
            if isinstance(found, WidsError):
                raise found
            blocks += reader.fetch(*task) if found is None else found
        return blocks
    finally:
        # A worker may live long, and an open copy cannot be evicted (CACHE-7).
        if os.getpid() != caller:
            reader.shards.close()


def _check_exist(paths: Sequence[ColumnPath], blocks: Sequence[Block]) -> None:
    """Raise `TableError` for a path that no sample has."""
    for at, path in enumerate(paths):
        others = [block.others[at] for block in blocks]
        if None not in others:
            names = list(dict.fromkeys(chain(*filter(None, others))))
            near = get_close_matches(f"{path.text}", names, n=3, cutoff=0.5)
            listed = ", ".join(near or names[:12]) or "no fields at all"
            raise TableError(
                f'column "{path.name}": expected a path that a sample has, found {path.text}, '
                f"which no sample has; {'near it' if near else 'the samples have'}: {listed}"
            )
