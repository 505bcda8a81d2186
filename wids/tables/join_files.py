"""Use files beside the shards, or one file for all of them, as the other side of a join.

The file of a shard is read when a sample of the shard is first joined, and the last few files stay
in memory; a file for all is read when the join is made. A remote file is stored in the cache.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, Final

import numpy as np

from wids.errors import JoinError, NotFoundError
from wids.shards.reader import ShardReader
from wids.shards.side_files import open_file
from wids.storage.array_types import IntArray
from wids.storage.cache.store import BackgroundFetch
from wids.storage.transport import urls
from wids.tables.join_names import Fields, Names, Wanted
from wids.tables.join_rows import RowSide, entry_rows
from wids.tables.join_sides import OtherSide
from wids.tables.row_files import file_rows

_PLACES: Final = re.compile(r"\{(shard|number|relative)\}")
_NUMBER: Final = re.compile(r"(\d+)(?:-of-\d+)?\D*$")  # not the total of `train-00000-of-00010`
_NUM_PARTS_OF_SERVER: Final = 3  # https:, nothing, and its name
_MAX_STORED_NBYTES: Final = 64 << 20
"""Bytes of files whose content stays in memory; at least one file does."""

_logger = logging.getLogger(__name__)


def is_per_shard(pattern: str) -> bool:
    """Return whether a pattern stands for a file of each shard."""
    return _PLACES.search(pattern) is not None


def whole_file(first: ShardReader, name: str, names: Names, wanted: Wanted) -> RowSide:
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
        wanted: Wanted,
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
        found = self._read(number)
        self._fetched.add(number)
        found.keys.rows  # noqa: B018 - a key that occurs twice is an error here
        # Each step is one operation on the dict, since other threads may use it.
        self._stored[number] = found
        for old in list(self._stored):
            stored_nbytes = sum(file.held_nbytes for file in list(self._stored.values()))
            if stored_nbytes <= _MAX_STORED_NBYTES or old == number:
                break
            self._stored.pop(old, None)
        return found

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
            return entry_rows([], self._names, url)

    def read(self, entries: IntArray) -> list[Fields | None]:
        """Return the values that the files have for the keys of samples."""
        found: list[Fields | None] = [None] * len(entries)
        for number, places, local_indices in self._first.groups(entries):
            read = self._values(number, local_indices)
            for place, fields in zip(places, read, strict=True):
                found[place] = fields
        return self._selected(found)

    def read_one(self, entry: int, *, local: bool) -> Fields | None:  # noqa: ARG002 - all are read
        """Return the values for one sample."""
        number, local_index = self._first.locate(entry)
        file = self._file(number)
        row = file.keys.rows.get(self._first.key_index(number).key(local_index))
        return None if row is None else self._selected([file.read_one(row, local=True)])[0]

    def _values(self, number: int, local_indices: Sequence[int]) -> list[Fields | None]:
        file, index = self._file(number), self._first.key_index(number)
        rows = [file.keys.rows.get(index.key(local_index), -1) for local_index in local_indices]
        found = iter(file.read(np.array([row for row in rows if row >= 0], np.int64)))
        return [next(found) if row >= 0 else None for row in rows]

    def fields(self, number: int | None) -> Sequence[str]:
        """Return all fields that one shard's file has; none without a number."""
        return [] if number is None else self._file(number).fields(None)

    def is_local(self, number: int) -> bool:
        """Whether the file of a shard is on this machine, or was read."""
        return number in self._fetched or urls.is_local(self.url(number))

    def fetch(self, number: int, background: BackgroundFetch | None) -> None:
        """Read the file of a shard, which stores a remote one in the cache."""
        if background is None or not background.cancelled.is_set():
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
