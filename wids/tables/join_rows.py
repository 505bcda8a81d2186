"""Use a table, a mapping, or files of rows as the other side of a join.

Values are joined as they are, which Arrow could not do for all of them (decision 0085). pyarrow and
pandas are used by their methods, and imported only where a caller's object needs it.

Files are Parquet, CSV, TSV, JSON Lines or JSON. All but Parquet may be compressed, ``.jsonl.gz``. A
JSON document is an object from keys to values, or a list of objects with their keys.

The file of a shard is read when a sample of the shard is first joined, and the last few files stay
in memory; a file for all is read when the join is made. A remote file is stored in the cache.
"""

from __future__ import annotations

import json
import logging
import os
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice, takewhile
from math import isnan
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np

from wids.errors import JoinError, NotFoundError, PackError
from wids.publish.packing.folder_listing import csv_rows
from wids.shards.fields.safety import MAX_UNZIPPED_NBYTES, unzip
from wids.shards.fields.values import decode_json_lines
from wids.shards.policy import Wanted
from wids.shards.reader import ShardReader
from wids.shards.sidecars import open_file
from wids.storage.arrays import IntArray
from wids.storage.download import Report
from wids.storage.transport import urls
from wids.storage.transport.retry import check_waits
from wids.tables.column_values import KEY
from wids.tables.join_fields import PLAIN, Fields, JoinedColumns, Names, own_value, value_fields
from wids.tables.join_keys import RowKeys
from wids.tables.join_sides import OtherSide
from wids.tables.table import check_arrow

_logger = logging.getLogger(__name__)


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

    def read(self, entries: IntArray, wanted: Wanted) -> list[Fields | None]:  # noqa: ARG002 - in memory
        """Return the values of rows; see `OtherSide`."""
        return self._selected([*self._take(entries.tolist())] if len(entries) else [])

    def fields(self, number: int | None) -> Sequence[str]:  # noqa: ARG002 - the same for all
        """Return the fields that a row can have."""
        return self._fields


def table_rows(table: Any, names: Names, wanted: JoinedColumns, what: str = "the table") -> RowSide:
    """Return the rows of a ``pyarrow.Table``."""
    columns = wanted.fields(what, table.column_names, names)
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
    # Value by value: Arrow's `take` needs up to a hundred times as long where there are many
    # chunks, and does not know all types that polars has.
    columns = map(table.column, names)
    return _as_rows(fields, [[column[row].as_py() for row in rows] for column in columns])


def frame_rows(frame: Any, names: Names, wanted: JoinedColumns) -> RowSide:
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


def mapping_rows(
    mapping: Mapping[str, Any],
    names: Names,
    keys: Sequence[str],
    what: str = "the mapping",
    *,
    with_fields: bool,
) -> RowSide:
    """Return the values of a mapping by their keys: mappings of fields, or single values.

    Args:
        mapping: The mapping, which must not change while datasets read it.
        names: The names of the fields.
        keys: Its keys; one that is listed twice is an error when it is matched.
        what: The name of the mapping, for messages.
        with_fields: Whether the fields of all values are needed; otherwise those of the first one.
    """
    fields: dict[str, None] = {}
    for value in islice(mapping.values(), None if with_fields else 1):
        fields.update(dict.fromkeys(value_fields(value, names, what)))
    take = partial(_take_of_mapping, mapping, keys, names)
    return RowSide(what, fields, partial(iter, keys), take)


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


def _as_rows(fields: Iterable[str], values: list[list[Any]]) -> list[Fields]:
    names = (*fields, KEY)
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


_LINES: Final = (".jsonl", ".ndjson")
_DELIMITERS: Final = {".csv": ",", ".tsv": "\t"}
_Entries: TypeAlias = list[tuple[str, Any]]


def file_rows(file: BinaryIO, url: str, names: Names, wanted: JoinedColumns) -> RowSide:
    """Return the rows of a file.

    Args:
        file: The file, from its beginning; of Parquet only the wanted columns are read.
        url: Its URL, for its extension and messages.
        names: The names of the fields.
        wanted: The column of the keys, and those that become fields.

    Raises:
        JoinError: It is not what its extension says, or lacks a column.
        ModuleNotFoundError: It is Parquet, and there is no pyarrow.
    """
    name, path = urls.redact(url), urls.path_of(url).lower()
    if path.endswith(".parquet"):
        table = _parquet(file, name, wanted)
        side = table_rows(table, names, wanted, name)
        side.held_nbytes = table.nbytes
        return side
    data = file.read()
    if path.endswith(".gz"):
        path = path.removesuffix(".gz")
        try:
            data = unzip(data, MAX_UNZIPPED_NBYTES)
        except (ValueError, OSError, EOFError, zlib.error) as error:
            raise JoinError(f"{name}: expected gzip data, found: {error}") from error
    delimiter = _DELIMITERS.get(path[-4:])
    if delimiter is None:
        kind = "JSON lines" if path.endswith(_LINES) else "JSON"
        if not path.endswith((".json", *_LINES)):
            kind += ", since its name does not end in .parquet, .csv, .tsv or .jsonl"
        entries = _json_entries(data, name, wanted, kind)
    else:
        entries = _csv_entries(data, name, wanted, delimiter)
    if wanted != JoinedColumns():
        entries = [(k, wanted.of(v) if isinstance(v, Mapping) else v) for k, v in entries]
    side = mapping_rows(dict(entries), names, [key for key, _ in entries], name, with_fields=True)
    side.held_nbytes = len(data)
    return side


def _parquet(file: BinaryIO, name: str, wanted: JoinedColumns) -> Any:
    check_arrow()
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(file)
        wanted.check(name, parquet.schema_arrow.names)
        if wanted.columns is None:
            return parquet.read()
        return parquet.read(columns=list(dict.fromkeys((wanted.key, *wanted.columns))))
    except (pa.ArrowException, OSError) as error:
        raise JoinError(f"{name}: expected Parquet, found: {error}") from error


def _csv_entries(data: bytes, name: str, wanted: JoinedColumns, delimiter: str) -> _Entries:
    try:
        header, rows = csv_rows(
            name, data.decode("utf-8-sig"), wanted.key.__eq__, delimiter=delimiter
        )
    except PackError as error:
        raise JoinError(str(error)) from error
    except UnicodeDecodeError as error:
        raise JoinError(f"{name}: {error}") from error
    wanted.check(name, header)
    return _listed((row for _, row in rows), name, wanted)


def _json_entries(data: bytes, name: str, wanted: JoinedColumns, kind: str) -> _Entries:
    last_pairs: list[_Entries] = [[]]

    def kept(pairs: _Entries) -> dict[str, Any]:
        last_pairs[0] = pairs
        return dict(pairs)

    try:
        if kind == "JSON lines":
            content: Any = decode_json_lines(data.removeprefix(BOM_UTF8))
        else:
            content = _document(data.decode("utf-8-sig"), kept)
    except (ValueError, RecursionError) as error:
        raise JoinError(f"{name}: expected {kind}, found: {error}") from error
    if isinstance(content, list):
        entries = _listed(content, name, wanted)
    elif isinstance(content, dict):
        entries = last_pairs[0]  # the outermost object is the last one; its keys may be repeated
    else:
        raise JoinError(
            f"{name}: expected an object from keys to values, or a list of objects with "
            f"{wanted.key!r}, found {type(content).__name__}"
        )
    if wanted.columns is not None and entries:
        rows = (value for _, value in entries if isinstance(value, Mapping))
        named = dict.fromkeys(column for row in rows for column in row)
        wanted.check(name, list({wanted.key: None, **named}))
    return entries


def _document(text: str, kept: Callable[[_Entries], dict[str, Any]]) -> Any:
    """Return the value of JSON; those of JSON lines that are named so, as NeMo's manifests are."""
    try:
        return json.loads(text, object_pairs_hook=kept)
    except ValueError as error:
        with suppress(ValueError):
            lines = decode_json_lines(text.encode())
            if len(lines) > 1:
                return lines
        raise error from None


def _listed(content: Iterable[Any], name: str, wanted: JoinedColumns) -> _Entries:
    entries = []
    for row, item in enumerate(content):
        key = item.get(wanted.key) if isinstance(item, Mapping) else None
        if not isinstance(key, str):
            raise JoinError(
                f"{name}: expected objects with the text {wanted.key!r}, found {item!r:.80} as "
                f"item {row}; pass the name of the one that has the keys, as in on={KEY!r}"
            )
        entries.append((key, item))
    return entries


_PLACES: Final = re.compile(r"\{(shard|number|relative)\}")
_NUMBER: Final = re.compile(r"(\d+)(?:-of-\d+)?\D*$")  # not the total of `train-00000-of-00010`
_NUM_PARTS_OF_SERVER: Final = 3  # https:, nothing, and its name
_MAX_STORED_NBYTES: Final = 64 << 20
"""Bytes of files whose content stays in memory; at least one file does."""


def is_per_shard(pattern: str) -> bool:
    """Return whether a pattern stands for a file of each shard."""
    return _PLACES.search(pattern) is not None


def whole_file(first: ShardReader, name: str, names: Names, wanted: JoinedColumns) -> RowSide:
    """Return the rows of a file for all shards.

    Args:
        first: The shards of the dataset.
        name: The URL or path of the file. A relative one is in the current folder, or beside the
            first shard.
        names: The names of the fields.
        wanted: The column of the keys, and those that become fields.

    Raises:
        FetchError: The file cannot be read.
        JoinError: It is not what a join expects, or there are two.
    """
    url = _whole_url(first, name)
    try:
        with open_file(first.store, url) as file:
            return file_rows(file, url, names, wanted)
    except NotFoundError as error:
        raise NotFoundError(
            f"{urls.redact(url)}: expected a file with the keys of all shards, found none, nor "
            f"{urls.redact(name)} in the current folder; for a file of each shard write {{shard}}, "
            "{number} or {relative} in its name"
        ) from error


def _whole_url(first: ShardReader, name: str) -> str:
    shard_url = first.shards[0].url
    here = os.path.abspath(urls.local_path(name)) if urls.is_local(name) else name
    if urls.scheme(shard_url) == "pipe":
        return here
    beside = urls.join(urls.parent(shard_url), name)
    if beside == here or not os.path.exists(here):
        return beside
    if urls.is_local(beside) and os.path.exists(beside) and not os.path.samefile(here, beside):
        raise JoinError(
            f"{name}: expected one file, found {here} in the current folder and {beside} beside "
            "the shards; pass the absolute path of one"
        )
    return here


class FileSide(OtherSide):
    """A file for each shard; see `OtherSide`. An entry is a position in the dataset.

    Safe to use from any number of threads.

    Args:
        first: The shards of the dataset.
        pattern: The URL or path of the files. ``{shard}`` stands for the base name of a shard
            without ``.tar``, ``{number}`` for the last digits in it, before a total such as
            ``-of-00010``, and ``{relative}`` for its path without ``.tar`` from the folder that all
            shards have in common. A relative one is beside each shard, or with ``{relative}`` in
            that folder.
        names: The names of the fields.
        wanted: The column of the keys, and those that become fields.
        is_optional: Whether a file that does not exist means that all its keys are missing.
    """

    def __init__(
        self,
        first: ShardReader,
        pattern: str,
        names: Names,
        wanted: JoinedColumns,
        *,
        is_optional: bool,
    ) -> None:
        self.edges = first.edges
        self._first = first
        self._pattern = pattern
        self._names = names
        self._wanted = wanted
        self._is_optional = is_optional
        self._stored: dict[int, RowSide] = {}
        self._fetched: set[int] = set()

    def url(self, number: int) -> str:
        """Return the URL of the file of a shard.

        Raises:
            JoinError: The name of the shard has no number.
        """
        shard_url = self._first.shards[number].url
        folder = urls.parent(shard_url)
        name = os.path.basename(urls.path_of(shard_url)).removesuffix(".tar")
        values = {"shard": name}
        if "{number}" in self._pattern:
            found = _NUMBER.search(name)
            if found is None:
                raise JoinError(
                    f"{urls.redact(shard_url)}: expected a number in the name of the shard, for "
                    f"{{number}} in {urls.redact(self._pattern)}, found none; use {{shard}}"
                )
            values["number"] = found[1]
        if "{relative}" in self._pattern:
            parts, query = _parts(shard_url)
            values["relative"] = "/".join([*parts[len(self._common) :], name])
            folder = "/".join([*self._common, ""]) + query
        reference = _PLACES.sub(lambda place: values[place[1]], self._pattern)
        return urls.join(folder, reference)

    @cached_property
    def _common(self) -> list[str]:
        """The folder that all shards have in common, in parts."""
        levels = zip(*(_parts(shard.url)[0] for shard in self._first.shards), strict=False)
        common = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)]
        if not common or (common[0] and len(common) < _NUM_PARTS_OF_SERVER):
            raise JoinError(
                f"{urls.redact(self._pattern)}: expected shards in one folder or below it, for "
                "{relative}, found shards of several servers; use {shard}"
            )
        return common

    def rows(self, number: int) -> dict[str, int]:
        """Return the rows by key of the file of a shard.

        Raises:
            FetchError: The file cannot be read.
            JoinError: It is not what a join expects.
        """
        return self._file(number).keys.rows

    def _file(self, number: int) -> RowSide:
        try:
            return self._stored[number]
        except KeyError:
            pass
        file_rows = self._read(number)
        self._fetched.add(number)
        file_rows.keys.rows  # noqa: B018 - a key that occurs twice is an error here
        # Each step is one operation on the dict, since other threads may use it.
        self._stored[number] = file_rows
        for old in list(self._stored):
            stored_nbytes = sum(file.held_nbytes for file in list(self._stored.values()))
            if stored_nbytes <= _MAX_STORED_NBYTES or old == number:
                break
            self._stored.pop(old, None)
        return file_rows

    def _read(self, number: int) -> RowSide:
        url = self.url(number)
        try:
            with open_file(self._first.store, url) as file:
                return file_rows(file, url, self._names, self._wanted)
        except NotFoundError as error:
            if not self._is_optional:
                raise NotFoundError(
                    f"{urls.redact(url)}: expected a file for each shard, found none for "
                    f"{urls.redact(self._first.shards[number].url)}; add it, or pass "
                    'missing="none" or missing="skip"'
                ) from error
            _logger.warning("%s: no such file, so all its keys are missing", urls.redact(url))
            return mapping_rows({}, self._names, [], url, with_fields=False)

    def read(self, entries: IntArray, wanted: Wanted) -> list[Fields | None]:
        """Return the values that the files have for the keys of samples."""
        samples: list[Fields | None] = [None] * len(entries)
        for number, places, local_indices in self._first.groups(entries):
            file, index = self._file(number), self._first.key_index(number)
            rows = [file.keys.rows.get(index.key(local_index), -1) for local_index in local_indices]
            present = np.array([row for row in rows if row >= 0], np.int64)
            read = iter(file.read(present, wanted))
            for place, row in zip(places, rows, strict=True):
                samples[place] = next(read) if row >= 0 else None
        return self._selected(samples)

    def fields(self, number: int | None) -> Sequence[str]:
        """Return all fields that one shard's file has; none without a number."""
        return [] if number is None else self._file(number).fields(None)

    def is_local(self, number: int) -> bool:
        """Whether the file of a shard is on this machine, or was read."""
        return number in self._fetched or urls.is_local(self.url(number))

    def fetch(self, number: int, report: Report) -> None:  # noqa: ARG002 - a small file
        """Read the file of a shard, which stores a remote one in the cache."""
        check_waits()
        self._file(number)

    def __getstate__(self) -> dict[str, Any]:
        # Each process reads the files that it needs.
        return {**self.__dict__, "_stored": {}, "_fetched": set()}


def _parts(url: str) -> tuple[list[str], str]:
    """Return the folder of a shard in parts, and the query of a remote one."""
    folder = urls.parent(url)
    if urls.is_local(url):
        return folder.replace(os.sep, "/").split("/"), ""
    stem, mark, query = folder.partition("?")
    return stem.rstrip("/").split("/"), mark + query
