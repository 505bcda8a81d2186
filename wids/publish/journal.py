"""Keep journals: folders with a record of each finished shard, from which work is resumed.

The journal of an output ``X`` is the folder ``X.partial``. Whoever finishes a shard writes its
record, whole, under a name that is a digest of the shard and of what it was made from. So a record
is true whichever run wrote it, and resuming, working in parts on several machines and merging are
the same: whatever has no record is still to be done.

Work in one piece locks the journal, and each part of divided work locks its number. On file systems
whose locks do not work, or not between machines, two runs may do the same work: both write the same
bytes under the same names. The file ``plan`` keeps runs of different work apart. It is created
before the first record, by one of them only, and deleted first when the work is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from typing import IO, Final, TypeVar

import numpy as np

from wids.publish.describe import ShardRecord
from wids.shards.tars.headers import KeySplit
from wids.shards.tars.index import ShardIndex, TarIdentity
from wids.storage import locks
from wids.storage.arrays import chosen
from wids.storage.files import file_digest, named_if_full, replacing
from wids.storage.sizes import count_text, first_of
from wids.storage.transport import urls

_MAX_ATTEMPTS: Final = 10
_NUM_LOOKS: Final = 3
_LOOK_S: Final = 0.02
_PART: Final = re.compile(r"part-(\d+)-of-(\d+)")
_RECORD: Final = re.compile(r"[0-9a-f]{32}")
_PLAN: Final = "plan"
_LOCK: Final = "lock"
_OWN: Final = re.compile(rf"{_PLAN}|{_LOCK}|{_RECORD.pattern}|{_PART.pattern}|\..*\.tmp")

APPENDING: Final = "appending "
"""The beginning of the plans of writers that append, whose shards others may add instead."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class ShardTask:
    """One shard to write, or to describe.

    Attributes:
        path: Its absolute path, or its URL.
        nbytes: Its length in bytes, or a little more; None where that is not known.
        num_samples: How many samples it will have; None where that is not known.
        source: Digest of what it is made from; ``""`` for a shard that exists.
        key_split: The rule that groups its members into samples.
    """

    path: str
    nbytes: int | None
    num_samples: int | None
    source: str
    key_split: KeySplit = field(default="first", kw_only=True)


AnyTask = TypeVar("AnyTask", bound=ShardTask)


@dataclass(frozen=True)
class JobPart:
    """One part of several, which an independent process does, on any machine.

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


@dataclass(frozen=True)
class Journal:
    """The plan of some work, and the descriptions of its finished shards.

    A record is a file: the checksums of its two parts, then the parts, a line of JSON and the index
    of the shard. Nothing of it is in memory, so a dataset may have any number of shards.

    Attributes:
        path: The folder.
        mode: The permissions of new files, without what the umask removes; the folder can be
            searched by those who may read them.
    """

    path: str
    mode: int = 0o666

    def __fspath__(self) -> str:
        return self.path

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from the journal while the block runs.

        The folder is made if it is missing, and deleted at the end if nothing was begun.

        Raises:
            FileExistsError: Something else has its name.
            OSError: Another process is at work.
        """
        with self._locked(_LOCK, "on these shards"):
            try:
                yield
            finally:
                if self.plan is None and not self.has_records:
                    self.delete()

    @contextmanager
    def part(self, part: JobPart, plan: str) -> Iterator[None]:
        """Keep others from a part of the work, and from all of it, while the block runs.

        Args:
            part: The part.
            plan: What all parts do.

        Raises:
            FileExistsError: The journal is of other work, or something else has its name.
            OSError: Another process is at work on this part, or on all of it.
        """
        with (
            self._locked(_LOCK, "on all of these shards", is_shared=True),
            self._locked(f"part-{part.number}-of-{part.count}", f"on part {part}"),
        ):
            self.begin(plan)
            yield

    def abandon(self) -> None:
        """Delete the folder if no shard is finished, unless others are at work in it."""
        with suppress(OSError), self._locked(_LOCK, "on these shards") as is_held:
            if is_held and not self.has_records:
                self.delete()

    @contextmanager
    def _locked(self, name: str, where: str, *, is_shared: bool = False) -> Iterator[bool | None]:
        path = os.path.join(self.path, name)
        for attempt in range(_MAX_ATTEMPTS):
            with ExitStack() as stack:
                # After the lock: NFS keeps a file that is deleted while it is open.
                stack.callback(self._remove_if_empty)
                try:
                    self._make_folder()
                    with open(path, "a+b", opener=self._opened) as file:
                        is_held = stack.enter_context(locks.holding(path, is_shared=is_shared))
                        if is_held is False and is_shared and attempt < _NUM_LOOKS:
                            time.sleep(_LOOK_S)  # a part that failed abandons its plan
                            continue
                        if is_held is False:
                            raise OSError(f"{self.path}: another process is at work {where}")
                        is_same = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
                except FileNotFoundError:
                    if not os.path.isdir(os.path.dirname(self.path)):
                        raise
                    continue  # another process has completed the work meanwhile, as below
                if is_same:
                    yield is_held
                    return
        raise OSError(f"{self.path}: others deleted it {_MAX_ATTEMPTS} times meanwhile")

    def _remove_if_empty(self) -> None:
        with suppress(OSError):
            os.rmdir(self.path)

    def _opened(self, path: str, flags: int) -> int:
        return os.open(path, flags, self.mode)

    def _make_folder(self) -> None:
        is_new = True
        try:
            os.mkdir(self.path, self.mode | (self.mode >> 2 & 0o111))
        except FileExistsError:
            is_new = False
        # Another process may have deleted it meanwhile.
        if not is_new and not is_journal(self.path) and os.path.lexists(self.path):
            raise FileExistsError(
                f"{self.path}: expected a journal of an interrupted run, found something else; "
                "move it away, or choose another name"
            )

    # The plan.

    @property
    def plan(self) -> str | None:
        """Digest of what the work is made from; None where it was not noted."""
        with suppress(FileNotFoundError), open(os.path.join(self.path, _PLAN), "rb") as file:
            return file.read().decode("ascii", "replace")
        return None

    def begin(self, plan: str) -> None:
        """Note what the work is made from, before the first shard.

        Raises:
            FileExistsError: It is another plan that was noted.
        """
        path = os.path.join(self.path, _PLAN)
        with suppress(FileExistsError), replacing(path, self.mode, is_new=True) as file:
            file.write(plan.encode("ascii"))
        self.check_plan(plan)

    def check_plan(self, plan: str) -> None:
        """Raise FileExistsError if the journal has another plan."""
        if self.plan not in (None, plan):
            raise FileExistsError(
                f"{self.path}: expected a journal of these shards and options, found one of "
                "others; move it away, or choose another output"
            )

    # The records.

    def add(self, record: ShardRecord) -> None:
        """Write the record of a shard."""
        fields = {name: value for name, value in vars(record).items() if name != "blob"}
        head = json.dumps(fields).encode("ascii") + b"\n"
        sums = b"%08x %08x\n" % (zlib.crc32(head), zlib.crc32(record.blob))
        self._store(_name(record.url, record.key_split, record.source), sums + head + record.blob)

    def find(self, task: ShardTask, *, is_whole: bool = False) -> ShardRecord | None:
        """Return the record of a shard, None if there is no valid one.

        Args:
            task: The shard.
            is_whole: Whether to read and check its index; otherwise ``blob`` is empty.
        """
        return self._read(_name(task.path, task.key_split, task.source), is_whole=is_whole)

    def record(self, task: ShardTask, *, is_whole: bool = False) -> ShardRecord:
        """Return the record of a finished shard; for arguments see `find`.

        Raises:
            OSError: There is none, or its bytes are damaged.
        """
        record = self.find(task, is_whole=is_whole)
        if record is None:
            raise self._damaged(task)
        return record

    def missing(
        self,
        tasks: Sequence[AnyTask],
        is_enough: Callable[[ShardRecord], bool] = lambda _: True,
    ) -> Sequence[AnyTask]:
        """Return the tasks without a record, or whose shard has changed.

        Args:
            tasks: The tasks.
            is_enough: Whether a record of an unchanged shard will do.
        """
        if not self.has_records:
            return tasks

        def is_missing(task: AnyTask) -> bool:
            record = self.find(task, is_whole=True)
            return record is None or not (is_unchanged(record) and is_enough(record))

        numbers = (number for number, task in enumerate(tasks) if is_missing(task))
        return chosen(tasks, np.fromiter(numbers, np.int64))

    def check_parts(self, plan: str, tasks: Sequence[ShardTask]) -> None:
        """Check that parts have finished all work, and that no shard has changed since.

        Args:
            plan: What all parts do.
            tasks: All work, in order.

        Raises:
            FileNotFoundError: A part is missing.
            FileExistsError: The parts are of another plan.
            ValueError: A shard has changed since a part finished it.
        """
        self.check_plan(plan)
        if self.plan is None:
            raise FileNotFoundError(
                f"{self.path}: expected the journal of parts to merge, found none; run each part "
                "first, such as --part 1/16 to --part 16/16"
            )
        lost = []
        for number, task in enumerate(tasks):
            record = self.find(task, is_whole=True)
            if record is None:
                lost.append(number)
            elif not is_unchanged(record):
                raise ValueError(
                    f"{urls.redact(record.url)}: expected it as {self._part_text([number], tasks)}"
                    " found it, but it has changed since; run that part again"
                )
        if lost:
            raise FileNotFoundError(
                f"{self.path}: expected {count_text(len(tasks), 'finished shard')}, found "
                f"{len(tasks) - len(lost):,}; missing: {self._part_text(lost, tasks)}: run these "
                "again, and then merge"
            )

    def _part_text(self, numbers: list[int], tasks: Sequence[ShardTask]) -> str:
        """Return the parts that some tasks belong to, in each division that was begun."""
        begun = filter(None, map(_PART.fullmatch, self._names()))
        counts = sorted({int(match[2]) for match in begun})
        found = []
        for count in counts:
            parts = (JobPart(number, count) for number in range(1, count + 1))
            places = range(len(tasks))
            found.append(
                first_of([str(p) for p in parts if not set(p.of(places)).isdisjoint(numbers)], 8)
            )
        return "part " + (" or ".join(found) or "1/1")

    def index(self, task: ShardTask) -> tuple[ShardIndex, int]:
        """Return the index of a shard, and its length in bytes."""
        record = self.record(task, is_whole=True)
        found = record.index()
        if found is None:
            raise self._damaged(task)
        return found, record.nbytes

    def indexes(self, tasks: Iterable[ShardTask]) -> Iterator[tuple[str, int, ShardIndex]]:
        """Yield base name, length and index of these shards, as a dataset index takes them."""
        for task in tasks:
            found, nbytes = self.index(task)
            yield os.path.basename(urls.path_of(task.path)), nbytes, found

    @property
    def has_records(self) -> bool:
        """Whether there is a record."""
        return any(map(_RECORD.fullmatch, self._names()))

    def __iter__(self) -> Iterator[ShardRecord]:
        """Yield all records, without indexes."""
        names = filter(_RECORD.fullmatch, self._names())
        yield from filter(None, (self._read(name, is_whole=False) for name in names))

    def clear(self) -> None:
        """Delete the plan, then all records."""
        names = self._names()
        self._remove(name for name in names if name == _PLAN)
        self._remove(filter(_RECORD.fullmatch, names))

    def delete(self) -> None:
        """Delete the folder, when the work is complete or nothing was done: its plan first.

        Without it, nothing else counts: what cannot be deleted stays for the next run.
        """
        self._remove([_PLAN])
        with suppress(OSError):
            self._remove([*filter(_OWN.fullmatch, set(self._names()) - {_LOCK}), _LOCK])
        self._remove_if_empty()

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, name))

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []

    def _store(self, name: str, data: bytes) -> None:
        # After a power failure the checksums tell a record that the disk does not have.
        with replacing(os.path.join(self.path, name), self.mode, sync=False) as file:
            file.write(data)

    def _load(self, name: str) -> IO[bytes]:
        return open(os.path.join(self.path, name), "rb")

    def _read(self, name: str, *, is_whole: bool) -> ShardRecord | None:
        try:
            with self._load(name) as file:
                sums, head = file.readline(), file.readline()
                blob = file.read() if is_whole else b""
        except (FileNotFoundError, KeyError):
            return None
        expected = b"%08x %08x\n" % (zlib.crc32(head), zlib.crc32(blob))
        if expected[: None if is_whole else 9] != sums[: None if is_whole else 9]:
            return None
        fields = json.loads(head)
        if fields["identity"] is not None:
            fields["identity"] = TarIdentity(*fields["identity"])
        return ShardRecord(**fields, blob=blob)

    def _damaged(self, task: ShardTask) -> OSError:
        return OSError(
            f"{self.path}: expected the record of {urls.redact(task.path)}, found none or damaged "
            "bytes; run it again"
        )


@dataclass(frozen=True)
class TemporaryJournal(Journal):
    """The descriptions of shards in a file without a name, which no other run can use.

    Attributes:
        file: The file.
        places: Where records are, and their lengths, by name.
    """

    file: IO[bytes] = field(kw_only=True)
    places: dict[str, tuple[int, int]] = field(default_factory=dict)

    def _names(self) -> list[str]:
        return [*self.places]

    def _store(self, name: str, data: bytes) -> None:
        place = self.file.seek(0, os.SEEK_END)
        with named_if_full(self.path):
            self.file.write(data)
            self.file.flush()
        self.places[name] = place, len(data)

    def _load(self, name: str) -> IO[bytes]:
        place, nbytes = self.places[name]
        self.file.seek(place)
        return BytesIO(self.file.read(nbytes))


@contextmanager
def opened_journal(
    path: str | os.PathLike[str] | None, *, folder: str | None = None, mode: int = 0o666
) -> Iterator[Journal]:
    """Yield a journal that no other process works with.

    Args:
        path: Its folder, or the journal if the caller keeps others from it; None for a temporary
            file.
        folder: Where to put a temporary file; None for the system's folder of temporary files.
        mode: As for `Journal`.

    Raises:
        FileExistsError, OSError: As for `Journal.alone`.
    """
    if isinstance(path, Journal):
        yield path
        return
    if path is None:
        with locks.unshared(lambda: tempfile.TemporaryFile(dir=folder)) as file:
            yield TemporaryJournal(folder or tempfile.gettempdir(), file=file)
        return
    log = Journal(os.path.abspath(os.fspath(path)), mode)
    with log.alone():
        yield log


def is_journal(path: str) -> bool:
    """Whether a folder is empty, or has the lock of a journal; systems may add files to it."""
    try:
        names = os.listdir(path)
    except OSError:  # there is none, or it is no folder
        return False
    return not names or _LOCK in names


def is_unchanged(record: ShardRecord) -> bool:
    """Whether a local shard is as it was described; one that was copied or touched is hashed."""
    if record.identity is None:
        return True
    path = urls.local_path(record.url)
    try:
        found = TarIdentity.of_file(os.stat(path))
        return found.fits(record.identity) or (
            found.nbytes == record.nbytes and file_digest(path, "sha256") == record.sha256
        )
    except OSError:
        return False


def _name(url: str, key_split: str, source: str) -> str:
    text = f"{source}\0{key_split}\0{url}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).hexdigest()
