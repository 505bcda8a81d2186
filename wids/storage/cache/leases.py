"""Lock files of the cache: one process at a time fetches a file, and open copies are not evicted.

A *lease* is a shared lock on the copy itself. Python's memory map duplicates the descriptor and a
fork inherits it, so a lease ends when its last map does, without any bookkeeping.

A process that is killed releases its lock for fetching at once. The others stop waiting for one
that hangs after two minutes. Where locks do not work, no process waits, and each fetches the file.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from io import FileIO
from typing import Final

from wids.storage import files, locks
from wids.storage.cache import cache_names

_logger = logging.getLogger(__name__)


_NUM_TRIES: Final = 20


def lease(path: str) -> FileIO | None:
    """Open a file so that it is not evicted while it is open; return None if it is gone.

    It is an object, which the garbage collector closes: Ctrl-C may come before its owner has it,
    and a descriptor without an owner would be a lease as long as the process runs.

    Raises:
        OSError: It cannot be read.
    """
    try:
        file = FileIO(path)
    except FileNotFoundError:
        return None
    try:
        # Bounded, and used without a lease after that: no process waits long for another (CACHE-6).
        for _ in range(_NUM_TRIES):
            if locks.acquire(file.fileno(), is_shared=True) is not False:
                break
            time.sleep(0.001)  # another process is trying to evict it, which is quick
        status = os.fstat(file.fileno())
        if status.st_nlink > 0:
            # The modification time stays, because it binds the copy to its index (INDEX-1).
            with suppress(OSError):  # the time of last use: most mounts do not update it on a read
                # Windows takes only paths.
                used = file.fileno() if os.utime in os.supports_fd else path
                os.utime(used, ns=(time.time_ns(), status.st_mtime_ns))
            return file
    except BaseException:  # explicitly, since the traceback keeps this frame
        file.close()
        raise
    file.close()  # it was evicted between open and lock
    return None


def delete_if_unused(path: str) -> bool:
    """Delete a file unless a process has a lease on it; return whether it was deleted."""
    with suppress(OSError), locks.holding(path) as is_held:
        # None, where locks fail, permits the deletion: readers that have the file open keep it on
        # Linux, and the others fetch it again (CACHE-6, CACHE-7).
        if is_held is not False:
            os.unlink(path)
            return True
    return False


_PATIENCE_S: Final = 120.0
"""How long to wait for another process's download that does not grow, before fetching anyway."""


@contextmanager
def turn(lock_path: str, path: str, *, waits: bool) -> Iterator[bool]:
    """Wait until no other process fetches a file, and keep others waiting while the block runs.

    Args:
        lock_path: The file to lock.
        path: The file to fetch.
        waits: Whether to wait for another process that fetches the file.

    Yields:
        Whether to fetch the file: False only without waiting, if another process fetches it.
    """
    # A process that hangs keeps its lock; only its file shows that it makes no progress.
    give_up = _stalling(path) if waits else None
    # A finite timeout, since filelock compares an infinite one with the locks of this thread.
    timeout_s = threading.TIMEOUT_MAX if waits else 0
    with folder_lock(lock_path, timeout_s=timeout_s, give_up=give_up) as is_held:
        if waits and is_held is False:
            _logger.warning("%s: another process fetches it and makes no progress", path)
        # Also without the lock: locks only save work, and the file is complete either way
        # (CACHE-6).
        yield waits or is_held is not False


def folder_lock(
    path: str, *, timeout_s: float, give_up: Callable[[], bool] | None = None
) -> AbstractContextManager[bool | None]:
    """Hold a lock file that is as open as its folder; see `locks.lock_file`."""
    folder = os.path.dirname(path)
    try:
        cache_names.make_folder(folder)
        mode = os.stat(folder).st_mode & 0o666 | 0o600
    except OSError:  # then the lock file cannot be made either
        mode = 0o600
    return locks.lock_file(path, mode=mode, timeout_s=timeout_s, give_up=give_up)


def _stalling(path: str) -> Callable[[], bool]:
    """Return a function that tells whether no temporary file for a path changes for `_PATIENCE_S`.

    It is no generator, whose end would swallow Ctrl-C.
    """
    seen: set[tuple[str, int, int]] | None = None
    patient_until_s = look_at_s = 0.0

    def has_stalled() -> bool:
        nonlocal seen, patient_until_s, look_at_s
        now_s = time.monotonic()
        if now_s >= look_at_s:  # not each time, since the folder may be large
            look_at_s = now_s + _PATIENCE_S / 20
            found = files.temporary_files(path)
            if found != seen:
                # Any change counts, also of the time alone: reserved space gives a file its final
                # length early.
                patient_until_s, seen = now_s + _PATIENCE_S, found
        return now_s > patient_until_s

    return has_stalled


def sweep(folder: str) -> None:
    """Delete the temporary files that killed processes left in a cache folder."""
    for part in (cache_names.shards_folder(folder), cache_names.indexes_folder(folder)):
        files.sweep(part, cache_names.is_temporary_name)
