"""Read the rows of a file by its extension: Parquet, CSV, TSV, JSON lines, or else JSON.

All but Parquet may be compressed, ``.jsonl.gz``. A JSON document is an object from keys to values,
or a list of objects with their keys.
"""

from __future__ import annotations

import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, Final, TypeAlias

from wids.errors import JoinError, PackError
from wids.publish.packing.metadata import csv_rows
from wids.shards.fields.safety import MAX_UNZIPPED_NBYTES, unzip
from wids.shards.fields.values import decode_json_lines
from wids.storage.transport import urls
from wids.tables.column_paths import KEY
from wids.tables.join_names import Names, Wanted
from wids.tables.join_rows import RowSide, entry_rows, import_arrow, table_rows

_LINES: Final = (".jsonl", ".ndjson")
_DELIMITERS: Final = {".csv": ",", ".tsv": "\t"}
_Entries: TypeAlias = list[tuple[str, Any]]


def file_rows(file: BinaryIO, url: str, names: Names, wanted: Wanted) -> RowSide:
    """Return the rows of a file.

    Args:
        file: The file, from its beginning; of Parquet only the wanted columns are read.
        url: Its URL, for its extension and messages.
        names: The names of the fields.
        wanted: The column of the keys, and those that become fields.

    Raises:
        JoinError: It is not what its extension says, or lacks a column.
        ImportError: It is Parquet, and there is no pyarrow.
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
    if wanted != Wanted():
        entries = [(k, wanted.of(v) if isinstance(v, Mapping) else v) for k, v in entries]
    side = entry_rows(entries, names, name)
    side.held_nbytes = len(data)
    return side


def _parquet(file: BinaryIO, name: str, wanted: Wanted) -> Any:
    arrow = import_arrow(name)
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(file)
        wanted.check(name, parquet.schema_arrow.names)
        if wanted.columns is None:
            return parquet.read()
        return parquet.read(columns=list(dict.fromkeys((wanted.key, *wanted.columns))))
    except (arrow.ArrowException, OSError) as error:
        raise JoinError(f"{name}: expected Parquet, found: {error}") from error


def _csv_entries(data: bytes, name: str, wanted: Wanted, delimiter: str) -> _Entries:
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


def _json_entries(data: bytes, name: str, wanted: Wanted, kind: str) -> _Entries:
    latest: list[_Entries] = [[]]

    def kept(pairs: _Entries) -> dict[str, Any]:
        latest[0] = pairs
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
        entries = latest[0]  # the outermost object is the last one; its keys may be repeated
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


def _listed(content: Iterable[Any], name: str, wanted: Wanted) -> _Entries:
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
