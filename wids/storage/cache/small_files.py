"""Save small files that can be recomputed, with the permissions of the cache folder."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from wids.storage import complete_files, locks

_SETTLED_NS: Final = 2_000_000_000
"""Age from which a modification time identifies a file's content: the coarsest file systems count
in steps of two seconds, so a younger file could change without a new time."""

_warned: Final[set[str]] = set()
_logger = logging.getLogger(__name__)


def is_settled(mtime_ns: int) -> bool:
    """Return whether a file of this modification time will get a new one when it changes."""
    return time.time_ns() - mtime_ns > _SETTLED_NS


def save_quietly(path: str, data: bytes) -> bool:
    """Write a file of the cache atomically; return whether that was possible."""
    with suppress(OSError):  # read-only, full, or another user's
        _save(path, data)
        return True
    return False


def save_or_warn(folder: str, paths: Iterable[str], data: bytes) -> str | None:
    """Write an index of the cache under the first of some paths that can be written.

    Args:
        folder: The cache folder, which one warning in each process names if none can be written.
        paths: The paths.
        data: What to write.

    Returns:
        The path that was written; None if there is none.
    """
    reason = ""
    for path in paths:
        try:
            _save(path, data)
        except OSError as error:
            reason = reason or error.strerror or str(error)
        else:
            return path
    if folder not in _warned:
        _warned.add(folder)
        _logger.warning(
            "%s: the cache folder cannot be written (%s), so that each process scans its tars "
            "again; pass cache_dir or set WIDS_CACHE to a folder that can be, or store the indexes "
            "beside the shards with `wids create`",
            folder,
            reason,
        )
    return None


def _save(path: str, data: bytes) -> None:
    """Write a file of the cache atomically.

    Processes that save the same file at once do not disturb each other: they save equal bytes.
    """
    make_folder(os.path.dirname(path))
    # Every reader checks the content, so there is no need to wait for the disk.
    with complete_files.replacing(path, mode=0o600, sync=False) as file:
        file.write(data)


def make_folder(path: str) -> None:
    """Make a folder in the cache folder with its permissions; a new cache folder is private."""
    parent = os.path.dirname(path)
    os.makedirs(parent, mode=0o700, exist_ok=True)  # the mode applies to the last part only
    with suppress(FileExistsError):
        os.mkdir(path)
        os.chmod(path, os.stat(parent).st_mode & 0o7777)  # mkdir would apply the umask


def open_up(handle: int, folder: str) -> None:
    """Set the permissions of a new file to those of its folder, regardless of the umask."""
    with suppress(OSError, AttributeError):  # Windows, where folders decide, has no `fchmod`
        # Otherwise the umask would close a group's shared folder to the group (CACHE-1).
        os.fchmod(handle, os.stat(folder).st_mode & 0o666)


def protect(handle: int, path: str) -> None:
    """Make a complete file read-only, for those who may read its folder.

    Args:
        handle: The file, on which this process has a lock.
        path: Its path.
    """
    with suppress(OSError):
        # Opened again: `flock` belongs to the open file, so this gets the answer that another
        # process would get.
        other = os.open(path, locks.READ_FLAGS)
        try:
            # On NFS a file that cannot be opened for writing cannot be locked exclusively, so no
            # process could know whether it may be evicted.
            can_lock = locks.acquire(other) is not None
        finally:
            os.close(other)
        if can_lock:
            os.fchmod(handle, os.stat(os.path.dirname(path)).st_mode & 0o444)
