"""Delete the least recently used files of a cache folder until its limit is kept.

Only files with the cache's own names are ever deleted, and none that a process uses.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import IO, Final, NamedTuple

from wids.errors import printable
from wids.storage import abandoned, stages
from wids.storage.cache import cache_names, eviction_record, sweeping
from wids.storage.cache.eviction_record import Record, Unfinished
from wids.storage.cache.leases import delete_if_unused
from wids.storage.cache.turns import folder_lock
from wids.storage.sizes import nbytes_text

_logger = logging.getLogger(__name__)

_INDEX_SUFFIX: Final = ".index"
_WAIT_S: Final = 5.0
"""How long to wait for another process's eviction."""
_NUM_LISTINGS: Final = 3


class CacheFile(NamedTuple):
    """A file in the cache folder that the cache wrote.

    Attributes:
        path, name: Its path, and the last part of it.
        nbytes: Its length.
        used_ns: When it was last opened, in nanoseconds since 1970.
        is_temporary: Whether it is being written.
    """

    path: str
    name: str
    nbytes: int
    used_ns: int
    is_temporary: bool


def make_space(
    folder: str,
    file: IO[bytes],
    nbytes: int,
    limit_nbytes: int,
    make_room: Callable[[], None],
    name: str,
) -> int:
    """Evict what a new file needs, and give it a length; return how many bytes too many remain.

    Args:
        folder: The cache folder.
        file: The new file, in that folder.
        nbytes: The length that it will have, so that other processes count it.
        limit_nbytes: The limit of the cache.
        make_room: Called if too many files are in use; closes what this process does not need.
        name: The name that the file will have.
    """
    # One process at a time, or two would each evict for both; but without a long wait for it.
    with folder_lock(cache_names.eviction_path(folder, "lock"), timeout_s=_WAIT_S) as is_held:
        file.flush()
        # What the file has already is counted with the other files.
        new_nbytes = max(nbytes, os.fstat(file.fileno()).st_size)
        new = Unfinished(os.path.basename(file.name), name, new_nbytes)
        record = eviction_record.load(folder) if is_held else None
        excess = 1 if record is None else _evict_recorded(folder, record, new, limit_nbytes)
        if excess > 0:
            # A temporary name does not have all of the final one.
            names = {file.temporary: file.name for file in record.unfinished} if record else {}
            excess = _evict_listed(folder, limit_nbytes, new, names)
            if excess > 0:
                sweeping.sweep(folder)  # files of processes that were killed count too
                make_room()
                excess = _evict_listed(folder, limit_nbytes, new, names)
        if not is_held:
            eviction_record.forget(folder)
        # While the lock is held: the next process has to count this file at its full length. After
        # the record, which may count too much, but not too little.
        file.truncate(new.nbytes)
    return max(0, excess)


def _evict_recorded(folder: str, record: Record, new: Unfinished, limit_nbytes: int) -> int:
    """Make space by the record alone; return how many bytes too many remain, by the record."""
    record = record.settled(cache_names.shards_folder(folder)).reserved(new)
    with closing(eviction_record.queue(folder, record)) as queue:
        record = _evict(folder, record, queue, limit_nbytes)
    eviction_record.save(folder, record)
    return record.nbytes - limit_nbytes


def _evict_listed(folder: str, limit_nbytes: int, new: Unfinished, names: Mapping[str, str]) -> int:
    """Make space after counting all files; return how many bytes too many remain.

    Args:
        folder: The cache folder.
        limit_nbytes: The limit.
        new: The new file.
        names: The final names of unfinished files, as far as they are known.
    """
    made_ns = time.time_ns()
    held = held_files(_list_files(cache_names.shards_folder(folder)))
    unfinished = tuple(Unfinished(f.name, names.get(f.name, ""), f.nbytes) for f in held.temporary)
    record = Record(made_ns, held.nbytes(), unfinished=unfinished).reserved(new)
    files = held.in_order(limit_nbytes - (record.nbytes - held.nbytes()))
    victims = [(None, file.nbytes, file.name, at) for at, file in enumerate(files, 1)]
    record = _evict(folder, record, iter(victims), limit_nbytes)
    listed = [(file.used_ns, file.nbytes, file.name) for file in files]
    eviction_record.save_listing(folder, record, listed)
    return record.nbytes - limit_nbytes


def _evict(
    folder: str,
    record: Record,
    victims: Iterator[tuple[int | None, int, str, int]],
    limit_nbytes: int,
) -> Record:
    """Delete files until the limit is kept; return what is held then.

    A copy with a lease is passed over and not waited for (CACHE-7, CACHE-8).

    Args:
        folder: The cache folder.
        record: What is held.
        victims: When each file was last used, unless it was listed just now; its length, its name,
            and where to resume after it.
        limit_nbytes: The limit.
    """
    nbytes, at = record.nbytes, record.at
    while nbytes > limit_nbytes and (victim := next(victims, None)) is not None:
        used_ns, victim_nbytes, name, at = victim
        path = os.path.join(cache_names.shards_folder(folder), name)
        nbytes -= _evicted(path, used_ns, victim_nbytes)
    return replace(record, nbytes=nbytes, at=at)


def _evicted(path: str, used_ns: int | None, nbytes: int) -> int:
    """Delete a file if it is unused since it was listed; return by how much less is then held."""
    try:
        if used_ns not in (None, os.stat(path).st_atime_ns):
            return 0
    except OSError:  # deleted since, perhaps by a process that was killed before it noted that
        pass
    else:
        if not delete_if_unused(path):
            return 0
        stages.count(stages.EVICTIONS)
        _logger.info("%s: evicted, %s", printable(path), nbytes_text(nbytes))
    # Its index counts from now on.
    return nbytes - eviction_record.length_of(path + _INDEX_SUFFIX)


def contents(folder: str) -> list[CacheFile]:
    """Return the copies, their indexes and the temporary files of a cache folder."""
    return _list_files(cache_names.shards_folder(folder))


def clearable(folder: str) -> list[CacheFile]:
    """Return all of `contents`, the indexes of local shards, and notes and maps beside them."""
    return [*contents(folder), *_list_files(cache_names.indexes_folder(folder))]


def clear(files: Sequence[CacheFile]) -> tuple[int, int, int]:
    """Delete the files that no process uses; the index of a copy in use stays too.

    An unfinished file is in use until it is a minute old, since its writer may not have locked it.

    Returns:
        The number of deleted files, their bytes, and the number of files that are in use.
    """
    deleted: list[CacheFile] = []
    kept: set[str] = set()
    for file in sorted(files):  # a copy comes before its index
        delete = abandoned.delete_if_abandoned if file.is_temporary else delete_if_unused
        # A copy that stays is compared with its index when its time changes (CACHE-35).
        if file.path.removesuffix(_INDEX_SUFFIX) not in kept and delete(file.path):
            deleted.append(file)
        elif os.path.lexists(file.path):  # or another process has deleted it
            kept.add(file.path)
    for folder in {os.path.dirname(os.path.dirname(file.path)) for file in deleted}:
        eviction_record.forget(folder)
    return len(deleted), sum(file.nbytes for file in deleted), len(kept)


class Held(NamedTuple):
    """The files that count, by kind; copies and orphans least recently used first."""

    copies: list[CacheFile]
    orphans: list[CacheFile]
    temporary: list[CacheFile]

    def nbytes(self) -> int:
        """Return the bytes of all of them."""
        return sum(file.nbytes for kind in self for file in kind)

    def in_order(self, limit_nbytes: int) -> list[CacheFile]:
        """Return what may be deleted, in the order in which it is.

        It may turn out to be in use, so this is all, and more than the limit asks for.
        """
        # Orphans beyond their tenth go first, regardless of age; the rest of them goes last, since
        # an index still saves a download by serving reads by range (CACHE-8, CACHE-15).
        excess = sum(file.nbytes for file in self.orphans) - limit_nbytes // 10
        num_first = 0
        while excess > 0:
            excess -= self.orphans[num_first].nbytes
            num_first += 1
        return [*self.orphans[:num_first], *self.copies, *self.orphans[num_first:]]


def held_files(files: Iterable[CacheFile]) -> Held:
    """Return the files that count for the limit.

    Copies, files being written, and indexes whose copy is gone count; such indexes serve reads by
    range and may use a tenth of the limit. The index of an existing copy, a percent of it, does not
    count.
    """
    by_use = sorted(files, key=lambda file: file.used_ns)
    complete = [file for file in by_use if not file.is_temporary]
    copies = [file for file in complete if not file.name.endswith(_INDEX_SUFFIX)]
    beside = {file.name for file in copies} | {file.name + _INDEX_SUFFIX for file in copies}
    orphans = [file for file in complete if file.name not in beside]
    return Held(copies, orphans, [file for file in by_use if file.is_temporary])


def _list_files(folder: str) -> list[CacheFile]:
    """Return the files of the cache in a folder."""
    for _ in range(_NUM_LISTINGS):
        files, is_complete = _list_once(folder)
        if is_complete:
            break
    return files


def _list_once(folder: str) -> tuple[list[CacheFile], bool]:
    """Return the files in a folder, and False if some may have been missed.

    A temporary file that is gone when its length is read may have been renamed to its final name,
    which the listing does not have.
    """
    files, is_complete = [], True
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            is_temporary = cache_names.is_temporary_name(entry.name)
            # Whatever else is in the folder is the user's, and is never deleted (CACHE-9).
            if is_temporary or cache_names.is_own_name(entry.name):
                try:
                    # In a shared folder another user could link to a file of any size (SEC-40).
                    status = entry.stat(follow_symlinks=False)
                except OSError:  # deleted or renamed since
                    is_complete &= not is_temporary
                    continue
                sizes = (status.st_size, status.st_atime_ns)
                files.append(CacheFile(entry.path, entry.name, *sizes, is_temporary))
    return files, is_complete
