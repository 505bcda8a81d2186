"""Find the columns that a page can filter by, and read the values of small fields.

A saved table on this machine answers at once, without a shard. Other columns are numbers, texts and
flags in the small structures of the first samples; their values have to be read by a scan.

Members that are damaged or too long are left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wids.errors import DecodeError, ShardFormatError, WidsError
from wids.look.field_facts import CAPTION_EXTENSIONS, is_small, is_text
from wids.look.preview import sample_sizes
from wids.shards.fields.codecs import extension
from wids.shards.sample_access import IndexedDataset, ReadableDataset
from wids.shards.tars.samples import ReadableShard, read_or_errors
from wids.storage.reading_threads import latest
from wids.storage.transport import urls
from wids.tables.column_values import (
    ColumnPath,
    codec_of,
    decoder_of,
    is_compressed,
    parse_columns,
    parts_of,
    path_text,
)
from wids.tables.table import members_among, members_that_count
from wids.tables.table_file import load_table, saved_columns

if TYPE_CHECKING:
    import pyarrow as pa


Rows = npt.NDArray[np.int64]
"""Positions of samples in a shard, ascending."""

MAX_VALUE_NBYTES: Final = 1_000_000
"""Longer fields are not read for a filter or a search, also when decompressed.

No more bytes than these are decoded at a time: as values they take a hundred times as much memory.
"""
_MAX_READ_NBYTES: Final = 8_000_000
"""Bytes to read at a time."""
_NUM_READ: Final = 64
"""Samples to read at a time."""


class ShardRows:
    """The small fields of the samples of an open shard.

    Args:
        shard: The shard.

    Attributes:
        left_out: How many fields were left out so far: ``"unreadable"``, which were damaged or
            could not be decoded, and ``"too_long"``.
    """

    def __init__(self, shard: ReadableShard) -> None:
        self._shard = shard
        self._members: dict[str, tuple[Rows, Rows]] = {}
        self._decoders: dict[str, Callable[[Sequence[bytes]], list[Any]]] = {}
        self.left_out: Counter[str] = Counter()

    def of(self, rows: Rows) -> tuple[ShardRows, Rows]:
        """Return the fields of some samples, and those samples; the first of them if all are read.

        Samples are read where the index of their shard does not have all their fields.
        """
        few, damage = rows[:_NUM_READ], Counter[str]()
        shard = self._shard.of_samples(few, lambda _: damage.update(["unreadable"]))
        if shard is self._shard:
            return self, rows
        found = ShardRows(shard)
        found.left_out = damage
        return found, few

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field that occurs in the shard."""
        return self._shard.index.fields

    def key(self, row: int) -> str:
        """Return the key of a sample."""
        return self._shard.index.key(row)

    def members(self, field: str, rows: Rows) -> tuple[Rows, Rows]:
        """Return which of some samples have a field, as positions in ``rows``, and its members."""
        if field not in self._members:
            self._members[field] = members_that_count(self._shard.index, field)
        return members_among(*self._members[field], rows)

    def read(
        self, fields: Sequence[str], rows: Rows, max_nbytes: int
    ) -> Iterator[tuple[int, str, bytes]]:
        """Yield the sample, the name and the bytes of fields that are not longer than a limit."""
        found = [self.members(field, rows) for field in fields]
        samples = np.concatenate([np.empty(0, np.int64), *(rows[each[0]] for each in found)])
        members = np.concatenate([np.empty(0, np.int64), *(each[1] for each in found)])
        names = np.repeat(np.arange(len(fields)), [len(each[0]) for each in found])
        sizes = np.asarray(self._shard.index.sizes)[members]
        # In the order of the shard, so that near fields of a remote one are read together.
        order = np.argsort(members, kind="stable")
        order = order[sizes[order] <= max_nbytes]
        self.left_out["too_long"] += len(members) - len(order)
        groups = np.cumsum(sizes[order], dtype=np.int64) // _MAX_READ_NBYTES
        for at in np.split(order, np.flatnonzero(np.diff(groups)) + 1):
            datas = self._read(members[at])
            for row, name, data in zip(samples[at].tolist(), names[at], datas, strict=True):
                if isinstance(data, ShardFormatError):
                    self.left_out["unreadable"] += 1
                else:
                    yield row, fields[name], data

    def _read(self, members: Rows) -> list[bytes | ShardFormatError]:
        if not len(members):
            return []
        shard = self._shard  # one that has changed has no values at all
        return read_or_errors(
            shard.read_members, members, ShardFormatError, lambda _: shard.check()
        )

    def affordable(self, rows: Rows, fields: Sequence[str]) -> Rows:
        """Return the first of some samples, as many as can be read at a time for `values`."""
        nbytes = np.zeros(len(rows), np.int64)
        for field in fields:
            at, members = self.members(field, rows)
            sizes = self._shard.index.sizes[members].astype(np.int64)
            # Longer values are not decoded.
            nbytes[at] += np.where(sizes > MAX_VALUE_NBYTES, 0, sizes)
        count = int(np.searchsorted(np.cumsum(nbytes), MAX_VALUE_NBYTES, side="right"))
        return rows[: max(count, 1)]

    def values(self, path: ColumnPath, rows: Rows) -> Iterator[list[Any]]:
        """Yield the values at a path in samples, a few at a time; None where there is none.

        Args:
            path: The path.
            rows: The samples, of which `affordable` has returned all.
        """
        read = self.read([path.field], rows, MAX_VALUE_NBYTES)
        found = {row: data for row, _, data in read}
        # All are read at once, since each read of a remote shard is a request.
        count = 1 if is_compressed(path.field) else max(len(rows), 1)
        for start in range(0, len(rows), count):
            few = rows[start : start + count].tolist()
            yield self._decoded(path, few, {row: found[row] for row in few if row in found})

    def _decoded(self, path: ColumnPath, rows: list[int], datas: dict[int, bytes]) -> list[Any]:
        decode = self._decoders.setdefault(path.field, decoder_of(path.field, MAX_VALUE_NBYTES))
        values = decode(list(datas.values()))
        self.left_out["unreadable"] += sum(isinstance(value, DecodeError) for value in values)
        values = [None if isinstance(value, DecodeError) else value for value in values]
        by_row = dict(zip(datas, parts_of(values, path.steps).values, strict=True))
        return [by_row.get(row) for row in rows]


@contextmanager
def opened_rows(dataset: ReadableDataset, number: int) -> Iterator[ShardRows]:
    """Provide the fields of a shard of a dataset, which is not downloaded.

    Raises:
        ValueError: The shard has no index.
    """
    if dataset.reader.index(number) is None:
        raise ValueError(f"shard {number} has no index to search; `wids create` makes an index")
    with dataset.only(None) as selection:
        yield ShardRows(selection.reader.open(number, local=False))


_NUM_SEEN: Final = 8
"""Samples that are searched for columns; they are on the first page."""
_MAX_SEEN: Final = 40
_MAX_DEPTH: Final = 3
_MAX_ROWS: Final = 20_000_000
"""Rows of a saved table of which columns are read; each takes some bytes of memory."""
_MAX_COLUMNS: Final = 4


@dataclass(frozen=True)
class SavedTable:
    """The saved table of a dataset.

    Attributes:
        columns: The names of its columns.
        problem: Why it is not used; ``""`` if it is.
    """

    columns: tuple[str, ...] = ()
    problem: str = ""


class PageColumns:
    """The columns of a dataset. Safe to use from any thread.

    Args:
        dataset: The dataset.

    Attributes:
        column: Returns the column of the saved table that has a name.
    """

    def __init__(self, dataset: ReadableDataset) -> None:
        self._dataset = dataset
        self.column = latest(self._load, _MAX_COLUMNS)
        self._saved: SavedTable | None = None
        self._seen: tuple[str, ...] | None = None

    @property
    def saved(self) -> SavedTable:
        """The saved table, of which the names of columns are read once."""
        if self._saved is None:
            self._saved = _saved_table(self._dataset)
        return self._saved

    @property
    def seen(self) -> tuple[str, ...]:
        """Paths of columns in the first samples, which are read once; and all that were requested.

        Raises:
            WidsError: The samples cannot be read.
        """
        if self._seen is None:
            self._seen = tuple(dict.fromkeys(_paths_in_samples(self._dataset)))[:_MAX_SEEN]
        return self._seen

    def is_saved(self, name: str) -> bool:
        """Return whether the saved table has a column, so that nothing has to be scanned."""
        return name in self.saved.columns

    def _load(self, name: str) -> pa.ChunkedArray:
        assert isinstance(self._dataset, IndexedDataset)  # noqa: S101 - or it has no saved table
        return load_table(self._dataset, [name])[name]


def path_of(name: str) -> ColumnPath:
    """Return the path of a column that is read from samples.

    Raises:
        ValueError: It is not a path to a value.
    """
    return parse_columns([name])[0]


def _saved_table(dataset: ReadableDataset) -> SavedTable:
    table = dataset.spec.table
    if table is None or not isinstance(dataset, IndexedDataset):
        return SavedTable()
    if not urls.is_local(table.url):
        return SavedTable(problem="The saved table is remote, and not fetched for this page.")
    if len(dataset) > _MAX_ROWS:
        return SavedTable(problem="The saved table is too long for this page.")
    try:
        return SavedTable(tuple(saved_columns(dataset)))
    except (WidsError, ModuleNotFoundError) as error:
        return SavedTable(problem=str(error))


def _paths_in_samples(dataset: ReadableDataset) -> Iterator[str]:
    first = range(min(len(dataset), _NUM_SEEN))
    groups: dict[tuple[str, ...], list[int]] = {}
    for index in first:
        sizes = sample_sizes(dataset, index) or {}
        fields = tuple(f for f, n in sizes.items() if is_text(f) and is_small(f, n))
        # Captions are searched, and hardly ever equal.
        fields = tuple(f for f in fields if extension(f) not in CAPTION_EXTENSIONS and codec_of(f))
        groups.setdefault(fields, []).append(index)
    for fields, indices in groups.items():
        if not fields:
            continue
        with dataset.only(fields) as selection:
            for sample in selection.__getitems__(indices):
                for field in fields:
                    (value,) = decoder_of(field, MAX_VALUE_NBYTES)([bytes(sample[field])])
                    yield from _paths(field, value, ())


def _paths(field: str, value: Any, steps: Sequence[str]) -> Iterator[str]:
    """Yield the paths to plain values in a value."""
    if isinstance(value, dict) and len(steps) < _MAX_DEPTH:
        for name, item in value.items():
            if isinstance(name, str) and name:
                yield from _paths(field, item, (*steps, name))
    elif not isinstance(value, dict | list | DecodeError | None):
        yield path_text(field, steps)
