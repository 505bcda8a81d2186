"""Find the samples of a dataset that satisfy conditions, and visit them block by block.

A condition is a text in key or captions, a field, or the value of a column. The columns of a saved
table and the indices of the samples answer first: a scan reads only what they leave, remote shards
by range. Members that are damaged or too long (texts of more than 16 kB, values of more than 1 MB)
are left out and counted. A scan can be stopped after each block, which may have to be read from far
away, and continues there.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from wids.errors import WidsError
from wids.order.random_order import RandomOrder
from wids.shards.fields.codecs import MAX_TEXT_NBYTES, TEXT_EXTENSIONS, extension
from wids.shards.policy import Wanted
from wids.shards.positions import Positions, as_int_array
from wids.shards.sample_access import IndexedDataset, ReadableDataset, ReadableShards
from wids.shards.tars.raw_samples import ReadableShard
from wids.storage.arrays import IntArray
from wids.storage.sizes import first_of
from wids.storage.transport import urls
from wids.tables.column_values import (
    INDEX,
    KEY,
    ColumnPath,
    is_compressed,
    parse_columns,
    parts_of,
)
from wids.tables.conditions import Comparison, mask, parsed
from wids.tables.join_fields import as_bytes
from wids.tables.shard_fields import ShardFields, TooLongError
from wids.tables.table_file import load_table, saved_columns

if TYPE_CHECKING:
    import pyarrow as pa

_logger = logging.getLogger(__name__)


# What is read of a sample.

MAX_VALUE_NBYTES: Final = 1_000_000
"""Longer fields are not read for a filter or a search, also when decompressed.

No more bytes than these are decoded at a time: as values they take a hundred times as much memory.
"""
_NUM_READ: Final = 64
"""Joined samples to read at a time."""


class ShardRows(ShardFields):
    """The small fields of the samples of an open shard.

    Attributes:
        left_out: How many fields were left out so far: ``"unreadable"``, which were damaged or
            could not be decoded, and ``"too_long"``.
    """

    def __init__(self, shard: ReadableShard) -> None:
        super().__init__(shard)
        self.left_out: Counter[str] = Counter()

    def affordable(self, rows: IntArray, fields: Sequence[str]) -> IntArray:
        """Return the first of some samples, as many as can be read at a time for `values_at`."""
        return next(self.blocks(fields, rows, MAX_VALUE_NBYTES, MAX_VALUE_NBYTES))

    def values_at(self, path: ColumnPath, rows: IntArray) -> Iterator[Any]:
        """Yield the value at a path in each of some samples; None where there is none.

        Args:
            path: The path.
            rows: Samples, all of which `affordable` returned.
        """
        # All are read at once, since each read of a remote shard is a request.
        ((at, datas),) = self.read([path.field], rows, MAX_VALUE_NBYTES)
        values = self._values_in(path, datas)
        has_field = np.zeros(len(rows), bool)
        has_field[at] = True
        for is_there in has_field.tolist():
            yield next(values) if is_there else None

    def _values_in(self, path: ColumnPath, datas: list[Any]) -> Iterator[Any]:
        count = 1 if is_compressed(path.field) else max(len(datas), 1)
        for start in range(0, len(datas), count):
            few = self.decoded(path.field, datas[start : start + count], MAX_VALUE_NBYTES)
            yield from parts_of(self.kept(few), path.steps).values

    def kept(self, values: list[Any]) -> list[Any]:
        """Return values with None in place of errors, which are counted."""
        for value in values:
            if isinstance(value, Exception):
                is_long = isinstance(value, TooLongError)
                self.left_out["too_long" if is_long else "unreadable"] += 1
        return [None if isinstance(value, Exception) else value for value in values]


_MAX_ROWS: Final = 20_000_000
"""Longer saved tables are not used: each row of a column takes some bytes of memory."""
_MAX_COLUMNS: Final = 4


class SavedColumns:
    """The columns of the saved table of a dataset. Safe to use from any thread.

    Args:
        dataset: The dataset.

    Attributes:
        column: Returns the column that has a name.
    """

    def __init__(self, dataset: ReadableDataset) -> None:
        self._dataset = dataset
        self.column = lru_cache(_MAX_COLUMNS)(self._load)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns; none if the table is not used."""
        return self._names_and_problem[0]

    @property
    def problem(self) -> str:
        """Why the saved table is not used; ``""`` if it is used, or if there is no table."""
        return self._names_and_problem[1]

    @cached_property
    def _names_and_problem(self) -> tuple[tuple[str, ...], str]:
        dataset = self._dataset
        table = dataset.spec.table
        if table is None or not isinstance(dataset, IndexedDataset):
            return (), ""
        if not urls.is_local(table.url):
            return (), "The saved table is remote, and not fetched to be searched."
        if len(dataset) > _MAX_ROWS:
            return (), "The saved table is too long to be searched."
        try:
            return tuple(saved_columns(dataset)), ""
        except (WidsError, ModuleNotFoundError) as error:
            return (), str(error)

    def _load(self, name: str) -> pa.ChunkedArray:
        assert isinstance(self._dataset, IndexedDataset)  # noqa: S101 - or it has no saved table
        return load_table(self._dataset, [name])[name]


# Conditions.

MAX_HITS: Final = 1_000_000
"""Found samples after which a search stops."""
_WORD: Final = re.compile(r'"([^"]+)"|(\S+)')
_MAX_WORDS: Final = 20
_MAX_FILTERS: Final = 20


@dataclass(frozen=True)
class Conditions:
    """What a sample must have, all of it.

    Attributes:
        words: Texts that its key or its captions contain, without regard to case.
        field: A field; ``""`` for none.
        filters: Values of columns.
    """

    words: tuple[str, ...] = ()
    field: str = ""
    filters: tuple[Comparison, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.words or self.field or self.filters)


def parse_conditions(
    words: str = "", where: str = "", field: str = "", classes: Sequence[str] = ()
) -> Conditions:
    """Return conditions as people type them, or as a page sends them.

    Args:
        words: Words, or several in double quotes that stay together.
        where: Comparisons, in either form of `parsed`.
        field: A field.
        classes: Names of classes by their numbers, for the comparisons.

    Raises:
        ValueError: The comparisons are malformed, or there are too many conditions.
        TypeError: A condition is not text.
    """
    for name, given in (("words", words), ("where", where), ("field", field)):
        if not isinstance(given, str):
            raise TypeError(
                f"{name}: expected text, found {given!r:.80}; for a function of a sample use "
                "indices: dataset[[n for n, sample in enumerate(dataset) if function(sample)]]"
            )
    texts = tuple(quoted or word for quoted, word in _WORD.findall(words.casefold()))
    filters = parsed(where or "[]", classes)
    if len(texts) > _MAX_WORDS or len(filters) > _MAX_FILTERS:
        raise ValueError(
            f"expected at most {_MAX_WORDS} words and {_MAX_FILTERS} filters, found {len(texts)} "
            f"and {len(filters)}"
        )
    return Conditions(texts, field, filters)


class Hits:
    """The samples that satisfy conditions.

    Args:
        conditions: What they must have.
        columns: The columns of the saved table of the dataset.
        within: Which samples of the dataset to look at; None for all.
        max_hits: How many to find.

    Attributes:
        fields: The fields whose values are decoded.
        found: Their indices so far, ascending.
        seen: All fields of the shards that were read.

    Raises:
        ValueError: A filter names no column.
    """

    def __init__(
        self,
        conditions: Conditions,
        columns: SavedColumns,
        within: npt.NDArray[np.bool_] | None = None,
        max_hits: int = MAX_HITS,
    ) -> None:
        self._max_hits = max_hits
        self._mask = within
        saved = [each for each in conditions.filters if each.column in columns.names]
        if saved:
            met = mask({each.column: columns.column(each.column) for each in saved}, saved)
            self._mask = met if within is None else met & within
        rest = tuple(each for each in conditions.filters if each not in saved)
        names = dict.fromkeys(each.column for each in rest)
        self._paths = parse_columns([name for name in names if name not in (INDEX, KEY)])
        self.fields = tuple(dict.fromkeys(path.field for path in self._paths))
        self._conditions = replace(conditions, filters=rest)
        self.found = array("q")
        self.seen: set[str] = set()
        if not self._conditions and self._mask is not None:
            self.found.extend(np.flatnonzero(self._mask)[:max_hits].tolist())

    def wanted(self, start: int, rows: IntArray) -> IntArray:
        """Return the samples that have to be read to answer."""
        return self.possible(start, rows) if self._conditions else rows[:0]

    def possible(self, start: int, rows: IntArray) -> IntArray:
        """Return the samples that neither the saved table nor their indices rule out."""
        rows = rows if self._mask is None else rows[self._mask[start + rows]]
        return self._accepted(INDEX, rows, (start + rows).tolist())

    def visit(self, start: int, shard: ShardRows, rows: IntArray) -> bool:
        """Add the samples that satisfy the conditions; return whether there are too many."""
        self.found.extend((self.matching(shard, rows) + start).tolist())
        return len(self.found) >= self._max_hits

    def matching(self, shard: ShardRows, rows: IntArray) -> IntArray:
        """Return which of some possible samples satisfy the conditions."""
        field, words = self._conditions.field, self._conditions.words
        self.seen.update(shard.shard.index.fields)
        if field:
            rows = rows[shard.members(field, rows)[0]]
        rows = self._accepted(KEY, rows, map(shard.shard.index.key, rows.tolist()))
        for path in self._paths:
            rows = self._accepted(path.name, rows, shard.values_at(path, rows))
        return _with_words(words, shard, rows) if words else rows

    def _accepted(self, column: str, rows: IntArray, values: Iterable[Any]) -> IntArray:
        """Return the samples whose values in a column satisfy the conditions."""
        filters = [each for each in self._conditions.filters if each.column == column]
        if not filters:
            return rows
        is_wanted = [all(each.accepts(value) for each in filters) for value in values]
        chosen: IntArray = rows[np.array(is_wanted, bool)]
        return chosen


def _with_words(words: Sequence[str], shard: ShardRows, rows: IntArray) -> IntArray:
    """Return the samples that have all words, in their keys and texts together."""

    def missing_in(text: str, words: Sequence[str]) -> list[str]:
        return [word for word in words if word not in text.casefold()]

    missing = [missing_in(shard.shard.index.key(row), words) for row in rows.tolist()]
    rest = np.flatnonzero(list(map(bool, missing)))
    fields = [field for field in shard.shard.index.fields if extension(field) in TEXT_EXTENSIONS]
    read = shard.read(fields, rows[rest], MAX_TEXT_NBYTES)
    for field, (at, datas) in zip(fields, read, strict=True):
        for place, data in zip(rest[at].tolist(), shard.kept(datas), strict=True):
            if data is not None:
                missing[place] = missing_in(_text_of(field, as_bytes(data)), missing[place])
    found: IntArray = rows[np.array([not lacks for lacks in missing], bool)]
    return found


def _text_of(field: str, data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    if "\\u" in text and field.lower().endswith("json"):
        with suppress(ValueError, RecursionError):
            return json.dumps(json.loads(text), ensure_ascii=False)
    return text


# Scans.

_BLOCK: Final = 512
"""Samples after which a scan can be stopped; fewer if they are large."""


class Visitor(Protocol):
    """What a pass looks for."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields whose values are decoded."""

    def wanted(self, start: int, rows: IntArray) -> IntArray:
        """Return those samples of a shard that are to be read; the shard begins at ``start``."""

    def visit(self, start: int, shard: ShardRows, rows: IntArray) -> bool:
        """Visit samples of a shard that begins at ``start``; return whether that is enough."""


AnyVisitor = TypeVar("AnyVisitor", bound=Visitor)


class Scan(Generic[AnyVisitor]):
    """One pass through a dataset.

    Args:
        dataset: The dataset. None of its shards is downloaded.
        visitor: What it looks for.

    Attributes:
        visitor: As passed.
        num_searched: The number of samples that were looked at.
        left_out: How many fields were left out, as in `ShardRows`.
    """

    def __init__(self, dataset: ReadableDataset, visitor: AnyVisitor) -> None:
        self.dataset = dataset
        self.visitor = visitor
        self.num_searched = 0
        self.left_out: Counter[str] = Counter()
        self._is_enough = False

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to look at."""
        return self._is_enough or self.num_searched >= len(self.dataset)

    def run(self, is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Begin the pass, or continue it where it stopped, as long as it is wanted."""
        starts = [0]
        while not self.is_done and is_wanted():
            if self.num_searched >= starts[-1]:  # at first, and when more samples are known
                starts = [0, *accumulate(self.dataset.lengths)]
            number = bisect_right(starts, self.num_searched) - 1
            self._run_shard(number, starts[number], starts[number + 1], is_wanted)

    def _run_shard(self, number: int, start: int, end: int, is_wanted: Callable[[], bool]) -> None:
        """Visit the samples of a shard from the next one on, block by block."""
        with ExitStack() as stack:
            reader: ReadableShards | None = None
            while self.num_searched < end and not self._is_enough and is_wanted():
                stop = min(self.num_searched + _BLOCK, end)
                rows = self.visitor.wanted(
                    start, np.arange(self.num_searched - start, stop - start)
                )
                if len(rows):  # or the shard is not even opened
                    if reader is None:
                        reader = self._reader(number, stack)
                        shard = ShardRows(reader.open(number, Wanted.PART))
                    some, damage = rows, list[WidsError]()
                    if reader.joint is not None:  # the index lacks fields
                        some = rows[:_NUM_READ]
                        shard = ShardRows(reader.joint.of_samples(number, some, damage.append))
                        shard.left_out["unreadable"] = len(damage)
                    few = shard.affordable(some, self.visitor.fields)
                    stop = stop if len(few) == len(rows) else start + int(rows[len(few)])
                    self._is_enough = self.visitor.visit(start, shard, few)
                    # Not those of a block that failed, which is visited again.
                    self.left_out, shard.left_out = self.left_out + shard.left_out, Counter()
                self.num_searched = stop

    def _reader(self, number: int, stack: ExitStack) -> ReadableShards:
        """Return shards that are not fetched, with one that has an index."""
        if self.dataset.reader.index(number) is None:
            raise ValueError(f"shard {number} has no index to search; `wids create` makes an index")
        return stack.enter_context(self.dataset.only(None)).reader


def found_in(
    dataset: ReadableDataset, positions: Positions, conditions: Conditions, seed: int | None
) -> IntArray:
    """Return the places in ``positions`` of the samples that satisfy conditions.

    Args:
        dataset: All samples.
        positions: Those of a view.
        conditions: What they must have.
        seed: For the random order of a page; None for the order of the view.

    Raises:
        ValueError: A condition is on a field that no sample of the dataset has.
    """
    wanted = as_int_array(positions)
    places = np.arange(len(wanted))
    if conditions:
        within = np.zeros(len(dataset), bool)
        within[wanted] = True
        scan = Scan(dataset, Hits(conditions, SavedColumns(dataset), within, sys.maxsize))
        scan.run()
        if left_out := +scan.left_out:
            counts = ", ".join(f"{n:,} {kind.replace('_', ' ')}" for kind, n in left_out.items())
            _logger.warning("%r: fields that a search left out: %s", dataset, counts)
        hits = scan.visitor
        if hits.seen and not hits.found:
            _check_stored(dataset, {conditions.field or KEY, *hits.fields} - {KEY, *hits.seen})
        places = np.flatnonzero(np.isin(wanted, np.asarray(hits.found)))
    if seed is None:
        return places
    return places[RandomOrder(len(wanted), seed).order_of(places)]


def _check_stored(dataset: ReadableDataset, fields: set[str]) -> None:
    """Raise a ValueError for fields that no shard has, as far as the indexes are known."""
    stored: dict[str, None] = {}
    for number in range(len(dataset.spec.shards)):
        if fields <= stored.keys():
            return
        index = dataset.reader.index(number)
        if index is None:
            return
        stored.update(dict.fromkeys(index.fields))
    if missing := sorted(fields - stored.keys()):
        raise ValueError(
            f"where, field: expected fields of the samples ({first_of(list(stored))}), found "
            f"{', '.join(missing)}"
        )
