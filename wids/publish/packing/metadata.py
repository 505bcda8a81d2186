"""Read the rows of ``metadata.csv`` and ``metadata.jsonl``, as Hugging Face's folders have them.

A row names files in the columns ``file_name`` and ``…_file_name``, lists of them in ``file_names``
and ``…_file_names``; its other columns are values. Does not check whether the files exist.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from wids.errors import PackError, local_error

NAMES: Final = ("metadata.csv", "metadata.jsonl")
PARQUET: Final = "metadata.parquet"

_INTEGER: Final = re.compile(r"-?(?:0|[1-9]\d{0,99})")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_FILE_COLUMN: Final = re.compile(r"(?:(.+)_)?file_name(s?)", re.DOTALL)


_Table = tuple[list[str], list[tuple[int, dict[str, Any]]]]
"""The names of all columns, and each row with the number of its line."""


class NamedFile(NamedTuple):
    """A file that a row names.

    Attributes:
        role: What the column name says of it: ``"mask"`` for ``mask_file_name``, ``""`` for
            ``file_name``, with a number for each of several: ``"frame.0"``.
        path: Path in the folder that is packed, its parts separated by ``/``.
    """

    role: str
    path: str


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        place: Where it is: ``metadata.csv, line 3``.
        files: The files that it names, those without a value left out.
        values: Its other columns.
    """

    place: str
    files: tuple[NamedFile, ...]
    values: Mapping[str, Any]


def read_rows(root: str, path: str) -> list[Row]:
    """Return the rows of a metadata file.

    Args:
        root: The folder that is packed.
        path: Path of the metadata file in it. Names in the file start from the same folder.

    Raises:
        FetchError: The file cannot be read.
        PackError: It is not what its name says, or no column names files.
    """
    try:
        with open(os.path.join(root, path), encoding="utf-8-sig", newline="") as file:
            text = file.read()
    except OSError as error:
        raise local_error(path, error) from error
    except UnicodeDecodeError as error:
        raise PackError(f"{path}: expected text in UTF-8, found {error}; convert it") from None
    if path.endswith(".csv"):
        columns, rows = csv_rows(path, text, _FILE_COLUMN.fullmatch)
    else:
        columns, rows = _json_rows(path, text)
    if not any(map(_FILE_COLUMN.fullmatch, columns)):
        raise PackError(
            f'{path}: expected a column "file_name", or one that ends in "_file_name", found: '
            f"{', '.join(columns) or 'nothing'}; rename the column that names the files"
        )
    folder = posixpath.dirname(path)
    return [_row(f"{path}, line {line}", folder, values) for line, values in rows]


def _row(place: str, folder: str, columns: Mapping[str, Any]) -> Row:
    files = []
    values = {}
    for column, value in columns.items():
        match = _FILE_COLUMN.fullmatch(column)
        if match is None:
            values[column] = value
            continue
        role, is_list = match[1] or "", bool(match[2])
        names = value if is_list and isinstance(value, list) else [value]
        if not all(name is None or isinstance(name, str) for name in names):
            raise PackError(f"{place}: {column}: expected the name of a file, found {value!r:.80}")
        for number, name in enumerate(names):
            if name:
                part = f"{role}.{number}".removeprefix(".") if is_list else role
                files.append(NamedFile(part, _joined(folder, name)))
    return Row(place, tuple(files), values)


def _joined(folder: str, name: str) -> str:
    # Tables that were made on Windows have backslashes.
    return posixpath.normpath(posixpath.join(folder, name.replace("\\", "/")))


def _json_rows(path: str, text: str) -> _Table:
    rows = []
    # Not `splitlines`, which also splits at characters that JSON allows inside a string.
    for line, source in enumerate(text.split("\n"), start=1):
        if not source.strip():
            continue
        try:
            row = json.loads(source)
        except (ValueError, RecursionError) as error:
            raise PackError(f"{path}, line {line}: expected a JSON object: {error}") from None
        if not isinstance(row, dict):
            raise PackError(f"{path}, line {line}: expected a JSON object, found {row!r:.80}")
        rows.append((line, row))
    return list(dict.fromkeys(column for _, row in rows for column in row)), rows


def csv_rows(
    path: str, text: str, is_text: Callable[[str], object], *, delimiter: str = ","
) -> _Table:
    """Return the rows of a table in text, with numbers in the columns that have nothing else.

    Args:
        path: Its path, for messages.
        text: Its content; the first line names the columns.
        is_text: Whether a column of a name stays text.
        delimiter: What separates its values.

    Raises:
        PackError: It is not CSV.
    """
    header: list[str] = []
    lines: list[tuple[int, list[str]]] = []
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    try:
        for cells in reader:
            if not cells:  # a blank line
                continue
            if not header:
                header = cells
            elif len(cells) != len(header):
                raise PackError(
                    f"{path}, line {reader.line_num}: expected {len(header)} values, as in the "
                    f"first line, found {len(cells)}; put values that have commas into quotes"
                )
            else:
                lines.append((reader.line_num, cells))
    except csv.Error as error:
        raise PackError(f"{path}, line {reader.line_num}: expected CSV: {error}") from None
    if len(set(header)) < len(header):
        repeated = next(name for name in header if header.count(name) > 1)
        raise PackError(f"{path}: expected columns with different names, found {repeated!r} twice")
    columns = []
    for at, name in enumerate(header):
        column = [cells[at] for _, cells in lines]
        columns.append(column if is_text(name) else _typed(column))
    values = zip(*columns, strict=True)
    return header, [
        (line, dict(zip(header, row, strict=True)))
        for (line, _), row in zip(lines, values, strict=True)
    ]


def _typed(cells: list[str]) -> list[Any]:
    """Return a column of numbers if every value in it is one, with None for the empty cells."""
    filled = [cell for cell in cells if cell]
    # Numbers with leading zeros stay text: they are identifiers.
    if filled and all(map(_INTEGER.fullmatch, filled)):
        return [int(cell) if cell else None for cell in cells]
    if (
        filled
        and all(map(_NUMBER.fullmatch, filled))
        and all(math.isfinite(float(cell)) for cell in filled)
    ):
        return [float(cell) if cell else None for cell in cells]
    return cells
