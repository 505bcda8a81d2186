"""Find the table of shards of a large document, or make it: beside the document, or in the cache.

A machine reads each version of a document at most once. The process that reads it makes its table,
unless one was published beside it, and notes its digest under its length and its time or tag.
specs/shard-table.md states when which file is used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, overload

import numpy as np

from wids.errors import FetchError, SpecError
from wids.shards.specs import parsing, shard_table
from wids.shards.specs.entries import Context, shard_of
from wids.shards.specs.model import ShardSpec
from wids.shards.specs.parsing import LARGE_NBYTES, SHORT_NBYTES
from wids.shards.specs.shard_sequences import LazyShards
from wids.shards.specs.shard_table import DamagedTableError, State, TableFile
from wids.shards.tars.headers import KeySplit
from wids.storage.arrays import FloatArray, IntArray
from wids.storage.cache import cache_names
from wids.storage.cache.cache_names import is_settled, new_file, save_quietly
from wids.storage.cache.leases import turn
from wids.storage.fetch import Fetcher, downloaded
from wids.storage.files import read_or_map
from wids.storage.transport import urls

MAX_TABLED_NBYTES: Final = 8 << 30
_START_NBYTES: Final = 64 << 10
_PIECE_NBYTES: Final = 1 << 20
_MAX_MADE: Final = 1024
"""Shards of a table to keep, for those that are read."""

_logger = logging.getLogger(__name__)


class ShardTable(LazyShards):
    """Shards of a table, each of which is made when it is asked for.

    Args:
        file: The table.
        context: What its references start from, and may name.
        key_split: The rule of shards that state none.
        dataset: The dataset of shards that state none.
        rows: The shards of the table; None for all.
    """

    def __init__(
        self,
        file: TableFile,
        context: Context,
        key_split: KeySplit | None = None,
        dataset: str | None = None,
        rows: range | None = None,
    ) -> None:
        self.file, self.context = file, context
        self.key_split, self.dataset = key_split, dataset
        self.rows = range(len(file)) if rows is None else rows
        self._made: dict[int, ShardSpec] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> ShardSpec: ...
    @overload
    def __getitem__(self, index: slice) -> ShardTable: ...
    def __getitem__(self, index: int | slice) -> ShardSpec | ShardTable:
        rows = self.rows[index]
        if isinstance(rows, range):
            return ShardTable(self.file, self.context, self.key_split, self.dataset, rows)
        made = self._made.get(rows)  # each sample that is read asks for its shard
        if made is None:
            made = self._shard(rows)
            if len(self._made) >= _MAX_MADE:
                self._made.clear()  # one atomic step, as other threads may read
            self._made[rows] = made
        return made

    def __iter__(self) -> Iterator[ShardSpec]:
        return map(self._shard, self.rows)

    def _shard(self, rows: int) -> ShardSpec:
        label = f"{self.context.name}: shardlist[{rows}]"
        shard = shard_of(self.file.entry(rows), label, self.context.join, self.key_split)
        if self.dataset is None or shard.dataset:
            return shard
        return replace(shard, dataset=self.dataset)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.file, self.context, self.key_split, self.dataset, self.rows)
        return ShardTable, arguments

    def has_key(self, key: str) -> bool:
        """Whether any entry may state a key."""
        return key in self.file.keys

    def with_defaults(self, dataset: str | None, key_split: KeySplit | None) -> ShardTable:
        """Return these shards with a dataset and a rule for those that state none."""
        dataset, key_split = self.dataset or dataset, self.key_split or key_split
        return ShardTable(self.file, self.context, key_split, dataset, self.rows)

    @property
    def edges(self) -> IntArray | None:
        """Where shards begin, and the end of the last one; None if a count is not stated."""
        rows, edges = self.rows, self.file.edges
        if not self.file.is_counted:
            return None
        if rows.step != 1:
            numbers = np.arange(rows.start, rows.stop, rows.step)
            return np.concatenate(([0], np.cumsum(edges[numbers + 1] - edges[numbers])))
        part: IntArray = edges[rows.start : rows.start + len(rows) + 1]
        return part - part[0] if len(part) and part[0] else part

    @property
    def nbytes(self) -> FloatArray:
        """The length of each shard, NaN where it is not stated."""
        rows = self.rows
        found = self.file.lengths[rows.start : rows.stop if rows.stop >= 0 else None : rows.step]
        return np.where(found < 0, np.nan, found)

    @property
    def are_remote(self) -> frozenset[bool]:
        """Whether shards are remote, for each scheme that occurs."""
        names = map(str, self.file.facts["schemes"].values())
        return frozenset(not urls.is_local(self.context.join(name)) for name in names)


def table_of(
    folder: str, fetcher: Fetcher, url: str, known: tuple[int, str] | None
) -> TableFile | None:
    """Return the table of a large document; None if the document has to be parsed.

    Args:
        folder: The cache folder.
        fetcher: Reads URLs.
        url: Path or URL of the document.
        known: The length and tag of a remote document, if a request has shown them.

    Raises:
        FetchError: It cannot be read.
        SpecError: It is too long to be parsed, and has no table.
    """
    state = _state(fetcher, url, known)
    least_nbytes = LARGE_NBYTES if urls.local_place(url) is None else SHORT_NBYTES
    if state is None or not least_nbytes < state.nbytes <= MAX_TABLED_NBYTES:
        return None
    document = _Document(folder, fetcher, url, state)
    return document.known() or document.made_in_turn()


def _state(fetcher: Fetcher, url: str, known: tuple[int, str] | None) -> State | None:
    """Return the state of a document; None if unknown."""
    path = urls.local_place(url)
    if path is not None:
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        # A younger file can change without a new time; it is compared by its digest.
        tag = str(status.st_mtime_ns) if is_settled(status.st_mtime_ns) else ""
        return State(status.st_size, tag)
    if known is not None:
        return State(*known)
    # One byte: as cheap as a conditional request, and every transport has it.
    fetcher.bind_options(url)
    nbytes, found = fetcher.head(url)
    return None if nbytes is None or not found else State(nbytes, found)


class _Document:
    """A large document in its present state.

    Args:
        folder: The cache folder.
        fetcher: Reads URLs.
        url: Where the document is.
        state: Its state.
    """

    def __init__(self, folder: str, fetcher: Fetcher, url: str, state: State) -> None:
        self._folder, self._fetcher, self._url, self._state = folder, fetcher, url, state
        path = urls.local_place(url)
        self._source = path or url
        self._noted_state = state if path is None else _identity(path, state)
        self._note_path = cache_names.document_note_path(folder, url)
        self._beside = shard_table.table_url(self._source)

    def known(self) -> TableFile | None:
        """Return the table of the document, if the cache has it and the document's state."""
        note = _loaded_note(self._note_path) if self._state.tag else None
        if note is None or note[0] != self._noted_state:
            return None
        return self._of_digest(bytes.fromhex(note[1]))

    def made_in_turn(self) -> TableFile | None:
        """Return the table of the document, made by this process or by another one meanwhile.

        None if the document has another form than an object with a shardlist, or if the table
        cannot be stored.
        """
        lock_path = cache_names.lock_path(self._folder, self._note_path)
        with turn(lock_path, self._note_path, waits=True):
            table = self.known() or self._published(self._state) or self._read()
            if table is not None:
                note = json.dumps([*self._noted_state, table.header.document_sha256.hex()])
                save_quietly(self._note_path, note.encode("ascii"))
        return table

    def _read(self) -> TableFile | None:
        """Read the document, and return its table: one that has its digest, or a new one."""
        with (
            downloaded(self._fetcher, self._source) as path,
            open(path, "rb") as file,  # once: it may be replaced meanwhile
        ):
            digest = hashlib.sha256()
            while piece := file.read(_PIECE_NBYTES):
                digest.update(piece)
            sha256 = digest.digest()
            table = self._of_digest(sha256) or self._published(None, sha256)
            if table is not None:
                return table
            if file.tell() > parsing.MAX_DOCUMENT_NBYTES:
                raise SpecError(
                    f"{urls.redact(self._url)}: expected a document of at most "
                    f"{parsing.MAX_DOCUMENT_NBYTES} bytes, or its table of shards beside it, found "
                    f"{file.tell()} bytes and no table of it; publish the table that was saved "
                    "with the document, or save the spec in parts, which a document of `datasets` "
                    "names"
                )
            file.seek(0)
            return self._written(file.read(), sha256)

    def _of_digest(self, sha256: bytes) -> TableFile | None:
        """Return the table of a document with a digest that this machine made or fetched."""
        made = _intact(self._table_path(sha256), sha256)
        return made or _intact(self._fetched_path(sha256), sha256)

    def _published(self, state: State | None, sha256: bytes | None = None) -> TableFile | None:
        """Return a copy of the table beside the document, if it is of this state or digest.

        A copy, which nobody writes over.
        """
        if self._start_beside is None:
            return None
        header, facts = self._start_beside
        if sha256 is None and facts.get("state") != list(state or ()):
            return None
        if sha256 not in (None, header.document_sha256):
            _logger.warning(
                "%s: it was made from another version of its JSON document, which is read instead; "
                "save the spec again with `wids.load_spec(…).save(…)`",
                urls.redact(self._beside),
            )
            return None
        path = self._fetched_path(header.document_sha256)
        try:
            with (
                new_file(path) as file,
                downloaded(self._fetcher, self._beside) as source,
                open(source, "rb") as data,
            ):
                shutil.copyfileobj(data, file, _PIECE_NBYTES)
                file.flush()
                if (table := shard_table.open_table(file.name)) is not None:
                    table.check()
                del table  # Windows renames no file that is mapped
        except (OSError, ValueError) as error:  # of the server, or damaged
            name = urls.redact(self._beside)
            _logger.warning("%s: %s; the JSON document is read instead", name, str(error))
            return None
        return _intact(path, header.document_sha256)

    @cached_property
    def _start_beside(self) -> tuple[shard_table.TableHeader, dict[str, Any]] | None:
        """The start of the table beside the document; None if there is none."""
        try:
            start = self._fetcher.read_start(self._beside, _START_NBYTES).data
            if shard_table.start_nbytes(start) > len(start):
                nbytes = shard_table.start_nbytes(start)
                start = self._fetcher.read_start(self._beside, nbytes).data
            return shard_table.parse_start(start)
        except (FetchError, DamagedTableError) as error:
            # Nearly always it was not published, and a server may send a page instead.
            is_damaged = urls.is_local(self._beside) and not isinstance(error, FetchError)
            level = logging.WARNING if is_damaged else logging.INFO
            _logger.log(level, "%s: not used: %s", urls.redact(self._beside), str(error))
            return None

    def _written(self, data: bytes, sha256: bytes) -> TableFile | None:
        """Write the table of the document into the cache."""
        path, name = self._table_path(sha256), urls.redact(self._url)
        if parsing.num_values(data) > parsing.MAX_VALUES:
            return None
        try:
            document = parsing.parse(data, name)
            del data  # the table is written from values that take several times as much
            if not (isinstance(document, dict) and isinstance(document.get("shardlist"), list)):
                return None
            with new_file(path) as new:
                entries = _checked(document["shardlist"], name)
                shard_table.write_table(new, entries, document, sha256, self._state)
        except ValueError:
            # Another form of document, or a mistake, which the parser of other documents reports.
            return None
        except OSError as error:
            _logger.warning("%s: its table of shards is not stored: %s", name, str(error))
            return None
        return _intact(path, sha256)

    def _table_path(self, sha256: bytes) -> str:
        return cache_names.table_path(self._folder, sha256.hex())

    def _fetched_path(self, sha256: bytes) -> str:
        # By its URL, too: who published it states of which document it is, and may lie.
        found = hashlib.sha256(sha256 + os.fsencode(self._beside))
        return cache_names.table_path(self._folder, found.hexdigest())


def _checked(entries: Iterable[Any], label: str) -> Iterator[Any]:
    """Yield the entries of a shardlist, unless one is malformed."""
    for number, entry in enumerate(entries):
        shard_of(entry, f"{label}: shardlist[{number}]", str)
        yield entry


def _identity(path: str, state: State) -> State:
    """Return the state of a local document with what no program sets back, as its time may be."""
    try:
        status = os.stat(path)
    except OSError:
        return state
    return State(state.nbytes, f"{state.tag} {status.st_ctime_ns} {status.st_ino}")


def _intact(path: str, sha256: bytes) -> TableFile | None:
    """Return the table in the cache at a path; None if it is not of this document, or damaged."""
    try:
        table = shard_table.open_table(path, is_own=True)
    except DamagedTableError as error:
        _logger.warning("%s: %s; the JSON document is read instead", path, str(error))
        return None
    return table if table is not None and table.header.document_sha256 == sha256 else None


def _loaded_note(path: str) -> tuple[State, str] | None:
    """Return the state and the digest that this user noted at a path, if there is a note."""
    data = read_or_map(path, is_own=True)
    with suppress(ValueError, TypeError):
        if data is not None:
            nbytes, tag, sha256 = json.loads(bytes(data))
            return State(nbytes, tag), sha256
    return None
