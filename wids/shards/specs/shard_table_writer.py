"""Write a table of shards, in memory that does not grow with their number.

The counterpart of `shard_table`; specs/shard-table.md describes the file byte by byte.
"""

from __future__ import annotations

import json
import operator
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from wids.shards.specs.shard_table import (
    BLOCK_LENGTH,
    CRC_START,
    HAS_SHA256,
    HEADER,
    IS_COUNTED,
    MAGIC,
    MAX_FACTS_NBYTES,
    SHA256_NBYTES,
    VERSION,
    State,
    table_url,
)
from wids.shards.tars.member_names import to_bytes
from wids.storage import upload
from wids.storage.array_types import IntArray
from wids.storage.fetch import Fetcher
from wids.storage.transport import urls
from wids.storage.unnamed_files import folder_of

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
) -> None:
    """Write the table of a document.

    Args:
        file: A new file, which can seek.
        entries: The shardlist, whose entries have been checked.
        document: The rest of the document; read after the entries.
        sha256: The digest of the document.
        state: Its length, and its time or tag.
    """
    with TableWriter(file, folder_of(file)) as writer:
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


class TableWriter:
    """Writes a table of shards; use it as a context manager.

    Args:
        file: A new file, which can seek.
        folder: Where columns are until all shards are known, with space for another such file; None
            for the system's folder of temporary files.
    """

    def __init__(self, file: IO[bytes], folder: str | None) -> None:
        self._file = file
        self._stack = ExitStack()
        self._counts, self._lengths, self._offsets, self._digests, self._names = (
            self._stack.enter_context(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115
            for _ in range(5)
        )
        self._block: list[Mapping[str, Any]] = []
        self._crcs: list[int] = []
        self._num_shards = self._end = self._nbytes_crc = self._total = 0
        self._is_counted, self._has_sha256 = True, False
        self._schemes: dict[str, str] = {}
        self._keys: set[str] = set()
        self._offsets.write(bytes(8))

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

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
        names, own = self._stored_block(block)
        ends: IntArray = np.cumsum([self._end, *map(len, names)], dtype="<i8")
        self._end = int(ends[-1])
        joined = b"".join(names)
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

    def _stored_block(self, block: list[Mapping[str, Any]]) -> tuple[list[bytes], bytes]:
        """Return the names of shards with the rest of their entries, and their digests."""
        names = [entry["url"] for entry in block]
        digests = [entry.get("sha256") or "" for entry in block]
        own = _digests_of(digests) if all(map(_IN_COLUMNS.issuperset, block)) else None
        if own is None or not all(map(urls.is_plain, names)):
            found = [self._stored(entry) for entry in block]
            return [name for name, _ in found], b"".join(digest for _, digest in found)
        # Nearly always, and in half the time.
        self._has_sha256 = True
        self._schemes.setdefault(".", names[0])
        return [name.encode() for name in names], own

    def _stored(self, entry: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """Return the name of a shard with the rest of its entry, and its digest."""
        url, sha256, digest = entry["url"], entry.get("sha256"), _NO_DIGEST
        self._schemes.setdefault("." if urls.is_plain(url) else urls.scheme(url), url)
        if sha256 is not None and _SHA256.fullmatch(sha256):
            digest = bytes.fromhex(sha256)
            if any(digest):
                self._has_sha256, sha256 = True, None
        name = to_bytes(url)
        if sha256 is None and _IN_COLUMNS.issuperset(entry):
            return name, digest
        rest = {key: value for key, value in entry.items() if key not in _IN_COLUMNS}
        if sha256 is not None:
            rest["sha256"] = sha256
        if not rest:
            return name, digest
        self._keys.update(rest)
        return name + b"\0" + json.dumps(rest, separators=(",", ":")).encode("ascii"), digest

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


def _digests_of(digests: list[str]) -> bytes | None:
    """Return the bytes of digests; None unless each has 64 lower-case digits, not all 0."""
    joined = "".join(digests)
    try:
        own = bytes.fromhex(joined)
    except ValueError:
        return None
    is_each = set(map(len, digests)) == {2 * SHA256_NBYTES} and own.hex() == joined
    return own if is_each and np.frombuffer(own, "u1").reshape(-1, 32).any(1).all() else None


def _copy(column: IO[bytes], file: IO[bytes]) -> None:
    column.seek(0)
    shutil.copyfileobj(column, file, _PART_NBYTES)
