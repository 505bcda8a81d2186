"""Read columns of a dataset or view into one `pyarrow.Table`, shard by shard on any executor.

Rows follow the view. Two columns are always there: the position in the whole dataset, and the key.

Only the members of the wanted fields are read, in bulk, by the arrays of the index; no sample is
made. A reader can be pickled for the workers of any executor. It does not choose the final types of
columns, since they depend on all shards.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from wids.errors import DecodeError, ShardFormatError, TableError, WidsError
from wids.publish.executors import results_of
from wids.shards.fields.picture_headers import HEAD_NBYTES, picture_facts
from wids.shards.policy import Wanted, Way, way_to_read
from wids.shards.positions import Positions
from wids.shards.reader import ShardReader
from wids.shards.remote_shard import RemoteShard
from wids.shards.tars.index import ShardIndex
from wids.shards.tars.raw_samples import ReadableShard, read_or_errors
from wids.storage.arrays import IntArray
from wids.storage.progress import Bar
from wids.storage.ranges import RangeError
from wids.storage.reading_threads import in_threads
from wids.storage.transport import urls
from wids.tables import column_values
from wids.tables.columns import ColumnPart, Errors, Example, column_of, joined, layers_of, names_of

if TYPE_CHECKING:
    import pyarrow as pa


Rows: TypeAlias = "range | IntArray"
"""Samples of a shard: consecutive ones, or ascending positions in the shard."""


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


_MAX_MEMBERS: Final = 4096
_MAX_NBYTES: Final = 8 << 20
"""The maximum number of members, and of their bytes, to read at a time."""


@dataclass(frozen=True)
class ShardColumns:
    """The columns of some samples of one shard, in the order of the shard.

    Attributes:
        keys: Their keys.
        positions: Their positions in the dataset.
        parts: The columns.
    """

    keys: pa.Array
    positions: IntArray
    parts: list[ColumnPart]


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

    def read(self, number: int, rows: Rows) -> ShardColumns:
        """Read some samples of a shard, a remote one by range where that costs less than all of it.

        Raises:
            DecodeError: A field cannot be decoded, and ``errors`` is ``"raise"``.
            TableError: A value fits into no column, and ``errors`` is ``"raise"``.
            WidsError: The shard cannot be read.
        """
        reader = self.shards
        if reader.joint is not None:
            return self._read_samples(number, rows)
        shard: ReadableShard = reader.open(number, Wanted.SAMPLES)
        if isinstance(shard, RemoteShard) and self._costs_less_whole(shard, rows):
            shard = reader.open(number, Wanted.MOST)
        try:
            return self._read_from(shard, number, rows)
        except RangeError:
            if not reader.options.may_fetch:
                raise
            return self._read_from(reader.open(number, Wanted.MOST), number, rows)
        except _ReplacedError:
            return self.read(number, rows)

    def read_ranges(self, number: int, rows: Rows) -> ShardColumns | None:
        """Read some samples of a remote shard by range; None where `read` does it otherwise.

        Raises:
            DecodeError, TableError, WidsError: As `read`.
        """
        shards = self.shards
        if way_to_read(Wanted.SAMPLES, shards.facts(number)) is not Way.RANGE:
            return None
        try:
            shard = shards.open(number, Wanted.SAMPLES)
            if not isinstance(shard, RemoteShard) or self._costs_less_whole(shard, rows):
                return None
            return self._read_from(shard, number, rows)
        except RangeError:  # the server has no ranges
            return None

    def _read_samples(self, number: int, rows: Rows) -> ShardColumns:
        """Read samples with the fields of the columns, where the index does not have them all."""

        def read(reader: ShardReader) -> ShardColumns:
            ignores = None if self.errors == "raise" else (lambda _: None)
            return self._read_from(reader.joint.of_samples(number, rows, ignores), number, rows)

        try:
            with closing(self.shards.only({path.field for path in self.paths})) as reader:
                return read(reader)
        except RangeError:
            if not self.shards.options.may_fetch:
                raise
            return read(self.shards)

    def _costs_less_whole(self, shard: RemoteShard, rows: Rows) -> bool:
        """Return whether to fetch a shard, which may be, in place of reading members of it."""
        if not self.shards.options.may_fetch:
            return False
        nbytes = 0
        fields = {path.field for path in self.paths}
        pictures = set(filter(column_values.is_picture, fields))
        for names, most_nbytes in ((fields - pictures, None), (pictures, HEAD_NBYTES[0])):
            found = [members_in(shard.index, name, rows)[1] for name in names]
            members = np.concatenate([np.empty(0, np.int64), *found])
            if len(members):
                nbytes += shard.request_nbytes(members, most_nbytes)
        return nbytes >= shard.nbytes

    def _read_from(self, shard: ReadableShard, number: int, rows: Rows) -> ShardColumns:
        parts: dict[str, ColumnPart] = {}
        for name in dict.fromkeys(path.field for path in self.paths):
            paths = [path for path in self.paths if path.field == name]
            read = _FieldReader(self, shard, number, rows, name).parts(paths)
            parts |= {path.name: part for path, part in zip(paths, read, strict=True)}
        local = np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows
        return ShardColumns(
            _keys(shard.index, rows),
            local + self.shards.starts[number],
            [parts[path.name] for path in self.paths],
        )


class _ReplacedError(Exception):
    """A damaged copy of a remote shard was released; another one can be opened."""


@dataclass(frozen=True)
class _FieldReader:
    """Reads one field of some samples of one shard, and the columns that are made of it."""

    columns: ColumnReader
    shard: ReadableShard
    number: int
    rows: Rows
    name: str

    def parts(self, paths: Sequence[column_values.ColumnPath]) -> list[ColumnPart]:
        """Return a part for each path into the field."""
        at, members = members_in(self.shard.index, self.name, self.rows)
        batches: list[list[ColumnPart]] = []
        sizes, start = self.shard.index.sizes[members], 0
        read = partial(self._read, column_values.decoder_of(self.name))
        if column_values.is_picture(self.name) and not isinstance(self.shard, ValuedShard):
            read, sizes = partial(self._read_headers, read), np.minimum(sizes, HEAD_NBYTES[0])
        for first, last in _batches(sizes):
            # Samples without the field belong to the previous batch.
            stop = len(self.rows) if last == len(members) else int(at[last])
            some = members[first:last]
            # The decoded values, or the error of each that cannot be read.
            values = read_or_errors(read, some, ShardFormatError, self._on_damage)
            places = at[first:last] - start
            batches.append([self._part(values, places, path, start, stop) for path in paths])
            start = stop
        if not batches:
            names = self.shard.index.fields
            return [ColumnPart(len(self.rows), names=names) for _ in paths]
        return [joined(parts) for parts in zip(*batches, strict=True)]

    def _read(self, decode: column_values.DecodeMany, members: IntArray) -> list[Any]:
        """Return the values of members, which ascend."""
        if not len(members):
            return []
        if isinstance(self.shard, ValuedShard):
            return self.shard.read_values(members, decode)
        verify = self.columns.shards.verifies_decoded
        return decode(self.shard.read_members(members, verify=verify))

    def _read_headers(self, read: Callable[[IntArray], list[Any]], members: IntArray) -> list[Any]:
        """Return what the headers of pictures state, of first bytes where these are enough."""
        values: list[Any] = [None] * len(members)
        left = np.arange(len(members))
        for nbytes in HEAD_NBYTES:
            starts = self.shard.read_starts(members[left], nbytes) if len(left) else []
            for place, start in zip(left.tolist(), starts, strict=True):
                with suppress(Exception):  # of Pillow; all bytes show whether it is damaged
                    values[place] = picture_facts(start)
            left = np.array([place for place in left.tolist() if values[place] is None], np.int64)
        for place, value in zip(left.tolist(), read(members[left]), strict=True):
            values[place] = value
        return values

    def _on_damage(self, error: ShardFormatError) -> None:
        if self.columns.shards.replaces(self.number, self.shard, error):
            raise _ReplacedError from error
        self.shard.check()  # a shard that has changed has no values at all

    def _part(
        self,
        values: list[Any],
        places: IntArray,
        path: column_values.ColumnPath,
        start: int,
        stop: int,
    ) -> ColumnPart:
        """Return a column of the samples from a start to a stop, which have values at places."""
        found = column_values.parts_of(values, path.steps)
        placed = found.values
        if len(placed) < stop - start:
            placed = [None] * (stop - start)
            for place, value in zip(places.tolist(), found.values, strict=True):
                placed[place] = value

        def on_problem(place: int, error: Exception) -> None:
            if self.columns.errors == "raise":
                raise self._located(start + place, path, error) from error

        layers = {
            kind: array
            for kind, array in layers_of(placed, on_problem).items()
            if array.null_count < len(array)
        }
        examples = {kind: self._example(array, placed, start) for kind, array in layers.items()}
        names = tuple(column_values.path_text(path.field, steps) for steps in found.names)
        return ColumnPart(stop - start, layers, examples, found.exists, names)

    def _example(self, array: pa.Array, values: list[Any], start: int) -> Example:
        place = array.is_valid().index(True).as_py()
        key, index, shard = self._place(start + place)
        return Example(f"{values[place]!r:.60}", key, index, shard)

    def _place(self, place: int) -> tuple[str, int, str]:
        """Return the key of a sample, its position in the dataset, and its shard."""
        row = int(self.rows[place])
        url = urls.redact(self.columns.shards.shards[self.number].url)
        return self.shard.index.key(row), self.columns.shards.starts[self.number] + row, url

    def _located(self, place: int, path: column_values.ColumnPath, error: Exception) -> Exception:
        """Return the error of a value, with its sample."""
        key, index, shard = self._place(place)
        text = f'{shard}: sample "{key}" (index {index}): {error}'
        if isinstance(error, DecodeError):
            return DecodeError(text, shard=shard, key=key, field=self.name, index=index)
        if isinstance(error, ShardFormatError):
            return ShardFormatError(text)
        return TableError(f'column "{path.name}": {text}; pass errors="null" to have null for it')


@runtime_checkable
class ValuedShard(Protocol):
    """A shard with fields that are values, such as those of rows that were joined to it."""

    def read_values(self, members: IntArray, decode: column_values.DecodeMany) -> list[Any]:
        """Return the values of at least one member of a field; `decode` decodes those in bytes."""


def members_in(index: ShardIndex, name: str, rows: Rows) -> tuple[IntArray, IntArray]:
    """Return which of some samples have a field, as positions in ``rows``, and their members."""
    return members_among(*members_that_count(index, name), rows)


def members_that_count(index: ShardIndex, name: str) -> tuple[IntArray, IntArray]:
    """Return the samples that have a field, and the member of each."""
    samples, members = index.members_of(name)
    # An index from elsewhere can repeat a field; the last one counts, as in a tar.
    is_last = np.ones(len(samples), np.bool_)
    is_last[:-1] = samples[1:] != samples[:-1]
    return samples[is_last], members[is_last]


def members_among(samples: IntArray, members: IntArray, rows: Rows) -> tuple[IntArray, IntArray]:
    """Return which of ``rows`` are among samples, as positions in ``rows``, and their members."""
    if not len(rows):
        return samples[:0], members[:0]
    first, last = np.searchsorted(samples, (rows[0], rows[-1] + 1)).tolist()
    samples, members = samples[first:last], members[first:last]
    if isinstance(rows, range):
        return samples - rows.start, members
    at = np.searchsorted(rows, samples)
    is_wanted = rows[at] == samples
    return at[is_wanted], members[is_wanted]


def _batches(sizes: npt.NDArray[np.integer[Any]]) -> Iterator[tuple[int, int]]:
    """Cut members into runs that are read at a time; yield where each begins and ends."""
    ends = np.cumsum(sizes, dtype=np.int64)
    first = 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, before + _MAX_NBYTES, side="right"))
        last = max(first + 1, min(last, first + _MAX_MEMBERS))
        yield first, last
        first = last


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


class PickledOnce:
    """A value that is pickled once for all tasks, and restored once in each process.

    Attributes:
        value: The value.
        is_restored: Whether it was unpickled, so that nothing else uses it in this process.
    """

    def __init__(self, value: Any, *, is_restored: bool = False) -> None:
        self.value = value
        self.is_restored = is_restored

    @cached_property
    def _data(self) -> bytes:
        return pickle.dumps(self.value)

    def __reduce__(self) -> Any:
        return _restored, (self._data,)


@lru_cache(maxsize=1)
def _restored(data: bytes) -> PickledOnce:
    value = pickle.loads(data)  # noqa: S301 - made by `PickledOnce` for this process
    return PickledOnce(value, is_restored=True)


_MAX_TASKS: Final = 256
"""Most tasks of an executor; each receives the reader of all shards."""

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
            column_values.INDEX: pa.chunked_array(index, pa.int64()),
            column_values.KEY: pa.chunked_array([part.keys for part in read], pa.string()),
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


def _check_exist(paths: Sequence[column_values.ColumnPath], read: Sequence[ShardColumns]) -> None:
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
