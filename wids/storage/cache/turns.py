"""Let one process at a time fetch a file that several processes want.

A killed process loses its turn at once; the others stop waiting for one that hangs after two
minutes. Without working locks no process waits, and each fetches the file itself.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from wids.storage import abandoned, locks
from wids.storage.cache.small_files import make_folder

_PATIENCE_S: Final = 120.0
"""How long to wait for another process's download that does not grow, before fetching anyway."""

_logger = logging.getLogger(__name__)


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
    give_up = _Growth(path).has_stalled if waits else None
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
        make_folder(folder)
        mode = os.stat(folder).st_mode & 0o666 | 0o600
    except OSError:  # then the lock file cannot be made either
        mode = 0o600
    return locks.lock_file(path, mode=mode, timeout_s=timeout_s, give_up=give_up)


class _Growth:
    """Watches the temporary files for a path."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: list[tuple[str, int, int]] | None = None
        self._patient_until_s = time.monotonic() + _PATIENCE_S
        self._look_at_s = 0.0

    def has_stalled(self) -> bool:
        """Return whether no temporary file has changed for `_PATIENCE_S`."""
        now_s = time.monotonic()
        if now_s >= self._look_at_s:  # not at each call, since the folder may be large
            self._look_at_s = now_s + _PATIENCE_S / 20
            found = abandoned.temporary_files(self._path)
            if found != self._seen:
                # Any change counts, also of the time alone: reserved space gives a file its final
                # length early.
                self._patient_until_s, self._seen = now_s + _PATIENCE_S, found
        return now_s > self._patient_until_s
