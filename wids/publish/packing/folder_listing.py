"""List the files in a folder that can be packed, and read the rows of its metadata.

The listing looks only at names, types, permissions, lengths and times.

A row of ``metadata.csv`` or ``metadata.jsonl`` names files in the columns ``file_name`` and
``…_file_name``, and lists of them in ``file_names`` and ``…_file_names``. Its other columns are
values. Whether the files exist is not checked here.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import posixpath
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from wids.errors import NotFoundError, PackError, local_error
from wids.shards.tars.headers import is_metadata
from wids.storage.sizes import first_of
from wids.storage.transport import urls

UNREADABLE: Final = "not readable"
"""The reason for files and folders that this user may not read."""

_OF_SYSTEMS: Final = frozenset(("__MACOSX", "Thumbs.db", "desktop.ini"))
"""What desktops and archivers leave in folders, under names without a leading dot."""
_FOR_ALL: Final = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
_MAX_NAMED: Final = 3


_Identity = tuple[int, int]
"""Device and inode of a folder."""
_Pending = list[tuple[str, tuple[_Identity, ...]]]
"""Folders to be listed, by path with a slash at the end, and those that they are in."""


class ListedFile(NamedTuple):
    """A file that can be packed.

    Attributes:
        path: Path in the folder, its parts separated by ``/``.
        nbytes: Its length in bytes.
        mtime_ns: Its modification time.
    """

    path: str
    nbytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Skipped:
    """Files that were left out for one reason.

    Attributes:
        reason: Why, as ``"hidden"``.
        count: How many files, or folders with all that is in them.
        names: Paths of the first three.
    """

    reason: str
    count: int
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.count:,} {self.reason}: {first_of(self.names, count=self.count)}"


@dataclass
class Listing:
    """What is in a folder.

    Attributes:
        root: Absolute path of the folder.
        files: The files that can be packed, sorted by path.
        folders: Names of the folders directly in it, sorted.
        outside: Links that lead out of the folder.
        left_out: Paths of what was left out, by reason.
    """

    root: str
    files: list[ListedFile] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)

    def leave_out(self, path: str, reason: str) -> None:
        """Note that a file is left out."""
        self.left_out.setdefault(reason, []).append(path)

    def skipped(self) -> tuple[Skipped, ...]:
        """Return what was left out, by reason."""
        return tuple(
            Skipped(reason, len(paths), tuple(sorted(paths)[:_MAX_NAMED]))
            for reason, paths in sorted(self.left_out.items())
        )


def list_folder(folder: str | os.PathLike[str]) -> Listing:
    """Return the files in a folder and its subfolders, in an order that depends on names alone.

    Links to files and folders are followed. Hidden files and folders are left out, as are those
    that readers of tars skip as metadata, and what is not a regular file or cannot be read.

    Raises:
        NotFoundError: There is no such folder.
        PackError: It is a file, or a URL.
        OSError: It cannot be read.
    """
    name = os.fspath(folder)
    if not urls.is_local(name):
        raise PackError(
            f"{urls.redact(name)}: expected a local folder, found a URL; download the files first"
        )
    if not name:
        raise PackError(
            'folder: expected the path of a folder, found an empty text; the current folder is "."'
        )
    root = os.path.abspath(urls.local_path(name))
    if not os.path.isdir(root):
        raise _not_a_folder(name, root)
    listing = Listing(root)
    status = os.stat(root)
    pending: _Pending = [("", ((status.st_dev, status.st_ino),))]
    while pending:
        prefix, ancestors = pending.pop()
        path = os.path.join(root, prefix)
        try:
            entries = os.scandir(path)
        except OSError:
            if not prefix:
                raise
            listing.leave_out(prefix, UNREADABLE)
            continue
        with entries:
            for entry in entries:
                _list_entry(listing, entry, prefix + entry.name, ancestors, pending)
    listing.files.sort()
    listing.folders.sort()
    return listing


def _list_entry(
    listing: Listing,
    entry: os.DirEntry[str],
    path: str,
    ancestors: tuple[_Identity, ...],
    pending: _Pending,
) -> None:
    """Add a file to the listing, or a subfolder to those still to be listed."""
    if entry.name.startswith(".") or entry.name in _OF_SYSTEMS:
        listing.leave_out(path, "hidden")
        return
    if len(ancestors) == 1 and is_metadata(os.fsencode(entry.name)):
        listing.leave_out(path, "named as metadata, __…__")
        return
    try:
        # What Windows lists has no inode numbers.
        status = os.stat(entry.path) if entry.is_dir() else entry.stat()
    except OSError:
        reason = "linked to nothing" if entry.is_symlink() else UNREADABLE
        listing.leave_out(path, reason)
        return
    if entry.is_symlink() and not is_inside(entry.path, listing.root):
        listing.outside.append(path)
    if stat.S_ISDIR(status.st_mode):
        identity = (status.st_dev, status.st_ino)
        if identity in ancestors:
            listing.leave_out(path, "linked to a folder above")
            return
        if len(ancestors) == 1:
            listing.folders.append(entry.name)
        pending.append((path + "/", (*ancestors, identity)))
    elif not stat.S_ISREG(status.st_mode):
        listing.leave_out(path, "not regular")
    # Asking the system what this user may read takes as long as everything else.
    elif status.st_mode & _FOR_ALL == _FOR_ALL or os.access(entry.path, os.R_OK):
        listing.files.append(ListedFile(path, status.st_size, status.st_mtime_ns))
    else:
        listing.leave_out(path, UNREADABLE)


def is_inside(path: str, folder: str) -> bool:
    """Whether a path leads into a folder, or to it, directly or through links."""
    path, folder = os.path.realpath(path), os.path.realpath(folder)
    return path == folder or urls.is_within(path, folder)


def _not_a_folder(name: str, root: str) -> Exception:
    if not os.path.lexists(root):
        return NotFoundError(
            f"{name}: no such folder (the current folder is {os.getcwd()}); check the path"
        )
    advice = "; it is a shard already: use wids create" if root.endswith(".tar") else ""
    return PackError(f"{name}: expected a folder of files, found a file{advice}")


NAMES: Final = ("metadata.csv", "metadata.jsonl")
PARQUET: Final = "metadata.parquet"

_INTEGER: Final = re.compile(r"-?(?:0|[1-9]\d{0,99})")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_FILE_COLUMN: Final = re.compile(r"(?:(.+)_)?file_name(s?)", re.DOTALL)


_Table = tuple[list[str], list[tuple[int, dict[str, Any]]]]
"""The names of all columns, and each row with the number of its line."""


@dataclass(frozen=True)
class MetadataRow:
    """One row.

    Attributes:
        place: Where it is: ``metadata.csv, line 3``.
        files: Role and path of each file that it names, those without a value left out. The role is
            what the name of the column says: ``"mask"`` for ``mask_file_name``, ``""`` for
            ``file_name``, with a number for each of several: ``"frame.0"``. The path is that in the
            folder that is packed, its parts separated by ``/``.
        values: Its other columns.
    """

    place: str
    files: tuple[tuple[str, str], ...]
    values: Mapping[str, Any]


def read_rows(root: str, path: str) -> list[MetadataRow]:
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


def _row(place: str, folder: str, columns: Mapping[str, Any]) -> MetadataRow:
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
                files.append((part, _joined(folder, name)))
    return MetadataRow(place, tuple(files), values)


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
    """Return a column of numbers if every value in it is one, with None for the empty cells.

    Of equal numbers, such as 1.1 and 1.10, only one is written: others may be versions or names.
    """
    filled = [cell for cell in cells if cell]
    # Numbers with leading zeros stay text: they are identifiers.
    is_number = bool(filled) and all(map(_NUMBER.fullmatch, filled))
    if not is_number or not all(map(math.isfinite, map(float, filled))):
        return cells
    number = int if all(map(_INTEGER.fullmatch, filled)) else float
    if len(set(map(number, filled))) < len(set(filled)):
        return cells
    return [number(cell) if cell else None for cell in cells]
