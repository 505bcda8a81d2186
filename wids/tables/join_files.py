"""Use files such as ``{shard}.captions.json``, one beside each shard, as the other side of a join.

The file of a shard is read when a sample of the shard is first joined, and the last few files stay
in memory. A remote file is stored in the cache.
"""

from __future__ import annotations

import json
import logging
import os
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from typing import Any, Final

from wids.errors import JoinError, NotFoundError
from wids.shards.fields.values import decode_json_lines
from wids.shards.reader import ShardReader
from wids.storage.array_types import IntArray
from wids.storage.cache.store import BackgroundFetch
from wids.storage.transport import urls
from wids.tables.column_paths import KEY
from wids.tables.join_names import Fields, Names
from wids.tables.join_sides import OtherSide
from wids.tables.join_values import own_value, value_fields

SHARD: Final = "{shard}"
_LINES: Final = (".jsonl", ".ndjson")
_MAX_STORED_NBYTES: Final = 64 << 20
"""Bytes of files whose content stays in memory; at least one file does."""

_logger = logging.getLogger(__name__)


class _Repeated(dict[str, Any]):
    """An object of JSON with a key that occurs twice."""

    key: str


class FileSide(OtherSide):
    """A file of JSON for each shard; see `OtherSide`. An entry is a position in the dataset.

    Safe to use from any number of threads.

    Args:
        first: The shards of the dataset.
        pattern: The URL or path of the files, with ``{shard}`` for the base name of a shard without
            ``.tar``. A relative one is beside each shard.
        names: The names of the fields.
        is_optional: Whether a file that does not exist means that all its keys are missing.

    Raises:
        JoinError: Several shards would share one file.
    """

    def __init__(
        self, first: ShardReader, pattern: str, names: Names, *, is_optional: bool
    ) -> None:
        if SHARD not in pattern and len(first.shards) > 1:
            raise JoinError(
                f"{urls.redact(pattern)}: expected {SHARD} in the pattern, which stands for the "
                f'name of each of the {len(first.shards)} shards, as in "{SHARD}.captions.json"; '
                "found none. Pass one file for all shards as a table or a mapping"
            )
        self.edges = first.edges
        self._first = first
        self._pattern = pattern
        self._names = names
        self._is_optional = is_optional
        self._stored: dict[int, tuple[int, dict[str, Fields]]] = {}
        self._fetched: set[int] = set()

    def url(self, number: int) -> str:
        """Return the URL of the file of a shard."""
        shard_url = self._first.shards[number].url
        path = urls.path_of(shard_url)
        name = os.path.basename(path).removesuffix(".tar")
        reference = self._pattern.replace(SHARD, name)
        return urls.join(urls.parent(shard_url), reference)

    def entries(self, number: int) -> dict[str, Fields]:
        """Return the fields by key of the file of a shard.

        Raises:
            FetchError: The file cannot be read.
            JoinError: It is not what a join expects.
        """
        try:
            return self._stored[number][1]
        except KeyError:
            pass
        url = self.url(number)
        try:
            data = self._first.read_file(url)
        except NotFoundError as error:
            if not self._is_optional:
                raise NotFoundError(
                    f"{urls.redact(url)}: expected a file for each shard, found none for "
                    f"{urls.redact(self._first.shards[number].url)}; add it, or pass "
                    'missing="none" or missing="skip"'
                ) from error
            _logger.warning("%s: no such file, so all its keys are missing", urls.redact(url))
            data = b"{}"
        self._fetched.add(number)
        found = parse_entries(data, url, self._names)
        # Each step is one operation on the dict, since other threads may use it.
        self._stored[number] = (len(data), found)
        for old in list(self._stored):
            nbytes = sum(size for size, _ in list(self._stored.values()))
            if nbytes <= _MAX_STORED_NBYTES or old == number:
                break
            self._stored.pop(old, None)
        return found

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
        return self._selected(self._values(number, [local_index]))[0]

    def _values(self, number: int, local_indices: Sequence[int]) -> list[Fields | None]:
        of_keys, index = self.entries(number), self._first.key_index(number)
        keys = map(index.key, local_indices)
        return [own_value(of_keys[key]) if key in of_keys else None for key in keys]

    def fields(self, number: int | None) -> Sequence[str]:
        """Return all fields that one shard's file has; none without a number."""
        found = [] if number is None else self.entries(number).values()
        return list(dict.fromkeys(name for fields in found for name in fields if name != KEY))

    def is_local(self, number: int) -> bool:
        """Whether the file of a shard is on this machine, or was read."""
        return number in self._fetched or urls.is_local(self.url(number))

    def fetch(self, number: int, background: BackgroundFetch | None) -> None:
        """Read the file of a shard, which stores a remote one in the cache."""
        if background is None or not background.cancelled.is_set():
            self.entries(number)

    def __getstate__(self) -> dict[str, Any]:
        # Each process reads the files that it needs.
        return {**self.__dict__, "_stored": {}, "_fetched": set()}


def parse_entries(data: bytes, url: str, names: Names) -> dict[str, Fields]:
    """Return the fields by key of a file: an object, a list of objects, or lines of objects.

    Raises:
        JoinError: It is none of these, an object lacks its key, or a key occurs twice.
    """
    name = urls.redact(url)
    is_lines = urls.path_of(url).lower().endswith(_LINES)
    try:
        if is_lines:
            content: Any = decode_json_lines(data.removeprefix(BOM_UTF8))
        else:
            content = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise JoinError(f"{name}: expected JSON{' lines' * is_lines}, found: {error}") from error
    if isinstance(content, _Repeated):
        raise JoinError(f"{name}: expected each key once, found {content.key!r} twice")
    if isinstance(content, dict):
        return {k: {**value_fields(value, names, name), KEY: k} for k, value in content.items()}
    if not isinstance(content, list):
        raise JoinError(
            f"{name}: expected an object from keys to values, or a list of objects with "
            f"{KEY!r}, found {type(content).__name__}"
        )
    return _listed(content, names, name)


def _listed(content: list[Any], names: Names, name: str) -> dict[str, Fields]:
    entries: dict[str, Fields] = {}
    for row, item in enumerate(content):
        key = item.get(KEY) if isinstance(item, Mapping) else None
        if not isinstance(key, str):
            raise JoinError(
                f"{name}: expected objects with the text {KEY!r}, found {item!r:.80} as item {row}"
            )
        if key in entries:
            raise JoinError(f"{name}: expected each key once, found {key!r} twice, in item {row}")
        entries[key] = {**value_fields(item, names, name), KEY: key}
    return entries


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeated, seen = _Repeated(found), set[str]()
    # Marked, and no error yet, since nested objects may repeat keys.
    repeated.key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return repeated
