"""Keep a cache folder within its limit: reserve space for new files, and evict old ones.

The least recently used files are evicted first. Only files with the cache's own names are ever
deleted, and none that a process uses.

A file of known length gets its space at once. A file of unknown length gets it in steps, up to the
limits of the cache and of the disk, since nothing else stops an endless response.
"""

from __future__ import annotations

import errno
import json
import logging
import operator
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final, NamedTuple

from wids.errors import FetchError, printable
from wids.storage import stages
from wids.storage.cache import cache_names, leases
from wids.storage.cache.leases import delete_if_unused, folder_lock
from wids.storage.files import FULL, delete_if_abandoned, read_or_map
from wids.storage.sizes import nbytes_text
from wids.storage.transport import urls

_logger = logging.getLogger(__name__)


_INDEX_SUFFIX: Final = ".index"
_WAIT_S: Final = 5.0
"""How long to wait for another process's eviction."""
_NUM_LISTINGS: Final = 3
_KEPT_PERCENT: Final = 95
"""More copies than the limit asks for are deleted, down to this part of the limit."""
_MOST_AGE_S: Final = 600
"""How long a total is trusted: files that were added without it are found by the next listing."""

_STEP_NBYTES: Final = 64 << 20
_STEP_PART: Final = 16
"""A step is at most this part of the limit, so that a short file evicts few others."""
_LEAST_NBYTES: Final = 256 << 10
_SPARE_NBYTES: Final = 1 << 30
_SPARE_PART: Final = 100
"""What a file of unknown length leaves free on the disk: a hundredth of it, at most a gigabyte."""


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


class Total(NamedTuple):
    """What a cache folder holds at most.

    Attributes:
        listed_ns: When it was listed, in nanoseconds since 1970.
        nbytes: The bytes that count, those that are reserved included.
    """

    listed_ns: int
    nbytes: int


def make_space(
    folder: str, file: IO[bytes], nbytes: int, limit_nbytes: int, make_room: Callable[[], None]
) -> int:
    """Evict files to make space for a new one, and set its length; return the bytes in excess.

    The folder is listed only if it could exceed the limit by the stored total.

    Args:
        folder: The cache folder.
        file: The new file, in that folder.
        nbytes: The length that it will have, so that other processes count it.
        limit_nbytes: The limit of the cache.
        make_room: Called if too many files are in use; closes what this process does not need.
    """
    # A file beyond the limit evicts nothing: its length is only what a server claims.
    beyond = max(0, nbytes - limit_nbytes)
    # One process at a time, or two would each evict for both; but without a long wait for it.
    with folder_lock(cache_names.eviction_path(folder, "lock"), timeout_s=_WAIT_S) as is_held:
        file.flush()
        has_nbytes = os.fstat(file.fileno()).st_size
        new_nbytes = max(0 if beyond else nbytes, has_nbytes)
        total = load_total(folder) if is_held else None
        if total is not None:
            # What was reserved for this file before counts twice, until the next listing.
            total = total._replace(nbytes=total.nbytes + new_nbytes)
        if total is None or total.nbytes > limit_nbytes:
            # What the file has already is counted with the other files.
            total = _evict(folder, new_nbytes - has_nbytes, limit_nbytes)
            if total.nbytes > limit_nbytes:
                leases.sweep(folder)  # files of processes that were killed count too
                make_room()
                total = _evict(folder, new_nbytes - has_nbytes, limit_nbytes)
        # Before the file has its length: a kill leaves a total that is too high, never too low.
        if is_held:
            save_total(folder, total)
        else:
            forget_total(folder)
        # While the lock is held: the next process has to count this file at its full length.
        file.truncate(new_nbytes)
    excess = max(beyond, total.nbytes - limit_nbytes, 0)
    if excess:
        cache_names.warn_once(
            "%s: cache_size is %s, and with what is in use now the cache needs %s; make cache_size "
            "larger or lru_size smaller",
            *(folder, nbytes_text(limit_nbytes), nbytes_text(limit_nbytes + excess)),
        )
    return excess


def load_total(folder: str) -> Total | None:
    """Return the stored total of a cache folder, if it can be trusted."""
    data = read_or_map(cache_names.eviction_path(folder, "json"), is_own=True)
    try:
        listed_ns, nbytes = map(operator.index, json.loads(bytes(data or b"")))
    except (ValueError, TypeError, RecursionError):
        return None
    is_recent = 0 <= time.time_ns() - listed_ns < _MOST_AGE_S * 1_000_000_000
    return Total(listed_ns, nbytes) if is_recent else None


def save_total(folder: str, total: Total) -> None:
    """Store a total, or have the next process list the folder."""
    path = cache_names.eviction_path(folder, "json")
    # Not under a temporary name, which a killed process would leave: a part does not parse.
    forget_total(folder)
    with suppress(OSError):
        cache_names.make_folder(os.path.dirname(path))
        # For this user alone, who decides by it what to delete.
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(json.dumps(total).encode())


def forget_total(folder: str) -> None:
    """Have the next process that makes space list the folder."""
    with suppress(OSError):
        os.unlink(cache_names.eviction_path(folder, "json"))


def _evict(folder: str, new_nbytes: int, limit_nbytes: int) -> Total:
    """List a folder, and delete files until the limit is kept; return what is held then.

    A copy with a lease is passed over and not waited for (CACHE-7, CACHE-8).

    Args:
        folder: The cache folder.
        new_nbytes: What the new file will have beyond its present length.
        limit_nbytes: The limit.
    """
    listed_ns = time.time_ns()
    held = held_files(contents(folder))
    nbytes = sum_nbytes(held) + new_nbytes
    if nbytes > limit_nbytes:
        least_nbytes = limit_nbytes * _KEPT_PERCENT // 100
        for file in in_order(held, limit_nbytes - new_nbytes):
            # Beyond the limit some more, so that the next downloads need no listing.
            if nbytes <= limit_nbytes and nbytes - file.nbytes < least_nbytes:
                break
            nbytes -= _evicted(file)
    return Total(listed_ns, nbytes)


def _evicted(file: CacheFile) -> int:
    """Delete a file if it is unused; return by how much less is then held."""
    if not delete_if_unused(file.path):
        return 0
    stages.count(stages.EVICTIONS)
    _logger.info("%s: evicted, %s", printable(file.path), nbytes_text(file.nbytes))
    try:  # its index counts from now on
        return file.nbytes - os.stat(file.path + _INDEX_SUFFIX).st_size
    except OSError:
        return file.nbytes


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
    kept_paths: set[str] = set()
    for file in sorted(files):  # a copy comes before its index
        delete = delete_if_abandoned if file.is_temporary else delete_if_unused
        # A copy that stays is compared with its index when its time changes (CACHE-35).
        if file.path.removesuffix(_INDEX_SUFFIX) not in kept_paths and delete(file.path):
            deleted.append(file)
        elif os.path.lexists(file.path):  # or another process has deleted it
            kept_paths.add(file.path)
    for folder in {os.path.dirname(os.path.dirname(file.path)) for file in deleted}:
        forget_total(folder)
    return len(deleted), sum_nbytes(deleted), len(kept_paths)


def held_files(files: Sequence[CacheFile]) -> list[CacheFile]:
    """Return the files that count for the limit, least recently used first.

    Copies, files being written, and indexes whose copy is gone count; such indexes serve reads by
    range and may use a tenth of the limit. The index of an existing copy, a percent of it, does not
    count.
    """
    beside = {file.name + _INDEX_SUFFIX for file in files}
    counted = (file for file in files if file.name not in beside)
    return sorted(counted, key=operator.attrgetter("used_ns"))


def in_order(held: Sequence[CacheFile], limit_nbytes: int) -> list[CacheFile]:
    """Return what may be deleted of files that count, in the order in which it is.

    It may turn out to be in use, so this is all, and more than the limit asks for.
    """
    complete = [file for file in held if not file.is_temporary]
    orphans = [file for file in complete if file.name.endswith(_INDEX_SUFFIX)]
    copies = [file for file in complete if not file.name.endswith(_INDEX_SUFFIX)]
    # Orphans beyond their tenth go first, regardless of age; the rest of them goes last, since an
    # index still saves a download by serving reads by range (CACHE-8).
    excess, num_first = sum_nbytes(orphans) - limit_nbytes // 10, 0
    while excess > 0:
        excess -= orphans[num_first].nbytes
        num_first += 1
    return [*orphans[:num_first], *copies, *orphans[num_first:]]


def sum_nbytes(files: Iterable[CacheFile]) -> int:
    """Return the bytes of all files."""
    return sum(file.nbytes for file in files)


def _list_files(folder: str) -> list[CacheFile]:
    """Return the files of the cache in a folder."""
    for _ in range(_NUM_LISTINGS):
        files, is_complete = [], True
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                is_temporary = cache_names.is_temporary_name(entry.name)
                # Whatever else is in the folder is the user's, and is never deleted (CACHE-9).
                if not is_temporary and not cache_names.is_own_name(entry.name):
                    continue
                try:
                    # In a shared folder another user could link to a file of any size (SEC-40).
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    # Deleted, or renamed to its final name, which this listing does not have.
                    is_complete &= not is_temporary
                else:
                    sizes = (status.st_size, status.st_atime_ns)
                    files.append(CacheFile(entry.path, entry.name, *sizes, is_temporary))
        if is_complete:
            break
    return files


class StorageError(FetchError):
    """A file that cannot be stored in the cache, though perhaps elsewhere."""


@dataclass
class Space:
    """The space of one file.

    Attributes:
        folder: Where the file is.
        stated_nbytes: Its length, if it is known.
        limit_nbytes: The limit of the cache, or None if it has none.
        reserve: Called with a length before the file reaches it, and the limit, if there is one.
    """

    folder: str
    stated_nbytes: int | None
    limit_nbytes: int | None
    reserve: Callable[[int, int], object]
    _reserved_nbytes: int = -1

    def cover(self, received_nbytes: int, total_nbytes: int | None) -> None:
        """Reserve space for what has arrived, and for what is expected next.

        Args:
            received_nbytes: Bytes that the file has.
            total_nbytes: Its length as its server states it, or None.

        Raises:
            OSError: The disk or the limit has no space for it.
        """
        if received_nbytes <= self._reserved_nbytes:
            return
        # The server's length first: it decides how many bytes will arrive, even if the spec is
        # wrong.
        known_nbytes = self.stated_nbytes if total_nbytes is None else total_nbytes
        if known_nbytes is not None and received_nbytes <= known_nbytes:
            # Before anything is evicted: a server that claims too much must not empty the cache
            # (CACHE-8).
            if known_nbytes - received_nbytes > shutil.disk_usage(self.folder).free:
                raise _no_space(f" for {nbytes_text(known_nbytes)}")
            nbytes = known_nbytes
        else:
            nbytes = self._next_step(received_nbytes)
        if self.limit_nbytes is not None:
            self.reserve(nbytes, self.limit_nbytes)
        self._reserved_nbytes = nbytes

    def _next_step(self, received_nbytes: int) -> int:
        """Return the length to reserve for a file of unknown final length."""
        disk = shutil.disk_usage(self.folder)
        spare_nbytes = disk.free - min(_SPARE_NBYTES, disk.total // _SPARE_PART)
        if spare_nbytes < _LEAST_NBYTES:
            raise _no_space(f" after {nbytes_text(received_nbytes)} of unknown length")
        limit_nbytes = sys.maxsize if self.limit_nbytes is None else self.limit_nbytes
        if received_nbytes > limit_nbytes:
            raise OSError(
                errno.EFBIG,
                f"its length is not known, and it is longer than {nbytes_text(limit_nbytes)} "
                "(cache_size)",
            )
        step_nbytes = min(_STEP_NBYTES, spare_nbytes // 2, limit_nbytes // _STEP_PART)
        return min(limit_nbytes, received_nbytes + step_nbytes)


def _no_space(what: str) -> OSError:
    return OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}{what}")


def storage_error(
    url: str, path: str, cache_folder: str, limit_nbytes: int | None, error: OSError
) -> StorageError:
    """Return the error for a file that could not be stored under a path."""
    folder = os.path.dirname(path)
    what = f"{urls.redact(url)}: cannot be stored in {folder}: {error.strerror or error}"
    if error.errno not in FULL:
        return StorageError(f"{what}; set cache_dir (now {cache_folder}) to a folder of your own")
    with suppress(OSError):
        what += f", {nbytes_text(shutil.disk_usage(folder).free)} are free"
    if error.errno == errno.EFBIG:
        return StorageError(f"{what}; make cache_size larger, or state filesize in the spec")
    limit_text = "unlimited" if limit_nbytes is None else nbytes_text(limit_nbytes)
    return StorageError(
        f"{what}; set cache_size (now {limit_text}) to what fits there, or cache_dir (now "
        f"{cache_folder}) to a larger disk"
    )
