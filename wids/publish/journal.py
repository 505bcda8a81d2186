"""Journals: files that only grow, from which interrupted work is resumed.

All work on the shards of a dataset keeps a journal of the same form: the plan of the work, and the
descriptions of complete shards. `journal_parts` divides the work.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import IO, Any, Final, TypeVar

import numpy as np

from wids.publish.describe import ShardRecord
from wids.publish.record_places import RecordPlaces
from wids.shards.tars.index import ShardIndex, TarIdentity
from wids.shards.tars.member_names import KeySplit
from wids.storage import locks
from wids.storage.digests import file_digest
from wids.storage.lazy_sequence import chosen
from wids.storage.transport import urls

_RECORD: Final = struct.Struct("<QQI")
_MAX_ATTEMPTS: Final = 10
_NUM_KEYS: Final = 1 << 63
_MAGIC: Final = b"wids journal 2\n"

Task = tuple[str, KeySplit]
"""The absolute path or URL of a shard, and the rule that groups its members into samples."""

Item = TypeVar("Item")


class Journal:
    """The plan of some work and the descriptions of its shards, in a file that only grows.

    A record is the lengths and the checksum of its two parts, then the parts: a JSON object and an
    index. The object has the plan, or describes a shard. An incomplete record at the end, left by
    an interruption, is cut off. Records stay in the file, and only their places are in memory, so
    that a dataset may have millions of shards. Use it as a context manager.

    Args:
        path: The file, created if it does not exist and deleted at the end if it has no record;
            None for a temporary one.
        folder: Where to put a temporary file; None for the system's folder of temporary files.
        mode: The permissions of a new file, without what the umask removes.

    Attributes:
        plan: Digest of what the work is made from; None where it was not noted.

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
        self.plan: str | None = None
        self._path = None if path is None else os.path.abspath(os.fspath(path))
        # Where the record of each shard begins, by a hash of the task.
        self._places = RecordPlaces()
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
            place, end = end, self._file.tell()
            self._note(json.loads(body[:head_nbytes]), place)
            self._file.seek(end)
        self._file.seek(end)
        self._file.truncate()

    def _note(self, fields: dict[str, Any], place: int) -> None:
        """Take a record that was read, unless it describes a shard that has changed."""
        # Earlier versions stored a plan as the description of a shard whose digest is empty.
        if "plan" in fields or fields["sha256"] == "":
            self.plan = fields.get("plan", fields.get("source"))
            return
        record = _record_of(fields)
        if record.identity is None or _is_unchanged(record, record.identity):
            self._places[self._find((record.url, record.key_split))[0]] = place

    def __contains__(self, task: Task) -> bool:
        return self.get(task) is not None

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Task]:
        for record in map(self._read, self._places):
            yield record.url, record.key_split

    def clear(self) -> None:
        """Delete all records."""
        self._file.seek(len(_MAGIC))
        self._file.truncate()
        self._places.clear()
        self.plan = None

    def is_of(self, plan: str) -> bool:
        """Whether the journal has a plan, which must be this one.

        Raises:
            FileExistsError: It has another one.
        """
        if self.plan not in (None, plan):
            raise self.of_other_plan()
        return self.plan is not None

    def of_other_plan(self) -> FileExistsError:
        """Return the error for a journal of other work."""
        return FileExistsError(
            f"{self._path}: expected a journal of these shards and options, found one of others; "
            "move it away, or choose another output"
        )

    def begin(self, plan: str) -> None:
        """Note what the work is made from, before the first shard."""
        self._append({"plan": plan}, b"")
        self.plan = plan

    def record(self, task: Task, *, has_blob: bool = False) -> ShardRecord:
        """Return the description of a shard, with its index or an empty ``blob``."""
        record = self._find(task, has_blob=has_blob)[1]
        if record is None:
            raise KeyError(task)
        return record

    def get(self, task: Task) -> ShardRecord | None:
        """Return the description of a shard with an empty ``blob``, or None."""
        return self._find(task)[1]

    def missing(
        self,
        items: Sequence[Item],
        task_of: Callable[[Item], Task],
        is_enough: Callable[[Item, ShardRecord], bool],
    ) -> Sequence[Item]:
        """Return the items whose shards are not described, or not as they have to be."""
        if not len(self):
            return items
        numbers = (
            number
            for number, item in enumerate(items)
            if (record := self.get(task_of(item))) is None or not is_enough(item, record)
        )
        return chosen(items, np.fromiter(numbers, np.int64))

    def _find(self, task: Task, *, has_blob: bool = False) -> tuple[int, ShardRecord | None]:
        """Return the key of a task, and its record if there is one."""
        key = _hash(*task)
        while (place := self._places.get(key)) is not None:
            record = self._read(place, has_blob=has_blob)
            if (record.url, record.key_split) == task:
                return key, record
            key = (key + 1) % _NUM_KEYS  # another task has this hash
        return key, None

    def _read(self, place: int, *, has_blob: bool = False) -> ShardRecord:
        """Return the description at a place."""
        self._file.seek(place)
        head_nbytes, blob_nbytes, _ = _RECORD.unpack(self._file.read(_RECORD.size))
        fields = json.loads(self._file.read(head_nbytes))
        return _record_of(fields, self._file.read(blob_nbytes) if has_blob else b"")

    def add(self, record: ShardRecord) -> None:
        """Append the description of a shard."""
        fields = {name: value for name, value in vars(record).items() if name != "blob"}
        if not fields["cut_short"]:  # as in nearly all records, and all of earlier versions
            del fields["cut_short"]
        key, _ = self._find((record.url, record.key_split))
        self._places[key] = self._append(fields, record.blob)

    def _append(self, fields: dict[str, Any], blob: bytes) -> int:
        head = json.dumps(fields).encode("ascii")
        place = self._file.seek(0, os.SEEK_END)
        crc = zlib.crc32(blob, zlib.crc32(head))
        self._file.write(_RECORD.pack(len(head), len(blob), crc) + head + blob)
        self._file.flush()
        return place

    def index(self, task: Task) -> tuple[ShardIndex, int]:
        """Return the index of a shard, and its length in bytes."""
        record = self.record(task, has_blob=True)
        found = record.index()
        if found is None:
            advice = "; delete the journal and run again" if self._path else ""
            raise OSError(
                f"{self._path or 'the temporary journal'}: expected the index of "
                f"{urls.redact(record.url)}, found damaged bytes{advice}"
            )
        return found, record.nbytes

    def indexes(self, tasks: Iterable[Task]) -> Iterator[tuple[str, int, ShardIndex]]:
        """Yield base name, length and index of these shards, as a pack takes them."""
        for task in tasks:
            found, nbytes = self.index(task)
            yield os.path.basename(urls.path_of(task[0])), nbytes, found

    def rename(self, path: str) -> None:
        """Rename the file to its final name, after the last record."""
        # Windows does not rename or delete a file that is open. The lock is held by another
        # descriptor: no process may open the file between its last record and its new name.
        self._file.close()
        os.replace(self._path or "", path)

    def delete(self) -> None:
        """Delete the file, when the work is complete or nothing was done."""
        self._file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._path or "")

    def close(self) -> None:
        """Close the file; delete it if it has no record."""
        try:
            # Judged by its length: an interruption may come after a record was written and before
            # it was noted.
            is_kept = self._path is None or self._file.closed
            if not is_kept and os.path.getsize(self._file.fileno()) <= len(_MAGIC):
                self.delete()
        finally:
            self._stack.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_journal(path: str) -> bool:
    """Whether a file begins as journals do."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def _hash(url: str, key_split: str) -> int:
    text = f"{key_split}\0{url}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") % _NUM_KEYS


def _record_of(fields: dict[str, Any], blob: bytes = b"") -> ShardRecord:
    """Return the description of a shard from the object in a record."""
    if fields["identity"] is not None:
        fields["identity"] = TarIdentity(*fields["identity"])
    return ShardRecord(**fields, blob=blob)


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
    """Lock a journal; return False if its previous owner has renamed or deleted it."""
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
