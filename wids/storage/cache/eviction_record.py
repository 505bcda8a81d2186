"""Remember what a cache folder holds and what to evict next, so that nobody has to list it.

The record is a note of the latest listing, and of what has changed since. It is read and written
while the eviction lock is held. Where it is missing, damaged, old or another user's, the folder is
listed, and a new record made. It may count too much, which a listing corrects; files that were
added without it are found by the next listing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from wids.storage.cache import cache_names
from wids.storage.cache.small_files import make_folder
from wids.storage.cache.verified import open_own

_LEAST_LISTED: Final = 256
"""Listing fewer files takes no longer than reading the record."""
_MOST_QUEUED: Final = 1 << 16
_MOST_AGE_S: Final = 600
_READ_NBYTES: Final = 1 << 14


class Unfinished(NamedTuple):
    """A file that is being fetched.

    Attributes:
        temporary: Its name now.
        name: The name that it will have; empty if that is not known, and it counts until the next
            listing.
        nbytes: The length that is reserved for it.
    """

    temporary: str
    name: str
    nbytes: int


@dataclass(frozen=True)
class Record:
    """What a cache folder holds.

    Attributes:
        made_ns: When it was listed, in nanoseconds since 1970.
        nbytes: Bytes that count, those of unfinished files included.
        at: Where to resume in the queue of files to evict.
        unfinished: The files that are being fetched.
    """

    made_ns: int
    nbytes: int
    at: int = 0
    unfinished: tuple[Unfinished, ...] = ()

    def reserved(self, file: Unfinished) -> Record:
        """Return the record with a file that is being fetched, or with its new length."""
        by_name = {other.temporary: other for other in self.unfinished}
        before = by_name.pop(file.temporary, None)
        nbytes = self.nbytes + file.nbytes - (before.nbytes if before else 0)
        return replace(self, nbytes=nbytes, unfinished=(*by_name.values(), file))

    def settled(self, shards_folder: str) -> Record:
        """Return the record with the lengths of the files that have been fetched or given up."""
        nbytes, unfinished = self.nbytes, []
        for file in self.unfinished:
            if os.path.lexists(os.path.join(shards_folder, file.temporary)):
                unfinished.append(file)
            elif file.name:
                nbytes += length_of(os.path.join(shards_folder, file.name)) - file.nbytes
        return replace(self, nbytes=nbytes, unfinished=tuple(unfinished))


def length_of(path: str) -> int:
    """Return the length of a file; 0 if it is gone."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def load(folder: str) -> Record | None:
    """Return the record of a cache folder, if it can be trusted."""
    path = cache_names.eviction_path(folder, "json")
    try:
        with open_own(path) as file:
            values = json.loads(file.read())
        with open_own(cache_names.eviction_path(folder, "queue")) as file:
            is_its_queue = file.read(20) == _token(values["made_ns"])
        unfinished = tuple(Unfinished(*entry) for entry in values.pop("unfinished"))
        record = Record(**values, unfinished=unfinished)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    numbers = (record.made_ns, record.nbytes, record.at, *(file.nbytes for file in unfinished))
    names = (name for file in unfinished for name in (file.temporary, file.name))
    if {*map(type, numbers)} != {int} or {*map(type, names)} - {str}:
        return None
    is_recent = 0 <= time.time_ns() - record.made_ns < _MOST_AGE_S * 1_000_000_000
    return record if is_recent and is_its_queue else None


def save(folder: str, record: Record) -> None:
    """Store a record, or have the next process list the folder."""
    data = json.dumps(vars(record)).encode()
    _write(cache_names.eviction_path(folder, "json"), data)


def save_listing(folder: str, record: Record, victims: Sequence[tuple[int, int, str]]) -> None:
    """Store the record of a listing, with the files to evict, of which the first go first.

    Args:
        folder: The cache folder.
        record: The record, with how many of these files were evicted or passed over already.
        victims: When each file was last used, its length and its name.
    """
    # All of them count: where most have leases, few are left, and listing them takes as long.
    if len(victims) + len(record.unfinished) < _LEAST_LISTED:
        forget(folder)
        return
    left = victims[record.at : record.at + _MOST_QUEUED]
    lines = [f"{used_ns} {nbytes} {name}\n" for used_ns, nbytes, name in left]
    token = _token(record.made_ns)
    _write(
        cache_names.eviction_path(folder, "queue"),
        token + "".join(lines).encode("utf-8", "surrogateescape"),
    )
    save(folder, replace(record, at=len(token)))


def queue(folder: str, record: Record) -> Generator[tuple[int, int, str, int], None, None]:
    """Yield what is left of the queue: time of use, length, name, and where to resume."""
    at, rest = record.at, b""
    with (
        suppress(OSError, ValueError),
        open_own(cache_names.eviction_path(folder, "queue")) as file,
    ):
        file.seek(at)
        while data := file.read(_READ_NBYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                at += len(line) + 1
                used_ns, nbytes, name = line.decode("utf-8", "surrogateescape").split(" ", 2)
                # Whatever the queue says, only such files are deleted (CACHE-9).
                if cache_names.is_own_name(name) and os.path.basename(name) == name:
                    yield int(used_ns), int(nbytes), name, at


def forget(folder: str) -> None:
    """Have the next process that makes space list the folder."""
    with suppress(OSError):
        os.unlink(cache_names.eviction_path(folder, "json"))


def _token(made_ns: int) -> bytes:
    """Return the beginning of the queue of a record."""
    return f"{made_ns:019d}\n".encode()


def _write(path: str, data: bytes) -> None:
    # Not under a temporary name, which a killed process would leave: what is incomplete does not
    # parse, or has another beginning.
    with suppress(OSError):
        os.unlink(path)
    with suppress(OSError):
        make_folder(os.path.dirname(path))
        # For this user alone, who decides by it what to delete.
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(data)
