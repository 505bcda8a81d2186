"""Keep journals: files that only grow, from which interrupted work is resumed, whole or in parts.

A `Journal` has the plan of the work on the shards of a dataset, and the descriptions of complete
shards. All such work keeps one of the same form.

A `JobPart` is done by an independent process, on any machine, with a journal of its own. The merged
journals equal that of an undivided run whose shards are all described, so one function publishes
both.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any, Final, TypeVar

import numpy as np

from wids.publish.describe import ShardRecord
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.index import ShardIndex, TarIdentity
from wids.storage import locks
from wids.storage.arrays import IntArray, chosen
from wids.storage.files import file_digest, named_if_full
from wids.storage.sizes import first_of
from wids.storage.transport import urls

_MIN_RECENT: Final = 1 << 12
"""Least keys in a dict, which takes ten times the memory, before they are sorted into arrays."""
_SHARE: Final = 64
"""As many keys of the arrays, or more, for each in the dict, so that sorting costs little."""


class RecordPlaces:
    """A map from keys below 2**63 to places in a file."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all places."""
        self._recent: dict[int, int] = {}
        self._keys: IntArray = np.empty(0, np.int64)  # ascending
        self._places: IntArray = np.empty(0, np.int64)

    def get(self, key: int) -> int | None:
        """Return the place of a key; None for an unknown one."""
        place = self._recent.get(key)
        if place is None:
            at = int(np.searchsorted(self._keys, key))
            if at < len(self._keys) and self._keys[at] == key:
                place = int(self._places[at])
        return place

    def __setitem__(self, key: int, place: int) -> None:
        self._recent[key] = place
        if len(self._recent) >= max(_MIN_RECENT, len(self._keys) // _SHARE):
            self._sort()

    def __len__(self) -> int:
        self._sort()
        return len(self._keys)

    def __iter__(self) -> Iterator[int]:
        """Yield the places, in their order."""
        self._sort()
        return map(int, np.sort(self._places))

    def _sort(self) -> None:
        """Move the recent keys to the arrays."""
        if not self._recent:
            return
        count = len(self._recent)
        keys = np.concatenate((np.fromiter(self._recent, np.int64, count), self._keys))
        places = np.fromiter(self._recent.values(), np.int64, count)
        # Of a key that is in both, the first place is kept, which is the recent one.
        self._keys, first = np.unique(keys, return_index=True)
        self._places = np.concatenate((places, self._places))[first]
        self._recent.clear()


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
        self, path: str | os.PathLike[str] | None, *, folder: str | None = None, mode: int = 0o666
    ) -> None:
        self.plan: str | None = None
        self._path = None if path is None else os.path.abspath(os.fspath(path))
        self._name = self._path or folder or tempfile.gettempdir()
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
        with named_if_full(self._name):
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
        """Yield base name, length and index of these shards, as a dataset index takes them."""
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


@contextmanager
def _opened(path: str | None, folder: str | None, mode: int) -> Iterator[IO[bytes]]:
    """Yield an open journal that no other process writes to."""
    if path is None:
        with tempfile.TemporaryFile(dir=folder) as file:
            yield file
        return

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_CREAT, mode)

    for _ in range(_MAX_ATTEMPTS):
        with ExitStack() as stack:
            # Not inherited by workers, who may outlive this process.
            opened = stack.enter_context(open(path, "r+b", opener=opener))
            if _lock(stack, opened, os.path.realpath(path)):
                yield opened
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


_UNFINISHED: Final = ".unfinished"


@dataclass(frozen=True)
class JobPart:
    """One part of several.

    Attributes:
        number: Its number, from 1 on.
        count: How many parts there are.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> JobPart:
        """Return the part that ``"3/16"`` names; raise ValueError for other texts."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(
                f"expected K/N with K from 1 to N, such as 1/16 to 16/16, found {text!r}"
            )
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def of(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return the items of this part: each item is in one part, and lengths differ by 1."""
        start, stop = (n * len(items) // self.count for n in (self.number - 1, self.number))
        return items[start:stop]

    def path(self, journal: str) -> str:
        """Return the path of its complete journal, by that of the journal of all parts."""
        return f"{journal}-{self.number:0{len(str(self.count))}}-of-{self.count}"


def path_of_part(path: str, part: JobPart) -> str:
    """Return the path of the journal of a part: the complete one if it exists, else the unfinished.

    A complete part is opened again, since shards may have changed.
    """
    complete = part.path(path)
    return complete if os.path.exists(complete) else complete + _UNFINISHED


@contextmanager
def part_journal(path: str, part: JobPart, plan: str, mode: int = 0o666) -> Iterator[Journal]:
    """Open the journal of a part; it gets its final name when the block ends.

    Args:
        path: Path of the journal of all parts.
        part: The part.
        plan: Digest of what all parts are made from.
        mode: The permissions of a new journal, without what the umask removes.

    Raises:
        FileExistsError: There is a journal of this part with another plan, or another file.
        OSError: Another process works on this part.
    """
    with _opened_part(path, part, mode) as log:
        if not log.is_of(plan):
            log.begin(plan)
        yield log
        # Under its lock, or another process of this part would write to it under its old name.
        log.rename(part.path(path))


def _opened_part(path: str, part: JobPart, mode: int) -> Journal:
    while True:
        opened = path_of_part(path, part)
        log = Journal(opened, mode=mode)
        if path_of_part(path, part) == opened:
            return log
        log.close()  # another process has completed the part: this one is empty, and is deleted


def has_parts(path: str) -> bool:
    """Whether the journal of all parts, or of any complete part, exists."""
    return os.path.exists(path) or bool(_complete_parts(path))


def collect_parts(path: str, plan: str, tasks: Sequence[Task], mode: int = 0o666) -> None:
    """Copy the descriptions of all parts into the journal of all parts, and delete theirs.

    Args:
        path: Path of the journal of all parts.
        plan: Digest of what all parts are made from.
        tasks: All that is described, in order.
        mode: As for `part_journal`.

    Raises:
        FileNotFoundError: A part is missing.
        FileExistsError: A part, or the journal of all parts, is of another plan.
        ValueError: A shard has changed since a part described it.
    """
    with Journal(path, mode=mode) as log:
        is_planned = log.is_of(plan)
        # After a kill, all may have been copied, and some parts deleted.
        is_copied = is_planned and all(task in log for task in tasks)
        for part in [] if is_copied else _found_parts(path):
            with Journal(part.path(path)) as found:
                if not found.is_of(plan):
                    raise found.of_other_plan()
                _copy(found, log, part, part.of(tasks))
        if not is_planned:
            log.begin(plan)
    for part in _complete_parts(path):
        with Journal(part.path(path)) as found:
            found.is_of(plan)
            found.delete()


def _copy(source: Journal, log: Journal, part: JobPart, tasks: Sequence[Task]) -> None:
    for task in tasks:
        if task not in source:
            raise ValueError(
                f"{urls.redact(task[0])}: expected it as part {part} found it, but it has changed "
                "since; run that part again"
            )
        if log.get(task) != source.record(task):
            log.add(source.record(task, has_blob=True))


def _found_parts(path: str) -> list[JobPart]:
    """Return all parts in order.

    Raises:
        FileNotFoundError: One is missing.
        FileExistsError: There are parts of several divisions.
    """
    found = _complete_parts(path)
    counts = sorted({part.count for part in found})
    if len(counts) > 1:
        raise FileExistsError(
            f"{path}: expected the parts of one division, found parts of {counts[0]} and of "
            f"{counts[1]}; move away those that are not wanted"
        )
    if not found:
        raise FileNotFoundError(
            f"{path}: expected parts to merge, such as {JobPart(1, 16).path(path)}, found none; "
            "run each part first, --part 1/16 to --part 16/16"
        )
    parts = [JobPart(number, counts[0]) for number in range(1, counts[0] + 1)]
    missing = [part for part in parts if part not in found]
    if missing:
        listed = first_of(list(map(str, missing)), 8)
        raise FileNotFoundError(
            f"{path}: expected all {counts[0]} parts, found {len(found)}; missing: {listed}: run "
            "these again, and then merge"
        )
    return parts


def _complete_parts(path: str) -> list[JobPart]:
    folder, name = os.path.split(path)
    pattern = re.compile(re.escape(name) + r"-(\d+)-of-(\d+)")
    matches = filter(None, map(pattern.fullmatch, os.listdir(folder)))
    return [JobPart(int(match[1]), int(match[2])) for match in matches]
