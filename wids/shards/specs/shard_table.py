"""Write and read a table of shards: the shardlist of a large document, in a file that is mapped.

Processes share its pages, and a pickle has only its path. specs/shard-table.md describes the file
byte by byte; `spec_tables` finds the one of a document.
"""

from __future__ import annotations

import json
import mmap
import operator
import os
import re
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import cached_property
from typing import IO, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wids.errors import SpecError
from wids.shards.tars.headers import to_bytes, to_text
from wids.storage import upload
from wids.storage.arrays import IntArray
from wids.storage.fetch import Fetcher
from wids.storage.files import FileBytes, advise, folder_of, read_or_map
from wids.storage.stages import passes_to_process
from wids.storage.transport import urls

MAGIC: Final = b"wids-shd"
VERSION: Final = 1
HEADER: Final = struct.Struct("<8sIIQQQQQ32sIIII")
CRC_START: Final = 16  # the CRC covers the header from here on, then the facts and the block CRCs
BLOCK_LENGTH: Final = 1024
"""Shards that one CRC covers: about 100 kB, which is what a first look at a shard reads."""
SHA256_NBYTES: Final = 32
IS_COUNTED: Final = 1
HAS_SHA256: Final = 2
MAX_FACTS_NBYTES: Final = 1 << 20
_PART_LENGTH: Final = 1 << 20


class State(NamedTuple):
    """What changes when a document does.

    Attributes:
        nbytes: Its length.
        tag: Its modification time in nanoseconds, or the tag of its server; ``""`` if unknown.
    """

    nbytes: int
    tag: str


class TableHeader(NamedTuple):
    """The start of a table of shards.

    Attributes:
        magic, version: What the file is.
        crc: CRC-32 of the rest of the header, the facts and the CRCs of blocks.
        nbytes: Length of the file.
        num_shards: Number of shards.
        names_nbytes: Length of their names.
        facts_nbytes: Length of the facts, a multiple of 8.
        document_nbytes, document_sha256: Length and digest of the JSON document.
        edges_crc, nbytes_crc: CRC-32 of these two columns.
        flags: `IS_COUNTED`, `HAS_SHA256`.
        block_length: Shards that each CRC of a block covers.
    """

    magic: bytes
    version: int
    crc: int
    nbytes: int
    num_shards: int
    names_nbytes: int
    facts_nbytes: int
    document_nbytes: int
    document_sha256: bytes
    edges_crc: int
    nbytes_crc: int
    flags: int
    block_length: int

    @property
    def sections(self) -> list[int]:
        """Where edges, lengths, offsets, digests, CRCs and names begin, and where the file ends."""
        n = self.num_shards
        starts = [HEADER.size + self.facts_nbytes]
        digests_nbytes = SHA256_NBYTES * n if self.flags & HAS_SHA256 else 0
        num_blocks = -(-n // max(self.block_length, 1))
        for nbytes in (8 * (n + 1), 8 * n, 8 * (n + 1), digests_nbytes, 4 * num_blocks):
            starts.append(starts[-1] + nbytes)
        return [*starts, starts[-1] + self.names_nbytes]


def table_url(url: str) -> str:
    """Return where the table of a document is published: beside it, under the same name."""
    stem, mark, query = (url, "", "") if urls.is_local(url) else url.partition("?")
    return stem.removesuffix(".json") + ".shards" + mark + query


class DamagedTableError(ValueError):
    """The file is not an intact table of shards of this version."""


def start_nbytes(data: FileBytes) -> int:
    """Return the length of the header and the facts of a table, by its first bytes."""
    known = HEADER.unpack_from(data, 0)[6] if len(data) >= HEADER.size else 0
    return HEADER.size + min(known, MAX_FACTS_NBYTES)


def parse_start(data: bytes) -> tuple[TableHeader, dict[str, Any]]:
    """Return the header and the facts of a table from its first bytes, which have both.

    Raises:
        DamagedTableError: It is another file, or of another version, or the bytes end too early.
    """
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise DamagedTableError("expected a table of shards, found something else")
    header = TableHeader(*HEADER.unpack_from(data, 0))
    if header.version != VERSION:
        raise DamagedTableError(f"expected version {VERSION}, found version {header.version}")
    if header.facts_nbytes % 8 or header.facts_nbytes > min(
        MAX_FACTS_NBYTES, len(data) - HEADER.size
    ):
        raise DamagedTableError("expected the facts of its document, found none")
    try:
        facts = json.loads(data[HEADER.size : HEADER.size + header.facts_nbytes])
    except ValueError as error:
        raise DamagedTableError(f"expected the facts of its document, found {error}") from error
    found = (facts.get("document"), facts.get("schemes")) if isinstance(facts, dict) else (None,)
    if not all(isinstance(value, dict) for value in found):
        raise DamagedTableError("expected the facts of its document, found others")
    return header, facts


class TableFile:
    """A table of shards in a file, which is mapped unless it is small.

    Safe to share between threads and forked processes. Unpickling maps the file again; where the
    pickle may reach another machine, it has the bytes.

    Args:
        path: The file; "" for one without a name.
        data: Its bytes.

    Attributes:
        path: As passed.
        header: Its header.
        facts: What else is known: ``document`` is the JSON object without its shardlist; ``state``
            is the `State` of the file that it was made from; ``schemes`` has the first name of each
            scheme, under ``"."`` that of words, dots and slashes alone; ``keys`` has the keys that
            only some entries have.
        edges: Where shards begin, and the end of the last one, shape ``(num_shards + 1,)``; the
            counts of samples if some are not stated, -1 for those.

    Raises:
        DamagedTableError: It is not an intact table.
    """

    def __init__(self, path: str, data: FileBytes) -> None:
        self.path, self._data = path, data
        start = data[: start_nbytes(data)]
        self.header, self.facts = parse_start(start)
        header, sections = self.header, self.header.sections
        if not header.nbytes == len(data) == sections[-1]:
            raise DamagedTableError(f"expected {header.nbytes} bytes, found {len(data)}")
        edges, lengths, offsets, digests, crcs, self._names, _ = sections
        crc = zlib.crc32(data[crcs : self._names], zlib.crc32(start[CRC_START:]))
        if crc != header.crc:
            raise DamagedTableError("expected its header, found it damaged")
        n = header.num_shards
        self.edges: IntArray = np.frombuffer(data, "<i8", n + 1, edges)
        if zlib.crc32(self.edges.data) != header.edges_crc:
            raise DamagedTableError("expected its counts, found them damaged")
        if self.is_counted and (self.edges[0] or not _ascends(self.edges)):
            raise DamagedTableError("expected its counts, found them out of order")
        self._lengths: IntArray = np.frombuffer(data, "<i8", n, lengths)
        self._offsets: IntArray = np.frombuffer(data, "<i8", n + 1, offsets)
        self._digests = digests if header.flags & HAS_SHA256 else None
        self._crcs: npt.NDArray[np.uint32] = np.frombuffer(
            data, "<u4", (self._names - crcs) // 4, crcs
        )
        self._is_checked = bytearray(len(self._crcs))

    def __len__(self) -> int:
        return self.header.num_shards

    @property
    def is_counted(self) -> bool:
        """Whether the document states the number of samples of each shard."""
        return bool(self.header.flags & IS_COUNTED)

    @property
    def state(self) -> State:
        """The state of the document that the table was made from."""
        found = self.facts.get("state")
        return State(*found) if isinstance(found, list) and len(found) == 2 else State(-1, "")

    @property
    def keys(self) -> frozenset[str]:
        """Keys that entries have beside names, counts, lengths and SHA-256 digests."""
        return frozenset(self.facts.get("keys", ()))

    @cached_property
    def lengths(self) -> IntArray:
        """Length of each shard in bytes, -1 where it is not stated.

        Raises:
            SpecError: The column is damaged.
        """
        self._check_intact()
        if zlib.crc32(self._lengths.data) != self.header.nbytes_crc:
            raise self._damaged("the lengths of shards")
        return self._lengths

    def entry(self, number: int) -> dict[str, Any]:
        """Return the entry of a shard in the document.

        Raises:
            SpecError: It is damaged.
        """
        self._check_intact()
        if not self._is_checked[number // self.header.block_length]:
            self._check_block(number // self.header.block_length)
        start, stop = self._names + self._offsets[number : number + 2]
        name, mark, rest = self._data[int(start) : int(stop)].partition(b"\0")
        entry: dict[str, Any] = {"url": to_text(name)}
        count = int(self.edges[number])
        if self.is_counted:
            count = int(self.edges[number + 1]) - count
        if count >= 0:
            entry["nsamples"] = count
        if self._lengths[number] >= 0:
            entry["filesize"] = int(self._lengths[number])
        if self._digests is not None:
            place = self._digests + SHA256_NBYTES * number
            digest = self._data[place : place + SHA256_NBYTES]
            if any(digest):
                entry["sha256"] = digest.hex()
        if mark:
            try:
                entry.update(json.loads(rest))
            except ValueError as error:
                raise self._damaged(f"the entry of shard {number}") from error
        return entry

    def check(self) -> None:
        """Compare everything with its checksum.

        Raises:
            SpecError: Something is damaged.
        """
        _ = self.lengths
        for block in range(len(self._crcs)):
            self._check_block(block)
            self.release()

    def release(self) -> None:
        """Release the memory of a mapped file; the bytes are read again on demand."""
        if isinstance(self._data, mmap.mmap):
            advise(self._data, "DONTNEED")

    def _check_block(self, block: int) -> None:
        start = block * self.header.block_length
        stop = min(start + self.header.block_length, len(self))
        first, last = int(self._offsets[start]), int(self._offsets[stop])
        crc = zlib.crc32(self._lengths[start:stop].data)
        crc = zlib.crc32(self._offsets[start : stop + 1].data, crc)
        if self._digests is not None:
            place = self._digests
            crc = zlib.crc32(
                self._data[place + SHA256_NBYTES * start : place + SHA256_NBYTES * stop], crc
            )
        crc = zlib.crc32(self._data[self._names + first : self._names + last], crc)
        if crc != self._crcs[block]:
            raise self._damaged(f"the entries of shards {start} to {stop - 1}")
        self._is_checked[block] = 1

    def _check_intact(self) -> None:
        """Raise an error if the file was cut: touching mapped bytes beyond its end is fatal."""
        if isinstance(self._data, mmap.mmap) and self._data.size() != len(self._data):
            raise self._damaged("the bytes that it had when it was opened")

    def _damaged(self, what: str) -> SpecError:
        if not self.path:
            return SpecError(f"a temporary file: expected {what}, found it damaged; run again")
        return SpecError(
            f"{self.path}: expected {what}, found a damaged table of shards; move it away: the "
            "JSON document has the same shards, and a new table is made when it is opened"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path and passes_to_process():
            return _reopened, (self.path, self.header.document_sha256)
        return TableFile, (self.path, bytes(self._data))


def _ascends(edges: IntArray) -> bool:
    parts = (edges[at : at + _PART_LENGTH + 1] for at in range(0, len(edges), _PART_LENGTH))
    return all(bool((part[1:] >= part[:-1]).all()) for part in parts)


def open_table(path: str, *, is_own: bool = False) -> TableFile | None:
    """Return the table of shards at a path; None if there is no such file.

    Args:
        path: The file.
        is_own: Whether to ignore a file of another user.

    Raises:
        DamagedTableError: It is not an intact table.
    """
    data = read_or_map(path, is_own=is_own)
    return None if data is None else TableFile(path, data)


def _reopened(path: str, document_sha256: bytes) -> TableFile:
    """Open the table of a pickle.

    Raises:
        SpecError: The file is gone, or is another one.
    """
    try:
        table = open_table(path)
    except DamagedTableError:
        table = None
    if table is None or table.header.document_sha256 != document_sha256:
        found = "no such file" if table is None else "the table of another document"
        raise SpecError(
            f"{path}: expected the table of shards that the dataset was opened with, found {found};"
            " open the dataset again"
        )
    return table


_SHA256: Final = re.compile("[0-9a-f]{64}")
_IN_COLUMNS: Final = frozenset(("url", "nsamples", "num_samples", "filesize", "size", "sha256"))
_NO_DIGEST: Final = bytes(SHA256_NBYTES)
_PART_NBYTES: Final = 8 << 20


def write_table(
    file: IO[bytes],
    entries: Iterable[Any],
    document: Mapping[str, Any],
    sha256: bytes,
    state: State,
    folder: str | None = None,
) -> None:
    """Write the table of a document.

    Args:
        file: A new file, which can seek.
        entries: The shardlist, whose entries have been checked.
        document: The rest of the document; read after the entries.
        sha256: The digest of the document.
        state: Its length, and its time or tag.
        folder: Where columns are until all shards are known, with space for another such file; None
            for that of the file, or the system's folder of temporary files.
    """
    with ExitStack() as stack:
        writer = _TableWriter(stack, file, folder or folder_of(file))
        for entry in entries:
            writer.add(entry)
        writer.finish(document, sha256, state)


def publish_table(
    path: str,
    document: Mapping[str, Any],
    nbytes: int,
    sha256: bytes,
    mode: int,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Write the table of a document that was just published, beside it.

    Args:
        path: Path or URL of the document.
        document: The document.
        nbytes: Its length.
        sha256: Its digest.
        mode: As for `upload.publishing`.
        storage_options: As for `ShardListDataset`.
    """
    if upload.is_local(path):
        tag: str | None = str(os.stat(path).st_mtime_ns)
    else:
        tag = Fetcher(storage_options).head(path)[1]
    state = State(nbytes, tag or "")
    target = table_url(path)
    with upload.publishing(target, mode, storage_options=storage_options) as file:
        write_table(file, document["shardlist"], document, sha256, state)


class _TableWriter:
    """Writes a table of shards, with columns in temporary files until a stack ends."""

    def __init__(self, stack: ExitStack, file: IO[bytes], folder: str | None) -> None:
        self._file = file
        self._counts, self._lengths, self._offsets, self._digests, self._names = (
            stack.enter_context(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115
            for _ in range(5)
        )
        self._block: list[Mapping[str, Any]] = []
        self._crcs: list[int] = []
        self._num_shards = self._end = self._nbytes_crc = self._total = 0
        self._is_counted, self._has_sha256 = True, False
        self._schemes: dict[str, str] = {}
        self._keys: set[str] = set()
        self._offsets.write(bytes(8))

    def add(self, entry: Any) -> None:
        """Add the entry of a shard, an object or a URL, as the document has it."""
        self._block.append({"url": entry} if isinstance(entry, str) else entry)
        if len(self._block) == BLOCK_LENGTH:
            self._flush()

    def _flush(self) -> None:
        """Write a block of shards to the columns, and note its CRC."""
        block, self._block = self._block, []
        counts = self._column(block, "nsamples", "num_samples")
        self._total += sum(counts)
        self._is_counted &= min(counts) >= 0 and self._total < 1 << 63
        self._counts.write(np.array(counts, "<i8").tobytes())
        lengths = np.array(self._column(block, "filesize", "size"), "<i8").tobytes()
        names, digests = zip(*map(self._stored, block), strict=True)
        ends: IntArray = np.cumsum([self._end, *map(len, names)], dtype="<i8")
        self._end = int(ends[-1])
        joined, own = b"".join(names), b"".join(digests)
        # Digests are left out if no shard has one, which is known at the end: two CRCs until then.
        crc = zlib.crc32(ends.tobytes(), zlib.crc32(lengths))
        self._crcs += zlib.crc32(joined, crc), zlib.crc32(joined, zlib.crc32(own, crc))
        self._nbytes_crc = zlib.crc32(lengths, self._nbytes_crc)
        self._lengths.write(lengths)
        self._offsets.write(ends[1:].tobytes())
        self._digests.write(own)
        self._names.write(joined)
        self._num_shards += len(block)

    def _column(self, block: list[Mapping[str, Any]], key: str, other: str) -> list[int]:
        """Return the numbers under a key or its other name, -1 where none is stated."""
        found = (entry.get(key, entry.get(other)) for entry in block)
        return [-1 if value is None else operator.index(value) for value in found]

    def _stored(self, entry: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """Return the name of a shard with the rest of its entry, and its digest."""
        url, sha256, digest = entry["url"], entry.get("sha256"), _NO_DIGEST
        self._schemes.setdefault("." if urls.is_plain(url) else urls.scheme(url), url)
        rest = {}
        if not _IN_COLUMNS.issuperset(entry):
            rest = {key: value for key, value in entry.items() if key not in _IN_COLUMNS}
        if sha256 is not None:
            if _SHA256.fullmatch(sha256) and sha256 != _NO_DIGEST.hex():
                digest, self._has_sha256 = bytes.fromhex(sha256), True
            else:
                rest["sha256"] = sha256
        name = to_bytes(url)
        if rest:
            self._keys.update(rest)
            name += b"\0" + json.dumps(rest, separators=(",", ":")).encode("ascii")
        return name, digest

    def finish(self, document: Mapping[str, Any], sha256: bytes, state: State) -> None:
        """Write the file; see `write_table`."""
        if self._block:
            self._flush()
        facts = {
            "document": {key: value for key, value in document.items() if key != "shardlist"},
            "state": list(state),
            "schemes": self._schemes,
            "keys": sorted(self._keys),
        }
        text = json.dumps(facts, separators=(",", ":")).encode("ascii")
        text += b" " * (-len(text) % 8)
        if len(text) > MAX_FACTS_NBYTES:
            raise ValueError("expected a document whose shardlist has most of its bytes")
        file, flags = self._file, IS_COUNTED * self._is_counted + HAS_SHA256 * self._has_sha256
        file.write(bytes(HEADER.size) + text)
        edges_crc = self._write_edges()
        _copy(self._lengths, file)
        _copy(self._offsets, file)
        if self._has_sha256:
            _copy(self._digests, file)
        crcs = np.array(self._crcs[self._has_sha256 :: 2], "<u4").tobytes()
        file.write(crcs)
        _copy(self._names, file)
        rest = HEADER.pack(
            *(MAGIC, VERSION, 0, file.tell(), self._num_shards, self._end, len(text)),
            *(state.nbytes, sha256, edges_crc, self._nbytes_crc, flags, BLOCK_LENGTH),
        )
        crc = zlib.crc32(crcs, zlib.crc32(text, zlib.crc32(rest[CRC_START:])))
        file.seek(0)
        file.write(rest[: CRC_START - 4] + crc.to_bytes(4, "little") + rest[CRC_START:])

    def _write_edges(self) -> int:
        """Write where shards begin, or their counts if some are not stated; return the CRC."""
        crc, end = 0, np.int64(0)
        self._counts.seek(0)
        while data := self._counts.read(_PART_NBYTES):
            part: npt.NDArray[np.int64] = np.frombuffer(data, "<i8")
            if self._is_counted:
                ends = np.cumsum(part) + end
                part, end = ends - part, ends[-1]
            crc = zlib.crc32(part.tobytes(), crc)
            self._file.write(part.tobytes())
        self._file.write(end.tobytes())
        return zlib.crc32(end.tobytes(), crc)


def _copy(column: IO[bytes], file: IO[bytes]) -> None:
    column.seek(0)
    shutil.copyfileobj(column, file, _PART_NBYTES)
