"""Descriptions of shards ↔ a file that only grows, so that interrupted work can be resumed.

Stores what `describe` found and returns it. Does not know how shards are read, or what for.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from typing import IO, Final

from wids.describing.describe import ShardRecord
from wids.files import locks
from wids.files.digests import file_digest
from wids.indexes import index_file
from wids.tars.index import ShardIndex, TarIdentity
from wids.tars.names import KeySplit
from wids.transport import urls

_RECORD: Final = struct.Struct("<QQI")
_MAX_ATTEMPTS: Final = 10
_MAGIC: Final = b"wids journal 2\n"

Task = tuple[str, KeySplit]
"""The absolute path or URL of a shard, and the rule that groups its members into samples."""


class Journal:
    """Descriptions of shards, in a file that only grows.

    A record is the lengths and the checksum of its two parts, then the parts: a JSON object and an
    index. An incomplete record at the end, as an interruption leaves it, is cut off. Indexes stay
    in the file, so that a dataset may have any number of shards. Use it as a context manager.

    Args:
        path: The file, created if it does not exist and deleted at the end if it has no record;
            None for a temporary one.
        folder: Where to put a temporary file; None for the system's folder of temporary files.
        mode: The permissions of a new file, without what the umask removes.

    Raises:
        FileExistsError: The file is not a journal.
        OSError: Another process is writing to it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        folder: str | None = None,
        mode: int = 0o666,
    ) -> None:
        self._path = None if path is None else os.path.abspath(os.fspath(path))
        self._records: dict[Task, tuple[ShardRecord, int, int]] = {}
        self._stack = ExitStack()
        try:
            self._file = self._stack.enter_context(_opened(self._path, folder, mode))
            if self._path is not None:
                self._load(self._path)
        except BaseException:
            self._stack.close()
            raise

    def _load(self, path: str) -> None:
        magic = self._file.read(len(_MAGIC))
        if not magic:
            self._file.write(_MAGIC)
        elif magic != _MAGIC:
            raise FileExistsError(
                f"{path}: expected a journal of an interrupted run, found another file, or one of "
                "another version of wids; move it away, or choose another name"
            )
        end = len(_MAGIC)
        while len(start := self._file.read(_RECORD.size)) == _RECORD.size:
            head_nbytes, blob_nbytes, crc = _RECORD.unpack(start)
            if head_nbytes + blob_nbytes > os.fstat(self._file.fileno()).st_size:
                break
            body = self._file.read(head_nbytes + blob_nbytes)
            if len(body) != head_nbytes + blob_nbytes or zlib.crc32(body) != crc:
                break
            fields = json.loads(body[:head_nbytes])
            if fields["identity"] is not None:
                fields["identity"] = TarIdentity(*fields["identity"])
            record = ShardRecord(**fields, blob=b"")
            blob_start = end + _RECORD.size + head_nbytes
            end = self._file.tell()
            if record.identity is None or _is_unchanged(record, record.identity):
                self._records[record.url, record.key_split] = (record, blob_start, end)
        self._file.seek(end)
        self._file.truncate()

    def __contains__(self, task: Task) -> bool:
        return task in self._records

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._records)

    def clear(self) -> None:
        """Delete all records."""
        self._file.seek(len(_MAGIC))
        self._file.truncate()
        self._records.clear()

    def record(self, task: Task) -> ShardRecord:
        """Return the description of a shard, with an empty ``blob``."""
        return self._records[task][0]

    def with_blob(self, task: Task) -> ShardRecord:
        """Return the description of a shard with its index."""
        record, start, stop = self._records[task]
        self._file.seek(start)
        return replace(record, blob=self._file.read(stop - start))

    def add(self, record: ShardRecord) -> None:
        """Append the description of a shard."""
        facts = replace(record, blob=b"")
        fields = asdict(facts)
        del fields["blob"]
        head = json.dumps(fields).encode("ascii")
        self._file.seek(0, os.SEEK_END)
        crc = zlib.crc32(record.blob, zlib.crc32(head))
        self._file.write(_RECORD.pack(len(head), len(record.blob), crc) + head + record.blob)
        self._file.flush()
        end = self._file.tell()
        self._records[record.url, record.key_split] = (facts, end - len(record.blob), end)

    def indexes(self, tasks: Iterable[Task]) -> Iterator[tuple[str, int, ShardIndex]]:
        """Yield base name, length and index of these shards, as a pack takes them."""
        for url, key_split in tasks:
            record = self.with_blob((url, key_split))
            blob = record.blob
            found = index_file.parse(blob, 0, len(blob), TarIdentity(record.nbytes), key_split)
            if found is None:
                advice = "; delete the journal and run again" if self._path else ""
                raise OSError(
                    f"{self._path or 'the temporary journal'}: expected the index of "
                    f"{urls.redact(url)}, found damaged bytes{advice}"
                )
            yield os.path.basename(urls.path_of(url)), record.nbytes, found

    def close(self) -> None:
        """Close the file; delete it if it has no record."""
        try:
            # Judged by its length: an interruption may come after a record was written and before
            # it was noted.
            if self._path is not None and os.path.getsize(self._file.fileno()) <= len(_MAGIC):
                with suppress(FileNotFoundError):
                    os.unlink(self._path)
        finally:
            self._stack.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened(path: str | None, folder: str | None, mode: int) -> AbstractContextManager[IO[bytes]]:
    if path is None:
        return tempfile.TemporaryFile(dir=folder)
    return _locked(path, mode)


@contextmanager
def _locked(path: str, mode: int) -> Iterator[IO[bytes]]:
    """Yield an open journal that no other process writes to."""
    for _ in range(_MAX_ATTEMPTS):
        with ExitStack() as stack:
            file = stack.enter_context(
                open(
                    path, "r+b", opener=lambda name, flags: os.open(name, flags | os.O_CREAT, mode)
                )
            )
            # Not inherited by workers, who may outlive this process.
            if _lock(stack, file, os.path.realpath(path)):
                yield file
                return
    raise OSError(f"{path}: others renamed or deleted it {_MAX_ATTEMPTS} times meanwhile")


def _lock(stack: ExitStack, file: IO[bytes], path: str) -> bool:
    """Lock a journal; return False if its last owner has renamed or deleted it before."""
    try:
        if stack.enter_context(locks.holding(path)) is False:
            raise OSError(f"{path}: another process is describing these shards")
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _is_unchanged(record: ShardRecord, identity: TarIdentity) -> bool:
    """Whether a local shard is unchanged; one that was copied or touched is hashed."""
    path = urls.local_path(record.url)
    try:
        found = TarIdentity.of_file(os.stat(path))
        return found.fits(identity) or (
            found.nbytes == record.nbytes and file_digest(path, "sha256") == record.sha256
        )
    except OSError:
        return False
